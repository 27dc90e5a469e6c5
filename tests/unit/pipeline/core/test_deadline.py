"""The moment by which work is to be done."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline import api
from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.errors import UsageError
from pipeline.settings.config import Settings
from pipeline.stages.host import ModelFile
from pipeline.store.store import Store
from pipeline.store.task import Task


class Clock:
    """Says what it is told."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_shrinks_to_nothing() -> None:
    clock = Clock()
    found = Deadline.after(5.0, clock)
    assert (found.left_s, found.passed) == (5.0, False)
    clock.now = 16.0
    assert (found.left_s, found.passed) == (0.0, True)


def test_a_share_is_of_what_is_left_without_the_reserve() -> None:
    clock = Clock()
    found = Deadline.after(10.0, clock)
    clock.now = 12.0
    assert found.share(0.5).left_s == 4.0
    assert found.share(0.5, reserve_s=2.0).left_s == 3.0
    assert found.share(0.5, reserve_s=20.0).left_s == 0.0


def test_no_deadline_stays_none_whatever_is_asked_of_it() -> None:
    assert NEVER.share(0.1).left_s == NEVER.later(5.0).left_s == Deadline.after(None).left_s == math.inf
    assert not NEVER.passed


def test_a_later_one() -> None:
    assert Deadline.after(1.0, Clock()).later(3.0).left_s == 4.0


def test_what_the_first_plan_imports_is_no_time_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now_s = [5.0]
    ends: list[float] = []

    def planned(*_: object, **__: object) -> list[Task]:
        now_s[0] += 30.0
        return [Task("read", "read", {}, {}, 0, {})]

    def executed(*_: object, deadline: Deadline, **__: object) -> None:
        ends.append(deadline.at_s)
        raise UsageError("Enough.")

    monkeypatch.setattr(api.Deadline, "after", lambda seconds: Deadline(now_s[0] + seconds, lambda: now_s[0]))
    monkeypatch.setattr(api, "look_at_model", lambda path: ModelFile(path, "0" * 64))
    monkeypatch.setattr(api, "plan_tasks", planned)
    monkeypatch.setattr(api, "execute_tasks", executed)
    settings = Settings().updated({"budget": "20s"}, "the test")
    with pytest.raises(UsageError, match="Enough"):
        api.advance_run(
            tmp_path / "m.xml", settings, tmp_path / "run", Store(tmp_path / "store"), upto="read", progress=print
        )
    assert ends == [5.0 + 20.0 + 30.0]
