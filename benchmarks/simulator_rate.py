"""How many placements the simulator `sequential` evaluates in a second."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, median_s, say, zoo_model
from coarsen.fold import Fold
from coarsen.fuse import Fuse
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, contract
from pipeline.core.placement import Placement
from pipeline.core.stages import Evaluator, Subject
from pipeline.partition import join, tied
from runtime.fusion import cpu_kernels
from runtime.simulators.sequential import Sequential

NETWORK = "inception-v3"
PLACEMENTS = 512
BATCHES = (1, 64)
CALLS = 5
FLOPS_PER_S, BYTES_PER_S = 50e9, 10e9
LAUNCH_S = 50e-6


def figures() -> Iterator[Figure]:
    """Yield the rate for placements asked one by one and in batches."""
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


def evaluate_all(evaluator: Evaluator, batches: Sequence[Sequence[Placement]]) -> None:
    """Ask for one batch after the other."""
    for batch in batches:
        evaluator.evaluate(batch)


def subject_of(model: Path, graph: Graph) -> Subject:
    """Return a model coarsened to the CPU's kernels, on two devices whose costs are made up from FLOPs and bytes."""
    graph = replace(graph, kernel=cpu_kernels(model, graph))
    folded = Fold().coarsen(graph, seed=0)
    fused = folded.then(Fuse().coarsen(contract(graph, folded), seed=0))
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
    return Subject(model, graph, join(fused, tied(graph)), topology, costs, 0)


if __name__ == "__main__":
    say(figures())
