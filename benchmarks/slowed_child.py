"""The measuring child of a gate with a slowdown built in: every inference takes so many percent longer than it would.

python benchmarks/slowed_child.py PERCENT
"""

from __future__ import annotations

import sys
import time

from runtime.measuring import gate_child


class SlowedModel(gate_child.OpenVinoModel):
    """A model that keeps its caller waiting after every inference."""

    share = 0.0  # of what an inference takes

    def begin(self, i: int) -> None:
        """Begin an inference."""
        self.begun_s = {**getattr(self, "begun_s", {}), i: time.perf_counter()}
        super().begin(i)

    def wait(self, i: int) -> None:
        """Wait for its end, and for a share of what it took."""
        super().wait(i)
        now = time.perf_counter()
        while time.perf_counter() < now + self.share * (now - self.begun_s[i]):
            pass


if __name__ == "__main__":
    SlowedModel.share = float(sys.argv.pop(1)) / 100
    gate_child.OpenVinoModel = SlowedModel  # type: ignore[misc]
    gate_child.main()
