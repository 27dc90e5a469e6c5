"""What disturbs a measurement (a process killed, out of time or of memory) is never stored as its final answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.measurement import Evaluation, FailureKind, Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing.journal import Journal, disturbed_rows
from pipeline.shared import payload
from pipeline.stages.execution import forecast_tasks
from pipeline.stages.without_measured import forget_measured, measured_tasks, without_measured
from pipeline.store.store import Store
from pipeline.store.task import Outcome, StepContext, Task, list_disturbances, look_up, run_task
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.variant import outputs_of, start_child
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process import retry as again
from runtime.measuring.process.child import ChildError
from runtime.measuring.process.retry import ask_with_retry
from runtime.measuring.profile import precisions
from runtime.measuring.profile.precisions import try_precisions
from tests.models import two_towers
from tests.two_cpus import write

KILLED = MeasurementFailed("crashed", "it was killed by SIGKILL")
REFUSED = MeasurementFailed("refused", "no such layer")
GOOD = Measurement(np.array([1.0, 2.0]))
SPLIT = Placement(np.array([0, 1]), ("A", "B"))


@pytest.mark.parametrize(
    ("kind", "transient"),
    [("crashed", True), ("timeout", True), ("out_of_memory", True), ("refused", False), ("wrong_output", False)],
)
def test_which_failures_may_pass(kind: FailureKind, transient: bool) -> None:
    assert MeasurementFailed(kind, "").transient is transient


# Asking again


def answers(*given: MeasurementFailed | str) -> Callable[[], str]:
    waiting = list(given)

    def ask() -> str:
        answer = waiting.pop(0)
        if isinstance(answer, MeasurementFailed):
            raise ChildError(answer)
        return answer

    return ask


def test_what_was_disturbed_is_asked_once_more_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[str] = []
    monkeypatch.setattr(again, "await_retry", lambda: pauses.append("pause"))
    assert ask_with_retry(answers("right")) == "right"
    assert pauses == []
    assert ask_with_retry(answers(KILLED, "right")) == "right"
    assert pauses == ["pause"]
    with pytest.raises(ChildError) as caught:
        ask_with_retry(answers(KILLED, replace(KILLED, message="again"), "never"))
    assert caught.value.failed.message == "again"
    with pytest.raises(ChildError, match="no such layer"):
        ask_with_retry(answers(REFUSED, "never"))
    assert pauses == ["pause"] * 2


def test_a_real_child_that_is_killed_once_is_started_again(tmp_path: Path) -> None:
    path, _ = write(two_towers(), tmp_path)
    pids: list[int] = []

    def outputs() -> Any:
        child, _ = start_child(reference_variant(), path, MeasureSettings(), seed=0)
        with child:
            pids.append(child.pid)
            if len(pids) == 1:
                os.kill(child.pid, signal.SIGKILL)
            return outputs_of(child)

    assert set(ask_with_retry(outputs)) == {"output_0"}
    assert len(set(pids)) == 2


def test_a_precision_that_was_disturbed_twice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(*_: object, **__: object) -> Any:
        raise ChildError(KILLED)

    monkeypatch.setattr(precisions, "reference_outputs", lambda *_, **__: Reference({}))
    monkeypatch.setattr(precisions, "start_child", disturbed)
    (tried,) = try_precisions(Path("m.xml"), [("CPU", "bf16")], MeasureSettings(), seed=0).tried
    assert (tried.why_not, tried.transient) == ("it does not run (it was killed by SIGKILL)", True)


# The journal of a search


@dataclass
class Devices:
    """An evaluator that gives these answers, one after another."""

    answers: list[Evaluation]
    version: int = 1
    fingerprint: str = "here"
    evaluations: int = 0

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        self.evaluations += len(placements)
        return [self.answers.pop(0) for _ in placements]


def journal(path: Path, *given: Evaluation) -> Journal:
    return Journal.of(path, "here", Devices(list(given)))


def test_a_journal_asks_again_and_writes_down_the_good_answer(tmp_path: Path) -> None:
    first = journal(tmp_path / "j", KILLED, GOOD)
    assert first.ask(SPLIT) is first.ask(SPLIT) is GOOD
    assert first.disturbed == []
    (known,) = journal(tmp_path / "j").known.values()
    assert isinstance(known, Measurement)


def test_a_journal_keeps_a_failure_that_may_pass_to_itself(tmp_path: Path) -> None:
    first = journal(tmp_path / "j", KILLED, KILLED)
    assert first.ask(SPLIT) == first.ask(SPLIT) == KILLED
    assert first.disturbed == ["a placement failed twice (crashed: it was killed by SIGKILL)"]
    second = journal(tmp_path / "j", GOOD)
    assert second.known == {}
    assert second.ask(SPLIT) is GOOD


def test_a_journal_writes_down_what_is_refused_for_good(tmp_path: Path) -> None:
    assert journal(tmp_path / "j", REFUSED).ask(SPLIT) == REFUSED
    assert list(journal(tmp_path / "j").known.values()) == [REFUSED]


def test_a_line_of_an_earlier_version_that_may_pass_does_not_count(tmp_path: Path) -> None:
    journal(tmp_path / "j", REFUSED).ask(SPLIT)
    text = (tmp_path / "j").read_text(encoding="utf-8")
    (tmp_path / "j").write_text(text.replace("refused", "timeout"), encoding="utf-8")
    assert journal(tmp_path / "j").known == {}


def test_candidates_that_were_disturbed_are_told() -> None:
    rows = [{"name": n, **payload.result_to_json(r)} for n, r in (("a", GOOD), ("b", KILLED), ("c", REFUSED))]
    assert disturbed_rows(rows) == ["b failed twice (crashed: it was killed by SIGKILL)"]


# Artifacts


@dataclass
class Stages:
    """Steps of three stages, of which `profile` is disturbed as often as is said."""

    times: int
    ran: list[str] = field(default_factory=list)

    def step(self, work: StepContext) -> None:
        self.ran.append(work.task.stage)
        (work.out / "x").touch()
        (work.partial / "journal").touch()
        if work.task.stage == "profile" and self.times:
            self.times -= 1
            work.disturbed.append("NPU: killed")


def chain() -> list[Task]:
    read = Task("read", "read", {}, {}, 0, {})
    profile = Task("profile", "profile", {}, {}, 0, {"read": read.key}, "here")
    place = Task("place", "place", {}, {}, 0, {"profile": profile.key, "read": read.key})
    return [read, profile, place]


def execute(tasks: Sequence[Task], store: Store, stages: Stages) -> list[Outcome]:
    """Return the outcomes of tasks, and leave in `stages` which ran."""
    stages.ran.clear()
    return [run_task(task, store, dict.fromkeys(("read", "profile", "place"), stages.step), print) for task in tasks]


def test_a_disturbed_artifact_serves_its_run_and_is_made_again_in_the_next(tmp_path: Path) -> None:
    store, stages, tasks = Store(tmp_path / "store"), Stages(times=2), chain()
    for _ in range(2):
        outcomes = execute(tasks, store, stages)
        assert list_disturbances(outcomes[1].entry) == list_disturbances(outcomes[2].entry) == ["NPU: killed"]
        entry, why = look_up(tasks[1], store, None)
        assert (entry, why) == (None, "the last measurement was disturbed: NPU: killed")
        # The key of what is made of it does not follow from its figures.
        assert [row["would_run"] for row in forecast_tasks(tasks, store, {})] == [False, True, True]
    execute(tasks, store, stages)
    assert stages.ran == ["profile", "place"]
    execute(tasks, store, stages)
    assert stages.ran == []


def test_what_was_measured_and_what_is_made_of_it_is_forgotten(tmp_path: Path) -> None:
    store, stages, tasks = Store(tmp_path / "store"), Stages(times=0), chain()
    tasks[1] = replace(tasks[1], series={"samples": "of the profile"})
    execute(tasks, store, stages)
    (store.partial(tasks[1].key) / "rounds.jsonl").touch()
    store.series("of another run")
    assert len(list((store.root / "series").iterdir())) == 2
    assert measured_tasks(tasks) == tasks[1:]
    rows = without_measured(forecast_tasks(tasks, store, {}), tasks)
    assert [(row["would_run"], row["why"]) for row in rows] == [(False, "in the store"), *[(True, "--remeasure")] * 2]
    forget_measured(tasks, store)
    assert not any((store.root / "partial").iterdir())
    assert [p.name for p in (store.root / "series").iterdir()] == ["of another run"]
    execute(tasks, store, stages)
    assert stages.ran == ["profile", "place"]


def test_what_an_interruption_left_counts_only_for_the_same_figures(tmp_path: Path) -> None:
    store, tasks = Store(tmp_path / "store"), chain()
    seen: list[bool] = []

    def place(work: StepContext) -> None:
        seen.append((work.partial / "rounds.jsonl").exists())
        (work.partial / "rounds.jsonl").touch()
        raise KeyboardInterrupt

    def profile(figure: str) -> None:
        def step(work: StepContext) -> None:
            (work.out / "x").write_text(figure)
            work.disturbed.append("NPU: killed")

        run_task(tasks[1], store, {"profile": step}, print)

    execute(tasks[:1], store, Stages(times=0))
    for figure in ("1", "1", "2"):
        profile(figure)
        with pytest.raises(KeyboardInterrupt):
            run_task(tasks[2], store, {"place": place}, print)
    assert seen == [False, True, False]


def test_forgetting_what_was_never_made_leaves_no_store(tmp_path: Path) -> None:
    forget_measured(chain(), Store(tmp_path / "store"))
    assert not (tmp_path / "store").exists()
