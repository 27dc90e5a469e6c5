"""Priorities travel with a placement: through JSON, the candidates, the finals, and the files of a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.deadline import Deadline
from pipeline.core.devices import CostTable
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Measurement
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Candidate, Subject
from pipeline.offline.scenario import Scenario, load, read_placement
from pipeline.placing.comparison import Conditions, in_simulator, on_devices
from pipeline.placing.shortlist import distinct_finalists
from pipeline.result.result import Result, write_placed
from pipeline.stages.place import finalist_row
from pipeline.store.store import Entry, file_digest
from runtime.measuring.contest import contest
from runtime.measuring.contest.contenders import Contender
from runtime.measuring.contest.statistics import Rules
from runtime.simulators.dataflow.listsched import ListSched
from tests.toys import toy_graph, toy_topology

DEVICES = ("A", "B")
NAMES = ("0", "1", "2")
ROUND_TRIP = st.floats(allow_nan=False, allow_infinity=False)
# Operations 0 and 1 wait for device A, and 2 for 1: the one that is last in the graph's order had better go first.
SPLIT = Placement(np.array([0, 0, 1]), DEVICES)
FIRST_TO_LAST = replace(SPLIT, priority=np.array([0.0, 1.0, 2.0]))
MACHINE = """
[links]
bytes_per_s = 1e9
latency_s = 1e-6
[[device]]
name = "A"
[[device]]
name = "B"
"""
SHORTEST_FIRST = replace(SPLIT, priority=np.array([1.0, 0.0, 2.0]))


@pytest.fixture
def subject() -> Subject:
    """Return three operations of 3, 1 and 5 s, the third of which reads the second, on two devices."""
    graph, topology = toy_graph(3, [(1, 2)]), toy_topology()
    costs = CostTable(graph.names, DEVICES, np.repeat([[3.0], [1.0], [5.0]], 2, axis=1), np.zeros(2), ("given",) * 2)
    return Subject(Path("m.xml"), graph, Grouping.identity(3), topology, costs, 0)


def rows(subject: Subject, *placements: Placement) -> list[dict[str, Any]]:
    """Return what the place stage writes of placements, and the measure stage reads."""
    found = [Candidate(p, Measurement(np.array([1.0 + i])), "heft") for i, p in enumerate(placements)]
    made = [finalist_row("heft", rank, c, subject.graph, measured=False) for rank, c in enumerate(found)]
    read: list[dict[str, Any]] = json.loads(json.dumps(made))
    return read


# One form


@given(st.lists(ROUND_TRIP, min_size=3, max_size=3) | st.none())
def test_a_placement_is_read_as_it_was_written(priority: list[float] | None) -> None:
    placement = replace(SPLIT, priority=None if priority is None else np.array(priority))
    document = json.loads(json.dumps(placement.to_document(NAMES)))
    assert document.keys() == {"placement", "priority"}
    assert document["placement"] == {"0": "A", "1": "A", "2": "B"}
    assert document["priority"] == (None if priority is None else dict(zip(NAMES, priority, strict=True)))
    again = Placement.from_document(document, NAMES, DEVICES)
    assert again.key() == placement.key()
    assert (again.priority is None) is (priority is None)


def test_a_document_without_priorities_is_a_placement_without() -> None:
    assert Placement.from_document({"placement": dict.fromkeys(NAMES, "A")}, NAMES, DEVICES).priority is None


def test_priorities_are_found_by_name_and_whole_numbers_are_numbers() -> None:
    document = SPLIT.to_document(NAMES) | {"priority": {"2": 5, "1": 0.5, "0": -1}}
    found = Placement.from_document(document, NAMES, DEVICES).priority
    assert found is not None
    assert found.tolist() == [-1.0, 0.5, 5.0]


@pytest.mark.parametrize("wrong", [None, True, "1", float("nan"), pytest.param(10**400, id="huge"), [1.0]])
def test_what_is_no_number_is_no_priority_and_its_operation_is_named(wrong: Any) -> None:
    document = SPLIT.to_document(NAMES) | {"priority": {"0": 0.0, "1": wrong, "2": 1.0}}
    with pytest.raises(UsageError, match="not one number per operation: 1"):
        Placement.from_document(document, NAMES, DEVICES)


@pytest.mark.parametrize("wrong", [{}, [0.0, 1.0, 2.0], 1.0, "012"])
def test_what_has_no_names_is_no_priority(wrong: Any) -> None:
    with pytest.raises(UsageError, match="not one number per operation: 0, 1, 2"):
        Placement.from_document(SPLIT.to_document(NAMES) | {"priority": wrong}, NAMES, DEVICES)


# Finals


def test_placements_that_differ_in_priorities_alone_are_different_candidates(subject: Subject) -> None:
    found = rows(subject, SPLIT, FIRST_TO_LAST, SHORTEST_FIRST, SHORTEST_FIRST)
    assert [r["rank"] for r in distinct_finalists(found, 5)] == [0, 1, 2]
    assert [r["rank"] for r in distinct_finalists(found, 5, ordered=False)] == [0]  # devices heed no priorities


def test_a_simulator_that_heeds_priorities_measures_finalists_with_them(subject: Subject) -> None:
    found = rows(subject, SPLIT, FIRST_TO_LAST, SHORTEST_FIRST)
    measured = in_simulator(subject, ListSched(level="T0"), distinct_finalists(found, 5))["rows"]
    by_name = {row["name"]: row for row in measured}
    transfer_s = 0.5e-3
    assert by_name["heft 1"]["samples_s"] == by_name["heft 2"]["samples_s"] == [pytest.approx(9 + transfer_s)]
    assert by_name["heft 3"]["samples_s"] == [pytest.approx(6 + transfer_s)]
    assert by_name["heft 3"]["priority"] == {"0": 1.0, "1": 0.0, "2": 2.0}
    assert by_name["heft 1"]["priority"] is by_name["A"]["priority"] is by_name["A"]["placement"] is None


def test_devices_measure_a_placement_and_pass_its_priorities_on(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def nothing_ran(variants: Any, *_: Any, **__: Any) -> contest.Contest:
        asked.append(variants)
        return contest.Contest({v.name: Contender(v) for v in variants}, "", "", "", None, Rules())

    monkeypatch.setattr(contest, "run_contest", nothing_ran)
    known = {"journal": tmp_path / "j", "progress": lambda _: None}
    terms = Conditions(MeasureSettings(settings=False), Deadline.after(1.0))
    plain, ordered = (on_devices(subject, rows(subject, p), terms, **known)["rows"] for p in (SPLIT, SHORTEST_FIRST))
    assert asked[0] == asked[1]
    (split,), (first,) = ([row for row in found if row["name"] == "heft 1"] for found in (ordered, plain))
    assert split == first | {"priority": {"0": 1.0, "1": 0.0, "2": 2.0}}


# Files


@pytest.fixture
def read(tmp_path: Path) -> Entry:
    (tmp_path / "entry").mkdir()
    files = [tmp_path / "entry" / name for name in ("model.xml", "model.bin", "shapes.json")]
    for file in files:
        file.write_text("[]")
    return Entry(tmp_path / "entry", "0" * 64, {}, {}, {file.name: file_digest(file) for file in files})


@pytest.mark.parametrize("placement", [SPLIT, SHORTEST_FIRST])
def test_the_file_that_is_deployed_carries_priorities_and_can_be_simulated(
    placement: Placement, subject: Subject, read: Entry, tmp_path: Path
) -> None:
    best = in_simulator(subject, ListSched(), rows(subject, placement))["rows"][-1]
    write_placed(tmp_path, read, NAMES, best, "0" * 64)
    written = json.loads((tmp_path / "placement.json").read_text(encoding="utf-8"))
    assert {k: written[k] for k in ("placement", "priority")} == placement.to_document(NAMES)
    result = Result(tmp_path, {})
    assert (result.placement, result.priority) == (written["placement"], written["priority"])
    operations = [{"name": name, "time_s": t} for name, t in zip(NAMES, (3.0, 1.0, 5.0), strict=True)]
    graph, machine = tmp_path / "graph.json", tmp_path / "machine.toml"
    graph.write_text(json.dumps({"operations": operations, "edges": [{"from": "1", "to": "2"}]}), encoding="utf-8")
    machine.write_text(MACHINE, encoding="utf-8")
    case = load(Scenario(str(graph), str(machine)))
    again = read_placement(tmp_path / "placement.json", case)
    assert again.key() == placement.key()
    assert case.lifted(again) == placement.to_document(NAMES)


def test_a_single_device_has_no_priorities(subject: Subject, read: Entry, tmp_path: Path) -> None:
    alone = in_simulator(subject, ListSched(), [])["rows"][0]
    write_placed(tmp_path, read, NAMES, alone, "0" * 64)
    assert Result(tmp_path, {}).placement == dict.fromkeys(NAMES, "A")
    assert Result(tmp_path, {}).priority is None


@pytest.mark.parametrize(("count", "written"), [(1, dict.fromkeys(NAMES, "A")), (2, {})])
def test_where_the_runtime_chooses_among_devices_nothing_is_said_of_operations(
    count: int, written: dict[str, str], subject: Subject, read: Entry, tmp_path: Path
) -> None:
    chosen = in_simulator(subject, ListSched(), [])["rows"][0] | {"placement": None, "target": "AUTO:A,B"}
    devices = [{"name": name, "openvino_name": name, "plugin": "CPU", "properties": {}} for name in "AB"[:count]]
    write_placed(tmp_path, read, NAMES, chosen | {"devices": devices}, "0" * 64)
    assert Result(tmp_path, {}).placement == written
