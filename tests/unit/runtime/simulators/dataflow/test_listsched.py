"""The dataflow machine against events computed by hand, every quirk of level T1 included."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves, Timeline
from pipeline.core.stages import Subject
from runtime.simulators.dataflow.listsched import ListSched, ListSchedEvaluator
from tests.strategies import graph_of

BLOCK_S, GAP_S, SPEED = 0.5, 3.0, 10.0  # round numbers in place of 5.7 us, 25 us and 7.6 GB/s
NAMES = ("A", "B", "C")


def machine(
    graph: Graph, op_s: list[float], *, level: str = "T1", memory_bytes: int = 0, quirks: bool = False, p: int = 3
) -> ListSchedEvaluator:
    """Return the simulator of operations that take op_s everywhere, on devices joined by 10 bytes per second."""
    devices = tuple(DeviceSpec(name, "CPU", "CPU", memory_bytes=memory_bytes) for name in NAMES[:p])
    topology = Topology.uniform(devices, bytes_per_s=SPEED, latency_s=0.0)
    costs = CostTable(graph.names, NAMES[:p], np.repeat(np.array(op_s)[:, None], p, 1), np.zeros(p), ("given",) * p)
    subject = Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)
    return ListSched(level=level, block_s=BLOCK_S, gap_s=GAP_S, quirks=quirks).bind(subject)


def placement(*device: int, priority: list[float] | None = None, p: int = 3) -> Placement:
    return Placement(np.array(device), NAMES[:p], None if priority is None else np.array(priority))


def sends(timeline: Timeline) -> list[tuple[int, str, float, float]]:
    """Return (maker, target, start, end) of every transfer in the order of the requests."""
    return list(
        zip(
            timeline.sent.tolist(),
            (NAMES[e] for e in timeline.target),
            timeline.sent_start_s.tolist(),
            timeline.sent_end_s.tolist(),
            strict=True,
        )
    )


def test_t1_blocks_the_device_after_an_operation_that_takes_time():
    # 0 runs 0-1 and blocks A until 1.5; 1 takes no time at 1.5 and does not block; 2 runs 1.5-3.5, release at 4.
    line = machine(graph_of(3, [(0, 1), (1, 2)]), [1, 0, 2]).timeline(placement(0, 0, 0))
    assert line.start_s.tolist() == [0, 1.5, 1.5]
    assert line.end_s.tolist() == [1, 1.5, 3.5]
    assert line.value_s == 4


def test_t1_sends_an_output_once_for_all_remote_readers():
    # 20 bytes take 2 s, once, for B and C together.
    graph = graph_of(3, [(0, 1), (0, 2)], out_bytes=[20, 0, 0])
    found = machine(graph, [1, 1, 1])
    line = found.timeline(placement(0, 1, 2))
    assert sends(line) == [(0, "B", 1, 3), (0, "C", 1, 3)]
    assert line.start_s.tolist() == [0, 3, 3]
    assert found.simulate(np.array([[0, 1, 2]], np.int32)).cut_bytes.tolist() == [20]


def test_t1_keeps_a_gap_between_sends_that_a_lone_transfer_does_not_see():
    # 0 ends at 1, is sent 1-2, link free at 5; 1 runs 1.5-2.5, waits for the link, is sent 5-6.
    graph = graph_of(4, [(0, 2), (1, 3)], out_bytes=[10, 10, 0, 0])
    line = machine(graph, [1, 1, 1, 1]).timeline(placement(0, 0, 1, 1))
    assert sends(line) == [(0, "B", 1, 2), (1, "B", 5, 6)]
    assert line.start_s.tolist() == [0, 1.5, 2, 6]


def test_t1_ends_with_the_release_of_the_link():
    # The reader ends at 2.1 and releases B at 2.6, but the link of A is released at 2 + 3 = 5.
    graph = graph_of(2, [(0, 1)], out_bytes=[10, 0])
    assert machine(graph, [1, 0.1]).timeline(placement(0, 1)).value_s == 5


def test_t1_at_one_moment_ends_come_before_arrivals_and_those_before_starts():
    # Both 3 (local, released by 1) and 2 (remote, from A) become ready on B at 2; the local one was released first.
    # The blocked B starts at 2.5; without the rule 2 would, which has the smaller index and the earlier producer.
    graph = graph_of(4, [(0, 2), (1, 3)], out_bytes=[10, 10, 0, 0])
    line = machine(graph, [1, 2, 1, 1]).timeline(placement(0, 1, 1, 1))
    assert line.start_s.tolist() == [0, 0, 4, 2.5]


def test_first_come_first_served_ignores_indices_of_what_was_ready_earlier():
    # 2 is ready at 1, 1 at 2; A is busy until 3: 2 goes first.
    graph = graph_of(5, [(0, 1), (3, 2)], out_bytes=[0] * 5)
    line = machine(graph, [2, 1, 1, 1, 3], level="T0").timeline(placement(1, 0, 0, 2, 0))
    assert line.start_s.tolist() == [0, 4, 3, 0, 0]


def test_a_priority_lets_the_least_go_first_and_never_idles():
    graph = graph_of(3, [])
    ordered = machine(graph, [1, 1, 1], level="T0").timeline(placement(0, 0, 0, priority=[2, 0, 1]))
    assert ordered.start_s.tolist() == [2, 0, 1]
    # 1 would be the most urgent, but is not ready before 5: 2 runs first.
    waiting = machine(graph_of(3, [(0, 1)], out_bytes=[40, 0, 0]), [1, 1, 1], level="T0")
    assert waiting.timeline(placement(0, 1, 1, priority=[0, 0, 1])).start_s.tolist() == [0, 5, 0]


def test_t1_without_quirks_a_read_of_no_bytes_is_no_transfer_and_with_them_carries_the_whole_output():
    graph = graph_of(2, [(0, 1)], out_bytes=[20, 0], edge_bytes={(0, 1): 0})
    assert sends(machine(graph, [1, 1]).timeline(placement(0, 1))) == [(0, "B", 1, 1)]
    assert sends(machine(graph, [1, 1], quirks=True).timeline(placement(0, 1))) == [(0, "B", 1, 3)]


def test_t1_with_quirks_an_operation_of_no_time_blocks_as_well():
    graph = graph_of(2, [(0, 1)])
    assert machine(graph, [0, 1]).timeline(placement(0, 0)).start_s.tolist() == [0, 0]
    assert machine(graph, [0, 1], quirks=True).timeline(placement(0, 0)).start_s.tolist() == [0, 0.5]


def test_t1_bare_has_neither_block_nor_gap():
    graph = graph_of(4, [(0, 2), (1, 3)], out_bytes=[10, 10, 0, 0])
    line = machine(graph, [1, 1, 1, 1], level="T1-bare").timeline(placement(0, 0, 1, 1))
    assert sends(line) == [(0, "B", 1, 2), (1, "B", 2, 3)]
    assert line.value_s == 4


def test_t0_sends_everything_at_once():
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3)], out_bytes=[10, 0, 0, 0])
    line = machine(graph, [1, 1, 1, 1], level="T0").timeline(placement(0, 1, 1, 2))
    assert sends(line) == [(0, "B", 1, 2), (0, "C", 1, 2)]
    assert line.value_s == 4


def test_t2_sends_one_after_another_to_each_device_and_receives_one_at_a_time():
    # A sends to B 1-2, then to C 2-3; B has 1 ready to send to C at 1 but C receives from A until 3: 3-4.
    graph = graph_of(5, [(0, 2), (0, 3), (1, 4)], out_bytes=[10, 10, 0, 0, 0])
    line = machine(graph, [1, 1.5, 1, 1, 1], level="T2").timeline(placement(0, 1, 1, 2, 2))
    assert sends(line) == [(0, "B", 1, 2), (0, "C", 2, 3), (1, "C", 3, 4)]


HELD = [
    # a chain on one device: 0's 5 bytes and 1's 7 are held together, then 7 and 9
    (graph_of(3, [(0, 1), (1, 2)], out_bytes=[5, 7, 9]), [0, 0, 0], [16, 0]),
    # a copy is held on B from the request on, and the original on A until it has arrived: A then frees it
    (graph_of(2, [(0, 1)], out_bytes=[5, 7]), [0, 1], [5, 12]),
    # two readers on B share one copy
    (graph_of(3, [(0, 1), (0, 2)], out_bytes=[5, 1, 1]), [0, 1, 1], [5, 6]),
    # an output that is read here and there stays until both are done, and is gone when 3 (2 bytes) starts
    (graph_of(4, [(0, 1), (0, 2), (1, 3)], out_bytes=[5, 1, 1, 2]), [0, 0, 1, 0], [6, 6]),
    # an output nobody reads is held only while its operation runs
    (graph_of(3, [], out_bytes=[5, 7, 9]), [0, 0, 0], [9, 0]),
]


@pytest.mark.parametrize("case", range(len(HELD)))
def test_memory_by_hand(case: int):
    graph, device, peak = HELD[case]
    found = machine(graph, [1.0, 20.0, 1.0, 1.0][: graph.n], level="T2", p=2)
    assert found.simulate(np.array([device], np.int32)).peak_bytes[0].tolist() == peak


def test_a_placement_that_needs_more_than_the_memory_is_a_failure_that_says_where():
    graph, device, _ = HELD[0]
    fits = machine(graph, [1, 1, 1], level="T2", memory_bytes=16).evaluate([placement(*device)])[0]
    short = machine(graph, [1, 1, 1], level="T2", memory_bytes=15).evaluate([placement(*device)])[0]
    assert not isinstance(fits, MeasurementFailed)
    assert isinstance(short, MeasurementFailed)
    assert short.kind == "out_of_memory"
    assert "A" in short.message


def test_a_placement_on_a_device_without_support_is_refused():
    graph = graph_of(2, [(0, 1)])
    found = machine(graph, [1, np.inf])
    answer = found.evaluate([placement(0, 0)])[0]
    assert isinstance(answer, MeasurementFailed)
    assert answer.kind == "refused"
    assert "op1" in answer.message
    with pytest.raises(UsageError):
        found.timeline(placement(0, 0))


def test_a_move_that_is_not_taken_leaves_priorities_as_they_were_to_the_bit():
    # Adding 1e17 and taking it away again would leave 0 of both, and then 0 would run before 1.
    evaluator = machine(graph_of(2, []), [1, 1], level="T0", p=1)
    start = placement(0, 0, priority=[0.2, 0.1], p=1)
    none = np.full(1, -1)
    moves = Moves(np.array([0, 2]), np.array([0, 1]), none, none, np.array([1e17]), np.array([-1.0]))
    local_search = evaluator.local_search(start, moves, allowed=np.ones((2, 1), bool), limit=1)
    assert local_search.tried.tolist() == [True]
    assert local_search.taken.tolist() == [False]
    assert local_search.end.key() == start.key()


def test_evaluations_are_counted_and_answers_say_which_devices_ran():
    found = machine(graph_of(2, [(0, 1)]), [1, 1], level="T0")
    answers = found.evaluate([placement(0, 0), placement(0, 2, priority=[0, 1]), placement(0, 1)])
    assert found.evaluations == 3
    assert [a.executed_on for a in answers if not isinstance(a, MeasurementFailed)] == [("A",), ("A", "C"), ("A", "B")]


@pytest.mark.parametrize(("values", "error"), [({"level": "T3"}, UnknownNameError), ({"gap_s": -1.0}, UsageError)])
def test_wrong_parameters_are_refused(values: dict[str, object], error: type[Exception]):
    with pytest.raises(error):
        ListSched(**values)  # type: ignore[arg-type]


def test_without_priorities_equals_run_in_the_order_of_the_queue_and_with_them_by_index():
    # 0 ends at 1 and makes 20 bytes for 1 and 10 bytes for 2: the reader of the smaller output joins the queue first.
    found = machine(graph_of(3, [(0, 1), (0, 2)], out_bytes=[30, 0, 0], edge_bytes={(0, 1): 20, (0, 2): 10}), [1, 1, 1])
    assert found.timeline(placement(0, 0, 0)).start_s.tolist() == [0, 2.5 + BLOCK_S, 1.5]
    assert found.timeline(placement(0, 0, 0, priority=[0, 7, 7])).start_s.tolist() == [0, 1.5, 2.5 + BLOCK_S]
    # One output for both: then by index.
    alike = machine(graph_of(3, [(0, 1), (0, 2)], out_bytes=[30, 0, 0]), [1, 1, 1])
    assert alike.timeline(placement(0, 0, 0)).start_s.tolist() == [0, 1.5, 2.5 + BLOCK_S]


def test_of_one_operation_the_smaller_output_is_sent_first():
    # 10 bytes to 2 take 1-2, 20 bytes to 1 then take 2-4.
    graph = graph_of(3, [(0, 1), (0, 2)], out_bytes=[30, 0, 0], edge_bytes={(0, 1): 20, (0, 2): 10})
    line = machine(graph, [1, 1, 1], level="T2").timeline(placement(0, 1, 2))
    assert sends(line) == [(0, "C", 1, 2), (0, "B", 2, 4)]


def test_at_one_moment_readers_of_what_ended_here_come_before_readers_of_what_arrives():
    # At 1, 1 ends on A, and what 0 made on B arrives there, without bytes: 3 reads 1 and runs before 2, which reads 0.
    graph = graph_of(4, [(0, 2), (1, 3)], out_bytes=[0, 0, 0, 0])
    found = machine(graph, [1, 1, 1, 1], level="T0")
    assert found.timeline(placement(1, 0, 0, 0)).start_s.tolist() == [0, 0, 2, 1]
    assert found.timeline(placement(1, 0, 0, 0, priority=[0, 0, 0, 0])).start_s.tolist() == [0, 0, 1, 2]


def test_the_rules_do_not_say_that_the_queue_breaks_ties_by_index():
    text = " ".join((ListSched.__doc__ or "").split())
    assert "Without priorities it takes what joined its queue first" in text
    assert "equals by index. What is read" not in text
