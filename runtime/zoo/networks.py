"""Inception-v3 and ResNet-50, layer by layer: what their graphs and their OpenVINO models are both made from.

Source: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, Rethinking the Inception Architecture for Computer Vision, CVPR
2016, figures 5 to 7, without the auxiliary head and dropout; He, Zhang, Ren and Sun, Deep Residual Learning for Image
Recognition, CVPR 2016, table 1, with the stride in the 3 x 3 convolution. Names and widths as in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Window = tuple[int, int]

CLASSES = 1000
INPUT = "x"  # stands for what a block reads
POINT, SQUARE, ROW, COLUMN = (1, 1), (3, 3), (1, 7), (7, 1)


class NetworkLayer(NamedTuple):
    """A layer of a block.

    name: within the block; "" for the layer that is called after the block. kind: a normalised convolution, a pool of
    3 x 3, a sum, or the channels of several side by side. of: names of the layers that it reads. same: whether it pads
    so that stride 1 keeps the size. relu: name of the rectifier behind it, "" for none. gain: of random weights, by how
    much the output's standard deviation exceeds what keeps it level.
    """

    name: str
    kind: Literal["conv", "max", "mean", "add", "join"]
    of: tuple[str, ...] = (INPUT,)
    filters: int = 0
    window: Window = SQUARE
    stride: int = 1
    same: bool = True
    relu: str = ""
    gain: float = 1.0


class NetworkBlock(NamedTuple):
    """Layers that read what the block before put out, in the order in which they are made; the last is the output.

    name: prefix of the layers' names in a model. scope: of the operations in a graph. drawn_first: layers whose random
    weights a model draws before those of the others; the order decides what a seed gives.
    """

    name: str
    scope: str
    layers: tuple[NetworkLayer, ...]
    drawn_first: tuple[str, ...] = ()

    def full_name(self, name: str) -> str:
        """Return the name of a layer, or of its rectifier, in a model."""
        return ".".join(filter(None, (self.name, name)))


def inception_v3_blocks() -> Iterator[NetworkBlock]:
    """Yield the blocks of Inception-v3 between the image of 299 x 299 and the classifier."""
    yield NetworkBlock("", "stem", _INCEPTION_STEM)
    mixed = (
        *((f"Mixed_5{x}", _figure_5(pooled)) for x, pooled in zip("bcd", (32, 64, 64), strict=True)),
        ("Mixed_6a", _HALVING_35),
        *((f"Mixed_6{x}", _figure_6(width)) for x, width in zip("bcde", (128, 160, 160, 192), strict=True)),
        ("Mixed_7a", _HALVING_17),
        *((f"Mixed_7{x}", _FIGURE_7) for x in "bc"),
    )
    for i, (name, layers) in enumerate(mixed):
        yield NetworkBlock(name, f"mixed{i}", layers, _DRAWN_FIRST.get(name, ()))


def _conv(
    name: str, filters: int, window: Window = POINT, *, of: str = INPUT, stride: int = 1, same: bool = True
) -> NetworkLayer:
    """Return a rectified convolution."""
    return NetworkLayer(name, "conv", (of,), filters, window, stride, same, f"{name}.relu")


def _chain(*steps: NetworkLayer) -> tuple[NetworkLayer, ...]:
    """Return layers that each read the one before."""
    sources = (INPUT, *(step.name for step in steps))
    return tuple(step._replace(of=(source,)) for source, step in zip(sources, steps, strict=False))


def _fork(name: str, of: str) -> tuple[NetworkLayer, ...]:
    """Return a 1 x 3 and a 3 x 1 convolution side by side."""
    sides = _conv(f"{name}a", 384, (1, 3), of=of), _conv(f"{name}b", 384, (3, 1), of=of)
    return *sides, NetworkLayer(name, "join", tuple(side.name for side in sides))


_MAX_POOL = NetworkLayer("maxpool", "max", stride=2, same=False)
_INCEPTION_STEM = _chain(
    _conv("Conv2d_1a_3x3", 32, SQUARE, stride=2, same=False),
    _conv("Conv2d_2a_3x3", 32, SQUARE, same=False),
    _conv("Conv2d_2b_3x3", 64, SQUARE),
    _MAX_POOL._replace(name="maxpool1"),
    _conv("Conv2d_3b_1x1", 80),
    _conv("Conv2d_4a_3x3", 192, SQUARE, same=False),
    _MAX_POOL._replace(name="maxpool2"),
)


def _figure_5(pooled: int) -> tuple[NetworkLayer, ...]:
    """Return the layers of figure 5; pooled: filters of the branch with a pool."""
    return (
        _conv("branch1x1", 64),
        *_chain(_conv("branch5x5_1", 48), _conv("branch5x5_2", 64, (5, 5))),
        *_chain(*(_conv(f"branch3x3dbl_{i + 1}", 96 if i else 64, SQUARE if i else POINT) for i in range(3))),
        *_chain(NetworkLayer("avgpool", "mean"), _conv("branch_pool", pooled)),
        NetworkLayer("", "join", ("branch1x1", "branch5x5_2", "branch3x3dbl_3", "branch_pool")),
    )


_HALVING_35 = (
    *_chain(_conv("branch3x3dbl_1", 64), _conv("branch3x3dbl_2", 96, SQUARE)),
    _conv("branch3x3", 384, SQUARE, stride=2, same=False),
    _conv("branch3x3dbl_3", 96, SQUARE, of="branch3x3dbl_2", stride=2, same=False),
    _MAX_POOL,
    NetworkLayer("", "join", ("branch3x3", "branch3x3dbl_3", "maxpool")),
)


def _figure_6(width: int) -> tuple[NetworkLayer, ...]:
    """Return the layers of figure 6, with 7 x 7 split into rows and columns; width: of the inner convolutions."""
    double = [_conv(f"branch7x7dbl_{i}", width, ROW if i % 2 else COLUMN) for i in (2, 3, 4)]
    return (
        _conv("branch1x1", 192),
        *_chain(_conv("branch7x7_1", width), _conv("branch7x7_2", width, ROW), _conv("branch7x7_3", 192, COLUMN)),
        *_chain(_conv("branch7x7dbl_1", width), *double, _conv("branch7x7dbl_5", 192, ROW)),
        *_chain(NetworkLayer("avgpool", "mean"), _conv("branch_pool", 192)),
        NetworkLayer("", "join", ("branch1x1", "branch7x7_3", "branch7x7dbl_5", "branch_pool")),
    )


_HALVING_17 = (
    *_chain(_conv("branch7x7x3_1", 192), _conv("branch7x7x3_2", 192, ROW), _conv("branch7x7x3_3", 192, COLUMN)),
    *_chain(_conv("branch3x3_1", 192), _conv("branch3x3_2", 320, SQUARE, stride=2, same=False)),
    _conv("branch7x7x3_4", 192, SQUARE, of="branch7x7x3_3", stride=2, same=False),
    _MAX_POOL,
    NetworkLayer("", "join", ("branch3x3_2", "branch7x7x3_4", "maxpool")),
)
_FIGURE_7 = (
    _conv("branch3x3_1", 384),
    *_chain(_conv("branch3x3dbl_1", 448), _conv("branch3x3dbl_2", 384, SQUARE)),
    *_fork("branch3x3_2", "branch3x3_1"),
    *_fork("branch3x3dbl_3", "branch3x3dbl_2"),
    _conv("branch1x1", 320),
    *_chain(NetworkLayer("avgpool", "mean"), _conv("branch_pool", 192)),
    NetworkLayer("", "join", ("branch1x1", "branch3x3_2", "branch3x3dbl_3", "branch_pool")),
)


_DRAWN_FIRST = {
    "Mixed_7a": ("branch3x3_1",),
    **dict.fromkeys(("Mixed_7b", "Mixed_7c"), ("branch3x3_1", "branch3x3dbl_1", "branch3x3dbl_2", "branch1x1")),
}


def resnet50_blocks() -> Iterator[NetworkBlock]:
    """Yield the blocks of ResNet-50 between the image of 224 x 224 and the classifier."""
    stem = NetworkLayer("conv1", "conv", filters=64, window=(7, 7), stride=2, relu="relu")
    yield NetworkBlock("", "stem", (stem, NetworkLayer("maxpool", "max", ("conv1",), stride=2)))
    for stage, (width, units) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            layers = _bottleneck(width, stride, projected=not unit)
            convolutions = ("conv1", "conv2", "conv3")
            yield NetworkBlock(f"layer{stage + 1}.{unit}", f"stage{stage}/unit{unit}", layers, convolutions)


def _bottleneck(width: int, stride: int, *, projected: bool) -> tuple[NetworkLayer, ...]:
    """Return 1 x 1, 3 x 3 and 1 x 1 convolutions, added to the input or to a projection of it.

    Half the gain: shortcut and branch add up, and 16 blocks must not make the values grow out of fp16.
    """
    shortcut = NetworkLayer("downsample", "conv", (INPUT,), 4 * width, POINT, stride, gain=0.7)
    return (
        *((shortcut,) if projected else ()),
        NetworkLayer("conv1", "conv", (INPUT,), width, POINT, relu="relu1"),
        NetworkLayer("conv2", "conv", ("conv1",), width, SQUARE, stride, relu="relu2"),
        NetworkLayer("conv3", "conv", ("conv2",), 4 * width, POINT, gain=0.5),
        NetworkLayer("add", "add", ("conv3", "downsample" if projected else INPUT), relu="relu3"),
    )
