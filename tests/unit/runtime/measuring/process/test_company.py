"""What devices that run at the same time take longer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable
from pipeline.result.notes import device_notes
from pipeline.shared.payload import load_slowdown
from pipeline.store.store import Entry, file_digest
from pipeline.store.task import Outcome
from pipeline.testing.problems import small_topology
from runtime.measuring.process.disturbance import Look
from runtime.measuring.process.slowdown import ENOUGH, MOST_ROUNDS, ROUNDS, measure_slowdown
from tests.unit.pipeline.stages.test_keys import tasks

MAIN = threading.main_thread()


class Rounds:
    """An inference that takes 1.5 times as long in company, 9 times in rounds that others disturb."""

    def __init__(self, disturbed: Sequence[bool]) -> None:
        self.disturbed, self.begun, self.alone = disturbed, 0, False

    def inference(self) -> float:
        """Return the seconds that it takes; the first one alone after one in company begins a round."""
        self.begun += not beside() and not self.alone
        self.alone = not beside()
        if self.alone:
            return 1.0
        return 9.0 if self.disturbed[self.begun - 1] else 1.5


def beside() -> bool:
    """Return whether the caller runs beside others: then it has a thread of its own."""
    return threading.current_thread() is not MAIN


def seen(*disturbed: bool) -> Callable[[], Look]:
    """Return what looks at the processors before and after rounds, of which others disturb some; all further are quiet.

    In every round a thread runs and waits for 1 s each.
    """
    looks, others_s = [], 0.0
    for i, busy in enumerate(disturbed):
        looks.append(Look({"1": (2 * i * 10**9, 2 * i * 10**9)}, others_s))
        others_s += busy
        looks.append(Look({"1": ((2 * i + 1) * 10**9, (2 * i + 1) * 10**9)}, others_s))
    return chain(looks, repeat(Look({}, 0.0))).__next__


def test_the_slowdown_is_what_it_takes_beside_others_over_alone() -> None:
    assert measure_slowdown([lambda: 3.0 if beside() else 2.0, lambda: 5.0 if beside() else 1.0], 2, seen()) == [
        1.5,
        5.0,
    ]


def test_nobody_is_faster_in_company() -> None:
    assert measure_slowdown([lambda: 1.0 if beside() else 2.0, lambda: 1.0], 2, seen()) == [1.0, 1.0]


def test_all_go_on_until_each_has_run_often_enough() -> None:
    counts = [0, 0]

    def counted(i: int) -> float:
        counts[i] += beside()
        return 1.0

    assert measure_slowdown([partial(counted, 0), partial(counted, 1)], 3, seen()) == [1.0, 1.0]
    assert min(counts) >= ROUNDS * 3


def test_rounds_that_others_disturb_do_not_count_and_are_taken_again() -> None:
    disturbed = [True, False, True, True, False, False, False, False]
    rounds = Rounds(disturbed)
    assert measure_slowdown([rounds.inference, lambda: 1.0], 2, seen(*disturbed)) == [1.5, 1.0]
    assert rounds.begun == len(disturbed)


def test_enough_undisturbed_rounds_tell() -> None:
    disturbed = [True] * (MOST_ROUNDS - ENOUGH) + [False] * ENOUGH
    assert measure_slowdown([Rounds(disturbed).inference, lambda: 1.0], 2, seen(*disturbed)) == [1.5, 1.0]


def test_nothing_is_told_of_a_machine_that_others_keep_busy() -> None:
    disturbed = [True] * (MOST_ROUNDS - ENOUGH + 1) + [False] * (ENOUGH - 1)
    rounds = Rounds(disturbed)
    assert measure_slowdown([rounds.inference, lambda: 1.0], 2, seen(*disturbed)) is None
    assert rounds.begun == MOST_ROUNDS


def test_companions_may_wait_for_one_another() -> None:
    assert measure_slowdown([lambda: 3.0 if beside() else 1.0, lambda: 1.0], 1, seen(*[False] * ROUNDS)) == [3.0, 1.0]


def test_one_that_fails_ends_all() -> None:
    def failing() -> float:
        if beside():
            raise RuntimeError("no memory")
        return 1.0

    with pytest.raises(RuntimeError, match="no memory"):
        measure_slowdown([lambda: 1.0, failing], 2, seen())


def test_operations_beside_others_take_longer_and_what_was_not_asked_does_not(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"slowdown": {"B": 1.5}}')
    topology = small_topology(2)
    found = load_slowdown(path, topology)
    assert found.tolist() == [1.0, 1.5]
    costs = CostTable(("x",), topology.names, np.array([[1.0, 2.0]]), np.zeros(2), ("given", "given"))
    assert costs.slower(found).op_s.tolist() == [[1.0, 3.0]]
    path.write_text('{"slowdown": null}')
    assert load_slowdown(path, topology).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("found", "said"), [("null", True), ("{}", False)])
def test_the_result_says_that_nothing_was_told(found: str, said: bool, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(f'{{"slowdown": {found}, "left_out": {{}}, "nan": {{}}, "empty": []}}')
    files = {"profile.json": file_digest(tmp_path / "profile.json")}
    outcome = Outcome(tasks()["profile"], Entry(tmp_path, "", {}, {}, files), ran=True, why="", seconds=0.0)
    notes = device_notes({"profile": outcome})
    assert [note.startswith("The mutual slow-down of devices") for note in notes] == [True] * said


def test_the_result_says_which_outputs_are_nan_or_empty(tmp_path: Path) -> None:
    profile = {"slowdown": {}, "left_out": {}, "nan": {"output_1": 0.25}, "empty": ["output_2"]}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    files = {"profile.json": file_digest(tmp_path / "profile.json")}
    outcome = Outcome(tasks()["profile"], Entry(tmp_path, "", {}, {}, files), ran=True, why="", seconds=0.0)
    (note,) = device_notes({"profile": outcome})
    assert "25 % of output_1 is NaN, output_2 has no entries" in note


@pytest.mark.parametrize(("gone", "said"), [(("A", "B"), "CPU as a whole took the place"), (("A",), "A is left out")])
def test_the_result_says_in_one_line_that_a_whole_device_took_the_place_of_its_parts(
    gone: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    why = {"kind": "wrong_output", "message": "outputs differ by 120 %", "doing": "run the model"}
    profile = {"slowdown": {}, "left_out": dict.fromkeys(gone, why), "nan": {}, "empty": []}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    files = {"profile.json": file_digest(tmp_path / "profile.json")}
    params = {"devices": [{"name": "A"}, {"name": "B"}], "whole": [{"name": "CPU"}]}
    task = replace(tasks()["profile"], params=params)
    outcome = Outcome(task, Entry(tmp_path, "", {}, {}, files), ran=True, why="", seconds=0.0)
    (note,) = device_notes({"profile": outcome})
    assert note.startswith(said)
