"""The real thing: a placement compiled by HETERO and run in a child process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Subject
from runtime.measuring.affinity import affinities
from runtime.measuring.baselines import reference_variant
from runtime.measuring.child import ChildError
from runtime.measuring.outputs import Reference
from runtime.measuring.variant import (
    Variant,
    check,
    executed_names,
    hetero_variant,
    outputs_of,
    start,
    warm_up,
)


@dataclass(frozen=True, slots=True)
class Hetero:
    """Measures every placement on the devices themselves, one after another."""

    version: ClassVar[int] = 1
    real: ClassVar[bool] = True

    seconds: float = param(0.3, "seconds of inference per placement, after the warm-up")
    timeout_s: float = param(120.0, "seconds that loading, or a turn, may take before the child is killed")
    tolerance: float = param(1e-3, "largest relative L2 difference from the f32 reference for f32 devices")
    low_tolerance: float = param(5e-2, "the same where a device computes in a lower precision")
    dynamic_size: int = param(8, "what dynamic dimensions but the first are set to")
    memory_bytes: int = param(0, "address space a measuring child may use; 0 for no limit")

    def bind(self, subject: Subject) -> HeteroEvaluator:
        """Return the evaluator of one subject; the reference outputs are computed at its first question.

        Raises:
            UsageError: the subject is a graph without a model.
        """
        if subject.model is None:
            raise UsageError("`hetero` measures models, and there is only a graph.", "Use a simulator.")
        settings = MeasureSettings(
            batch_s=self.seconds,
            timeout_s=self.timeout_s,
            tolerance=self.tolerance,
            low_tolerance=self.low_tolerance,
            dynamic_size=self.dynamic_size,
            memory_bytes=self.memory_bytes,
        )
        return HeteroEvaluator(subject, subject.model, settings)


@dataclass(slots=True)
class HeteroEvaluator:
    """Evaluates placements of one subject on real devices."""

    subject: Subject
    model: Path
    settings: MeasureSettings
    evaluations: int = 0
    _expected: Reference | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        """Return a digest of the devices and of how they are measured."""
        parts = [d.fingerprint for d in self.subject.topology.devices] + [repr(self.settings)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def evaluate(self, placements: Sequence[Placement]) -> list[Measurement | MeasurementFailed]:
        """Return the latency of each placement, or why it has none."""
        return [self._evaluate(p) for p in placements]

    def _evaluate(self, placement: Placement) -> Measurement | MeasurementFailed:
        self.evaluations += 1
        lifted = placement.lift(self.subject.grouping)
        affinity = affinities(self.subject.graph, lifted, self.subject.topology.devices)
        variant = hetero_variant("placement", "search", self.subject.topology.devices, affinity)
        if self._expected is None:
            self._expected = reference_outputs(self.model, self.settings, seed=self.subject.seed)
        return measure_once(variant, self.model, self._expected, self.settings, seed=self.subject.seed)


def reference_outputs(model: Path, settings: MeasureSettings, *, seed: int) -> Reference:
    """Return the outputs of the whole model on the CPU in f32, and which kernels run in int8 there.

    Raises:
        ChildError: the CPU cannot run the model.
    """
    child, loaded = start(reference_variant(), model, settings, seed=seed)
    with child:
        return Reference(outputs_of(child), loaded["int8_kernels"])


def measure_once(
    variant: Variant, model: Path, expected: Reference, settings: MeasureSettings, *, seed: int
) -> Measurement | MeasurementFailed:
    """Return the latencies of one variant measured on its own, or why there are none."""
    try:
        child, loaded = start(variant, model, settings, seed=seed)
        with child:
            failed = check(variant, loaded, child, expected, settings)
            if failed is not None:
                return failed
            warm = warm_up(child)
            realtime = settings.realtime and bool(child.ask("realtime")["allowed"])
            samples = child.ask("run", seconds=settings.batch_s, minimum=5, realtime=realtime)["samples_s"]
    except ChildError as error:
        return error.failed
    return Measurement(
        np.array(samples),
        warm_up=warm,
        compile_s=loaded["compile_s"],
        executed_on=executed_names(variant, loaded["executed_on"]),
        subgraphs=loaded["subgraphs"],
        realtime=realtime,
    )
