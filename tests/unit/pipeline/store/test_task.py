"""Tasks: what their keys depend on, why they run or not, and that an artifact is made once."""

from __future__ import annotations

import contextlib
import errno
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.console import outcome_line
from pipeline.core.deadline import Deadline
from pipeline.core.errors import StoreError, UsageError
from pipeline.stages import execution
from pipeline.store.store import ENTRY, Store
from pipeline.store.task import Outcome, Progress, StepContext, Task, look_up, run_task, why_not

FULL = Path("/dev/full")

TASK = Task(
    stage="coarsen",
    name="metis",
    version={"step": 1, "metis": 1},
    params={"use": [["metis", {"parts": 4}]], "settings": {"rounds": 5}},
    seed=0,
    inputs={"read": "1" * 64},
    fingerprint="machine",
    context={"model": "a/model.xml"},
)

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "params": ({"params": {**TASK.params, "settings": {"rounds": 6}}}, "changed: params.settings.rounds: 5 -> 6"),
    "seed": ({"seed": 7}, "changed: seed: 0 -> 7"),
    "version": ({"version": {"step": 2, "metis": 1}}, "changed: step version 1 -> 2"),
    "a package": ({"version": {"step": 1, "metis": 1, "openvino": "2"}}, "changed: new openvino"),
    "inputs": ({"inputs": {"read": "2" * 64}}, "changed: new read"),
    "an input more": ({"inputs": {**TASK.inputs, "kernels": "3" * 64}}, "changed: new kernels"),
    "an input less": ({"inputs": {}}, "changed: no read"),
    "fingerprint": ({"fingerprint": "other"}, "changed: fingerprint: machine -> other"),
    "stage": ({"stage": "group"}, "changed: stage: coarsen -> group"),
    "name": ({"name": "fold"}, "changed: name: metis -> fold"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_key_changes_with_everything_it_is_made_of_and_the_words_say_what(what: str) -> None:
    changes, words = CHANGES[what]
    changed = replace(TASK, **changes)
    assert changed.key != TASK.key
    assert why_not(changed.parts, TASK.parts) == words


def test_the_key_does_not_change_with_the_path_of_the_model() -> None:
    moved = replace(TASK, context={"model": "b/model.xml"})
    assert moved.key == TASK.key
    assert moved.parts == TASK.parts


def test_the_key_of_equal_parts_is_the_same_in_every_process() -> None:
    assert TASK.key == "ecf7ae53912a4afbdd38620e9b6da45c4387381e02f8cc72fd59d74123d4ae7d"


def test_several_changes_are_all_said() -> None:
    changed = replace(TASK, seed=1, inputs={"read": "2" * 64})
    assert why_not(changed.parts, TASK.parts) == "changed: seed: 0 -> 1, new read"


def test_a_stage_without_a_past_never_ran_and_one_with_an_equal_past_was_swept() -> None:
    assert why_not(TASK.parts, None) == "never run before"
    assert why_not(TASK.parts, TASK.parts) == "not in the store any more"


class Steps:
    """Steps that write one file and count how often they are asked."""

    def __init__(self) -> None:
        self.made = 0
        self.lock = threading.Lock()

    def __call__(self, work: StepContext) -> None:
        with self.lock:
            self.made += 1
        (work.out / "answer.txt").write_text(str(work.task.seed), encoding="utf-8")


LONE = replace(TASK, inputs={})


def do(store: Store, step: Any, task: Task = LONE, previous: Any = None) -> Outcome:
    return run_task(task, store, {task.stage: step}, lambda text: None, previous)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_task_runs_once_and_its_artifact_is_taken_from_then_on(store: Store) -> None:
    steps = Steps()
    first, second = do(store, steps), do(store, steps)
    assert (first.ran, first.why) == (True, "never run before")
    assert (second.ran, second.why) == (False, "in the store")
    assert steps.made == 1
    assert second.entry.path("answer.txt").read_text(encoding="utf-8") == "0"
    assert second.entry.parts == LONE.parts


@pytest.mark.parametrize("name", ["answer.txt", ENTRY])
def test_a_damaged_artifact_is_made_again_and_the_reason_is_said(store: Store, name: str) -> None:
    steps = Steps()
    path = do(store, steps).entry.folder / name
    path.chmod(0o644)
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    entry, forecast = look_up(LONE, store, LONE.parts)
    again = do(store, steps, previous=LONE.parts)
    assert entry is None
    assert forecast == again.why
    assert again.why.startswith("the store entry is damaged")
    assert (again.ran, steps.made) == (True, 2)
    again.entry.verify()
    assert not do(store, steps).ran


def test_makers_of_one_key_make_it_once(store: Store) -> None:
    steps, start, outcomes = Steps(), threading.Barrier(6), []

    def make() -> None:
        start.wait()
        outcomes.append(do(store, steps))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps.made == 1
    assert sorted(o.ran for o in outcomes) == [False] * 5 + [True]
    assert {o.entry.folder for o in outcomes} == {store.folder(LONE.key)}


def test_waiting_for_the_machine_takes_nothing_from_the_time_to_measure(store: Store) -> None:
    left_s: list[float] = []

    def step(work: StepContext) -> None:
        left_s.append(work.deadline.left_s)

    @contextlib.contextmanager
    def taken(say: Progress) -> Iterator[float]:
        yield 7.0

    for params in ({"real": True}, {"real": False}):  # the second needs no machine to itself
        task, deadline = replace(LONE, params=params), Deadline.after(10.0, lambda: 0.0)
        run_task(task, store, {task.stage: step}, lambda text: None, None, deadline, alone=taken)
    assert left_s == [17.0, 10.0]


def test_a_step_that_fails_leaves_no_entry_but_what_it_kept_for_later(store: Store) -> None:
    def step(work: StepContext) -> None:
        (work.out / "half.txt").write_text("half", encoding="utf-8")
        (work.partial / "rounds").write_text("1", encoding="utf-8")
        raise UsageError("no")

    with pytest.raises(UsageError):
        do(store, step)
    assert store.find(LONE.key) is None
    assert list((store.root / "tmp").iterdir()) == []
    assert (store.partial(LONE.key) / "rounds").read_text(encoding="utf-8") == "1"


def test_what_was_kept_for_later_goes_when_the_step_is_done(store: Store) -> None:
    (store.partial(LONE.key) / "rounds").write_text("1", encoding="utf-8")
    do(store, Steps())
    assert not (store.root / "partial" / LONE.key).exists()


def test_a_task_whose_input_is_gone_names_the_stage_to_run(store: Store) -> None:
    with pytest.raises(StoreError) as raised:
        do(store, Steps(), TASK)
    assert "The read artifact" in raised.value.cause
    assert "placewright read" in raised.value.remedy


def test_a_full_disk_is_said_in_one_line_with_a_remedy(store: Store) -> None:
    def step(work: StepContext) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(work.out / "x.npz"))

    with pytest.raises(StoreError, match="No space left on device") as raised:
        do(store, step)
    assert raised.value.exit_code == 2
    assert raised.value.remedy


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a file that is always full")
def test_a_library_that_hides_a_full_disk_is_seen_through(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(work: StepContext) -> None:
        raise OSError("12 requested and 0 written")  # as numpy says it

    with pytest.raises(OSError, match="12 requested"):
        do(store, step)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: FULL.open("wb"))
    with pytest.raises(StoreError, match=f"{store.root} cannot be written: No space left on device"):
        do(store, step)


def test_another_fault_of_the_system_is_not_hidden(store: Store) -> None:
    def step(work: StepContext) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        do(store, step)
    assert not isinstance(raised.value, StoreError)


@pytest.mark.parametrize(
    ("stage", "params", "measures"),
    [
        ("profile", {}, True),
        ("precisions", {}, True),
        ("measure", {"real": True}, True),
        ("measure", {"real": False}, False),
        ("place", {"real": True}, True),
        ("place", {"real": False}, False),
    ],
)
def test_what_touches_the_devices_has_the_machine_to_itself(stage: str, params: dict[str, Any], measures: bool) -> None:
    assert replace(TASK, stage=stage, params=params).measures is measures


def test_compiling_counts_neither_as_time_of_a_stage_nor_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[float] = []

    def step(work: StepContext) -> None:
        ends.append(work.deadline.at_s)
        work.compiled_s.append(50.0)
        (work.out / "x").touch()

    monkeypatch.setattr(execution, "STEPS", {"coarsen": step, "embed": step})
    tasks = [replace(TASK, stage=stage, inputs={}) for stage in ("coarsen", "embed")]
    deadline = Deadline(100.0, clock=lambda: 0.0)
    found = execution.execute_tasks(
        tasks, Store(tmp_path / "store"), progress=lambda text: None, previous={}, deadline=deadline
    )
    assert ends == [100.0, 150.0]
    assert found["embed"].compiled_s == 50.0
    assert found["embed"].seconds < 0  # of the time that it really took, all that was said to be compiling is taken off
    assert outcome_line(found["embed"]).endswith("; 50 s to compile kernels (once per version)")
