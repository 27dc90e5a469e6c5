"""The generator of load: who is served when, what counts, and who fails without taking the others along."""

from __future__ import annotations

import threading
import time

import numpy as np

from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.shared.arrivals import arrival_times
from runtime.measuring.load.drive import Drive, LoadTimes, Serve

TIMES = LoadTimes(fill_s=0.05, measured_s=0.2, tail_s=0.05, drain_s=1.0, hang_s=0.2)


def run(serves: dict[str, list[Serve]], *loads: ModelLoad, times: LoadTimes = TIMES) -> dict[str, RequestLog]:
    logs, errors = Drive(serves, LoadScenario(loads), times, seed=3).run()
    assert errors == {}
    return logs


def test_requests_of_an_open_loop_are_due_when_they_were_drawn() -> None:
    load = ModelLoad("a", rate=200)
    log = run({"a": [lambda: None]}, load)["a"]
    assert np.allclose(log.due_s, arrival_times(load, TIMES.due_s, 3))
    assert (log.end_s >= log.due_s).all()
    assert np.array_equal(log.measured, (log.due_s >= 0.05) & (log.due_s < 0.25))


def test_latency_counts_from_the_moment_when_a_request_was_due_though_the_one_before_held_it_up() -> None:
    held = iter([0.1])
    log = run({"a": [lambda: time.sleep(next(held, 0.0))]}, ModelLoad("a", rate=200))["a"]
    waiting = log.due_s < log.due_s[0] + 0.1
    assert (log.end_s[waiting] >= log.due_s[0] + 0.1).all()
    assert waiting.sum() > 5


def test_several_requests_are_in_flight_at_a_time() -> None:
    together, left = threading.Barrier(2, timeout=5), iter([True, True])

    def meet() -> None:
        if next(left, False):
            together.wait()  # passes if two of them meet

    run({"a": [meet, meet]}, ModelLoad("a", concurrency=2), times=LoadTimes(0, 0.01, 0, 1))


def test_a_closed_loop_begins_a_request_when_the_one_before_has_ended() -> None:
    log = run({"a": [lambda: None]}, ModelLoad("a", concurrency=1))["a"]
    assert (log.due_s[1:] >= log.end_s[:-1]).all()
    assert log.due_s[-1] < TIMES.due_s


def test_a_model_that_is_loaded_and_has_no_load_stays_idle() -> None:
    logs = run({"a": [lambda: None], "idle": [lambda: 1 / 0]}, ModelLoad("a", concurrency=1))
    assert set(logs) == {"a"}


def test_results_cause_requests_of_the_next_model_that_count_from_the_first() -> None:
    loads = ModelLoad("a", rate=100), ModelLoad("b", after="a", calls=2.5)
    logs = run({"a": [lambda: None], "b": [lambda: None]}, *loads)
    made = len(logs["b"].due_s) / len(logs["a"].due_s)
    assert 2 <= made <= 3
    assert set(logs["b"].due_s) <= set(logs["a"].end_s)
    assert set(logs["b"].origin_s) <= set(logs["a"].due_s)


def test_a_closed_loop_goes_on_when_all_that_a_request_has_caused_has_ended() -> None:
    loads = ModelLoad("a", concurrency=1), ModelLoad("b", after="a", calls=3)
    logs = run({"a": [lambda: None], "b": [lambda: time.sleep(0.002)]}, *loads)
    assert len(logs["b"].due_s) == 3 * len(logs["a"].due_s)
    assert (np.diff(logs["a"].due_s) >= 0.006).all()


def test_late_requests_are_dropped_where_that_was_asked() -> None:
    load = ModelLoad("a", rate=100, deadline_s=0.01, late="drop")
    log = run({"a": [lambda: time.sleep(0.02)]}, load)["a"]  # all could be served before the end
    assert log.dropped > 0
    assert np.isinf(log.percentile_s(99))


def test_an_overload_ends_and_what_was_not_served_counts_as_dropped() -> None:
    times = LoadTimes(0.0, 0.2, 0.0, drain_s=0.05)
    log = run({"a": [lambda: time.sleep(0.02)]}, ModelLoad("a", rate=1000), times=times)["a"]
    assert len(log.due_s) == len(arrival_times(ModelLoad("a", rate=1000), 0.2, 3))
    assert log.dropped > 100


def test_a_load_ends_as_soon_as_a_deadline_is_missed_for_certain() -> None:
    times = LoadTimes(0.02, 1.2, 0.0, drain_s=0.5, until_late=1.0)
    load = ModelLoad("a", rate=100, deadline_s=0.02)
    slow = ModelLoad("b", rate=200, deadline_s=10.0)
    drive = Drive(
        {"a": [lambda: time.sleep(0.03)], "b": [lambda: time.sleep(0.1)]}, LoadScenario((load, slow)), times, 3
    )
    logs, _ = drive.run()
    log = logs["a"]
    assert log.percentile_s(99) > load.deadline_s
    assert log.measured.sum() < 60  # of 120
    assert log.due_s.max() < 0.02 + drive.measured_s < 1.0
    waiting = np.isnan(logs["b"].end_s)
    assert waiting.sum() > 3
    assert not logs["b"].measured[waiting].any()
    counted = log.due_s[log.measured]
    assert (counted <= 0.02 + drive.measured_s).all()
    overdue = 0.02 + drive.measured_s - counted > load.deadline_s
    assert (~np.isnan(log.end_s[log.measured]) | overdue).all()
    assert logs["b"].dropped == 0  # what had time left does not count


def test_a_load_whose_deadlines_hold_is_not_cut_short() -> None:
    times = LoadTimes(0.02, 0.3, 0.0, drain_s=0.5, until_late=1.0)
    missed = iter([0.05])  # one of about sixty is late, and so are those that wait for it
    load = ModelLoad("a", rate=200, deadline_s=0.04, percentile=80)
    log = run({"a": [lambda: time.sleep(next(missed, 0.0))]}, load, times=times)["a"]
    assert np.allclose(log.due_s, arrival_times(load, times.due_s, 3))
    assert np.array_equal(log.measured, (log.due_s >= 0.02) & (log.due_s < 0.32))
    assert log.percentile_s(80) <= load.deadline_s


def test_a_model_that_fails_is_named_and_the_others_go_on() -> None:
    def fails() -> None:
        raise RuntimeError("no such layer")

    loads = ModelLoad("a", rate=100), ModelLoad("b", concurrency=1), ModelLoad("c", rate=100)
    serves: dict[str, list[Serve]] = {"a": [fails], "b": [fails], "c": [lambda: None]}
    logs, errors = Drive(serves, LoadScenario(loads), TIMES, seed=0).run()
    assert {name: str(error) for name, error in errors.items()} == {"a": "no such layer", "b": "no such layer"}
    assert logs["c"].dropped == 0
    assert logs["c"].measured.sum() > 5
    assert np.isnan(logs["a"].end_s).all()


def test_a_model_that_hangs_is_named_and_the_others_have_their_samples() -> None:
    forever = threading.Event()
    loads = ModelLoad("a", rate=100), ModelLoad("b", rate=100)
    times = LoadTimes(0.0, 0.1, 0.0, drain_s=0.05, hang_s=0.05)
    logs, errors = Drive({"a": [forever.wait], "b": [lambda: None]}, LoadScenario(loads), times, seed=0).run()
    forever.set()
    assert list(errors) == ["a"]
    assert logs["b"].dropped == 0
    assert logs["a"].dropped == len(logs["a"].due_s) > 0
