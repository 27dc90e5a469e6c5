"""How the segments of an inference are run: one after another, level by level, or as soon as what they take is there.

    serial     in the caller's thread, in order
    level      in the caller's thread, which waits for one segment of every device before the next ones begin
    threads    a thread per device, of which the caller's is one; one inference at a time
    pipeline   a thread per device, for all inferences: while one device works on a request, others do on the next

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
Task = tuple[
    int, int, int, Any
]  # the number of the inference, the segment's rank by priority, the segment, the request
STOP = (-1, -1, -1, None)


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
                        self._wait(request, s)

    def _wait(self, request: PlacedRequest, s: int) -> None:
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
    found: list[list[int]] = []
    while left:
        first: dict[str, int] = {}
        for s in left:
            if waiting[s] == 0:
                first.setdefault(wiring.manifest.segments[s].device, s)
        found.append(sorted(first.values()))
        for s in first.values():
            left.remove(s)
            for t in wiring.consumers[s]:
                waiting[t] -= 1
    return found


class Lane:
    """What is ready to run on one device; one thread takes it out."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Task] = SimpleQueue()
        self.ready: list[Task] = []

    def take(self) -> Task:
        """Return what should run next; wait until there is something."""
        if not self.ready:
            heapq.heappush(self.ready, self.inbox.get())
        while not self.inbox.empty():  # nobody else takes out of it
            heapq.heappush(self.ready, self.inbox.get())
        return heapq.heappop(self.ready)


class Concurrent:
    """Runs every segment as soon as its device is free and what it takes is there.

    shared: whether callers take the part of one device; then one inference runs at a time. Otherwise every device has a
    thread of its own.
    """

    def __init__(self, wiring: Wiring, threads: int, *, shared: bool) -> None:
        self._wiring = wiring
        devices = [entry.device for entry in wiring.manifest.segments]
        lanes = {device: Lane() for device in devices}
        self._lanes = [lanes[device] for device in devices]
        self._roots = [s for s, waits in enumerate(wiring.producers) if waits == 0]
        self._rank = ranks(wiring)
        self._numbers = count()
        self._turn = threading.Lock()
        # The caller runs what ends the inference: nobody has to wake it for the outputs.
        self._home = lanes[devices[-1]] if shared else None
        self._own = {device: lane for device, lane in lanes.items() if lane is not self._home}
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"placed-{device}", daemon=True)
            for device, lane in self._own.items()
        ]
        for thread in self._threads:
            thread.start()
        self._dispatcher = Dispatcher(1) if shared else None

    def run(self, request: PlacedRequest) -> None:
        """Run one inference to its end."""
        if self._home is None:
            ended = threading.Lock()
            ended.acquire()
            self._begin(request, lambda _: ended.release())
            ended.acquire()
        else:
            with self._turn:
                self._take_part(request, self._home)
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
        for lane in self._own.values():
            lane.inbox.put(STOP)
        for thread in self._threads:
            thread.join()

    def _begin(self, request: PlacedRequest, done: Done) -> None:
        number = next(self._numbers)
        request.left = list(self._wiring.producers)
        request.open = len(request.left)
        request.fault, request.done = None, done
        for s in self._roots:
            self._lanes[s].inbox.put((number, self._rank[s], s, request))

    def _take_part(self, request: PlacedRequest, home: Lane) -> None:
        """Begin an inference, and run what belongs to the caller's device until it has ended."""
        self._begin(request, lambda _: home.inbox.put(STOP))
        while True:
            try:
                task = home.take()
            except KeyboardInterrupt as error:  # what other devices have begun must end first
                request.fault = request.fault or error
                continue
            if task is STOP:
                return
            self._run(task, home)

    def _work(self, lane: Lane) -> None:
        while (task := lane.take()) is not STOP:
            self._run(task, lane)

    def _run(self, task: Task, lane: Lane) -> None:
        """Run one segment, unless its inference has failed already, and let those run that waited for it."""
        number, _, s, request = task
        try:
            if request.fault is None:
                request.run_segment(s)
        except BaseException as error:  # noqa: BLE001  it is told to who waits for the inference, interrupts too
            request.fault = error
        ready: list[int] = []
        with request.lock:
            for t in self._wiring.consumers[s]:
                request.left[t] -= 1
                if request.left[t] == 0:
                    ready.append(t)
            request.open -= 1
            last = request.open == 0
        for t in ready:
            if self._lanes[t] is lane:
                heapq.heappush(lane.ready, (number, self._rank[t], t, request))
            else:
                self._lanes[t].inbox.put((number, self._rank[t], t, request))
        if last:
            request.done(request.fault)


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
