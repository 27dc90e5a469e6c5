"""The measuring child of a gate with a slowdown built in: all that it measures takes so many percent longer.

python benchmarks/slowed_child.py PERCENT

Its clock runs fast, so that the truth is known. Waiting after every inference would not do: the runtime's threads go
to sleep meanwhile, and 5 % of waiting are 14 to 19 %.
"""

from __future__ import annotations

import sys
import time

from runtime.measuring import gate_child


class FastClock:
    """The clock of the measuring child, by which everything takes longer."""

    def __init__(self, percent: float) -> None:
        self.factor = 1 + percent / 100

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.factor * time.perf_counter()


if __name__ == "__main__":
    vars(gate_child)["time"] = FastClock(float(sys.argv.pop(1)))
    gate_child.main()
