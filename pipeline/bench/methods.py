"""What is compared: placers with their parameters, and the coarsening that each works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline import registry
from pipeline.bench.cases import Case
from pipeline.config import Settings
from pipeline.core.devices import contract_costs
from pipeline.core.errors import UnknownNameError
from pipeline.core.graph import Grouping, contract
from pipeline.core.problem import Problem, allowed_devices
from pipeline.core.stages import Placer, Recipe
from pipeline.partition import join, tied
from pipeline.recipes import chained
from pipeline.recipes import prepared as by_recipe
from pipeline.scenario import with_policy

SINGLE = "single"  # stands for every device on its own


@dataclass(frozen=True, slots=True)
class Method:
    """One row of a table.

    placer, params: what is built. coarsen: coarseners applied to the operations before it works; a placer that brings
    a recipe of its own does not heed it. seeded: whether the answer depends on the seed. learned: whether it is one
    of those that the simple ones stand against.
    """

    name: str
    placer: str
    params: Mapping[str, Any] = field(default_factory=dict)
    coarsen: tuple[str, ...] = ("fold",)
    seeded: bool = True
    learned: bool = False

    def build(self) -> Placer:
        """Return the placer.

        Raises:
            UnknownNameError: there is no such placer, or it has no such parameter.
        """
        found: Placer = registry.build("place", self.placer, self.params)
        return found


METHODS = (
    Method(SINGLE, "single", seeded=False),
    Method("random", "random"),
    Method("metis", "metis"),
    Method("min_cut", "min_cut", seeded=False),
    Method("portfolio", "portfolio"),
    Method("hsdag_paper", "hsdag_paper", learned=True),
    Method("hsdag_released", "hsdag_released", learned=True),
    Method("hsdag", "hsdag", {"warm": 0.0}, learned=True),
    Method("hsdag-warm", "hsdag", learned=True),
)


def chosen(names: Sequence[str]) -> list[Method]:
    """Return the methods of these names; without any, those of the table whose placers are there.

    A placer that is not in the table may be named too, and has its default parameters.

    Raises:
        UnknownNameError: there is no such method; one of the table whose placer is missing is none.
    """
    placers = registry.table("place")
    there = {method.name: method for method in METHODS if method.placer in placers}
    for name in names:
        if name not in there and name not in placers:
            raise UnknownNameError("method", name, [*there, *placers])
    wanted = dict.fromkeys(names or there)
    found = [there[name] if name in there else Method(name, name, learned=learns(name)) for name in wanted]
    for method in found:
        method.build()
    return found


def missing() -> list[str]:
    """Return the methods of the table whose placers are not registered."""
    placers = registry.table("place")
    return [method.name for method in METHODS if method.placer not in placers]


def learns(placer: str) -> bool:
    """Return whether a placer learns a policy, and so needs features, an embedder and a grouper."""
    return hasattr(registry.implementation("place", placer), "recipe")


def recipe_of(placer: Placer) -> Recipe | None:
    """Return the stages that a placer brings along, None if it takes what it is given."""
    found: Recipe | None = getattr(placer, "recipe", None)
    return found


def prepared(method: Method, placer: Placer, case: Case, *, seed: int) -> tuple[Grouping, Problem]:
    """Return the nodes that a method places, as a grouping of the case's operations, and the problem it is given."""
    recipe = recipe_of(placer)
    if recipe is not None:
        subject = case.subject
        return by_recipe(recipe, problem_of(case, subject.grouping), subject.costs, seed=seed)
    grouping = coarsened(case, method.coarsen, seed=seed)
    problem = problem_of(case, grouping)
    return grouping, with_policy(problem) if learns(method.placer) else problem


def coarsened(case: Case, names: Iterable[str], *, seed: int) -> Grouping:
    """Return the grouping that coarseners make one after another; what is tied stays together."""
    graph = case.subject.graph
    grouping = chained([(name, {}) for name in names], graph, seed=seed)
    return join(grouping, tied(graph))


def problem_of(case: Case, grouping: Grouping) -> Problem:
    """Return the problem of placing a grouping's nodes."""
    subject = case.subject
    graph = contract(subject.graph, grouping)
    costs = None if subject.costs is None else contract_costs(subject.costs, graph, grouping)
    allowed = allowed_devices(graph, subject.topology, costs, {})
    return Problem(graph, subject.topology, tied(graph), costs, allowed)


def policy_of(method: Method) -> list[Any] | None:
    """Return features, embedder and grouper, with all parameters, that a method which learns is given."""
    if not learns(method.placer):
        return None
    chosen = Settings()
    built = (registry.build("embed", chosen.embed.use), registry.build("group", chosen.group.use))
    return [list(chosen.embed.blocks), *(registry.canonical(part) for part in built)]


def versions_of(method: Method, placer: Placer) -> dict[str, int]:
    """Return implementation -> version of everything that decides what a method answers."""
    recipe = recipe_of(placer)
    used = {f"place.{method.placer}": placer.version}
    if recipe is not None:
        named = [("coarsen", name) for name, _ in recipe.coarsen]
        named += [("embed", recipe.embed[0]), ("group", recipe.group[0])]
    else:
        named = [("coarsen", name) for name in method.coarsen]
        if learns(method.placer):
            named += [("embed", Settings().embed.use), ("group", Settings().group.use)]
    return used | {f"{stage}.{name}": registry.implementation(stage, name).version for stage, name in named}
