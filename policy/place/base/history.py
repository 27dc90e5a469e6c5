"""What a search has seen: the value of every placement, the best of them, and the bound proven meanwhile."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.core.learning import Snapshot
from pipeline.core.measurement import seconds_of
from pipeline.core.placement import Placement
from pipeline.core.stages import Candidate
from pipeline.shared.payload import result_from_json, result_to_json

ANSWERS = 32  # placements a placer hands back: enough to measure again, few enough to keep
FEWEST = 4  # of graphs so large that more would fill the memory
KEPT_BYTES = 2**25  # that the devices of all placements kept may take, unless these are the fewest


class Found(Protocol):
    """What a search beside another one has found; `look` before the others are read."""

    @property
    def leader(self) -> Candidate | None:
        """The best placement; None while there is none."""

    @property
    def bound(self) -> tuple[float, str]:
        """The greatest lower bound proven, in seconds, and by what."""

    def look(self) -> None:
        """Find out what it has found by now."""


class History:
    """The placements of n nodes that were seen, each once.

    own: author -> the least seconds of a placement that an author has come up with, and, where that is inf, why.
    value_s: digest of a placement -> its median seconds. leader, best_s: the first placement of the least value, None
    and inf while nothing has a finite one. bound: the greatest lower bound proven, in seconds, and by what.
    single_s: the least value of a placement on one device; nan while there is none.
    """

    def __init__(self, n: int, devices: tuple[str, ...]) -> None:
        self.value_s: dict[bytes, float] = {}
        self.leader: Candidate | None = None
        self.best_s = math.inf
        self.bound: tuple[float, str] = (0.0, "")
        self.single_s = math.nan
        self.own: dict[str, tuple[float, str]] = {}
        self._n, self._devices = n, devices
        self._most = int(np.clip(KEPT_BYTES // max(1, 4 * n), FEWEST, ANSWERS))
        self._turn = 0
        self._kept: list[tuple[float, int, Candidate]] = []  # a heap of the best, (minus the value, minus the turn)

    @property
    def best(self) -> Placement | None:
        """Return the placement of the least value; None while nothing has a finite one."""
        return None if self.leader is None else self.leader.placement

    def note(self, key: bytes, candidate: Candidate) -> None:
        """Remember what a placement costs, and the placement itself if it is among the best; key: its digest."""
        value, device = seconds_of(candidate.result), candidate.placement.device
        if math.isfinite(value) and np.all(device == device[:1]):
            self.single_s = float(np.fmin(self.single_s, value))
        self._turn += 1
        entry = (-value, -self._turn, candidate)
        if len(self._kept) < self._most:
            heapq.heappush(self._kept, entry)
        elif entry[:2] > self._kept[0][:2]:
            heapq.heapreplace(self._kept, entry)
        if value < self.best_s:
            self.leader, self.best_s = candidate, value
        self.value_s[key] = value

    def claim(self, author: str, value_s: float, why: str = "") -> None:
        """Note that an author has had a placement of so many seconds evaluated; inf: it failed, and why."""
        if author not in self.own or value_s < self.own[author][0]:
            self.own[author] = (value_s, why)

    def prove(self, bound_s: float, by: str) -> None:
        """Note that no placement is faster than `bound_s`."""
        if bound_s > self.bound[0]:
            self.bound = (bound_s, by)

    def ranked(self) -> list[Candidate]:
        """Return the best placements seen, best first, failed ones last."""
        return [candidate for _, _, candidate in sorted(self._kept, key=lambda entry: (-entry[0], -entry[1]))]

    def fork(self) -> History:
        """Return a history that knows all values, the incumbent and the bound, and keeps what is new to it."""
        twin = History(self._n, self._devices)
        twin.value_s, twin.leader, twin.best_s = dict(self.value_s), self.leader, self.best_s
        twin.bound, twin.single_s, twin._turn = self.bound, self.single_s, self._turn
        twin.own = dict(self.own)
        return twin

    def join(self, fork: History) -> None:
        """Take over what a fork has seen and proven."""
        for candidate in fork._in_turn():
            if (key := candidate.placement.digest()) not in self.value_s:
                self.note(key, candidate)
        self.value_s = fork.value_s | self.value_s
        self.single_s = float(np.fmin(self.single_s, fork.single_s))
        self.prove(*fork.bound)
        for author, (value_s, why) in fork.own.items():
            self.claim(author, value_s, why)

    def look(self) -> None:
        """Do nothing: what another thread notes is there at once."""

    def adopt(self, other: Found) -> None:
        """Take over the leader and the bound of a search beside this one, if they are better."""
        leader = other.leader
        if leader is not None and seconds_of(leader.result) < self.best_s:
            self.note(leader.placement.digest(), leader)
        self.prove(*other.bound)

    def _in_turn(self) -> list[Candidate]:
        """Return what is kept in the order in which it was seen."""
        return [candidate for _, _, candidate in sorted(self._kept, key=lambda entry: -entry[1])]

    def state(self) -> Snapshot:
        """Return all of it, from which `resume` goes on in another process."""
        candidates, unordered = self._in_turn(), np.full(self._n, math.nan)
        priorities = [c.placement.priority for c in candidates]
        arrays: dict[str, npt.NDArray[Any]] = {
            "seen": np.frombuffer(b"".join(self.value_s), np.uint8),
            "seen_s": np.array(list(self.value_s.values()), np.float64),
            "device": stacked([c.placement.device for c in candidates], self._n, np.int32),
            "priority": stacked([unordered if p is None else p for p in priorities], self._n, np.float64),
            "turn": np.array(sorted(-turn for _, turn, _ in self._kept), np.int64),
        }
        facts = {
            "turn": self._turn,
            "bound": list(self.bound),
            "single_s": None if math.isnan(self.single_s) else self.single_s,
            "kept": [_to_json(candidate) for candidate in candidates],
            "own": {author: [None if math.isinf(s) else s, why] for author, (s, why) in self.own.items()},
        }
        return Snapshot(arrays, facts)

    def resume(self, state: Snapshot) -> None:
        """Know what a state holds, and nothing else."""
        arrays, facts = state.arrays, state.facts
        digests = arrays["seen"].tobytes()
        width = max(1, len(digests) // max(1, len(arrays["seen_s"])))
        keys = (digests[i : i + width] for i in range(0, len(digests), width))
        self.value_s = dict(zip(keys, arrays["seen_s"].tolist(), strict=True))
        self._kept, self.leader, self.best_s = [], None, math.inf
        rows = zip(arrays["turn"].tolist(), arrays["device"], arrays["priority"], facts["kept"], strict=True)
        for turn, device, priority, row in rows:
            # priority: float64 [n], nan if the placement has none
            placement = Placement(device, self._devices, None if np.isnan(priority).any() else priority)
            planned_s = math.nan if row["planned_s"] is None else row["planned_s"]
            candidate = Candidate(placement, result_from_json(row["result"]), row["found_by"], planned_s)
            value = seconds_of(candidate.result)
            self._kept.append((-value, -turn, candidate))
            if value < self.best_s:
                self.leader, self.best_s = candidate, value
        heapq.heapify(self._kept)
        self._turn = facts["turn"]
        self.single_s = math.nan if facts["single_s"] is None else facts["single_s"]
        self.bound = (facts["bound"][0], facts["bound"][1])
        own = facts.get("own", {})  # states of earlier versions have none
        self.own = {author: (math.inf if s is None else s, why) for author, (s, why) in own.items()}


def stacked(rows: Sequence[npt.NDArray[Any]], n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return [len(rows), n], for no rows as well."""
    return np.array(rows, dtype).reshape(len(rows), n)


def _to_json(candidate: Candidate) -> dict[str, Any]:
    """Return what is known of a candidate beside its placement."""
    planned_s = None if math.isnan(candidate.planned_s) else candidate.planned_s
    return {"result": result_to_json(candidate.result), "found_by": candidate.found_by, "planned_s": planned_s}
