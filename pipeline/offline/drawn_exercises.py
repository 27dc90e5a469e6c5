"""Exercises drawn by seed: graphs of every family in any size, on any machine, level and memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.offline.curriculum import Exercise
from runtime.zoo.workloads.placeto import FAMILIES, split

Choices = tuple[object, ...]
# Family -> names of graphs, and for each option what is drawn from.
NETWORKS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Choices]]] = {
    "rnnlm": (("rnnlm2", "rnnlm4"), {"steps": (1, 2, 3, 5), "batch": (16, 32, 64, 128)}),
    "gnmt": (("gnmt2", "gnmt4"), {"steps": (1, 2, 3, 4), "batch": (16, 32, 64, 128)}),
    "txl": (("txl2", "txl4"), {"segments": (1, 2, 3), "batch": (8, 16, 32)}),
    "inception": (("inception-v3-training",), {"training": ("true", "false"), "batch": (16, 32, 64)}),
    "resnet": (("resnet50-training",), {"training": ("true", "false"), "batch": (16, 32, 64, 128)}),
    "nasnet": (("nasnet-mobile", "nasnet-large"), {"cells": (1, 2), "training": ("true", "false"), "batch": (16, 64)}),
    "amoebanet": (("amoebanet",), {"layers": (3, 6), "training": ("true", "false"), "batch": (16, 32, 64)}),
    "bert": (("bert-base-training",), {"layers": (1, 2, 4), "hidden": (768, 1536), "batch": (4, 8, 16, 32)}),
    "moe": (("moe-block",), {"experts": (4, 8, 16), "training": ("true", "false"), "batch": (4, 8, 16)}),
    "wavenet": (("wavenet2", "wavenet4"), {"layers": (4, 6, 8), "training": ("true", "false"), "batch": (2, 8, 16)}),
    "nmt": (("nmt",), {"steps": (1, 2, 3), "hidden": (512, 1024), "batch": (16, 64)}),
}
RANDOM = ("layered", "erdos-renyi", "stochastic-block", "watts-strogatz", "barabasi-albert", "series-parallel")
TILED: Mapping[str, Mapping[str, Choices]] = {
    "chainmm": {"size": (1024, 2048, 4096)},
    "ffnn": {"batch": (1024, 3072)},
    "llama-block": {"hidden": (1024, 2048, 4096), "sequence": (256, 512)},
    "llama-layer": {"hidden": (1024, 2048, 4096)},
}
TOPOLOGIES = (
    *("equal:2", "equal:4", "equal:8", "equal:16", "unequal:2", "unequal:4", "unequal:8", "unequal:16"),
    *("two-level:2x2", "two-level:2x4", "ring:4", "ring:8", "p100x8", "cpu+gpu"),
)
LEVELS, LEVEL_SHARES = ("T0", "T1", "T2"), (0.2, 0.2, 0.6)
LIMITED = 0.25  # share of exercises on devices whose memory is limited
LEAST, MOST, LARGEST = 50, 600, 5000  # operations of random graphs: the first two mostly
LARGE = 0.03  # share of random graphs that are larger
FAMILY_NAMES = (*NETWORKS, *RANDOM, "tiled", *FAMILIES)


def drawn_exercise(number: int, *, families: tuple[str, ...] = FAMILY_NAMES, seed: int = 0) -> Exercise:
    """Return the exercise of a number, of one of these families; numbers and seeds tell draws apart.

    >>> drawn_exercise(0, families=("resnet",)) == drawn_exercise(0, families=("resnet",))
    True
    """
    rng = np.random.default_rng([seed, number])
    family = str(rng.choice(families))
    share = round(float(rng.uniform(1.2, 3.0)), 2) if rng.random() < LIMITED else 0.0
    topology, level = str(rng.choice(TOPOLOGIES)), str(rng.choice(LEVELS, p=LEVEL_SHARES))
    fixed = 0 if family in FAMILIES else int(rng.integers(2**31))
    return Exercise(family, _drawn_graph(family, rng), topology, level, share, fixed)


def _drawn_graph(family: str, rng: np.random.Generator) -> str:
    """Return the words for a graph of a family."""
    if family in FAMILIES:
        return f"{family}?index={rng.choice(split(family, seed=0)[0])}"
    if family in RANDOM:
        low, high = (MOST, LARGEST) if rng.random() < LARGE else (LEAST, MOST)
        return f"{family}?n={round(low * (high / low) ** rng.random())}&ccr={0.05 * 400 ** rng.random():.3g}"
    if family == "tiled":
        name = str(rng.choice(list(TILED)))
        options = TILED[name]
    else:
        names, options = NETWORKS[family]
        name = str(rng.choice(names))
    words = [f"{key}={values[int(rng.integers(len(values)))]}" for key, values in options.items()]
    return f"{name}?{'&'.join([*words, *(() if family == 'tiled' else ('fidelity=core',))])}"
