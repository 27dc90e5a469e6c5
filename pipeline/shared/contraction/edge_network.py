"""The network that says of every edge how likely both its ends share a device in a good placement.

    h = ReLU(W x);  h'_v = ReLU(W_own h_v + W_along mean_{u -> v} h_u + W_against mean_{v -> w} h_w), twice
    logit(u -> v) = w ReLU(W_producer h_u + W_consumer h_v + W_edge x_uv)

x are the figures of `edge_figures`. Source of the layer: Rossi et al., "Edge directionality improves learning on
heterophilic graphs", LoG 2023 (Dir-SAGE).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.shared.contraction.edge_figures import EDGE_FIGURES, NODE_FIGURES, EdgeFigures
from pipeline.shared.payload import read_weights

WIDTH = 24
ROUNDS = ("first", "second")
SHIPPED = Path(__file__).with_name("contraction.safetensors")


def weight_shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights by name."""
    shapes: dict[str, tuple[int, ...]] = {"enter": (len(NODE_FIGURES), width), "enter_bias": (width,)}
    for name in ROUNDS:
        shapes |= {f"{name}_{part}": (width, width) for part in ("own", "along", "against")} | {
            f"{name}_bias": (width,)
        }
    shapes |= {"producer": (width, width), "consumer": (width, width), "edge": (len(EDGE_FIGURES), width)}
    return shapes | {"edge_bias": (width,), "out": (width,), "out_bias": (1,)}


def edge_logits(weights: Mapping[str, Any], figures: EdgeFigures) -> Any:
    """Return [m], the logit of every edge: of numpy arrays an array, of tensors a tensor."""
    h = (figures.node @ weights["enter"] + weights["enter_bias"]).clip(min=0)
    for name in ROUNDS:
        along, against = (
            figures.along @ (h @ weights[f"{name}_along"]),
            figures.against @ (h @ weights[f"{name}_against"]),
        )
        h = (h @ weights[f"{name}_own"] + along + against + weights[f"{name}_bias"]).clip(min=0)
    both = (h @ weights["producer"])[figures.ends[0]] + (h @ weights["consumer"])[figures.ends[1]]
    return (both + figures.edge @ weights["edge"] + weights["edge_bias"]).clip(min=0) @ weights["out"] + weights[
        "out_bias"
    ]


def edge_weights(path: Path) -> Mapping[str, Float64]:
    """Return the weights in a file."""
    return {name: array.astype(np.float64) for name, array in read_weights(path).items()}


@cache
def shipped_weights() -> Mapping[str, Float64]:
    """Return the weights that come with the package."""
    return edge_weights(SHIPPED)
