"""Placements measured in segments: what is compiled again, what is refused, and what goes to the contest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.measurement import Measurement, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Candidate, Subject
from pipeline.placing import comparison
from pipeline.placing.segment_variants import fewer_segments
from runtime.executor.segments import segment_graph
from runtime.measuring.contest.dataflow import Dataflow, executor_variant, variant_in_segments
from runtime.measuring.contest.hetero import Hetero
from runtime.measuring.contest.variant import Variant, load_variant, outputs_of
from runtime.measuring.process.child import Child
from tests.models import chain, two_towers, with_state
from tests.two_cpus import NAMES, subject_of, two_cpus, write


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_of(*write(chain(12), tmp_path_factory.mktemp("chain")))


def on_b(subject: Subject, *names: str) -> Placement:
    """Return the placement of some operations on B, all others on A."""
    return Placement(np.array([name in names for name in subject.graph.names], np.int32), NAMES)


def variant_of(subject: Subject, placement: Placement, *, reuse: bool) -> Variant:
    made = executor_variant("v", "", subject.graph, placement, two_cpus(), runner="threads", reuse=reuse)
    assert isinstance(made, Variant)
    return made


@pytest.mark.parametrize("reuse", [True, False])
def test_a_child_compiles_what_changed_alone_if_it_may(subject: Subject, reuse: bool) -> None:
    settings = MeasureSettings()
    counts, outputs = [], []
    assert subject.model is not None
    with Child(timeout_s=settings.timeout_s) as child:
        for names in (("op3",), ("op3", "op8"), ("op3",)):
            made = variant_of(subject, on_b(subject, *names), reuse=reuse)
            told = load_variant(child, made, subject.model, settings, seed=0)
            counts.append((told["subgraphs"], told["compilations"]))
            outputs.append(outputs_of(child)["output_0"])
            assert sorted(told["executed_on"]) == ["CPU_A", "CPU_B"]
            assert set(told["precisions"].values()) == {"f32"}
            assert set(told["threads"].values()) == {1}
            run = child.ask("run", seconds=0.0, minimum=3, realtime=False)
            assert len(run["samples_s"]) >= 3
    assert counts == [(3, 3), (5, 3), (3, 0)] if reuse else [(3, 3), (5, 5), (3, 3)]
    assert all(np.array_equal(output, outputs[0]) for output in outputs)


def test_several_requests_are_in_flight_through_a_pipeline(subject: Subject) -> None:
    settings = MeasureSettings()
    made = executor_variant("v", "", subject.graph, on_b(subject, "op6"), two_cpus(), runner="pipeline")
    assert isinstance(made, Variant)
    assert subject.model is not None
    with Child(timeout_s=settings.timeout_s) as child:
        assert load_variant(child, replace(made, requests=4), subject.model, settings, seed=0)["requests"] == 4
        assert len(child.ask("run", seconds=0.0, minimum=2, realtime=False)["samples_s"]) >= 8
        assert child.ask("arrive", seconds=0.01, rate=1000.0, seed=0)["samples_s"]


def test_an_evaluator_measures_in_segments_and_refuses_what_parts_a_state(tmp_path: Path) -> None:
    subject = subject_of(*write(with_state(), tmp_path))
    evaluator = Dataflow(seconds=0.01).bind(subject)
    fine, parted = evaluator.evaluate([on_b(subject, "two", "doubled", "out"), on_b(subject, "read")])
    assert isinstance(fine, Measurement)
    assert (fine.executed_on, fine.subgraphs) == (("A", "B"), 2)
    assert isinstance(parted, MeasurementFailed)
    assert parted.kind == "refused"
    assert "must run in one sub-model" in parted.message


def test_runners_and_segments_tell_variants_apart(subject: Subject) -> None:
    placement = on_b(subject, "op6")
    variants = [variant_in_segments(subject, placement, runner=runner) for runner in ("serial", "threads")]
    variants.append(variant_in_segments(subject, on_b(subject, "op7"), runner="threads"))
    assert len({v.identity for v in variants if isinstance(v, Variant)}) == 3


@pytest.mark.parametrize(
    ("objective", "runtime", "expected"),
    [
        ("latency", "hetero", [("greedy 1", "", 1), ("greedy 2", "", 1)]),
        ("latency", "dataflow", [("greedy 1 threads", "threads", 1), ("greedy 1 level", "level", 1)]),
        ("throughput", "dataflow", [("greedy 1 pipeline", "pipeline", 4), ("greedy 1 serial", "serial", 4)]),
        ("latency", "auto", [("greedy 1 threads", "threads", 1), ("greedy 1 level", "level", 1), ("greedy 1", "", 1)]),
    ],
)
def test_finalists_are_run_by_the_runtimes_in_question(
    subject: Subject, objective: Any, runtime: Any, expected: list[tuple[str, str, int]]
) -> None:
    rows = [
        {"placer": "greedy", "rank": rank, **on_b(subject, name).to_document(subject.graph.names)}
        for rank, name in enumerate(("op3", "op6"))
    ]
    variants, placements = comparison._split_variants(subject, rows, objective, runtime)
    told = [(v.name, v.segments.runner if v.segments else "", v.requests) for v in variants]
    assert told[: len(expected)] == expected
    assert list(placements) == [v.name for v in variants]


class PredictsByDevices:
    """Predicts 1 ms for every placement on two devices, and 2 ms for one on a single device."""

    def evaluate(self, placements: Sequence[Placement]) -> list[Prediction]:
        return [Prediction(3e-3 - 1e-3 * len(p.devices_used)) for p in placements]


def test_a_finalist_comes_to_fewer_segments_where_that_costs_nothing(subject: Subject) -> None:
    evaluator: Any = PredictsByDevices()
    candidate = Candidate(on_b(subject, "op3", "op8"), Prediction(1e-3), "anneal")
    found = fewer_segments(subject, evaluator, candidate, NEVER)
    assert len(segment_graph(subject.graph, found.placement).segments) == 2
    assert found.found_by == "anneal"
    assert fewer_segments(subject, evaluator, candidate, Deadline.after(0.0)) is candidate


def test_a_finalist_stays_as_it_is_where_a_single_device_promises_less(subject: Subject) -> None:
    evaluator: Any = PredictsByDevices()
    candidate = Candidate(on_b(subject, "op3"), Prediction(1.0), "anneal")  # said to take long: anything is better
    found = fewer_segments(subject, evaluator, candidate, NEVER)
    assert len(found.placement.devices_used) == 2


def test_a_placement_is_recorded_as_the_segments_run_it(tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    left = [i for i, name in enumerate(subject.graph.names) if name in ("left0", "left1")]
    colocate = np.full(subject.graph.n, -1, np.int32)
    colocate[left] = 0
    subject = replace(subject, graph=replace(subject.graph, colocate=colocate))
    row = {"placer": "greedy", "rank": 0}
    row |= on_b(subject, "left0.relu", "right0", "right0.relu").to_document(subject.graph.names)
    (variant, *_), placements = comparison._split_variants(subject, [row], "latency", "dataflow")
    recorded = placements[variant.name].to_json(subject.graph.names)
    assert recorded["left0.relu"] == "A"  # it lies between left0 and left1, which must not be parted
    assert recorded["right0"] == "B"


def test_the_settings_of_a_measurement_hold_for_segments_as_for_hetero(tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    asked = {"seconds": 0.1, "tolerance": 0.5, "decode_steps": 3, "metric_drop": 0.2}
    one, other = (made(**asked).bind(subject) for made in (Hetero, Dataflow))
    assert (one.seconds, one.settings) == (other.seconds, other.settings) == (0.1, one.settings)
    assert one.settings.decode_steps == 3
    assert one.fingerprint != other.fingerprint
