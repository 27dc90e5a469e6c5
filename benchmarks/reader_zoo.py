"""How long it takes to read the networks of the zoo."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.common import Figure, figure, median_s, say
from coarsen.reading.model.read import read_model, to_graph
from pipeline.core.graph import Graph
from runtime import zoo

CALLS = 3


def figures() -> Iterator[Figure]:
    """Yield for every network the seconds of both parts of reading."""
    with tempfile.TemporaryDirectory() as folder:
        for name in zoo.names():
            xml = Path(folder) / f"{name}.xml"
            zoo.export(name, xml)
            model = read_model(xml)
            graph = to_graph(model, source="")
            how = f"zoo:{name}, {graph.n} operations; median of {CALLS} calls after one that does not count"
            both_s = median_s(partial(read_whole, xml), CALLS)
            yield figure(f"reader_zoo.{name}", both_s, "s", f"read_model and to_graph of {how}")
            graph_s = median_s(partial(to_graph, model, source=""), CALLS)
            yield figure(f"reader_zoo.{name}.to_graph", graph_s, "s", f"to_graph alone of {how}")


def read_whole(xml: Path) -> Graph:
    """Return the graph of a model file."""
    return to_graph(read_model(xml), source="")


if __name__ == "__main__":
    say(figures())
