"""Recommenders of two and of four towers, which meet in products at the top.

Source: Covington, Adams and Sargin, Deep Neural Networks for YouTube Recommendations, 2016 (towers); Naumov et al.,
Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019 (DLRM: tables beside a
perceptron, products of all pairs). Sizes are freely chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, integers, model, parameter, relu

BATCH = 32
DENSE = 256  # numbers that describe a side
IDS, TABLE_ROWS, EMBEDDED = 8, 5000, 64  # features looked up in one hashed table


@dataclass(frozen=True, slots=True)
class _Tower:
    """A tower: its inputs are called after it. widths: of its layers, the last that in which towers meet."""

    name: str
    widths: tuple[int, ...]


def two_towers(seed: int) -> ov.Model:
    """Return user and item towers of four layers, their products the scores: float32 [32, 1]."""
    weights = RandomWeights(np.random.default_rng(seed))
    towers = [_Tower(name, (1024, 1024, 1024, 128)) for name in ("user", "item")]
    inputs, tops = _build_towers(weights, towers)
    product = op.multiply(*tops, name="product")
    score = op.reduce_sum(product, integers([1], "score.axes"), keep_dims=True, name="score")
    return model("two-towers", inputs, {"scores": score})


def four_towers(seed: int) -> ov.Model:
    """Return four towers, the products of all pairs, and a perceptron over both: scores float32 [32, 1]."""
    weights = RandomWeights(np.random.default_rng(seed))
    towers = [_Tower(name, (512, 512, 512, 64)) for name in ("user", "item", "context", "history")]
    inputs, tops = _build_towers(weights, towers)
    stacked = op.concat([_as_row(top, towers[i].name) for i, top in enumerate(tops)], 1, name="stacked")  # [32, 4, 64]
    products = op.matmul(stacked, stacked, False, True, name="products")  # [32, 4, 4]
    flat = op.reshape(products, integers([BATCH, len(towers) ** 2], "flat.shape"), False, name="flat")
    joined = op.concat([*tops, flat], 1, name="joined")
    width = sum(tower.widths[-1] for tower in towers) + len(towers) ** 2
    hidden = relu(weights.linear(joined, (width, 256), "top.0"), "top.0.relu")
    return model("four-towers", inputs, {"scores": weights.linear(hidden, (256, 1), "top.1")})


def _build_towers(weights: RandomWeights, towers: list[_Tower]) -> tuple[list[Node], list[Node]]:
    """Return the inputs of all towers, and their tops, [32, width]."""
    inputs, tops = [], []
    for tower in towers:
        dense = parameter(f"{tower.name}_dense", (BATCH, DENSE), ov.Type.f32)
        ids = parameter(f"{tower.name}_ids", (BATCH, IDS), ov.Type.i64)
        inputs += [dense, ids]
        # the top of a tower over its numbers and the embeddings of its features
        name = tower.name
        table = weights.normal((TABLE_ROWS, EMBEDDED), f"{name}.table", std=1.0)
        gathered = op.gather(table, ids, integers(0, f"{name}.axis"), name=f"{name}.embeddings")  # [32, 8, 64]
        flat = op.reshape(gathered, integers([BATCH, IDS * EMBEDDED], f"{name}.shape"), False, name=f"{name}.flat")
        x, width = op.concat([dense, flat], 1, name=f"{name}.joined"), DENSE + IDS * EMBEDDED
        for i, after in enumerate(tower.widths):
            x = weights.linear(x, (width, after), f"{name}.{i}")
            x, width = (relu(x, f"{name}.{i}.relu") if i + 1 < len(tower.widths) else x), after
        tops.append(x)
    return inputs, tops


def _as_row(top: Node, name: str) -> Node:
    """Return [32, width] as [32, 1, width]."""
    row = op.unsqueeze(top, integers([1], f"{name}.row_axis"))
    row.set_friendly_name(f"{name}.row")  # unsqueeze ignores its argument `name`
    return row
