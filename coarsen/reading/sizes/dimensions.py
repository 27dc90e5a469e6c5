"""What the open dimensions of inputs count, by the names that an ONNX file gives them, or by the names of inputs.

OpenVINO does not keep the names of dimensions ("batch", "num_atoms", "height"), so that they are read from the file
itself: the few fields of protobuf that hold them, without the weights.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.shared.model_inputs import input_name, is_image

Names = Mapping[str, Sequence[str]]  # input -> the name of each of its dimensions, "" for one without

# Fields of onnx.proto: ModelProto.graph, GraphProto.input, ValueInfoProto.name and .type, TypeProto.tensor_type,
# TypeProto.Tensor.shape, TensorShapeProto.dim, its dim_param.
_GRAPH, _INPUT, _NAME, _TYPE, _TENSOR, _SHAPE, _DIM, _PARAM = 7, 11, 1, 2, 1, 2, 1, 2


class AxisRole(Enum):
    """What a dimension counts, and how many of it are usual in an inference, 0 if that differs from model to model."""

    UNKNOWN = "unknown", 0
    BATCH = "batch", 1
    HEIGHT = "height", 0
    WIDTH = "width", 0
    LENGTH = "length", 0
    ATOMS = "atoms", 32
    EDGES = "edges", 64
    SAMPLES = "samples", 16000  # a second of speech

    @property
    def usual(self) -> int:
        """Return how many are usual, 0 if that is not known."""
        return int(self.value[1])


_BATCH = re.compile(r"(n|b|bs|n_?batch|num_batch|batch(es)?([_.]?(size|dim|axis|n))?)([_.]?\d+)?")
_ROLES: Sequence[tuple[re.Pattern[str], AxisRole]] = (
    (re.compile(r"height|(^|_)h$|^img_h|^rows$"), AxisRole.HEIGHT),
    (re.compile(r"width|(^|_)w$|^img_w|^col(umn)?s$"), AxisRole.WIDTH),
    (re.compile(r"edge|pair|bond|neighbou?r"), AxisRole.EDGES),
    (re.compile(r"atom|species|residue|node|vert(ex|ices)|molecule"), AxisRole.ATOMS),
    (re.compile(r"sample|wav|audio|pcm"), AxisRole.SAMPLES),
    (
        re.compile(r"seq|len|time|frame|step|token|word|char|text|point|mel|past|cache|position|^[tls]$|^num_|^n_"),
        AxisRole.LENGTH,
    ),
)
_GENERATED = re.compile(r"dynamic_?axes|_dim_?\d+$|[^\w. -]")  # by exporters, after the tensor or as a formula
_COUNTED = re.compile(r"coord|^pos(itions?)?$|atom|species|node|residue|edge|bond|^z$|^xyz$")  # names of inputs


def role_of(name: str) -> AxisRole:
    """Return what a dimension of this name counts.

    >>> [role_of(name).name for name in ("batch_size", "num_atoms", "Height", "DynamicDimension.0")]
    ['BATCH', 'ATOMS', 'HEIGHT', 'UNKNOWN']
    """
    plain = name.strip().lower()
    if _GENERATED.search(plain):
        return AxisRole.UNKNOWN
    if _BATCH.fullmatch(plain):
        return AxisRole.BATCH
    return next((role for pattern, role in _ROLES if pattern.search(plain)), AxisRole.UNKNOWN)


def roles_of(port: Any, names: Names) -> tuple[AxisRole, ...]:
    """Return what each dimension of an input counts; of a dimension that nothing is known of, `AxisRole.UNKNOWN`.

    Where dimensions have no names, the only open dimension of coordinates, species and the like counts atoms or edges.
    """
    shape = port.get_partial_shape()
    known = next((names[n] for n in (input_name(port), *port.get_names()) if n in names), ())
    if len(known) != len(shape):
        known = ("",) * len(shape)
    roles = [
        role_of(name) if dimension.is_dynamic else AxisRole.UNKNOWN
        for name, dimension in zip(known, shape, strict=True)
    ]
    if is_image(port):
        return tuple(
            role if role in (AxisRole.BATCH, AxisRole.HEIGHT, AxisRole.WIDTH) else AxisRole.UNKNOWN for role in roles
        )
    open_axes = [axis for axis, dimension in enumerate(shape) if dimension.is_dynamic]
    plain = input_name(port).lower()
    if open_axes == [0] and roles[0] is AxisRole.UNKNOWN and len(shape) < 3 and _COUNTED.search(plain):
        roles[0] = AxisRole.EDGES if role_of(plain) is AxisRole.EDGES else AxisRole.ATOMS
    return tuple(roles)


def dimension_names(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of the dimensions of the inputs of an ONNX file that OpenVINO has read; {} of other formats."""
    if path.suffix != ".onnx":
        return {}
    names = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for at, end in _nested_spans(data, (0, len(data)), _GRAPH, _INPUT):
            name = "".join(_text_at(data, where) for where in _nested_spans(data, (at, end), _NAME))
            dims = _nested_spans(data, (at, end), _TYPE, _TENSOR, _SHAPE, _DIM)
            names[name] = tuple(
                "".join(_text_at(data, where) for where in _nested_spans(data, dim, _PARAM)) for dim in dims
            )
    return names


def _nested_spans(data: mmap.mmap, where: tuple[int, int], *numbers: int) -> Iterator[tuple[int, int]]:
    """Yield where the messages or texts begin and end that a path of field numbers leads to."""
    number, *further = numbers
    for found, at, end in _message_fields(data, where):
        if found == number:
            yield from _nested_spans(data, (at, end), *further) if further else [(at, end)]


def _message_fields(data: mmap.mmap, where: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield number, beginning and end of the fields of a message that have a length; the others are passed over.

    Raises:
        ValueError: it is no message of protobuf.
    """
    at, end = where
    while at < end:
        key, at = _read_varint(data, at)
        match key & 7:
            case 0:
                _, at = _read_varint(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(data, at)
                yield key >> 3, at, at + size
                at += size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"field {key >> 3} has the wire type {kind}")


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of any length, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _text_at(data: mmap.mmap, where: tuple[int, int]) -> str:
    return data[slice(*where)].decode("utf-8", "replace")
