"""What the measuring child does with its requests, without a runtime and under a clock that counts its questions."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as op

from pipeline.core.settings import MeasureSettings
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.variant import outputs_of, start_child
from runtime.measuring.process import worker
from tests.exported_models import lstm_with_state


class Impatient(queue.SimpleQueue[Any]):
    """A queue that raises where nothing comes, so that a request that is never begun fails the test."""

    def get(self) -> Any:  # type: ignore[override]
        return super().get(timeout=10)


class Together:
    """Requests of which none ends before all are in flight; then all end, in the order of their beginning."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.running: list[Request] = []
        self.most = 0

    def begin(self, request: Request) -> None:
        self.running.append(request)
        self.most = max(self.most, len(self.running))
        if len(self.running) == self.count:
            for ended in [self.running.pop(0) for _ in range(self.count)]:
                ended.end()


class Request:
    def __init__(self, batch: Together) -> None:
        self.batch = batch
        self.end: Callable[[], None]

    def set_callback(self, told: Callable[[None], None], _: None) -> None:
        self.end = lambda: told(None)

    def start_async(self) -> None:
        self.batch.begin(self)

    def wait(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    counting = SimpleNamespace(perf_counter=lambda: float(next(ticks)), process_time=lambda: 0.0)
    monkeypatch.setattr(worker, "time", counting)
    monkeypatch.setattr(worker, "queue", SimpleNamespace(SimpleQueue=Impatient))


class Remembering:
    """A request that writes down what is done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def reset_state(self) -> None:
        self.done.append("reset")

    def infer(self) -> None:
        self.done.append("infer")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("stateful", "least", "inferences"), [(True, 4, 6), (True, 3, 3), (False, 4, 4)])
def test_state_is_kept_over_a_sequence_and_every_run_is_of_whole_sequences(
    stateful: bool, least: int, inferences: int
) -> None:
    session, request = worker.Session(), Remembering()
    session.requests = [request]  # type: ignore[list-item]
    session.stateful, session.decode_steps = stateful, 3 if stateful else 1
    for _ in range(2):
        session.run({"seconds": 0.0, "minimum": least, "realtime": False})
    sequence = ["reset", "infer", "infer", "infer"] if stateful else ["infer"] * inferences
    assert request.done == sequence * (2 * inferences // 3 if stateful else 2)


@pytest.mark.usefixtures("clock")
def test_a_batch_counts_as_as_many_inferences() -> None:
    session = worker.Session()
    session.requests, session.batch = [Remembering()], 4  # type: ignore[list-item]
    told = session.run({"seconds": 0.0, "minimum": 3, "realtime": False})
    assert told["period_s"] == sum(told["samples_s"]) / 12


@pytest.mark.usefixtures("clock")
def test_a_query_of_several_inferences_counts_until_the_last_has_ended() -> None:
    session = worker.Session()
    batch = Together(3)
    session.requests = [Request(batch) for _ in range(3)]  # type: ignore[misc]
    for request in session.requests:
        request.set_callback(lambda _: None, None)
    assert session.burst({"seconds": 0.0})["samples_s"] == [1.0]
    assert batch.most == 3


def test_outputs_are_those_at_the_end_of_a_sequence(tmp_path: Path) -> None:
    model = lstm_with_state(tmp_path)
    found = []
    for steps in (1, 1, 4):
        settings = MeasureSettings(decode_steps=steps)
        with start_child(reference_variant(), model, settings, seed=0)[0] as child:
            for _ in range(2):  # the second begins from scratch, too
                found.append(outputs_of(child)["output_0"])
    one, again, other, _, four, last = found
    assert np.array_equal(one, again)
    assert np.array_equal(one, other)
    assert np.array_equal(four, last)
    assert not np.allclose(one, four)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("count", [4, 8])
def test_all_requests_are_in_flight_at_once_and_a_period_is_shorter_than_a_latency(count: int) -> None:
    session = worker.Session()
    batch = Together(count)
    session.requests = [Request(batch) for _ in range(count)]  # type: ignore[misc]
    told = session.run({"seconds": 0.0, "minimum": 3, "realtime": False})
    assert batch.most == count
    assert len(told["samples_s"]) == 3 * count
    assert told["period_s"] < sum(told["samples_s"]) / len(told["samples_s"])


@pytest.mark.parametrize("count", [1, 4])
def test_processor_time_is_that_of_all_inferences_that_ran(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, begun = itertools.count(), list[int]()
    counting = SimpleNamespace(perf_counter=lambda: float(next(ticks)), process_time=lambda: 0.5 * len(begun))
    monkeypatch.setattr(worker, "time", counting)
    monkeypatch.setattr(worker, "queue", SimpleNamespace(SimpleQueue=Impatient))

    class Costing(Request):
        def start_async(self) -> None:
            begun.append(1)
            super().start_async()

        def infer(self) -> None:
            begun.append(1)

    session = worker.Session()
    batch = Together(count)
    session.requests = [Costing(batch) for _ in range(count)]  # type: ignore[misc]
    assert session.run({"seconds": 0.0, "minimum": 2, "realtime": False})["cpu_s"] == pytest.approx(0.5)


def test_outputs_of_bf16_are_numbers_and_strings_stay_what_they_are(tmp_path: Path) -> None:
    x, text = op.parameter([1, 4], np.float32, name="x"), op.parameter([2], ov.Type.string, name="text")
    parts = op.string_tensor_unpack(text)
    packed = op.string_tensor_pack(*parts.outputs())
    results = [op.result(op.relu(x, name="relu")), op.result(op.convert(op.relu(x), "bf16")), op.result(packed)]
    ov.save_model(ov.Model(results, [x, text]), tmp_path / "m.xml", compress_to_fp16=False)
    with start_child(reference_variant(), tmp_path / "m.xml", MeasureSettings(), seed=0)[0] as child:
        whole, half, strings = outputs_of(child).values()
    assert half.dtype == np.float32
    assert np.abs(half - whole).max() <= np.abs(whole).max() * 2**-8  # the bits of bf16's mantissa
    assert strings.dtype.kind == "S"
