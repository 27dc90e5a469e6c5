"""ONNX files from which OpenVINO's reader never comes back: versions that it counts down from, circles."""

from __future__ import annotations

import contextlib
import graphlib
import mmap
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import ModelError

NEWEST = 10_000  # beyond any opset
MODEL_GRAPH, MODEL_OPSET, OPSET_VERSION, GRAPH_NODE, NODE_INPUT, NODE_OUTPUT = 7, 8, 2, 1, 1, 2  # numbers of fields


def check_onnx(path: Path) -> None:
    """Refuse an ONNX file of an opset that cannot be, or with operations that wait for one another.

    What is no protobuf is left to OpenVINO, and so are circles through the bodies of control flow.

    Raises:
        ModelError: so it is.
    """
    versions: list[int] = []
    waits: dict[bytes, set[bytes]] = {}
    # The file is no protobuf, ends early or is empty
    with contextlib.suppress(ValueError, IndexError), path.open("rb") as file:
        _collect(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), versions, waits)
    if versions and max(versions) > NEWEST:
        raise ModelError(f"{path} says that it is of opset {max(versions)}.", "Export the model again.")
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        name = error.args[1][0].decode(errors="replace")
        raise ModelError(f"{path}: what makes {name!r} waits for itself.", "Export the model again.") from None


def _collect(model: memoryview, versions: list[int], waits: dict[bytes, set[bytes]]) -> None:
    """Add the versions of the opsets of a model, and of each value of its graph those that it is made of."""
    for number, value in _fields(model):
        if number == MODEL_OPSET and isinstance(value, memoryview):
            versions += [v for n, v in _fields(value) if n == OPSET_VERSION and isinstance(v, int)]
        elif number == MODEL_GRAPH and isinstance(value, memoryview):
            for kind, node in _fields(value):
                if kind == GRAPH_NODE and isinstance(node, memoryview):
                    named = [(n, bytes(v)) for n, v in _fields(node) if isinstance(v, memoryview) and n <= NODE_OUTPUT]
                    taken = {name for n, name in named if n == NODE_INPUT and name}
                    waits |= {name: taken for n, name in named if n == NODE_OUTPUT and name}


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of the fields of a protobuf message that are integers, texts or messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 2:
                size, at = _varint(message, at)
                yield key >> 3, message[at : at + size]
                at += size
            case 1 | 5 as width:
                at += 8 if width == 1 else 4
            case _:
                raise ValueError("no protobuf")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the integer that begins at a byte, as one of 64 bits with its sign, and where it ends."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    value = (value | message[at] << shift) & (2**64 - 1)
    return (value if value < 2**63 else value - 2**64), at + 1
