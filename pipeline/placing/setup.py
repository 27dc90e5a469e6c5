"""Where every problem is assembled: of operations, of groups of them, and for placers that learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.core.devices import CostTable, Topology, contract_costs
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.problem import Instance, Problem, allowed_devices
from pipeline.core.stages import LearningPlacer, Placer, Recipe
from pipeline.core.workload import Tags
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.shared.partition import colocation_grouping


def problem_of(
    graph: Graph,
    topology: Topology,
    costs: CostTable | None,
    *,
    pins: Mapping[str, str] | None = None,
    ordered: bool = False,
    tags: Tags | None = None,
) -> Problem:
    """Return the problem of placing operations one by one; those that are colocated share a device.

    Raises:
        UsageError: a pin names an operation or a device that is not there.
        DeviceError: no device may run an operation.
    """
    allowed = allowed_devices(graph, topology, costs, pins or {})
    return Problem(Instance(graph, topology, colocation_grouping(graph), costs, allowed, tags=tags), ordered=ordered)


def coarse_problem(graph: Graph, topology: Topology, costs: CostTable | None, grouping: Grouping) -> Problem:
    """Return the problem of placing the nodes that a grouping of operations makes; costs: per operation.

    Raises:
        DeviceError: no device may run a node.
    """
    coarse = contract(graph, grouping)
    return problem_of(coarse, topology, None if costs is None else contract_costs(costs, coarse, grouping))


def with_policy(problem: Problem, *, learned: Snapshot | None = None) -> Problem:
    """Return a problem with features and untrained modules of the default stages; learned: a policy to begin with."""
    from embed.features import node_features

    chosen = Settings()
    alone = Grouping.identity(problem.graph.n)
    features = node_features(problem.graph, alone, problem.costs, blocks=chosen.embed.blocks).values
    embedder, grouper = (
        registry.build_implementation("embed", chosen.embed.use),
        registry.build_implementation("group", chosen.group.use),
    )
    return replace(problem, policy=PolicyInputs(features, embedder, grouper, learned=learned))


def recipe_of(placer: Placer) -> Recipe | None:
    """Return the stages that a placer brings along, None if it takes what it is given."""
    return placer.recipe if isinstance(placer, LearningPlacer) else None


def learns_policy(placer: str) -> bool:
    """Return whether a placer of this name learns a policy, and so needs features, an embedder and a grouper."""
    return isinstance(registry.build_implementation("place", placer), LearningPlacer)
