"""A genetic algorithm on random keys, in which one parent is always among the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import UsageError
from pipeline.core.params import param
from pipeline.core.placement import Placement
from policy.place.base.groups import Units, running_order
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Brkga(Method):
    """Breeds vectors of keys in [0, 1), which stand for placements.

    A group's first key says which of its allowed devices it takes; where devices can be told an order, a second one
    is its priority. Each generation keeps its elite, adds mutants, which are fresh random keys, and fills up with
    children: every key comes from an elite parent with probability `inherit`, else from another parent. The first
    generation holds the best placement seen, copies of it with some keys drawn again, and mutants.

    Source: Gonçalves and Resende, Biased random-key genetic algorithms for combinatorial optimization, Journal of
    Heuristics 17, 2011; for placing and ordering computation graphs Paliwal et al., REGAL: Transfer Learning for Fast
    Optimization of Computation Graphs, ICLR 2020. Ours starts from a placement, draws no keys from a network, and
    scales the population to the budget.
    """

    version: ClassVar[int] = 1

    population: int = param(0, "placements per generation; 0: a fiftieth of the budget, from 16 to 200")
    elite: float = param(0.2, "share of a generation that lives on")
    mutants: float = param(0.1, "share of a generation that is drawn again")
    inherit: float = param(0.7, "probability that a key comes from the elite parent")
    near: float = param(0.5, "share of the first generation that is close to the best placement seen")
    order: bool = param(True, "breed priorities too, where devices can be told an order")
    patience: int = param(20, "stop after so many generations without a placement that is new")

    def __post_init__(self) -> None:
        shares = min(self.elite, self.mutants) > 0 and self.elite + self.mutants < 1
        if not shares or not 0.5 <= self.inherit <= 1 or not 0 <= self.near <= 1:
            raise UsageError(
                f"{self} has shares that leave no children, or parents that count alike.",
                "Use elite and mutants above 0 with a sum below 1, inherit from 0.5 to 1, and near from 0 to 1.",
            )
        if (self.population and self.population < 4) or self.patience < 1:
            raise UsageError(
                f"{self} has a parameter out of range.", "Use a population of 4 or more, or 0, and a patience."
            )

    def run(self, search: Search, *, seed: int) -> None:
        """Breed until the budget ends or no child is new."""
        units = Units.of(search.problem)
        rng = np.random.default_rng(seed)
        size = self.population or min(max(search.left // 50, 16), 200)
        search.expect("generation", size)
        keys = self._first(search, units, size, rng)
        values = self._values(search, units, keys)
        if not np.isnan(values).any():
            search.reached()
        idle = 0
        while not search.done and idle < self.patience:
            spent = search.spent
            by_value = np.argsort(values, kind="stable")  # nan, which was not evaluated, comes last
            keys, values = keys[by_value], values[by_value]
            kept = max(1, round(self.elite * size))
            bred = np.concatenate([self._children(keys, kept, rng), rng.random((self._mutants(size), keys.shape[1]))])
            keys = np.concatenate([keys[:kept], bred])
            values = np.concatenate([values[:kept], self._values(search, units, bred)])
            idle = idle + 1 if search.spent == spent else 0

    def _mutants(self, size: int) -> int:
        return max(1, round(self.mutants * size))

    def _first(self, search: Search, units: Units, size: int, rng: np.random.Generator) -> Float64:
        """Return the keys of the first generation, float64 [size, k or 2 k]."""
        ordered = self.order and search.problem.ordered
        keys = rng.random((size, units.k * (1 + ordered)))
        near = round(self.near * size) if search.best is not None else 0
        if near and search.best is not None:
            best = _keys_of(units, units.devices_of(search.best))
            if ordered:
                best = np.concatenate([best, running_order(units)])
            share = np.linspace(0.0, 0.3, near)[:, None]  # of keys drawn again, 0 in the copy itself
            redrawn = rng.random((near, keys.shape[1])) < share
            keys[:near] = np.where(redrawn, keys[:near], best)
        return keys

    def _children(self, keys: Float64, kept: int, rng: np.random.Generator) -> Float64:
        """Return children of an elite parent, keys[:kept], and another each."""
        size = keys.shape[0]
        count = size - kept - self._mutants(size)
        first = rng.integers(0, kept, count)
        second = rng.integers(kept, size, count)
        children: Float64 = np.where(rng.random((count, keys.shape[1])) < self.inherit, keys[first], keys[second])
        return children

    def _values(self, search: Search, units: Units, keys: Float64) -> Float64:
        return search.evaluate([decoded(units, row) for row in keys])


def decoded(units: Units, keys: Float64) -> Placement:
    """Return the placement that keys float64 [k or 2 k] stand for; the second half are priorities."""
    count = units.allowed.sum(axis=1)
    nth = np.minimum((keys[: units.k] * count).astype(np.int64), count - 1)
    device = np.argmax(np.cumsum(units.allowed, axis=1) > nth[:, None], axis=1).astype(np.int32)
    return units.placement(units.repaired(device), keys[units.k :] if keys.size > units.k else None)


def _keys_of(units: Units, device: Int32) -> Float64:
    """Return float64 [k], keys in the middle of what `decoded` reads as these devices."""
    nth = np.cumsum(units.allowed, axis=1)[np.arange(units.k), device] - 1
    middle: Float64 = (nth + 0.5) / units.allowed.sum(axis=1)
    return middle
