"""`placewright worth`: what is said, exit codes for scripts, and the options of graphs and of devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from pipeline.cli.main import run_command_line
from pipeline.cli.worth import NOT_WORTH
from pipeline.placing.worth import WorthRecord

GAINING = ("worth", "zoo:layered?n=50", "--topology", "equal:4")
LOSING = ("worth", "zoo:resnet50", "--topology", "cpu+gpu", "--evaluator", "sequential")


@pytest.mark.parametrize(
    ("words", "code", "worth"),
    [(GAINING, 0, True), ((*GAINING, "--least", "99%"), 0, True), (LOSING, NOT_WORTH, False)],
)
def test_the_exit_code_says_whether_a_split_can_pay(
    words: tuple[str, ...], code: int, worth: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line([*words, "--json", "--quiet"]) == code
    document = json.loads(capsys.readouterr().out)
    TypeAdapter(WorthRecord).validate_python(document, strict=True)
    assert document["worth"] is worth
    assert (document["most_gain"] > document["least"]) is worth


def test_people_read_the_verdict_first_then_what_it_rests_on_then_prices(capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line([*LOSING, "--quiet"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpu alone is optimal: no placement on this machine is faster (proven)."
    assert lines[1].startswith("The minimum cut is")
    assert lines[2].startswith("It rests most on ")
    assert lines[3] == "It rests on no link: faster ones do not lower it."
    assert any(line.split("  ")[0].strip() == "all links twice as fast" for line in lines)
    assert any(line.split("  ")[0].strip() == "memory half as large" for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("worth", "zoo:resnet50", "--devices", "CPU", "--level", "T0"),
            "--level says nothing of this machine's devices",
        ),
        ((*GAINING, "--budget", "3s"), "--budget says nothing of a graph on a machine that is described"),
        (("worth", "zoo:layered"), "defines no devices; pass --topology"),
        ((*GAINING, "--least", "1.5"), "least"),
    ],
)
def test_options_of_another_kind_of_question_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(list(words)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["hetero", "dataflow"])
def test_devices_of_this_machine_are_profiled_once(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = "A=CPU{INFERENCE_NUM_THREADS=1},B=CPU{INFERENCE_NUM_THREADS=1}"
    words = ["worth", "zoo:two-towers", "--devices", devices, "--store", str(tmp_path), "--runtime", runtime]
    codes = [run_command_line([*words, "--budget", "12s", "--json", "--quiet"])]
    first = json.loads(capsys.readouterr().out)
    codes.append(run_command_line([*words, "--budget", "12s", "--json", "--quiet"]))
    second = json.loads(capsys.readouterr().out)
    assert codes[0] == codes[1]
    assert first["singles"] == second["singles"]
    assert set(first["costs"].values()) == {"measured"}
    assert first["evaluator"] == ("sequential" if runtime == "hetero" else "listsched")
