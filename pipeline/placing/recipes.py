"""Problems as a placer's own recipe makes them from operations, and its answers in terms of operations again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.core.devices import CostTable
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import PolicyInputs
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Answer, LearningPlacer, Placer, Recipe
from pipeline.placing.setup import coarse_problem, recipe_of, with_policy
from pipeline.settings import registry


def for_placer(
    placer: Placer, whole: Problem, given: Callable[[], tuple[Grouping, Problem]], *, seed: int
) -> tuple[Grouping, Problem]:
    """Return the nodes that a placer places, as a grouping of the operations of `whole`, and the problem it is given.

    Its own recipe makes them, if it brings one. given: makes what others get; one that learns gets untrained modules of
    the default stages with it, if those before have made none.
    """
    recipe = recipe_of(placer)
    if recipe is not None:
        return prepare_problem(recipe, whole, whole.costs, seed=seed)
    grouping, problem = given()
    if isinstance(placer, LearningPlacer) and problem.policy is None:
        problem = with_policy(problem)
    return grouping, problem


def prepare_problem(
    recipe: Recipe, problem: Problem, costs: CostTable | None, *, seed: int
) -> tuple[Grouping, Problem]:
    """Return the groups that a recipe makes of a problem's operations, and the problem of placing these groups.

    Colocated operations are in one group, and every group has a device that may run it. Pins and the features, embedder
    and grouper of the recipe are in the new problem; the start as well, if it keeps the groups together. The modules
    are untrained; a policy learned before and its checkpointer are handed on.

    costs: seconds per operation, or None where nothing is known.

    Raises:
        UnknownNameError: the recipe names something that does not exist.
    """
    from embed.features import node_features
    from pipeline.shared.feasibility import made_feasible

    graph = problem.graph
    grouping = made_feasible(problem, chain_coarseners(recipe.coarsen, graph, seed=seed))
    features = node_features(graph, grouping, costs, blocks=recipe.blocks).values
    policy = PolicyInputs(
        features,
        registry.build_implementation("embed", *recipe.embed),
        registry.build_implementation("group", *recipe.group),
    )
    if problem.policy is not None:
        policy = replace(policy, learned=problem.policy.learned, checkpointer=problem.policy.checkpointer)
    coarse = coarse_problem(graph, problem.topology, costs, grouping).on(allowed=problem.group_allowed(grouping))
    own = replace(
        problem,
        instance=coarse.instance,
        start=None if problem.start is None else _group_placement(problem.start, grouping),
        policy=policy,
    )
    return grouping, own


def lift_answer(answer: Answer, grouping: Grouping) -> Answer:
    """Return an answer for the groups as one for the operations.

    Its bound comes along only where every operation is a group: else it holds for placements of whole groups alone.
    """
    if grouping.is_identity:
        return answer
    candidates = tuple(replace(c, placement=c.placement.lift(grouping)) for c in answer.candidates)
    known = answer if grouping.k == grouping.n else replace(answer, lower_bound_s=0.0, bound_by="")
    return replace(known, candidates=candidates)


def chain_coarseners(coarsen: Sequence[tuple[str, Mapping[str, Any]]], graph: Graph, *, seed: int) -> Grouping:
    """Return the groups of coarseners, given by names and parameters, each on what the one before left."""
    grouping, coarse = Grouping.identity(graph.n), graph
    for name, values in coarsen:
        grouping = grouping.then(registry.build_implementation("coarsen", name, values).coarsen(coarse, seed=seed))
        coarse = contract(graph, grouping)
    return grouping


def _group_placement(placement: Placement, grouping: Grouping) -> Placement | None:
    """Return the placement of the groups whose members are placed like this; None if it tells members apart."""
    member = np.zeros(grouping.k, np.int64)
    member[grouping.group] = np.arange(grouping.n)  # any one of them
    priority = None if placement.priority is None else placement.priority[member]
    lowered = Placement(placement.device[member], placement.devices, priority)
    return lowered if lowered.lift(grouping).key() == placement.key() else None
