"""Inputs of every size that one answer is to serve, with which the model must run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coarsen.reading.model.trial import refusal_of
from coarsen.reading.model.tries import Tries
from coarsen.reading.sizes.size_ranges import parse_range, points_of
from pipeline.core.errors import UsageError
from pipeline.shared.measured_sizes import ARRAYS, MeasuredSize, save_sizes
from pipeline.shared.model_inputs import GIVEN, input_name, make_inputs
from pipeline.shared.runtime_words import in_words

REMEDY = "Pass --shape-range with sizes that the model supports."


def save_size_arrays(model: Any, texts: Sequence[str], folder: Path, tries: Tries) -> None:
    """Write the inputs of every size into a folder, inputs_0.npz ..., those of the most weight as `GIVEN`, too.

    model: normalised, its dimensions within the ranges open. texts: of the ranges.

    Raises:
        UsageError: the model does not run with one of the sizes.
    """
    names = {name: input_name(port) for port in model.inputs for name in (*port.get_names(), input_name(port))}
    names[""] = input_name(model.inputs[0])
    sizes = []
    for number, (shapes, share) in enumerate(points_of([parse_range(text) for text in texts])):
        size = MeasuredSize({names[n]: shape for n, shape in shapes.items()}, share, f"{ARRAYS}{number}.npz")
        shaped = model.clone()
        try:
            shaped.reshape({name: list(shape) for name, shape in size.shapes.items()})
        except RuntimeError as error:
            raise UsageError(f"The model does not run with {size}: {in_words(str(error))}.", REMEDY) from error
        arrays = make_inputs(shaped, seed=0, dynamic_size=1)
        fault = tries.faults().get(str(size), "")
        if not fault:
            tries.begin(str(size))
            fault = refusal_of(model, arrays)
            tries.end(str(size), fault)
        if fault:
            raise UsageError(f"The model does not run with {size}: {fault}.", REMEDY)
        np.savez(folder / size.arrays, **arrays)  # type: ignore[arg-type]  # names are the users'
        sizes.append(size)
    heaviest = max(sizes, key=lambda size: size.weight)
    (folder / GIVEN).write_bytes((folder / heaviest.arrays).read_bytes())
    save_sizes(sizes, folder)
