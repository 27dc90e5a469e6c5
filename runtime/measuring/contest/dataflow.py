"""The real thing, concurrent: a placement run in segments by the executor, in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Subject
from runtime.executor.segments import segment_graph
from runtime.measuring.contest.hetero import Hetero, HeteroEvaluator
from runtime.measuring.contest.variant import InSegments, Variant, dataflow_variant
from runtime.measuring.process.affinity import affinities_of


@dataclass(frozen=True, slots=True)
class Dataflow(Hetero):
    """Measures every placement in segments that run concurrently, one placement after another, beside the reference.

    Segments that an earlier placement had, too, are not compiled again.
    """

    name: ClassVar[str] = "dataflow"
    version: ClassVar[int] = 3

    runner: Literal["serial", "level", "threads", "pipeline"] = param("threads", "runner of the segments")

    def evaluator(self, subject: Subject, model: Path, settings: MeasureSettings) -> HeteroEvaluator:
        """Return the evaluator that runs placements in segments."""
        variant, executed_by = partial(variant_in_segments, runner=self.runner), f"dataflow {self.runner}"
        return HeteroEvaluator(subject, model, settings, self.seconds, variant, executed_by)


def variant_in_segments(subject: Subject, placement: Placement, *, runner: str) -> Variant | MeasurementFailed:
    """Return the variant by which the executor runs a placement of the subject's operations, or why there is none."""
    return executor_variant(
        "placement", "search", subject.graph, placement, subject.topology.devices, runner=runner, reuse=True
    )


def executor_variant(
    name: str,
    placer: str,
    graph: Graph,
    placement: Placement,
    devices: Sequence[DeviceSpec],
    *,
    runner: str,
    reuse: bool = False,
) -> Variant | MeasurementFailed:
    """Return the variant by which the executor runs a placement of a graph's operations.

    A placement that parts what must run in one sub-model is refused.
    """
    try:
        segments = segment_graph(graph, placement)
    except UsageError as error:
        return MeasurementFailed("refused", error.cause)
    affinity = affinities_of(graph, placement, devices)
    return dataflow_variant(name, placer, devices, affinity, InSegments(segments.segments, runner, reuse))
