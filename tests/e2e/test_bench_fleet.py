"""Benchmarks whose cells are spread over workers: the tables are those of one process, and what is on file stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import exact
from benchmarks.suites.hsdag.run import QUICK as QUICK_HSDAG
from benchmarks.suites.hsdag.run import HsdagQuestion, compare
from pipeline.bench.league.protocol import QUICK
from pipeline.bench.league.run import LeagueFiles, LeagueQuestion, league
from pipeline.bench.running import answer_suite
from pipeline.cli.main import run_command_line
from pipeline.core.errors import PlacewrightError
from pipeline.stages.host import look_at_machine
from pipeline.store.store import Store
from tests.e2e.test_bench_cli import LEARN
from tests.e2e.test_bench_cli import arguments as hsdag
from tests.e2e.test_league_cli import arguments
from tests.engines import ProcessEngine
from tests.unit.benchmarks.test_bench_exact import graph, graphs
from tests.unit.pipeline.fleet.test_searches import GRAPH

Ran = Callable[..., Any]
TIMES = ("seconds", "cpu_s", "near_s")
EFFORT = replace(QUICK, parts=("search", "levels"), evaluations=30, seconds=0.05)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return graphs(tmp_path / "inputs")


def without_times(value: Any) -> Any:
    """Return a document without what the clock said: seconds of cells, and of the points of their curves."""
    if isinstance(value, Mapping):
        kept = {name: without_times(v) for name, v in value.items() if name not in TIMES}
        return kept | ({"curve": [(n, s) for n, _, s in kept["curve"]]} if "curve" in kept and "key" in kept else {})
    return [without_times(v) for v in value] if isinstance(value, list | tuple) else value


def of_evaluations(document: Mapping[str, Any]) -> Any:
    """Return the tables and cells of a league that count evaluations, without times."""
    tables = [t for t in document["tables"] if t["budget"]["evaluations"]]
    cells = [c for c in document["cells"] if c["budget"].endswith("evaluations")]
    assert tables
    assert cells
    return without_times({"tables": tables, "cells": cells, "instances": document["instances"]})


def small_league(folder: Path, **more: Any) -> dict[str, Any]:
    question = LeagueQuestion(("heft", "random"), ("chainmm",))
    return league(question, EFFORT, LeagueFiles(folder), **more)


@pytest.mark.slow
def test_the_league_of_a_fleet_is_that_of_one_process(tmp_path: Path) -> None:
    engine = ProcessEngine(answer_suite)
    spread, alone = small_league(tmp_path / "fleet", fleet=engine), small_league(tmp_path / "alone")
    assert of_evaluations(spread) == of_evaluations(alone)
    assert [c["key"] for c in spread["cells"]] == [c["key"] for c in alone["cells"]]
    files = [{p.relative_to(tmp_path / n) for p in (tmp_path / n).rglob("*.json")} for n in ("fleet", "alone")]
    assert files[0] == files[1]
    timed = [c for _, c in engine.asked if c.document["seconds"]]
    assert timed
    for command in timed:  # each has a machine of one kind to itself
        assert command.alone
        assert command.fingerprint == spread["fingerprint"]
    assert not [c for _, c in engine.asked if c.alone and c not in timed]
    again = ProcessEngine(answer_suite)
    assert small_league(tmp_path / "fleet", fleet=again)["cells"] == spread["cells"]
    assert again.asked == []
    (tmp_path / "fleet" / "cells").rename(tmp_path / "elsewhere")
    for file in list((tmp_path / "elsewhere").rglob("*.json"))[1:]:
        target = tmp_path / "fleet" / "cells" / file.relative_to(tmp_path / "elsewhere")
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    small_league(tmp_path / "fleet", fleet=again)
    assert len(again.asked) == 1


def test_a_cell_that_fails_on_a_worker_ends_the_league_in_words(tmp_path: Path) -> None:
    def broken(_: Any) -> Any:
        raise PlacewrightError("The worker is broken.", "Mend it.")

    with pytest.raises(PlacewrightError, match=r"chainmm.*The worker is broken") as raised:
        small_league(tmp_path, fleet=ProcessEngine(broken))
    assert raised.value.remedy == "Mend it."


def test_a_graph_of_a_user_travels_to_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GRAPH), encoding="utf-8")
    engine = ProcessEngine(answer_suite)
    effort = replace(EFFORT, parts=("search",))
    league(LeagueQuestion(("heft",), (str(path),)), effort, LeagueFiles(tmp_path / "out"), fleet=engine)
    assert {c.files for _, c in engine.asked} == {(str(path),)}
    assert {c.document["case"]["graph"]["text"] for _, c in engine.asked} == {str(path)}


def test_searches_of_the_simulators_benchmark_run_on_a_fleet(model: Path, tmp_path: Path) -> None:
    engine = ProcessEngine(answer_suite)
    question = HsdagQuestion((str(model),), ("sequential",), ("single", "random", "min_cut"))
    effort = replace(QUICK_HSDAG, evaluations=30)
    store = Store(tmp_path / "store")
    spread = compare(question, effort, tmp_path / "fleet", store, fleet=engine)
    alone = compare(question, effort, tmp_path / "alone", store)
    assert without_times(spread["cells"]) == without_times(alone["cells"])
    assert without_times(spread["summary"]) == without_times(alone["summary"])
    names = [(c.document["method"]["name"], c.document["seed"], c.alone) for _, c in engine.asked]
    assert sorted(names) == [("min_cut", 0, True), ("random", 0, True), ("random", 1, True)]
    assert {c.files for _, c in engine.asked} == {(str(model),)}


def exact_rows(document: Mapping[str, Any]) -> Any:
    """Return the rows of a table of exact placement, without what the clock and the process's size say."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "memory_bytes")} for row in document["rows"]]


def test_exact_methods_come_out_on_a_fleet_as_in_one_process(inputs: Path, tmp_path: Path) -> None:
    asked = exact.list_cells(inputs, ["dp", "latency_dp"], 60.0)
    engine = ProcessEngine(answer_suite)
    tables = [
        exact.write_results(list(exact.run_cells(asked, tmp_path / n, print, e)), tmp_path / n)
        for n, e in (("1", engine), ("2", None))
    ]
    assert exact_rows(tables[0]) == exact_rows(tables[1])
    assert {row["proven"] for row in tables[0]["rows"]} == {True}
    records = [
        [(p.name, json.loads(p.read_text())["key"]) for p in sorted((tmp_path / n / "cells").iterdir())] for n in "12"
    ]
    assert records[0] == records[1]
    assert {c.files for _, c in engine.asked} == {(str(cell.path),) for cell in asked}
    fingerprint = look_at_machine(()).fingerprint
    assert {(c.alone, c.fingerprint) for _, c in engine.asked} == {(True, fingerprint)}
    again = ProcessEngine(answer_suite)
    assert exact.write_results(list(exact.run_cells(asked, tmp_path / "1", print, again)), tmp_path / "1") == tables[0]
    assert again.asked == []


def test_a_method_that_fails_on_a_worker_is_a_row_and_is_asked_once(inputs: Path, tmp_path: Path) -> None:
    asked = exact.list_cells(inputs, ["dp"], 60.0)
    (inputs / "throughput-inputs" / "chain.json").write_text(
        json.dumps({**graph(), "maxSizePerFPGA": 1.0, "maxCPUs": 0})
    )
    engine = ProcessEngine(answer_suite)
    (row,) = exact.run_cells(asked, tmp_path / "out", print, engine)
    assert row == exact.search_cell(asked[0])
    assert row.failed
    assert len(engine.asked) == 1


@pytest.mark.slow
def test_exact_methods_on_workers_of_this_machine_are_those_of_one_process(
    inputs: Path, tmp_path: Path, ran: Ran
) -> None:
    words = ("bench", "exact", "--inputs", str(inputs), "--methods", "dp,latency_dp", "--seconds", "60")
    store = ("--store", str(tmp_path / "store"))
    alone = ran(*words, "--out", str(tmp_path / "1"))
    spread = ran(*words, "--out", str(tmp_path / "2"), "--on", "local:2", *store)
    assert exact_rows(spread) == exact_rows(alone)


@pytest.mark.slow
def test_a_league_on_workers_of_this_machine_is_that_of_one_process(tmp_path: Path, ran: Ran) -> None:
    store = ("--store", str(tmp_path / "store"))
    alone = ran(*arguments(tmp_path / "1", "--workers", "1"))
    spread = ran(*arguments(tmp_path / "2", "--on", "local:2", *store))
    assert of_evaluations(spread) == of_evaluations(alone)
    assert ran(*arguments(tmp_path / "2", "--on", "local:2", *store))["cells"] == spread["cells"]


@pytest.mark.slow
def test_cells_that_learn_come_out_on_workers_as_they_do_one_by_one(model: Path, tmp_path: Path, ran: Ran) -> None:
    one_by_one = ran(*hsdag(model, tmp_path / "1", *LEARN, "--workers", "1"))
    spread = ran(*hsdag(model, tmp_path / "2", *LEARN, "--on", "local:2"))
    assert without_times(spread["cells"]) == without_times(one_by_one["cells"])


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["league", "--on", "nowhere"], "--on nowhere names no engine"),
        (["league", "--on", "local:2", "--workers", "3"], "--workers and --on exclude each other"),
        (["hsdag", "--on", "local:2", "--workers", "3"], "--workers and --on exclude each other"),
        (["exact", "--inputs", "{inputs}", "--on", "nowhere"], "--on nowhere names no engine"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(
    words: list[str], cause: str, tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(inputs=inputs) for word in words]
    assert run_command_line(["bench", *words, "--quick", "--out", str(tmp_path / "out")]) == 2
    assert cause in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
