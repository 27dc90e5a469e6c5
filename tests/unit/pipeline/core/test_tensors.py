"""Outputs of one operation: which edges share one, by hand, and what every simulator and bound makes of two alike."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.stages import Measurer, Subject
from pipeline.core.tensors import tensors_read
from pipeline.testing.simulated import simulator_of
from policy.place.base.search import Search
from policy.place.exact.shared.cpsat import size_of
from policy.place.exact.shared.nets import Cut
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.pipelined.pipelined import Pipelined
from runtime.simulators.sequential.sequential import Sequential
from tests.strategies import graph_of
from tests.toys import ignore_progress, toy_problem


@pytest.mark.parametrize(
    ("size", "out", "tensor"),
    [
        ([100, 100], 200, [0, 1]),  # two outputs of a Split
        ([100, 100], 100, [0, 0]),  # one output, two readers
        ([100, 100, 100], 200, [0, 1, 0]),  # two outputs, one of them read twice
        ([100, 200, 100], 200, [1, 1, 1]),  # one reader takes both outputs, two take one each
        ([100, 200], 300, [0, 1]),  # outputs of different size
        ([40, 100, 60], 100, [1, 1, 1]),  # parts of one output
        ([100, 100, 50], 150, [0, 0, 2]),  # a large output read twice, and a small one
        ([0, 7, 0], 20, [1, 1, 1]),  # what carries nothing is no output
        ([10, 10], 0, [0, 0]),  # what is produced is not known
        ([], 5, []),
    ],
)
def test_bytes_tell_which_edges_carry_one_tensor(size: list[int], out: int, tensor: list[int]) -> None:
    producer = np.zeros(len(size), np.int32)
    assert tensors_read(producer, np.array(size, np.int64), np.array([out])).tolist() == tensor


def split_graph(out_bytes: int) -> Graph:
    """Return an operation whose output, or outputs, two others read, 100 bytes each."""
    types = ["Parameter", "Split", "Relu", "Tanh"]
    size = {(1, 2): 100, (1, 3): 100}
    return graph_of(4, [(0, 1), (1, 2), (1, 3)], types=types, out_bytes=[0, out_bytes, 1, 1], edge_bytes=size)


def problem_of(graph: Graph) -> Problem:
    """Return the problem of two GPUs on which the first two operations take a second each, and 100 bytes on the way."""
    devices = tuple(DeviceSpec(name, "GPU", name, kind="gpu") for name in ("A", "B"))
    topology = Topology.uniform(devices, bytes_per_s=100.0, latency_s=0.0)
    costs = CostTable(
        graph.names, topology.names, np.array([[1.0] * 2] * 2 + [[0.0] * 2] * 2), np.zeros(2), ("given",) * 2
    )
    return Problem(Instance(graph, topology, Grouping.identity(graph.n), costs, costs.supported))


APART = np.array([[0, 0, 1, 1]], np.int32)


@pytest.mark.parametrize(("out_bytes", "sent_s"), [(100, 1.0), (200, 2.0)])
@pytest.mark.parametrize(
    "measurer",
    [Sequential(), Pipelined(), ListSched(level="T1", block_s=0.0, gap_s=0.0), ListSched(level="T2")],
    ids=["sequential", "pipelined", "T1", "T2"],
)
def test_every_simulator_sends_two_outputs_of_one_size_twice_and_one_output_once(
    measurer: Measurer, out_bytes: int, sent_s: float
) -> None:
    problem = problem_of(split_graph(out_bytes))
    subject = Subject(None, problem.graph, problem.grouping, problem.topology, problem.costs, 0)
    found = measurer.bind(subject).simulate(APART)  # type: ignore[attr-defined]
    assert found.value_s.tolist() == [pytest.approx(2.0 + sent_s)]
    assert found.cut_bytes.tolist() == [out_bytes]


@pytest.mark.parametrize("out_bytes", [100, 200])
def test_the_sum_that_bounds_are_made_of_counts_as_the_simulator_does(out_bytes: int) -> None:
    problem = problem_of(split_graph(out_bytes))
    cut = Cut.of(problem, problem.grouping)
    assert cut.nets.size[cut.nets.home == 1].sum() == out_bytes


@pytest.mark.parametrize(("rules", "more"), [("T1", 4), ("T2", 6)])
def test_a_program_has_variables_for_each_of_two_outputs_of_one_size(rules: str, more: int) -> None:
    sizes = []
    for out_bytes in (100, 200):
        problem = toy_problem(split_graph(out_bytes), np.ones((4, 2)))
        sizes.append(size_of(Search(problem, simulator_of(problem, rules), Budget(10), ignore_progress)))
    assert sizes[1] - sizes[0] == more


def test_groups_exchange_two_outputs_of_one_size_as_two() -> None:
    together = Grouping(np.array([0, 0, 1, 1]))
    assert contract(split_graph(200), together).edge_bytes.tolist() == [200]
    assert contract(split_graph(100), together).edge_bytes.tolist() == [100]
