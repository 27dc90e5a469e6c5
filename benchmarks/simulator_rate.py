"""How many placements, and moves of local search, the simulator `sequential` evaluates in a second."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, layered_graph, median_s, say, timed, zoo_model
from coarsen.fold import Fold
from coarsen.fuse import Fuse
from pipeline.core.arrays import Bool
from pipeline.core.devices import CostTable, DeviceSpec, Topology, contract_costs
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Instance, Problem, allowed_devices
from pipeline.core.simulation import LocalSearch, Moves, SequentialModel
from pipeline.core.stages import Evaluator, Subject
from pipeline.settings.registry import build_implementation
from pipeline.shared.partition import colocation_grouping, join_groupings
from runtime.measuring.profile.fusion import cpu_kernels
from runtime.simulators.sequential.sequential import Sequential, SequentialEvaluator

NETWORK = "inception-v3"
PLACEMENTS = 512
BATCHES = (1, 64)
LARGE = 1500  # operations of the graph whose parts wait for one another almost wherever it is cut
CALLS = 5
MOVES = {NETWORK: 12_000, "layered": 50}
FLOPS_PER_S, BYTES_PER_S = 50e9, 10e9
LAUNCH_S = 50e-6


def figures() -> Iterator[Figure]:
    """Yield the rate for placements asked one by one and in batches, and for the moves of a search."""
    with tempfile.TemporaryDirectory() as folder:
        subject = subject_of(*zoo_model(NETWORK, Path(folder)))
    evaluator = Sequential().bind(subject)
    k, devices = subject.grouping.k, subject.topology.names
    rng = np.random.default_rng(0)
    placements = [Placement(rng.integers(0, 2, k, dtype=np.int32), devices) for _ in range(PLACEMENTS)]
    for size in BATCHES:
        batches = [placements[i : i + size] for i in range(0, PLACEMENTS, size)]
        spent_s = median_s(partial(evaluate_all, evaluator, batches), CALLS)
        how = (
            f"`sequential` on zoo:{NETWORK} after fold and fuse, {k} nodes, 2 devices, costs by FLOPs and bytes; "
            f"{PLACEMENTS} random placements in batches of {size}, median of {CALLS} passes"
        )
        yield figure(f"simulator_rate.batch_{size}", PLACEMENTS / spent_s, "1/s", how)
    yield from of_walks(NETWORK, subject)
    graph = layered_graph(LARGE, seed=0)
    yield from of_walks("layered", costed(None, graph, Grouping.identity(graph.n)))


class Recording(SequentialEvaluator):
    """A simulator that remembers the local searches it was asked for."""

    def __init__(self, subject: Subject) -> None:
        assert subject.costs is not None
        super().__init__(subject, subject.costs, SequentialModel())
        self.local_searches: list[tuple[Placement, Moves, Bool, int]] = []

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from a placement; see the Protocol."""
        self.local_searches.append((start, moves, allowed, limit))
        return super().local_search(start, moves, allowed=allowed, limit=limit)


def of_walks(name: str, subject: Subject) -> Iterator[Figure]:
    """Yield the rate of the local searches that annealing asks for, as they come and once more."""
    recording = Recording(subject)
    build_implementation("place", "anneal").place(
        problem_of(subject), recording, Budget(MOVES[name]), seed=0, progress=lambda _: None
    )
    first, again = [], []
    for _ in range(CALLS):
        fresh = Sequential().bind(subject)
        fresh.evaluate([recording.local_searches[0][0]])  # compiled code is loaded
        first.append(timed(partial(walked, fresh, recording))[0])
        again.append(timed(partial(walked, fresh, recording))[0])
    moves, k = walked(fresh, recording), subject.grouping.k
    how = (
        f"`sequential` with launches of {LAUNCH_S * 1e6:g} us, {name}, {subject.graph.n} operations, {k} nodes, "
        f"{moves} moves of `anneal`, median of {CALLS} passes"
    )
    yield figure(f"simulator_rate.walk.{name}", moves / statistics.median(first), "1/s", how)
    yield figure(f"simulator_rate.walk.{name}.again", moves / statistics.median(again), "1/s", f"the same again; {how}")


def walked(evaluator: SequentialEvaluator, recording: Recording) -> int:
    """Walk all recorded local searches; return how many moves were tried."""
    return sum(
        evaluator.local_search(start, moves, allowed=allowed, limit=limit).evaluations
        for start, moves, allowed, limit in recording.local_searches
    )


def problem_of(subject: Subject) -> Problem:
    """Return the problem of placing a subject's nodes."""
    assert subject.costs is not None
    graph = contract(subject.graph, subject.grouping)
    costs = contract_costs(subject.costs, graph, subject.grouping)
    return Problem(
        Instance(
            graph,
            subject.topology,
            colocation_grouping(graph),
            costs,
            allowed_devices(graph, subject.topology, costs, {}),
        )
    )


def evaluate_all(evaluator: Evaluator, batches: Sequence[Sequence[Placement]]) -> None:
    """Ask for one batch after the other."""
    for batch in batches:
        evaluator.evaluate(batch)


def subject_of(model: Path, graph: Graph) -> Subject:
    """Return a model coarsened to the CPU's kernels, on two devices; see `costed`."""
    graph = replace(graph, kernel=cpu_kernels(model, graph))
    folded = Fold().coarsen(graph, seed=0)
    fused = folded.then(Fuse().coarsen(contract(graph, folded), seed=0))
    return costed(model, graph, join_groupings(fused, colocation_grouping(graph)))


def costed(model: Path | None, graph: Graph, grouping: Grouping) -> Subject:
    """Return a graph on two devices whose costs are made up from FLOPs and bytes."""
    fast_s = graph.flops / FLOPS_PER_S + graph.out_bytes / BYTES_PER_S
    slower = np.random.default_rng(0).uniform(0.5, 2.0, graph.n)
    topology = Topology.uniform(
        tuple(DeviceSpec(name, "CPU", f"CPU_{name}") for name in "AB"), bytes_per_s=BYTES_PER_S, latency_s=0.0
    )
    costs = CostTable(
        graph.names,
        topology.names,
        np.stack([fast_s, fast_s * slower], axis=1),
        np.full(topology.p, LAUNCH_S),
        ("modelled", "modelled"),
    )
    return Subject(model, graph, grouping, topology, costs, 0)


if __name__ == "__main__":
    say(figures())
