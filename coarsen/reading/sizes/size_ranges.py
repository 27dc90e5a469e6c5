"""Sizes of an open dimension that one answer is to serve, as --shape-range takes them.

    x=1x3x[32..640]x320        three sizes: both ends and one between them, 32, 128 and 640
    x=1x3x32|320*3|640x320     these sizes, the second counting three times

Several ranges, of one input or of several, go together: the first size of each makes the first inference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import UsageError

MOST_SIZES = 6
OTHER_SIZES = "Give sizes with which the model runs after --shape-range."
_EXAMPLES = "Write NAME=1x3x[32..640]x320, or sizes with weights as in NAME=1x3x32|320*3|640x320."
_PLAIN = re.compile(r"\d+|\?")
_RANGE = re.compile(r"\[(\d+)\.\.(\d+)\]")
_LIST = re.compile(r"(\d+)(?:\*(\d+(?:\.\d+)?))?")
_TEXT = re.compile(r"(?:(?P<name>.+)=)?(?P<sizes>[^=]+)")


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The shape of an input of which a dimension has several sizes.

    bounds: as --shape takes it, such as "x=1x3x32..640x320". shapes: one for each size. weights: of the sizes.
    """

    name: str
    bounds: str
    shapes: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]


def parse_range(text: str) -> SizeRange:
    """Return a range as it is written.

    Raises:
        UsageError: it is not written so, or has too few sizes or too many.

    >>> parse_range("x=1x[16..128]").shapes, parse_range("x=1x8|16*2").weights
    (((1, 16), (1, 48), (1, 128)), (1.0, 2.0))
    """
    match = _TEXT.fullmatch(text)
    parts = match["sizes"].split("x") if match else []
    columns: list[tuple[int, ...]] = []
    weights: tuple[float, ...] = ()
    bounds = []
    for part in parts:
        sizes, counts = _parse_sizes(part, text)
        columns.append(sizes)
        bounds.append(part if len(sizes) == 1 else f"{min(sizes)}..{max(sizes)}")
        weights = weights or counts
    most = max(map(len, columns), default=0)
    if most < 2:
        raise UsageError(f"{text!r} is not a range of sizes.", f"{_EXAMPLES} A single size is --shape's.")
    if most > MOST_SIZES or any(len(sizes) not in (1, most) for sizes in columns):
        raise UsageError(
            f"{text!r} has too many sizes, or dimensions of different numbers of them; {MOST_SIZES} are most.",
            _EXAMPLES,
        )
    shapes = tuple(tuple(sizes[i % len(sizes)] for sizes in columns) for i in range(most))
    name = match["name"] or "" if match else ""
    return SizeRange(name, f"{name}={'x'.join(bounds)}".removeprefix("="), shapes, weights)


def _parse_sizes(part: str, text: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sizes of a dimension, and their weights if it has several.

    Raises:
        UsageError: it is no number, range or list.
    """
    if part.isdecimal() and int(part) > 0:
        return (int(part),), ()
    if match := _RANGE.fullmatch(part):
        low, high = int(match[1]), int(match[2])
        if 0 < low < high:
            return (low, size_between(low, high), high), (1.0, 1.0, 1.0)
    matches = [_LIST.fullmatch(each) for each in part.split("|")]
    found = [(int(m[1]), float(m[2] or 1)) for m in matches if m]
    if (
        1 < len(found) == len(matches)
        and len({n for n, _ in found}) == len(found)
        and all(min(pair) > 0 for pair in found)
    ):
        return tuple(n for n, _ in found), tuple(weight for _, weight in found)
    raise UsageError(f"{part!r} of {text!r} is not a size, a range or a list of sizes.", _EXAMPLES)


def size_between(low: int, high: int) -> int:
    """Return the size nearest to the geometric mean that is a multiple of what both ends are multiples of.

    >>> size_between(32, 640), size_between(1, 100), size_between(1, 2)
    (128, 10, 1)
    """
    step = math.gcd(low, high)
    return max(low, round(math.sqrt(low * high) / step) * step)


def size_points(ranges: Sequence[SizeRange]) -> list[tuple[dict[str, tuple[int, ...]], float]]:
    """Return the shapes of inputs at every size, and its share; equal ones are one.

    Raises:
        UsageError: ranges differ in how many sizes they have, in their weights, or two are of one input.
    """
    numbers = {len(r.shapes) for r in ranges}
    if len(numbers) > 1 or len({r.name for r in ranges}) < len(ranges) or len({r.weights for r in ranges}) > 1:
        told = ", ".join(f"{r.name or 'the input'}: {len(r.shapes)}" for r in ranges)
        raise UsageError(
            f"Ranges of several inputs go together, size by size, and need as many sizes and equal weights ({told}).",
            "Give every input one range, with equal numbers of sizes and equal weights.",
        )
    total = sum(ranges[0].weights) if ranges else 1.0
    points: dict[tuple[tuple[int, ...], ...], float] = {}
    for i, weight in enumerate(ranges[0].weights if ranges else ()):
        key = tuple(r.shapes[i] for r in ranges)
        points[key] = points.get(key, 0.0) + weight / total
    return [({r.name: shape for r, shape in zip(ranges, key, strict=True)}, share) for key, share in points.items()]
