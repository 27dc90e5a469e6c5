"""Halves of one CPU that nobody named: nothing is searched, and what is told agrees with the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.devices import CostTable
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.settings.config import Settings
from pipeline.shared.payload import from_json
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.place import PlaceParams, rows_without_search
from pipeline.stages.plan import plan_tasks
from runtime.simulators.sequential.sequential import Sequential
from tests.strategies import graph_of
from tests.two_cpus import subject_of

MACHINE = HostMachine(({"name": "A"}, {"name": "B"}), {}, "here", halves=True)


def planned(changed: dict[str, Any]) -> dict[str, Any]:
    settings = Settings().updated({"budget": "300s", **changed}, "the test")
    return {t.stage: t for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, MACHINE)}


def test_neither_kernels_nor_searches_nor_policies_are_made() -> None:
    tasks = planned({})
    assert list(tasks) == ["read", "coarsen", "profile", "place", "measure"]
    assert [name for name, _ in tasks["place"].params["use"]] == ["single"]


@pytest.mark.parametrize(
    "changed",
    [
        {"place.use": ["anneal"]},
        {"place.evaluator": "listsched"},
        {"place.portfolio.solving": 0.3},
        {"embed.use": "sage"},
        {"measure.runtime": "auto"},
    ],
)
def test_who_asks_for_a_search_gets_one(changed: dict[str, Any]) -> None:
    tasks = planned({} | changed)
    assert [name for name, _ in tasks["place"].params["use"]] != ["single"]
    assert "kernels" in tasks


def told(subject: Subject) -> tuple[Any, Any]:
    params = from_json(PlaceParams, planned({})["place"].params)
    rows, (search,) = rows_without_search(params, subject)
    return rows, search


def test_what_a_device_takes_alone_is_what_the_simulator_predicts(tmp_path: Path) -> None:
    subject = subject_of(tmp_path / "m.xml", graph_of(6, [(i, i + 1) for i in range(5)]))
    rows, search = told(subject)
    singles = [Placement.single(6, d, subject.topology.names) for d in range(2)]
    simulated = [said.value_s for said in Sequential().bind(subject).evaluate(singles)]  # type: ignore[union-attr]
    assert [row["value_s"] for row in rows] == pytest.approx(simulated)
    assert [set(row["placement"].values()) for row in rows] == [{"A"}, {"B"}]
    assert (search["value_s"], search["lower_bound_s"], search["proven"]) == (pytest.approx(7e-3), 7e-3, True)


def test_unlike_devices_leave_something_below_the_best_alone(tmp_path: Path) -> None:
    subject = subject_of(tmp_path / "m.xml", graph_of(2, [(0, 1)]))
    assert subject.costs is not None
    op_s = np.array([[1.0, 2.0], [2.0, 1.0]])
    costs = CostTable(subject.graph.names, subject.topology.names, op_s, np.full(2, 0.5), ("given", "given"))
    _, search = told(replace(subject, costs=costs))
    assert (search["value_s"], search["lower_bound_s"], search["proven"]) == (3.5, 2.5, False)
