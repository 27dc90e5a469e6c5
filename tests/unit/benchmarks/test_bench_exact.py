"""The benchmark of exact placement: which cells there are, that it goes on, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import exact
from benchmarks.suites.exact import ExactCell, ExactRow
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UnknownNameError, UsageError


def graph(cpu_ms: float = 8.0) -> dict[str, Any]:
    nodes = [{"id": i, "size": 10.0, "cpuLatency": cpu_ms, "fpgaLatency": 2.0} for i in range(4)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(3)]
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def graphs(folder: Path) -> Path:
    """Return a folder of one graph for latency, one for pipelines, and a file that is none."""
    for part in ("throughput-inputs", "latency-inputs"):
        (folder / part).mkdir(parents=True)
        (folder / part / "chain.json").write_text(json.dumps(graph()))
    (folder / "expert.json").write_text(json.dumps({"fpgas": []}))  # no graph
    return folder


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return graphs(tmp_path / "inputs")


def test_folders_say_what_graphs_are_placed_for(inputs: Path) -> None:
    asked = exact.list_cells(inputs, [], 1.0)
    assert {(cell.name, cell.evaluator) for cell in asked} == {
        ("latency-inputs/chain.json", "latency"),
        ("throughput-inputs/chain.json", "pipelined"),
    }
    assert len({cell.file(inputs) for cell in asked}) == len(asked)
    assert {cell.method.placer for cell in exact.list_cells(inputs, ["dp"], 1.0)} == {"dp"}


def test_without_graphs_or_by_a_wrong_name_nothing_is_run(tmp_path: Path, inputs: Path) -> None:
    with pytest.raises(UsageError, match="holds no graph"):
        exact.list_cells(tmp_path / "empty", [], 1.0)
    with pytest.raises(UnknownNameError, match="dpp"):
        exact.list_cells(inputs, ["dpp"], 1.0)


def test_cells_are_run_once_and_again_where_they_failed_or_changed(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = exact.list_cells(inputs, ["dp", "latency_dp"], 1.0), list[ExactCell]()

    def answered(cell: ExactCell) -> ExactRow:
        ran.append(cell)
        failed = "refused" if cell.evaluator == "latency" else ""
        return ExactRow(cell.name, cell.evaluator, cell.method.name, value_s=0.5, failed=failed)

    monkeypatch.setattr(exact, "search_cell", answered)
    out = tmp_path / "out"
    first = list(exact.run_cells(asked, out, lambda _: None))
    assert ran == asked
    assert list(exact.run_cells(asked, out, lambda _: None)) == first
    assert ran[2:] == [cell for cell in asked if cell.evaluator == "latency"]
    (inputs / "throughput-inputs" / "chain.json").write_text(json.dumps(graph(9.0)))
    list(exact.run_cells(asked, out, lambda _: None))
    assert ran[3:] == asked


def test_the_command_writes_one_table(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["bench", "exact", "--inputs", str(inputs), "--out", str(out), "--seconds", "20"]
    assert run_command_line([*command, "--methods", "dp,latency_dp", "--quiet", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert json.loads((out / "results.json").read_text())["rows"] == rows
    found = {row["evaluator"]: (row["value_s"], row["proven"], row["memory_bytes"] > 0) for row in rows}
    assert found == {
        "latency": (pytest.approx(8e-3, rel=1e-5), True, True),
        "pipelined": (pytest.approx(4.5e-3, rel=1e-5), True, True),
    }
    assert (out / "results.md").read_text().count("proven") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["exact"], "needs graphs"),
        (["exact", "--inputs", ".", "--models", "resnet50"], "has no --models"),
        (["hsdag", "--seconds", "3"], "has no --seconds"),
        (["exactly"], "exact"),
    ],
)
def test_wrong_options_end_in_one_line(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["bench", *options, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
