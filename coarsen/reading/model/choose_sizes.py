"""Which of the sizes that fit a model it gets: the first with which it runs and its outputs can be believed."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coarsen.reading.model.size_trial import SizeTrial, run_given, try_sizes
from coarsen.reading.model.trial_log import Tries
from coarsen.reading.sizes.shapes import ChosenShape, InputShapes, describe_shapes
from pipeline.core.errors import ModelError, list_some
from pipeline.shared.model_inputs import input_name

MOST_TRIALS = 16  # inferences with different sizes
MOST_LARGER = 4  # sizes that are tried in the hope of better outputs
DOUBTING_S = 10.0  # that all tries may have taken before no better outputs are looked for


@dataclass(frozen=True, slots=True)
class Suitable:
    """A model that runs, the shapes that its inputs were given, and what ran it, None if nothing did."""

    model: Any
    chosen: list[ChosenShape]
    request: Any = None


@dataclass(frozen=True, slots=True)
class Unsuitable:
    """What was wrong with each of the sizes that were tried; given: the model with shapes that a user gave, or None."""

    faults: tuple[str, ...]
    given: Any = None


def first_that_runs(
    models: Iterable[tuple[Any, list[ChosenShape]]], shapes: InputShapes, tries: Tries
) -> Suitable | Unsuitable:
    """Return the first of the models, one for each choice of sizes, that suits: see `trial.try_sizes`.

    Outputs that are empty, NaN or the same all over may be mended by a larger size, of which a few are tried; where
    none does, the first stays. Shapes that a user gave need only run.

    Raises:
        ModelError: the rank of an input is not known.
    """
    faults: list[str] = []
    doubtful: list[tuple[Suitable, SizeTrial]] = []
    start_s = time.monotonic()
    for model, chosen in itertools.islice(models, MOST_TRIALS):
        if all(shape.given for shape in chosen):
            trial = _try_given(model, chosen, shapes, tries)
            return Unsuitable((trial.fault,), model) if trial.fault else Suitable(model, chosen, trial.request)
        sizes = describe_shapes(chosen)
        if doubtful and _count_elements(model) <= _count_elements(doubtful[0][0].model):
            continue
        fault = tries.faults().get(sizes, "")
        trial = SizeTrial(fault) if fault else _try_sizes(model, sizes, shapes, tries)
        if trial.fault:
            faults.append(f"with {sizes}: {trial.fault}")
        elif not trial.doubt:
            return Suitable(model, _with_comparison(chosen, trial), trial.request)
        else:
            doubtful.append((Suitable(model, chosen), trial))
            if len(doubtful) > MOST_LARGER or time.monotonic() - start_s > DOUBTING_S:
                break
    for found, _ in doubtful:
        trial = _try_sizes(found.model, describe_shapes(found.chosen), shapes, tries, doubtful=True)
        if not trial.fault:
            return Suitable(found.model, _with_comparison(found.chosen, trial), trial.request)
        faults.append(f"with {describe_shapes(found.chosen)}: {trial.fault}")
    return Unsuitable(tuple(faults))


def _try_sizes(model: Any, sizes: str, shapes: InputShapes, tries: Tries, *, doubtful: bool = False) -> SizeTrial:
    """Return what becomes of a model with some sizes, and write down that it was tried."""
    tries.begin(sizes)
    trial = try_sizes(model, dynamic_size=max(1, shapes.dynamic_size), doubtful=doubtful)
    tries.end(sizes, trial.fault)
    return trial


def _try_given(model: Any, chosen: Sequence[ChosenShape], shapes: InputShapes, tries: Tries) -> SizeTrial:
    """Return what becomes of a model with shapes that a user gave or left open."""
    sizes = describe_shapes(chosen) or "what is open"
    if fault := tries.faults().get(sizes, ""):
        return SizeTrial(fault)
    tries.begin(sizes)
    trial = _run_given(model, chosen, shapes)
    tries.end(sizes, trial.fault)
    return trial


def _run_given(model: Any, chosen: Sequence[ChosenShape], shapes: InputShapes) -> SizeTrial:
    """Return what becomes of a model with the shapes of its inputs; it is not run if all are those of the file."""
    if not any(port.get_partial_shape().is_dynamic for port in model.inputs):
        return run_given(model) if chosen else SizeTrial()
    unknown = [input_name(port) for port in model.inputs if port.get_partial_shape().rank.is_dynamic]
    if unknown:
        if shapes.keep_dynamic and not shapes.dynamic_size:
            return SizeTrial()  # it is looked at, but not run
        raise _without_rank(unknown)
    return run_given(model, dynamic_size=shapes.dynamic_size) if shapes.dynamic_size else SizeTrial()


def _without_rank(names: Sequence[str]) -> ModelError:
    """Return the error for a model whose inputs of these names have no known number of dimensions."""
    return ModelError(
        f"The rank of {list_some(names)} is unknown.",
        f"Give a shape, as in --shape '{names[0]}=1x128' or --shape '{names[0]}=scalar', or arrays with --input.",
    )


def _with_comparison(chosen: Sequence[ChosenShape], trial: SizeTrial) -> list[ChosenShape]:
    """Return the shapes with what was compared to choose them."""
    words = f"compared: {trial.compared}" + (f"; {trial.doubt}" if trial.doubt else "")
    return [shape if shape.given else replace(shape, trial=words) for shape in chosen]


def _count_elements(model: Any) -> int:
    """Return how many numbers the inputs of a model hold, what is open counting as little as it may."""
    return sum(math.prod(max(1, d.get_min_length()) for d in port.get_partial_shape()) for port in model.inputs)
