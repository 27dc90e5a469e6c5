"""How the segments of an inference are run: one after another, level by level, or as soon as what they take is there.

    serial     in the caller's thread, in order
    level      in the caller's thread, which waits for one segment of every device before the next ones begin
    threads    by as many threads as devices, of which the caller's is one; one inference at a time
    pipeline   by as many threads as devices; while one device works on a request, others do on the next

Among segments that are ready a device runs that of the oldest inference, and of this the one of the smallest priority.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import SimpleQueue
from typing import Any

from .errors import PlacedError
from .manifest import RunnerName
from .requests import PlacedRequest, Runs
from .wiring import Wiring

Done = Callable[[BaseException | None], None]
# The number of the inference, the segment's rank by priority, the segment, the request.
Task = tuple[int, int, int, Any]
Inbox = SimpleQueue[Task]
STOP: Task = (-1, -1, -1, None)


class Dispatcher:
    """Threads that carry whole inferences out for callers who do not wait."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "placed")

    def start(self, run: Callable[[PlacedRequest], None], request: PlacedRequest, done: Done) -> None:
        """Let a thread run an inference, and call `done` with what went wrong."""

        def carry() -> None:
            fault: BaseException | None = None
            try:
                run(request)
            except Exception as error:  # noqa: BLE001  it is told to who waits for the inference
                fault = error
            done(fault)

        self._pool.submit(carry)

    def close(self) -> None:
        """End the threads, all inferences having ended."""
        self._pool.shutdown()


class Serial:
    """Runs segments one after another in the caller's thread."""

    def __init__(self, wiring: Wiring, threads: int) -> None:
        self._order = range(len(wiring.compiled))
        self._dispatcher = Dispatcher(threads)

    def run(self, request: PlacedRequest) -> None:
        """Run one inference to its end."""
        for s in self._order:
            request.run_segment(s)

    def start(self, request: PlacedRequest, done: Done) -> None:
        """Begin one inference; `done` is called at its end."""
        self._dispatcher.start(self.run, request, done)

    def close(self) -> None:
        """End all threads."""
        self._dispatcher.close()


class ByLevel:
    """Runs at most one segment of every device at the same time, and waits for all before it begins the next."""

    def __init__(self, wiring: Wiring, threads: int) -> None:
        self._levels = levels(wiring)
        self._turn = threading.Lock()
        self._dispatcher = Dispatcher(threads)

    def run(self, request: PlacedRequest) -> None:
        """Run one inference to its end."""
        with self._turn:
            for *others, own in self._levels:
                begun: list[int] = []
                try:
                    for s in others:
                        request.bind(s)
                        request.segments[s].start_async()
                        begun.append(s)
                    request.run_segment(own)
                finally:
                    for s in begun:
                        try:
                            request.segments[s].wait()
                        except RuntimeError as error:
                            raise request.failed(s, error) from error

    def start(self, request: PlacedRequest, done: Done) -> None:
        """Begin one inference; `done` is called at its end."""
        self._dispatcher.start(self.run, request, done)

    def close(self) -> None:
        """End all threads."""
        self._dispatcher.close()


def ranks(wiring: Wiring) -> list[int]:
    """Return the place of each segment among all by priority."""
    segments = wiring.manifest.segments
    order = sorted(range(len(segments)), key=lambda s: (segments[s].priority, s))
    return [order.index(s) for s in range(len(segments))]


def levels(wiring: Wiring) -> list[list[int]]:
    """Return the segments level by level: in each, of every device the one of least priority that is ready, if any."""
    rank = ranks(wiring)
    left, waiting = sorted(range(len(rank)), key=rank.__getitem__), list(wiring.producers)
    by_level: list[list[int]] = []
    while left:
        first: dict[str, int] = {}
        for s in left:
            if waiting[s] == 0:
                first.setdefault(wiring.manifest.segments[s].device, s)
        by_level.append(sorted(first.values()))
        for s in first.values():
            left.remove(s)
            for t in wiring.consumers[s]:
                waiting[t] -= 1
    return by_level


class Lane:
    """What is ready to run on one device, and whether a thread runs something there."""

    def __init__(self) -> None:
        self.ready: list[Task] = []
        self.busy = False


class Concurrent:
    """Runs every segment as soon as its device is free and what it takes is there.

    There are as many threads as devices, and a thread that works for every device that is busy. Who has run a segment
    goes on with what is ready, on the same device if possible, and wakes others only for what is ready besides: to wake
    a thread takes longer than a small segment.

    shared: whether the caller is one of the threads; then one inference runs at a time.
    """

    def __init__(self, wiring: Wiring, threads: int, *, shared: bool) -> None:
        self._wiring = wiring
        devices = [entry.device for entry in wiring.manifest.segments]
        lanes = {device: Lane() for device in devices}
        self._every = tuple(lanes.values())
        self._lanes = [lanes[device] for device in devices]
        self._roots = [s for s, waits in enumerate(wiring.producers) if waits == 0]
        self._rank = ranks(wiring)
        self._numbers = count()
        self._shared = shared
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # of lanes, of who waits for work, and of what inferences still wait for
        self._inboxes = [Inbox() for _ in range(len(lanes) - shared)]
        self._waiting = list(self._inboxes)
        self._threads = [
            threading.Thread(target=self._work, args=(inbox,), name=f"placed-{i}", daemon=True)
            for i, inbox in enumerate(self._inboxes)
        ]
        for thread in self._threads:
            thread.start()
        self._dispatcher = Dispatcher(1) if shared else None

    def run(self, request: PlacedRequest) -> None:
        """Run one inference to its end."""
        inbox = Inbox()
        if self._shared:
            with self._turn:
                self._carry(self._begin(request, lambda _: inbox.put(STOP), keep=True), inbox)
                while (task := _next(inbox, request)) is not STOP:
                    self._carry([task], inbox)
                self._waiting.remove(inbox)
        else:
            self._begin(request, lambda _: inbox.put(STOP))
            _next(inbox, request)
        if request.fault is not None:
            raise request.fault

    def start(self, request: PlacedRequest, done: Done) -> None:
        """Begin one inference; `done` is called at its end."""
        if self._dispatcher is not None:
            self._dispatcher.start(self.run, request, done)
        else:
            self._begin(request, done)

    def close(self) -> None:
        """End all threads, all inferences having ended."""
        if self._dispatcher is not None:
            self._dispatcher.close()
        for inbox in self._inboxes:
            inbox.put(STOP)
        for thread in self._threads:
            thread.join()

    def _work(self, inbox: Inbox) -> None:
        while (task := inbox.get()) is not STOP:
            self._carry([task], inbox)

    def _begin(self, request: PlacedRequest, done: Done, *, keep: bool = False) -> list[Task]:
        """Begin an inference; return what the caller is to run if it keeps something, others having the rest."""
        with self._lock:
            number = next(self._numbers)
            request.left = list(self._wiring.producers)
            request.open = len(request.left)
            request.fault, request.done = None, done
            for s in self._roots:
                heapq.heappush(self._lanes[s].ready, (number, self._rank[s], s, request))
            return self._shared_out(self._lanes[-1], keep=keep)

    def _shared_out(self, own: Lane, *, keep: bool) -> list[Task]:
        """Give devices that are free what is ready for them; return what the caller is to run, if it keeps any."""
        kept: list[Task] = []
        for lane in (own, *self._every):
            if lane.ready and not lane.busy:
                lane.busy = True
                task = heapq.heappop(lane.ready)
                if keep and not kept:
                    kept.append(task)
                else:
                    self._waiting.pop().put(task)
        return kept

    def _carry(self, tasks: list[Task], inbox: Inbox) -> None:
        """Run a task, if there is one, and what is ready then; afterwards the inbox is among those who wait."""
        while tasks:
            number, _, s, request = tasks[0]
            try:
                if request.fault is None:
                    request.run_segment(s)
            except BaseException as error:  # noqa: BLE001  it is told to who waits for the inference, interrupts too
                request.fault = error
            with self._lock:
                for t in self._wiring.consumers[s]:
                    request.left[t] -= 1
                    if request.left[t] == 0:
                        heapq.heappush(self._lanes[t].ready, (number, self._rank[t], t, request))
                request.open -= 1
                last = request.open == 0
                self._lanes[s].busy = False
                tasks = self._shared_out(self._lanes[s], keep=True)
                if not tasks:
                    self._waiting.append(inbox)
            if last:
                request.done(request.fault)


def _next(inbox: Inbox, request: PlacedRequest) -> Task:
    """Return what comes next; an interrupt is told at the end, as what other threads have begun must end first."""
    while True:
        try:
            return inbox.get()
        except KeyboardInterrupt as error:
            request.fault = request.fault or error


def runner_of(name: RunnerName, wiring: Wiring, threads: int) -> Runs:
    """Return the runner of a name; threads: how many inferences may be under way for callers who do not wait."""
    match name:
        case "serial":
            return Serial(wiring, threads)
        case "level":
            return ByLevel(wiring, threads)
        case "threads":
            return Concurrent(wiring, threads, shared=True)
        case "pipeline":
            return Concurrent(wiring, threads, shared=False)
    raise PlacedError(f"there is no runner {name}; there are serial, level, threads and pipeline")
