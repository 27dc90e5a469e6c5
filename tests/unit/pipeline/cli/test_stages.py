"""What `tune` prints of several models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import api
from pipeline.cli.main import run_command_line
from pipeline.cli.stages import ranked_notes
from pipeline.result.result import Result
from tests.deployments import measured
from tests.unit.pipeline.deploy.test_several import result_of

TWO = """
[[models]]
name = "towers"
model = "zoo:two-towers"

[[models]]
name = "ensemble"
model = "zoo:ensemble"
"""


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_answer_beyond_the_limits_has_no_star_and_ends_with_5(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result.load(measured(tmp_path / "run", [1e-3, 1.1e-3]))
    beyond = replace(result.best, limit="p99 is 4.20 ms, 1 ms allowed for p99")
    for best, code in ((result.best, 0), (beyond, 5)):
        found = Result(result.path, replace(result.record, candidates=[best]))
        monkeypatch.setattr(api, "advance_run", lambda *_, found=found, **__: api.Advance({}, found))
        arguments = ["tune", "zoo:two-towers", "--out", str(tmp_path / "run"), "--store", str(tmp_path / "store")]
        assert run_command_line([*arguments, *more]) == code
        said = capsys.readouterr()
        assert ("*CPU" in said.out) == (code == 0 and not more)
    assert "No candidate is within the limits; the best, CPU: p99 is 4.20 ms" in said.err


def test_a_faster_runtime_that_nobody_asked_for_is_among_the_first_notes(tmp_path: Path) -> None:
    result = Result.load(measured(tmp_path / "run", [1e-3, 1.1e-3]))
    faster = "ONNX Runtime is 3.80 times as fast as CPU (3.70 to 3.90): --runtimes openvino,onnxruntime."
    notes = ["A is left out.", "B is left out.", "C is left out.", faster]
    assert ranked_notes(Result(result.path, replace(result.record, notes=notes)))[0] == faster


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


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_scenario_whose_limits_nothing_keeps_ends_with_5(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = result_of(files={"result": "result.json"})
    beyond = [replace(c, limit="3 GB of memory, 2 GB allowed") for c in kept.configurations]
    (box := tmp_path / "box.toml").write_text(TWO)
    arguments = ["tune", str(box), "--out", str(tmp_path / "run"), "--store", str(tmp_path / "store"), *more]
    for result, code in ((kept, 0), (replace(kept, configurations=beyond), 5)):
        monkeypatch.setattr(api, "advance_scenario", lambda *_, result=result, **__: result)
        assert run_command_line(arguments) == code
    assert f"No candidate is within the limits; the best, {kept.best}: 3 GB of memory" in capsys.readouterr().err
