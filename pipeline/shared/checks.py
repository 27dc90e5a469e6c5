"""Arrays by kind of inputs, beside a normalised model: what outputs are checked with, and what the reference gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shared.payload import load_arrays

CHECKS = "checks.npz"  # inputs that outputs are compared on, by kind and name of the input
REFERENCE = "reference.npz"  # outputs of the source model for them, by kind and "output_0" ..
SHAKEN = "shaken.npz"  # the same for inputs that differ by as little as rounding does
FLOAT = "float.npz"  # the same of a dynamically quantised model whose activations are not rounded
TIMING = "timing.json"  # seconds that an inference of the normalised model takes, roughly
NORMALISED = "normalised.npz"  # the same of the normalised model, on the CPU in f32
EVALUATED = "evaluated.npz"  # the same of the source by OpenVINO's reference implementation, for what is timed
FACTS = "reference.json"  # what gave the reference, and what became of the normalised model
OUTPUTS = "outputs"  # what stands in the place of a kind for outputs of a model, beside results of its operations

ByKind = Mapping[str, Mapping[str, npt.NDArray[Any]]]


@dataclass(slots=True)
class ReferenceFacts:
    """What the reference was made by, beside its outputs.

    executor: and its version; "" for none. why_not: sentences on executors that were not used, and on kinds of inputs
    on which the source does not run. seconds: that all of it took. kinds: of inputs that it was run with. samples: how
    many more of these, for low precisions.
    way: what was done, in words, where the model read as usual departed from the reference; "" where it did not.
    departed: how far. cost: times as long as an inference takes that way. unstable: outputs that change far where the
    inputs change by as little as rounding does. cross_check: why OpenVINO's reference implementation did not check what
    OpenVINO itself gave; "" where it did, or was not needed. chosen: outputs whose rows are chosen by computed numbers.
    low: outputs whose scores no inputs raise.
    """

    executor: str = ""
    why_not: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kinds: list[str] = field(default_factory=list)
    samples: int = 0
    way: str = ""
    departed: str = ""
    cost: float = 1.0
    unstable: list[str] = field(default_factory=list)
    cross_check: str = ""
    chosen: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReferenceOrder:
    """What is to be run once a model is read.

    source: whether the source model is run as well, or only the normalised one. seconds: after which no other kind of
    inputs is begun. limit_s: after which the process is ended. inferences: of a sequence, where a model has state.
    samples_s: that the source is given for further samples of kinds.
    """

    source: bool
    seconds: float
    limit_s: float
    inferences: int
    samples_s: float = 0.0


def save_by_kind(path: Path, arrays: ByKind) -> None:
    """Write arrays by kind and name; a kind holds no slash."""
    flat: dict[str, Any] = {f"{kind}/{name}": a for kind, named in arrays.items() for name, a in named.items()}
    with path.open("wb") as out:
        np.savez(out, allow_pickle=False, **flat)


def load_by_kind(path: Path) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return the arrays of a file by kind and name, in the order in which they were written."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in load_arrays(path).items():
        kind, _, name = key.partition("/")
        found.setdefault(kind, {})[name] = array
    return found


def load_kind(path: Path, kind: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one kind by name, none if the file has none of it; the others are not read."""
    return {key.partition("/")[2]: array for key, array in load_arrays(path, beginning=f"{kind}/").items()}


def relative_l2(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return |found - expected| / |expected|, with 1 in place of a norm of 0; infinite where they differ in NaN or inf.

    >>> relative_l2(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    """
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.isfinite(actual[finite]).all() or not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    norm = float(np.linalg.norm(expected[finite])) or 1.0
    return float(np.linalg.norm(actual[finite] - expected[finite])) / norm
