"""What `tune` prints of several models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import api
from pipeline.cli.main import run_command_line
from tests.unit.pipeline.deploy.test_several import result_of

TWO = """
[[models]]
name = "towers"
model = "zoo:two-towers"

[[models]]
name = "ensemble"
model = "zoo:ensemble"
"""


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], ["- one", "- two", "- three", "- 1 more notes: --verbose, or in result.json."]),
        (["--verbose"], ["- one", "- two", "- three", "- four"]),
    ],
)
def test_the_verdict_on_a_scenario_comes_before_a_few_notes(
    more: list[str],
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = result_of(verdict="It holds.", notes=["one", "two", "three", "four"], files={"result": "result.json"})
    monkeypatch.setattr(api, "advance_scenario", lambda *_, **__: result)
    (box := tmp_path / "box.toml").write_text(TWO)
    run, store = tmp_path / "run", tmp_path / "store"
    assert run_command_line(["tune", str(box), "--out", str(run), "--store", str(store), *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("It holds.") + 1 :] == [*told, f"Written to {run}: result.json"]
