"""Models of open height, width or length as exporters leave them, of which not every size that runs is meant.

Each builder writes an ONNX file into a folder and returns its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.exported_models import FLOAT, HIDDEN, INT64, OnnxGraph


def line_reader(folder: Path, *, rows: int = 48, merges: bool = False) -> Path:
    """A recogniser of lines of text whose height is pooled to 1 from `rows` pixels; width a quarter of the image's.

    merges: height and width become one by a Reshape, so that any height runs; else a Squeeze removes the height.
    """
    g = OnnxGraph()
    y = g.conv(g.conv("x", 3, 4, stride=2), 4, 8, stride=2)
    rest = rows // 8
    y = g.op("MaxPool", y, kernel_shape=[2, 1], strides=[2, 1])
    y = g.op("AveragePool", y, kernel_shape=[rest, 1], strides=[rest, 1])
    if merges:
        y = g.op("Reshape", y, g.op("Concat", g.size(y, 0), g.const([8]), g.const([-1]), axis=0))
    else:
        y = g.op("Squeeze", y, g.const([2]))
    y = g.op("Softmax", g.linear(g.op("Transpose", y, perm=[0, 2, 1]), 8, 20), axis=2)
    return g.save(
        folder / f"line_reader_{rows}_{merges}.onnx",
        {"x": (FLOAT, ["DynamicDimension.0", 3, "DynamicDimension.1", "DynamicDimension.2"])},
        {"text": (y, FLOAT, [None, None, 20])},
    )


def digit_reader(folder: Path) -> Path:
    """A recogniser of lines 32 pixels high, whose last 4 rows become features of a recurrent network's steps."""
    g = OnnxGraph()
    y = g.conv(g.conv("x", 1, 4, stride=2), 4, 4, stride=2)
    y = g.op("MaxPool", y, kernel_shape=[2, 1], strides=[2, 1])
    y = g.op("Transpose", y, perm=[0, 3, 1, 2])
    y = g.op("Reshape", y, g.op("Concat", g.size(y, 0), g.const([-1, 16]), axis=0))
    return g.save(
        folder / "digit_reader.onnx",
        {"x": (FLOAT, ["batch", 1, 32, "width"])},
        {"scores": (g.linear(g.op("Tanh", g.linear(y, 16, 8)), 8, 11), FLOAT, [None, None, 11])},
    )


def without_batch(folder: Path) -> Path:
    """A detector of a single image [3, height, width], which it normalises and gives a batch itself."""
    g = OnnxGraph()
    y = g.conv(g.op("Unsqueeze", g.op("Sub", "image", g.const(0.5, np.float32)), g.const([0])), 3, 4, stride=2)
    return g.save(
        folder / "without_batch.onnx", {"image": (FLOAT, [3, "height", "width"])}, {"y": (y, FLOAT, [None] * 4)}
    )


def anchored_detector(folder: Path, *, side: int = 320, strides: tuple[int, ...] = (8, 16), each: int = 1) -> Path:
    """A detector that picks the anchors of its ten best scores from a table for images of one side; runs at others."""
    g = OnnxGraph()
    feature, step, scores = "x", 1, []
    for stride in strides:
        while step < stride:
            feature, step = g.conv(feature, 3 if step == 1 else 4, 4, stride=2), 2 * step
        head = g.op("Transpose", g.conv(feature, 4, each, kernel=1, relu=False), perm=[0, 2, 3, 1])
        scores.append(g.op("Reshape", head, g.op("Concat", g.size(head, 0), g.const([-1]), axis=0)))
    found = g.op("Concat", *scores, axis=1)
    anchors = sum((side // stride) ** 2 * each for stride in strides)
    values, best = g.op("TopK", found, g.const([10]), axis=1, outputs=2)
    table = g.const(np.random.default_rng(0).uniform(0, 1, (anchors, 4)), np.float32)
    boxes = g.op("Gather", table, best, axis=0)
    return g.save(
        folder / f"anchored_{side}_{len(strides)}_{each}.onnx",
        {"x": (FLOAT, ["batch", 3, "height", "width"])},
        {"scores": (values, FLOAT, [None, 10]), "boxes": (boxes, FLOAT, [None, 10, 4])},
    )


def coarse_detector(folder: Path, *, normalised_by: float = 0.0) -> Path:
    """A detector of one grid of cells of 32x32 pixels, with attention along rows and columns; any size runs.

    normalised_by: by which coordinates are divided, 0 for nothing.
    """
    g = OnnxGraph()
    y = "x"
    for channels in (3, 4, 4, 4, 4):
        y = g.conv(y, channels, 4, stride=2)
    for axis in (2, 3):  # the mean of every column, then of every row
        y = g.op("Mul", y, g.op("Sigmoid", g.op("ReduceMean", y, axes=[axis], keepdims=1)))
    y = g.op("Reshape", g.conv(y, 4, 6, kernel=1, relu=False), g.op("Concat", g.size(y, 0), g.const([6, -1]), axis=0))
    if normalised_by:
        y = g.op("Div", y, g.const(normalised_by, np.float32))
    return g.save(
        folder / f"coarse_{normalised_by:g}.onnx",
        {"x": (FLOAT, ["batch", 3, "height", "width"])},
        {"boxes": (g.op("Transpose", y, perm=[0, 2, 1]), FLOAT, [None, None, 6])},
    )


def patches(folder: Path, *, side: int = 384) -> Path:
    """A transformer's tokens of patches of 16x16 pixels, whose positions are resized to images of any size."""
    g, cells = OnnxGraph(), side // 16
    y = g.op("Conv", "x", g.weight(8, 3, 16, 16), kernel_shape=[16, 16], strides=[16, 16])
    table = g.const(np.random.default_rng(0).standard_normal((1, cells * cells, 8)), np.float32)
    table = g.op("Transpose", g.op("Reshape", table, g.const([1, cells, cells, 8])), perm=[0, 3, 1, 2])
    sizes = g.op("Concat", g.const([1, 8]), g.size(y, 2), g.size(y, 3), axis=0)
    y = g.op("Add", y, g.op("Resize", table, "", "", sizes, mode="linear"))
    y = g.op("Reshape", y, g.op("Concat", g.size(y, 0), g.const([8, -1]), axis=0))
    y = g.linear(g.op("Transpose", y, perm=[0, 2, 1]), 8, 8)
    return g.save(
        folder / f"patches_{side}.onnx",
        {"x": (FLOAT, ["batch", 3, "height", "width"])},
        {"tokens": (y, FLOAT, [None, None, 8])},
    )


def molecule(folder: Path, *, atoms: str = "num_atoms") -> Path:
    """A network of species and coordinates [atoms, 3], whose energies are sums over pairs of atoms."""
    g = OnnxGraph()
    embedded = g.op("Gather", g.weight(20, HIDDEN), "species", axis=0)  # [atoms, HIDDEN]
    rows, columns = (g.op("Unsqueeze", "coordinates", g.const([axis])) for axis in (0, 1))
    squared = g.op("ReduceSum", g.op("Pow", g.op("Sub", rows, columns), g.const(2.0, np.float32)), g.const([2]))
    near = g.op("Exp", g.op("Neg", g.op("Squeeze", squared, g.const([2]))))  # [atoms, atoms]
    self_less = g.op("Sub", near, g.op("Exp", g.op("Neg", g.op("Abs", g.op("Mul", near, g.const(0.0, np.float32))))))
    y = g.op("Tanh", g.linear(g.op("MatMul", self_less, embedded), HIDDEN, 1))
    return g.save(
        folder / "molecule.onnx",
        {"species": (INT64, [atoms]), "coordinates": (FLOAT, [atoms, 3])},
        {"energies": (y, FLOAT, [None, 1])},
    )


def any_image(folder: Path, metadata: Mapping[str, str], *, names: tuple[str, str] = ("h", "w")) -> Path:
    """A convolution of images of any size, with metadata."""
    g = OnnxGraph()
    y = g.conv("x", 3, 4)
    path = g.save(folder / "any_image.onnx", {"x": (FLOAT, ["n", 3, *names])}, {"y": (y, FLOAT, [None] * 4)})
    return with_metadata(path, metadata)


def any_frames(folder: Path, metadata: Mapping[str, str], *, name: str = "frames") -> Path:
    """A product with frames of any number, [frames, features], with metadata."""
    g = OnnxGraph()
    y = g.op("Relu", g.linear("x", 20, 8))
    path = g.save(folder / "any_frames.onnx", {"x": (FLOAT, [name, 20])}, {"y": (y, FLOAT, [None, 8])})
    return with_metadata(path, metadata)


def with_metadata(path: Path, metadata: Mapping[str, str]) -> Path:
    """Write metadata into an ONNX file."""
    model = onnx.load(path)
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path
