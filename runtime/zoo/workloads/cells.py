"""Cells of searched networks: a few states, each the sum of two operations on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runtime.zoo.networks import POINT, Window
from runtime.zoo.workloads.builder import Builder
from runtime.zoo.workloads.cnn import normalised, rectified

Operation = Callable[[Builder, int, int], int]
"""Returns an operation's output, given a builder, a tensor and a stride."""


@dataclass(frozen=True, slots=True)
class Cell:
    """States 0 and 1 are the outputs of the last cell and the one before it, made to fit.

    pairs: of (state, operation), each added up to a new state. joined: the states whose concatenation is the output.
    halves: whether operations on the first two states have stride 2.
    """

    pairs: tuple[tuple[tuple[int, str], tuple[int, str]], ...]
    joined: tuple[int, ...]
    halves: bool = False


def output(b: Builder, cell: Cell, last: int, before: int, filters: int, operations: Mapping[str, Operation]) -> int:
    """Return the output of a cell; last, before: the outputs of the two cells before it. filters: of every state."""
    with b.at("in0"):
        states = [convolved(b, last, filters)]
    with b.at("in1"):
        fits = b.shape(before)[1] == b.shape(last)[1]
        states.append(convolved(b, before, filters) if fits else factorised(b, before, filters))
    for pair in cell.pairs:
        with b.at(f"state{len(states)}"):
            halves = [operations[kind](b, states[i], 2 if cell.halves and i < 2 else 1) for i, kind in pair]
            states.append(b.elementwise("Add", *halves))
    return b.concat([states[i] for i in cell.joined])


def convolved(b: Builder, x: int, filters: int, window: Window = POINT, *, stride: int = 1) -> int:
    """Return x rectified, convolved and batch-normalised."""
    return normalised(b, rectified(b, x), filters, window, stride=stride)


def factorised(b: Builder, x: int, filters: int) -> int:
    """Return half the size: x and x moved by a pixel, each convolved with stride 2, side by side."""
    x = rectified(b, x)
    moved = b.slice(x, b.shape(x))  # without its first row and column, with zeros behind the last
    halves = b.conv(x, filters // 2, 1, 2), b.conv(moved, filters - filters // 2, 1, 2)
    return b.batch_norm(b.concat(halves))


def identity(b: Builder, x: int, stride: int) -> int:
    """Return x itself."""
    return x if stride == 1 else factorised(b, x, b.shape(x)[-1])


def average(b: Builder, x: int, stride: int) -> int:
    """Return the means of windows of 3 x 3."""
    return b.pool("AvgPool", x, 3, stride)


def maximum(b: Builder, x: int, stride: int) -> int:
    """Return the maxima of windows of 3 x 3."""
    return b.pool("MaxPool", x, 3, stride)
