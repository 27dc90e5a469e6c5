"""Tabu search: always to the best neighbour, better or not, and not straight back."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.shared.feasibility import feasible_grouping
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Tabu(Method):
    """Moves one group at a time to the best of some placements nearby, and then leaves that group alone for a while.

    A group that has moved stays for `tenure` steps, unless another move of it makes a new incumbent.

    Source: Glover, Tabu Search, Part I, ORSA Journal on Computing 1(3), 1989.
    """

    version: ClassVar[int] = 1

    tenure: int = param(7, "steps for which a group that moved stays where it is")
    neighbours: int = param(32, "moves tried at a step, drawn among all moves of one group")
    patience: int = param(30, "steps without a placement that is new after which the search ends")

    def run(self, search: Search, *, seed: int) -> None:
        """Move until the budget ends, an optimum is proven, or nothing new is met."""
        rng, names = np.random.default_rng(seed), search.problem.topology.names
        grouping = feasible_grouping(search.problem)
        allowed = search.problem.group_allowed(grouping)  # [k, p]
        anywhere = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
        current = search.best or Placement(anywhere, names).lift(grouping)
        group, target = np.nonzero(allowed)  # [moves]: each group to each device that it may use
        free_at = np.zeros(grouping.k, np.int64)  # the step from which a group may move again
        step = idle = 0
        while not search.done and idle < self.patience:
            spent, incumbent_s = search.spent, search.best_s
            drawn = rng.permutation(group.size)[: self.neighbours]
            near = [Placement(np.where(grouping.group == group[i], target[i], current.device), names) for i in drawn]
            value_s = search.evaluate(near)  # inf where infeasible or refused, nan once the budget has ended
            moves = np.array([placement.key() != current.key() for placement in near])
            usable = moves & np.isfinite(value_s) & ((free_at[group[drawn]] <= step) | (value_s < incumbent_s))
            if usable.any():
                best = int(np.where(usable, value_s, np.inf).argmin())
                current, free_at[group[drawn[best]]] = near[best], step + 1 + self.tenure
            idle = idle + 1 if search.spent == spent else 0
            step += 1
