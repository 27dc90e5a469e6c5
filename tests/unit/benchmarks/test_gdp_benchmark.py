"""The benchmark of GDP: cells that are known are not searched again, and what is compared with what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import benchmarks.gdp as benchmark
from benchmarks.gdp import Cells, figures

TINY = {"rnnlm2?steps=2&fidelity=core": 2, "txl2?segments=1&fidelity=core": 2}


def found(journal: Path, workloads: tuple[str, ...] = tuple(TINY), **changes: Any) -> dict[str, float | None]:
    cells = Cells(journal, changes.get("evaluations", 4), clusters=6)
    told = figures(cells, workloads, ("metis", "expert", "gdp"), together=len(workloads) > 1)
    return {figure.figure: figure.value for figure in told}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "WORKLOADS", TINY)
    monkeypatch.setattr(benchmark, "TABLE", TINY)
    monkeypatch.setattr(benchmark, "DEEPEST", tuple(TINY)[:1])


@pytest.mark.usefixtures("tiny")
def test_every_cell_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = tmp_path / "gdp.jsonl"
    first = found(journal)
    for workload in TINY:
        for mode in ("metis", "expert", "gdp", "batch", "zero_shot", "finetune"):
            assert first[f"gdp.{workload}.{mode}"] is not None
    monkeypatch.setattr(benchmark, "learn_jointly", lambda *_, **__: pytest.fail("learned again"))
    monkeypatch.setattr(benchmark.PlacedWorkload, "of", lambda *_: pytest.fail("searched again"))
    assert found(journal) == first


@pytest.mark.usefixtures("tiny")
def test_a_lost_cell_is_searched_with_the_policy_on_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = tmp_path / "gdp.jsonl"
    first = found(journal)
    lines = journal.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "zero_shot" not in line]
    assert len(kept) == len(lines) - len(TINY)
    journal.write_text("".join(kept))
    monkeypatch.setattr(benchmark, "learn_jointly", lambda *_, **__: pytest.fail("learned again"))
    assert found(journal) == first


@pytest.mark.usefixtures("tiny")
def test_other_budgets_and_clusters_are_other_cells(tmp_path: Path):
    journal, workload = tmp_path / "gdp.jsonl", next(iter(TINY))
    found(journal, (workload,))
    found(journal, (workload,), evaluations=5)
    Cells(journal, 4, clusters=7).alone(workload, "gdp")
    assert len(journal.read_text().splitlines()) == 2 * 3 + 1


@pytest.mark.usefixtures("tiny")
def test_times_are_compared_on_the_table_and_with_the_expert_on_the_deepest(tmp_path: Path):
    told = found(tmp_path / "gdp.jsonl")
    deepest = next(iter(TINY))
    ours, expert = told[f"gdp.{deepest}.gdp"], told[f"gdp.{deepest}.expert"]
    assert ours is not None
    assert expert is not None
    assert told[f"gdp.gdp_over_expert.{deepest}"] == pytest.approx(ours / expert, rel=1e-3)
    assert f"gdp.gdp_over_expert.{tuple(TINY)[1]}" not in told
    assert {"gdp.gdp_over_metis", "gdp.batch_over_metis", "gdp.zero_shot_over_expert"} <= told.keys()


@pytest.mark.usefixtures("tiny")
def test_ahead_is_ahead_of_metis_and_of_hdp_at_either_step_size():
    ahead, behind = TINY
    value_s = {(w, name): 2.0 for w in TINY for name in ("metis", "hdp", "hdp_tuned")}
    value_s |= {(ahead, "gdp"): 1.9, (behind, "gdp"): 1.9, (behind, "hdp_tuned"): 1.8}
    (found_figure,) = benchmark._not_ahead(value_s, "gdp")
    assert (found_figure.value, found_figure.met) == (1, True)
    assert found_figure.how == f"of 2 workloads: {behind}"
    assert not list(benchmark._not_ahead(value_s, "sgdp"))  # which was not run
