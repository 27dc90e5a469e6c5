"""What is compared: placers with their parameters, and the coarsening that each works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.bench.cases import BenchCase
from pipeline.core.graph import Grouping
from pipeline.core.params import canonical
from pipeline.core.problem import Problem
from pipeline.core.stages import LearningPlacer, Placer
from pipeline.placing.recipes import chain_coarseners, for_placer
from pipeline.placing.setup import coarse_problem, recipe_of
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import placers_called
from pipeline.shared.partition import colocation_grouping, has_metis, join_groupings

SINGLE = "single"  # stands for every device on its own


@dataclass(frozen=True, slots=True)
class BenchMethod:
    """One row of a table.

    placer, params: what is built. coarsen: coarseners applied to the operations before it works; a placer that brings
    a recipe of its own ignores it. seeded: whether the answer depends on the seed. learned: whether it is one
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
        placer: Placer = registry.build_implementation("place", self.placer, self.params)
        return placer

    def to_document(self) -> dict[str, Any]:
        """Return the method as JSON values."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BenchMethod:
        """Return the method of `to_document`."""
        return cls(**{**document, "coarsen": tuple(document["coarsen"])})


def prepared(method: BenchMethod, placer: Placer, case: BenchCase, *, seed: int) -> tuple[Grouping, Problem]:
    """Return the nodes that a method places, as a grouping of the case's operations, and the problem it is given."""
    graph, topology, costs = case.subject.graph, case.subject.topology, case.subject.costs
    if case.problem is not None:
        fresh = case.problem.on()  # what one method derived from it would be a present to the next
        return for_placer(placer, fresh, lambda: (Grouping.identity(graph.n), fresh), seed=seed)
    whole = coarse_problem(graph, topology, costs, case.subject.grouping)

    def given() -> tuple[Grouping, Problem]:
        grouping = coarsened(case, method.coarsen, seed=seed)
        return grouping, coarse_problem(graph, topology, costs, grouping)

    return for_placer(placer, whole, given, seed=seed)


def coarsened(case: BenchCase, names: Iterable[str], *, seed: int) -> Grouping:
    """Return the grouping that coarseners make one after another; what is colocated stays together."""
    graph = case.subject.graph
    grouping = chain_coarseners([(name, {}) for name in names], graph, seed=seed)
    return join_groupings(grouping, colocation_grouping(graph))


def policy_of(placer: Placer) -> list[Any] | None:
    """Return features, embedder and grouper, with all parameters, that a placer which learns is given."""
    if not isinstance(placer, LearningPlacer):
        return None
    chosen = Settings()
    built = (
        registry.build_implementation("embed", chosen.embed.use),
        registry.build_implementation("group", chosen.group.use),
    )
    return [list(chosen.embed.blocks), *(canonical(part) for part in built)]


def versions_of(method: BenchMethod, placer: Placer) -> dict[str, int]:
    """Return implementation -> version of everything that decides what a method answers."""
    recipe = recipe_of(placer)
    used = {f"place.{method.placer}": placer.version}
    if recipe is not None:
        named = [("coarsen", name) for name, _ in recipe.coarsen]
        named += [("embed", recipe.embed[0]), ("group", recipe.group[0])]
    else:
        named = [("coarsen", name) for name in method.coarsen]
        if isinstance(placer, LearningPlacer):
            named += [("embed", Settings().embed.use), ("group", Settings().group.use)]
    named += [("place", name) for name in placers_called(method.placer, method.params)]
    used |= {} if has_metis() else {"pymetis": 0}  # others take the place of its partitions
    return used | {f"{stage}.{name}": registry.load_implementation(stage, name).version for stage, name in named}
