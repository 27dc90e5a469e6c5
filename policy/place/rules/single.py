"""Everything on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policy.place.base.groups import mostly_on
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Single(Method):
    """Evaluates each device alone: what every other placer must beat.

    A device that may not run everything gets all groups it may run, the others go to the device that runs them
    fastest, or to the first one allowed where no costs are known.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Return the single-device placements, best first; nothing is random."""
        problem = search.problem
        search.evaluate([mostly_on(problem, device) for device in range(problem.topology.p)])
