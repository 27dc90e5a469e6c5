"""Dynamic inputs made concrete: with the sizes that are given, else with the likeliest with which the model runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coarsen.reading.sizes.dimensions import Names
from coarsen.reading.sizes.size_ranges import parse_range, size_points
from coarsen.reading.sizes.sizes_to_try import Guess, Shapes, guess_shapes
from pipeline.core.errors import UsageError, list_some
from pipeline.core.settings import CoarsenSettings
from pipeline.shared.model_inputs import input_name
from pipeline.shared.runtime_words import refusal_in_words

SCALAR = "scalar"
MOST_NAMED = 3  # inputs in a sentence
NO_NAMES: Names = {}
_SIZE = r"(?:\d+(?:\.\.\d+)?|\?)"
_GIVEN = re.compile(rf"(?:(?P<name>.+)=)?(?P<sizes>{SCALAR}|{_SIZE}(?:x{_SIZE})*)")
_BRACKETED = re.compile(
    rf"(?P<name>[^=\[\]]+)\[(?P<sizes>{_SIZE}(?:,\s*{_SIZE})*)\]"
)  # as OpenVINO's tools take shapes


@dataclass(frozen=True, slots=True)
class InputShapes:
    """What becomes of dynamic inputs.

    given: texts such as "image=1x3x640x640", or "image[1,3,640,640]" as OpenVINO's tools have it, a question mark for
    what stays dynamic, "32..640" for what stays so within bounds, "scalar" for no dimension; of a model of one input
    the name may be left out. ranges: texts of `SizeRange`s, whose bounds are among `given`. keep_dynamic: leave all
    other inputs as they are. data: an npz file with an array for each input, "" for none; data_sha256: of its content.
    dynamic_size: what dimensions that stay dynamic will be measured with, and are tried with; 0 if they will not be.
    """

    given: tuple[str, ...] = CoarsenSettings().shapes
    keep_dynamic: bool = CoarsenSettings().keep_dynamic
    data: str = ""
    data_sha256: str = ""
    dynamic_size: int = 0
    ranges: tuple[str, ...] = CoarsenSettings().shape_ranges

    @classmethod
    def of(cls, settings: CoarsenSettings) -> InputShapes:
        """Return what was set.

        Raises:
            UsageError: the file of arrays cannot be read, or a range is not one.
        """
        data, ranges = settings.input, [parse_range(text) for text in settings.shape_ranges]
        if data and ranges:
            raise UsageError("--input and --shape-range exclude each other.", "Remove one of them.")
        size_points(ranges)
        named = {each.name for each in ranges} & {text.rpartition("=")[0] for text in settings.shapes}
        if named:
            what = f"{list_some(sorted(named))} has" if all(named) else "The input has"
            raise UsageError(f"{what} both a shape and a range.", "Leave out --shape or --shape-range.")
        given = (*settings.shapes, *(each.bounds for each in ranges))
        digest = inputs_sha256(data) if data else ""
        return cls(given, settings.keep_dynamic, data, digest, ranges=tuple(settings.shape_ranges))


def inputs_sha256(path: str) -> str:
    """Return the sha256 of a file of arrays.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Name an npz file after --input.") from error


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """An input that was dynamic, or is given another shape: what the file says, and what it is taken as.

    why: what speaks for a shape that nobody gave. trial: what was compared to see that it suits the model, in words.
    """

    name: str
    declared: str
    shape: str
    given: bool
    why: str = ""
    trial: str = ""


def concrete_models(
    model: Any, requested: InputShapes, names: Names = NO_NAMES
) -> Iterator[tuple[Any, list[ChosenShape]]]:
    """Yield an OpenVINO model with the shapes that are wished for, and which inputs changed, the likeliest first.

    Of dynamic inputs whose shapes are not given, the sizes are those of `guess_shapes`; only those come that fit
    together, and last those with which some output has more rows than the inputs. Where all shapes are given, or stay
    dynamic, there is one answer; where nothing fits, there is none. names: of the dimensions of inputs, as the file has
    them.

    Raises:
        UsageError: a shape that is given names no input, or does not fit it or the model.
    """
    given = _given_shapes(model, requested.given)
    shaped = with_given(model, requested)
    open_ports = [
        port for port in shaped.inputs if port.get_partial_shape().is_dynamic and input_name(port) not in given
    ]
    told = [ChosenShape(name, declared, shape, given=True) for name, (declared, shape) in given.items()]
    if requested.keep_dynamic or not open_ports or any(p.get_partial_shape().rank.is_dynamic for p in open_ports):
        yield shaped, told
        return
    declared = {input_name(port): str(port.get_partial_shape()) for port in open_ports}
    of_many_rows = []
    for guess in guess_shapes(shaped, open_ports, partial(_reshape_if_fits, shaped), names):
        tried = _reshape_if_fits(shaped, guess.shapes)
        if tried is None:
            continue
        if _counts_first(open_ports, guess.shapes) or _keeps_batch(shaped, tried):
            yield tried, told + _assumed_shapes(guess, declared)
        else:
            of_many_rows.append(guess)
    for guess in of_many_rows:
        yield _reshape_if_fits(shaped, guess.shapes), told + _assumed_shapes(guess, declared)


def _assumed_shapes(guess: Guess, declared: Mapping[str, str]) -> list[ChosenShape]:
    """Return the shapes that inputs get which nobody gave any."""
    return [
        ChosenShape(name, declared[name], format_shape(shape), given=False, why=guess.why)
        for name, shape in guess.shapes.items()
    ]


def option_of(shapes: Iterable[ChosenShape]) -> str:
    """Return the options of the command line that give inputs these shapes."""
    return " ".join(f"--shape '{c.name}={c.shape.strip('[]').replace(',', 'x') or SCALAR}'" for c in shapes)


def first_misfit(model: Any, open_ports: Sequence[Any]) -> str:
    """Return in words why the likeliest shapes of a model's open inputs do not fit together."""
    shapes = next(guess_shapes(model, open_ports, partial(_reshape_if_fits, model), NO_NAMES)).shapes
    sizes = ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())
    tried = model.clone()
    try:
        tried.reshape(shapes)
    except RuntimeError as error:
        return f"with {sizes} its shapes do not fit: {refusal_in_words(str(error))}"
    return f"with {sizes} some tensor is empty"


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as OpenVINO writes it."""
    return f"[{','.join(map(str, shape))}]"


def _reshape_if_fits(model: Any, shapes: Shapes) -> Any | None:
    """Return the model with inputs of these shapes, None if its shapes then do not fit together."""
    tried = model.clone()
    try:
        tried.reshape(shapes)
    except RuntimeError:
        return None
    return None if _has_empty_operation(model, tried) or _leaves_dimension(tried) else tried


def _leaves_dimension(model: Any) -> bool:
    """Return whether a dimension that is to be removed is not 1: OpenVINO then leaves it, and another rank.

    So the height of a line of text that is too high for its recogniser.
    """
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Squeeze" or op.get_input_size() < 2:
            continue
        shape, axes = op.get_input_partial_shape(0), op.input_value(1).get_node()
        if shape.rank.is_dynamic or axes.get_type_name() != "Constant":
            continue
        if any(shape[int(axis)].is_static and shape[int(axis)].get_length() != 1 for axis in axes.get_data().ravel()):
            return True
    return False


def describe_shapes(chosen: Iterable[ChosenShape]) -> str:
    """Return the shapes of inputs in one line, as in "x [1,3,48,320], y [1]"."""
    return ", ".join(f"{shape.name} {shape.shape}" for shape in chosen)


def shape_notes(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in sentences which shapes nobody has given; chosen: `ChosenShape`s as JSON values."""
    assumed = [ChosenShape(**c) for c in chosen if not c["given"]]
    if not assumed:
        return []
    each = "; ".join(
        f"{c.name} {c.declared} is now {c.shape} ({c.why})" if c.why else f"{c.name} {c.declared} is now {c.shape}"
        for c in assumed
    )
    tried = f" Outputs of an inference with them were {assumed[0].trial}." if assumed[0].trial else ""
    return [
        f"Dynamic inputs got fixed sizes, also in the placed model: {each}.{tried} Pass others, as in "
        f"{option_of(assumed[:1])}."
    ]


def assumption_of(chosen: Sequence[Mapping[str, Any]], *, open_size: int = 0) -> str:
    """Return the sentence that a verdict begins with where nobody gave some shapes, "" elsewhere.

    chosen: `ChosenShape`s as JSON values. open_size: with which dimensions were measured that are left open; 0 if none.
    """
    assumed = [ChosenShape(**c) for c in chosen if not c["given"]]
    told = []
    if assumed:
        more = len(assumed) - MOST_NAMED
        told.append(option_of(assumed[:MOST_NAMED]) + (f" and {more} more of the notes" if more > 0 else ""))
    if open_size:
        told.append(f"open dimensions measured with --set measure.dynamic_size={open_size}")
    return f"Assumed sizes: {'; '.join(told)}; pass your own that way. " if told else ""


def _given_shapes(model: Any, texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return input -> (the shape in the file, the shape given)."""
    declared = {input_name(port): str(port.get_partial_shape()) for port in model.inputs}
    alias = {name: input_name(port) for port in model.inputs for name in (*port.get_names(), input_name(port))}
    given = {}
    for text in texts:
        match = _GIVEN.fullmatch(text) or _BRACKETED.fullmatch(text)
        name = match["name"] if match else None
        called = re.split(r"[=\[]", text)[0]
        if match is None and called in alias:
            raise UsageError(
                f"{text!r} gives {called} no shape: {text.removeprefix(called).strip('=[]')!r} is none. It is "
                f"{declared[alias[called]]} in the model.",
                "Write NAME=1x3x224x224; a size may be ? or 32..640.",
            )
        if match is None or (name is None and len(declared) != 1) or (name is not None and name not in alias):
            raise UsageError(
                f"{text!r} names no input of the model; its inputs are "
                f"{list_some([f'{name} {shape}' for name, shape in declared.items()])}.",
                "Write NAME=1x3x224x224.",
            )
        own = alias[name] if name is not None else next(iter(declared))
        sizes = "" if match["sizes"] == SCALAR else match["sizes"]
        given[own] = (declared[own], f"[{sizes.replace('x', ',')}]")
    return given


def with_given(model: Any, requested: InputShapes) -> Any:
    """Return the model with the shapes that are given; itself if there are none.

    Raises:
        UsageError: a shape that is given names no input, or does not fit it or the model.
    """
    wanted = {name: shape for name, (_, shape) in _given_shapes(model, requested.given).items()}
    if not wanted:
        return model
    shaped = model.clone()
    try:
        shaped.reshape(wanted)
    except RuntimeError as error:
        raise _misfit_error(model, wanted, refusal_in_words(str(error))) from error
    empty = {name: shape for name, shape in wanted.items() if re.search(r"\b0\b", shape)}
    if not keeps_outputs(model, empty):
        raise _misfit_error(model, wanted, "some output then has no elements")
    return shaped


def _misfit_error(model: Any, shapes: Mapping[str, str], why: str) -> UsageError:
    """Return the error for shapes that were given and do not suit a model."""
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    return UsageError(f"The model does not run with the shape {told}: {why}.", other_sizes(model))


def keeps_outputs(model: Any, empty: Mapping[str, Any]) -> bool:
    """Return whether all outputs of a model have elements if some inputs have none, such as a cache before its use.

    empty: input -> its shape; an answer without one is true.
    """
    if not empty:
        return True
    shaped = model.clone()
    try:
        shaped.reshape(dict(empty))
    except RuntimeError:
        return False
    return not any(_has_zero(port.get_partial_shape()) for port in shaped.outputs)


def other_sizes(model: Any) -> str:
    """Return the remedy where the shapes that were given do not suit: some that fit together, if any are found."""
    first = next(concrete_models(model, InputShapes()), None)
    assumed = [shape for shape in first[1] if not shape.given] if first else []
    return f"Give others, as in {option_of(assumed)}." if assumed else "Pass other sizes with --shape."


def settle_states(model: Any) -> None:
    """Give states whose shapes are open those of their initial values, where these are known; the model is changed.

    The runtime takes the shape of a state from its variable, not from what it is set to, and fails where they differ.
    A state that grows, such as a cache of keys that is empty at first, stays open.
    """
    operations = model.get_ordered_ops()
    reads = {_variable_name(op): op for op in operations if op.get_type_name() == "ReadValue" and op.get_input_size()}
    written = {_variable_name(op): op.get_input_partial_shape(0) for op in operations if op.get_type_name() == "Assign"}
    for variable in model.get_variables():
        info = variable.get_info()
        if info.variable_id not in reads or not info.data_shape.is_dynamic:
            continue
        shape = reads[info.variable_id].get_input_partial_shape(0)
        if _is_static(shape) and not _has_zero(shape) and written.get(info.variable_id, shape).compatible(shape):
            info.data_shape = shape
            variable.update(info)
    model.validate_nodes_and_infer_types()


def _variable_name(op: Any) -> str:
    """Return the name of the variable that a ReadValue or an Assign is of."""
    return str(op.get_attributes()["variable_id"])


def _has_empty_operation(model: Any, shaped: Any) -> bool:
    """Return whether an operation of the reshaped model has no elements, as pooling leaves none of too small an image.

    What has none whatever the sizes is meant to: the shape of a scalar, a cache that is empty at first.
    """
    meant = {(op.get_friendly_name(), port) for op, port, shape in _output_shapes(model) if _has_zero(shape)}
    return any(
        _is_static(shape) and _has_zero(shape) and (op.get_friendly_name(), port) not in meant
        for op, port, shape in _output_shapes(shaped)
    )


def _output_shapes(model: Any) -> Iterator[tuple[Any, int, Any]]:
    """Yield (operation, port, shape) of every output of every operation."""
    for op in model.get_ordered_ops():
        for port in range(op.get_output_size()):
            yield op, port, op.get_output_partial_shape(port)


def _is_static(shape: Any) -> bool:
    return not shape.rank.is_dynamic and bool(shape.is_static)


def _has_zero(shape: Any) -> bool:
    """Return whether some dimension of a shape is known to be 0."""
    return not shape.rank.is_dynamic and any(d.is_static and d.get_length() == 0 for d in shape)


def _counts_first(ports: Sequence[Any], shapes: Shapes) -> bool:
    """Return whether the first dimension of an input, which was open, counts something else than a batch of 1."""
    return any(
        shape[:1] > [1] and port.get_partial_shape()[0].is_dynamic
        for port, shape in zip(ports, shapes.values(), strict=True)
    )


def _keeps_batch(model: Any, shaped: Any) -> bool:
    """Return whether outputs whose first dimension was open, or 1, have 1 there now."""
    before, after = ([out.get_partial_shape() for out in m.outputs] for m in (model, shaped))
    return all(not _may_be_one(old) or _may_be_one(new) for old, new in zip(before, after, strict=True))


def _may_be_one(shape: Any) -> bool:
    """Return whether the first dimension of a shape, if it has one, may be 1."""
    if shape.rank.is_dynamic or len(shape) == 0 or shape[0].is_dynamic:
        return True
    return bool(shape[0].get_length() == 1)
