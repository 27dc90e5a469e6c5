"""How long the compiled simulator `listsched` takes for one placement, and for a move of local search."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.common import Figure, figure, layered_graph, median_s, say
from pipeline.core.arrays import Bool, Int32
from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Progress
from pipeline.core.simulation import LocalSearch, Moves
from pipeline.core.stages import Simulator, Subject
from pipeline.offline.scenario import Scenario, load
from policy.place.local.anneal import Anneal
from runtime.simulators.dataflow.listsched import ListSched

SMALL, MEDIUM, LARGE = 200, 84_000, 1_000_000
BATCH = 2000
CALLS = 5
TARGET_S = {SMALL: 20e-6, MEDIUM: 15e-3, LARGE: 0.3}
MOVES_PER_S = 50_000.0
WALKED = ("zoo:llama-block", "zoo:ffnn", "zoo:layered?n=200")
EVALUATIONS = 12_000  # of one annealing, whose local searches are then timed
DEVICES = {SMALL: 4, MEDIUM: 8, LARGE: 8}
FLOPS_PER_S, BYTES_PER_S = 5e12, 7.6e9


def figures() -> Iterator[Figure]:
    """Yield seconds per placement for three sizes and several kinds of placement, and those of the first call."""
    graph = layered_graph(SMALL, seed=0)
    begun = time.perf_counter()
    simulator_of(graph, "T0", DEVICES[SMALL]).simulate(np.zeros((1, SMALL), np.int32))
    first_s = time.perf_counter() - begun
    yield figure("dataflow_time.first_call", first_s, "s", "loads the compiled code from disk, or compiles it")
    for n in (SMALL, MEDIUM, LARGE):
        graph = layered_graph(n, seed=0)
        for level in ("T0", "T1", "T2"):
            yield from of_level(graph, level)
    for name in WALKED:
        for level in ("T0", "T1", "T2"):
            for ordered in (False, True):
                yield walked(name, level, ordered=ordered)


class Recorder:
    """A simulator that remembers the local searches it is asked for."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.asked: list[partial[LocalSearch]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._simulator, name)

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Walk as the simulator does."""
        self.asked.append(partial(self._simulator.local_search, start, moves, allowed=allowed, limit=limit))
        return self.asked[-1]()


def walked(name: str, level: str, *, ordered: bool) -> Figure:
    """Return the seconds per move of the local searches that `anneal` asks for; how tells what they are without
    `bounded`.
    """
    case = load(Scenario(name, "equal:4", level=level, memory=False, ordered=ordered))
    recorder = Recorder(case.simulator())
    Anneal().place(case.problem, recorder, Budget(EVALUATIONS), seed=0, progress=silent)  # type: ignore[arg-type]
    whole = [partial(w.func, w.args[0], replace(w.args[1], bounded=False), **w.keywords) for w in recorder.asked]
    tried = sum(local_search().evaluations for local_search in recorder.asked)
    spent_s, whole_s = median_s(partial(again, recorder.asked), CALLS), median_s(partial(again, whole), CALLS)
    how = (
        f"{name}, {case.graph.n} operations, 4 devices, {tried} moves, {tried / spent_s:.0f}/s; "
        f"{tried / whole_s:.0f}/s where all values are asked for; median of {CALLS} calls, one core"
    )
    kind = "ordered" if ordered else "fifo"
    return figure(f"dataflow_time.walk.{name[4:]}.{level}.{kind}", spent_s / tried, "s", how, target=1 / MOVES_PER_S)


def again(local_searches: list[partial[LocalSearch]]) -> None:
    """Walk all of them."""
    for local_search in local_searches:
        local_search()


def silent(_: Progress) -> None:
    """Take progress and say nothing."""


def of_level(graph: Graph, level: str) -> Iterator[Figure]:
    """Yield seconds per placement; the target holds for blocks of operations, and is told for random placements."""
    p = DEVICES[graph.n]
    simulator = simulator_of(graph, level, p)
    batch = BATCH if graph.n == SMALL else 1
    rng = np.random.default_rng(0)
    blocks = np.tile((np.arange(graph.n) * p // graph.n).astype(np.int32), (batch, 1))
    scattered = rng.integers(0, p, (batch, graph.n), dtype=np.int32)
    priority = rng.random((batch, graph.n))
    for kind, device, order, target in (
        ("blocks", blocks, None, TARGET_S[graph.n]),
        ("blocks_ordered", blocks, priority, None),
        ("random", scattered, None, None),
    ):
        spent_s = median_s(partial(run, simulator, device, order), CALLS) / batch
        cut = float(np.mean(device[0][graph.edges[0]] != device[0][graph.edges[1]]))
        how = (
            f"listsched {level}, {graph.n} operations, {graph.m} edges, {cut:.0%} of them cut, {p} devices, one core; "
            f"{batch} placements at once, median of {CALLS} calls"
        )
        yield figure(f"dataflow_time.{graph.n}.{level}.{kind}", spent_s, "s", how, target=target)


def run(
    simulator: Simulator, device: Int32, priority: np.ndarray[tuple[int, int], np.dtype[np.float64]] | None
) -> None:
    """Simulate a batch."""
    simulator.simulate(device, priority)


def simulator_of(graph: Graph, level: str, p: int) -> Simulator:
    """Return the simulator of a graph on p equal devices without a limit of memory."""
    devices = tuple(DeviceSpec(f"gpu{d}", "GPU", "GPU", kind="gpu") for d in range(p))
    topology = Topology.uniform(devices, bytes_per_s=BYTES_PER_S, latency_s=0.0)
    op_s = np.repeat((graph.flops / FLOPS_PER_S + 1e-6)[:, None], p, axis=1)
    origin: list[Origin] = ["modelled"] * p
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(p), tuple(origin))
    return ListSched(level=level).bind(Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0))


if __name__ == "__main__":
    say(figures())
