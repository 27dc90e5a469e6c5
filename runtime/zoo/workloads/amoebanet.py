"""AmoebaNet-D for ImageNet.

Source: Real, Aggarwal, Huang and Le, Regularized Evolution for Image Classifier Architecture Search, AAAI 2019; the
cells as in the code that trained AmoebaNet-D in a pipeline (Huang et al., GPipe, NeurIPS 2019), whose normal cell
hands on states 0, 3, 4 and 6 where the paper says 4, 5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.networks import COLUMN, ROW, SQUARE, Window
from runtime.zoo.workloads.builder import GLUE, USUAL, Builder, NetworkOptions
from runtime.zoo.workloads.cells import Cell, Operation, average, convolved, identity, maximum, output
from runtime.zoo.workloads.cnn import classified, normalised

NORMAL = Cell(
    (
        ((1, "conv1x1"), (1, "maxpool3x3")),
        ((1, "identity"), (0, "conv1x7-7x1")),
        ((0, "conv1x1"), (0, "conv1x7-7x1")),
        ((2, "maxpool3x3"), (2, "identity")),
        ((1, "avgpool3x3"), (5, "conv1x1")),
    ),
    (0, 3, 4, 6),
)
REDUCTION = Cell(
    (
        ((0, "maxpool2x2"), (0, "maxpool3x3")),
        ((2, "identity"), (1, "conv3x3")),
        ((2, "conv1x7-7x1"), (2, "maxpool3x3")),
        ((3, "identity"), (1, "maxpool2x2")),
        ((2, "avgpool3x3"), (3, "conv1x1")),
    ),
    (4, 5, 6),
    halves=True,
)

TF_GLUE: Mapping[str, int] = {**GLUE, "BatchNorm": 1, "BatchNormGrad": 1}  # fused normalisation: its constants


def amoebanet(*, batch: int = 64, layers: int = 18, filters: int = 128, recipe: NetworkOptions = USUAL) -> Workload:
    """Return AmoebaNet-D with `layers` normal cells for images of 224 x 224: a training step or the probabilities.

    filters: the channels of a state in the first normal cells, rounded down to a multiple of 4.
    """
    if layers < 3 or layers % 3 or filters < 16:
        raise UsageError(
            f"AmoebaNet cannot have {layers} layers of {filters} filters.",
            "Give a multiple of 3 layers, and at least 16 filters.",
        )
    b = recipe.builder(TF_GLUE)
    width = filters // 4
    with b.at("stem", layer=0):
        image = b.placeholder((batch, 224, 224, 3), name="images")
        x = normalised(b, image, width, SQUARE, stride=2)
    third = (NORMAL,) * (layers // 3)
    cells = (REDUCTION, REDUCTION, *third, REDUCTION, *third, REDUCTION, *third)
    before = x
    for i, cell in enumerate(cells):
        width *= 2 if cell.halves else 1
        with b.at(f"cell{i}", layer=i + 1):
            before, x = x, output(b, cell, x, before, width, OPERATIONS)
    with b.at("head", layer=len(cells) + 1):
        return classified(b, x, recipe)


def _bottleneck(*windows: Window) -> Operation:
    """Return convolutions of the given windows on a quarter of the channels; the last of them takes the stride."""

    def operation(b: Builder, x: int, stride: int) -> int:
        filters = b.shape(x)[-1]
        y = convolved(b, x, filters // 4)
        for i, window in enumerate(windows):
            y = convolved(b, y, filters // 4, window, stride=stride if i == len(windows) - 1 else 1)
        return convolved(b, y, filters)

    return operation


OPERATIONS: Mapping[str, Operation] = {
    "identity": identity,
    "conv1x1": lambda b, x, stride: convolved(b, x, b.shape(x)[-1], stride=stride),
    "conv3x3": _bottleneck(SQUARE),
    "conv1x7-7x1": _bottleneck(ROW, COLUMN),
    "avgpool3x3": average,
    "maxpool3x3": maximum,
    "maxpool2x2": lambda b, x, stride: b.pool("MaxPool", x, 2, stride),
}
