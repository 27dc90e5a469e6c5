"""Which sizes dynamic inputs may have, the likeliest first.

What the file states comes first: sizes in its metadata, anchors and patches whose table has as many rows as the image
then gives, sides that coordinates are scaled by, and lines of text where the height of an image comes to 1. Names of
dimensions tell which of them count the batch, and how many atoms, edges or samples are usual. Of a decoder that is
given a cache, a step of one token comes first. Then the usual ones come; then those that
constants of the graph imply, such as a table of positions or a matrix behind a flattening; then those that shapes in
the graph are made of, such as the length of the example that a model was traced with; then small ones, which fit nearly
everything; then multiples of 32 and of 8, and heights and widths that differ, as those of lines of text. A usual size
that fits a graph which implies another suits that model as well.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coarsen.reading.sizes.dimensions import AxisRole, Names, roles_of
from coarsen.reading.sizes.stated_sizes import (
    TABLE_SIDES,
    meets_table,
    metadata_of,
    numbers_in,
    open_axes,
    sides_in_words,
    stated_lengths,
    stated_sides,
    table_rows,
)
from pipeline.shared.model_inputs import CHANNELS, bounded_size, concrete_shape, image_axes, input_name, is_image

SIDEWAYS = 2  # times more than the width that the height is reduced


def reads_line(shaped: Any, height: int, width: int) -> bool:
    """Return whether a model, with an image of this size, reads it as a line of text.

    Its height is reduced much more than its width, mostly to 1, and the width that is left is the length of an output.
    """
    lengths = set()
    for out in shaped.outputs:
        shape = out.get_partial_shape()
        if shape.rank.is_dynamic or len(shape) > 3:
            continue
        lengths |= {d.get_length() for d in shape if d.is_static and d.get_length() > 1}
    return any(
        shape[-1] in lengths and shape[-1] * height >= SIDEWAYS * width * shape[-2] for shape in _image_shapes(shaped)
    )


def tiles_exactly(shaped: Any) -> bool:
    """Return whether windows that do not overlap cover all that they are laid over, so that no row is left out."""
    for op in shaped.get_ordered_ops():
        kind = op.get_type_name()
        if kind in ("MaxPool", "AvgPool"):
            window = list(op.get_attributes()["kernel"])
        elif kind == "Convolution" and op.get_input_partial_shape(1).is_static:
            window = list(op.get_input_shape(1))[2:]
        else:
            continue
        told = op.get_attributes()
        padded = any(told["pads_begin"]) or any(told["pads_end"])
        over = op.get_input_partial_shape(0)
        if padded or list(told["strides"]) != window or not over.is_static:
            continue
        if any(n % k for n, k in zip(list(over.to_shape())[2:], window, strict=True)):
            return False
    return True


def _image_shapes(shaped: Any) -> list[list[int]]:
    """Return the static shapes of rank 4 within a model."""
    shapes = [
        op.get_output_partial_shape(port) for op in shaped.get_ordered_ops() for port in range(op.get_output_size())
    ]
    return [list(s.to_shape()) for s in shapes if not s.rank.is_dynamic and len(s) == 4 and s.is_static]


# Of images, and of all else, the likeliest first.
IMAGE = (224, 256, 320, 512, 640, 128, 64, 32)
SEQUENCE = (128, 64, 32, 256, 224)
SMALL = (16, 8, 1)
MULTIPLES = (96, 320, 48, 300, 160, *range(32, 1025, 32), *range(8, 512, 8), 299, 100, 50, 28, 10, 5, 4, 3, 2)
LINES = ((48, 320), (32, 320), (32, 100), (32, 128), (48, 160), (64, 256), (64, 128))
OBLONG = ((640, 480), (480, 640))
MOST_IMPLIED = 64  # sizes that constants speak of
MOST_IN_SHAPES = 16  # sizes that shapes are made of
MOST_DIMENSIONS = 8
LARGEST_IMPLIED = 1024
STRIDES = (1, 2, 4, 8, 16, 32, 14)  # by which networks make images smaller; 14 and 16 are patches of transformers

Shapes = dict[str, list[int]]  # input -> sizes
Size = tuple[int, ...]  # of every open dimension but the batch, or height and width
Reshape = Callable[[Shapes], Any]  # returns the model with inputs of these shapes, None if they do not fit together

USUAL = "usual"


class Guess(NamedTuple):
    """Shapes of the open inputs, and what speaks for them: "usual" if they are no more than that."""

    shapes: Shapes
    why: str = USUAL


@dataclass(frozen=True, slots=True)
class _Open:
    """An open input.

    spatial: which dimensions are the height and width of an image; () of all else. roles: what its dimensions count.
    stated: those of their sizes that metadata give by their names, else 0.
    """

    port: Any
    name: str
    spatial: tuple[int, ...]
    roles: tuple[AxisRole, ...]
    stated: tuple[int, ...]


def guess_shapes(model: Any, ports: Sequence[Any], reshape: Reshape, names: Names) -> Iterator[Guess]:
    """Yield shapes for the open inputs of a model, the likeliest first, none twice.

    names: of the dimensions of inputs, where the file has them.
    """
    metadata = metadata_of(model)
    inputs = [_open_input(port, names, metadata) for port in ports]
    seen: set[tuple[tuple[int, ...], ...]] = set()
    stated = _stated_guesses(model, inputs, metadata, reshape)
    for guess in itertools.chain(
        stated, _decoder_guesses(ports), _counted_guesses(inputs), _usual_guesses(model, inputs)
    ):
        key = tuple(map(tuple, guess.shapes.values()))
        if key not in seen:
            yield guess
        seen.add(key)


def _open_input(port: Any, names: Names, metadata: Mapping[str, str]) -> _Open:
    own = next((names[n] for n in (input_name(port), *port.get_names()) if n in names), ())
    given = [numbers_in(metadata.get(name.lower(), "")) for name in own]
    stated = tuple(numbers[0] if len(numbers) == 1 else 0 for numbers in given)
    roles = roles_of(port, names)
    return _Open(
        port, input_name(port), _spatial_axes(port), roles, stated if len(stated) == len(roles) else (0,) * len(roles)
    )


def _spatial_axes(port: Any) -> tuple[int, ...]:
    """Return which dimensions of an input are the height and width of an image, () if it is none.

    An image may come without a batch, as torchvision's detectors take it.
    """
    if is_image(port):
        return image_axes(port)
    shape = port.get_partial_shape()
    alone = len(shape) == 3 and shape[0].is_static and shape[0].get_length() in CHANNELS
    return (1, 2) if alone and shape[1].is_dynamic and shape[2].is_dynamic else ()


def _stated_guesses(
    model: Any, inputs: Sequence[_Open], metadata: Mapping[str, str], reshape: Reshape
) -> Iterator[Guess]:
    """Yield the shapes that the file itself speaks for."""
    pictures = [each for each in inputs if each.spatial and _is_open(each)]
    lengths = [(n,) for n, _ in stated_lengths(metadata)]
    if not pictures:
        for number, key in stated_lengths(metadata):
            yield from _guesses_by_size(inputs, IMAGE[:1], (number,), f"metadata {key}", counted=True)
        if any(any(each.stated) for each in inputs):
            yield from _guesses_by_size(inputs, IMAGE[:1], SEQUENCE[:1], "metadata", counted=True)
        return
    if len(pictures) < len(inputs):
        lengths += [(n,) for n in (*SEQUENCE, *_implied_sizes(model))]
    for sides, why in itertools.chain(
        ((sides, f"metadata {key}") for sides, key in stated_sides(metadata)),
        _by_tables(model, inputs, reshape),
        _line_sizes(inputs, reshape),
        (((side,), f"the number {side} in the graph") for side in sides_in_words(model)),
    ):
        for length in lengths or [SEQUENCE[:1]]:
            yield from _guesses_by_size(inputs, sides, length, why, counted=True)


def _is_open(image: _Open) -> bool:
    """Return whether the height or the width of an image is open."""
    shape = image.port.get_partial_shape()
    return any(shape[axis].is_dynamic for axis in image.spatial)


def _by_tables(model: Any, inputs: Sequence[_Open], reshape: Reshape) -> Iterator[tuple[Size, str]]:
    """Yield sides of images that give as many rows as a table of the model has."""
    rows = table_rows(model)
    if not rows:
        return
    open_ones = open_axes(model)
    for side in TABLE_SIDES:
        for guess in _guesses_by_size(inputs, (side,), SEQUENCE[:1], counted=True):
            shaped = reshape(guess.shapes)
            if shaped is not None and (met := meets_table(open_ones, shaped, rows)):
                yield (side,), f"a table of {met} rows"


def _line_sizes(inputs: Sequence[_Open], reshape: Reshape) -> Iterator[tuple[Size, str]]:
    """Yield the sizes of lines of text that a model reads as such; first those that its windows cover whole."""
    if len(inputs) != 1:  # an image alone
        return
    found = []
    for sides in LINES:
        shapes = next(_guesses_by_size(inputs, sides, sides)).shapes
        spatial = tuple(shapes[inputs[0].name][axis] for axis in inputs[0].spatial)
        shaped = reshape(shapes) if spatial == sides else None
        if shaped is not None and reads_line(shaped, *sides):
            found.append((not tiles_exactly(shaped), sides))
    for _, sides in sorted(found, key=lambda each: each[0]):
        yield sides, "a line of text"


def _counted_guesses(inputs: Sequence[_Open]) -> Iterator[Guess]:
    """Yield the shapes that names of dimensions speak for: so many atoms, samples of sound."""
    if any(role.usual > 1 for each in inputs for role in each.roles):
        yield from _guesses_by_size(inputs, IMAGE[:1], SEQUENCE[:1], "names of dimensions", counted=True)


def _decoder_guesses(ports: Sequence[Any]) -> Iterator[Guess]:
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
            shapes[input_name(port)] = concrete_shape(port.get_partial_shape(), size)
        yield Guess(shapes, "a step of a decoder")


def _guesses_by_size(
    inputs: Sequence[_Open], image: Size, length: Size, why: str = USUAL, *, counted: bool = False
) -> Iterator[Guess]:
    """Yield the shapes of inputs by the size of images and of all else.

    An input whose first dimension is told, such as the state of an LSTM, has no batch at first, and then has it in its
    second dimension. counted: atoms, samples and the like get the number that is usual of them.
    """
    for late in (False, True):
        yield Guess({each.name: _input_sizes(each, image, length, late=late, counted=counted) for each in inputs}, why)


def _input_sizes(each: _Open, image: Size, length: Size, *, late: bool, counted: bool) -> list[int]:
    """Return the sizes of one input."""
    shape = each.port.get_partial_shape()
    front = 1 if late and len(shape) > 1 and shape[0].is_static else 0
    sizes: list[int] = []
    others = 0  # open dimensions so far of which nothing is known, but the batch
    for axis, (dimension, role) in enumerate(zip(shape, each.roles, strict=True)):
        if role is AxisRole.BATCH or (
            role is AxisRole.UNKNOWN and axis == front and axis not in each.spatial and dimension.is_dynamic
        ):
            wanted = 1
        elif counted and (stated := each.stated[axis] or role.usual):
            wanted = stated
        elif axis in each.spatial:
            wanted = image[each.spatial.index(axis) % len(image)]
        elif role is AxisRole.UNKNOWN:
            wanted = length[others % len(length)]
            others += dimension.is_dynamic
        else:
            wanted = length[0]
        sizes.append(bounded_size(dimension, wanted))
    return sizes


def _usual_guesses(model: Any, inputs: Sequence[_Open]) -> Iterator[Guess]:
    """Yield shapes of which nothing speaks but that they are usual, or that some constant is of that size."""
    for image, length in _size_pairs(model, [bool(each.spatial) for each in inputs]):
        yield from _guesses_by_size(inputs, image, length)


def _size_pairs(model: Any, pictures: Sequence[bool]) -> Iterator[tuple[Size, Size]]:
    """Yield (size of images, size of all else); pictures: of each input whether it is an image."""
    images, lengths, implied, small, multiples = (
        [(n,) for n in ns] for ns in (IMAGE, SEQUENCE, (*_implied_sizes(model), *_in_shapes(model)), SMALL, MULTIPLES)
    )
    if any(pictures) and not all(pictures):
        yield from itertools.product(images, [*lengths, *implied, *small])
        return
    usual = (
        [*images, *implied, *multiples, *LINES, *OBLONG, *small]
        if pictures[0]
        else [*lengths, *implied, *multiples[:5], *small, *multiples, *LINES]
    )
    yield from ((size, size) for size in usual)


def _implied_sizes(model: Any) -> list[int]:
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
