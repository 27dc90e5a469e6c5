"""The methods of the tables, the cells of each, and the optimum that they are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.bench.cases import BenchCase
from pipeline.bench.cells import BenchCell
from pipeline.bench.methods import SINGLE, BenchMethod, prepared
from pipeline.core.errors import UnknownNameError
from pipeline.core.problem import Budget
from pipeline.placing.setup import learns_policy
from pipeline.settings import registry

METHODS = (
    BenchMethod(SINGLE, "single", seeded=False),
    BenchMethod("random", "random"),
    BenchMethod("metis", "metis"),
    BenchMethod("min_cut", "min_cut", seeded=False),
    BenchMethod("portfolio", "portfolio"),
    BenchMethod("hsdag_paper", "hsdag_paper", learned=True),
    BenchMethod("hsdag_released", "hsdag_released", learned=True),
    BenchMethod("hsdag", "hsdag", {"warm": 0.0}, learned=True),
    BenchMethod("hsdag-warm", "hsdag", learned=True),
)

# What the tables 2, 3 and 5 of HSDAG's paper compare, and what stands beside them here.
PAPER_METHODS = (
    *(method for method in METHODS if method.name in (SINGLE, "min_cut")),
    BenchMethod("placeto", "placeto", learned=True),
    BenchMethod("rnn", "rnn", learned=True),
    *(
        BenchMethod(f"hsdag_paper without {name}", "hsdag_paper", {"without": name}, learned=True)
        for name in ("shape", "id", "structure")
    ),
    *(method for method in METHODS if method.placer.startswith("hsdag")),
)


def chosen(names: Sequence[str]) -> list[BenchMethod]:
    """Return the methods of these names; without any, those of the table whose placers are there.

    A placer that is not in the table may be named too, and has its default parameters.

    Raises:
        UnknownNameError: there is no such method; one of the table whose placer is missing is none.
    """
    placers = registry.implementation_table("place")
    usual = {method.name: method for method in METHODS if method.placer in placers}
    there = {method.name: method for method in PAPER_METHODS if method.placer in placers} | usual
    for name in names:
        if name not in there and name not in placers:
            raise UnknownNameError("method", name, [*there, *placers], "docs/bench.md and `placewright list place`")
    wanted = dict.fromkeys(names or usual)
    methods = [
        there[name] if name in there else BenchMethod(name, name, learned=learns_policy(name)) for name in wanted
    ]
    for method in methods:
        method.build()
    return methods


def of_the_paper() -> list[str]:
    """Return the names of the methods of the paper's tables whose placers are registered."""
    placers = registry.implementation_table("place")
    return [method.name for method in PAPER_METHODS if method.placer in placers]


def missing() -> list[str]:
    """Return the methods of the table whose placers are not registered."""
    placers = registry.implementation_table("place")
    return [method.name for method in METHODS if method.placer not in placers]


def cells_of(case: BenchCase, method: BenchMethod, seeds: int, evaluations: int) -> list[BenchCell]:
    """Return the cells of a method on a case: one per seed, or per device of a single device's row."""
    placer = method.build()
    if method.placer == SINGLE:
        return [BenchCell(case, method, placer, 1, 0, device) for device in case.devices]
    return [BenchCell(case, method, placer, evaluations, seed) for seed in range(seeds if method.seeded else 1)]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best value that is possible, if `proven`; else the best that the exact method found."""

    value_s: float
    proven: bool
    found_by: str


def find_optimum(case: BenchCase, method: BenchMethod) -> Optimum | None:
    """Return what an exact method finds where operations are placed one by one; None on real devices."""
    if case.journal is not None:
        return None
    evaluator = case.bind(case.subject.grouping)
    fine = BenchMethod(method.name, method.placer, method.params, coarsen=())
    placer = fine.build()
    _, problem = prepared(fine, placer, case, seed=0)
    answer = placer.place(problem, evaluator, Budget(10_000), seed=0, progress=lambda _: None)
    return Optimum(answer.value_s, answer.proven, answer.best.found_by)
