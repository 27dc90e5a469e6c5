"""Intervals of batches and benchmarks: the record, the pictures, and the page of the folder in which they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest

from benchmarks.suites import exact
from benchmarks.suites.exact import ExactRow
from benchmarks.suites.intervals import comparison_over_graphs, comparisons_of_cases
from pipeline.cli.main import run_command_line
from pipeline.core.errors import StoreError
from pipeline.fleet.batch import compare_jobs as of_jobs
from pipeline.report.comparison import (
    DRAWN,
    RECORD,
    DrawnComparison,
    interval_row,
    read_comparisons,
    write_comparisons,
)
from tests.reports import HOSTILE, Page


def comparison(*names: str, file: str = "intervals-a.svg", title: str = "net: jobs") -> DrawnComparison:
    """Return a comparison of rows that fall from 2 by a quarter of what is left, every other without an interval."""
    ends = [(2 * 0.75**i, 2 * 0.75**i * (0.9 if i % 2 == 0 else 1.0), 2 * 0.75**i) for i in range(len(names))]
    rows = tuple(interval_row(name, end) for name, end in zip(names, ends, strict=True))
    return DrawnComparison(file, title, "what is divided", "best single device", rows)


def page_of(folder: Path) -> Page:
    assert run_command_line(["report", str(folder)]) == 0
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def test_what_is_written_is_read_again_and_every_picture_is_a_whole_file(tmp_path: Path) -> None:
    written = [comparison("a", "b"), comparison("c", file="intervals-c.svg")]
    write_comparisons(tmp_path, written)
    assert read_comparisons(tmp_path / RECORD) == written
    for each in written:
        drawn = minidom.parse(str(tmp_path / each.file)).documentElement
        assert drawn is not None
        texts = [t.firstChild.data for t in drawn.getElementsByTagName("text") if t.firstChild is not None]
        assert {row.name for row in each.rows} <= set(texts)
        assert drawn.getElementsByTagName("style")


def test_only_a_ratio_with_a_width_is_drawn_as_an_interval(tmp_path: Path) -> None:
    write_comparisons(tmp_path, [comparison("wide", "point")])
    circles = minidom.parse(str(tmp_path / "intervals-a.svg")).getElementsByTagName("circle")
    assert ["open" in c.getAttribute("class") for c in circles] == [False, True]


def test_the_page_of_a_folder_draws_what_lies_in_it_and_below(tmp_path: Path) -> None:
    write_comparisons(tmp_path, [comparison("first job", "second job")])
    (tmp_path / "results").mkdir()
    write_comparisons(tmp_path / "results", [comparison("anneal", title="resnet50, sequential")])
    found = page_of(tmp_path)
    assert sum(tag == "svg" and a.get("role") == "img" for tag, a in found.tags) == 2
    assert "results: resnet50, sequential" in found.text
    cells = [a["data-value"] for _, a in found.tags if "data-value" in a]
    assert [float(c) for c in cells if c] == [2.0, 1.8, 2.0, 1.5, 2.0, 1.8, 2.0]


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    write_comparisons(tmp_path, [comparison(*HOSTILE, title=HOSTILE[0])])
    minidom.parse(str(tmp_path / "intervals-a.svg"))
    found = page_of(tmp_path)
    assert HOSTILE[0] in found.text
    assert not [tag for tag, _ in found.tags if tag == "img"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"comparisons": [{}]},
        {"comparisons": [{"file": "", "title": "", "about": "", "yardstick": "", "rows": [{"name": "a"}]}]},
    ],
)
def test_a_damaged_record_is_said_beside_the_others(change: dict[str, Any], tmp_path: Path) -> None:
    for name in ("damaged", "whole"):
        (tmp_path / name).mkdir()
        write_comparisons(tmp_path / name, [comparison("a")])
    path = tmp_path / "damaged" / RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found = page_of(tmp_path)
    assert "Batches and comparisons that cannot be read" in found.text
    assert "whole: net: jobs" in found.text


@pytest.mark.parametrize("middle", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_is_none_is_not_drawn(middle: float, tmp_path: Path) -> None:
    write_comparisons(tmp_path, [comparison("a")])
    document = json.loads((tmp_path / RECORD).read_text())
    document["comparisons"][0]["rows"][0]["middle"] = middle
    (tmp_path / RECORD).write_text(json.dumps(document))
    with pytest.raises(StoreError, match="damaged"):
        read_comparisons(tmp_path / RECORD)


def test_many_rows_are_drawn_in_part_and_listed_whole() -> None:
    section = comparison(*[f"job{i}" for i in range(DRAWN + 5)]).section()
    assert len(section.rows) == DRAWN + 5
    assert str(section.chart).count("<circle") == DRAWN
    assert f"{DRAWN} of {DRAWN + 5} rows" in section.words


def test_jobs_are_compared_model_by_model_and_failed_ones_left_out() -> None:
    def row(job: str, model: str, speedup: float, low: float, best: str = "split") -> dict[str, Any]:
        ends = {"speedup": speedup, "speedup_low": low, "speedup_high": 2 * speedup - low}
        return {"job": job, "model": model, "best": best, "median_s": 0.01 if best else "", **ends}

    rows = [row("a0", "x/net.xml", 1.2, 1.1), row("a1", "x/net.xml", 1.5, 1.5), row("b", "y/net.xml", 1.0, 1.0)]
    found = of_jobs([*rows, row("gone", "z.xml", 1.0, 1.0, best="")])
    assert [(c.file, [r.name for r in c.rows]) for c in found] == [
        ("intervals-net1.svg", ["a1", "a0"]),
        ("intervals-net2.svg", ["b"]),
    ]
    assert [(r.interval and r.interval[0], r.kind) for r in found[0].rows] == [(None, "best"), (1.1, "other")]
    (equal,) = of_jobs([row("a0", "net.xml", 1.5, 1.5), row("a1", "net.xml", 1.5, 1.2)])
    assert [r.kind for r in equal.rows] == ["other", "other"]  # none is better than all others


def ratio(median: float, low: float, high: float) -> dict[str, float]:
    return {"median": median, "low": low, "high": high}


def test_a_benchmark_is_drawn_case_by_case_and_measured_ones_by_their_final() -> None:
    def case(model: str, evaluator: str) -> dict[str, str]:
        return {"model": model, "evaluator": evaluator}

    def row(model: str, evaluator: str, method: str, value: dict[str, float] | None) -> dict[str, Any]:
        return {**case(model, evaluator), "method": method, "ratio": value}

    document = {
        "cases": [case("m/one.xml", "sequential"), case("two", "sequential"), case("two", "hetero")],
        "summary": [
            row("m/one.xml", "sequential", "single gpu", ratio(1, 1, 1)),
            row("m/one.xml", "sequential", "random", ratio(1.5, 1.25, 2)),
            row("two", "sequential", "random", None),
            row("two", "hetero", "random", ratio(9, 8, 10)),
        ],
        "all_models": [{"evaluator": "sequential", "method": "random", "ratio": ratio(1.2, 1.1, 1.3)}],
        "finals": [{"model": "two", "ratios": {"random": {"ratio": 1.1, "low": 0.9, "high": 1.2}}}],
    }
    found = {
        c.file: [(r.name, r.middle, r.interval and r.interval[0], r.kind) for r in c.rows]
        for c in comparisons_of_cases(document)
    }
    assert found == {
        "intervals-sequential-all.svg": [("random", 1.2, 1.1, "best")],
        "intervals-sequential-one.svg": [("random", 1.5, 1.25, "best"), ("single gpu", 1.0, None, "baseline")],
        "intervals-hetero-two.svg": [("random", 1.1, 0.9, "best")],
    }


def test_methods_over_graphs_are_compared_with_the_best_of_each_graph() -> None:
    values = {"dp": {"g": 1.0, "h": 4.0}, "slow": {"g": 2.0, "h": 8.0}, "half": {"g": 1.0}, "none": {}}
    found = comparison_over_graphs(values, evaluator="latency")
    assert found is not None
    assert {r.name: r.middle for r in found.rows} == {"dp": 1.0, "half, on 1 of 2": 1.0, "slow": 0.5}
    assert comparison_over_graphs({"none": {}}, evaluator="latency") is None


def test_the_benchmark_of_exact_methods_leaves_a_picture_per_objective(tmp_path: Path) -> None:
    rows = [
        ExactRow(graph, evaluator, method, value_s=value)
        for evaluator in ("pipelined", "latency")
        for graph in ("g", "h")
        for method, value in (("dp", 1.0), ("slow", 2.0 if graph == "g" else 4.0))
    ]
    exact.write_results([*rows, ExactRow("g", "latency", "broken", failed="refused")], tmp_path)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {"intervals-pipelined-all.svg", "intervals-latency-all.svg"}
    assert all(f"]({name})" in (tmp_path / "results.md").read_text() for name in drawn)
    found = page_of(tmp_path)
    assert "slow" in found.text
    assert "broken" not in found.text
