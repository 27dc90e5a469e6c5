"""The real thing: a placement compiled by HETERO and run in a child process."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Subject
from pipeline.shared.model_inputs import TIMED
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.pair_bench import SCREEN_PAIRS, PairBench, Start
from runtime.measuring.contest.variant import (
    Variant,
    executed_names,
    hetero_variant,
    outputs_of,
    reference_of,
    start_child,
)
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.affinity import affinities_of
from runtime.measuring.process.child import ChildError, NoReferenceError

VariantOf = Callable[[Subject, Placement], Variant | MeasurementFailed]


def by_hetero(subject: Subject, placement: Placement) -> Variant:
    """Return the variant by which HETERO runs a placement of the subject's operations."""
    devices = subject.topology.devices
    return hetero_variant("placement", "search", devices, affinities_of(subject.graph, placement, devices))


@dataclass(frozen=True, slots=True)
class Hetero:
    """Measures every placement on the devices themselves, one after another, each beside the reference."""

    name: ClassVar[str] = "hetero"
    version: ClassVar[int] = 4
    real: ClassVar[bool] = True

    seconds: float = param(0.4, "seconds of inference per placement, half of them of the reference")
    timeout_s: float = param(120.0, "timeout of loading, and of a turn, in seconds")
    accuracy: Literal["strict", "usual", "loose"] = param(
        "usual", "output tolerance in low precisions: strict, usual or loose"
    )
    tolerance: float = param(1e-3, "largest relative L2 difference of an output from the reference for f32 devices")
    low_tolerance: float | None = param(None, "the same for a device that computes in a precision below f32")
    metric: str = param("", "quality metric FILE.py:FUNCTION of the outputs, larger is better; replaces the tolerances")
    metric_drop: float = param(0.01, "allowed drop of the metric from the f32 reference, as a share")
    dynamic_size: int = param(8, "size of dynamic dimensions except the first")
    decode_steps: int = param(8, "inferences before the state of a stateful model is reset")
    memory_bytes: int = param(0, "address space of a measuring process, in bytes; 0: no limit")

    def bind(self, subject: Subject) -> HeteroEvaluator:
        """Return the evaluator of one subject; the reference is run at its first question.

        Raises:
            UsageError: the subject is a graph without a model.
        """
        if subject.model is None:
            raise UsageError(f"`{self.name}` measures models, and there is only a graph.", "Use a simulator.")
        settings = MeasureSettings(
            timeout_s=self.timeout_s,
            accuracy=self.accuracy,
            tolerance=self.tolerance,
            low_tolerance=self.low_tolerance,
            metric=self.metric,
            metric_drop=self.metric_drop,
            dynamic_size=self.dynamic_size,
            decode_steps=self.decode_steps,
            memory_bytes=self.memory_bytes,
        )
        return self.evaluator(subject, subject.model, settings)

    def evaluator(self, subject: Subject, model: Path, settings: MeasureSettings) -> HeteroEvaluator:
        """Return the evaluator that runs placements by HETERO."""
        return HeteroEvaluator(subject, model, settings, self.seconds, by_hetero)


@dataclass(slots=True, weakref_slot=True)
class HeteroEvaluator:
    """Evaluates placements of one subject on real devices, each in short turns with the reference.

    What disturbs the machine disturbs both, so a latency is the reference's first one, times the ratio of the turns.
    The processes stay until the evaluator is let go. seconds: of turns, for every placement. variant: what runs a
    placement. executed_by: what tells that from HETERO in the fingerprint.
    """

    version: ClassVar[int] = 4

    subject: Subject
    model: Path
    settings: MeasureSettings
    seconds: float
    variant: VariantOf
    executed_by: str = ""
    evaluations: int = 0
    _bench: PairBench | None = field(default=None, repr=False)
    _reference_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        """Return a digest of the devices and of how they are measured."""
        parts = [d.fingerprint for d in self.subject.topology.devices] + [repr(self.settings), repr(self.seconds)]
        parts += [self.executed_by] if self.executed_by else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def evaluate(self, placements: Sequence[Placement]) -> list[Measurement | MeasurementFailed]:
        """Return the latency of each placement, or why it has none."""
        return [self._evaluate(p) for p in placements]

    def _evaluate(self, placement: Placement) -> Measurement | MeasurementFailed:
        self.evaluations += 1
        lifted = placement.lift(self.subject.grouping)
        variant = self.variant(self.subject, lifted)
        if isinstance(variant, MeasurementFailed):
            return variant
        bench, reference = self._ready(), reference_variant()
        start = bench.start(variant, reference, part="screening", number=1, pairs=SCREEN_PAIRS, seconds=self.seconds)
        if isinstance(start, MeasurementFailed):
            return start
        self._reference_s = self._reference_s or float(np.median(start.control_s))
        return measurement_of(variant, start, self._reference_s * np.array(start.variant_s) / np.array(start.control_s))

    def _ready(self) -> PairBench:
        if self._bench is None:
            self._bench = PairBench(self.model, self.settings, self.subject.seed)
            weakref.finalize(self, self._bench.close)
        return self._bench


def measurement_of(variant: Variant, start: Start, samples_s: Float64) -> Measurement:
    """Return the record of a variant with its samples, from what a start of it says."""
    told = start.loaded
    return Measurement(
        samples_s,
        warm_up=start.warm_up,
        compile_s=told["compile_s"],
        executed_on=executed_names(variant, told["executed_on"]),
        subgraphs=told["subgraphs"],
        precision="+".join(sorted(set(told["precisions"].values()))),
        waited_share=start.waited_share,
        realtime=bool(told["realtime"]),
    )


def reference_outputs(model: Path, settings: MeasureSettings, *, seed: int) -> Reference:
    """Return what outputs are compared with, and which kernels of the whole model run in int8 on the CPU in f32.

    Raises:
        NoReferenceError: the CPU cannot run the model.
    """
    try:
        child, loaded = start_child(reference_variant(), model, settings, seed=seed)
        with child:
            begun = time.monotonic()
            timed = {TIMED: outputs_of(child)}
            took_s = time.monotonic() - begun
            kernels, load_s = loaded["int8_kernels"], loaded["compile_s"]
            return reference_of(model, timed, int8_kernels=kernels, seconds=took_s, load_s=load_s)
    except ChildError as error:
        raise NoReferenceError(error.failed) from error
