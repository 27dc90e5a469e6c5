"""The resident processes of a worker: kept for the module they are of, and ended where another's needs the room."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.fleet import residents
from pipeline.fleet.residents import Residents
from pipeline.system.workers import Answer, Begin


class FakePool:
    """Stands for a process of a module."""

    ended: list[str]

    def __init__(self, most: int, module: str) -> None:
        self.module = module
        self.asked: list[str] = []

    def ask(self, name: str, document: Any) -> None:
        self.asked.append(name)

    def wait(self, begun: Begin) -> list[tuple[str, Answer]]:
        begun(f"step of {self.asked[-1]}")
        return [(self.asked[-1], {"by": self.module, "times": len(self.asked)})]

    def __exit__(self, *_: object) -> None:
        FakePool.ended.append(self.module)


def test_a_process_stays_for_its_module_and_makes_room_for_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "Workers", FakePool)
    monkeypatch.setattr(FakePool, "ended", [], raising=False)
    kept, begun = Residents(), list[str]()
    assert kept.ask_process("stages", "1", {}, begun.append) == {"by": "stages", "times": 1}
    assert kept.ask_process("stages", "2", {}, begun.append) == {"by": "stages", "times": 2}
    assert FakePool.ended == []
    assert kept.ask_process("searches", "3", {}, begun.append) == {"by": "searches", "times": 1}
    assert FakePool.ended == ["stages"]
    assert begun == ["step of 1", "step of 2", "step of 3"]
    kept.end_idle()
    assert FakePool.ended == ["stages", "searches"]
