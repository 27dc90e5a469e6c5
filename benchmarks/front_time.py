"""How long it takes from a model file to features of its coarse operations."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Figure, figure, layered_model, parts, say, timed
from coarsen.colocate import Colocate
from coarsen.fold import Fold
from coarsen.reading.model.read import read_model, save_model, to_graph
from embed.features import node_features
from pipeline.core.graph import contract

RUNS = (("front_1k", 1_000, 5, 1.0), ("front_50k", 50_000, 3, 20.0))  # name, operations, repetitions, target in seconds


def figures() -> Iterator[Figure]:
    """Yield for every size the seconds of all, then of each part."""
    with tempfile.TemporaryDirectory() as folder:
        for name, n, repetitions, target_s in RUNS:
            xml = Path(folder) / f"{name}.xml"
            save_model(layered_model(n, seed=0), xml)  # exactly n operations
            front(xml)  # the first call pays for what is loaded once
            taken = [front(xml) for _ in range(repetitions)]
            how = (
                f"IR of {n} operations -> read_model, to_graph, fold, contract, colocate, node_features in one "
                f"process; median of {repetitions} runs after one that does not count"
            )
            yield figure(name, statistics.median(sum(t.values()) for t in taken), "s", how, target=target_s)
            yield from parts(name, {part: statistics.median(t[part] for t in taken) for part in taken[0]}, how)


def front(xml: Path) -> dict[str, float]:
    """Return the seconds of each part of one run, by its name."""
    spent: dict[str, float] = {}
    spent["read_model"], model = timed(lambda: read_model(xml))
    spent["to_graph"], graph = timed(lambda: to_graph(model, source=""))
    spent["fold"], folded = timed(lambda: Fold().coarsen(graph, seed=0))
    spent["contract"], smaller = timed(lambda: contract(graph, folded))
    spent["colocate"], grouping = timed(lambda: folded.then(Colocate().coarsen(smaller, seed=0)))
    spent["node_features"], _ = timed(lambda: node_features(graph, grouping, None))
    return spent


if __name__ == "__main__":
    say(figures())
