"""Parts of a search in processes of their own, which none of them has to share an interpreter for.

A process is forked: it begins with all that this one knows, at once. What it has found shows on a board in memory that
all of them see; all else comes home in a file when it ends.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from select import select
from typing import IO, Any

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import PlacewrightError, error_document, error_from_document
from pipeline.core.learning import Snapshot
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Progress
from pipeline.core.stages import Candidate
from pipeline.system.process import describe_ending, die_with_parent
from policy.place.base.history import History
from policy.place.base.search import BudgetEndedError, Search

Part = Callable[[Search], object]

LOOK_S = 0.02  # seconds between two looks at what parts have found, and whether they have ended
LATE_S, LATE_SHARE = 0.05, 0.02  # seconds, and share of the time, by which a part may be late before it is ended
ENDING_S = 1.0  # seconds that parts have to end when what they have found is settled
NAME_BYTES = 256  # of an author's name that are shown
LOCK_S = 1.0  # seconds after which whoever writes to a board is taken for dead


def can_fork() -> bool:
    """Return whether a process can be forked while it has threads, as on Linux."""
    return sys.platform == "linux"


HEAD = np.dtype(
    [
        ("times", np.int64),  # that it was written
        ("spent", np.int64),  # evaluations
        ("value_s", np.float64),
        ("bound_s", np.float64),
        ("ordered", np.bool_),  # whether the placement has priorities
        ("ends", np.bool_),  # whether the part is to end
        ("author", f"S{NAME_BYTES}"),
        ("by", f"S{NAME_BYTES}"),  # what proved the bound
    ],
    align=True,
)


class Board:
    """What one part has found so far, in memory that all processes see; one writes, the others read."""

    def __init__(self, n: int, devices: tuple[str, ...]) -> None:
        memory = mmap.mmap(-1, HEAD.itemsize + 12 * n)
        self._head = np.frombuffer(memory, HEAD, 1)
        self._priority: Float64 = np.frombuffer(memory, np.float64, n, HEAD.itemsize)
        self._device: Int32 = np.frombuffer(memory, np.int32, n, HEAD.itemsize + 8 * n)
        self._head["value_s"] = math.inf
        self._lock = get_context("fork").Lock()
        self._devices = devices
        self._read = 0  # how often it had been written when it was read last
        self.leader: Candidate | None = None
        self.bound: tuple[float, str] = (0.0, "")

    @property
    def spent(self) -> int:
        """Return how many evaluations the part has spent."""
        return int(self._head["spent"][0])

    @spent.setter
    def spent(self, count: int) -> None:
        self._head["spent"] = count

    @property
    def ends(self) -> bool:
        """Return whether the part is to end."""
        return bool(self._head["ends"][0])

    def end(self) -> None:
        """Have the part end."""
        self._head["ends"] = True

    def write(self, history: History) -> None:
        """Show what a part has found, if it is better than what is shown."""
        head, leader, (bound_s, by) = self._head, history.leader, history.bound
        better, tighter = history.best_s < head["value_s"][0], bound_s > head["bound_s"][0]
        if not (better or tighter) or not self._lock.acquire(timeout=LOCK_S):
            return
        try:
            if better and leader is not None:
                placement = leader.placement
                self._device[:] = placement.device
                head["ordered"] = placement.priority is not None
                if placement.priority is not None:
                    self._priority[:] = placement.priority
                head["value_s"], head["author"] = history.best_s, leader.found_by.encode()
            if tighter:
                head["bound_s"], head["by"] = bound_s, by.encode()
            head["times"] += 1
        finally:
            self._lock.release()

    def look(self) -> None:
        """Read what is shown now, if that has changed."""
        if self._head["times"][0] == self._read or not self._lock.acquire(timeout=LOCK_S):
            return
        try:
            head = self._head[0]
            self._read, self.bound = int(head["times"]), (float(head["bound_s"]), head["by"].decode(errors="ignore"))
            value_s, author = float(head["value_s"]), head["author"].decode(errors="ignore")
            if math.isfinite(value_s):
                priority = self._priority.copy() if head["ordered"] else None
                placement = Placement(self._device.copy(), self._devices, priority)
                self.leader = Candidate(placement, Prediction(value_s), author)
        finally:
            self._lock.release()


class _Forked:
    """A part in a process of its own. fork: its search, which stands for it here; board: where it shows what it finds.

    What the search tells of its progress goes to the board.
    """

    def __init__(self, search: Search, board: Board) -> None:
        self.fork = search.fork(search.author, evaluations=search.left, progress=self._show, copied=True)
        self.board = board
        self.pid, self.over = 0, -1  # over: what can be read when the process has ended
        self.evaluations = 0
        self._evaluated = _evaluations(search)
        self._home: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it

    def start(self, part: Part, boards: Sequence[Board]) -> None:
        """Begin; boards: those of all parts."""
        self.over, alive = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads: the other process has none
            self.pid = os.fork()
        if self.pid:
            os.close(alive)
        else:
            status = 1
            try:
                self._carry_out(part, boards)
                status = 0
            finally:
                os._exit(status)  # nothing of what belongs to the other process is flushed, joined or removed

    def _show(self, _: Progress) -> None:
        self.board.write(self.fork.history)
        self.board.spent = self.fork.spent  # last: who sees it sees what came of it
        if self.board.ends:
            raise BudgetEndedError

    def _carry_out(self, part: Part, boards: Sequence[Board]) -> None:
        """Run a part and leave what came of it; whoever waits decides on interruptions."""
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        fork, board = self.fork, self.board
        waited_for = fork.stopped
        fork.stopped = lambda: board.ends or waited_for()
        fork.share([other for other in boards if other is not board])
        fault: dict[str, Any] = {}
        try:
            part(fork)
        except BudgetEndedError:
            pass
        except PlacewrightError as error:
            fault = error_document(error)
        except BaseException:  # noqa: BLE001  handed on to the other process, whatever it is
            fault = {"raised": traceback.format_exc()}
        board.write(fork.history)
        board.spent = fork.spent
        self._leave(fault)

    def _leave(self, fault: dict[str, Any]) -> None:
        known = self.fork.history.state()
        facts = {
            "fault": fault,
            "spent": self.fork.spent,
            "planned": self.fork.planned,
            "evaluations": _evaluations(self.fork) - self._evaluated,
            "authors": sorted(self.fork.authors),
            "known": dict(known.facts),
        }
        told = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        np.savez(self._home, allow_pickle=False, **known.arrays, facts=told)
        self._home.flush()

    def ended(self) -> bool:
        """Return whether it has ended, and then know what it left.

        Raises:
            PlacewrightError: the part raised it, or its process died.
        """
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                self._come_home(os.waitstatus_to_exitcode(status))
        return self.pid == 0

    def _come_home(self, status: int) -> None:
        if status:
            raise PlacewrightError(
                f"A process of the search {describe_ending(status, '')}.", "See whether there is memory enough for it."
            )
        self._home.seek(0)
        with np.load(self._home, allow_pickle=False) as left:
            arrays = {name: left[name] for name in left.files}
        facts = json.loads(arrays.pop("facts").tobytes())
        if "raised" in facts["fault"]:
            raise RuntimeError(f"A part of the search raised:\n{facts['fault']['raised']}")
        if facts["fault"]:
            raise error_from_document(facts["fault"])
        self.fork.history.resume(Snapshot(arrays, facts["known"]))
        self.fork.spent, self.fork.planned = facts["spent"], facts["planned"]
        self.fork.authors.update(facts["authors"])
        self.evaluations = facts["evaluations"]

    def count(self) -> None:
        """Know what it has spent by now."""
        if self.pid:
            self.fork.spent = self.board.spent

    def close(self) -> None:
        """End it now if it has not ended; what its board showed is all that is known of it then."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.count()
            self.evaluations = self.fork.spent
            self.pid = 0
        if self.over >= 0:
            os.close(self.over)
        self._home.close()


def _evaluations(search: Search) -> int:
    return 0 if search.simulator is None else search.simulator.evaluations


def run_forked(search: Search, parts: Sequence[Part]) -> None:
    """Let each part search in a process of its own until all have ended, or what they have found is settled.

    What is late is ended. What they found is taken over in their order. Progress is told on the caller's thread; what
    that raises ends all.

    Raises:
        PlacewrightError: a part raised it, or its process died.
    """
    n, names = search.problem.graph.n, search.problem.topology.names
    boards = [Board(n, names) for _ in parts]
    running = [_Forked(search, board) for board in boards]
    last_s = time.monotonic() + search.left_s * (1 + LATE_SHARE) + LATE_S
    beside = search.share(boards)
    try:
        for one, part in zip(running, parts, strict=True):
            one.start(part, boards)
        while not _all_ended(running) and time.monotonic() < last_s:
            select([one.over for one in running if one.pid], (), (), LOOK_S)
            for one in running:
                one.count()
            search.adopt()
            search.tell()
            if search.settled or search.stopped():
                for board in boards:
                    board.end()
                last_s = min(last_s, time.monotonic() + ENDING_S)
    finally:
        for one in running:
            one.close()
        search.adopt()  # of what was late
        for one in running:
            search.join(one.fork, one.evaluations)
        search.share(beside)
    search.tell()


def _all_ended(running: Sequence[_Forked]) -> bool:
    ended = [one.ended() for one in running]  # each is asked, not only those before one that has not
    return all(ended)
