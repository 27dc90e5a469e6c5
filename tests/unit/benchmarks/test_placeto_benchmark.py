"""The benchmark of Placeto: cells that are known are not searched again; policies learn on other graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

import benchmarks.placeto as benchmark
from benchmarks.common import CellJournal
from benchmarks.placeto import Cells, alone, unseen
from runtime.zoo.workloads.placeto import split

FAMILY = "nas-nmt"


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cells:
    monkeypatch.setattr(benchmark, "split", lambda family, *, seed: tuple(s[:2] for s in split(family, seed=seed)))
    return Cells(CellJournal(tmp_path / "placeto.jsonl"), evaluations=12, seeds=2)


def test_every_cell_is_searched_once(cells: Cells, monkeypatch: pytest.MonkeyPatch):
    first = [figure.value for figure in alone(cells, (FAMILY,), 1, ("random", "anneal"))]
    monkeypatch.setattr(benchmark, "found", lambda *_, **__: pytest.fail("searched again"))
    assert [figure.value for figure in alone(cells, (FAMILY,), 1, ("random", "anneal"))] == first


def test_the_median_seed_is_told(cells: Cells):
    index = split(FAMILY, seed=0)[2][0]
    told = next(iter(alone(cells, (FAMILY,), 1, ("anneal",))))
    assert told.value == pytest.approx(
        min(cells.alone(FAMILY, index, "anneal", seed)["ratio"] for seed in (0, 1)), 1e-3
    )


def test_a_policy_per_seed_learns_on_the_graphs_to_learn_from_alone(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learned_on: list[list[str]] = []
    trained = benchmark.trained

    def noted(cases, evaluations, *, seed):
        learned_on.append([case.scenario.graph for case in cases])
        return trained(cases, evaluations, seed=seed)

    monkeypatch.setattr(benchmark, "trained", noted)
    picture = tmp_path / "unseen.svg"
    told = list(unseen(cells, (FAMILY,), 2, ("zero_shot", "random"), picture))
    assert [figure.figure for figure in told] == ["placeto.unseen.nas-nmt.zero_shot", "placeto.unseen.nas-nmt.random"]
    train = [f"zoo:{FAMILY}?index={index}" for index in split(FAMILY, seed=0)[0][:2]]
    assert learned_on == [train, train]  # once for each seed, not for each test graph
    assert "zero shot: median" in picture.read_text()
