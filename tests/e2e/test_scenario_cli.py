"""`placewright tune SCENARIO.toml`: the command, what it writes, and what it says where a user made a mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from coarsen.reading.model.read import save_model
from pipeline.cli.main import run_command_line
from pipeline.result.deployment import Deployment
from pipeline.scenario.run import load_scenario_result
from pipeline.system.process import python_command
from tests.models import chain, two_towers

TWO = """
[[models]]
name = "towers"
model = "towers.xml"
[[models]]
name = "chain"
model = "chain.xml"
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_model(two_towers(2, width=16), tmp_path / "towers.xml")
    save_model(chain(3), tmp_path / "chain.xml")
    path = tmp_path / "box.toml"
    path.write_text(TWO)
    monkeypatch.chdir(tmp_path)
    return path


def options(*more: str) -> list[str]:
    return ["--store", "store", "--quiet", *more]


def test_a_dry_run_says_what_would_run_of_every_model_and_writes_nothing(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["tune", str(box), "--dry-run", "--json", *options()]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["stage"], row["name"]) for row in rows} >= {
        ("read", "towers"),
        ("read", "chain"),
        ("scenario", "scenario"),
    }
    assert all(row["would_run"] for row in rows)
    assert sorted(p.name for p in box.parent.iterdir()) == [
        "box.toml",
        "chain.bin",
        "chain.xml",
        "towers.bin",
        "towers.xml",
    ]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--objective", "latency"], "measure.objective: a scenario says this itself."),
        (["--devices", "A=CPU{INFERENCE_NUM_THREADS=1}"], "A scenario chooses properties of devices itself."),
        (["--devices", "XPU"], "XPU"),
    ],
)
def test_options_that_a_scenario_has_no_use_for_are_refused(
    box: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], cause: str
) -> None:
    assert run_command_line(["tune", str(box), *options(*arguments)]) in (2, 4)
    said = capsys.readouterr().err
    assert cause in said
    assert said.count("\n") == 2


def test_a_scenario_that_makes_no_sense_ends_with_one_line_of_cause_and_one_of_remedy(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box.write_text(TWO.replace('model = "chain.xml"', 'modle = "chain.xml"'))
    assert run_command_line(["tune", str(box), *options()]) == 2
    said = capsys.readouterr().err
    assert "unknown key 'modle' (did you mean 'model'?)" in said
    assert said.count("\n") == 2


@pytest.mark.slow
def test_a_scenario_is_tuned_and_resumes_after_kill(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(box), "--out", "run", "--budget", "40s", "--set", "measure.starts=3", *options()]
    command = [*python_command("placewright_entry"), *arguments]
    killed = subprocess.Popen(command)
    journal = Path("store/series")
    while not any(journal.glob("*/starts.jsonl")):
        assert killed.poll() is None
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    (starts,) = journal.glob("*/starts.jsonl")
    before = starts.read_text(encoding="utf-8")
    assert run_command_line([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert starts.read_text(encoding="utf-8").startswith(before)
    result = load_scenario_result(Path("run"))
    assert document == json.loads(json.dumps(result.to_json()))
    assert {m.name for m in result.answer.models} == {"towers", "chain"}
    assert {c.kind for c in result.configurations} >= {"defaults", "searched"}
    assert result.verdict
    for name in ("towers", "chain"):
        deployment = Deployment.load(Path("run") / name)
        stated = next(m for m in result.answer.models if m.name == name)
        assert deployment.record.requests == stated.requests
        assert deployment.record.target == stated.target
    assert run_command_line(arguments) == 0  # from the store
    assert result.verdict in capsys.readouterr().out
    Path("jobs.toml").write_text(
        '[defaults]\nbudget = "40s"\n"measure.starts" = 3\n[[jobs]]\nmodels = ["box.toml", "nowhere.toml"]\n'
    )
    assert run_command_line(["batch", "jobs.toml", "--store", "store", "--json"]) == 5
    row, failed = json.loads(capsys.readouterr().out)
    assert (row["best"], row["verdict"], row["median_s"]) == (result.best, result.verdict, "")
    assert "nowhere.toml" in failed["failed"]
    assert Path("jobs/box/report.html").is_file()


def test_a_scenario_of_a_batch_that_cannot_run_is_a_row_with_its_cause(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box.write_text(TWO.replace('model = "chain.xml"', 'modle = "chain.xml"'))
    Path("jobs.toml").write_text('[[jobs]]\nmodels = ["box.toml"]\n')
    assert run_command_line(["batch", "jobs.toml", *options("--json")]) == 5
    (row,) = json.loads(capsys.readouterr().out)
    assert "unknown key 'modle'" in row["failed"]
    assert row["best"] == ""


def test_a_scenario_of_one_model_is_tuned_as_the_model(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box.write_text('[[models]]\nname = "towers"\nmodel = "towers.xml"\n')
    assert run_command_line(["tune", str(box), "--dry-run", "--json", *options()]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert run_command_line(["tune", "towers.xml", "--dry-run", "--json", *options()]) == 0
    assert of_file == json.loads(capsys.readouterr().out)
