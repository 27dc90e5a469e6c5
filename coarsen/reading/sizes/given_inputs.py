"""Arrays that a user gives for the inputs of a model: an npz file, by the names of the inputs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coarsen.reading.sizes.shapes import SCALAR, keeps_outputs
from pipeline.core.errors import UsageError, list_some
from pipeline.shared.model_inputs import GIVEN, Inputs, input_name
from pipeline.shared.payload import load_arrays

REMEDY = "Write it with numpy.savez('data.npz', NAME=array, ...), one array for each input."


def load_inputs(path: Path, sha256: str) -> Inputs:
    """Return the arrays of an npz file.

    Raises:
        UsageError: it cannot be read, holds anything but arrays of numbers, or is of another sha256.
    """
    try:
        content = path.read_bytes()
        inputs = load_arrays(io.BytesIO(content))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", REMEDY) from error
    except ValueError as error:
        raise UsageError(f"{path} is not an npz file of arrays of numbers.", REMEDY) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError(f"{path} changed while the model was being read.", "Run again.")
    return inputs


def check_inputs(model: Any, arrays: Inputs, path: Path) -> Inputs:
    """Return the arrays by the names that inputs of a model go by.

    Raises:
        UsageError: names, types or shapes do not fit the inputs; all that do not are named.
    """
    ports = {input_name(port): port for port in model.inputs}
    alias = {name: input_name(port) for port in model.inputs for name in (*port.get_names(), input_name(port))}
    unknown = [name for name in arrays if name not in alias]
    given = {alias[name]: array for name, array in arrays.items() if name in alias}
    faults = [f"{list_some(unknown)} {'is no input' if len(unknown) == 1 else 'are no inputs'}"] if unknown else []
    missing = [name for name in ports if name not in given]
    faults += [f"no array for {list_some(missing)}"] if missing else []
    empty = not keeps_outputs(model, {name: list(array.shape) for name, array in given.items() if 0 in array.shape})
    faults += [f"{name} {fault}" for name, array in given.items() for fault in _array_faults(ports[name], array, empty)]
    if faults:
        described = [f"{name} {_element_type(port)} {port.get_partial_shape()}" for name, port in ports.items()]
        raise UsageError(
            f"{path} does not fit the model: {'; '.join(faults)}. Its inputs: {list_some(described)}.", REMEDY
        )
    return {name: given[name] for name in ports}


def save_inputs(arrays: Inputs, folder: Path) -> None:
    """Write the arrays as `GIVEN` into a folder, for whoever measures the model beside it."""
    np.savez(folder / GIVEN, **arrays)  # type: ignore[arg-type]  # names are the users'


def shape_texts(arrays: Inputs) -> tuple[str, ...]:
    """Return the shapes of arrays as --shape takes them."""
    return tuple(f"{name}={'x'.join(map(str, array.shape)) or SCALAR}" for name, array in arrays.items())


def _element_type(port: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(port.get_element_type().to_dtype())
    return dtype


def _array_faults(port: Any, array: Any, empty: bool) -> Sequence[str]:
    """Return what is wrong with the array of an input; empty: whether arrays without elements leave an output none."""
    faults = []
    if array.dtype != _element_type(port):
        faults.append(f"is {_element_type(port)}, the array is {array.dtype}")
    shape = port.get_partial_shape()
    fits = shape.rank.is_dynamic or (
        len(shape) == array.ndim and all(d.compatible(type(d)(n)) for d, n in zip(shape, array.shape, strict=True))
    )
    if not fits or (empty and 0 in array.shape):
        faults.append(f"has the shape {shape}, the array [{','.join(map(str, array.shape))}]")
    return faults
