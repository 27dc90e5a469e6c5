"""Which workers are trusted: one that fails what others then do well is not given any more."""

from __future__ import annotations

from collections import Counter

FAILURES = 3  # in a row, after which a worker is given nothing until one of them is judged by what others make of it


class Health:
    """What became of commands on every worker, and elsewhere afterwards.

    A failure says nothing by itself: the command may be at fault. It is held against the worker once another one has
    done the same command well, and forgotten once another one has failed on it, too.
    """

    def __init__(self) -> None:
        self.quarantined: set[str] = set()
        self._row: Counter[str] = Counter()  # worker -> failures since its last success, as far as not forgotten
        self._failed_on: dict[str, set[str]] = {}  # command -> workers

    def failed(self, command: str, worker: str) -> None:
        """Note a failure that nobody has judged yet."""
        self._row[worker] += 1
        self._failed_on.setdefault(command, set()).add(worker)

    def failed_on(self, command: str) -> frozenset[str]:
        """Return the workers on which a command has failed."""
        return frozenset(self._failed_on.get(command, ()))

    def succeeded(self, command: str, worker: str) -> list[str]:
        """Note that a worker did a command well; return the workers that are quarantined for it."""
        self._row[worker] = 0
        refuted = self._failed_on.pop(command, set()) - self.quarantined
        new = sorted(w for w in refuted if self._row[w] >= FAILURES)
        self.quarantined.update(new)
        return new

    def confirmed(self, command: str) -> None:
        """Note that a command is at fault itself: its failures are held against nobody."""
        for worker in self._failed_on.pop(command, ()):
            self._row[worker] = 0

    def is_trusted(self, worker: str) -> bool:
        """Return whether a worker is given commands: it has not failed often with nobody to judge it."""
        return worker not in self.quarantined and self._row[worker] < FAILURES
