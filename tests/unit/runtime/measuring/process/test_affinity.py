"""From placements to affinities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, leaders, weight_side
from pipeline.core.placement import Placement
from runtime.measuring.process.affinity import (
    HETERO_PROPERTIES,
    affinities_of,
    hetero_target,
    normalise_placement,
    set_affinities,
)
from tests import models
from tests.strategies import graph_of, grouped_graphs
from tests.two_cpus import NAMES, two_cpus

# x -> add -> relu -> out, and a table that is widened for add: table -> widen -> add
TYPES = ["Parameter", "Constant", "Convert", "Add", "Relu", "Result"]
EDGES = [(0, 3), (1, 2), (2, 3), (3, 4), (4, 5)]


def placed(*device: int) -> Placement:
    return Placement(np.array(device), NAMES)


def test_inputs_and_weights_follow_their_consumer_and_results_their_producer() -> None:
    graph = graph_of(6, EDGES, types=TYPES)
    assert leaders(graph).tolist() == [3, 3, 3, 3, 4, 4]
    assert normalise_placement(graph, placed(0, 0, 1, 1, 0, 1)).device.tolist() == [1, 1, 1, 1, 0, 0]


def test_leaders_are_found_where_groups_close_a_cycle() -> None:
    types = ["Parameter", "Constant", "Convert", "Add", "Relu", "Add"]
    assert leaders(graph_of(6, [*EDGES[:4], (4, 5), (5, 3)], types=types)).tolist() == [3, 3, 3, 3, 4, 5]
    weights = graph_of(4, [(0, 1), (1, 2), (2, 1), (2, 3)], types=["Constant", "Convert", "Multiply", "Relu"])
    assert set(leaders(weights).tolist()) <= {0, 1, 2, 3}


@given(grouped_graphs())
def test_leaders_follow_first_readers_to_their_end(drawn: tuple[Graph, Grouping]) -> None:
    graph, _ = drawn
    found, moves = leaders(graph), weight_side(graph) | (np.array(graph.type_names)[graph.op_type] == "Parameter")
    for i in np.flatnonzero(moves).tolist():
        readers = graph.edges[1][graph.edges[0] == i]
        assert found[i] == (found[readers.min()] if readers.size and not results(graph)[readers.min()] else found[i])


def results(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which operations are Results."""
    return np.array(graph.type_names)[graph.op_type] == "Result"


def test_of_several_consumers_the_first_is_followed() -> None:
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3)], types=["Parameter", "Relu", "Tanh", "Relu"])
    assert normalise_placement(graph, placed(0, 1, 0, 0)).device.tolist() == [1, 1, 0, 0]


def test_an_input_that_is_an_output_stays_with_it() -> None:
    graph = graph_of(2, [(0, 1)], types=["Parameter", "Result"])
    device = normalise_placement(graph, placed(0, 1)).device
    assert device[0] == device[1]


def test_what_computes_stays_where_it_was_placed() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)], types=["ReadValue", "Relu", "Assign"])
    assert normalise_placement(graph, placed(0, 1, 0)).device.tolist() == [0, 1, 0]


def test_settling_keeps_priorities() -> None:
    graph = graph_of(6, EDGES, types=TYPES)
    settled = normalise_placement(graph, Placement(np.zeros(6, np.int32), NAMES, np.arange(6.0)))
    assert settled.priority is not None
    assert settled.priority.tolist() == [0, 1, 2, 3, 4, 5]


def test_affinities_name_devices_as_openvino_knows_them() -> None:
    graph = graph_of(6, EDGES, types=TYPES)
    found = affinities_of(graph, placed(0, 0, 1, 1, 0, 1), two_cpus())
    assert found == dict.fromkeys(("op0", "op1", "op2", "op3"), "CPU_B") | dict.fromkeys(("op4", "op5"), "CPU_A")


def test_set_affinities_reaches_every_operation() -> None:
    model = models.chain(2)
    affinity = {"x": "CPU_A", "op0": "CPU_A", "op1": "CPU_B", "out": "CPU_B"}
    set_affinities(model, affinity)
    assert {o.get_friendly_name(): o.get_rt_info()["affinity"].astype(str) for o in model.get_ops()} == affinity


def test_set_affinities_names_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"2 operation\(s\) have no device: (op1, out|out, op1)"):
        set_affinities(models.chain(2), {"x": "CPU_A", "op0": "CPU_A"})


def test_the_target_lists_devices_in_order() -> None:
    assert hetero_target(two_cpus()) == "HETERO:CPU_A,CPU_B"


def test_exclusive_requests_are_off_so_that_thread_limits_count() -> None:
    assert HETERO_PROPERTIES == {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}
