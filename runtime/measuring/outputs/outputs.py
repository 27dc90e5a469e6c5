"""How far the outputs of one way to run a model are from the reference's, output by output; nothing is weighted.

Numbers are compared by the relative L2 norm. Integers of 32 and 64 bits, booleans and strings are indices, ids or
answers: the next number is as wrong as any other, and what counts is the share of entries that differ. Integers of 8
and 16 bits are numbers, such as the pixels of an image.

A norm over a whole output tells of its largest entries alone: of a detector's, of coordinates of hundreds, and not of
scores below 1. So the channels of an output are told apart by size: its channel axis is the one whose slices differ
most in size, whatever the layout, of those after the first with `LEAST_IN_CHANNEL` entries in a slice. Channels within
a factor of `ALIKE` of one another are compared together, others apart, and the difference of the output is that of the
worst. Sizes and channel axis are those over all kinds of inputs, and what is small on one kind is measured against
`QUIET` of what it is on others; what is small on all, against `FLOOR` of the largest channel; scores, which lie within
[0, 1] and do not add up to 1, against `SCORE`: nobody asks whether a score is 1e-6 or 2e-6. Zeros as inputs leave
little more than offsets, which are measured against the size on other inputs itself. Huge numbers, as masks make them,
are infinite to low precisions, and are taken for that.

Outputs with other numbers of rows, as those of NonMaxSuppression, are compared over the rows that match: each row of
the shorter one and its nearest among the other's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Float64
from pipeline.core.measurement import MeasurementFailed
from pipeline.shared.model_inputs import ZEROS
from runtime.measuring.outputs.decisions import class_axis, count_flips

Outputs = Mapping[str, npt.NDArray[Any]]
OutputsByKind = Mapping[str, Outputs]  # by kind of inputs, see `pipeline.shared.checks`
Kind = Literal["values", "indices"]

LEAST_IN_CHANNEL = 8  # entries; fewer are no sample of a channel
ALIKE = 10.0
QUIET = 0.1
FLOOR = 1e-3
SCORE = 1e-2  # root mean square of scores, one in ten thousand of which is 1
SHOWN = 0.05  # a score below it is no sign of anything
LEAST_SCORES = 20
HUGE = 1e30


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How far one output is from the reference's.

    kind: "values", then `difference` is relative in L2 norm, or "indices", then it is the share of entries that differ.
    unmatched: the share of rows that only one of the two has. channel: the one that differs most, by
    channel_difference; None where there are none. flips: decisions that differ, of `decisions`.
    """

    name: str
    kind: Kind
    difference: float
    unmatched: float = 0.0
    channel: int | None = None
    channel_difference: float = 0.0
    flips: int = 0
    decisions: int = 0

    def __str__(self) -> str:
        """Return the difference in words.

        >>> str(OutputDifference("output_0", "indices", 0.2, 0.5))
        'output_0: 20 % of its entries, 50 % of its rows have no match'
        """
        text = f"{self.name}: {format_percent(self.difference)}" + (" of its entries" if self.kind == "indices" else "")
        return text + (f", {format_percent(self.unmatched)} of its rows have no match" if self.unmatched else "")


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """How an output of numbers is made of channels.

    axis: the dimension along which they lie, None for an output that is one channel. size: float64 [c], root mean
    square of each.
    """

    axis: int | None
    size: Float64

    @classmethod
    def of(cls, expected: Float64) -> Channels:
        """Return the channels of one array."""
        squares = _finite_squares(expected)
        axis = _axis_of(squares)
        return cls(axis, _slice_sizes(squares, axis))

    def fit(self, shape: Sequence[int]) -> bool:
        """Return whether an array of this shape has them."""
        if not math.prod(shape):
            return False
        return self.axis is None or (self.axis < len(shape) and shape[self.axis] == self.size.size)


DifferencesByKind = Mapping[str, Mapping[str, OutputDifference]]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What all variants of a model are compared with.

    outputs: of one inference of the whole model for every kind of inputs. int8_kernels: names of the kernels that it
    computes in int8, None where nobody knows. seconds: that the inference took, roughly, and saving them. load_s: that
    compiling took. exact: what a model that quantises activations as it runs gives without that, for the same inputs;
    empty where that is unknown. shaken: what it gives for inputs that were changed by as little as rounding does.
    normalised: what the model that is measured gives in f32, which its read step has accepted. chosen: names of outputs
    whose rows are chosen by computed numbers.

    channels: see `channels_of`. rounding: how far the outputs are from the exact ones. slack: how far the shaken ones
    are; infinitely where they cannot be compared. known: how far the normalised ones are.
    """

    outputs: OutputsByKind
    int8_kernels: Sequence[str] | None = None
    seconds: float = 0.0
    load_s: float = 0.0
    exact: OutputsByKind = field(default_factory=dict)
    shaken: OutputsByKind = field(default_factory=dict)
    normalised: OutputsByKind = field(default_factory=dict)
    chosen: Sequence[str] = ()
    channels: Mapping[str, Channels] = field(init=False)
    rounding: DifferencesByKind = field(init=False)
    slack: DifferencesByKind = field(init=False)
    known: DifferencesByKind = field(init=False)

    @property
    def ran(self) -> dict[str, Any]:
        """Return as JSON what is known of running the model on the CPU in f32; see `variant.known_reference`."""
        kernels = None if self.int8_kernels is None else list(self.int8_kernels)
        return {"int8_kernels": kernels, "seconds": self.seconds, "load_s": self.load_s}

    def __post_init__(self) -> None:
        channels = channels_of(list(self.outputs.values()))
        slack = dict(_by_kind(self.shaken, self.outputs, channels))
        for kind in (self.outputs.keys() & self.shaken.keys()) - slack.keys():
            far = math.inf
            slack[kind] = {n: OutputDifference(n, _array_kind(a), far, far) for n, a in self.outputs[kind].items()}
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "rounding", _by_kind(self.outputs, self.exact, channels))
        object.__setattr__(self, "slack", slack)
        object.__setattr__(self, "known", _by_kind(self.normalised, self.outputs, channels))


def _by_kind(actual: OutputsByKind, expected: OutputsByKind, channels: Mapping[str, Channels]) -> DifferencesByKind:
    """Return the differences by kind and output; of kinds that both have, and whose outputs can be compared."""
    found: dict[str, dict[str, OutputDifference]] = {}
    for kind in expected.keys() & actual.keys():
        each = output_differences(actual[kind], expected[kind], channels, kind=kind)
        if not isinstance(each, MeasurementFailed):
            found[kind] = {d.name: d for d in each}
    return found


def flip_share(apart: OutputDifference) -> float:
    """Return the share of an output's decisions that differ; 0 without any."""
    return apart.flips / apart.decisions if apart.decisions else 0.0


def output_differences(
    actual: Outputs, expected: Outputs, channels: Mapping[str, Channels] | None = None, *, kind: str = ""
) -> list[OutputDifference] | MeasurementFailed:
    """Return how far each output is from what was expected, in the model's order, or why they cannot be compared.

    channels: see `channels_of`; of these outputs alone unless given. kind: of inputs; "" if that does not matter.
    """
    if sorted(actual) != sorted(expected):
        return MeasurementFailed("wrong_output", f"{len(actual)} outputs instead of {len(expected)}")
    for name, array in expected.items():
        if not _are_comparable(actual[name], array):
            return MeasurementFailed("wrong_output", f"{name} has shape {actual[name].shape}, not {array.shape}")
    known = channels if channels is not None else channels_of([expected])
    quiet = 1.0 if kind == ZEROS else QUIET
    return [_output_difference(name, actual[name], array, known.get(name), quiet) for name, array in expected.items()]


def channels_of(expected: Sequence[Outputs]) -> dict[str, Channels]:
    """Return the channels of every output of numbers over several sets of outputs, with the largest size of each."""
    squares: dict[str, list[Float64]] = {}
    for outputs in expected:
        for name, array in outputs.items():
            if _array_kind(array) == "values" and array.size:
                known = squares.setdefault(name, [])
                known += (
                    [_finite_squares(array.astype(np.float64))] if not known or known[0].shape == array.shape else []
                )
    found: dict[str, Channels] = {}
    for name, each in squares.items():
        axis = _axis_of(np.asarray(sum(each), np.float64))
        found[name] = Channels(axis, np.max([_slice_sizes(one, axis) for one in each], axis=0))
    return found


def low_scores(by_kind: OutputsByKind) -> list[str]:
    """Return the outputs with scores that stay below `SHOWN` on all kinds of inputs, as if there was nothing to find.

    Scores are the channels that lie within [0, 1] on every kind and are not of classes that add up to 1.
    """
    found = []
    for name, axes in channels_of(list(by_kind.values())).items():
        each = [np.asarray(outputs[name], np.float64) for outputs in by_kind.values()]
        if any(one.shape != each[0].shape or class_axis(one) is not None for one in each):
            continue
        scores = np.all([_within_one(one, axes.axis) for one in each], axis=0)
        highest = max(float(_channel_peaks(one, axes.axis)[scores].max(initial=0.0)) for one in each)
        entries = each[0].size // scores.size * int(scores.sum())
        found += [name] if entries >= LEAST_SCORES and highest < SHOWN else []
    return found


def _channel_peaks(values: Float64, axis: int | None) -> Float64:
    others = None if axis is None else tuple(a for a in range(values.ndim) if a != axis)
    return np.asarray(values.max(axis=others)).reshape(-1)


def lost_int8(kernels: Sequence[str] | None, reference: Reference) -> MeasurementFailed | None:
    """Return that a variant computes fewer kernels in int8 than the reference, and which; None if it does not."""
    if kernels is None or reference.int8_kernels is None or len(kernels) >= len(reference.int8_kernels):
        return None
    lost = [name for name in reference.int8_kernels if name not in kernels]
    told = f"{len(reference.int8_kernels) - len(kernels)} of {len(reference.int8_kernels)} kernels"
    return MeasurementFailed(
        "refused", f"{told} no longer run in int8: {', '.join(lost[:3])}{' ...' * (len(lost) > 3)}"
    )


def format_percent(share: float) -> str:
    """Return a share as people read it.

    >>> format_percent(0.1149), format_percent(0.05), format_percent(float("inf"))
    ('11.5 %', '5 %', 'infinitely much')
    """
    return f"{100 * share:.3g} %" if np.isfinite(share) else "infinitely much"


def nan_shares(outputs: Outputs) -> dict[str, float]:
    """Return by output the share of entries that are NaN, of those that have some.

    >>> nan_shares({"output_0": np.array([1.0, np.nan]), "output_1": np.ones(2), "output_2": np.array([1])})
    {'output_0': 0.5}
    """
    shares = {name: float(np.isnan(array).mean()) for name, array in outputs.items() if array.size and _is_real(array)}
    return {name: share for name, share in shares.items() if share}


def holds_nan(array: npt.NDArray[Any]) -> bool:
    """Return whether some entries are NaN."""
    return _is_real(array) and bool(np.isnan(array).any())


def _is_real(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def _are_comparable(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return whether two arrays have one shape, or differ in the number of rows alone."""
    return actual.ndim == expected.ndim and actual.shape[1:] == expected.shape[1:]


def _array_kind(array: npt.NDArray[Any]) -> Kind:
    return "indices" if array.dtype.kind in "bSU" or (array.dtype.kind in "iu" and array.itemsize > 2) else "values"


def _output_difference(
    name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any], channels: Channels | None, quiet: float
) -> OutputDifference:
    kind = _array_kind(expected)
    ours, theirs = _as_numbers(actual, expected)
    unmatched = 0.0
    if ours.shape != theirs.shape:
        unmatched = abs(len(ours) - len(theirs)) / max(len(ours), len(theirs))
        ours, theirs = matched_rows(ours, theirs)
    if kind == "values":
        channels = channels if channels is not None and channels.fit(theirs.shape) else Channels.of(theirs)
        return _of_values(name, ours, theirs, unmatched, channels, quiet)
    return OutputDifference(name, kind, float(np.mean(ours != theirs)) if theirs.size else 0.0, unmatched)


def _of_values(
    name: str, actual: Float64, expected: Float64, unmatched: float, channels: Channels, quiet: float
) -> OutputDifference:
    """Return the difference of outputs of numbers, of one shape.

    quiet: share of a channel's usual size against which it is measured where it is smaller.
    """
    finite = np.abs(expected) < HUGE
    if not _agree_beyond(actual, expected, finite):
        return OutputDifference(name, "values", float("inf"), unmatched)
    with np.errstate(invalid="ignore"):  # infinity less infinity, which does not count
        apart = np.square(np.where(finite, actual - expected, 0.0))
    axis, classes = channels.axis, class_axis(expected)
    size, distance = _slice_sizes(_finite_squares(expected), axis), _slice_sizes(apart, axis)
    scores = _within_one(expected, axis)
    least = np.where(scores & (classes is None), SCORE, FLOOR * channels.size.max())
    size = np.maximum(size, np.maximum(quiet * channels.size, least))
    groups = channel_groups(channels.size)
    total = np.bincount(groups, np.square(size))
    worst = float(np.sqrt(np.bincount(groups, np.square(distance)) / np.where(total, total, 1.0)).max())
    along = [size.size if a == axis else 1 for a in range(expected.ndim)]
    flipped, decisions = count_flips(actual, expected, classes, scores=scores.reshape(along))
    difference = OutputDifference(name, "values", worst, unmatched, flips=flipped, decisions=decisions)
    if axis is None:
        return difference
    by_channel = distance / np.where(size, size, 1.0)
    channel = int(by_channel.argmax())
    return replace(difference, channel=channel, channel_difference=float(by_channel[channel]))


def _agree_beyond(actual: Float64, expected: Float64, finite: Bool) -> bool:
    """Return whether entries that are NaN, infinite or huge are so in both, with one sign."""
    if finite.all() and (np.abs(actual) < HUGE).all():
        return True
    if not (np.abs(actual[finite]) < HUGE).all():
        return False
    ours, theirs = actual[~finite], expected[~finite]
    same_sign = (np.sign(ours) == np.sign(theirs)) & (np.abs(ours) >= HUGE)
    return bool((same_sign | (np.isnan(ours) & np.isnan(theirs))).all())


def channel_axis(expected: Float64) -> int | None:
    """Return the dimension whose slices differ most in size, none of them small; None where there is none."""
    return _axis_of(_finite_squares(expected))


def _finite_squares(values: Float64) -> Float64:
    """Return the squares; 0 of entries that are not finite, or huge."""
    return np.square(np.where(np.abs(values) < HUGE, values, 0.0))


def _axis_of(squares: Float64) -> int | None:
    spread: dict[int, float] = {}
    for axis in range(1, squares.ndim):
        n = squares.shape[axis]
        if n > 1 and squares.size >= n * LEAST_IN_CHANNEL:
            size = _slice_sizes(squares, axis)
            least = 1e-9 * float(size.max()) or 1.0
            spread[axis] = float(np.std(np.log(np.maximum(size, least))))
    return max(spread, key=lambda axis: spread[axis], default=None)


def _slice_sizes(squares: Float64, axis: int | None) -> Float64:
    """Return float64 [c], the root mean square of every slice along a dimension; [1], of all, without one."""
    if axis is None:
        return np.array([math.sqrt(squares.mean()) if squares.size else 0.0])
    others = tuple(a for a in range(squares.ndim) if a != axis)
    return np.asarray(np.sqrt(squares.mean(axis=others)), np.float64)


def channel_groups(size: Float64) -> npt.NDArray[np.intp]:
    """Return the number of the group of each channel: those within a factor of the largest of their group.

    >>> channel_groups(np.array([300.0, 0.5, 200.0, 0.1, 0.0])).tolist()
    [0, 1, 0, 1, 2]
    """
    group = np.zeros(size.size, np.intp)
    head, number = float("inf"), -1
    for i in np.argsort(-size):
        if number < 0 or size[i] * ALIKE < head:
            head, number = float(size[i]), number + 1
        group[i] = number
    return group


def _within_one(expected: Float64, axis: int | None) -> Bool:
    """Return bool [c], of every channel whether all its values lie within [0, 1]; [1] without an axis."""
    inside = (expected >= 0) & (expected <= 1)
    if axis is None:
        return np.array([bool(inside.all())])
    return np.asarray(inside.all(axis=tuple(a for a in range(expected.ndim) if a != axis)), bool)


def _as_numbers(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[Float64, Float64]:
    """Return two arrays as numbers; equal strings become equal ones."""
    if expected.dtype.kind not in "SU":
        return found.astype(np.float64), expected.astype(np.float64)
    _, codes = np.unique(np.concatenate([found.ravel(), expected.ravel()]), return_inverse=True)
    ours, theirs = np.split(codes.astype(np.float64), [found.size])
    return ours.reshape(found.shape), theirs.reshape(expected.shape)


def matched_rows(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Return rows of both arrays, as many as the shorter one has, each beside its nearest that is left in the other.

    a, b: float64 [r, ...] and [s, ...]. Rows of the shorter one choose in their order.
    """
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    width = int(np.prod(few.shape[1:]))
    flat = many.reshape(len(many), width)
    free = np.ones(len(many), bool)
    chosen = np.empty(len(few), np.int64)
    for i, row in enumerate(few.reshape(len(few), width)):
        distance = np.where(free, np.square(flat - row).sum(axis=1), np.inf)
        chosen[i] = np.argmin(np.where(np.isnan(distance), np.inf, distance))
        free[chosen[i]] = False
    return (few, many[chosen]) if few is a else (many[chosen], few)
