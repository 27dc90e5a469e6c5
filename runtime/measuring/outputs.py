"""How far the outputs of one way to run a model are from the reference's, output by output.

Numbers are compared by the relative L2 norm. Integers of 32 and 64 bits, booleans and strings are indices, ids or
answers: the next number is as wrong as any other, and what counts is the share of entries that differ. Rounding swaps
what is nearly equal, such as the ranks of two classes, so that of such a share `INDEX_WEIGHT` counts against the
tolerance. Integers of 8 and 16 bits are numbers, such as the pixels of an image.

Outputs with other numbers of rows, as those of NonMaxSuppression, are compared over the rows that match: each row of
the shorter one and its nearest among the other's. Rows that match none count like indices that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Float64
from pipeline.core.measurement import MeasurementFailed
from pipeline.shared.checks import relative_l2

Outputs = Mapping[str, npt.NDArray[Any]]
OutputsByKind = Mapping[str, Outputs]  # by kind of inputs, see `pipeline.shared.checks`
Kind = Literal["values", "indices"]

INDEX_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What all variants of a model are compared with.

    outputs: of one inference of the whole model for every kind of inputs. int8_kernels: names of the kernels that it
    computes in int8, None where nobody knows. seconds: that the inference took, roughly, and saving them. load_s: that
    compiling took.
    """

    outputs: OutputsByKind
    int8_kernels: Sequence[str] | None = None
    seconds: float = 0.0
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How far one output is from the reference's.

    kind: "values", then `difference` is relative in L2 norm, or "indices", then it is the share of entries that differ.
    unmatched: the share of rows that only one of the two has.
    """

    name: str
    kind: Kind
    difference: float
    unmatched: float = 0.0

    @property
    def weighed(self) -> float:
        """Return what counts against the tolerance."""
        return max(self.difference * (INDEX_WEIGHT if self.kind == "indices" else 1.0), self.unmatched * INDEX_WEIGHT)

    def __str__(self) -> str:
        """Return the difference in words.

        >>> str(OutputDifference("output_0", "indices", 0.2, 0.5))
        'output_0: 20 % of its entries, 50 % of its rows have no match'
        """
        text = f"{self.name}: {percent(self.difference)}" + (" of its entries" if self.kind == "indices" else "")
        return text + (f", {percent(self.unmatched)} of its rows have no match" if self.unmatched else "")


def differences(actual: Outputs, expected: Outputs) -> list[OutputDifference] | MeasurementFailed:
    """Return how far each output is from what was expected, in the model's order, or why they cannot be compared."""
    if sorted(actual) != sorted(expected):
        return MeasurementFailed("wrong_output", f"{len(actual)} outputs instead of {len(expected)}")
    for name, array in expected.items():
        if not _comparable(actual[name], array):
            return MeasurementFailed("wrong_output", f"{name} has shape {actual[name].shape}, not {array.shape}")
    return [_difference(name, actual[name], array) for name, array in expected.items()]


def difference_of(actual: Outputs, expected: Outputs) -> float | MeasurementFailed:
    """Return what counts against the tolerance of the output that differs most, or why they cannot be compared."""
    each = differences(actual, expected)
    return each if isinstance(each, MeasurementFailed) else max((d.weighed for d in each), default=0.0)


def compare_outputs(actual: Outputs, expected: Outputs, tolerance: float) -> float | MeasurementFailed:
    """Return by how much outputs differ, as it counts against the tolerance, or what is wrong if that is too much."""
    each = differences(actual, expected)
    if isinstance(each, MeasurementFailed):
        return each
    worst = max(each, key=lambda d: d.weighed, default=None)
    if worst is None:
        return 0.0
    if worst.weighed <= tolerance:
        return worst.weighed
    allowed = percent(tolerance)
    if worst.kind == "values" and not worst.unmatched:
        return MeasurementFailed(
            "wrong_output", f"outputs differ by {percent(worst.difference)} from f32 ({allowed} allowed)"
        )
    allowed = percent(tolerance / INDEX_WEIGHT)
    return MeasurementFailed("wrong_output", f"outputs differ from f32 in {worst} ({allowed} allowed)")


def lost_int8(kernels: Sequence[str] | None, reference: Reference) -> MeasurementFailed | None:
    """Return that a variant computes fewer kernels in int8 than the reference, and which; None if it does not."""
    if kernels is None or reference.int8_kernels is None or len(kernels) >= len(reference.int8_kernels):
        return None
    lost = [name for name in reference.int8_kernels if name not in kernels]
    told = f"{len(reference.int8_kernels) - len(kernels)} of {len(reference.int8_kernels)} kernels"
    return MeasurementFailed(
        "refused", f"{told} no longer run in int8: {', '.join(lost[:3])}{' ...' * (len(lost) > 3)}"
    )


def percent(share: float) -> str:
    """Return a share as people read it.

    >>> percent(0.1149), percent(0.05), percent(float("inf"))
    ('11.5 %', '5 %', 'infinitely many %')
    """
    return f"{100 * share:.3g} %" if np.isfinite(share) else "infinitely many %"


def nan_shares(outputs: Outputs) -> dict[str, float]:
    """Return by output the share of entries that are NaN, of those that have some.

    >>> nan_shares({"output_0": np.array([1.0, np.nan]), "output_1": np.ones(2), "output_2": np.array([1])})
    {'output_0': 0.5}
    """
    shares = {name: float(np.isnan(array).mean()) for name, array in outputs.items() if array.size and _is_real(array)}
    return {name: share for name, share in shares.items() if share}


def _is_real(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def _comparable(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return whether two arrays have one shape, or differ in the number of rows alone."""
    return actual.ndim == expected.ndim and actual.shape[1:] == expected.shape[1:]


def _kind(array: npt.NDArray[Any]) -> Kind:
    return "indices" if array.dtype.kind in "bSU" or (array.dtype.kind in "iu" and array.itemsize > 2) else "values"


def _difference(name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> OutputDifference:
    kind = _kind(expected)
    ours, theirs = _numbers(actual, expected)
    unmatched = 0.0
    if ours.shape != theirs.shape:
        unmatched = abs(len(ours) - len(theirs)) / max(len(ours), len(theirs))
        ours, theirs = matched_rows(ours, theirs)
    if kind == "values":
        return OutputDifference(name, kind, relative_l2(ours, theirs), unmatched)
    return OutputDifference(name, kind, float(np.mean(ours != theirs)) if theirs.size else 0.0, unmatched)


def _numbers(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[Float64, Float64]:
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
