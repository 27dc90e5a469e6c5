"""The moment by which work is to be done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of a clock that never goes back; inf where there is none.

    clock: returns seconds; replaced where time is to stand still.
    """

    at_s: float
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Clock = time.monotonic) -> Deadline:
        """Return the moment so many seconds from now; None for no deadline."""
        return cls(math.inf if seconds is None else clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Return the seconds left; 0 once it has passed."""
        return max(0.0, self.at_s - self.clock())

    @property
    def passed(self) -> bool:
        """Return whether no time is left."""
        return self.left_s <= 0

    def later(self, seconds: float) -> Deadline:
        """Return the moment so many seconds after this one."""
        return Deadline(self.at_s + seconds, self.clock)

    def share(self, part: float, *, reserve_s: float = 0.0) -> Deadline:
        """Return the moment at which a part of what is left, without a reserve, is used up."""
        if math.isinf(self.at_s):
            return self
        return Deadline(self.clock() + part * max(0.0, self.left_s - reserve_s), self.clock)


NEVER = Deadline(math.inf)
