"""A distribution over devices for every group, moved towards the best draws: the cross-entropy method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.errors import UsageError
from pipeline.core.params import param
from policy.place.base.groups import Units, running_order
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Cem(Method):
    """Draws batches of placements and fits the draws of the next batch to the best of this one.

    Every group has its own categorical distribution over its allowed devices, and where devices may be told an order
    its own normal distribution over priorities. After a batch each distribution moves by `smoothing` towards the one
    of greatest likelihood of the elite: the shares of the devices, mean and deviation of the priorities. The first
    distributions lean towards the best placement seen and a topological order.

    Source: Rubinstein and Kroese, The Cross-Entropy Method, 2004, section 5.2; for placements Gao, Chen and Li, Post:
    Device Placement with Cross-Entropy Minimization and Proximal Policy Optimization, NeurIPS 2018. Ours has neither
    their PPO steps between two batches nor their fixed number of groups, keeps the elite of the batch before, and
    never lets an allowed device's probability fall to 0.
    """

    version: ClassVar[int] = 1

    batch: int = param(0, "placements drawn at a time; 0: a fortieth of the budget, from 20 to 200")
    elite: float = param(0.1, "share of a batch that the next one is fitted to")
    smoothing: float = param(0.7, "how far distributions move towards the elite's; 1 forgets what was before")
    lean: float = param(0.5, "probability that the first draws give to the devices of the best placement seen")
    stray: float = param(0.25, "groups of a draw, on average, that go to each device whatever has been learned")
    order: bool = param(True, "draw priorities too, where devices can be told an order")
    patience: int = param(20, "stop after so many batches without a placement that is new")

    def __post_init__(self) -> None:
        shares = 0 < self.elite <= 1 and 0 < self.smoothing <= 1 and 0 <= self.lean <= 1 and self.stray >= 0
        if self.batch < 0 or self.patience < 1 or not shares:
            raise UsageError(
                f"{self} has a share outside [0, 1], a negative number or no patience.",
                "Use shares from 0 to 1, elite and smoothing above 0, and a patience of at least 1.",
            )

    def run(self, search: Search, *, seed: int) -> None:
        """Draw until the budget ends or nothing new is drawn."""
        units = Units.of(search.problem)
        rng = np.random.default_rng(seed)
        start = None if search.best is None else units.devices_of(search.best)
        share = self._first(units.allowed, start)
        mean, deviation = running_order(units), np.full(units.k, 0.1)
        ordered = self.order and search.problem.ordered
        count = self.batch or min(max(search.left // 40, 20), 200)
        kept: list[tuple[float, Int32, Float64 | None]] = []
        idle = 0
        search.expect("batch", count)
        while not search.done and idle < self.patience:
            spent = search.spent
            devices = [units.repaired(d) for d in _draws(share, count, rng)]
            orders = [rng.normal(mean, deviation) if ordered else None for _ in devices]
            values = search.evaluate([units.placement(d, o) for d, o in zip(devices, orders, strict=True)])
            if not np.isnan(values).any():
                search.reached()
            idle = idle + 1 if search.spent == spent else 0
            drawn = [e for e in zip(values.tolist(), devices, orders, strict=True) if np.isfinite(e[0])]
            kept = sorted(drawn + kept, key=lambda e: e[0])[: max(1, round(self.elite * count))]
            if kept:
                share = self._moved(share, units.allowed, np.stack([d for _, d, _ in kept]))
            if ordered and kept:
                ranks = np.stack([o for _, _, o in kept if o is not None])
                mean = mean + self.smoothing * (ranks.mean(axis=0) - mean)
                deviation = deviation + self.smoothing * (ranks.std(axis=0) + 0.2 / units.k - deviation)

    def _first(self, allowed: Bool, start: Int32 | None) -> Float64:
        """Return float64 [k, p], the probabilities that the first batch is drawn from."""
        even: Float64 = allowed / allowed.sum(axis=1, keepdims=True)
        if start is None:
            return even
        chosen = np.zeros_like(even)
        chosen[np.arange(start.size), start] = 1.0
        return (1 - self.lean) * even + self.lean * chosen

    def _moved(self, share: Float64, allowed: Bool, elite: Int32) -> Float64:
        """Return the probabilities [k, p] moved towards the devices of the elite, int32 [e, k]."""
        counted = (elite[:, :, None] == np.arange(allowed.shape[1])).mean(axis=0)  # [k, p]
        moved = (1 - self.smoothing) * share + self.smoothing * counted
        moved = np.where(allowed, np.maximum(moved, self.stray / share.shape[0]), 0.0)
        return np.asarray(moved / moved.sum(axis=1, keepdims=True), dtype=np.float64)


def _draws(share: Float64, count: int, rng: np.random.Generator) -> list[Int32]:
    """Return `count` draws, each int32 [k]: the device of every group by its probabilities, [k, p]."""
    below = np.cumsum(share, axis=1)
    below[:, -1] = 1.0
    last = share.shape[1] - 1 - np.argmax(share[:, ::-1] > 0, axis=1)  # rounding must not end behind it
    return [
        np.minimum((rng.random((share.shape[0], 1)) >= below).sum(axis=1), last).astype(np.int32) for _ in range(count)
    ]
