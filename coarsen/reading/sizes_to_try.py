"""Which sizes dynamic inputs may have, the likeliest first.

Of a decoder that is given a cache, a step of one token comes first. Then the usual ones come; then those that
constants of the graph imply, such as a table of positions or a matrix behind a flattening; then those that shapes in
the graph are made of, such as the length of the example that a model was traced with; then small ones, which fit nearly
everything; then multiples of 32 and of 8, and heights and widths that differ, as those of lines of text. A usual size
that fits a graph which implies another suits that model as well.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.shared.model_inputs import input_name, is_image
from pipeline.shared.sizes import sized

# Of images, and of all else, the likeliest first.
IMAGE = (224, 256, 320, 512, 640, 128, 64, 32)
SEQUENCE = (128, 64, 32, 256, 224)
SMALL = (16, 8, 1)
MULTIPLES = (96, 320, 48, 300, 160, *range(32, 1025, 32), *range(8, 512, 8), 299, 100, 50, 28, 10, 5, 4, 3, 2)
LINES = ((32, 100), (32, 128), (32, 320), (48, 320), (48, 160), (64, 256), (640, 480), (480, 640), (64, 128))
MOST_IMPLIED = 64  # sizes that constants speak of
MOST_IN_SHAPES = 16  # sizes that shapes are made of
MOST_DIMENSIONS = 8
LARGEST_IMPLIED = 1024
STRIDES = (1, 2, 4, 8, 16, 32, 14)  # by which networks make images smaller; 14 and 16 are patches of transformers

Shapes = dict[str, list[int]]  # input -> sizes
Size = tuple[int, ...]  # of every open dimension but the batch, or height and width


def shapes_to_try(model: Any, ports: Sequence[Any]) -> Iterator[Shapes]:
    """Yield shapes for the open inputs of a model, the likeliest first, none twice."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    usual = (shapes for image, length in _pairs(model, ports) for shapes in _sized(ports, image, length))
    for shapes in itertools.chain(_decoding(ports), usual):
        key = tuple(map(tuple, shapes.values()))
        if key not in seen:
            yield shapes
        seen.add(key)


def _decoding(ports: Sequence[Any]) -> Iterator[Shapes]:
    """Yield the shapes of a decoder's step: one new token, a cache of some length, a mask over both.

    Nothing unless an input is called a cache of what is past, as decoders take it that keep no state of their own.
    """
    if not any("past" in input_name(port).lower() for port in ports):
        return
    for length in SEQUENCE:
        shapes = {}
        for port in ports:
            name, integer = input_name(port).lower(), port.get_element_type().is_integral()
            told = "past" in name or "encoder" in name
            size = length if told or not integer else length + 1 if "mask" in name else 1
            shapes[input_name(port)] = sized(port.get_partial_shape(), size)
        yield shapes


def _sized(ports: Sequence[Any], image: Size, length: Size) -> Iterator[Shapes]:
    """Yield the shapes of inputs by the size of images and of all else.

    An input whose first dimension is told, such as the state of an LSTM, has no batch at first, and then has it in its
    second dimension.
    """
    for late in (False, True):
        shapes = {}
        for port in ports:
            shape = port.get_partial_shape()
            told = len(shape) > 1 and shape[0].is_static
            size = image if is_image(port) else length
            shapes[input_name(port)] = sized(shape, *size, front=1 if late and told else 0)
        yield shapes


def _pairs(model: Any, ports: Sequence[Any]) -> Iterator[tuple[Size, Size]]:
    """Yield (size of images, size of all else)."""
    pictures = [is_image(port) for port in ports]
    images, lengths, implied, further = (
        [(n,) for n in ns] for ns in (IMAGE, SEQUENCE, (*_implied(model), *_in_shapes(model)), (*SMALL, *MULTIPLES))
    )
    if any(pictures) and not all(pictures):
        yield from itertools.product(images, [*lengths, *implied, *further[: len(SMALL)]])
        return
    usual = images if pictures[0] else lengths
    yield from ((size, size) for size in [*usual, *implied, *further, *LINES])


def _implied(model: Any) -> list[int]:
    """Return sizes that the constants of a model speak of, the largest first.

    A dimension d of a table stands for a length d, for d or d - 1 patches of an image (the other one tells its class),
    or, behind a flattening of c channels, for d / c positions of one; a side is the root, times the stride before it.
    """
    lengths: set[int] = set()
    channels = {1}
    for op in model.get_ordered_ops():
        kind = op.get_type_name()
        if kind == "Constant":
            readers = {target.get_node().get_type_name() for target in op.output(0).get_target_inputs()}
            if not any("Convolution" in reader for reader in readers):
                lengths.update(int(d) for d in op.get_output_shape(0) if d > 1)
        elif kind == "Convolution" and op.get_output_partial_shape(0)[1].is_static:
            channels.add(op.get_output_partial_shape(0)[1].get_length())
    sides = set(lengths)
    for d in lengths:
        positions = {d - 1} | {d // c for c in channels if d % c == 0}
        roots = (math.isqrt(n) for n in positions if n > 1 and math.isqrt(n) ** 2 == n)
        sides.update(root * stride for root in roots for stride in STRIDES)
    implied = np.array(sorted(s for s in sides if 1 < s <= LARGEST_IMPLIED)[::-1], np.int64)
    return [int(n) for n in implied[:MOST_IMPLIED]]


def _in_shapes(model: Any) -> list[int]:
    """Return numbers that shapes in the graph are put together of, the most frequent first."""
    count: Counter[int] = Counter()
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Constant" or not op.get_output_element_type(0).is_integral():
            continue
        if math.prod(op.get_output_shape(0)) <= MOST_DIMENSIONS and any(
            map(_makes_shape, op.output(0).get_target_inputs())
        ):
            count.update(n for n in np.unique(op.get_data()).tolist() if 1 < n <= LARGEST_IMPLIED)
    return [n for n, _ in count.most_common(MOST_IN_SHAPES)]


def _makes_shape(target: Any) -> bool:
    """Return whether an input of an operation takes a shape, or a part of one."""
    kind = target.get_node().get_type_name()
    return bool(kind == "Concat" or (kind in ("Reshape", "Broadcast") and target.get_index() == 1))
