"""What a benchmark says of its cells: summaries, sentences, tables, and the last word on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.suites.hsdag import cases, finals, methods, paper_tables
from benchmarks.suites.hsdag.methods import Optimum
from benchmarks.suites.hsdag.pages import case_sentences, curve_rows, final_sentence, results_page, summary_sentence
from benchmarks.suites.hsdag.summary import median_curve, over_models, reached, rows_of
from pipeline.bench.cases import BenchCase
from pipeline.bench.methods import coarsened
from pipeline.bench.summary import geometric_mean, markdown
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Subject
from runtime.measuring.contest.statistics import ratio_of
from tests.two_cpus import branchy, write
from tests.unit.benchmarks.test_bench import case_of


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> BenchCase:
    return case_of(write(branchy(packed=True), tmp_path_factory.mktemp("model"))[1])


# What they say together


def record(method: str, seed: int, curve: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
    """Return a record of a method whose best single device takes 10 s."""
    value_s = curve[-1][2]
    return {
        "model": "m",
        "evaluator": "sequential",
        "method": method,
        "seed": seed,
        "learned": method.startswith("hsdag"),
        "seeded": True,
        "failed": None,
        "value_s": value_s,
        "single_s": 10.0,
        "ratio": 10.0 / value_s,
        "evaluations": 100,
        "seconds": 2.0,
        "curve": [list(point) for point in curve],
        **more,
    }


RECORDS = (
    record("single gpu", 0, [(1, 0.0, 10.0)], evaluations=1),
    record("random", 0, [(1, 0.1, 10.0), (40, 0.5, 8.05), (90, 0.9, 8.0)]),
    record("random", 1, [(2, 0.1, 10.0), (60, 0.7, 9.0)]),
    record("hsdag", 0, [(1, 0.1, 9.0), (20, 0.3, 8.08)]),
    record("hsdag", 1, [(1, 0.1, 9.5), (30, 0.5, 8.0)]),
)


def test_a_curve_reaches_a_limit_where_it_first_lies_below_it() -> None:
    curve = [(1, 0.1, 10.0), (40, 0.5, 8.05), (90, 0.9, 8.0)]
    assert reached(curve, 8.08) == (40, 0.5)
    assert reached(curve, 8.0) == (90, 0.9)
    assert reached(curve, 7.9) is None


def test_evaluations_to_one_percent_are_counted_against_the_optimum() -> None:
    single, random, hsdag = rows_of(RECORDS, Optimum(8.0, proven=True, found_by="min_cut"))
    assert (single.near_evaluations, single.arrived) == (None, 0)
    assert single.gap == pytest.approx(1 - 8 / 10)
    assert (random.near_evaluations, random.near_s, random.arrived) == (40, 0.5, 1)  # 8.08 is the limit
    assert (hsdag.near_evaluations, hsdag.near_s, hsdag.arrived) == (25, 0.4, 2)
    assert random.gap == pytest.approx(1 - 8 / 8.5)
    assert random.value_s == 8.5


def test_without_a_proven_optimum_the_best_of_all_is_the_measure_and_there_is_no_gap() -> None:
    for best in (None, Optimum(7.0, proven=False, found_by="min_cut")):
        _, random, _ = rows_of(RECORDS, best)
        assert (random.near_evaluations, random.arrived, random.gap) == (40, 1, None)


def test_ratios_are_geometric_means_and_resampled_over_seeds() -> None:
    _, random, _ = rows_of(RECORDS, None)
    assert random.ratio is not None
    assert random.ratio.median == pytest.approx(np.sqrt(10 / 8 * 10 / 9))
    assert random.ratio.low == pytest.approx(10 / 9)
    assert random.ratio.high == pytest.approx(10 / 8)
    same = geometric_mean([np.array([2.0, 2.0, 2.0])])
    assert (same.median, same.low, same.high) == (2.0, 2.0, 2.0)


def test_models_count_alike_however_many_seeds_they_have() -> None:
    other = [record("random", s, [(1, 0.1, 5.0)], model="n") for s in range(6)]
    mean = over_models([*RECORDS, *other], "random", ["m", "n"])
    assert mean is not None
    assert mean.median == pytest.approx(np.sqrt(np.sqrt(10 / 8 * 10 / 9) * 2))
    assert over_models(RECORDS, "random", ["m", "n"]) is None


def test_the_median_curve_begins_where_all_seeds_have_a_value_and_ends_at_the_budget() -> None:
    curves = [r for r in RECORDS if r["method"] == "random"]
    assert median_curve(curves, 100) == [(2, 10.0), (40, 9.025), (60, 8.525), (90, 8.5), (100, 8.5)]
    assert median_curve([], 100) == []


# In words


def case_facts(**more: Any) -> dict[str, Any]:
    facts = {
        "model": "m",
        "evaluator": "sequential",
        "operations": 7,
        "edges": 8,
        "single_s": {"cpu": 20.0, "gpu": 10.0},
    }
    return {**facts, "optimum": {"value_s": 8.0, "proven": True, "found_by": "min_cut"}, **more}


def row(method: str, ratio: float, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of the summary, the optimum at a ratio of 1.25."""
    interval = {"median": ratio, "low": low or ratio, "high": high or ratio}
    return {
        "model": "m",
        "evaluator": "sequential",
        "method": method,
        "learned": method.startswith("hsdag"),
        "seeds": 2,
        "ratio": interval,
        "gap": 1 - ratio / 1.25,
        "value_s": 10 / ratio,
        "evaluations": 100.0,
        "seconds": 2.0,
        "near_evaluations": 40.0,
        "near_s": 0.5,
        "arrived": 1,
        "failed": (),
        **more,
    }


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [row("min_cut", 1.25), row("hsdag", 1.2, 1.1, 1.25)],
            "min_cut is best with 1.2500 times the best single device's speed, the proven optimum; hsdag, the best "
            "learned method, does not beat min_cut, the best simple one: its placements take 4.17% longer.",
        ),
        (
            [row("metis", 1.1), row("hsdag", 1.21, 1.2, 1.22)],
            "hsdag is best with 1.2100 [1.2000, 1.2200] times the best single device's speed; hsdag, the best learned "
            "method, beats metis, the best simple one by 10.00%.",
        ),
        (
            [row("random", 1.1, 1.0, 1.2), row("hsdag", 1.155, 1.1, 1.2)],
            "hsdag is best with 1.1550 [1.1000, 1.2000] times the best single device's speed; hsdag, the best learned "
            "method, is 5.00% ahead of random, the best simple one, which the spread over seeds does not confirm.",
        ),
        (
            [row("single gpu", 1.0, gap=0.0), row("hsdag", 1.0, gap=0.0)],
            "no placement is faster than gpu alone, which is proven; hsdag, the best learned method, equals single "
            "gpu, the best simple one.",
        ),
        ([row("random", 1.0)], "nothing beats gpu alone; no learned method stands beside."),
    ],
)
def test_the_sentence_says_which_method_is_best_and_whether_learning_pays(
    rows: list[dict[str, Any]], words: str
) -> None:
    assert summary_sentence(rows, case_facts()) == words


def test_a_final_has_the_last_word_on_its_case_alone() -> None:
    final: dict[str, Any] = {
        "model": "m",
        "best_single": "A",
        "plans": {},
        "ratios": {},
        "candidates": [],
        "learned_over_simple": None,
    }
    rows = [row("random", 1.0), row("random", 1.1, evaluator="hetero")]
    facts = [case_facts(), case_facts(evaluator="hetero", optimum=None)]
    assert case_sentences({"cases": facts, "summary": rows, "finals": [final]}) == [
        "m, sequential: nothing beats gpu alone; no learned method stands beside.",
        "m, hetero: no placement is faster than A alone beyond noise.",
    ]


def test_the_page_holds_a_table_per_evaluator_and_model() -> None:
    document: Mapping[str, Any] = {
        "suite": "hsdag",
        "settings": {
            "quick": True,
            "seeds": 2,
            "real_seeds": 1,
            "evaluations": 100,
            "measurements": 6,
        },
        "hardware": {"cpu": "a chip", "processors": 2, "system": "an OS"},
        "versions": {"placewright": "0"},
        "notes": ["Nothing was measured."],
        "cases": [case_facts()],
        "summary": [row("random", 1.1, 1.0, 1.2), row("hsdag", 1.0, failed=("no luck",), near_evaluations=None)],
        "all_models": [{"evaluator": "sequential", "method": m, "ratio": None} for m in ("random", "hsdag")],
        "finals": [],
    }
    text = results_page(document)
    assert "Note: Nothing was measured." in text
    assert "| method | m |\n|---|---:|\n| random | 1.1000 [1.0000, 1.2000] |\n| hsdag | 1.0000 |" in text
    assert "| random | 9091 | 1.1000 [1.0000, 1.2000] | 12.00 % | 100 | 40 | 2 | 0.5 | 1 of 2 |" in text
    assert "| hsdag | 1e+04 | 1.0000 | 20.00 % | 100 | - | 2 | 0.5 | 1 of 2 |" in text
    assert "hsdag failed: no luck" in text
    assert "Optimum: 8000 ms, proven." in text


def test_the_figure_has_medians_and_leaves_single_devices_to_a_line() -> None:
    rows = curve_rows(RECORDS, case_facts(), 100)
    assert {r["placer"] for r in rows} == {"random", "hsdag"}
    assert rows[0] == {"placer": "random", "done": 2, "value_s": 10.0, "single_s": 10.0, "bound_s": 8.0}


def test_a_table_is_one_line_per_row() -> None:
    assert markdown(["a", "b"], [["x", "1"], ["y", "2"]]) == ["| a | b |", "|---|---:|", "| x | 1 |", "| y | 2 |"]


# The last word


def measured(seconds: Mapping[str, float], *, noise: float = 0.0) -> dict[str, Any]:
    """Return what `on_devices` gives of candidates that take so many seconds, in five starts; A is the best device."""
    rng = np.random.default_rng(0)
    rows, ratios = [], {}
    for name, value_s in seconds.items():
        logs = (np.log(seconds["A"] / value_s) + noise * rng.standard_normal(5)).tolist()
        row = {"name": name, "placer": name, "baseline": False, "single": name in "AB", "failed": None}
        log_ratios = {} if name == "A" else {str(i + 1): x for i, x in enumerate(logs)}
        rows.append(row | {"samples_s": [value_s] * 5, "log_ratios": log_ratios})
        if name != "A":
            ratios[name] = asdict(ratio_of(logs, 0.95))
    return {"rows": rows, "contest": {"control": "A", "ratios": ratios}}


class Devices:
    """Stands for `on_devices`, and remembers what it was asked."""

    def __init__(self, seconds: Mapping[str, float], noise: float = 0.0) -> None:
        self.found = measured(seconds, noise=noise)
        self.asked: list[list[str]] = []

    def __call__(self, subject: Subject, rows: Sequence[Mapping[str, Any]], *_: Any, **__: Any) -> dict[str, Any]:
        self.asked.append([row["placer"] for row in rows])
        return self.found


@pytest.fixture
def on_two(case: BenchCase) -> BenchCase:
    """Return the case with its devices called A and B."""
    devices = tuple(replace(d, name=n) for d, n in zip(case.subject.topology.devices, "AB", strict=True))
    return replace(case, subject=replace(case.subject, topology=replace(case.subject.topology, devices=devices)))


def planned(case: BenchCase, method: str, seed: int, value_s: float, device: Sequence[int]) -> dict[str, Any]:
    """Return a record whose placement gives the groups of the folded graph these devices in turn."""
    folded = coarsened(case, ("fold",), seed=0)
    placement = Placement(np.resize(np.array(device, np.int32), folded.k), case.devices).lift(folded)
    names = placement.to_json(case.subject.graph.names)
    return record(method, seed, [(1, 0.1, value_s)], placement=names)


def test_the_final_keeps_priorities_and_measures_what_differs_in_them_alone_once(on_two: BenchCase) -> None:
    names = on_two.subject.graph.names
    order = {"priority": {name: float(i) for i, name in enumerate(names)}}
    records = [planned(on_two, "random", 0, 7.0, [0, 1]) | order, planned(on_two, "metis", 0, 8.0, [0, 1])]
    placements = finals.best_placements(on_two, records)
    assert placements["random"].to_document(names)["priority"] == order["priority"]
    assert placements["metis"].priority is None
    candidates, rows = finals._list_finalists(on_two, placements)
    assert candidates == {"random": "random 1", "metis": "random 1"}
    assert [row["priority"] for row in rows] == [order["priority"]]


def test_the_final_measures_the_best_placement_of_every_method_once(
    on_two: BenchCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        planned(on_two, "single A", 0, 9.0, [0]),
        planned(on_two, "random", 0, 8.0, [0, 0, 1]),
        planned(on_two, "random", 1, 7.0, [0, 1]),
        planned(on_two, "metis", 0, 7.5, [0, 1]),
        planned(on_two, "min_cut", 0, 6.0, [1]),
        planned(on_two, "hsdag", 0, 6.5, [0, 1, 1]),
    ]
    devices = Devices({"A": 4.0, "B": 5.0, "random 1": 4.0, "hsdag 1": 2.0})
    monkeypatch.setattr(finals, "on_devices", devices)
    settings = MeasureSettings()
    found = finals.measure_final(on_two, records, settings, tmp_path, lambda _: None)
    assert devices.asked == [["hsdag", "random"]]
    assert found["plans"] == {"min_cut": "B", "hsdag": "hsdag 1", "random": "random 1", "metis": "random 1"}
    assert found["best_single"] == "A"
    ratios = {"min_cut": 0.8, "hsdag": 2.0, "random": 1.0, "metis": 1.0}
    assert {m: r["ratio"] for m, r in found["ratios"].items()} == pytest.approx(ratios)
    versus = found["learned_over_simple"]
    assert (versus["learned"], versus["simple"], versus["starts"]) == ("hsdag", "random", 5)
    assert versus["ratio"] == pytest.approx(2.0)
    words = final_sentence(found)
    assert words.startswith("hsdag is 2.000 [2.000, 2.000] times as fast as A alone")
    assert "hsdag, the best learned method, beats random" in words
    assert finals.measure_final(on_two, records, settings, tmp_path, lambda _: None) == found
    assert len(devices.asked) == 1
    finals.measure_final(on_two, records[:-1], settings, tmp_path, lambda _: None)
    assert len(devices.asked) == 2


def test_the_final_says_so_if_nothing_is_faster_and_what_else_was(
    on_two: BenchCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices({"A": 4.0, "B": 5.0, "random 1": 4.0, "AUTO": 3.0}, noise=0.02)
    monkeypatch.setattr(finals, "on_devices", devices)
    found = finals.measure_final(
        on_two, [planned(on_two, "random", 0, 8.0, [0, 1])], MeasureSettings(), tmp_path, lambda _: None
    )
    assert (
        final_sentence(found)
        == "no placement is faster than A alone beyond noise, but of all that was measured AUTO is fastest."
    )


def test_both_halves_of_the_cpu_compute_in_f32() -> None:
    assert cases.HALVES.count("INFERENCE_PRECISION_HINT=f32") == cases.HALVES.count("INFERENCE_NUM_THREADS=1") == 2


# The tables of the paper


def paper_document(*missing: str) -> dict[str, Any]:
    """Return a benchmark's document in which every method finds 9 ms in 2.5 s, single devices what was published."""
    models = list(cases.PUBLISHED)
    names = [m.name for m in methods.PAPER_METHODS if m.placer not in missing]
    return {
        "settings": {"evaluations": 10, "seeds": 1},
        "notes": ["Nothing was measured."],
        "finals": [],
        "cases": [
            {
                "model": m,
                "evaluator": "sequential",
                "single_s": dict(zip(("cpu", "gpu"), cases.PUBLISHED[m], strict=True)),
            }
            for m in models
        ],
        "summary": [
            {"model": m, "evaluator": "sequential", "method": name, "value_s": 0.009, "seconds": 2.5, "failed": ()}
            for m in models
            for name in names
        ],
    }


def test_the_papers_latencies_and_percentages_agree_with_each_other() -> None:
    printed = {"CPU-only": (0, 0, 0), "GPU-only": (6.25, 51.2, 56.5), "OpenVINO-CPU": (0, -46.3, -2.98)}
    printed |= {"OpenVINO-GPU": (-7.81, 45.3, 55.5), "Placeto": (9.38, 41.8, -2.04), "HSDAG": (17.9, 52.1, 58.2)}
    rows = {row.name: row for row in paper_tables.TABLES["Table 2"]}
    cpu = rows["CPU-only"].published
    for name, percents in printed.items():
        found = [100 * (1 - s / c) for s, c in zip(rows[name].published, cpu, strict=True) if s is not None and c]
        assert found == pytest.approx(percents, abs=0.1)
    assert cpu == tuple(cases.PUBLISHED[model].cpu_s for model in paper_tables.MODELS)


def test_every_row_of_the_tables_is_there_and_auto_is_its_first_device() -> None:
    document = paper_document()
    document["tables"] = paper_tables.tables_of(document)
    two, three, five = document["tables"]
    rows = {row["row"]: row for row in two["rows"]}
    assert list(rows)[:7] == ["CPU-only", "GPU-only", "OpenVINO-CPU", "OpenVINO-GPU", "Placeto", "RNN-based", "HSDAG"]
    assert len(three["rows"]) == 4
    for auto, alone in (("OpenVINO-CPU", "CPU-only"), ("OpenVINO-GPU", "GPU-only")):
        assert rows[auto]["value_s"] == rows[alone]["value_s"]
    assert not any(row["why"] for table in (two, three, five) for row in table["rows"])
    text = paper_tables.tables_page(document)
    assert "| HSDAG | 10.5 (18.0) | 9 (29.7) | 7.66 (52.1) | 9 (43.8) | 2.67 (58.2) | 9 (-41.1) |" in text
    assert "| RNN-based | 12.8 (0.0) |" in text
    assert "out of memory" in text
    assert "## Table 5, simulated" in text
    assert "| HSDAG | 2454 | 2.5 | 1047 | 2.5 | 2765 | 2.5 |" in text  # seconds of searching, not of a placement


def test_a_row_whose_placer_is_missing_says_so() -> None:
    document = paper_document("rnn")
    document["tables"] = paper_tables.tables_of(document)
    said = list(paper_tables.missing_rows(document["tables"]))
    assert said == [f"Table {t}, RNN-based: unavailable: the placer rnn is not there." for t in (2, 5)]
    assert "- RNN-based: unavailable: the placer rnn is not there" in paper_tables.tables_page(document)


def test_rows_measured_on_devices_are_those_of_the_contest() -> None:
    document = paper_document()
    latency = {"CPU": 0.02, "GPU": 0.01, "OpenVINO-GPU": 0.011, "hsdag_paper 1": 0.008}
    document["finals"] = [
        {
            "model": "resnet50",
            "plans": {"hsdag_paper": "hsdag_paper 1", "hsdag": "GPU"},
            "candidates": [{"name": n, "latency_s": {"median": s}} for n, s in latency.items()],
        }
    ]
    *_, measured, ablations = paper_tables.tables_of(document)  # no table 5: contests search nothing
    assert (measured["table"], ablations["table"]) == ("Table 2", "Table 3")
    rows = {row["row"]: row["value_s"]["resnet50"] for row in measured["rows"]}
    assert (rows["CPU-only"], rows["OpenVINO-GPU"], rows["HSDAG"]) == (0.02, 0.011, 0.008)
    assert rows["`hsdag` from scratch"] == 0.01
    assert rows["OpenVINO-CPU"] is None
