"""The first operation whose result departs from what it should be: bisection over the data flow.

What a result is, and what it should be, is the caller's matter: one run of a model is compared with another one. On a
longest path to an operation that departs, what departs stays so to the end, so that a path is bisected; then the other
producers of what was found are looked at, and the paths to these, until all that an operation takes is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Producers = Mapping[str, Sequence[str]]  # by name of an operation, those whose results it takes
Departs = Callable[[str], bool | None]  # whether the result of an operation departs; None where that cannot be told


@dataclass(frozen=True, slots=True)
class FirstDeparture:
    """An operation that departs; certain: whether nothing that it takes does, as far as that can be told at all."""

    operation: str
    certain: bool


def first_departure_before(
    last: str, producers: Producers, departs: Departs, time_left: Callable[[], bool]
) -> FirstDeparture:
    """Return the first operation that departs among those that one is computed from, or that one.

    last: an operation whose result departs in the model as it is. departs: asked of each operation once at most.
    time_left: whether to go on.
    """
    search = _Search(producers, departs, time_left)
    found = last
    while time_left():
        found = search.first_of_path(_longest_path(found, producers))
        earlier = search.departing_producer(found)
        if earlier is None:
            return FirstDeparture(found, certain=time_left())
        found = earlier
    return FirstDeparture(found, certain=False)


class _Search:
    def __init__(self, producers: Producers, departs: Departs, time_left: Callable[[], bool]) -> None:
        self.producers, self.time_left = producers, time_left
        self._departs = departs
        self._known: dict[str, bool | None] = {}

    def departs(self, name: str) -> bool | None:
        if name not in self._known:
            self._known[name] = self._departs(name)
        return self._known[name]

    def first_of_path(self, path: list[str]) -> str:
        """Return the first operation of a path that departs; the last is known to."""
        low, high = -1, len(path) - 1
        while high - low > 1 and self.time_left():
            middle = (low + high) // 2
            verdict = self.departs(path[middle])
            if verdict is None:
                del path[middle]
                high -= 1
            else:
                low, high = (low, middle) if verdict else (middle, high)
        return path[high]

    def departing_producer(self, name: str) -> str | None:
        """Return an operation that departs among the nearest before one of which that can be told; None for none."""
        waiting, seen = list(self.producers[name]), {name}
        while waiting and self.time_left():
            producer = waiting.pop(0)
            if producer in seen:
                continue
            seen.add(producer)
            verdict = self.departs(producer)
            if verdict:
                return producer
            if verdict is None:
                waiting += self.producers[producer]
        return None


def _longest_path(last: str, producers: Producers) -> list[str]:
    """Return a longest path of operations that ends in one, in the order of the data flow."""
    length: dict[str, int] = {}
    before: dict[str, str | None] = {}
    waiting = [last]
    while waiting:  # depth first, without recursion: paths have thousands of operations
        name = waiting[-1]
        missing = [producer for producer in producers[name] if producer not in length]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        longest = max(producers[name], key=length.__getitem__, default=None)
        before[name] = longest
        length[name] = 1 + (0 if longest is None else length[longest])
    path = [last]
    while (previous := before[path[-1]]) is not None:
        path.append(previous)
    path.reverse()
    return path
