"""One update of the agent: 32 placements of 1,000 groups on two devices drawn, asked about and learned from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.common import Figure, figure, layered_graph, median_s, say
from embed.features import node_features
from pipeline.core.devices import CostTable
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.stages import Subject
from pipeline.registry import build
from pipeline.shared.torch_tools import seeded
from policy.place.agent.hsdag import Hsdag
from policy.place.search import Search
from runtime.machines.roofline import roofline_s
from runtime.machines.topology import preset

NODES = 1000
PLANS = 32
REPETITIONS = 10


def figures() -> Iterator[Figure]:
    """Yield the seconds of an update that draws placements, every node a group of its own, and of one that local
    searches.

    `pipelined` answers at once, so that these are the agent's own seconds; `sequential` has the cycles of placements
    that are cut at random to break.
    """
    problem, subject = problem_of(layered_graph(NODES, seed=0))
    for name, local_searches, simulator in (
        ("draw", 0.0, "pipelined"),
        ("walk", 1.0, "pipelined"),
        ("draw.sequential", 0.0, "sequential"),
    ):
        agent = Hsdag(batch=PLANS, p_local_search=local_searches, warm=0.0)
        evaluator = build("measure", simulator).bind(subject)
        search = Search(problem, evaluator, Budget(10**9), lambda _: None)
        with seeded(0):
            trainer = agent.trainer(search, seed=0)
            spent = median_s(trainer.update, REPETITIONS)
        how = f"{PLANS} placements of {NODES} groups, 2 devices, one thread, {simulator}; median of {REPETITIONS}"
        yield figure(f"hsdag_update.{name}", spent, "s", how, target=0.5 if simulator == "pipelined" else None)


def problem_of(graph: Graph) -> tuple[Problem, Subject]:
    """Return a graph on a simulated desktop, every node alone, with what a policy needs."""
    machine = preset("cpu+gpu").without_memory_limits()
    op_s = np.stack([roofline_s(graph, chip) for chip in machine.chips if chip is not None], axis=1)
    costs = CostTable(graph.names, machine.topology.names, op_s, np.zeros(2), ("modelled", "modelled"))
    alone = Grouping.identity(graph.n)
    features = node_features(graph, alone, costs).values
    policy = PolicyInputs(features, build("embed", "directed"), build("group", "identity"))
    problem = Problem(Instance(graph, machine.topology, alone, costs, np.ones((graph.n, 2), bool)), policy=policy)
    return problem, Subject(None, graph, alone, machine.topology, costs, 0)


if __name__ == "__main__":
    say(figures())
