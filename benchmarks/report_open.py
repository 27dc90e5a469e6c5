"""How large the page of 83,727 operations is, how long it takes to make, and to open in a browser."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, say
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph
from pipeline.report.page import graph_context, write_page
from pipeline.report.placed_graph import PlacedGraph
from pipeline.report.plain_page import PlainPage
from runtime.zoo import workloads

GRAPH = "gnmt8"
OPENED = 5
TARGET_S = 2.0
STATIC_BYTES = 1_000_000
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


def figures() -> Iterator[Figure]:
    """Yield seconds of making and opening the page, and its bytes, with and without its data."""
    graph = workloads.build(GRAPH, seed=0).graph
    begun = time.perf_counter()
    context = graph_context(placed(graph))
    text = PlainPage(GRAPH, more=context).text()
    how = f"{GRAPH}, {graph.n:,} operations, half on each of two devices"
    yield figure("report_open.make", time.perf_counter() - begun, "s", f"{how}; once")
    yield figure("report_open.bytes", len(text.encode()), "bytes", how)
    static = len(text.encode()) - len(context["graph"].encode())
    yield figure("report_open.static", static, "bytes", f"{how}; without its data", target=STATIC_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        write_page(Path(folder) / "page.html", text)
        yield opening(Path(folder) / "page.html", how)


def placed(graph: Graph) -> PlacedGraph:
    """Return the first half of a graph's operations on A and the others on B."""
    names, rng = ("A", "B"), np.random.default_rng(0)
    costs = CostTable(graph.names, names, rng.lognormal(-11, 1, (graph.n, 2)), np.zeros(2), ("given", "given"))
    devices = tuple(DeviceSpec(n, n, n) for n in names)
    topology = Topology.uniform(devices, bytes_per_s=1e10, latency_s=1e-5)
    placement = {name: names[2 * i // graph.n] for i, name in enumerate(graph.names)}
    return PlacedGraph.of(graph, placement, (costs, topology), "")


def opening(page: Path, how: str) -> Figure:
    """Return the seconds from asking for a page to its drawn graph; no value without a browser."""
    program = shutil.which("chromium")
    if program is None:
        return figure("report_open", None, "s", "there is no Chromium", target=TARGET_S)
    from playwright.sync_api import sync_playwright

    taken = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(SWITCHES))
        for _ in range(OPENED):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            timing = "performance.getEntriesByType('navigation')[0]"
            taken.append(float(tab.evaluate(f"{timing}.loadEventEnd - {timing}.startTime")) / 1e3)
            if tab.locator(".graph-view .box").count() < 2:
                raise RuntimeError("the graph was not drawn")
            tab.close()
        browser.close()
    return figure("report_open", statistics.median(taken), "s", f"{how}; median of {OPENED} times", target=TARGET_S)


if __name__ == "__main__":
    say(figures())
