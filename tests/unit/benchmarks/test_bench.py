"""The benchmark's cases, methods, cells and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.suites.hsdag import methods
from benchmarks.suites.hsdag.cases import PUBLISHED, Latency, desktop_costs, simulated
from benchmarks.suites.hsdag.methods import METHODS, cells_of, chosen, find_optimum
from benchmarks.suites.hsdag.summary import rows_of
from pipeline.bench.cases import BenchCase
from pipeline.bench.cells import BenchCell, Improvements, finished, run_cell
from pipeline.bench.methods import BenchMethod, coarsened, prepared
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Graph, Grouping, weight_side
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.store.store import Store
from runtime import zoo
from runtime.machines.topology import preset_machine
from runtime.simulators.sequential.sequential import Sequential
from tests.models import two_towers
from tests.two_cpus import branchy, write

RANDOM = BenchMethod("random", "random")


def case_of(graph: Graph, published: Latency | None = PUBLISHED["inception-v3"]) -> BenchCase:
    """Return a graph on the simulated desktop."""
    topology = preset_machine("cpu+gpu").without_memory_limits().topology
    costs = desktop_costs(graph, published)
    subject = Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)
    figures = Sequential().bind(subject).fingerprint
    return BenchCase("small", Sequential(), subject, {"evaluator": "sequential", "figures": figures})


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return write(branchy(packed=True), tmp_path_factory.mktemp("model"))[1]


@pytest.fixture
def case(graph: Graph) -> BenchCase:
    return case_of(graph)


def run(cell: BenchCell, folder: Path) -> dict[str, Any]:
    return run_cell(cell, folder, cell.case.alone(), lambda: None)


# What is placed


@pytest.mark.parametrize("model", PUBLISHED)
def test_everything_on_one_device_takes_the_published_latency(graph: Graph, model: str) -> None:
    alone = case_of(graph, PUBLISHED[model]).alone()
    assert alone["cpu"] == pytest.approx(PUBLISHED[model].cpu_s, rel=1e-12)
    assert alone["gpu"] == pytest.approx(PUBLISHED[model].gpu_s, rel=1e-12)


@pytest.mark.parametrize(("model", "percent"), [("inception-v3", 6.25), ("resnet50", 51.2), ("bert-base", 56.5)])
def test_the_gpu_alone_is_as_much_faster_than_the_cpu_as_table_2_says(graph: Graph, model: str, percent: float) -> None:
    alone = case_of(graph, PUBLISHED[model]).alone()
    assert 100 * (1 - alone["gpu"] / alone["cpu"]) == pytest.approx(percent, abs=0.1)


def test_networks_with_published_latencies_are_in_the_zoo() -> None:
    assert set(PUBLISHED) <= set(zoo.names())


def test_without_a_published_latency_times_are_those_of_the_roofline(graph: Graph) -> None:
    plain, scaled = desktop_costs(graph, None), desktop_costs(graph, PUBLISHED["resnet50"])
    share = scaled.op_s / np.where(plain.op_s > 0, plain.op_s, 1.0)
    for column, total in zip(share.T, PUBLISHED["resnet50"] / plain.op_s.sum(axis=0), strict=True):
        assert column[column > 0] == pytest.approx(total)


def test_where_weights_are_placed_changes_nothing(case: BenchCase) -> None:
    graph = case.subject.graph
    weights = weight_side(graph)
    assert weights.any()
    apart = Placement(np.where(weights, 1, 0).astype(np.int32), case.devices)
    (found,) = case.bind(case.subject.grouping).evaluate([apart])
    assert isinstance(found, Prediction)
    assert found.value_s == pytest.approx(case.alone()["cpu"], rel=1e-12)


def test_the_optimum_is_that_of_all_placements(tmp_path: Path) -> None:
    case = case_of(write(two_towers(2), tmp_path)[1], Latency(1.0e-4, 0.9e-4))
    groups = coarsened(case, ("fold",), seed=0)
    placements = [Placement(np.array(d, np.int32), case.devices) for d in product((0, 1), repeat=groups.k)]
    answers = case.bind(groups).evaluate(placements)
    least = min(a.value_s for a in answers if isinstance(a, Prediction))
    found = find_optimum(case, BenchMethod("min_cut", "min_cut"))
    assert found is not None
    assert found.proven
    assert found.value_s == pytest.approx(least, rel=1e-9)


def test_a_method_places_what_its_coarsening_leaves(case: BenchCase) -> None:
    for coarsen in ((), ("fold",), ("fold", "colocate")):
        method = BenchMethod("random", "random", coarsen=coarsen)
        grouping, problem = prepared(method, method.build(), case, seed=0)
        assert grouping.n == case.subject.graph.n
        assert problem.graph.n == grouping.k
        assert problem.costs is not None
        assert case.subject.costs is not None
        assert problem.costs.op_s.sum() == pytest.approx(case.subject.costs.op_s.sum())
    assert grouping.k < coarsened(case, ("fold",), seed=0).k < case.subject.graph.n


def test_a_placer_that_learns_gets_features_and_others_do_not(case: BenchCase) -> None:
    for name, wanted in (("hsdag", True), ("random", False)):
        (method,) = chosen([name])
        assert method.learned is wanted
        assert (prepared(method, method.build(), case, seed=0)[1].policy is not None) is wanted


# What is compared


def test_every_single_device_and_the_simple_methods_are_in_the_table(case: BenchCase) -> None:
    assert [m.name for m in METHODS][:5] == ["single", "random", "metis", "min_cut", "portfolio"]
    cells = cells_of(case, METHODS[0], 5, 100)
    assert [(c.name, c.device, c.seed) for c in cells] == [("single cpu", "cpu", 0), ("single gpu", "gpu", 0)]


def test_without_names_all_methods_of_the_table_are_taken_whose_placers_are_there() -> None:
    left_out = methods.missing()
    assert [m.name for m in chosen([])] == [m.name for m in METHODS if m.name not in left_out]


def test_a_placer_beside_the_table_may_be_named() -> None:
    assert [(m.name, m.placer) for m in chosen(["anneal", "random", "anneal"])] == [
        ("anneal", "anneal"),
        ("random", "random"),
    ]


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="min_cut"):
        chosen(["mincut"])


def test_a_method_that_draws_has_a_cell_per_seed_and_others_have_one(case: BenchCase) -> None:
    assert [c.seed for c in cells_of(case, RANDOM, 3, 10)] == [0, 1, 2]
    assert [c.seed for c in cells_of(case, BenchMethod("min_cut", "min_cut", seeded=False), 3, 10)] == [0]


# Cells


def test_a_cell_tells_what_was_found_and_how(case: BenchCase, tmp_path: Path) -> None:
    (cell,) = cells_of(case, RANDOM, 1, 40)
    record = run(cell, tmp_path)
    assert record == json.loads(cell.file(tmp_path).read_text())
    assert [record[key] for key in ("model", "evaluator", "method", "seed")] == ["small", "sequential", "random", 0]
    assert record["evaluations"] <= 40
    assert record["ratio"] == pytest.approx(min(case.alone().values()) / record["value_s"])
    assert record["curve"][-1][2] == record["value_s"]
    values = [value_s for _, _, value_s in record["curve"]]
    assert values == sorted(values, reverse=True)
    placement = Placement.from_document(record, case.subject.graph.names, case.devices)
    assert record["priority"] is None
    (again,) = case.bind(case.subject.grouping).evaluate([placement])
    assert isinstance(again, Prediction)
    assert again.value_s == pytest.approx(record["value_s"], rel=1e-9)


def test_equal_cells_come_out_equal(case: BenchCase, tmp_path: Path) -> None:
    first, second = (run(cells_of(case, RANDOM, 1, 40)[0], tmp_path / name) for name in "ab")
    for key in ("value_s", "evaluations", "placement", "found_by"):
        assert first[key] == second[key]


def test_a_cell_on_file_is_known_until_a_setting_changes(case: BenchCase, tmp_path: Path) -> None:
    (cell,) = cells_of(case, RANDOM, 1, 20)
    assert finished(cell, tmp_path) is None
    record = run(cell, tmp_path)
    assert finished(cell, tmp_path) == record
    for other in (
        replace(cell, evaluations=21),
        replace(cell, method=(batched := BenchMethod("random", "random", {"batch": 8})), placer=batched.build()),
        replace(cell, method=BenchMethod("random", "random", coarsen=("fold", "colocate"))),
        replace(cell, case=replace(case, identity={**case.identity, "figures": "others"})),
    ):
        assert other.file(tmp_path) == cell.file(tmp_path)
        assert finished(other, tmp_path) is None
    assert finished(replace(cell, seed=1), tmp_path) is None


def test_a_torn_or_failed_cell_is_run_again(case: BenchCase, tmp_path: Path) -> None:
    (cell,) = cells_of(case, RANDOM, 1, 20)
    record = run(cell, tmp_path)
    cell.file(tmp_path).write_text(json.dumps({**record, "failed": "out of luck"}))
    assert finished(cell, tmp_path) is None
    cell.file(tmp_path).write_text(json.dumps(record)[:100])
    assert finished(cell, tmp_path) is None


def test_what_a_placer_refuses_is_a_record_and_not_the_end(
    case: BenchCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UsageError("It cannot be.", "Try another.")

    (cell,) = cells_of(case, RANDOM, 1, 20)
    monkeypatch.setattr(type(cell.placer), "place", refuse)
    record = run(cell, tmp_path)
    assert (record["failed"], record["value_s"], record["ratio"]) == ("It cannot be. Try another.", None, None)
    assert rows_of([record], None)[0].failed == ("It cannot be. Try another.",)


def test_only_improvements_are_kept() -> None:
    curve = Improvements()
    for done, value_s in ((1, np.inf), (2, 5.0), (3, 5.0), (7, 4.0), (9, 4.5)):
        curve.add(done, value_s)
    assert [(done, value_s) for done, _, value_s in curve.points] == [(2, 5.0), (7, 4.0)]


def test_devices_that_share_memory_have_the_same_times_and_quicker_links(tmp_path: Path) -> None:
    path, _ = write(branchy(packed=True), tmp_path)
    store = Store(tmp_path / "store")
    desktop, shared = (simulated("m", path, store, lambda _: None, evaluator=name) for name in ("sequential", "shared"))
    assert shared.evaluator == "shared"
    assert desktop.subject.costs is not None
    assert shared.subject.costs is not None
    assert np.array_equal(desktop.subject.costs.op_s, shared.subject.costs.op_s)
    megabyte = np.array([1_000_000])
    assert desktop.subject.topology.mean_transfer_s(megabyte)[0] == pytest.approx(20e-6 + 1e6 / 12e9)
    assert shared.subject.topology.mean_transfer_s(megabyte)[0] == pytest.approx(2e-6 + 1e6 / 40e9)
    assert desktop.identity["figures"] != shared.identity["figures"]
