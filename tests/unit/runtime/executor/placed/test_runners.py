"""Runners, on segments that are fakes: what runs when, beside what, and what becomes of a fault."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executor.placed import PlacedRequest, SegmentError, SplitManifest
from runtime.executor.placed.manifest import SCHEMA, DeviceEntry, SegmentEntry
from runtime.executor.placed.runners import runner_of
from runtime.executor.placed.wiring import Wiring

RUNNERS = ("serial", "level", "threads", "pipeline")
PATIENCE_S = 30.0  # after which what should meet has not met


class FakeSegment:
    """A compiled segment whose inferences call a function with the number of their request."""

    outputs: Sequence[Any] = ()
    inputs: Sequence[Any] = ()

    def __init__(self, infer: Callable[[int], None]) -> None:
        self.infer, self.count = infer, 0

    def create_infer_request(self) -> FakeRequest:
        self.count += 1
        return FakeRequest(self, self.count - 1)


class FakeRequest:
    """A request of a fake segment; what is begun runs in a thread."""

    def __init__(self, segment: FakeSegment, number: int) -> None:
        self.segment, self.number = segment, number
        self.thread: threading.Thread | None = None

    def infer(self, *, share_outputs: bool = False) -> None:
        self.segment.infer(self.number)

    def start_async(self) -> None:
        self.thread = threading.Thread(target=self.infer)
        self.thread.start()

    def wait(self) -> None:
        assert self.thread is not None
        self.thread.join()

    def query_state(self) -> list[Any]:
        return []


def wiring(
    devices: Sequence[str],
    edges: Sequence[tuple[int, int]],
    infer: Callable[[int, int], None],
    priority: Sequence[float] | None = None,
) -> Wiring:
    """Return segments on devices, with edges between them; infer(segment, request) is what they do."""
    k = len(devices)
    entries = tuple(
        SegmentEntry(f"s{s}", "", "", devices[s], priority[s] if priority else float(s), (), (), ()) for s in range(k)
    )
    names = {d: DeviceEntry(d, "CPU") for d in devices}
    manifest = SplitManifest(SCHEMA, "", "serial", 1, names, {}, (), (), entries)

    def does(s: int) -> Callable[[int], None]:
        return lambda request: infer(s, request)

    consumers = tuple(tuple(sorted({b for a, b in edges if a == s})) for s in range(k))
    producers = tuple(len({a for a, b in edges if b == s}) for s in range(k))
    compiled = tuple(FakeSegment(does(s)) for s in range(k))
    none: Any = None
    return Wiring(manifest, compiled, none, consumers, producers, {}, {}, (), ((),) * k, (False,) * k)


class Log:
    """What ran, and what of it at the same time as something else of its device."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices, self.begun, self.ended, self.clashes = devices, [], [], 0
        self.busy: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, s: int, request: int) -> None:
        with self.lock:
            self.begun.append((s, set(self.ended)))
            self.clashes += self.devices[s] in self.busy
            self.busy.append(self.devices[s])
        with self.lock:
            self.busy.remove(self.devices[s])
            self.ended.append(s)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), k=st.integers(1, 9), runner=st.sampled_from(RUNNERS))
def test_every_segment_runs_once_after_its_producers_and_alone_on_its_device(seed: int, k: int, runner: Any) -> None:
    rng = np.random.default_rng(seed)
    edges = [(a, b) for b in range(k) for a in range(b) if rng.random() < 0.4]
    devices = [str(rng.choice(["A", "B", "C"])) for _ in range(k)]
    log = Log(devices)
    wires = wiring(devices, edges, log, rng.permutation(k).tolist())
    runs = runner_of(runner, wires, 1)
    request = PlacedRequest(wires, runs)
    for _ in range(2):
        log.begun, log.ended = [], []
        request.execute()
        assert sorted(s for s, _ in log.begun) == list(range(k))
        for s, done in log.begun:
            assert {a for a, b in edges if b == s} <= done
        assert log.clashes == 0
    runs.close()


@pytest.mark.parametrize("runner", ["level", "threads", "pipeline"])
def test_segments_of_two_devices_run_at_the_same_time(runner: Any) -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def infer(s: int, request: int) -> None:
        if s < 2:
            meeting.wait()

    wires = wiring("ABA", [(0, 2), (1, 2)], infer)
    runs = runner_of(runner, wires, 1)
    PlacedRequest(wires, runs).execute()
    runs.close()


@pytest.mark.parametrize("runner", ["threads", "pipeline"])
def test_nobody_is_woken_for_a_chain_over_devices(runner: Any) -> None:
    threads: list[int] = []
    wires = wiring("ABABCA", [(s, s + 1) for s in range(5)], lambda s, _: threads.append(threading.get_ident()))
    runs = runner_of(runner, wires, 1)
    PlacedRequest(wires, runs).execute()
    runs.close()
    assert len(threads) == 6
    assert len(set(threads)) == 1
    assert (threads[0] == threading.get_ident()) == (runner == "threads")


@pytest.mark.parametrize("runner", ["threads", "pipeline"])
def test_a_thread_goes_on_with_its_own_device(runner: Any) -> None:
    threads = [0] * 4
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def infer(s: int, request: int) -> None:
        threads[s] = threading.get_ident()
        if s in (2, 3):  # both at the same time, so that two threads are needed
            meeting.wait()

    wires = wiring("ABAB", [(0, 1), (1, 2), (1, 3)], infer, [0.0, 1.0, 2.0, 3.0])
    runs = runner_of(runner, wires, 1)
    PlacedRequest(wires, runs).execute()
    runs.close()
    assert threads[0] == threads[1] == threads[3] != threads[2]


@pytest.mark.parametrize("runner", ["threads", "pipeline"])
def test_among_ready_segments_the_smallest_priority_runs_first(runner: Any) -> None:
    order: list[int] = []
    wires = wiring("AAAA", [(0, 1), (0, 2), (0, 3)], lambda s, _: order.append(s), [0.0, 3.0, 1.0, 2.0])
    runs = runner_of(runner, wires, 1)
    PlacedRequest(wires, runs).execute()
    runs.close()
    assert order == [0, 2, 3, 1]


def test_level_takes_of_every_device_the_smallest_priority() -> None:
    order: list[int] = []
    wires = wiring("AAA", [], lambda s, _: order.append(s), [2.0, 0.0, 1.0])
    runs = runner_of("level", wires, 1)
    PlacedRequest(wires, runs).execute()
    runs.close()
    assert order == [1, 2, 0]


def test_pipeline_works_on_the_next_request_while_the_first_is_further_on() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def infer(s: int, request: int) -> None:
        if (s, request) in ((1, 0), (0, 1)):  # the first request on B, the second on A
            meeting.wait()

    wires = wiring("AB", [(0, 1)], infer)
    runs = runner_of("pipeline", wires, 2)
    requests = [PlacedRequest(wires, runs) for _ in range(2)]
    for request in requests:
        request.start_async()
    for request in requests:
        request.wait()
    runs.close()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_segment_that_throws_is_named_and_the_next_inference_runs(runner: Any, broken: int) -> None:
    fail = threading.Event()
    fail.set()
    ran: list[int] = []

    def infer(s: int, request: int) -> None:
        if s == broken and fail.is_set():
            raise RuntimeError("the device\nis lost")
        ran.append(s)

    wires = wiring("ABA", [(0, 1), (1, 2)], infer)
    runs = runner_of(runner, wires, 1)
    request = PlacedRequest(wires, runs)
    with pytest.raises(SegmentError, match=f"segment s{broken} on device {'ABA'[broken]} failed: the device is lost"):
        request.execute()
    assert ran == list(range(broken))
    request.start_async()
    with pytest.raises(SegmentError, match=f"segment s{broken}"):
        request.wait()
    fail.clear()
    request.execute()
    runs.close()
    assert ran[-3:] == [0, 1, 2]


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_callback_is_told_the_end_and_may_begin_the_next_inference(runner: Any) -> None:
    ended = threading.Semaphore(0)
    wires = wiring("AB", [(0, 1)], lambda *_: None)
    runs = runner_of(runner, wires, 1)
    request = PlacedRequest(wires, runs)
    told: list[str] = []

    def callback(said: str) -> None:
        told.append(said)
        if len(told) < 3:
            request.start_async()
        ended.release()

    request.set_callback(callback, "end")
    request.start_async()
    for _ in range(3):
        assert ended.acquire(timeout=PATIENCE_S)
    request.wait()
    runs.close()
    assert told == ["end"] * 3


def test_what_a_callback_raises_is_told_to_who_waits() -> None:
    wires = wiring("A", [], lambda *_: None)
    runs = runner_of("pipeline", wires, 1)
    request = PlacedRequest(wires, runs)
    request.set_callback(math.sqrt, -1.0)
    request.start_async()
    with pytest.raises(ValueError, match="math domain"):
        request.wait()
    runs.close()


def test_a_request_whose_inference_could_not_begin_is_free_for_the_next() -> None:
    wires, ran = wiring("A", [], lambda s, _: ran.append(s)), list[int]()
    runs = runner_of("pipeline", wires, 1)

    class Reluctant:
        """Begins no inference but the second."""

        asked = 0

        def start(self, request: PlacedRequest, done: Callable[[BaseException | None], None]) -> None:
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("can't start new thread")
            runs.start(request, done)

        run, close = runs.run, runs.close

    request = PlacedRequest(wires, Reluctant())
    with pytest.raises(RuntimeError, match="new thread"):
        request.start_async()
    request.start_async()
    request.wait()
    runs.close()
    assert ran == [0]


def test_a_request_that_runs_is_not_begun_again() -> None:
    go_on = threading.Event()
    wires = wiring("A", [], lambda *_: go_on.wait(PATIENCE_S) and None)
    runs = runner_of("pipeline", wires, 1)
    request = PlacedRequest(wires, runs)
    request.start_async()
    with pytest.raises(RuntimeError, match="is running"):
        request.execute()
    go_on.set()
    request.wait()
    runs.close()
