"""bench from models to tables, going on after an interruption, and what it says of bad input."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import benchmarks.suites.hsdag.run as suite
import pipeline.bench.running
import pipeline.stages.host
from benchmarks.suites.hsdag import finals, paper_tables
from benchmarks.suites.hsdag.cases import Latency
from pipeline.bench.cells import BenchCell, run_cell
from pipeline.cli.main import run_command_line
from pipeline.core.errors import DeviceError
from pipeline.core.measurement import Evaluation
from pipeline.core.placement import Placement
from pipeline.core.stages import Evaluator, Subject
from pipeline.system.workers import Worker
from runtime.measuring.contest.hetero import Hetero
from runtime.simulators.sequential.sequential import Sequential

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]


def arguments(model: Path, folder: Path, *more: str, evaluators: str = "sequential") -> list[str]:
    return [
        *("bench", "hsdag", "--quick", "--models", str(model), "--evaluators", evaluators),
        *("--evaluations", "30", "--measurements", "5", "--out", str(folder / "out"), "--store", str(folder / "store")),
        *more,
    ]


METHODS = ("--methods", "single,random,min_cut")


class Counting:
    """Stands for `run_cell`: counts, and interrupts at one cell."""

    def __init__(self, interrupted: int = -1) -> None:
        self.cells: list[str] = []
        self.interrupted = interrupted

    def __call__(self, cell: BenchCell, *rest: Any) -> dict[str, Any]:
        if len(self.cells) == self.interrupted:
            raise KeyboardInterrupt
        self.cells.append(f"{cell.name} {cell.seed}")
        return run_cell(cell, *rest)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counting]:
    def fresh(interrupted: int = -1) -> Counting:
        made = Counting(interrupted)
        monkeypatch.setattr(pipeline.bench.running, "run_cell", made)
        return made

    return fresh


ALL = ["single cpu 0", "single gpu 0", "random 0", "random 1", "min_cut 0"]


def test_a_benchmark_leaves_tables_figures_and_cells(model: Path, tmp_path: Path, ran: Ran) -> None:
    document = ran(*arguments(model, tmp_path, *METHODS))
    out = tmp_path / "out"
    assert document == json.loads((out / "results.json").read_text())
    assert document["schema"] == "placewright.bench/2"
    assert {(c["method"], c["seed"]) for c in document["cells"]} == {tuple(split(name)) for name in ALL}
    assert all(c["evaluations"] <= 30 for c in document["cells"])
    (case,) = document["cases"]
    assert case["optimum"]["proven"]
    assert min(c["value_s"] for c in document["cells"]) >= case["optimum"]["value_s"] * (1 - 1e-9)
    text = (out / "results.md").read_text()
    assert "| single cpu |" in text
    assert "In words: " in text
    assert (out / "curves-sequential-towers.svg").read_text().startswith("<?xml")
    assert "![" in text.partition("## Intervals")[2]
    assert (out / "intervals-sequential-towers.svg").read_text().startswith("<svg")
    assert run_command_line(["report", str(out)]) == 0
    assert "min_cut" in (out / "index.html").read_text()
    assert len(list((out / "cells").iterdir())) == len(ALL)


def split(name: str) -> tuple[str, int]:
    method, _, seed = name.rpartition(" ")
    return method, int(seed)


def test_a_second_run_runs_nothing_and_a_changed_budget_only_what_it_concerns(
    model: Path, tmp_path: Path, ran: Ran, counting: Callable[..., Counting]
) -> None:
    first = counting()
    document = ran(*arguments(model, tmp_path, *METHODS))
    assert first.cells == ALL
    second = counting()
    assert ran(*arguments(model, tmp_path, *METHODS))["cells"] == document["cells"]
    assert second.cells == []
    third = counting()
    ran(*arguments(model, tmp_path, *METHODS, "--evaluations", "20"))
    assert third.cells == ALL[2:]
    fourth = counting()
    ran(*arguments(model, tmp_path, *METHODS, "--evaluations", "20", "--seeds", "3"))
    assert fourth.cells == ["random 2"]


def test_an_interrupted_benchmark_goes_on_where_it_stopped(
    model: Path, tmp_path: Path, ran: Ran, counting: Callable[..., Counting], capsys: pytest.CaptureFixture[str]
) -> None:
    counting(interrupted=3)
    assert run_command_line(arguments(model, tmp_path, *METHODS)) == 130
    assert "it resumes where it stopped" in capsys.readouterr().err
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 3
    rest = counting()
    ran(*arguments(model, tmp_path, *METHODS))
    assert rest.cells == ALL[3:]


def test_the_tables_of_the_paper_are_one_command(
    model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (suite, paper_tables):
        monkeypatch.setattr(module, "PUBLISHED", {str(model): Latency(0.0128, 0.0120)})
    monkeypatch.setattr(paper_tables, "MODELS", (str(model),))
    monkeypatch.setattr(suite.table, "of_the_paper", lambda: ["single", "min_cut"])
    words = arguments(model, tmp_path, "--tables")
    for option in ("--models", "--evaluators"):
        del words[words.index(option) : words.index(option) + 2]
    document = ran(*words)
    rows = {row["row"]: row for row in document["tables"][0]["rows"]}
    assert rows["OpenVINO-GPU"]["value_s"] == rows["GPU-only"]["value_s"]
    assert rows["Placeto"]["why"] == "unavailable: the placer placeto is not there"
    assert rows["minimum cut"]["value_s"][str(model)] <= rows["GPU-only"]["value_s"][str(model)]
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "| OpenVINO-GPU | 13.8 (-7.8) |" in text
    if not document["finals"]:
        assert "Nothing was measured on devices" in text


def test_the_tables_of_the_paper_are_of_the_models_evaluators_and_methods_that_are_asked_for(
    model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {str(model): Latency(0.0128, 0.0120), "another.xml": Latency(0.01, 0.01)}
    for module in (suite, paper_tables):
        monkeypatch.setattr(module, "PUBLISHED", published)
    monkeypatch.setattr(paper_tables, "MODELS", tuple(published))
    words = [*arguments(model, tmp_path, evaluators="shared"), "--tables", "--methods", "min_cut"]
    document = ran(*words)
    assert document["settings"]["models"] == [str(model)]
    assert {table["evaluator"] for table in document["tables"]} == {"shared"}
    rows = {row["row"]: row for row in document["tables"][0]["rows"]}
    assert list(rows["minimum cut"]["value_s"]) == [str(model)]
    assert rows["minimum cut"]["value_s"][str(model)] <= rows["GPU-only"]["value_s"][str(model)]
    assert rows["HSDAG"]["why"] == "unavailable: not among --methods"
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "## Table 2, simulated, devices that share their memory" in text
    assert "another.xml" not in text
    assert "measured on this machine" not in text


LEARN = ("--methods", "random,hsdag_paper", "--seeds", "2")


@pytest.mark.slow
def test_cells_that_learn_run_side_by_side_and_come_out_as_they_do_one_by_one(
    model: Path, tmp_path: Path, ran: Ran, counting: Callable[..., Counting]
) -> None:
    alone = counting()
    one_by_one = ran(*arguments(model, tmp_path / "1", *LEARN, "--workers", "1"))
    assert sorted(alone.cells) == ["hsdag_paper 0", "hsdag_paper 1", "random 0", "random 1"]
    beside = counting()
    together = ran(*arguments(model, tmp_path / "2", *LEARN, "--workers", "2"))
    assert beside.cells == ["random 0", "random 1"]  # the rest is run by processes of their own
    assert [what_came_out(c) for c in together["cells"]] == [what_came_out(c) for c in one_by_one["cells"]]
    again = counting()
    assert ran(*arguments(model, tmp_path / "2", *LEARN, "--workers", "2"))["cells"] == together["cells"]
    assert again.cells == []


@pytest.mark.slow
def test_a_benchmark_compiles_nothing_where_an_interrupt_would_meet_it(
    model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(
        pipeline.bench.running, "compile_kernels", lambda *_, **__: threads.append(threading.current_thread())
    )
    monkeypatch.setattr(suite, "run_beside", lambda *_, **__: {})
    ran(*arguments(model, tmp_path, *LEARN, "--workers", "2"))
    assert threads
    assert threading.main_thread() not in threads


def what_came_out(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's record without the times that its making took."""
    curve = [(done, value_s) for done, _, value_s in cell["curve"]]
    return {key: value for key, value in cell.items() if key not in ("seconds", "cpu_s", "curve")} | {"curve": curve}


def test_a_process_that_dies_ends_the_benchmark_with_its_words(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = Worker.ask
    monkeypatch.setattr(Worker, "ask", lambda worker, name, _: ask(worker, name, {}))
    assert run_command_line(arguments(model, tmp_path, *LEARN, "--workers", "2")) == 1
    said = capsys.readouterr().err
    assert re.search(r"hsdag_paper, seed [01]: The process ended with status 1; it last said: ", said)


class Lazy:
    """Stands for devices that take what was made up, and counts what it is asked."""

    version = 1
    fingerprint = "lazy"

    def __init__(self) -> None:
        self.evaluations = 0
        self.inner: Evaluator | None = None

    def bind(self, subject: Subject) -> Lazy:
        self.inner = Sequential().bind(subject)
        return self

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        assert self.inner is not None
        self.evaluations += len(placements)
        return self.inner.evaluate(placements)


def test_on_devices_methods_share_measurements_and_end_in_a_final(
    model: Path, tmp_path: Path, ran: Ran, made_up_profile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, rounds = Lazy(), []

    def on_devices(_: Subject, rows: Sequence[dict[str, Any]], *__: Any, **___: Any) -> dict[str, Any]:
        rounds.append([row["placer"] for row in rows])
        names = ["A", "B", *(f"{row['placer']} 1" for row in rows)]
        found = [
            {"name": n, "placer": n, "baseline": False, "single": n in "AB", "failed": None, "samples_s": [1.0, 1.1]}
            | {"log_ratios": {"1": 0.0, "2": 0.1, "3": 0.0}}
            for n in names
        ]
        ratio = {"ratio": 1.0, "low": 0.9, "high": 1.1, "starts": 3}
        return {"rows": found, "contest": {"control": "A", "ratios": dict.fromkeys(names[1:], ratio)}}

    monkeypatch.setattr(Hetero, "bind", lambda _, subject: devices.bind(subject))
    monkeypatch.setattr(finals, "on_devices", on_devices)
    command = arguments(model, tmp_path, "--methods", "single,random,greedy", evaluators="hetero")
    document = ran(*command)
    assert {c["method"] for c in document["cells"]} == {"single A", "single B", "random", "greedy"}
    assert {c["seed"] for c in document["cells"]} == {0}
    asked = sum(c["evaluations"] for c in document["cells"] if c["seeded"] and not c["method"].startswith("single "))
    assert 2 < devices.evaluations < asked  # the single devices were measured once for all
    assert document["cases"][0]["optimum"] is None
    assert len(rounds) == len(document["finals"]) == 1
    before = devices.evaluations
    assert ran(*command)["cells"] == document["cells"]
    assert (devices.evaluations, len(rounds)) == (before, 1)


def test_a_machine_without_the_devices_is_a_note_in_the_results(
    model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = pipeline.stages.host.look_at_machine

    def without(devices: Sequence[str]) -> Any:
        if devices:
            raise DeviceError("There is no device CPU.", "This machine has none.")
        return look(devices)

    monkeypatch.setattr(suite, "look_at_machine", without)
    document = ran(*arguments(model, tmp_path, *METHODS, evaluators="hetero"))
    assert document["cells"] == []
    assert document["notes"] == [
        "Nothing was measured on devices: There is no device CPU. This machine has none.",
    ]


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (["bench", "hsdga"], "Unknown benchmark 'hsdga'", "hsdag"),
        (["bench", "hsdag", "--models", "resnet5"], "Unknown model 'resnet5'", "resnet50"),
        (["bench", "hsdag", "--models", "zoo:berts"], "Unknown model 'berts'", "bert-base"),
        (["bench", "hsdag", "--models", "a/x.xml,b/x.xml"], "the same name: a/x.xml, b/x.xml", "Rename"),
        (["bench", "hsdag", "--methods", "mincut"], "Unknown method 'mincut'", "min_cut"),
        (["bench", "hsdag", "--evaluators", "sequentiel"], "Unknown evaluator of this benchmark", "sequential"),
        (["bench", "hsdag", "--set", "place.evaluations=3"], "does not use place.evaluations", "measure.KEY"),
        (["bench", "hsdag", "--set", "measure.start=3"], "measure.start", "measure.starts"),
        (
            ["bench", "hsdag", "--tables", "--methods", "random"],
            "--tables has no row for random",
            "hsdag_paper without",
        ),
        (["bench", "hsdag", "--tables", "--models", "bilstm-128"], "which has no bilstm-128", "resnet50, bert-base"),
        (["bench", "hsdag", "--seeds", "0"], "'--seeds'", "--help"),
    ],
)
def test_a_wrong_name_is_said_before_any_work(
    words: list[str], cause: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run_command_line([*words, "--out", str(out), "--store", str(tmp_path / "store")]) == 2
    error, fix = capsys.readouterr().err.strip().splitlines()[-2:]
    assert error.startswith("error: ")
    assert cause in error
    assert fix.startswith("  fix: ")
    assert remedy in fix
    assert not out.exists()
    assert not (tmp_path / "store").exists()


def test_a_model_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(arguments(tmp_path / "none.xml", tmp_path, *METHODS)) == 3
    assert "none.xml" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_at_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("in the way")
    assert run_command_line(arguments(model, tmp_path, *METHODS)) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
