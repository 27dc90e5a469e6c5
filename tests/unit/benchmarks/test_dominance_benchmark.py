"""The benchmark of the portfolio beside its members: what is drawn, how it is run, and what is made of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.dominance as benchmark
import benchmarks.dominance_runs as running
from benchmarks.common import Figure
from benchmarks.dominance import journal_rows, rows_of
from benchmarks.dominance_cells import (
    DEVICES,
    FAMILIES,
    KNOWN,
    MACHINES,
    MEMORY,
    MODELS,
    TWISTS,
    Cell,
    draw,
    loaded,
    strata,
)
from benchmarks.dominance_runs import FRESH, Instance, Lanes, Row, Run, run_cell, run_method
from benchmarks.dominance_table import compared, figures, table, wins
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Progress, ProgressHook
from pipeline.core.simulation import Simulation
from pipeline.core.stages import Answer, Candidate
from pipeline.shared.contiguity import backward_operations
from pipeline.shared.partition import colocation_grouping

LIMITS = (1.0, 5.0, 20.0)
SMALL = Cell("zoo:layered?n=30", "equal:3", "listsched T2 placement", 0.2)


# Drawing


def test_equal_seeds_draw_equal_cells_and_other_seeds_others() -> None:
    assert draw(120, 3, LIMITS) == draw(120, 3, LIMITS)
    assert len(draw(120, 3, LIMITS)) >= 120
    assert len({cell.key for cell in draw(120, 3, LIMITS)}) == len(draw(120, 3, LIMITS))
    assert set(draw(120, 3, LIMITS)) & set(draw(120, 4, LIMITS)) <= set(KNOWN)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_value_of_every_stratum_is_drawn(seed: int) -> None:
    cells = [cell for cell in draw(120, seed, LIMITS) if cell not in KNOWN]
    seen = {key: {strata(cell)[key] for cell in cells} for key in strata(SMALL)}
    assert seen["model"] == set(MODELS)
    assert seen["machine"] == set(MACHINES)
    assert seen["memory"] == {"no limit" if share is None else str(share) for share in MEMORY}
    assert seen["twist"] == {twist or "none" for twist in TWISTS}
    assert seen["seconds"] == {"1", "5", "20"}
    assert {"chain", "star", "components", "published", "nas-cnn", "nas-rnn", "nas-nmt"} <= seen["family"]
    assert len(seen["family"]) >= len(FAMILIES)


def test_values_are_drawn_in_proportion_to_their_weights() -> None:
    cells = [cell for cell in draw(120, 0, LIMITS) if cell not in KNOWN]
    assert Counter(cell.seconds for cell in cells) == {1.0: 60, 5.0: 40, 20.0: 20}
    assert set(Counter(cell.memory for cell in cells).values()) == {30}
    total = sum(weight for weight, _ in MODELS.values())
    for model, times in Counter(cell.model for cell in cells).items():
        assert abs(times - 120 * MODELS[model][0] / total) < 1


def test_random_graphs_have_from_five_operations_to_tens_of_thousands() -> None:
    drawn = [cell.graph.partition("n=")[2].partition("&")[0] for cell in draw(120, 0, LIMITS) if "n=" in cell.graph]
    sizes = [int(n) for n in drawn if n.isdecimal()]
    assert min(sizes) == 5
    assert max(sizes) > 50_000
    assert 0.02 < sum(n > 20_000 for n in sizes) / len(sizes) < 0.3


def test_known_cells_are_always_there_with_the_nearest_of_the_limits() -> None:
    assert set(KNOWN) <= set(draw(120, 5, LIMITS))
    assert {replace(cell, seconds=1.0) for cell in KNOWN} <= set(draw(12, 5, (1.0,)))


def test_devices_are_as_many_as_were_drawn() -> None:
    sizes = {"two-level:2x4": 8, "accelerators:3x1": 4, "cpu+gpu": 2}
    for cell in draw(120, 0, LIMITS):
        assert sizes.get(cell.topology, 2) in DEVICES
    assert {"two-level:2x4", "accelerators:3x1", "cpu+gpu"} <= {cell.topology for cell in draw(240, 0, LIMITS)}


# Instances


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_a_scenario(model: str) -> None:
    case = loaded(replace(SMALL, model=model, memory=1.2))
    assert case.simulator().execution.kind == model.partition(" ")[0]
    assert case.problem.ordered == model.endswith(("order", "3 calls"))


def test_an_instance_is_made_anew_and_alike_every_time() -> None:
    cell = replace(SMALL, unequal=True, twist="colocated", memory=1.2, seed=7)
    first, second = loaded(cell), loaded(cell)
    assert first.problem.instance is not second.problem.instance
    np.testing.assert_array_equal(first.costs.op_s, second.costs.op_s)
    np.testing.assert_array_equal(first.graph.colocate, second.graph.colocate)
    assert first.topology.devices == second.topology.devices


@pytest.mark.parametrize("model", ["sequential", "listsched T2 order"])
@pytest.mark.parametrize("share", [1.05, 1.5])
def test_devices_hold_a_share_of_everything_and_every_set_of_colocated_operations(model: str, share: float) -> None:
    case = loaded(replace(SMALL, model=model, memory=share, twist="colocated"))
    graph = case.graph
    alone = case.simulator().simulate(np.zeros((1, graph.n), np.int32)).peak_bytes.max()
    units = np.bincount(colocation_grouping(graph).group, weights=graph.weight_bytes)
    for device in case.topology.devices:
        assert device.memory_bytes >= max(units.max(), share * alone / 3 - 1)
    assert min(device.memory_bytes for device in case.topology.devices) < alone


def test_faster_devices_hold_more() -> None:
    case = loaded(replace(SMALL, topology="unequal:5", unequal=True, memory=1.5, model="sequential"))
    held = [device.memory_bytes for device in case.topology.devices]
    faster = np.argsort(case.costs.op_s.mean(axis=0))
    assert [held[d] for d in faster] == sorted(held, reverse=True)
    assert len(set(held)) > 1


def test_without_a_limit_devices_hold_anything() -> None:
    assert {device.memory_bytes for device in loaded(SMALL).topology.devices} == {0}


def test_a_third_of_the_operations_takes_no_time() -> None:
    op_s = loaded(replace(SMALL, graph="zoo:layered?n=300", twist="zero-cost")).costs.op_s
    assert 0.2 < (op_s == 0).all(axis=1).mean() < 0.45


def test_the_first_operations_are_supported_by_the_last_device_alone() -> None:
    supported = loaded(replace(SMALL, twist="one-device")).costs.supported
    only = supported.sum(axis=1) == 1
    assert 0 < only.sum() < 10
    assert supported[:, -1].all()


def test_components_do_not_touch_and_a_star_has_one_hub() -> None:
    parted = loaded(replace(SMALL, graph="own:components?n=80&ccr=1")).graph
    assert np.all(parted.edges[0] // 8 == parted.edges[1] // 8)
    star = loaded(replace(SMALL, graph="own:star?n=9&ccr=1")).graph
    assert star.m == 8
    assert (star.in_degree + star.out_degree).max() == 8


def test_a_mirrored_graph_has_a_backward_pass_beside_its_forward_pass() -> None:
    cell = replace(SMALL, graph="mirror:zoo:layered?n=20", model="pipelined convex apart")
    graph = loaded(cell).graph
    assert graph.n == 40
    np.testing.assert_array_equal(backward_operations(graph), np.arange(40) >= 20)
    assert colocation_grouping(graph).k == 20


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(UsageError, match="no shape ring"):
        loaded(replace(SMALL, graph="own:ring?n=9&ccr=1"))


# Running


def test_a_method_is_run_on_a_fresh_problem_and_its_answer_simulated_again() -> None:
    case = loaded(SMALL)
    run = run_method(SMALL, case, "heft")
    assert run.failed == ""
    assert run.value_s == run.final_s
    assert run.value_s is not None
    assert not case.problem.instance.view


class Refusing:
    version = 1

    def place(self, *_: object, **__: object) -> Answer:
        raise DeviceError("Not on these devices.", "Use others.")


def test_a_method_that_refuses_is_noted_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    case = loaded(SMALL)
    monkeypatch.setattr("pipeline.settings.registry.load_implementation", lambda stage, name: Refusing)
    monkeypatch.setattr("pipeline.settings.registry.parameters_of", lambda cls: [])
    monkeypatch.setattr(case.__class__, "simulator", lambda *_: None)
    run = run_method(SMALL, case, "refusing")
    assert (run.value_s, run.failed) == (None, "Not on these devices.")


class Late:
    """Has 2 s at once, 1 s in the end, which comes after the limit and all lateness."""

    version = 1

    def __init__(self, clock: list[float], answer: Answer) -> None:
        self.clock, self.answer = clock, answer

    def place(self, *_: object, progress: ProgressHook, **__: object) -> Answer:
        for at_s, value_s in ((0.1, 2.0), (SMALL.seconds + 0.2, 1.5), (SMALL.seconds + 0.3, 1.0)):
            self.clock[0] = at_s
            progress(Progress(1, None, value_s))
        return self.answer


def test_what_a_late_method_had_in_time_counts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    case = loaded(SMALL)
    placement = Placement.single(case.graph.n, 0, case.topology.names)
    clock = [0.0]
    late = Late(clock, Answer((Candidate(placement, Prediction(1.0)),)))
    monkeypatch.setattr(running.registry, "build_implementation", lambda stage, name: late)
    monkeypatch.setattr(case.__class__, "simulator", lambda *_: FakeSimulator())
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    run = run_method(SMALL, case, "late")
    assert (run.value_s, run.final_s, run.seconds) == (1.5, 1.0, pytest.approx(0.5))
    assert run.late(SMALL.seconds)
    assert run.failed == ""


class FakeSimulator:
    """Says 1 s of everything."""

    evaluations = 3

    def simulate(self, device: np.ndarray[Any, Any], _: object) -> Simulation:
        none = np.zeros(len(device), np.int64)
        return Simulation(np.ones(len(device)), none, np.zeros((1, 3)), np.zeros((1, 3), np.int64), none)


class FakeWorker:
    """Answers at once, or never for a method in `silent`. beside: what ran when a method was asked for."""

    silent: tuple[str, ...] = ()
    answers: Mapping[str, dict[str, Any]] = {}
    beside: dict[str, set[str]]
    alive: list[FakeWorker]

    def __init__(self, _: str, heard: Callable[[tuple[FakeWorker, bytes]], None]) -> None:
        self.at, self._heard = "", heard
        self.alive.append(self)

    def ask(self, name: str, command: dict[str, Any]) -> None:
        self.beside[name] = {other.at for other in self.alive if other.at}
        self.at = name
        method = command["method"]
        run: dict[str, dict[str, Any]] = {
            "run": {"method": method, "version": 1, "seconds": 0.5, "value_s": 1.0, "repeat": command.get("repeat", 0)}
        }
        run["run"] |= self.answers.get(method, {})
        ready = {"ready": {"n": 9, "m": 8, "p": 2, "members": ["heft", "anneal", "cpsat"]}}
        if method not in self.silent:
            self._heard((self, json.dumps(run if method else ready).encode()))

    def answer(self, line: bytes) -> dict[str, Any]:
        self.at = ""
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.alive.remove(self)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    fresh = type("Fresh", (FakeWorker,), {"beside": {}, "alive": []})
    monkeypatch.setattr(running, "Worker", fresh)
    return fresh


@pytest.mark.parametrize("seed", range(6))
def test_methods_of_several_threads_run_alone(fake: type[FakeWorker], seed: int) -> None:
    row = run_cell(replace(SMALL, seed=seed), Lanes(), {}, lambda _: None)
    assert [run.method for run in row.runs] == ["portfolio", "heft", "anneal", "cpsat"]
    several = {"portfolio", "cpsat"}
    for name, others in fake.beside.items():
        assert not (name in several and others)
        assert name == running._READY or not others & several
    assert not fake.alive


def test_runs_that_are_known_are_not_repeated_unless_the_version_is_another(fake: type[FakeWorker]) -> None:
    members = [Run(name, running.read_declaration("place", name).version, 0.1, 2.0) for name in ("heft", "anneal")]
    known = {("heft", 0): members[0], ("anneal", 0): replace(members[1], version=-1)}
    row = run_cell(SMALL, Lanes(), known, lambda _: None)
    assert {run.method: run.value_s for run in row.runs} == {"portfolio": 1.0, "heft": 2.0, "anneal": 1.0, "cpsat": 1.0}
    assert "heft" not in fake.beside


def test_a_method_that_does_not_end_is_stopped_and_the_others_go_on(
    fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE_S", -SMALL.seconds)
    monkeypatch.setattr(fake, "silent", ("anneal",))
    row = run_cell(SMALL, Lanes(side_by_side=False), {}, lambda _: None)
    by_name = {run.method: run for run in row.runs}
    assert by_name["anneal"].stopped
    assert "stopped" in by_name["anneal"].failed
    assert {name for name, run in by_name.items() if run.value_s == 1.0} == {"portfolio", "heft", "cpsat"}


@pytest.mark.parametrize(
    ("answers", "repeated"),
    [
        ({}, {"portfolio", "heft", "anneal", "cpsat"}),
        ({"heft": {"value_s": 1.06}, "cpsat": {"value_s": None}}, {"portfolio", "anneal"}),
        ({"heft": {"failed": "no"}, "cpsat": {"value_s": 1.04}}, {"portfolio", "anneal", "cpsat"}),
        ({"portfolio": {"value_s": 1.5}}, {"portfolio", "heft", "anneal", "cpsat"}),
        ({"portfolio": {"value_s": 0.94}}, set()),
        ({"portfolio": {"proven": True}}, set()),
        ({"portfolio": {"value_s": None}}, {"portfolio", "heft", "anneal", "cpsat"}),
    ],
)
def test_methods_that_one_seed_leaves_close_get_further_ones(
    fake: type[FakeWorker], answers: dict[str, dict[str, Any]], repeated: set[str]
) -> None:
    fake.answers = answers
    row = run_cell(SMALL, Lanes(seeds=3), {}, lambda _: None)
    for repeat in (1, 2):
        assert {run.method for run in row.runs if run.repeat == repeat} == repeated
    assert [run.method for run in row.runs if run.repeat == 0] == ["portfolio", "heft", "anneal", "cpsat"]


def test_a_cell_on_which_the_portfolio_seems_worse_is_judged_by_fresh_seeds(
    fake: type[FakeWorker], tmp_path: Path
) -> None:
    fake.answers = {"portfolio": {"value_s": 1.03}, "heft": {"value_s": 2.0}, "cpsat": {"value_s": 1.01}}
    (row,) = rows_of([replace(SMALL, seconds=1.0)], tmp_path, Lanes())
    fresh = [run for run in row.runs if run.repeat >= FRESH]
    assert Counter(run.method for run in fresh) == {"portfolio": 9, "anneal": 9}
    assert {run.repeat for run in fresh} == set(range(FRESH, FRESH + 9))
    lucky = [replace(run, value_s=1.04) if run.method == "anneal" else run for run in fresh]
    found = compared(replace(row, runs=(*row.runs[:4], *lucky)))
    assert (found.ratio, found.portfolio.seeds) == (pytest.approx(1.03 / 1.04), 9)
    assert "1 seemed so" in by_name([row])["dominance.worse_2pct"].how
    fake.answers = {"portfolio": {"value_s": 1.019}}
    (row,) = rows_of([replace(SMALL, seconds=1.0, seed=1)], tmp_path, Lanes())
    assert not [run for run in row.runs if run.repeat >= FRESH]


# What is made of it


def row_of(portfolio_s: float | None, *, seconds: float = 0.9, number: int = 0, **members_s: float | None) -> Row:
    runs = [Run("portfolio", 1, seconds, portfolio_s)]
    runs += [
        Run(name, 1, 0.5, value_s, failed="" if value_s is not None else "no") for name, value_s in members_s.items()
    ]
    return Row(replace(SMALL, seconds=1.0, seed=number), Instance(9, 8, 2, tuple(members_s)), tuple(runs))


@pytest.mark.parametrize(
    ("portfolio_s", "members_s", "ratio"),
    [
        (1.1, {"heft": 2.0, "anneal": 1.0}, 1.1),
        (0.5, {"heft": 2.0, "anneal": 1.0}, 0.5),
        (1.0, {"heft": None, "anneal": 1.0}, 1.0),
        (None, {"heft": None, "anneal": 1.0}, math.inf),
        (None, {"heft": None}, 1.0),
        (3.0, {"heft": None}, 0.0),
        (0.0, {"heft": 0.0}, 1.0),
        (1e-9, {"heft": 0.0}, math.inf),
        (1.0, {}, 0.0),
    ],
)
def test_the_ratio_is_to_the_best_member(
    portfolio_s: float | None, members_s: dict[str, float | None], ratio: float
) -> None:
    assert compared(row_of(portfolio_s, **members_s)).ratio == pytest.approx(ratio)


def test_an_answer_at_fault_counts_as_none() -> None:
    row = row_of(1.0, heft=0.5)
    wrong = replace(row.runs[1], failed="Its answer takes 2 s, not 0.5 s.")
    assert compared(replace(row, runs=(row.runs[0], wrong))).ratio == 0.0


def test_methods_are_compared_by_the_means_of_their_seeds() -> None:
    row = row_of(1.04, anneal=1.0, heft=1.5)
    further = [Run("portfolio", 1, 0.9, 0.98, repeat=1), Run("anneal", 1, 0.9, 1.02, repeat=1)]
    found = compared(replace(row, runs=(*row.runs, *further)))
    assert found.ratio == pytest.approx(1.0)
    assert (found.portfolio.seeds, found.best is not None and found.best.seeds) == (2, 2)
    nothing = Run("portfolio", 1, 0.9, None, repeat=1)
    assert math.isinf(compared(replace(row, runs=(*row.runs, nothing))).ratio)


def test_members_that_are_ahead_by_two_percent_win() -> None:
    assert wins(compared(row_of(1.1, heft=1.0, anneal=1.0, cpsat=1.05))) == ("heft", "anneal")
    assert wins(compared(row_of(1.019, heft=1.0))) == ()
    assert wins(compared(row_of(None, heft=1.0))) == ("heft",)


def by_name(rows: list[Row]) -> dict[str, Figure]:
    return {found.figure: found for found in figures(rows)}


def test_figures_are_the_share_of_worse_cells_the_worst_and_who_is_late() -> None:
    rows = [
        row_of(1.05, heft=1.0, number=0),
        row_of(1.01, heft=1.0, number=1),
        row_of(0.9, heft=1.0, number=2, seconds=1.3),
        row_of(None, heft=None, number=3),
    ]
    found = by_name(rows)
    assert (found["dominance.worse_2pct"].value, found["dominance.worse_2pct"].met) == (25.0, False)
    assert "nobody found anything feasible" in found["dominance.worse_2pct"].how
    assert (found["dominance.worst"].value, found["dominance.worst"].met) == (5.0, True)
    assert "against heft" in found["dominance.worst"].how
    assert found["dominance.overran"].value == 25.0
    assert "portfolio: 1" in found["dominance.overran"].how


def test_a_cell_without_an_answer_where_a_member_has_one_is_infinitely_worse() -> None:
    found = by_name([row_of(None, heft=1.0), row_of(1.0, heft=1.0, number=1)])
    assert found["dominance.worse_2pct"].value == 50.0
    assert (found["dominance.worst"].value, found["dominance.worst"].met) == (None, False)
    assert "nothing feasible" in found["dominance.worst"].how


def test_the_table_lists_the_worst_cell_first_and_what_was_refused() -> None:
    rows = [
        row_of(1.0, heft=1.0, number=1),
        row_of(1.5, heft=1.0, dp=None, number=2),
        row_of(None, heft=None, number=3),
    ]
    text = table(rows)
    assert text.index(rows[1].cell.key) < text.index(rows[0].cell.key)
    assert "1.5000" in text
    assert "dp" in text.partition("refused")[2]
    assert rows[2].cell.key in text.partition("nobody found")[2]


def test_nothing_that_was_run_is_a_figure_without_a_value() -> None:
    assert by_name([])["dominance.worse_2pct"].value is None


# Going on


def test_cells_on_file_are_not_run_again_and_a_torn_line_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [replace(SMALL, seed=seed) for seed in range(3)]
    asked: list[Cell] = []

    def fake_run(cell: Cell, *_: object) -> Row:
        asked.append(cell)
        return replace(row_of(1.0, heft=2.0), cell=cell)

    monkeypatch.setattr(benchmark, "run_cell", fake_run)
    first = list(rows_of(cells, tmp_path, Lanes()))
    assert asked == cells
    journal = tmp_path / "cells.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    asked.clear()
    again = list(rows_of(cells, tmp_path, Lanes()))
    assert asked == cells[2:]
    assert again == first
    assert journal.read_bytes() == whole
    assert list(journal_rows(tmp_path).values()) == first


def test_a_cell_whose_file_is_absent_is_left_out_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = replace(SMALL, graph="msr:latency-inputs/nowhere")
    assert list(rows_of([absent], tmp_path, Lanes())) == []
    assert "no file nowhere.json" in capsys.readouterr().err
