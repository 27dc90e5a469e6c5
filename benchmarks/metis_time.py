"""How long METIS takes to partition a large graph."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Figure, figure, layered_graph, median_s, say
from coarsen.metis import Metis

OPERATIONS = 50_000
PARTS = 32
CALLS = 5
TARGET_S = 2.0


def figures() -> Iterator[Figure]:
    """Yield the seconds of one call."""
    graph = layered_graph(OPERATIONS, seed=0)
    spent_s = median_s(lambda: Metis(parts=PARTS).coarsen(graph, seed=0), CALLS)
    how = (
        f"coarsen.metis with {PARTS} parts on a layered graph of {graph.n} operations and {graph.m} edges; "
        f"median of {CALLS} calls after one that does not count"
    )
    yield figure("metis_50k", spent_s, "s", how, target=TARGET_S)


if __name__ == "__main__":
    say(figures())
