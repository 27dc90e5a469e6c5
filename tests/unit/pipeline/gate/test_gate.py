"""gate, with interpreters that stand for other versions: what it finds, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.measurement import MeasurementFailed
from pipeline.gate import gate
from pipeline.gate.environments import Environment
from pipeline.gate.gate_file import GatedModel
from pipeline.gate.starts import GateStart, SideFailed
from pipeline.system.json_lines import load_lines
from runtime.measuring.process.child import Child, ChildError
from tests.gates import found, gated, make_environment, make_model, short_starts
from tests.slow import slow_but

TODAY = datetime.now(UTC).date()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let starts be short, and results lie in the test's folder."""
    short_starts(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_equal_sides_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new")
    assert gated(tmp_path) == 0
    document = found(tmp_path)
    assert (document["verdict"], document["passed"]) == ("same", True)
    assert "no difference beyond 2 %" in capsys.readouterr().out
    assert document["notes"] == ["Both sides have openvino 2026.1.0."]


def test_a_slower_version_ends_with_7_and_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", version="2026.4.1", latency_s=1.1e-3)
    assert gated(tmp_path) == 7
    captured = capsys.readouterr()
    assert "error: With openvino 2026.4.1, model.xml: latency: worse, 1." in captured.err
    assert len(captured.err.strip().splitlines()) == 2
    (row,) = found(tmp_path)["models"]
    by_name = {f["figure"]: f for f in row["figures"]}
    assert by_name["latency"]["ratio"]["ratio"] == pytest.approx(1.1, rel=0.01)  # starts scatter by 0.2 %
    assert by_name["memory of running"]["found"] != "slower"
    assert row["starts"] == 6
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()
    failing = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failing == {"latency", "throughput"}
    assert "| model.xml | slower |" in (tmp_path / "gate" / "summary.md").read_text(encoding="utf-8")
    assert "openvino 2026.4.1" in (tmp_path / "gate" / "gate.html").read_text(encoding="utf-8")


def test_a_faster_version_passes(tmp_path: Path) -> None:
    make_environment(tmp_path / "old", latency_s=1.1e-3)
    make_environment(tmp_path / "new")
    assert gated(tmp_path) == 0
    assert found(tmp_path)["verdict"] == "faster"


def test_too_small_a_budget_cannot_tell_and_says_how_much_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new")
    assert gated(tmp_path, budget="20ms") == 0
    assert found(tmp_path)["verdict"] == "undecided"
    assert "0 of at least 3 starts; add" in capsys.readouterr().out
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()
    skipped = {case.get("name") for case in suite.iter("testcase") if case.find("skipped") is not None}
    assert skipped == {"latency", "throughput"}


def test_outputs_that_differ_end_with_6_and_name_output_and_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", scale=1.5, kernel="Convolution brgconv", precision="bf16", device="GPU.0")
    assert gated(tmp_path) == 6
    said = capsys.readouterr()
    assert "outputs differ by 50 % from the reference" in said.err
    assert "probabilities" in said.err
    assert "the first operation that departs is conv1" in said.err
    assert "kernel: Convolution jit -> Convolution brgconv, 1 operation, conv1" in said.out
    assert "precision: f32 -> bf16" in said.out
    assert "device: CPU -> GPU.0, 1 operation, conv1" in said.out
    assert "outputs differ by 50 %" in (tmp_path / "gate" / "summary.md").read_text(encoding="utf-8")


def test_a_runtime_that_crashes_on_one_model_breaks_that_model_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", crashes=["bad.xml"])
    models = [str(make_model(tmp_path, name)) for name in ("good", "bad")]
    sides = ["--before", "old", "--after", "new", "--input", "good.npz", "--budget", "20s", "--quiet"]
    assert run_command_line(["gate", *models, *sides]) == 5
    err = capsys.readouterr().err
    assert "bad.xml: the side before runs it, the side after does not" in err
    assert "killed by SIGSEGV" in err
    assert [row["verdict"] for row in found(tmp_path)["models"]] == ["same", "broken"]


@pytest.mark.parametrize(("starts", "code", "verdict"), [(3, 7, "slower"), (0, 0, "undecided")])
def test_a_side_before_that_fails_later_leaves_what_was_measured(
    tmp_path: Path, starts: int, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old", marks=str(tmp_path / "marks"), fails_from=3 + 4 * starts)  # 4 loads a start
    make_environment(tmp_path / "new", latency_s=1.1e-3)
    assert gated(tmp_path) == code
    (row,) = found(tmp_path)["models"]
    assert (row["verdict"], row["starts"], len(row["figures"]) > 0) == (verdict, starts, starts > 0)
    assert f"failed twice in start {starts + 1}: it was killed by SIGKILL" in capsys.readouterr().out


def test_a_side_after_that_fails_later_does_not_run_any_more_and_keeps_its_figures(tmp_path: Path) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", marks=str(tmp_path / "marks"), fails_from=8)  # in the fourth start
    assert gated(tmp_path) == 5
    (row,) = found(tmp_path)["models"]
    assert (row["verdict"], row["starts"]) == ("broken", 3)
    assert {"latency", "throughput", "load"} <= {f["figure"] for f in row["figures"]}
    assert [check["what"] for check in row["checks"]] == ["runs", "outputs", "latency", "throughput"]


def test_sides_that_fail_once_each_in_a_start_go_on(tmp_path: Path) -> None:
    make_environment(tmp_path / "old", marks=str(tmp_path / "old.marks"), fails=[3])
    make_environment(tmp_path / "new", marks=str(tmp_path / "new.marks"), fails=[2])
    assert gated(tmp_path) == 0
    assert found(tmp_path)["verdict"] == "same"


@pytest.mark.parametrize(
    ("figure", "told", "words"),
    [
        ("p99", {"samples": 5}, "no start has 100 latencies"),
        ("memory of running", {"peak_bytes": None}, "does not tell"),
    ],
)
def test_a_limit_of_a_figure_that_is_not_measured_cannot_be_told(
    tmp_path: Path, figure: str, told: dict[str, object], words: str
) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name, **told)
    lines = [f'limits = {{ "{figure}" = "5%" }}', "[[accept]]", 'model = "model.xml"', f'what = "{figure}"']
    lines += ["until = 2999-01-01", 'reason = "known"']
    (tmp_path / "gate.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert gated(tmp_path, "--config", "gate.toml") == 0
    (row,) = found(tmp_path)["models"]
    assert row["verdict"] == "undecided"
    assert not any("nothing to accept" in note for note in row["notes"])
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()
    (skipped,) = suite.iter("skipped")
    assert f"{figure}: cannot tell, not measured: " in skipped.get("message", "")
    assert words in skipped.get("message", "")


def test_an_exception_with_nothing_to_accept_is_told(tmp_path: Path) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name)
    assert gated(tmp_path, "--config", str(write_gate_file(tmp_path, TODAY))) == 0
    (row,) = found(tmp_path)["models"]
    assert row["notes"][0] == "The exception for latency (issue 36164) has nothing to accept; remove it."


def test_the_exit_code_is_that_of_what_is_not_accepted(tmp_path: Path) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", latency_s=1.1e-3, scale=1.5)
    path = write_gate_file(tmp_path, TODAY)
    path.write_text(path.read_text(encoding="utf-8").replace('"latency"', '"outputs"'), encoding="utf-8")
    assert gated(tmp_path, "--config", str(path)) == 7


def test_inputs_of_all_models_are_read_before_anything_and_no_earlier_report_survives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name, marks=str(tmp_path / "marks"))
    for name in ("a", "b"):
        make_model(tmp_path, name)
    (tmp_path / "b.npz").write_text("no arrays", encoding="utf-8")
    entries = [f'[[model]]\npath = "{name}.xml"\ninput = "{name}.npz"\n' for name in ("a", "b")]
    (tmp_path / "gate.toml").write_text("".join(entries), encoding="utf-8")
    (tmp_path / "gate").mkdir()
    names = ("gate.json", "junit.xml", "summary.md", "gate.html")
    for name in names:
        (tmp_path / "gate" / name).touch()
    assert run_command_line(["gate", "--config", "gate.toml", "--before", "old", "--after", "new", "--quiet"]) == 2
    assert "b.npz is not an npz file" in capsys.readouterr().err
    assert not (tmp_path / "marks").exists()
    assert not any((tmp_path / "gate" / name).exists() for name in names)


def test_a_gate_that_has_used_up_its_budget_adds_no_start_when_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MOST_STARTS", 4)
    monkeypatch.setattr(gate, "LOOK", 99)
    for name in ("old", "new"):
        make_environment(tmp_path / name)
    assert gated(tmp_path) == 0
    seconds = found(tmp_path)["models"][0]["seconds"]
    monkeypatch.setattr(gate, "MOST_STARTS", 40)
    assert gated(tmp_path, budget=f"{seconds + 0.001}s") == 0
    assert found(tmp_path)["models"][0]["starts"] == 4


def test_a_side_that_used_up_the_time_by_failing_is_tried_again(tmp_path: Path) -> None:
    journal = gate.GateJournal(tmp_path / "starts.jsonl", "context", seconds=9.9)

    class Hanging:
        def start(self, number: int) -> SideFailed:
            journal.seconds = 99.0
            return SideFailed("after", MeasurementFailed("timeout", "no answer within 300 s"))

    model = GatedModel("model.xml", tmp_path, tmp_path, {"latency": 0.02})
    gate.measure_starts(model, journal, Hanging(), 10.0, 1, lambda _: None)
    assert journal.stopped is not None
    assert journal.stopped.side == "after"


def test_all_looks_together_spend_no_more_than_there_is(tmp_path: Path) -> None:
    journal = gate.GateJournal(tmp_path / "starts.jsonl", "context")
    start = GateStart({}, {}, ({}, {}), 1.0)
    spent = [1 / gate.EARLY]
    for _ in range(20):
        journal.add_start(start)
        spent.append(1 / journal.end())
        assert spent[-1] == 1 / gate.GateJournal.of(journal.path, "context").end()  # as often as it is run again
    assert spent[:4] == [1 / 4, 1 / 2, 1 / 8, 1 / 16]
    assert sum(spent) <= 1


def test_starts_of_another_machine_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name)
    for _, fingerprint in enumerate(("a" * 16, "b" * 16)):
        monkeypatch.setattr(gate, "hardware_fingerprint", lambda _, known=fingerprint: known)
        assert gated(tmp_path) == 0
    contexts = {line["context"] for line in load_lines(tmp_path / "gate" / "starts.jsonl")}
    assert len(contexts) == 2


@pytest.mark.parametrize("side", ["before", "after"])
def test_settings_that_one_side_alone_has_and_refuses_end_with_2(
    tmp_path: Path, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name, unknown=["THREDS"])
    assert gated(tmp_path, f"--{side}", "THREDS=1") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [
        "error: openvino 2026.1.0 refuses THREDS=1: Unsupported property THREDS.",
        f"  fix: Correct what --{side} says, or leave it out.",
    ]


def test_settings_are_not_blamed_where_the_environment_does_not_begin_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name)

    def begin(environment: Environment, child: Child) -> None:
        if "new" in environment.python:
            raise ChildError(MeasurementFailed("crashed", "it was killed"))
        child.ask("begin", runtime=environment.runtime)

    monkeypatch.setattr(Environment, "begin", begin)
    assert gated(tmp_path, "--after", "THREADS=1") == 5
    assert "the side after does not; openvino 2026.1.0: it was killed" in capsys.readouterr().err


def test_settings_that_the_new_version_alone_refuses_end_with_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", unknown=["THREADS"])
    assert gated(tmp_path, "--before", "THREADS=1", "--after", "THREADS=1") == 5
    assert "the side after does not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusing", "code", "verdict"),
    [(("new",), 5, "broken"), (("old",), 0, "repaired"), (("old", "new"), 3, "unreadable")],
)
def test_a_model_that_not_both_versions_read(
    tmp_path: Path, refusing: tuple[str, ...], code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        make_environment(tmp_path / name, refuses=["model.xml"] if name in refusing else [])
    assert gated(tmp_path) == code
    assert found(tmp_path)["verdict"] == verdict
    assert "Unsupported operation Frobnicate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"fault": "missing"}, "has no openvino"),
        ({"fault": "ImportError: libopenvino.so: cannot open"}, "cannot be imported: ImportError: libopenvino.so"),
        ({"fault": "python"}, "is Python 3.12.0; measuring takes 3.9 or newer"),
        ({"says": "bash: usage"}, "is no Python interpreter"),
    ],
)
def test_an_environment_that_cannot_measure_is_one_line_of_cause_and_one_of_remedy(
    tmp_path: Path, told: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", **told)
    assert gated(tmp_path) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert words in lines[0]
    assert lines[1].startswith("  fix: ")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no openvino or onnxruntime"),
        ({"openvino": "raise ImportError('libopenvino.so: cannot open')"}, "has no numpy"),
        (
            {"numpy": "", "openvino": "raise ImportError('libopenvino.so: cannot open')"},
            "openvino of {} cannot be imported: ImportError: libopenvino.so",
        ),
        ({"numpy": "", "openvino": "import os; os.abort()"}, "did not import a runtime: it was killed by SIGABRT"),
    ],
)
def test_a_real_environment_that_cannot_measure_is_said_so(
    tmp_path: Path, files: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    venv.create(tmp_path / "old")
    (packages,) = (tmp_path / "old" / "lib").glob("python*/site-packages")
    for name, text in files.items():
        (packages / f"{name}.py").write_text(text, encoding="utf-8")
    make_environment(tmp_path / "new")
    assert gated(tmp_path) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert words.format(tmp_path / "old" / "bin" / "python") in lines[0]
    assert lines[1].startswith("  fix: ")
    assert len(lines) == 2


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 3\n", "no program", ""])
def test_a_file_that_is_no_interpreter_is_said_so(
    tmp_path: Path, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    python = make_environment(tmp_path / "new") / "bin" / "python"
    python.write_text(program, encoding="utf-8")
    assert gated(tmp_path) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert str(python) in lines[0]
    assert len(lines) == 2


def write_gate_file(tmp_path: Path, until: object, *more: str) -> Path:
    path = tmp_path / "gate.toml"
    accept = ["[[accept]]", 'model = "model.xml"', 'what = "latency"', f"until = {until}", 'reason = "issue 36164"']
    twice = [line.replace("latency", "throughput") for line in accept]
    path.write_text("\n".join([*accept, *more, *twice, *more]) + "\n", encoding="utf-8")
    return path


def test_an_exception_accepts_until_its_day_and_not_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", latency_s=1.1e-3)
    assert gated(tmp_path, "--config", str(write_gate_file(tmp_path, TODAY))) == 0
    assert "slower (accepted)" in capsys.readouterr().out
    yesterday = TODAY - timedelta(days=1)
    assert gated(tmp_path, "--config", str(write_gate_file(tmp_path, yesterday))) == 7
    lines = capsys.readouterr().err.strip().splitlines()
    assert f"its exception (issue 36164) expired on {yesterday}" in lines[0]
    assert len(lines) == 2


def test_an_exception_accepts_as_much_as_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", latency_s=1.1e-3)
    assert gated(tmp_path, "--config", str(write_gate_file(tmp_path, TODAY, 'up_to = "15%"'))) == 0
    assert gated(tmp_path, "--config", str(write_gate_file(tmp_path, TODAY, 'up_to = "5%"'))) == 7
    assert "5 % were accepted" in capsys.readouterr().err


def test_a_limit_allows_what_it_says(tmp_path: Path) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", latency_s=1.1e-3)
    (tmp_path / "gate.toml").write_text('limits = { latency = "20%", throughput = "20%" }\n', encoding="utf-8")
    assert gated(tmp_path, "--config", "gate.toml") == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('limits = { latncy = "5%" }', "there is no figure 'latncy'"),
        (
            '[[accept]]\nmodel = "other.xml"\nwhat = "latency"\nuntil = 2030-01-01\nreason = "x"',
            "no model of this gate",
        ),
        ('[[accept]]\nmodel = "model.xml"\nwhat = "latency"\nreason = "x"', "needs until"),
        ('befor = "old"', "did you mean 'before'?"),
    ],
)
def test_faults_of_the_file_are_named(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new")
    (tmp_path / "gate.toml").write_text(text + "\n", encoding="utf-8")
    assert gated(tmp_path, "--config", "gate.toml") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert words in lines[0]
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("side", "words"), [("gone/", "There is no gone"), (".", "neither an interpreter nor a finished run")]
)
def test_a_side_that_is_nothing_is_said_so(
    tmp_path: Path, side: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["gate", str(make_model(tmp_path)), "--after", side]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert gated(tmp_path, "--out", str(tmp_path / "file" / "gate")) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_a_file_that_is_no_model_runs_on_neither_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new")
    (tmp_path / "junk.onnx").write_text("junk", encoding="utf-8")
    assert run_command_line(["gate", "junk.onnx", "--before", "old", "--after", "new", "--quiet"]) == 3
    lines = capsys.readouterr().err.strip().splitlines()
    assert "no inputs can be drawn without --input" in lines[0]
    assert len(lines) == 2


def test_a_gate_without_sides_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["gate", str(make_model(tmp_path))]) == 2
    assert "neither side is given" in capsys.readouterr().err


def test_two_models_stand_against_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_environment(tmp_path / "env", refuses=["b.xml"])
    for name in ("a", "b"):
        make_model(tmp_path, name)
    sides = ["--before", "env", "--before", "a.xml", "--after", "env", "--after", "b.xml"]
    assert run_command_line(["gate", *sides, "--input", "a.npz", "--budget", "10s", "--quiet"]) == 5
    captured = capsys.readouterr()
    assert "env a.xml -> env b.xml: 1 broken, of 1 model." in captured.out  # one version: what was asked for tells
    assert "error: With env b.xml, a.xml: the side before runs it" in captured.err


PROGRAM = """
import sys
from functools import partial
from pipeline.gate import gate
from pipeline.gate.starts import MeasuredStarts
gate.MeasuredStarts = partial(MeasuredStarts, turns_s=0.0)
gate.LOOK = 3
from pipeline.cli.main import run_command_line
sys.exit(run_command_line(sys.argv[1:]))
"""


def many_models(tmp_path: Path, count: int) -> tuple[list[str], Path]:
    """Return the command of a gate of many models, and the file that tells what the side after loads."""
    marks = tmp_path / "marks"
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", marks=str(marks))
    models = [str(make_model(tmp_path, f"m{i}")) for i in range(count)]
    sides = ["--before", "old", "--after", "new", "--input", "m0.npz", "--budget", "200s", "--quiet"]
    return ["gate", *models, *sides], marks


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *command], stderr=subprocess.PIPE, start_new_session=True)


def wait_for_starts(journal: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        if journal.exists() and journal.read_text(encoding="utf-8").count('"start"') >= count:
            return
        time.sleep(0.02)
    raise AssertionError("it ended before it had so many starts")


@pytest.mark.parametrize("count", slow_but([5, 20], quick=1))
def test_a_gate_of_many_models_goes_on_after_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(gate, "LOOK", 3)
    command, marks = many_models(tmp_path, count)
    journal = tmp_path / "gate" / "starts.jsonl"
    process = started(command)
    wait_for_starts(journal, 8, process)
    process.kill()
    process.communicate()
    before = list(load_lines(journal))
    marks.unlink()
    assert run_command_line(command) == 0
    rows = found(tmp_path)["models"]
    assert [row["starts"] for row in rows] == [3] * count
    assert not {"m0.xml", "m1.xml"} & set(marks.read_text(encoding="utf-8").split())
    assert list(load_lines(journal))[: len(before)] == before


def test_an_interrupt_ends_it_with_130_and_leaves_no_process(tmp_path: Path) -> None:
    command, _ = many_models(tmp_path, 5)
    process = started(command)
    wait_for_starts(tmp_path / "gate" / "starts.jsonl", 3, process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"it resumes where it stopped" in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
