"""Whether outputs count as right: by how far they are from the reference's, or by a user's own measure of quality."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.accuracy import LOW_TOLERANCE, Accuracy, AccuracyLimits
from pipeline.core.errors import UsageError
from pipeline.core.figures import finite_or_none
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.checks import FACTS, FLOAT, REFERENCE, SHAKEN, load_by_kind
from pipeline.shared.model_inputs import GIVEN_KIND, TIMED, ZEROS, first_samples
from runtime.measuring.outputs.outputs import (
    OutputDifference,
    Outputs,
    OutputsByKind,
    Reference,
    flip_share,
    format_percent,
    holds_nan,
    output_differences,
)

SAME = 1e-3  # relative L2 distance up to which outputs in f32 count as the same; measured: 1e-5 at most on 30 models
SAME_INDICES = 0.05  # share of indices, or rows, that two computations may differ by: chance decides near ties
SHAKES = 3.0  # times what a tiny change of the inputs does, by which outputs may differ
LOW_CHANCE = 1.0  # of a limit, by which more that may be in a low precision: what is that unstable tells too little
ROUNDED = 1.5  # times what rounding its activations does to the reference, by which another rounding lies apart from it
ROUNDING = 1.25  # the same from the float outputs: other roundings come to about as much
INT8_TOLERANCE = 1e-2  # what two right runtimes differ by that round activations to int8: 0.4 % were measured
GENERATED = 0.8  # share of a limit that is used on generated inputs: on others, outputs differ by more
ENOUGH_DECISIONS = 20  # on one kind of inputs, for the share that flips to tell something

Metric = Callable[[Outputs], float]
Figure = Callable[[OutputDifference], float]


@dataclass(frozen=True, slots=True)
class KindDifference:
    """An output on a kind of inputs: how far from the reference's, and how far both are from the float's if known.

    slack: how far the reference's own output moves where inputs change by as little as rounding does, and known: how
    far the model as it was read is in f32; None if unknown. chance: what slack may add at most, over a limit.
    """

    kind: str
    apart: OutputDifference
    slack: OutputDifference | None = None
    from_float: OutputDifference | None = None
    rounding: OutputDifference | None = None
    known: OutputDifference | None = None
    chance: float = math.inf

    def allowed(self, limit: float, figure: Figure, rounded: float = ROUNDED) -> float:
        """Return how far a figure of the output may be from the reference's, which wavers itself.

        That is the limit, or where that is more, what another rounding of the activations may come to, or what f32 is
        known to; and besides what a tiny change of the inputs does.
        """
        rounding, known, slack = self._moves(figure)
        moved = SHAKES * slack if math.isinf(self.chance) else min(SHAKES * slack, self.chance * limit)
        return max(limit, rounded * rounding, rounded * known) + moved

    def _moves(self, figure: Figure) -> tuple[float, float, float]:
        """Return a figure of `rounding`, of `known` and of `slack`; 0 where one is unknown."""
        rounding, known, slack = (
            0.0 if own is None else figure(own) for own in (self.rounding, self.known, self.slack)
        )
        return rounding, known, slack

    def rule(self, limit: float) -> str:
        """Return by which rule an output of numbers may be further off than the limit, and how far; "" if it is not."""
        if self.apart.difference <= limit:
            return ""
        most = self.allowed(limit, _difference)
        if self.apart.difference > most:
            return "about as near to the model in float as the reference"
        rounding, known, slack = self._moves(_difference)
        why = {
            "as rounding moves the reference": ROUNDED * rounding,
            "as the model that was read differs": ROUNDED * known,
            "as a tiny change of the inputs moves it": SHAKES * slack,
        }
        return f"{self.apart.name} {format_percent(most)}, {max(why, key=lambda words: why[words])}"

    def worst(self, limits: AccuracyLimits) -> tuple[float, str]:
        """Return how near it is to the limits, where 1 is at one of them and more is beyond, and in words what is.

        What is about as near to the float outputs as the reference is, or within the limits of them, is right as well.
        """
        strain, words = self._worst(self.apart, limits, ROUNDED)
        if self.from_float is not None:
            strain = min(strain, self._worst(self.from_float, limits, ROUNDING)[0])
        return strain, words

    def _worst(self, apart: OutputDifference, limits: AccuracyLimits, rounded: float) -> tuple[float, str]:
        """Return the largest of what an output differs by, each over what is allowed, and what that is in words.

        Zeros make ties: indices, rows and decisions do not count on them, nor do few decisions anywhere.
        """
        tied, of_values = self.kind == ZEROS, apart.kind == "values"
        told: list[tuple[float, float, str]] = []

        def tell(limit: float, figure: Figure, words: str) -> None:
            told.append((figure(apart), self.allowed(limit, figure, rounded), words))

        if of_values:
            tell(limits.output, _difference, f"outputs differ by {format_percent(apart.difference)} from the reference")
        elif not tied:
            tell(limits.indices, _difference, f"{format_percent(apart.difference)} of the entries differ")
        if not tied:
            tell(limits.rows, _unmatched, f"{format_percent(apart.unmatched)} of the rows have no match")
        if not tied and apart.decisions >= ENOUGH_DECISIONS:
            tell(limits.flips, flip_share, f"{apart.flips} of {apart.decisions} decisions flip")
        where = apart.name + (f" on {self.kind}" if self.kind != TIMED else "")
        each = [
            (_excess_over(value, most), f"{words} ({format_percent(most)} allowed; {where})")
            for value, most, words in told
        ]
        return max(each, default=(0.0, ""))


def _difference(apart: OutputDifference) -> float:
    return apart.difference


def _unmatched(apart: OutputDifference) -> float:
    return apart.unmatched


def _excess_over(value: float, allowed: float) -> float:
    if math.isinf(allowed):  # a change of the inputs as small as rounding may lead anywhere
        return 0.0
    return value / allowed if allowed else (math.inf if value else 0.0)


def accept_outputs(
    actual: OutputsByKind, reference: Reference, precisions: Mapping[str, str], settings: MeasureSettings
) -> Accuracy | MeasurementFailed:
    """Return how far outputs are from the reference's, or why that is too much.

    actual: on the kinds of inputs of the reference, or on some of them, which are then all that counts. precisions:
    that they were computed in, by device. With a metric quality counts, and not the distance; see `metric_loss`.

    Raises:
        UsageError: the metric is not there, or fails.
    """
    accuracy = accuracy_of(actual, reference, limits_for(precisions, reference, settings), settings)
    if isinstance(accuracy, MeasurementFailed) or not accuracy.why_not:
        return accuracy
    return MeasurementFailed("wrong_output", accuracy.why_not)


def accuracy_of(
    actual: OutputsByKind, reference: Reference, limits: AccuracyLimits, settings: MeasureSettings
) -> Accuracy | MeasurementFailed:
    """Return how far outputs are from the reference's, whatever is allowed, or why they cannot be compared.

    Raises:
        UsageError: the metric is not there, or fails.
    """
    kinds = [kind for kind in reference.outputs if kind in actual]
    strict = AccuracyLimits.of(exact_tolerance(reference, settings))
    chance = LOW_CHANCE if limits.output > strict.output else math.inf
    compared = compare_by_kind(actual, reference, kinds, chance=chance)
    if isinstance(compared, MeasurementFailed):
        return compared
    strains = [c.worst(limits) for c in compared]
    at = int(np.argmax([strain for strain, _ in strains])) if strains else -1
    worst = compared[at] if strains else None
    lost = metric_loss({kind: actual[kind] for kind in kinds}, reference.outputs, settings) if settings.metric else None
    if lost is not None:
        why_not = _metric_fault(lost, settings)
    else:
        why_not = strains[at][1] if worst and strains[at][0] > 1 else ""
    each = [c.apart for c in compared]
    values = [d for d in each if d.kind == "values"]
    furthest = max((c for c in compared if c.apart.kind == "values"), key=lambda c: c.apart.difference, default=None)
    channel = max(values, key=lambda d: d.channel_difference, default=None)
    from_float, own = (
        [d.difference for d in more if d is not None and d.kind == "values"]
        for more in ([c.from_float for c in compared], [c.rounding for c in compared])
    )
    return Accuracy(
        output=worst.apart.name if worst else "",
        kind=worst.kind if worst else "",
        difference=finite_or_none(max((d.difference for d in values), default=0.0)),
        mean=finite_or_none(float(np.mean([d.difference for d in values] or [0.0]))),
        channel=f"{channel.name}[{channel.channel}]" if channel and channel.channel is not None else "",
        channel_difference=finite_or_none(channel.channel_difference if channel else 0.0),
        indices=max((d.difference for d in each if d.kind == "indices"), default=0.0),
        rows=max((d.unmatched for d in each), default=0.0),
        flips=sum(d.flips for d in each),
        decisions=sum(d.decisions for d in each),
        flip_share=max((flip_share(d) for d in each if d.decisions >= ENOUGH_DECISIONS), default=0.0),
        exact=all(KindDifference(c.kind, c.apart).worst(strict)[0] <= 1 for c in compared),
        kinds=tuple(kinds),
        limits=limits,
        from_float=finite_or_none(max(from_float)) if from_float else None,
        reference_from_float=finite_or_none(max(own)) if own else None,
        lost=lost,
        rule=furthest.rule(limits.output) if furthest is not None and lost is None and not why_not else "",
        why_not=why_not,
    )


def compare_by_kind(
    actual: OutputsByKind, reference: Reference, kinds: Sequence[str], *, chance: float = math.inf
) -> list[KindDifference] | MeasurementFailed:
    """Return how far every output is from the reference's on every kind of inputs, or why they cannot be compared.

    chance: see `KindDifference`.

    A kind that makes the reference NaN tells nothing of that output; if all do, the first counts.
    """
    compared: list[KindDifference] = []
    telling = {
        name: [kind for kind in kinds if not holds_nan(reference.outputs[kind][name])] or list(kinds[:1])
        for name in (reference.outputs[kinds[0]] if kinds else ())
    }
    for kind in kinds:
        expected = reference.outputs[kind]
        apart = output_differences(actual[kind], expected, reference.channels, kind=kind)
        if isinstance(apart, MeasurementFailed):
            return apart
        slack, rounding, known = (each.get(kind, {}) for each in (reference.slack, reference.rounding, reference.known))
        floats = (
            output_differences(actual[kind], reference.exact[kind], reference.channels, kind=kind) if rounding else []
        )
        # Where the float model has other rows than this one, it tells nothing of these outputs.
        from_float = {} if isinstance(floats, MeasurementFailed) else {d.name: d for d in floats}
        compared += [
            KindDifference(
                kind, d, slack.get(d.name), from_float.get(d.name), rounding.get(d.name), known.get(d.name), chance
            )
            for d in apart
            if kind in telling[d.name]
        ]
    return compared


def exact_tolerance(reference: Reference, settings: MeasureSettings) -> float:
    """Return what outputs in f32 may differ by; a model that is int8 itself is rounded by every runtime its own way."""
    return max(settings.tolerance, INT8_TOLERANCE) if reference.int8_kernels else settings.tolerance


def same_within(output: float) -> AccuracyLimits:
    """Return the limits within which two computations count as the same, whatever they decide by chance.

    output: what numbers may differ by, relative in L2 norm.
    """
    own = AccuracyLimits.of(output)
    return AccuracyLimits(output, max(own.indices, SAME_INDICES), max(own.rows, SAME_INDICES), math.inf)


def reference_beside(folder: Path, outputs: OutputsByKind | None = None) -> Reference:
    """Return what the source of a normalised model gives, as its read step has left it in a folder; empty if nothing.

    outputs: of the reference, those of some kinds; all that are there if None.
    """
    known, exact, shaken = (
        load_by_kind(folder / name) if (folder / name).is_file() else {} for name in (REFERENCE, FLOAT, SHAKEN)
    )
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8")) if (folder / FACTS).is_file() else {}
    chosen = facts.get("chosen", ())
    return Reference(known if outputs is None else outputs, exact=exact, shaken=shaken, chosen=chosen)


def limits_for(precisions: Mapping[str, str], reference: Reference, settings: MeasureSettings) -> AccuracyLimits:
    """Return what is allowed in the precisions that a model really runs in."""
    exact = exact_tolerance(reference, settings)
    return AccuracyLimits.of(exact if _only_full(precisions) else _low_tolerance(reference, settings))


def compared_kinds(reference: Reference, precisions: Mapping[str, str]) -> list[str]:
    """Return the kinds of inputs that what computes in these precisions is compared on: in low ones all samples."""
    return first_samples(reference.outputs) if _only_full(precisions) else list(reference.outputs)


def _only_full(precisions: Mapping[str, str]) -> bool:
    return set(precisions.values()) <= {"f32"}


def _low_tolerance(reference: Reference, settings: MeasureSettings) -> float:
    """Return what outputs in a low precision may differ by: what is set, or what goes with the accuracy asked for."""
    if settings.low_tolerance is not None:
        return settings.low_tolerance
    if why_only_full(reference, settings):
        return exact_tolerance(reference, settings)
    share = 1.0 if GIVEN_KIND in reference.outputs else GENERATED
    return max(exact_tolerance(reference, settings), share * LOW_TOLERANCE[settings.accuracy])


def why_only_full(reference: Reference, settings: MeasureSettings) -> str:
    """Return why the inputs cannot show that a low precision is accurate enough; "" where they can, or need not."""
    asked = settings.metric or settings.low_tolerance is not None or settings.accuracy == "loose"
    if asked or not reference.chosen or GIVEN_KIND in reference.outputs:
        return ""
    return (
        f"computed numbers choose the rows of {', '.join(reference.chosen)}, and a few generated inputs do not show "
        "how often rounding chooses others; give --input, or allow it by --accuracy loose"
    )


def most_allowed(reference: Reference, settings: MeasureSettings) -> float:
    """Return the figure up to which outputs of a low precision count as right: a difference, or a metric's loss."""
    return settings.metric_drop if settings.metric else _low_tolerance(reference, settings)


def affordable_kinds(kinds: Sequence[str], each_s: float, seconds: float, least: int = 1) -> list[str]:
    """Return as many kinds of inputs as can be compared in so many seconds, the most telling first; `least` at least.

    each_s: seconds that one takes.

    >>> affordable_kinds(["noise", "smooth", "zeros"], 1.0, 2.5), affordable_kinds(["noise", "smooth"], 1.0, 0.0)
    (['noise', 'smooth'], ['noise'])
    """
    count = seconds / each_s if each_s > 0 else (math.inf if seconds > 0 else 0.0)
    return list(kinds[: max(least, int(min(count, len(kinds))))])


def metric_loss(actual: OutputsByKind, expected: OutputsByKind, settings: MeasureSettings) -> float:
    """Return the largest share by which the user's metric falls from the reference's outputs on any kind of inputs.

    Infinite where it is no number; 0 where it does not fall.

    Raises:
        UsageError: the metric is not there, or fails.
    """
    metric = load_metric(settings.metric)
    lost = [0.0]
    for kind, outputs in actual.items():
        whole, ours = (_ask_metric(metric, each, settings.metric) for each in (expected[kind], outputs))
        lost.append(math.inf if math.isnan(ours) else max(0.0, whole - ours) / (abs(whole) or 1.0))
    return max(lost)


def _metric_fault(lost: float, settings: MeasureSettings) -> str:
    if lost <= settings.metric_drop:
        return ""
    name = settings.metric.rpartition(":")[2]
    return f"{name} falls by {format_percent(lost)} from the reference ({format_percent(settings.metric_drop)} allowed)"


def load_metric(text: str) -> Metric:
    """Return the function that FILE.py:FUNCTION names.

    Raises:
        UsageError: it is not written so, or there is no such file or function.
    """
    name, _, function = text.rpartition(":")
    path = Path(name)
    if path.suffix != ".py" or not function:
        raise UsageError(f"{text!r} names no function.", "Write it as in --metric quality.py:top1.")
    if not path.is_file():
        raise UsageError(f"There is no file {name}.", "Write the metric as in --metric quality.py:top1.")
    spec = importlib.util.spec_from_file_location(f"placewright_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{name} cannot be loaded.", "Write the metric as in --metric quality.py:top1.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # what a user's file does when it is loaded, may be anything
        raise UsageError(f"{name} cannot be loaded: {_in_one_line(error)}.", "Correct the file.") from error
    metric = getattr(module, function, None)
    if not callable(metric):
        raise UsageError(
            f"{name} has no function {function}.", f"It has: {', '.join(_public_functions(module)) or 'none'}."
        )
    return metric  # type: ignore[no-any-return]


def metric_file(text: str) -> Path:
    """Return the file of a metric, which is loaded to see that it can be.

    Raises:
        UsageError: it cannot.
    """
    load_metric(text)
    return Path(text.rpartition(":")[0])


def _ask_metric(metric: Metric, outputs: Outputs, text: str) -> float:
    try:
        return float(metric(dict(outputs)))
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"The metric {text} failed: {_in_one_line(error)}.",
            'It is given {"output_0": array, ...} and returns one number; the larger, the better.',
        ) from error


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()


def _public_functions(module: Any) -> list[str]:
    return sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
