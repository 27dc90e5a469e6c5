"""Arrays by kind of inputs, beside a normalised model: what outputs are checked with, and what the reference gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shared.payload import load_arrays

CHECKS = "checks.npz"  # inputs that outputs are compared on, by kind and name of the input
REFERENCE = "reference.npz"  # outputs of the source model for them, by kind and "output_0" ..
SHAKEN = "shaken.npz"  # the same for inputs that differ by as little as rounding does
FLOAT = "float.npz"  # the same of a dynamically quantised model whose activations are not rounded
NORMALISED = "normalised.npz"  # the same of the normalised model, on the CPU in f32

ByKind = Mapping[str, Mapping[str, npt.NDArray[Any]]]


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
