"""Sizes of images and lengths that a file states: in its metadata, in tables of anchors and patches, in numbers.

Metadata are ONNX's metadata_props and rt_info of OpenVINO, such as imgsz "[640, 640]" or rec_image_shape "3,48,320".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.shared.model_inputs import CHANNELS

LARGEST = 8192
Sides = tuple[int, ...]  # (side,) or (height, width)
Axis = tuple[str, int, int]  # operation, output, axis

_IMAGE_KEY = re.compile(
    r"(im(a?g|ages?)|inputs?|rec|det|crop|inference|orig)?_?(im(a?g|ages?)|input)?_?(sz|size|shape|resolution)"
)
_SIDE_KEY = re.compile(r"((im(a?g|age)|input|model|net|crop|orig)_?)?(?P<side>height|width|h|w)")
_LENGTH_KEY = re.compile(r"(input_?)?(seq(uence)?_?len(gth)?|(num|n)_?(frames|tokens|samples)|chunk_?(size|len(gth)?))")
_NUMBERS = re.compile(r"[\[({]?\s*(\d+(?:\s*[,x;\s]\s*\d+){0,4})\s*[\])}]?", re.IGNORECASE)

# Operations that hand a table on as it is, and such as pick rows of it or make it fit: there it may be larger or
# smaller than the rows that it is meant for, and the model runs all the same.
_CARRIERS = frozenset({"Convert", "Reshape", "Transpose", "Squeeze", "Unsqueeze"})
_JOINS = frozenset({"Concat", "Multiply", "Add", "Subtract", "Divide"})  # which do if all they take are constants
_PICKERS = frozenset(
    {"Gather", "GatherND", "GatherElements", "Slice", "StridedSlice", "Interpolate", "Result", "DetectionOutput"}
)
FEWEST_ROWS, MOST_ROWS = 36, 400_000
TABLE_SIDES = (320, 640, 224, 256, 512, 416, 300, 384, 480, 128, 192, 160, 96, 608, 768, 1024, 1280, 518, 448)
# Of other numbers, such as 256 or 128, nobody knows what they are.
_SPOKEN = frozenset({224, 300, 320, 384, 416, 480, 608, 640, 768, 800, 1280})


def metadata_of(model: Any) -> dict[str, str]:
    """Return the metadata of a model, the last part of each key -> text: texts, numbers and lists."""
    return dict(_text_leaves(model.get_rt_info()))


def _text_leaves(info: Any) -> Iterator[tuple[str, str]]:
    for key, value in info.items():
        plain = value.value if hasattr(value, "value") else value
        if isinstance(plain, Mapping):
            yield from _text_leaves(plain)
        elif isinstance(plain, str | int | list | tuple):
            yield str(key).lower(), str(plain)


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the sizes that a text consists of, () if it is anything else.

    >>> numbers_in("[640, 640]"), numbers_in("3x48x320"), numbers_in("48"), numbers_in("yolo 640"), numbers_in("1.5")
    ((640, 640), (3, 48, 320), (48,), (), ())
    """
    match = _NUMBERS.fullmatch(text.strip())
    sizes = tuple(int(n) for n in re.findall(r"\d+", match[1])) if match else ()
    return sizes if all(0 < n <= LARGEST for n in sizes) else ()


def stated_sides(metadata: Mapping[str, str]) -> Iterator[tuple[Sides, str]]:
    """Yield the sizes of images that metadata state, each with the key that does."""
    single: dict[str, int] = {}
    for key, text in sorted(metadata.items(), key=lambda item: len(item[0])):  # "width" before "orig_width"
        numbers = numbers_in(text)
        if not numbers:
            continue
        if _IMAGE_KEY.fullmatch(key) and (sides := _image_sides(numbers)):
            yield sides, key
        elif (match := _SIDE_KEY.fullmatch(key)) and len(numbers) == 1:
            single.setdefault(match["side"][0], numbers[0])
    if single.keys() == {"h", "w"}:
        yield (single["h"], single["w"]), "height and width"


def stated_lengths(metadata: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the lengths of sequences that metadata state, each with the key that does."""
    for key, text in metadata.items():
        numbers = numbers_in(text)
        if len(numbers) == 1 and _LENGTH_KEY.fullmatch(key):
            yield numbers[0], key


def _image_sides(numbers: tuple[int, ...]) -> Sides:
    """Return height and width of a shape with or without channels and batch; () if these cannot be told."""
    if len(numbers) > 2:
        if numbers[-1] in CHANNELS:
            numbers = numbers[:-1]
        elif numbers[-3] not in CHANNELS:
            return ()
    return numbers[-2:] if min(numbers[-2:]) > 4 else ()


def table_rows(model: Any) -> frozenset[int]:
    """Return the numbers of rows of tables that pictures are compared with: anchors, patches' positions.

    Only tables count of which rows are picked, or that are resized: another one lets no other size run.
    """
    rows: set[int] = set()
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Constant":
            continue
        shape = op.get_output_shape(0)
        if len(shape) < 2 or not _is_picked(op.output(0)):
            continue
        rows |= {n for n in shape[:-1] if FEWEST_ROWS <= n <= MOST_ROWS}
    return frozenset(rows)


def _is_picked(output: Any) -> bool:
    """Return whether rows of a table are picked, perhaps after operations that hand it on."""
    for target in output.get_target_inputs():
        op, port = target.get_node(), target.get_index()
        kind = op.get_type_name()
        if (kind in _PICKERS and (port == 0 or kind == "DetectionOutput")) or (
            _hands_on(op, port) and _is_picked(op.output(0))
        ):
            return True
    return False


def _hands_on(op: Any, port: int) -> bool:
    kind, inputs = op.get_type_name(), range(op.get_input_size())
    constant = all(op.input_value(i).get_node().get_type_name() == "Constant" for i in inputs)
    return bool((kind in _CARRIERS and port == 0) or (kind in _JOINS and constant))


def open_axes(model: Any) -> frozenset[Axis]:
    """Return the axes within a model whose sizes are open."""
    return frozenset(axis for axis, dimension in _declared_axes(model) if dimension.is_dynamic)


def meets_table(open_ones: frozenset[Axis], shaped: Any, rows: frozenset[int]) -> int:
    """Return how many rows an open axis has in a reshaped model, if that is as many as a table has; else 0."""
    met = {d.get_length() for axis, d in _declared_axes(shaped) if d.is_static and axis in open_ones}
    return max(met & rows, default=0)


def _declared_axes(model: Any) -> Iterator[tuple[Axis, Any]]:
    for op in model.get_ordered_ops():
        for port in range(op.get_output_size()):
            shape = op.get_output_partial_shape(port)
            if not shape.rank.is_dynamic:
                yield from (((op.get_friendly_name(), port, axis), d) for axis, d in enumerate(shape))


def sides_in_words(model: Any) -> list[int]:
    """Return sides of images that coordinates are scaled by or clamped to, as 320 or 319, the most frequent first."""
    count: dict[int, int] = {}
    for op in model.get_ordered_ops():
        kind = op.get_type_name()
        if kind == "Clamp":
            numbers = [op.get_attributes()["max"]]
        elif kind in ("Multiply", "Divide", "Minimum"):
            nodes = [op.input_value(i).get_node() for i in range(2)]
            data = [
                n.get_data() for n in nodes if n.get_type_name() == "Constant" and np.prod(n.get_output_shape(0)) <= 4
            ]
            numbers = [float(v) for values in data for v in np.unique(values)]
        else:
            continue
        for number in numbers:
            side = round(number) + (round(number) + 1 in _SPOKEN) if np.isfinite(number) else 0
            if side in _SPOKEN and number in (side, side - 1):
                count[side] = count.get(side, 0) + 1
    return sorted(count, key=lambda side: -count[side])
