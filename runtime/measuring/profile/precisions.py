"""Which low precisions a model tolerates: how far its outputs in them are from the reference's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.machines.devices import KINDS, PRECISION, Plugin, with_precision
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.variant import Variant, outputs_by_kind, start_child
from runtime.measuring.outputs.outputs import OutputsByKind, Reference
from runtime.measuring.outputs.quality import accuracy_of, affordable_kinds, limits_for, most_allowed, why_only_full
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
SHORT_S = 10.0  # that a trial takes which others run beside
COMPILED = 4.0  # times the bytes of its weights that a model takes at most while it is compiled


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
    """Return (plug-in, precision) of what the devices, and the baselines of their CPUs, compute in other than f32."""
    named = {(d.plugin, d.properties[PRECISION]) for d in devices}
    cpus = {(d.plugin, precision) for d in devices if d.kind == "cpu" for precision in plugins[d.plugin].precisions}
    return sorted(pair for pair in named | cpus if pair[1] != FULL)


def try_precisions(
    model: Path, pairs: Sequence[tuple[str, str]], settings: MeasureSettings, *, seed: int, deadline: Deadline = NEVER
) -> tuple[list[PrecisionTrial], Reference]:
    """Return what becomes of the model on each plug-in in each precision, and what it was compared with.

    Raises:
        ChildError: the CPU cannot run the model in f32.
        UsageError: an inference takes so long that nothing could be measured before the deadline.
    """
    reference = reference_outputs(model, settings, seed=seed)
    check_fits(reference.seconds, deadline, load_s=reference.load_s)
    if why_not := why_only_full(reference, settings):
        allowed = most_allowed(reference, settings)
        return [PrecisionTrial(*pair, None, allowed, why_not) for pair in pairs], reference
    checks_s = max(LEAST_CHECKS_S, CHECKS_SHARE * deadline.left_s) / max(1, len(pairs))
    kinds = affordable_kinds(list(reference.outputs), reference.seconds, checks_s)

    def trial(pair: tuple[str, str]) -> PrecisionTrial:
        return _try_precision(model, *pair, reference, kinds, settings, seed=seed)

    # Nothing is timed; a short trial is mostly a process that begins, and an interrupt waits for no long one.
    short = reference.load_s + len(kinds) * reference.seconds < SHORT_S
    if len(pairs) > 1 and short and _have_room(model, len(pairs)):
        with ThreadPoolExecutor(len(pairs)) as pool:
            return list(pool.map(trial, pairs)), reference
    return [trial(pair) for pair in pairs], reference


def _have_room(model: Path, copies: int) -> bool:
    """Return whether the memory that is free takes so many copies of a model, compiled."""
    weights = model.with_suffix(".bin")
    size = weights.stat().st_size if weights.is_file() else 0
    return copies * COMPILED * size < psutil.virtual_memory().available


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


def _try_precision(
    model: Path,
    plugin: str,
    precision: str,
    reference: Reference,
    kinds: Sequence[str],
    settings: MeasureSettings,
    *,
    seed: int,
) -> PrecisionTrial:
    device_kind = KINDS.get(plugin.partition(".")[0], "other")
    device = DeviceSpec(plugin, plugin, plugin, {PRECISION: precision}, device_kind)
    variant = Variant(f"{plugin} {precision}", "baseline", plugin, (device,), single=True)
    allowed = most_allowed(reference, settings)
    limits = limits_for({plugin: precision}, reference, settings)

    def outputs() -> OutputsByKind:
        child, _ = start_child(variant, model, settings, seed=seed)
        with child:
            return outputs_by_kind(child, kinds)

    try:
        accuracy = accuracy_of(ask_with_retry(outputs), reference, limits, settings)
    except ChildError as error:
        why_not = f"it does not run ({error.failed.message})"
        return PrecisionTrial(plugin, precision, None, allowed, why_not, error.failed.transient)
    if isinstance(accuracy, MeasurementFailed):
        return PrecisionTrial(plugin, precision, None, allowed, accuracy.message)
    setting = "measure.metric_drop" if settings.metric else "measure.low_tolerance"
    difference = accuracy.worst if accuracy.worst is not None and math.isfinite(accuracy.worst) else None
    told = accuracy.to_json() if difference is not None else None
    return PrecisionTrial(plugin, precision, difference, allowed, accuracy.why_not, setting=setting, accuracy=told)


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
    """Return plug-ins without the precisions that a model does not tolerate."""
    out = left_out(tried)
    return {
        name: replace(plugin, precisions=tuple(p for p in plugin.precisions if (name, p) not in out))
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
