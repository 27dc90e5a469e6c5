"""Answers from a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from runtime.measuring.replay import Replay
from tests.strategies import graph_of
from tests.two_cpus import NAMES, subject_of

GRAPH = graph_of(3, [(0, 1), (1, 2)])
RECORDS = [
    {"placement": {"op0": "A", "op1": "A", "op2": "B"}, "samples_s": [1.0, 3.0, 2.0]},
    {"placement": {"op1": "B", "op2": "B", "op0": "B"}, "failed": {"kind": "timeout", "message": "too long"}},
]


def placed(*device: int) -> Placement:
    return Placement(np.array(device), NAMES)


def answer(folder: Path, document: object, placement: Placement, grouping: Grouping | None = None) -> object:
    path = folder / "records.json"
    path.write_text(json.dumps(document))
    evaluator = Replay(path=str(path)).bind(subject_of(Path(), GRAPH, grouping))
    (found,) = evaluator.evaluate([placement])
    assert evaluator.evaluations == 1
    return found


def test_a_recorded_placement_is_answered(tmp_path: Path) -> None:
    found = answer(tmp_path, {"records": RECORDS}, placed(0, 0, 1))
    assert isinstance(found, Measurement)
    assert found.samples_s.tolist() == [1.0, 3.0, 2.0]


def test_a_recorded_failure_is_answered(tmp_path: Path) -> None:
    assert answer(tmp_path, {"records": RECORDS}, placed(1, 1, 1)) == MeasurementFailed("timeout", "too long")


def test_records_are_of_operations_not_groups(tmp_path: Path) -> None:
    found = answer(tmp_path, {"records": RECORDS}, placed(0, 1), Grouping(np.array([0, 0, 1])))
    assert isinstance(found, Measurement)
    assert found.value_s == 2.0


def test_other_placements_take_otherwise(tmp_path: Path) -> None:
    found = answer(tmp_path, {"records": RECORDS, "otherwise_s": 7.0}, placed(1, 0, 0))
    assert isinstance(found, Measurement)
    assert found.samples_s.tolist() == [7.0]


def test_without_otherwise_they_are_refused(tmp_path: Path) -> None:
    found = answer(tmp_path, {"records": RECORDS}, placed(1, 0, 0))
    assert found == MeasurementFailed("refused", "no record of this placement")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"records": [{}]},
        {"records": [{"placement": {}}]},
        {"records": [{"placement": {}, "samples_s": []}]},
        {"records": [{"placement": {}, "failed": {"kind": "odd", "message": ""}}]},
        {"records": [{"placement": {}, "failed": "odd"}]},
        {"records": [], "otherwise_s": -1.0},
        {"records": [], "otherwise_s": "soon"},
    ],
)
def test_a_file_of_another_form_is_said(document: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        answer(tmp_path, document, placed(0, 0, 0))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json.*measure\.replay\.path"):
        Replay(path=str(tmp_path / "none.json")).bind(subject_of(Path(), GRAPH))
