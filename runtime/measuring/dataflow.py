"""The real thing, concurrent: a placement run in segments by the executor, in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Subject
from runtime.executor.segments import segmentation
from runtime.measuring.affinity import affinities
from runtime.measuring.hetero import HeteroEvaluator
from runtime.measuring.variant import InSegments, Variant, dataflow_variant


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Measures every placement in segments that run concurrently, one placement after another, beside the reference.

    Segments that an earlier placement had, too, are not compiled again.
    """

    version: ClassVar[int] = 1
    real: ClassVar[bool] = True

    runner: Literal["serial", "level", "threads", "pipeline"] = param("threads", "how the segments are run")
    seconds: float = param(0.4, "seconds of inference per placement, half of them of the reference")
    timeout_s: float = param(120.0, "seconds that loading, or a turn, may take before the child is killed")
    tolerance: float = param(1e-3, "largest relative L2 difference from the f32 reference for f32 devices")
    low_tolerance: float = param(5e-2, "the same where a device computes in a lower precision")
    dynamic_size: int = param(8, "what dynamic dimensions but the first are set to")
    memory_bytes: int = param(0, "address space a measuring child may use; 0 for no limit")

    def bind(self, subject: Subject) -> HeteroEvaluator:
        """Return the evaluator of one subject; the reference is run at its first question.

        Raises:
            UsageError: the subject is a graph without a model.
        """
        if subject.model is None:
            raise UsageError("`dataflow` measures models, and there is only a graph.", "Use a simulator.")
        settings = MeasureSettings(
            timeout_s=self.timeout_s,
            tolerance=self.tolerance,
            low_tolerance=self.low_tolerance,
            dynamic_size=self.dynamic_size,
            memory_bytes=self.memory_bytes,
        )
        pairs = max(1, round(self.seconds / (2 * settings.turn_s)))
        executed_by = f"dataflow {self.runner}"
        return HeteroEvaluator(
            subject, subject.model, settings, pairs, partial(in_segments, runner=self.runner), executed_by
        )


def in_segments(subject: Subject, placement: Placement, *, runner: str) -> Variant | MeasurementFailed:
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
        found = segmentation(graph, placement)
    except UsageError as error:
        return MeasurementFailed("refused", error.cause)
    affinity = affinities(graph, placement, devices)
    return dataflow_variant(name, placer, devices, affinity, InSegments(found.segments, runner, reuse))
