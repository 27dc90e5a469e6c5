"""Placements that share out bytes: distinct, where operations may go, and with few copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.core.problem import Budget, Problem
from pipeline.testing.simulated import simulator_of
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.local import packings as module
from policy.place.local.packings import packings
from tests.toys import ignore_progress, toy_graph, toy_problem

CHAINS, LENGTH = 3, 8


def braided(memory_bytes: int) -> Problem:
    """Return chains whose operations take turns in the order of the graph, on as many devices."""
    edges = [(CHAINS * i + c, CHAINS * (i + 1) + c) for i in range(LENGTH - 1) for c in range(CHAINS)]
    n = CHAINS * LENGTH
    problem = toy_problem(toy_graph(n, edges, weight_bytes=[10] * n), np.ones((n, CHAINS)))
    devices = tuple(replace(d, memory_bytes=memory_bytes) for d in problem.topology.devices)
    return problem.on(topology=replace(problem.topology, devices=devices))


def searched(problem: Problem) -> Search:
    return Search(problem, simulator_of(problem, "T2"), Budget(10_000), ignore_progress)


def test_packings_are_distinct_and_every_one_names_a_device_for_every_operation() -> None:
    search = searched(braided(90))
    found = np.stack(list(packings(search)))
    assert len(np.unique(found, axis=0)) == len(found) > 4
    assert found.min() >= 0
    assert found.max() < CHAINS


def test_partitions_keep_chains_whole_where_only_whole_chains_fit() -> None:
    problem = braided(90)  # a chain of 80 bytes of weights, one output of 4, and no room for copies from every step
    search = searched(problem)
    partitioned = np.stack(list(module._partitioned(problem, problem.derived(Groups.of), 0.1)))
    chain = np.arange(CHAINS * LENGTH) % CHAINS
    whole = [all(len(set(row[chain == c])) == 1 for c in range(CHAINS)) for row in partitioned]
    assert any(whole)
    assert search.simulate(np.stack(list(packings(search)))).over_bytes.min() == 0


def test_operations_stay_where_they_may_run() -> None:
    problem = braided(90)
    allowed = np.ones((problem.graph.n, CHAINS), bool)
    allowed[:5, 1:] = False  # five operations of three chains run on the first device alone
    found = np.stack(list(packings(searched(problem.on(allowed=allowed)))))
    assert (found[:, :5] == 0).all()
