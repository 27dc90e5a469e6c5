"""The placers that construct: list schedulers, rules of thumb, partitions, and Baechi's three."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import DataflowModel, SequentialModel
from pipeline.core.stages import Candidate, Subject
from pipeline.core.tensors import INFERRED
from pipeline.core.workload import Tags
from pipeline.settings.registry import build_implementation
from pipeline.shared.partition import metis_parts
from policy.place.base.search import Search
from policy.place.lists.baechi import fused, memory_demand
from policy.place.lists.etf import earliest_first, no_favourites, static_level
from policy.place.lists.listing import GAPS, PartialSchedule, list_schedule
from policy.place.lists.m_sct import MSct, paired, relaxed
from policy.place.lists.peft import optimistic
from policy.place.lists.submit import fitted
from policy.place.lists.work import ScheduleInputs, b_level, downward, shares, speeds, upward, work_of
from policy.place.rules.metis import Metis
from runtime.simulators.dataflow.listsched import ListSched
from tests.strategies import graph_of, graphs
from tests.toys import ToyEvaluator, chain_problem, ignore_progress, toy_problem

NEVER = np.inf
needs_metis = pytest.mark.skipif(
    importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed: no METIS partition can be made"
)


def devices(p: int, memory_bytes: Sequence[int] | int = 0) -> tuple[DeviceSpec, ...]:
    held = [memory_bytes] * p if isinstance(memory_bytes, int) else memory_bytes
    return tuple(DeviceSpec(chr(65 + i), "CPU", "CPU", memory_bytes=held[i]) for i in range(p))


def problem_of(graph: Graph, op_s: Sequence[Sequence[float]] | np.ndarray, **options: object) -> Problem:
    """Return a problem in which a byte takes a second from device to device."""
    cost_s = np.array(op_s, np.float64)
    memory = options.pop("memory_bytes", 0)
    topology = Topology.uniform(devices(cost_s.shape[1], memory), bytes_per_s=1.0, latency_s=0.0)  # type: ignore[arg-type]
    problem = toy_problem(graph, cost_s, topology=topology, grouping=options.pop("grouping", None))  # type: ignore[arg-type]
    return dataclasses.replace(problem.on(tags=options.pop("tags", None)), policy=None, **options)  # type: ignore[arg-type]


def candidates(name: str, problem: Problem, **parameters: object) -> list[Candidate]:
    """Return what a placer itself came up with, in order."""
    evaluator = ToyEvaluator.of(problem)
    search = Search(problem, evaluator, Budget(100), ignore_progress, author="own")
    before = {p.key() for p in evaluator.asked}
    build_implementation("place", name, parameters).run(search, seed=0)
    found = {c.placement.key(): c for c in search.answer(100).candidates}
    return [found[p.key()] for p in evaluator.asked if p.key() not in before]


def run_heft(work: ScheduleInputs, *, insertion: bool = True) -> PartialSchedule:
    return list_schedule(work, -upward(work), np.zeros(work.op_s.shape), insertion)


def run_etf(work: ScheduleInputs) -> PartialSchedule:
    return earliest_first(work, static_level(work), no_favourites(work))


def makespan(schedule: PartialSchedule) -> float:
    return float(schedule.finish_s.max())


# Topcuoglu et al., figure 3: ten tasks on three processors.
TASKS_S = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
TASK_EDGES = {
    (0, 1): 18,
    (0, 2): 12,
    (0, 3): 9,
    (0, 4): 11,
    (0, 5): 14,
    (1, 7): 19,
    (1, 8): 16,
    (2, 6): 23,
    (3, 7): 27,
    (3, 8): 23,
    (4, 8): 13,
    (5, 7): 15,
    (6, 9): 17,
    (7, 9): 11,
    (8, 9): 13,
}


def topcuoglu() -> Problem:
    return problem_of(graph_of(10, TASK_EDGES, edge_bytes=TASK_EDGES), TASKS_S)


def test_upward_and_downward_ranks_are_those_of_the_paper():
    work = work_of(topcuoglu())
    up = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    down = [0.000, 31.000, 25.000, 22.000, 24.000, 27.000, 62.333, 66.667, 63.667, 93.333]
    assert upward(work) == pytest.approx(up, abs=1e-3)
    assert downward(work) == pytest.approx(down, abs=1e-3)


@pytest.mark.parametrize(("name", "planned_s"), [("heft", 80.0), ("cpop", 86.0)])
def test_the_makespans_of_the_papers_example_are_those_of_the_paper(name: str, planned_s: float):
    (found,) = candidates(name, topcuoglu())
    assert found.planned_s == pytest.approx(planned_s)
    assert found.placement.priority is None


def late_data_problem() -> Problem:
    """Return operations 0 -> 1 on different devices, and 2, which fits before 1 while its data are under way."""
    return problem_of(graph_of(3, [(0, 1)], out_bytes=[3, 0, 0]), [[2, NEVER], [NEVER, 4], [NEVER, 3]])


@pytest.mark.parametrize(("insertion", "planned_s"), [(True, 9.0), (False, 12.0)])
def test_heft_uses_idle_time_between_operations(insertion: bool, planned_s: float):
    (found,) = candidates("heft", late_data_problem(), insertion=insertion) or [None]
    schedule = run_heft(work_of(late_data_problem()), insertion=insertion)
    assert schedule.start_s.tolist() == [0.0, 5.0, 0.0 if insertion else 9.0]
    assert found is not None
    assert found.planned_s == planned_s


def test_inserted_operations_cut_idle_times_in_two_and_the_earliest_are_forgotten():
    # Pairs (i, n + i) from A to B, whose data arrive ever later, leave one idle second each before every end on B.
    n = GAPS + 10
    graph = graph_of(2 * n + n, [(i, n + i) for i in range(n)], out_bytes=[1] * n + [0] * 2 * n)
    op_s = [[2.0, NEVER]] * n + [[NEVER, 1.0]] * n + [[NEVER, 0.5]] * n
    work = work_of(problem_of(graph, op_s))
    key = np.arange(3.0 * n)
    schedule = list_schedule(work, key, np.zeros(work.op_s.shape), True)
    assert schedule.start_s[n : 2 * n].tolist() == [2 * i + 3.0 for i in range(n)]
    small = np.sort(schedule.start_s[2 * n :])
    assert small[:2].tolist() == [22.0, 22.5]  # ten idle times are forgotten: [0, 3], [4, 5], ..., [20, 21]
    assert makespan(schedule) == 2 * n + 2.0
    assert overlaps(work, schedule) == 0


def look_ahead_problem() -> Problem:
    return problem_of(graph_of(2, [(0, 1)], out_bytes=[3, 0]), [[2, 2], [5, 1]])


def test_peft_looks_behind_the_operation_it_places():
    problem = look_ahead_problem()
    assert optimistic(work_of(problem)).tolist() == [[4.0, 1.0], [0.0, 0.0]]
    assert makespan(run_heft(work_of(problem))) == 6.0
    work = work_of(problem)
    remains_s = optimistic(work)
    schedule = list_schedule(work, -remains_s.mean(axis=1), remains_s, True)
    assert schedule.homes.device.tolist() == [1, 1]
    assert makespan(schedule) == 3.0


def test_etf_takes_the_earliest_start_and_of_equal_ones_the_longest_way_to_an_end():
    graph = graph_of(4, [(0, 2)], out_bytes=[4, 0, 0, 0])
    schedule = run_etf(work_of(problem_of(graph, np.array([[2, 2], [3, 3], [5, 5], [1, 1]]))))
    assert schedule.homes.device.tolist() == [0, 1, 0, 1]
    assert schedule.start_s.tolist() == [0.0, 0.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("level", "start_s"), [("T0", [11, 12, 11]), ("T1", [11, 21, 11]), ("T2", [11, 21, 31])], ids=["T0", "T1", "T2"]
)
@pytest.mark.parametrize("run", [run_heft, run_etf])
def test_contended_links_send_one_tensor_at_a_time(run, level: str, start_s: list[float]):
    # Operations 0 and 1 run on A; B reads both, C reads the first as well. A tensor travels for 10 seconds.
    graph = graph_of(5, [(0, 2), (0, 4), (1, 3)], out_bytes=[10, 10, 0, 0, 0])
    a, b, c = [1.0, NEVER, NEVER], [NEVER, 0.5, NEVER], [NEVER, NEVER, 0.5]
    problem = problem_of(graph, [a, a, b, b, c])
    work = work_of(problem, execution=DataflowModel(level))  # type: ignore[arg-type]
    schedule = run(work)
    assert sorted(schedule.start_s[2:].tolist()) == sorted(float(s) for s in start_s)


def test_a_block_after_operations_and_a_gap_between_sends_are_planned_for():
    graph = graph_of(4, [(0, 2), (1, 3)], out_bytes=[10, 10, 0, 0])
    problem = problem_of(graph, [[1.0, NEVER], [1.0, NEVER], [NEVER, 0.5], [NEVER, 0.5]])
    work = work_of(problem, execution=DataflowModel("T1", block_s=0.25, gap_s=2.0))
    assert run_heft(work).start_s.tolist() == [0.0, 1.25, 11.0, 23.0]
    assert work_of(problem, execution=SequentialModel()).block_s == 0.0


def test_sources_without_cost_go_where_they_are_read_first():
    # Operation 0 is a constant; 1 runs fastest on B.
    problem = problem_of(graph_of(2, [(0, 1)], out_bytes=[9, 0]), [[0, 0], [5, 1]])
    for run in (run_heft, run_etf):
        schedule = run(work_of(problem))
        assert len(set(schedule.homes.device.tolist())) == 1
    assert run_heft(work_of(problem)).homes.device.tolist() == [1, 1]


def test_the_first_operation_of_a_group_decides_with_the_time_of_the_whole_group():
    problem = problem_of(graph_of(2, [(0, 1)]), [[1, 2], [9, 1]], grouping=Grouping(np.array([0, 0])))
    schedule = run_heft(work_of(problem))
    assert schedule.homes.device.tolist() == [1]
    assert makespan(schedule) == 3.0


def test_groups_that_wait_for_each_other_are_planned_by_their_operations():
    graph = graph_of(4, [(0, 1), (2, 3)])
    problem = problem_of(graph, np.ones((4, 2)), grouping=Grouping(np.array([0, 1, 1, 0])))
    for run in (run_heft, run_etf):
        assert makespan(run(work_of(problem))) <= 4.0


def test_of_operations_whose_data_arrive_at_once_etf_takes_the_longest_way_to_an_end():
    # 1 keeps A, and what 0 sends to 2 and to 3 is on B at 4 s: 3, which takes longer, is not after 2.
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3)], out_bytes=[3, 0, 0, 0])
    work = work_of(problem_of(graph, [[1, 9], [20, 20], [30, 1], [30, 2]]))
    schedule = earliest_first(work, np.array([30.0, 20.0, 1.0, 2.0]), no_favourites(work))
    assert schedule.start_s.tolist() == [0, 1, 6, 4]
    assert schedule.homes.device[work.group].tolist() == [0, 0, 1, 1]


# Plain Python versions of the two planners.


def reads_of(problem: Problem, j: int) -> list[tuple[int, float]]:
    return [
        (int(i), float(b)) for (i, k), b in zip(problem.graph.edges.T, problem.graph.edge_bytes, strict=True) if k == j
    ]


def arrival_of(problem: Problem, j: int, d: int, home: dict[int, int], finish_s: dict[int, float]) -> float:
    return max((finish_s[i] + (b if home[i] != d else 0.0) for i, b in reads_of(problem, j)), default=0.0)


def heft_by_hand(problem: Problem, rank_s: np.ndarray, order: Sequence[int]) -> dict[int, float]:
    """Return when each operation ends: static order, every idle time considered, ties to the device free first."""
    assert problem.costs is not None
    op_s, p = problem.costs.op_s, problem.topology.p
    busy: list[list[tuple[float, float]]] = [[] for _ in range(p)]
    home: dict[int, int] = {}
    finish_s: dict[int, float] = {}
    for i in sorted(range(problem.graph.n), key=lambda i: (-rank_s[i], list(order).index(i))):
        options = []
        for d in range(p):
            ready_s, cost_s = arrival_of(problem, i, d, home, finish_s), op_s[i, d]
            starts = [ready_s, *(max(ready_s, end) for _, end in busy[d])]
            last_s = max((e for _, e in busy[d]), default=0.0)
            fits = [
                s for s in starts if s >= last_s or all(s + cost_s <= a or s >= b for a, b in busy[d] if a < b or a > 0)
            ]
            options.append((min(fits) + cost_s, last_s, d, min(fits)))
        end_s, _, d, start_s = min(options)
        home[i], finish_s[i] = d, end_s
        busy[d].append((start_s, end_s))
    return finish_s


def etf_by_hand(problem: Problem, level_s: np.ndarray) -> dict[int, float]:
    """Return when each operation ends: every pair of ready operation and device is looked at in every step."""
    assert problem.costs is not None
    op_s, p = problem.costs.op_s, problem.topology.p
    free_s = [0.0] * p
    home: dict[int, int] = {}
    finish_s: dict[int, float] = {}
    while len(home) < problem.graph.n:
        ready = [j for j in range(problem.graph.n) if j not in home and all(i in home for i, _ in reads_of(problem, j))]
        start_s, _, j, _, d = min(
            (max(arrival_of(problem, j, d, home, finish_s), free_s[d]), -level_s[j], j, op_s[j, d], d)
            for j in ready
            for d in range(p)
        )
        home[j], finish_s[j] = d, start_s + op_s[j, d]
        free_s[d] = finish_s[j]
    return finish_s


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw a problem of times that are all different, so that every choice is unique."""
    graph = draw(graphs(min_n=1, max_n=12))
    graph = dataclasses.replace(graph, colocate=np.full(graph.n, -1))
    p = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    graph = dataclasses.replace(graph, edge_bytes=rng.integers(0, 5, graph.m), reads=INFERRED)
    return problem_of(graph, rng.uniform(0.5, 4.0, (graph.n, p)))


def overlaps(work: ScheduleInputs, schedule: PartialSchedule) -> int:
    """Return how many operations begin on a device before the one before them has ended."""
    device, count = schedule.homes.device[work.group], 0
    for d in range(work.room.size):
        mine = np.flatnonzero((device == d) & work.counts)
        mine = mine[np.lexsort((schedule.finish_s[mine], schedule.start_s[mine]))]
        count += int(np.sum(schedule.start_s[mine][1:] < schedule.finish_s[mine][:-1] - 1e-9))
    return count


@settings(deadline=None, max_examples=60)
@given(problems())
def test_ranks_are_the_longest_ways(problem: Problem):
    assert problem.costs is not None
    mean_s = problem.costs.op_s.mean(axis=1)
    sent_s = problem.graph.edge_bytes * (problem.topology.p > 1)
    ways = [(int(i), int(j), float(c)) for (i, j), c in zip(problem.graph.edges.T, sent_s, strict=True)]

    def up(i: int) -> float:
        return float(mean_s[i] + max((c + up(j) for k, j, c in ways if k == i), default=0.0))

    def down(j: int) -> float:
        return max((down(i) + mean_s[i] + c for i, k, c in ways if k == j), default=0.0)

    work = work_of(problem)
    assert upward(work) == pytest.approx([up(i) for i in range(problem.graph.n)])
    assert downward(work) == pytest.approx([down(i) for i in range(problem.graph.n)], abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_heft_schedules_what_plain_python_schedules(problem: Problem):
    work = work_of(problem)
    by_hand = heft_by_hand(problem, upward(work), work.order.tolist())
    assert run_heft(work).finish_s == pytest.approx([by_hand[i] for i in range(problem.graph.n)])


@settings(deadline=None, max_examples=60)
@given(problems())
def test_etf_schedules_what_plain_python_schedules(problem: Problem):
    work = work_of(problem)
    by_hand = etf_by_hand(problem, static_level(work))
    assert run_etf(work).finish_s == pytest.approx([by_hand[i] for i in range(problem.graph.n)])


@settings(deadline=None, max_examples=40)
@given(problems())
def test_the_optimistic_cost_table_is_that_of_its_definition(problem: Problem):
    assert problem.costs is not None
    op_s, p = problem.costs.op_s, problem.topology.p
    ways = [(i, j, float(b)) for i, j, _, b in problem.graph.read_rows()]

    def remains(i: int, d: int) -> float:
        return max(
            (min(remains(j, w) + op_s[j, w] + (b if w != d else 0.0) for w in range(p)) for k, j, b in ways if k == i),
            default=0.0,
        )

    expected = [[remains(i, d) for d in range(p)] for i in range(problem.graph.n)]
    assert optimistic(work_of(problem)) == pytest.approx(np.array(expected))


@settings(deadline=None, max_examples=60)
@given(problems(), st.data())
def test_schedules_keep_to_precedence_groups_and_one_operation_at_a_time(problem: Problem, data: st.DataObject):
    labels = data.draw(st.lists(st.integers(0, 3), min_size=problem.graph.n, max_size=problem.graph.n))
    level = data.draw(st.sampled_from(("T0", "T1", "T2")))
    work = work_of(problem, Grouping.of_labels(np.array(labels)), execution=DataflowModel(level))
    for schedule in (run_heft(work), run_heft(work, insertion=False), run_etf(work)):
        device = schedule.homes.device[work.group]
        reads = problem.graph.reads
        producer, consumer = problem.graph.edges[:, reads.edge]
        least = np.full(reads.t, np.iinfo(np.int64).max)
        # With contention a tensor is taken to be sent once, however much of it is read first.
        np.minimum.at(least, reads.tensor, reads.size)
        sent = reads.size if level == "T0" else least[reads.tensor]
        sent_s = np.where(device[producer] != device[consumer], sent, 0)
        assert np.all(schedule.start_s[consumer] >= schedule.finish_s[producer] + sent_s - 1e-9)
        assert overlaps(work, schedule) == 0


@settings(deadline=None, max_examples=40)
@given(problems())
def test_a_simulator_without_contention_runs_the_schedule_of_etf_in_the_planned_time(problem: Problem):
    problem = dataclasses.replace(problem, ordered=True)
    n, subject = (
        problem.graph.n,
        Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0),
    )
    evaluator = ListSched(level="T0", memory=False).bind(subject)
    schedule = run_etf(work_of(problem))
    rank = np.empty(n)
    rank[np.argsort(schedule.start_s, kind="stable")] = np.arange(n)
    found = evaluator.simulate(schedule.homes.device[None], rank[None])
    assert found.value_s[0] == pytest.approx(makespan(schedule))


def test_where_orders_count_the_start_order_and_the_longest_way_are_tried_as_well():
    problem = dataclasses.replace(topcuoglu(), ordered=True)
    plain, by_start, by_level = candidates("heft", problem)
    assert plain.placement.priority is None
    schedule = run_heft(work_of(problem))
    assert by_start.placement.priority is not None
    assert np.argsort(by_start.placement.priority).tolist() == np.argsort(schedule.start_s, kind="stable").tolist()
    # The last three operations run on B: 9 after 8 after 3 (8 + 12 + 7), 9 after 7 (11 more to send) after nothing.
    assert by_level.placement.priority is not None
    assert by_level.placement.priority[[9, 8]].tolist() == [-7.0, -19.0]
    assert [c.planned_s for c in (plain, by_start, by_level)] == [80.0] * 3


@pytest.mark.parametrize(("name", "parameters"), [("etf", {}), ("critical_path", {}), ("m_etf", {"fuse": False})])
def test_where_links_are_contended_a_schedule_that_knows_it_is_tried_too(name: str, parameters: dict[str, bool]):
    # Four tensors leave A for four readers that are free to go anywhere: sending all of them takes longer than staying.
    graph = graph_of(8, [(i, 4 + i) for i in range(4)], out_bytes=[3] * 4 + [0] * 4)
    op_s = [[0.1, NEVER, NEVER]] * 4 + [[4.0, 4.0, 4.0]] * 4
    problem = problem_of(graph, op_s)
    subject = Subject(None, graph, Grouping.identity(8), problem.topology, problem.costs, 0)
    evaluator = ListSched(level="T2", memory=False).bind(subject)
    search = Search(problem, evaluator, Budget(50), ignore_progress, author="own")
    build_implementation("place", name, parameters).run(search, seed=0)
    own = [c for c in search.answer().candidates if c.found_by == "own"]
    assert len({round(c.planned_s, 6) for c in own}) >= 2
    best = search.answer().best
    assert best.planned_s == pytest.approx(best.result.value_s)  # type: ignore[union-attr]


def test_without_costs_nothing_is_planned_to_take_seconds():
    problem = chain_problem(costs_known=False)
    search = Search(problem, ToyEvaluator.of(chain_problem()), Budget(50), ignore_progress, author="own")
    build_implementation("place", "heft").run(search, seed=0)
    assert all(np.isnan(c.planned_s) for c in search.answer().candidates)


def test_round_robin_skips_devices_that_are_not_allowed():
    graph = graph_of(5, [(i, i + 1) for i in range(4)])
    problem = problem_of(graph, [[1, 1, 1], [1, NEVER, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    (found,) = candidates("round_robin", problem)
    assert found.placement.device.tolist() == [0, 2, 2, 0, 1]


def tagged(layers: Sequence[int], op_s: Sequence[Sequence[float]], p: int) -> list[list[int]]:
    n = len(layers)
    cost_s = np.repeat(np.array(op_s, np.float64)[:, :1], p, axis=1) if np.shape(op_s)[1] == 1 else np.array(op_s)
    tags = Tags(np.array(layers), np.full(n, -1))
    problem = problem_of(graph_of(n, [(i, i + 1) for i in range(n - 1)]), cost_s, tags=tags)
    return [c.placement.device.tolist() for c in candidates("expert", problem)]


def test_an_expert_gives_every_device_as_many_layers_in_a_row():
    # Six layers of one operation, between an embedding and a softmax without tags, on two and on four devices.
    layers = [-1, 0, 1, 2, 3, 4, 5, -1]
    assert tagged(layers, [[1.0]] * 8, 2)[0] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert tagged(layers, [[1.0]] * 8, 4)[0] == [0, 0, 0, 1, 2, 2, 3, 3]
    assert tagged([0, 0, 7, 7], [[1.0]] * 4, 4)[0] == [0, 0, 1, 1]  # fewer layers than devices


def test_an_expert_also_balances_the_time_of_layers_and_of_the_topological_order():
    found = tagged([0, 0, 1, 2, 3], [[1.0], [5.0], [1.0], [1.0], [1.0]], 2)
    assert found[0] == [0, 0, 0, 1, 1]
    assert [0, 0, 1, 1, 1] in found  # the first layer takes longer than all others
    untagged = tagged([-1] * 4, [[4.0], [1.0], [1.0], [2.0]], 2)
    assert untagged == [[0, 1, 1, 1]]


def test_an_expert_keeps_encoder_and_decoder_layers_of_one_number_together():
    assert tagged([0, 1, 0, 1], [[1.0]] * 4, 2)[0] == [0, 1, 0, 1]


def test_blocks_end_where_the_sums_come_nearest_to_their_shares():
    assert shares(np.array([1.0, 1.0, 1.0, 1.0]), np.array([3.0, 1.0])).tolist() == [0, 0, 0, 1]
    assert shares(np.array([1.0, 1.0, 4.0]), np.array([1.0, 0.0, 1.0])).tolist() == [0, 0, 2]
    assert shares(np.zeros(4), np.array([1.0, 1.0])).tolist() == [0, 0, 1, 1]


@needs_metis
def test_metis_cuts_a_ladder_where_times_balance_and_gives_the_heavy_part_to_the_fast_device():
    graph = graph_of(12, [(i, i + 1) for i in range(11)])
    (found, *_) = candidates("metis", problem_of(graph, np.repeat([[3.0, 1.0]], 12, axis=0)))
    assert np.bincount(found.placement.device).tolist() == [6, 6]
    assert int(np.sum(np.diff(found.placement.device) != 0)) == 1
    op_s = np.array([[2.0, 1.0]] * 6 + [[NEVER, 1.0]] * 6)
    pinned = candidates("metis", problem_of(graph, op_s))[0].placement.device
    assert pinned[6:].tolist() == [1] * 6


@needs_metis
def test_metis_can_balance_two_weights_at_once():
    # Time lies in the first half of a chain, memory in the second.
    graph = graph_of(40, [(i, i + 1) for i in range(39)])
    first, second = np.where(np.arange(40) < 20, 1.0, 1e-3), np.where(np.arange(40) < 20, 1e-3, 1.0)
    for seed in range(3):
        part = metis_parts(
            graph, 2, node_weight=first, second_weight=second, edge_weight=graph.edge_bytes, balance=1.05, seed=seed
        )
        # Each part holds at most 1.05 / 2 of the greater shares, which sum to just below 2.
        for weight in (first, second):
            assert np.bincount(part, weights=weight).max() <= 1.05 * weight.sum() + 1e-6


def test_metis_refuses_a_balance_below_one():
    with pytest.raises(UsageError, match="balance"):
        Metis(balance=0.9)


def heavy_chain(memory_bytes: Sequence[int] | int, **options: object) -> Problem:
    graph = graph_of(8, [(i, i + 1) for i in range(7)], out_bytes=[0] * 8)
    graph = dataclasses.replace(graph, weight_bytes=np.full(8, 10))
    return problem_of(graph, np.ones((8, 2)), memory_bytes=memory_bytes, **options)


def test_m_topo_fills_devices_in_proportion_to_what_they_hold():
    assert candidates("m_topo", heavy_chain(0))[0].placement.device.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert candidates("m_topo", heavy_chain([60, 20]))[0].placement.device.tolist() == [0] * 6 + [1, 1]


@pytest.mark.parametrize("name", ["m_topo", "m_etf", "m_sct", "heft", "etf", "critical_path", "cpop", "peft", "expert"])
@pytest.mark.parametrize("memory", [[60, 20], [40, 40], [10, 70]], ids=str)
def test_memory_that_just_suffices_is_filled(name: str, memory: list[int]):
    (found, *_) = candidates(name, heavy_chain(memory))
    assert (np.bincount(found.placement.device, minlength=2) * 10).tolist() == memory


def test_where_not_all_fit_the_heavy_groups_have_what_they_wish_for():
    graph = dataclasses.replace(graph_of(3, []), weight_bytes=np.array([1, 1, 10]))
    problem = problem_of(graph, np.ones((3, 2)), memory_bytes=[10, 2])
    assert fitted(problem, work_of(problem), np.zeros(3, np.int32)).tolist() == [1, 1, 0]


def test_the_longest_way_to_an_end_under_a_placement_has_the_transfers_it_makes():
    graph = graph_of(3, [(0, 1), (1, 2)], out_bytes=[2, 9, 0])
    topology = Topology.uniform(devices(2), bytes_per_s=1.0, latency_s=0.5)
    problem = toy_problem(graph, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), topology=topology)
    assert b_level(work_of(problem), np.array([0, 1, 1], np.int32)).tolist() == [1 + 2.5 + 10, 10, 6]


def test_a_device_is_as_fast_as_it_is_at_what_it_may_run():
    found = speeds(work_of(problem_of(graph_of(3, []), [[1, 4], [NEVER, 2], [3, 3]])))
    assert found == pytest.approx([(2.5 + 3) / (1 + 3), (2.5 + 2 + 3) / (4 + 2 + 3)])


def test_outputs_count_as_memory_as_far_as_all_devices_together_can_hold_them():
    graph = graph_of(2, [(0, 1)], out_bytes=[100, 300])
    graph = dataclasses.replace(graph, weight_bytes=np.array([10, 20]))
    assert memory_demand(problem_of(graph, np.ones((2, 2)))).tolist() == [110.0, 320.0]
    # 0.95 of 200 bytes, less 30 of weights, are left for 400 of outputs.
    assert memory_demand(problem_of(graph, np.ones((2, 2)), memory_bytes=100)) == pytest.approx([50.0, 140.0])


def test_fusion_joins_a_producer_to_its_only_consumer_where_sending_costs_more_than_computing():
    graph = graph_of(5, [(0, 1), (1, 2), (1, 3), (3, 4)], out_bytes=[5, 5, 5, 1, 1])
    assert fused(problem_of(graph, np.full((5, 2), 2.0))).group.tolist() == [0, 0, 1, 2, 3]
    pinned = np.full((5, 2), 2.0)
    pinned[0, 0] = pinned[1, 1] = NEVER
    assert fused(problem_of(graph, pinned)).k == 5
    weighty = dataclasses.replace(graph, weight_bytes=np.array([6, 6, 0, 0, 0]))
    assert fused(problem_of(weighty, np.full((5, 2), 2.0), memory_bytes=10)).k == 5


def test_fusion_never_takes_groups_apart():
    graph = graph_of(3, [(0, 1), (1, 2)], out_bytes=[9, 9, 9])
    op_s = [[1, 1], [1, NEVER], [NEVER, 1]]
    assert fused(problem_of(graph, op_s, grouping=Grouping(np.array([0, 0, 1])))).group.tolist() == [0, 0, 1]


def fork() -> Problem:
    """Return 0 -> 1 and 0 -> 2, where the output for 1 is large and 2 is short."""
    return problem_of(graph_of(3, [(0, 1), (0, 2)], edge_bytes={(0, 1): 4, (0, 2): 1}), [[1, 1], [5, 5], [1, 1]])


def test_the_linear_program_makes_the_child_on_the_longest_way_the_favourite():
    work = work_of(fork())
    producer = np.array([0, 0], np.int32)
    paid = relaxed(work, producer, np.ones(2, bool))
    assert paid is not None
    assert paid == pytest.approx([0.0, 1.0])
    order = np.argsort(paid)
    assert paired(3, producer, work.out_node, order, paid <= 0.1).tolist() == [1, -1, -1]


@pytest.mark.parametrize("edges", [0, 20_000])
def test_a_device_waits_for_the_favourite_child_of_its_last_operation(edges: int):
    # 0 ends on A at 20; 2 reads it, and 1's output, which arrives on A at 22. 3 could run on A before.
    graph = graph_of(4, [(0, 2), (1, 2)], edge_bytes={(0, 2): 50, (1, 2): 12})
    work = work_of(problem_of(graph, [[20, NEVER], [NEVER, 10], [30, 30], [5, NEVER]]))
    child = MSct(edges=edges, fuse=False)._favourites(work)
    assert child.tolist() == [2, -1, -1, -1]
    schedule = earliest_first(work, static_level(work), child)
    assert schedule.start_s.tolist() == [0.0, 0.0, 22.0, 52.0]
    assert run_etf(work).start_s.tolist() == [0.0, 0.0, 25.0, 20.0]


@pytest.mark.parametrize("threshold", [-0.1, 0.5])
def test_a_threshold_that_two_edges_could_pass_is_refused(threshold: float):
    with pytest.raises(UsageError, match="threshold"):
        MSct(threshold=threshold)
