"""Dynamic inputs made concrete: with the sizes that are given, else with the first usual ones that the model bears."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UsageError, listed
from pipeline.core.settings import CoarsenSettings
from pipeline.shared.sizes import sized

# Sizes of dimensions that are not told: of images, and of all else, the likeliest first.
IMAGE = (224, 256, 320, 512, 640, 128, 64, 32)
SEQUENCE = (128, 64, 32, 16, 8, 256, 224, 1)
CHANNELS = (1, 3, 4)  # what tells an image, in its second or last dimension
_GIVEN = re.compile(r"(?:(?P<name>.+)=)?(?P<sizes>(?:[1-9]\d*|\?)(?:x(?:[1-9]\d*|\?))*)")
_REASON = re.compile(r".*friendly_name '(?P<name>[^']+)': (?P<reason>.+)")  # what is left of OpenVINO's message


@dataclass(frozen=True, slots=True)
class InputShapes:
    """What becomes of dynamic inputs.

    given: texts such as "image=1x3x640x640", a question mark for what stays dynamic; of a model of one input the name
    may be left out. keep_dynamic: leave all other inputs as they are.
    """

    given: tuple[str, ...] = CoarsenSettings().shapes
    keep_dynamic: bool = CoarsenSettings().keep_dynamic

    @classmethod
    def of(cls, settings: CoarsenSettings) -> InputShapes:
        """Return what was set."""
        return cls(tuple(settings.shapes), settings.keep_dynamic)


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """An input that was dynamic, or is given another shape: what the file says, and what it is taken as."""

    name: str
    declared: str
    shape: str
    given: bool


def concrete(model: Any, wish: InputShapes) -> tuple[Any, list[ChosenShape]]:
    """Return an OpenVINO model with the shapes that are wished for, and which inputs that changed.

    Of dynamic inputs whose shapes are not given, the first dimension becomes 1 and every other one the same size: the
    first with which all shapes of the model fit together; best one with which no output has more rows than the inputs,
    as a flattening to [-1, n] makes of an image that is too large. An input whose first dimension is told, such as the
    state of an LSTM, may have its batch in the second. If no size fits, they stay dynamic.

    Raises:
        UsageError: a shape that is given names no input, or does not fit it or the model.
    """
    given = _given(model, wish.given)
    if given:
        model = _with_given(model, given)
    open_ports = [port for port in model.inputs if port.get_partial_shape().is_dynamic and _name(port) not in given]
    told = [ChosenShape(name, declared, shape, given=True) for name, (declared, shape) in given.items()]
    if wish.keep_dynamic or not open_ports or any(p.get_partial_shape().rank.is_dynamic for p in open_ports):
        return model, told
    declared = {_name(port): str(port.get_partial_shape()) for port in open_ports}
    fitting: tuple[Any, list[ChosenShape]] | None = None
    for shapes in _variants(open_ports):
        tried = model.clone()
        try:
            tried.reshape(shapes)
        except RuntimeError:
            continue
        if _has_empty(tried):
            continue
        shown = {name: "[" + ",".join(map(str, shape)) + "]" for name, shape in shapes.items()}
        made = tried, told + [ChosenShape(name, declared[name], shown[name], given=False) for name in shapes]
        if _keeps_batch(model, tried):
            return made
        fitting = fitting or made
    return fitting or (model, told)


def notes_of(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in sentences which shapes nobody has given; chosen: `ChosenShape`s as JSON values."""
    found = [c for c in chosen if not c["given"]]
    if not found:
        return []
    each = "; ".join(f"{c['name']} {c['declared']} is now {c['shape']}" for c in found)
    example = f"--shape '{found[0]['name']}={found[0]['shape'].strip('[]').replace(',', 'x')}'"
    return [f"Inputs that were dynamic have sizes, in the placed model as well: {each}. Give others as in {example}."]


def _name(port: Any) -> str:
    """Return how users call an input."""
    return str(port.get_any_name()) if port.get_names() else str(port.get_node().get_friendly_name())


def _given(model: Any, texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return input -> (the shape in the file, the shape given)."""
    declared = {_name(port): str(port.get_partial_shape()) for port in model.inputs}
    alias = {name: _name(port) for port in model.inputs for name in (*port.get_names(), _name(port))}
    found = {}
    for text in texts:
        match = _GIVEN.fullmatch(text)
        name = match["name"] if match else None
        if match is None or (name is None and len(declared) != 1) or (name is not None and name not in alias):
            raise UsageError(
                f"{text!r} gives no input of the model a shape; its inputs are "
                f"{listed([f'{name} {shape}' for name, shape in declared.items()])}.",
                "Write NAME=1x3x224x224.",
            )
        own = alias[name] if name is not None else next(iter(declared))
        found[own] = (declared[own], f"[{match['sizes'].replace('x', ',')}]")
    return found


def _with_given(model: Any, given: Mapping[str, tuple[str, str]]) -> Any:
    shaped = model.clone()
    try:
        shaped.reshape({name: shape for name, (_, shape) in given.items()})
    except RuntimeError as error:
        words = " ".join(str(error).split())
        told = _REASON.search(words)
        reason = f"at {told['name']}, {told['reason']}" if told else words[-200:]
        raise UsageError(
            f"The model does not bear the shape {', '.join(f'{n} {shape}' for n, (_, shape) in given.items())}: "
            f"{reason.rstrip('. ')}.",
            "Give other sizes with --shape.",
        ) from error
    return shaped


def _is_image(port: Any) -> bool:
    """Return whether an input has four dimensions, one of which counts channels."""
    shape = port.get_partial_shape()
    if len(shape) != 4:
        return False
    return any(shape[i].is_static and shape[i].get_length() in CHANNELS for i in (1, 3))


def _variants(ports: Sequence[Any]) -> Iterator[dict[str, list[int]]]:
    """Yield the shapes to try, input -> sizes, the likeliest first; none twice in a row.

    With each size, an input whose first dimension is told, such as the state of an LSTM, has no batch at first, and
    then has it in its second dimension.
    """
    before: dict[str, list[int]] = {}
    for size in IMAGE if any(map(_is_image, ports)) else SEQUENCE:
        for late in (False, True):
            shapes = {}
            for port in ports:
                shape = port.get_partial_shape()
                told = len(shape) > 1 and shape[0].is_static
                shapes[_name(port)] = sized(shape, size, front=1 if late and told else 0)
            if shapes != before:
                yield shapes
            before = shapes


def _has_empty(model: Any) -> bool:
    """Return whether some operation has an output of no elements, as pooling makes of an image that is too small."""
    shapes = (out.get_partial_shape() for op in model.get_ordered_ops() for out in op.outputs())
    return any(shape.is_static and 0 in list(shape.to_shape()) for shape in shapes if not shape.rank.is_dynamic)


def _keeps_batch(model: Any, shaped: Any) -> bool:
    """Return whether outputs whose first dimension was open, or 1, have 1 there now."""
    before, after = ([out.get_partial_shape() for out in m.outputs] for m in (model, shaped))
    return all(not _may_be_one(old) or _may_be_one(new) for old, new in zip(before, after, strict=True))


def _may_be_one(shape: Any) -> bool:
    """Return whether the first dimension of a shape, if it has one, may be 1."""
    if shape.rank.is_dynamic or len(shape) == 0 or shape[0].is_dynamic:
        return True
    return bool(shape[0].get_length() == 1)
