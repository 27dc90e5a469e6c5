"""Inputs for measuring and comparing: those that a user has given with the model, or else drawn from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ModelError
from pipeline.shared.checks import CHECKS, load_kind
from pipeline.shared.model_inputs import GIVEN, SEQUENCE, input_name, make_inputs

if TYPE_CHECKING:
    import openvino as ov


def inputs_of(model: ov.Model, path: Path, *, seed: int, dynamic_size: int) -> list[npt.NDArray[np.generic]]:
    """Return one array per input of a model, in order: those beside its file, or else made from the seed.

    path: of the normalised model; the read stage leaves the arrays that a user gave as `GIVEN` beside it.

    Raises:
        ModelError: there are given arrays, and one is missing; or nothing is given, and an input has no known rank.
    """
    names = [input_name(port) for port in model.inputs]
    beside = path.with_name(GIVEN)
    if not beside.is_file():
        inputs = make_inputs(model, seed=seed, dynamic_size=dynamic_size)
        return [inputs[name] for name in names]
    with np.load(beside, allow_pickle=False) as arrays:
        missing = [name for name in names if name not in arrays.files]
        if missing:
            raise ModelError(f"{beside} holds no array for {', '.join(missing)}.", "Read the model again with --input.")
        return [arrays[name] for name in names]


def check_inputs_of(model: ov.Model, path: Path, kind: str) -> list[npt.NDArray[np.generic]]:
    """Return one array per input of a model, in order, of a kind that its read stage has drawn.

    path: of the normalised model.

    Raises:
        ModelError: nothing of this kind lies beside the model.
    """
    beside = path.with_name(CHECKS)
    arrays = load_kind(beside, kind) if beside.is_file() else {}
    missing = [name for name in map(input_name, model.inputs) if name not in arrays]
    if missing:
        raise ModelError(
            f"{beside} holds no array of the kind {kind} for {', '.join(missing)}.", "Read the model again."
        )
    return [arrays[input_name(port)] for port in model.inputs]


def sequence_length(path: Path, wanted: int) -> int:
    """Return how many inferences a sequence of a model with state has: as many as wanted, or as its read stage says.

    path: of the normalised model.
    """
    beside = path.with_name(SEQUENCE)
    if not beside.is_file():
        return wanted
    return min(wanted, int(json.loads(beside.read_text(encoding="utf-8"))["inferences"]))
