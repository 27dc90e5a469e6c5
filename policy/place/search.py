"""What every placer shares: asking the evaluator within the budget, and remembering what it said."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import islice

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Measurement
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress, ProgressHook
from pipeline.core.stages import Candidate, Evaluator
from pipeline.partition import join, tied

ANSWERS = 32  # placements a placer hands back: enough to measure again, few enough to keep


class Search:
    """The placements that one run of a placer has asked about.

    Making one evaluates `problem.start` and then every placement on a single device that fits, as far as the budget
    goes: no placer ends worse than the best of them in its evaluator's eyes.

    A time limit is looked at before each placement but the first, so placements go to the evaluator one by one if
    there is a limit, and it is exceeded by one evaluation at most.
    """

    def __init__(self, problem: Problem, evaluator: Evaluator, budget: Budget, progress: ProgressHook) -> None:
        self.problem, self.budget = problem, budget
        self._evaluator, self._progress = evaluator, progress
        self._began_s = time.monotonic()
        self._seen: dict[bytes, tuple[float, Candidate]] = {}
        self._best: tuple[float, Placement] | None = None
        names = problem.topology.names
        opening = [] if problem.start is None else [problem.start]
        opening += [Placement.single(problem.graph.n, d, names) for d in range(problem.topology.p)]
        self.evaluate(opening)

    @property
    def spent(self) -> int:
        """Return how many placements the evaluator has been asked about."""
        return len(self._seen)

    @property
    def left(self) -> int:
        """Return how many more it may be asked about; 0 once the time is up."""
        limit_s = self.budget.seconds
        if self._seen and limit_s is not None and time.monotonic() - self._began_s >= limit_s:
            return 0
        return self.budget.evaluations - self.spent

    @property
    def done(self) -> bool:
        """Return whether the budget is spent."""
        return self.left <= 0

    @property
    def best(self) -> Placement | None:
        """Return the placement of the least value; None while nothing has a finite value."""
        return None if self._best is None else self._best[1]

    @property
    def best_s(self) -> float:
        """Return the least value in seconds; inf while there is none."""
        return math.inf if self._best is None else self._best[0]

    def evaluate(self, placements: Sequence[Placement]) -> Float64:
        """Return float64 [len(placements)], median seconds.

        inf: the evaluator failed, or the placement does not fit and was not sent. nan: the budget ran out before it.
        A placement seen before costs nothing.
        """
        keys = [placement.key() for placement in placements]
        values = np.full(len(placements), math.nan)
        fresh: dict[bytes, Placement] = {}
        for i, (key, placement) in enumerate(zip(keys, placements, strict=True)):
            if key not in self._seen and not self.problem.fits(placement):
                values[i] = math.inf
            elif key not in self._seen:
                fresh.setdefault(key, placement)
        self._ask(fresh)
        for i, key in enumerate(keys):
            if key in self._seen:
                values[i] = self._seen[key][0]
        return values

    def candidates(self, limit: int = ANSWERS) -> list[Candidate]:
        """Return the `limit` best placements seen, best first, failed ones last.

        Raises:
            DeviceError: not one placement that was looked at fits the devices.
        """
        if not self._seen:
            raise DeviceError(
                f"No placement of {self.problem.graph.n} nodes was found that keeps within memory and allowed devices.",
                "Allow more devices, take pins away, or use devices with more memory.",
            )
        ranked = sorted(self._seen.values(), key=lambda entry: entry[0])
        return [candidate for _, candidate in ranked[:limit]]

    def _ask(self, fresh: dict[bytes, Placement]) -> None:
        """Send placements to the evaluator until they or the budget end."""
        waiting = iter(fresh.items())
        while not self.done and (batch := list(islice(waiting, self.left if self.budget.seconds is None else 1))):
            answers = self._evaluator.evaluate([placement for _, placement in batch])
            for (key, placement), answer in zip(batch, answers, strict=True):
                value = answer.median_s if isinstance(answer, Measurement) else math.inf
                self._seen[key] = (value, Candidate(placement, answer))
                if value < self.best_s:
                    self._best = (value, placement)
            self._progress(Progress(self.spent, self.budget.evaluations, self.best_s))


def placeable(problem: Problem, grouping: Grouping) -> Grouping:
    """Return the grouping changed as little as the devices demand.

    Groups that hold operations tied to one another are one. A group whose members have no device in common is taken
    apart into sets of tied operations, and such a set, if it has none either, into its operations.
    """
    alone = Grouping.identity(grouping.n)
    units = tied(problem.graph) if np.any(problem.graph.tie >= 0) else alone
    if units.k < units.n:
        grouping = _split_homeless(problem, join(grouping, units), units)
    return _split_homeless(problem, grouping, alone)


def _split_homeless(problem: Problem, grouping: Grouping, parts: Grouping) -> Grouping:
    """Return the grouping with each group that no device may run replaced by the `parts` it consists of."""
    homed = np.any(problem.group_allowed(grouping)[grouping.group], axis=1)  # [n]
    if homed.all():
        return grouping
    return Grouping.of_labels(np.where(homed, grouping.group, grouping.k + parts.group))
