"""Every registered measurer keeps the promises of `pipeline.testing.measurers`, and what some promise beyond them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coarsen.fold import Fold
from pipeline.core.devices import Topology
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.settings import registry
from pipeline.testing.measurers import check_measurer
from tests.models import two_towers
from tests.two_cpus import NAMES, subject_of, write

NAMES_OF_ALL = sorted(registry.implementation_table("measure"))
OVERLAPPING = ("listsched", "pipelined", "latency")
REAL = ("dataflow", "hetero")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    path, graph = write(two_towers(), tmp_path_factory.mktemp("towers"))
    return subject_of(path, graph, Fold().coarsen(graph, seed=0))


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the parameters that a measurer needs here."""
    records = tmp_path_factory.mktemp("records") / "records.json"
    records.write_text(json.dumps({"records": [], "otherwise_s": 1.0}))
    return {"replay": {"path": str(records)}, **{name: {"seconds": 0.01} for name in REAL}}


def build(name: str, values: dict[str, dict[str, Any]]) -> Any:
    return registry.build_implementation("measure", name, values.get(name))


def by_tower(subject: Subject, device: int) -> Placement:
    """Return the placement of the left tower on A, and the right one on a device."""
    heads = [subject.graph.names[np.flatnonzero(subject.grouping.group == g)[-1]] for g in range(subject.grouping.k)]
    return Placement(np.array([device if head.startswith("right") else 0 for head in heads]), NAMES)


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_a_measurer_keeps_its_promises(name: str, subject: Subject, values: dict[str, dict[str, Any]]) -> None:
    check_measurer(build(name, values), subject)


@pytest.mark.parametrize("name", [name for name in NAMES_OF_ALL if name not in REAL])
def test_a_subject_without_a_model_is_enough_to_compute_with(name: str, values: dict[str, dict[str, Any]]) -> None:
    check_measurer(build(name, values))


@pytest.mark.parametrize("name", [name for name in NAMES_OF_ALL if name != "replay"])  # it knows nothing of devices
def test_an_answer_says_where_a_placement_ran(name: str, subject: Subject, values: dict[str, dict[str, Any]]) -> None:
    both, alone = build(name, values).bind(subject).evaluate([by_tower(subject, 1), by_tower(subject, 0)])
    # Simulators of machines on which sub-graphs may wait for one another count two.
    assert (sorted(both.executed_on), both.subgraphs) == (["A", "B"], 2 if name in OVERLAPPING else 3)
    assert (alone.executed_on, alone.subgraphs) == (("A",), 1)


@pytest.mark.parametrize("name", REAL)
def test_a_placement_that_a_device_refuses_is_an_answer(name: str, subject: Subject) -> None:
    a, b = subject.topology.devices
    broken = replace(b, properties={"NO_SUCH_PROPERTY": "1"})
    evaluator = registry.build_implementation("measure", name, {"seconds": 0.01}).bind(
        replace(subject, topology=Topology.uniform((a, broken), bytes_per_s=1.0, latency_s=0.0))
    )
    refused, fine = evaluator.evaluate([by_tower(subject, 1), by_tower(subject, 0)])
    assert isinstance(refused, MeasurementFailed)
    assert refused.kind == "refused"
    assert "NO_SUCH_PROPERTY" in refused.message
    assert isinstance(fine, Measurement)
    assert evaluator.evaluations == 2


def test_other_devices_runtimes_or_settings_are_not_comparable(subject: Subject) -> None:
    def fingerprint(of: Subject, name: str = "hetero", **values: Any) -> str:
        return str(registry.build_implementation("measure", name, values).bind(of).fingerprint)

    a, b = subject.topology.devices
    other = replace(
        subject, topology=Topology.uniform((a, replace(b, fingerprint="?")), bytes_per_s=1.0, latency_s=0.0)
    )
    runners = {fingerprint(subject, "dataflow", runner=runner) for runner in ("threads", "serial")}
    assert len(runners | {fingerprint(subject), fingerprint(other), fingerprint(subject, seconds=0.5)}) == 5
