"""Which low precisions a model tolerates: how far its outputs in them are from the reference's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.accuracy import Accuracy, AccuracyLimits
from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from runtime.machines.devices import KINDS, PRECISION, Plugin, with_precision
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.variant import Variant, known_reference, outputs_by_kind, start_child, time_kernels
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.outputs.quality import (
    accuracy_of,
    affordable_kinds,
    compared_kinds,
    limits_for,
    most_allowed,
    why_only_full,
)
from runtime.measuring.process.child import ChildError
from runtime.measuring.process.retry import ask_with_retry

FULL = "f32"
LEAST_INFERENCES = 30  # that profiling, placing and a first sight of a few settings take
SENSIBLE_INFERENCES = 120  # that a comparison takes as well
CHECKS_SHARE, LEAST_CHECKS_S = (
    0.1,
    1.0,
)  # of the time left that comparing outputs takes at most, and seconds it may take
LEAST_LOADS, SENSIBLE_LOADS = 6, 20  # of the model, for the same


@dataclass(frozen=True, slots=True)
class PrecisionTrial:
    """What became of a model computed in one precision.

    difference: the largest share by which an output differs from the reference's, or with a metric the share of quality
    that is lost; None where it did not run, or is infinite.
    allowed: the largest that counts as right. why_not: in words; "" where the precision is accurate enough. transient:
    whether it did not run for a reason that may be gone another time. setting: which one allows more, "" where none
    does. accuracy: all that is known of its outputs, as JSON; None where it did not run.
    """

    plugin: str
    precision: str
    difference: float | None
    allowed: float
    why_not: str
    transient: bool = False
    setting: str = ""
    accuracy: Mapping[str, Any] | None = None


def low_precisions(devices: Sequence[DeviceSpec], plugins: Mapping[str, Plugin]) -> list[tuple[str, str]]:
    """Return (plug-in, precision) of what the devices compute in other than f32, and their CPUs by default, or can."""
    pairs = {(d.plugin, d.properties[PRECISION]) for d in devices}
    for plugin in {d.plugin for d in devices if d.kind == "cpu"}:
        default = plugins[plugin].default_precision
        pairs |= {(plugin, p) for p in plugins[plugin].precisions if default in (p, FULL)}
    return sorted(pair for pair in pairs if pair[1] != FULL)


def spare_precisions(
    low: Sequence[tuple[str, str]], devices: Sequence[DeviceSpec], plugins: Mapping[str, Plugin]
) -> list[tuple[str, str]]:
    """Return (plug-in, precision) of what CPUs compute in besides: tried where the model tolerates none of `low`.

    What a plug-in takes by default is the precision that the CPU has units for: on one with tiles for bf16, f16 took
    1.2 to 6 times as long on nine exported models, and longer than f32.
    """
    cpus = {(d.plugin, precision) for d in devices if d.kind == "cpu" for precision in plugins[d.plugin].precisions}
    return sorted(pair for pair in cpus.difference(low) if pair[1] != FULL)


@dataclass(frozen=True, slots=True)
class Trials:
    """What became of a model in low precisions.

    ran: what a process that ran the whole model said of itself, see `Reference.ran`; None where none did. kernels: what
    `profile_model` is told of one device, by accurate precision; none unless asked.
    """

    tried: list[PrecisionTrial]
    ran: Mapping[str, Any] | None
    kernels: Mapping[str, Mapping[str, Any]]


def try_precisions(
    model: Path,
    pairs: Sequence[tuple[str, str]],
    settings: MeasureSettings,
    *,
    seed: int,
    spare: Sequence[tuple[str, str]] = (),
    deadline: Deadline = NEVER,
    profiling: ProfileSettings | None = None,
) -> Trials:
    """Return what becomes of the model on each plug-in in each precision.

    spare: tried where none of the plug-in's `pairs` is accurate enough. profiling: how kernels are timed meanwhile;
    then the CPU in f32, which gives nothing but the int8 kernels of a whole model, is not run once more.

    Raises:
        ChildError: the CPU cannot run the model in f32.
        UsageError: an inference takes so long that nothing could be measured before the deadline.
    """
    known = known_reference(model, {}) if profiling is not None else None
    reference = known or reference_outputs(model, settings, seed=seed)
    if known is None:
        check_fits(reference.seconds, deadline, load_s=reference.load_s)
    trial = _Trial(model, reference, settings, seed, deadline, len(pairs), profiling)
    if why_not := why_only_full(reference, settings):
        tried = [PrecisionTrial(*pair, None, most_allowed(reference, settings), why_not) for pair in pairs]
    else:
        tried = [trial.run(*pair) for pair in pairs]
        accurate = {t.plugin for t in tried if not t.why_not}
        tried += [trial.run(*pair) for pair in spare if pair[0] not in accurate]
    if known is not None and pairs[0][1] not in trial.kernels:
        trial.run(pairs[0][0], FULL)  # which the device computes in then: its kernels are timed
    return Trials(tried, reference.ran if known is None else trial.ran, trial.kernels)


def check_fits(inference_s: float, deadline: Deadline, *, load_s: float = 0.0) -> None:
    """Check that as many inferences as the least sensible measuring takes, and as much loading, fit into the time left.

    load_s: seconds that loading the model takes.

    Raises:
        UsageError: they do not; it says how much more would do.
    """
    if LEAST_INFERENCES * inference_s + LEAST_LOADS * load_s <= deadline.left_s:
        return
    more_s = math.ceil(SENSIBLE_INFERENCES * inference_s + SENSIBLE_LOADS * load_s - deadline.left_s)
    takes = f"An inference takes about {inference_s:.2g} s"
    takes += f", loading the model {load_s:.2g} s" if load_s > inference_s else ""
    raise UsageError(
        f"{takes}, and {deadline.left_s:.0f} s of the budget are left: too little to measure anything.",
        f"Add at least {more_s} s to --budget.",
    )


@dataclass(slots=True)
class _Trial:
    """Tries precisions of one model; count: how many there are. See `try_precisions`."""

    model: Path
    reference: Reference
    settings: MeasureSettings
    seed: int
    deadline: Deadline
    count: int
    profiling: ProfileSettings | None
    ran: dict[str, Any] | None = None
    kernels: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, plugin: str, precision: str) -> PrecisionTrial:
        """Return what becomes of the model on a plug-in in a precision."""
        allowed = most_allowed(self.reference, self.settings)
        limits = limits_for({plugin: precision}, self.reference, self.settings)
        try:
            accuracy, kernels = ask_with_retry(partial(self._ask, plugin, precision, limits))
        except ChildError as error:
            why_not = f"it does not run ({error.failed.message})"
            return PrecisionTrial(plugin, precision, None, allowed, why_not, error.failed.transient)
        if isinstance(accuracy, MeasurementFailed):
            return PrecisionTrial(plugin, precision, None, allowed, accuracy.message)
        if kernels is not None:
            self.kernels[precision] = kernels
        setting = "measure.metric_drop" if self.settings.metric else "measure.low_tolerance"
        difference = accuracy.worst if accuracy.worst is not None and math.isfinite(accuracy.worst) else None
        if difference is None:  # as where it gives NaN, which no setting allows
            return PrecisionTrial(plugin, precision, None, allowed, accuracy.why_not)
        told = accuracy.to_json()
        return PrecisionTrial(plugin, precision, difference, allowed, accuracy.why_not, setting=setting, accuracy=told)

    def _ask(
        self, plugin: str, precision: str, limits: AccuracyLimits
    ) -> tuple[Accuracy | MeasurementFailed, Mapping[str, Any] | None]:
        """Return how right it is, on as many kinds of inputs as there is time for, and of a right one its kernels."""
        device_kind = KINDS.get(plugin.partition(".")[0], "other")
        device = DeviceSpec(plugin, plugin, plugin, {PRECISION: precision}, device_kind)
        counters = {} if self.profiling is None else {"PERF_COUNT": "YES"}
        variant = Variant(f"{plugin} {precision}", "baseline", plugin, (device,), counters, single=True)
        child, loaded = start_child(variant, self.model, self.settings, seed=self.seed)
        with child:
            first, *_ = every = compared_kinds(self.reference, {plugin: precision})
            begun = time.monotonic()
            outputs = dict(outputs_by_kind(child, [first]))
            took_s = time.monotonic() - begun
            if self.ran is None and self.profiling is not None:
                self.ran = {"int8_kernels": loaded["int8_kernels"], "seconds": took_s, "load_s": loaded["compile_s"]}
                check_fits(took_s, self.deadline, load_s=loaded["compile_s"])
            checks_s = max(LEAST_CHECKS_S, CHECKS_SHARE * self.deadline.left_s) / self.count
            if kinds := affordable_kinds(every, took_s, checks_s)[1:]:
                outputs |= outputs_by_kind(child, kinds)
            accuracy = accuracy_of(outputs, self.reference, limits, self.settings)
            right = not (isinstance(accuracy, MeasurementFailed) or accuracy.why_not)
            return accuracy, time_kernels(child, self.profiling) if right and self.profiling is not None else None


def left_out(tried: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return (plug-in, precision) of what a model does not tolerate."""
    return {(t["plugin"], t["precision"]) for t in tried if t["why_not"]}


def raise_precisions(
    devices: Sequence[DeviceSpec],
    names: Sequence[str],
    tried: Sequence[Mapping[str, Any]],
    plugins: Mapping[str, Plugin],
) -> tuple[DeviceSpec, ...]:
    """Return the devices, those of `names` in f32 where the model does not tolerate their precision."""
    out = left_out(tried)
    return tuple(
        with_precision(d, FULL, plugins[d.plugin])
        if d.name in names and (d.plugin, d.properties[PRECISION]) in out
        else d
        for d in devices
    )


def without_untolerated(plugins: Mapping[str, Plugin], tried: Sequence[Mapping[str, Any]]) -> dict[str, Plugin]:
    """Return plug-ins without the low precisions that a model does not tolerate; without the spare ones not tried."""
    right = {(t["plugin"], t["precision"]) for t in tried if not t["why_not"]}
    asked = {t["plugin"] for t in tried}
    return {
        name: replace(plugin, precisions=tuple(p for p in plugin.precisions if p == FULL or (name, p) in right))
        if name in asked
        else plugin
        for name, plugin in plugins.items()
    }


def precision_notes(
    tried: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], used: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return sentences on the precisions left out, and on what devices compute in instead of what was `asked`."""
    out: dict[tuple[str, str, str], list[str]] = {}
    for t in tried:
        if t["why_not"]:
            out.setdefault((t["plugin"], t["why_not"], t["setting"]), []).append(t["precision"])
    words = [
        f"{' and '.join(low)} {'is' if len(low) == 1 else 'are'} left out on {plugin}: {why_not}."
        + (f" {setting} may allow more." if setting else "")
        for (plugin, why_not, setting), low in out.items()
    ]
    before = {d["name"]: d["properties"].get(PRECISION) for d in asked}
    changed = [
        d["name"]
        for d in used
        if before.get(d["name"], d["properties"].get(PRECISION)) != d["properties"].get(PRECISION)
    ]
    if changed:
        words.append(f"{' and '.join(changed)} compute{'s' * (len(changed) == 1)} in {FULL} instead.")
    return words


def trials_to_json(tried: Sequence[PrecisionTrial]) -> list[dict[str, Any]]:
    """Return the records that `left_out` and the others read."""
    return [asdict(t) for t in tried]
