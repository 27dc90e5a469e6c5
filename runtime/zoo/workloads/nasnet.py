"""NASNet-A for ImageNet, without the auxiliary head: the mobile network (4 @ 1056) and the large one (6 @ 4032).

Source: Zoph, Vasudevan, Shlens and Le, Learning Transferable Architectures for Scalable Image Recognition, CVPR 2018,
figure 4; how cells are joined as in the authors' TensorFlow code.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.networks import SQUARE
from runtime.zoo.workloads.builder import USUAL, Builder, NetworkOptions
from runtime.zoo.workloads.cells import Cell, Operation, average, identity, maximum, output
from runtime.zoo.workloads.cnn import classified, normalised, rectified

NORMAL = Cell(
    (
        ((0, "separable5"), (1, "separable3")),
        ((1, "separable5"), (1, "separable3")),
        ((0, "average"), (1, "identity")),
        ((1, "average"), (1, "average")),
        ((0, "separable3"), (0, "identity")),
    ),
    (1, 2, 3, 4, 5, 6),
)
REDUCTION = Cell(
    (
        ((0, "separable5"), (1, "separable7")),
        ((0, "maximum"), (1, "separable7")),
        ((0, "average"), (1, "separable5")),
        ((3, "identity"), (2, "average")),
        ((2, "separable3"), (0, "maximum")),
    ),
    (3, 4, 5, 6),
    halves=True,
)


def nasnet(
    *,
    batch: int = 32,
    cells: int = 4,
    filters: int = 44,
    stem: int = 32,
    image: int = 224,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return NASNet-A of 3 x `cells` normal cells: a training step, or the class probabilities.

    filters: the channels of a state in the first normal cells; the last cell hands on 24 times as many. stem: the
    channels of the first convolution. image: rows and columns.
    """
    if cells < 1 or filters < 8:
        raise UsageError(
            f"NASNet cannot have {cells} cells of {filters} filters.", "Give 1 cell and 8 filters, or more."
        )
    b = recipe.builder()
    with b.at("stem", layer=0):
        images = b.placeholder((batch, image, image, 3), name="images")
        x = normalised(b, images, stem, SQUARE, stride=2, padding="valid")
    sequence = [(REDUCTION, filters // 4), (REDUCTION, filters // 2), *[(NORMAL, filters)] * cells]
    for width in (2 * filters, 4 * filters):
        sequence += [(REDUCTION, width), *[(NORMAL, width)] * cells]
    before = x
    for i, (cell, width) in enumerate(sequence):
        with b.at(f"cell{i}", layer=i + 1):
            before, x = x, output(b, cell, x, before, width, OPERATIONS)
    with b.at("head", layer=len(sequence) + 1):
        return classified(b, b.elementwise("Relu", x), recipe)


def _separable(size: int) -> Operation:
    """Return two depthwise convolutions of `size` x `size`, each with a pointwise one; the first takes the stride."""

    def operation(b: Builder, x: int, stride: int) -> int:
        channels = b.shape(x)[-1]
        for step in (stride, 1):
            x = b.conv(rectified(b, x), channels, size, step, groups=channels)
            x = normalised(b, x, channels)
        return x

    return operation


OPERATIONS: Mapping[str, Operation] = {
    "identity": identity,
    "average": average,
    "maximum": maximum,
    **{f"separable{size}": _separable(size) for size in (3, 5, 7)},
}
