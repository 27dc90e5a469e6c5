"""Gates of versions: a journal goes on with gates of the same sides, budget and models alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate_versions


def test_a_journal_goes_on_with_the_same_question_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_versions, "run_one_gate", lambda model, *_: {"model": model, "text": ""})

    def run(gates: int, after: str = "new", seconds: float = 1.0) -> list[dict[str, Any]]:
        asked = ("table", "old", after)
        journal = tmp_path / "table.jsonl"
        sides, models = ("old", after), ["a", "b"]
        return gate_versions.run_gates(journal, sides, models, asked=asked, gates=gates, seconds=seconds, minutes=1.0)

    assert [line["model"] for line in run(2)] == ["a", "b"]
    assert [line["model"] for line in run(3)] == ["a", "b", "a"]
    assert len(run(0, "other")) == len(run(0, seconds=2.0)) == 0
