"""Inputs of every size that one answer is to serve, with which the model must run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coarsen.reading.model.size_trial import refusal_of
from coarsen.reading.model.trial_log import Tries
from coarsen.reading.sizes.size_ranges import OTHER_SIZES, parse_range, size_points
from pipeline.core.errors import UsageError
from pipeline.shared.checks import CHECKS, save_by_kind
from pipeline.shared.measured_sizes import MeasuredSize, save_sizes
from pipeline.shared.model_inputs import GIVEN, NOISE, Inputs, input_name, make_checks, make_inputs
from pipeline.shared.runtime_words import refusal_in_words


def save_size_arrays(model: Any, texts: Sequence[str], folder: Path, tries: Tries) -> None:
    """Write the inputs of every size into `CHECKS` in a folder, as kinds of their own before all others.

    The size of the most weight comes first, is what is timed elsewhere, as `GIVEN`, and has all kinds of inputs; the
    others have noise.

    model: normalised, its dimensions within the ranges open. texts: of the ranges.

    Raises:
        UsageError: the model does not run with one of the sizes.
    """
    names = {name: input_name(port) for port in model.inputs for name in (*port.get_names(), input_name(port))}
    names[""] = input_name(model.inputs[0])
    points = size_points([parse_range(text) for text in texts])
    heaviest = max(range(len(points)), key=lambda number: points[number][1])
    sizes, checks, others = list[MeasuredSize](), dict[str, Inputs](), dict[str, Inputs]()
    for number, (shapes, share) in enumerate(points):
        sizes_told = dict.fromkeys("x".join(map(str, shape)) for shape in shapes.values())
        kind = NOISE if number == heaviest else f"{NOISE} {' '.join(sizes_told)}"
        size = MeasuredSize({names[n]: shape for n, shape in shapes.items()}, share, kind)
        shaped = model.clone()
        try:
            shaped.reshape({name: list(shape) for name, shape in size.shapes.items()})
        except RuntimeError as error:
            raise UsageError(
                f"The model does not run with {size}: {refusal_in_words(str(error))}.", OTHER_SIZES
            ) from error
        arrays = make_inputs(shaped, seed=0, dynamic_size=1)
        fault = tries.faults().get(str(size), "")
        if not fault:
            tries.begin(str(size))
            fault = refusal_of(model, arrays)
            tries.end(str(size), fault)
        if fault:
            raise UsageError(f"The model does not run with {size}: {fault}.", OTHER_SIZES)
        checks[kind] = arrays
        if number == heaviest:
            others = make_checks(shaped, seed=0, dynamic_size=1)
            np.savez(folder / GIVEN, **arrays)  # type: ignore[arg-type]  # names are the users'
        sizes.append(size)
    save_by_kind(folder / CHECKS, {NOISE: checks[NOISE]} | checks | others)
    save_sizes(sizes, folder)
