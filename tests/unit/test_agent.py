"""What the agent knows of a plan: world, schedule and context, by hand and by brute force."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import Timeline
from pipeline.core.stages import Simulator, Subject
from pipeline.registry import build
from policy.place.agent.context import AT, COLUMNS, Context, GroupBatch, context
from policy.place.agent.schedule import SLOTS, Schedule
from policy.place.agent.world import World
from tests.strategies import graphs
from tests.toys import ToyEvaluator, toy_graph, toy_problem, toy_topology

ROUNDING = 1e-4  # of sums of float32
P = 3


def uneven_topology(p: int, rng: np.random.Generator) -> Topology:
    """Return devices no two links of which are alike."""
    apart = ~np.eye(p, dtype=bool)
    per_s = np.where(apart, rng.uniform(1e6, 1e9, (p, p)), np.inf)
    return Topology(toy_topology(p).devices, per_s, np.where(apart, rng.uniform(0, 1e-3, (p, p)), 0.0))


def uneven_problem(graph: Graph, seed: int, p: int = P, **options: object) -> Problem:
    rng = np.random.default_rng(seed)
    op_s = rng.uniform(1e-4, 2e-3, (graph.n, p))
    return toy_problem(graph, op_s, topology=uneven_topology(p, rng), **options)  # type: ignore[arg-type]


def random_groups(rng: np.random.Generator, n: int, r: int) -> list[Grouping]:
    return [Grouping.of_labels(rng.integers(0, rng.integers(1, n + 1), n)) for _ in range(r)]


def whole(n: int) -> Grouping:
    return Grouping(np.zeros(n, np.int32))


def known(
    problem: Problem, groupings: list[Grouping], device: np.ndarray, schedules: list[Schedule | None] | None = None
) -> Context:
    """Return the context of plans int [r, n]; each counts as taking 10 units."""
    r, plans = len(groupings), torch.tensor(np.array(device), dtype=torch.int64)
    schedules = schedules or [None] * r
    return context(World.of(problem), GroupBatch.of(groupings), plans, schedules, value=torch.full((r,), 10.0))


def column(at: Context, name: str) -> list[list[float]]:
    return at.columns[:, :, AT[name]].tolist()  # type: ignore[no-any-return]


def simulator_of(problem: Problem, level: str = "T0") -> Simulator:
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build("measure", "listsched", {"level": level}).bind(subject)  # type: ignore[no-any-return]


# World


def test_times_are_in_units_of_a_mean_operation():
    op_s = np.array([[1e-3, 3e-3], [2e-3, np.inf]])
    world = World.of(toy_problem(toy_graph(2, [(0, 1)]), op_s))
    assert world.unit_s == pytest.approx(2e-3)  # the mean of 2 ms and, on the one device there is, 2 ms
    assert world.op.tolist() == [pytest.approx([0.5, 1.5]), pytest.approx([1.0, 0.0])]
    assert world.mean.tolist() == pytest.approx([1.0, 1.0])
    assert world.allowed.tolist() == [[True, True], [True, False]]


def test_transfers_take_latency_and_bytes_over_the_link_and_none_to_devices_not_known_yet():
    problem = uneven_problem(toy_graph(2, [(0, 1)]), 0)
    world, links = World.of(problem), problem.topology
    for a in range(P):
        for b in range(P):
            expected_s = links.link_latency_s[a, b] + 4 / links.link_bytes_per_s[a, b]
            found = float(world.transfer(torch.tensor([a]), torch.tensor([b]))) * world.unit_s
            assert found == pytest.approx(expected_s, rel=ROUNDING)
        assert float(world.transfer(torch.tensor([a]), torch.tensor([P]))) == 0
        assert float(world.transfer(torch.tensor([P]), torch.tensor([a]))) == 0


def test_a_device_is_slow_by_the_log_of_its_operations_times():
    op_s = np.array([[1e-3, 2e-3, 4e-3], [1e-3, 2e-3, 4e-3]])
    speed = World.of(toy_problem(toy_graph(2, []), op_s)).speed
    assert speed.tolist() == pytest.approx([-math.log(2), 0.0, math.log(2)], abs=1e-6)


@pytest.mark.parametrize("op_s", [np.zeros((2, 2)), np.ones((2, 2))])
def test_a_world_without_costs_has_a_unit_nevertheless(op_s: np.ndarray):
    problem = toy_problem(toy_graph(2, [(0, 1)]), op_s, costs_known=False)
    assert World.of(problem).unit_s == pytest.approx(0.5e-3)  # the mean transfer
    alone = toy_problem(toy_graph(2, []), op_s[:, :1], costs_known=False)
    assert World.of(alone).unit_s == 1.0


# Schedule


def diamond() -> Problem:
    """Return 0 before 1 and 2, both before 3; a unit is a second, and a transfer takes one."""
    op_s = np.array([[2.0, 1.0], [5.0, 2.0], [1.0, 1.0], [1.0, 3.0]])
    graph = toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    links = Topology.uniform(toy_topology().devices, bytes_per_s=8.0, latency_s=0.5)
    return toy_problem(graph, op_s, topology=links)


def timeline_of(problem: Problem, device: list[int], start_s: list[float], end_s: list[float]) -> Timeline:
    none = np.zeros(0, np.int32)
    device_of, start, end = np.array(device), np.array(start_s), np.array(end_s)
    names = problem.graph.names, problem.topology.names
    return Timeline(*names, device_of, start, end, none, none, none, none, none, none, max(end_s))


def diamond_schedule() -> tuple[World, Schedule]:
    """Return 0, 1 and 3 on A without a pause, 2 on B: sent there from 2 s to 3 s, and its output back before 7 s."""
    problem = diamond()
    world = World.of(problem)
    assert world.unit_s == pytest.approx(2.0)
    in_seconds = {name: getattr(world, name) * 2 for name in ("op", "mean", "latency", "per_byte")}
    world = dataclasses.replace(world, unit_s=1.0, **in_seconds)
    timeline = timeline_of(problem, [0, 0, 1, 0], [0, 2, 3, 7], [2, 7, 4, 8])
    return world, Schedule.of(timeline, problem.graph, world)


def test_latest_starts_leave_time_for_transfers_and_for_what_the_device_runs_next():
    _, schedule = diamond_schedule()
    assert schedule.start.tolist() == [0, 2, 3, 7]
    assert schedule.finish.tolist() == [2, 7, 4, 8]
    assert schedule.latest.tolist() == pytest.approx([0, 2, 5, 7])  # 2: 7 less a second to send, and one to run
    assert schedule.makespan == 8


def test_busy_time_adds_up_what_a_device_has_computed():
    _, schedule = diamond_schedule()
    at = np.linspace(0, 8, SLOTS + 1)
    assert schedule.busy[0].tolist() == pytest.approx(at.tolist(), abs=1e-5)
    assert schedule.busy[1].tolist() == pytest.approx(np.clip(at - 3, 0, 1).tolist(), abs=1e-5)


def reference_latest(problem: Problem, timeline: Timeline) -> np.ndarray:
    """Return float64 [n], in seconds, by recursion over consumers and what the device runs next."""
    graph, links, device = problem.graph, problem.topology, timeline.device
    run = sorted(range(graph.n), key=lambda i: timeline.start_s[i])

    @cache
    def latest_s(i: int) -> float:
        until = [timeline.value_s]
        for e in np.flatnonzero(graph.edges[0] == i):
            j = graph.edges[1, e]
            link = device[i], device[j]
            sent_s = links.link_latency_s[link] + graph.edge_bytes[e] / links.link_bytes_per_s[link]
            until.append(latest_s(int(j)) - sent_s)
        behind = [j for j in run[run.index(i) + 1 :] if device[j] == device[i]]
        until += [latest_s(j) for j in behind[:1]]
        return float(min(until) - (timeline.end_s[i] - timeline.start_s[i]))

    return np.array([latest_s(i) for i in range(graph.n)])


@given(graph=graphs(min_n=1, max_n=9), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_latest_starts_are_those_of_plain_recursion_and_the_critical_path_has_no_slack(graph: Graph, seed: int):
    problem = uneven_problem(graph, seed)
    device = np.random.default_rng(seed).integers(0, P, graph.n)
    timeline = simulator_of(problem).timeline(Placement(device, problem.topology.names))
    world = World.of(problem)
    schedule = Schedule.of(timeline, graph, world)
    expected = reference_latest(problem, timeline) / world.unit_s
    assert schedule.latest.tolist() == pytest.approx(expected.tolist(), abs=ROUNDING * schedule.makespan)
    slack = (schedule.latest - schedule.start) / schedule.makespan
    assert float(slack.min()) == pytest.approx(0, abs=ROUNDING)  # T0: whatever is late has no slack, nothing has less
    computed = [float(world.op[device == d, d].sum()) for d in range(P)]
    assert schedule.busy[:, -1].tolist() == pytest.approx(computed, rel=ROUNDING, abs=ROUNDING)


def test_an_operation_without_time_runs_before_what_begins_at_the_same_moment():
    op_s = np.array([[1e-3], [0.0], [1e-3]])
    problem = toy_problem(toy_graph(3, [(0, 1), (1, 2)]), op_s)
    world = World.of(problem)
    timeline = timeline_of(problem, [0, 0, 0], [0, 1e-3, 1e-3], [1e-3, 1e-3, 2e-3])
    schedule = Schedule.of(timeline, problem.graph, world)
    assert schedule.latest.tolist() == pytest.approx(schedule.start.tolist())


# Context


def test_the_columns_of_a_move_by_hand():
    # 0 and 1 are a group on A, 2 is one on B: 0 -> 1 -> 2 is cut once.
    op_s = np.array([[1.0, 2.0], [1.0, 3.0], [5.0, 4.0]])
    problem = toy_problem(toy_graph(3, [(0, 1), (1, 2)], weight_bytes=[3, 1, 2]), op_s * 1e-3)
    problem = problem.on(topology=toy_topology(2, memory_bytes=8))
    at = known(problem, [Grouping(np.array([0, 0, 1]))], np.array([[0, 0, 1]]))
    unit_ms = (1.5 + 2.0 + 4.5) / 3
    each = 8.0 / unit_ms / 2  # two groups share 8 ms
    sent = 0.5 / unit_ms

    def spread(units: list[float]) -> list[float]:
        return pytest.approx([math.asinh(u / each) for u in units], abs=ROUNDING)  # type: ignore[no-any-return]

    assert column(at, "time") == [spread([0, 3 / unit_ms, 0]), spread([1 / unit_ms, 0, 0])]
    assert column(at, "transfers") == [spread([0, -sent, 0]), spread([-sent, 0, 0])]
    assert column(at, "change") == [spread([0, 3 / unit_ms - sent, 0]), spread([1 / unit_ms - sent, 0, 0])]
    assert column(at, "cuts")[0] == pytest.approx([0, math.asinh(-1), 0])
    share = [math.asinh(100 * u / 10) for u in (0, 3 / unit_ms - sent, 0)]
    assert column(at, "change_share")[0] == pytest.approx(share, abs=ROUNDING)
    relative = [math.log(2 / 3.5), math.log(5 / 3.5)]
    assert column(at, "relative_time")[0] == pytest.approx([*relative, relative[0]], abs=ROUNDING)
    load = [2 * 2 / 6 - 1, 4 * 2 / 6 - 1]  # A computes 2 ms, B 4 ms
    assert column(at, "load") == [pytest.approx([*load, load[0]]), pytest.approx([*load, load[1]])]
    assert column(at, "headroom")[0] == pytest.approx([4 / 8, 2 / 8, 4 / 8])
    assert column(at, "headroom")[1] == pytest.approx([2 / 8, 6 / 8, 6 / 8])
    assert column(at, "size")[1] == pytest.approx([math.log1p(4.5 / 4)] * 3, abs=ROUNDING)
    assert column(at, "stay") == [[0, 0, 1]] * 2
    assert not any(map(any, column(at, "fresh") + column(at, "scheduled")))
    assert at.forbidden.tolist() == [[True, False, False], [False, True, False]]


@given(graph=graphs(min_n=1, max_n=7), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_the_change_of_every_move_is_what_an_evaluation_before_and_after_tells(graph: Graph, seed: int):
    rng, r = np.random.default_rng(seed), 3
    problem = uneven_problem(graph, seed)
    evaluator, world = ToyEvaluator.of(problem), World.of(problem)
    groupings, plans = random_groups(rng, graph.n, r), rng.integers(0, P, (r, graph.n))
    columns = known(problem, groupings, plans).columns.double()
    first = np.cumsum([0, *(g.k for g in groupings)])
    for i, (grouping, plan) in enumerate(zip(groupings, plans, strict=True)):
        each = float(world.mean.sum()) / grouping.k
        before_s = evaluator.value_s(Placement(plan, problem.topology.names))
        for g in range(grouping.k):
            for d in range(P):
                moved = np.where(grouping.group == g, d, plan)
                change_s = evaluator.value_s(Placement(moved, problem.topology.names)) - before_s
                row = columns[first[i] + g, d]
                accuracy = ROUNDING * before_s * 10
                assert float(row[AT["change"]].sinh()) * each * world.unit_s == pytest.approx(change_s, abs=accuracy)
                share = float(row[AT["change_share"]].sinh()) / 100 * 10 * world.unit_s
                assert share == pytest.approx(change_s, abs=accuracy)
                apart = float((row[AT["time"]].sinh() + row[AT["transfers"]].sinh()) * each * world.unit_s)
                assert apart == pytest.approx(change_s, abs=accuracy)
                cut, was = ((q[graph.edges[0]] != q[graph.edges[1]]).sum() for q in (moved, plan))
                assert float(row[AT["cuts"]].sinh()) == pytest.approx(int(cut) - int(was), abs=1e-3)


def test_a_plan_not_made_yet_knows_times_but_no_transfers_and_no_group_can_stay():
    op_s = np.array([[1e-3, 2e-3], [3e-3, 2e-3]])
    problem = toy_problem(toy_graph(2, [(0, 1)]), op_s)
    at = known(problem, [Grouping.identity(2)], np.array([[2, 2]]))
    assert column(at, "transfers") == column(at, "cuts") == column(at, "load") == [[0.0] * 3] * 2
    assert column(at, "fresh") == [[1.0] * 3] * 2
    each = 4 / 2  # ms
    assert column(at, "change")[0][:2] == pytest.approx([math.asinh(1 / each), math.asinh(2 / each)], abs=ROUNDING)
    assert at.forbidden.tolist() == [[False, False, True]] * 2


@pytest.mark.parametrize("edges", [[], [(0, 1)]])
@pytest.mark.parametrize("costs_known", [True, False])
def test_every_column_is_a_number_where_no_operation_takes_time(edges: list[tuple[int, int]], costs_known: bool):
    problem = toy_problem(toy_graph(2, edges), np.zeros((2, 2)), costs_known=costs_known)
    at = known(problem, [Grouping.identity(2)] * 2, np.array([[0, 1], [2, 2]]))
    assert bool(torch.isfinite(at.columns).all())


def test_a_batch_of_plans_knows_of_each_what_it_would_alone():
    problem = uneven_problem(toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)]), 3)
    rng = np.random.default_rng(0)
    groupings = random_groups(rng, 4, 3)
    plans = np.array([[0, 1, 2, 0], [P] * 4, [1, 1, 1, 1]])
    plan = Placement(plans[0], problem.topology.names)
    schedules = [Schedule.of(simulator_of(problem).timeline(plan), problem.graph, World.of(problem)), None, None]
    together = known(problem, groupings, plans, schedules)
    alone = [known(problem, [groupings[i]], plans[i : i + 1], [schedules[i]]) for i in range(3)]
    assert torch.equal(together.columns, torch.cat([at.columns for at in alone]))
    assert torch.equal(together.forbidden, torch.cat([at.forbidden for at in alone]))


def test_devices_that_do_not_support_a_member_or_are_not_pinned_are_barred():
    op_s = np.ones((3, 3)) * 1e-3
    op_s[0, 2] = np.inf  # no support
    allowed = np.isfinite(op_s)
    allowed[1] = [False, True, False]  # pinned
    problem = toy_problem(toy_graph(3, []), op_s, allowed=allowed)
    at = known(problem, [Grouping(np.array([0, 1, 0])), whole(3)], np.array([[0, 1, 0], [3, 3, 3]]))
    assert at.forbidden.tolist() == [
        [True, False, True, False],  # 0 and 2 are on A and cannot go to C
        [True, True, True, False],  # 1 is where it must be: it stays
        [True, False, True, True],  # all three, placed for the first time
    ]


def test_only_a_group_that_is_whole_on_a_device_cannot_go_there():
    problem = toy_problem(toy_graph(2, []), np.ones((2, 2)))
    at = known(problem, [whole(2)] * 2, np.array([[0, 1], [1, 1]]))
    assert at.forbidden.tolist() == [[False, False, False], [False, True, False]]


def test_a_full_device_is_barred_unless_no_other_is_left():
    graph = toy_graph(3, [], weight_bytes=[6, 6, 1])
    problem = toy_problem(graph, np.ones((3, 3)), topology=toy_topology(3, memory_bytes=10))
    at = known(problem, [Grouping.identity(3)] * 2, np.array([[0, 1, 0], [0, 1, 2]]))
    assert at.forbidden.tolist()[:3] == [
        [True, True, False, False],
        [True, True, False, False],
        [True, False, False, False],
    ]
    two = toy_problem(graph, np.ones((3, 2)), topology=toy_topology(2, memory_bytes=7))
    crowded = known(two, [Grouping.identity(3)], np.array([[0, 1, 0]]))
    assert crowded.forbidden.tolist() == [[True, False, False], [False, True, False], [True, False, False]]


def test_delay_room_and_occupied_by_hand():
    world, schedule = diamond_schedule()
    grouping, plan = Grouping.identity(4), torch.tensor([[0, 0, 1, 0]])
    at = context(world, GroupBatch.of([grouping]), plan, [schedule], value=torch.tensor([8.0]))
    each = float(world.mean.sum()) / 4

    def units(name: str, g: int) -> list[float]:
        return [math.sinh(x) * each for x in column(at, name)[g]]

    # 2 begins at 3 on B. On A its input is there at 2; its output must leave by 7 there, by 6 on B; it takes 1.
    assert units("delay", 2) == pytest.approx([-1, 0, 0], abs=ROUNDING)
    assert units("room", 2) == pytest.approx([7 - 2 - 1, 6 - 3 - 1, 6 - 3 - 1], abs=ROUNDING)
    assert column(at, "occupied")[2] == pytest.approx([1.0, 0.0, 0.0], abs=ROUNDING)  # B runs nothing but 2 itself
    assert column(at, "critical")[2] == pytest.approx([math.exp(-2 / each)] * 3, abs=ROUNDING)
    # 1 begins at 2 on A. On B its input is there at 3, and its output must leave by 6, or it is late.
    assert units("delay", 1) == pytest.approx([0, 1, 0], abs=ROUNDING)
    assert units("room", 1) == pytest.approx([7 - 2 - 5, 6 - 3 - 2, 0], abs=ROUNDING)
    assert column(at, "occupied")[1] == pytest.approx([0.0, 1 / 3, 0.0], abs=ROUNDING)
    assert column(at, "critical")[1] == pytest.approx([1.0] * 3)
    assert column(at, "scheduled") == [[1.0] * 3] * 4


def test_a_group_waits_for_the_last_of_its_inputs_from_outside():
    world, schedule = diamond_schedule()
    plan = torch.tensor([[0, 0, 1, 0]])
    groups = GroupBatch.of([Grouping(np.array([0, 0, 1, 1]))])  # {0, 1} and {2, 3}
    at = context(world, groups, plan, [schedule], value=torch.tensor([8.0]))
    each = float(world.mean.sum()) / 2
    delay = [math.sinh(x) * each for x in column(at, "delay")[1]]
    assert delay == pytest.approx([7 - 3, 8 - 3, 7 - 3], abs=ROUNDING)  # 1 ends at 7 on A; the group begins at 3


def test_to_stay_is_described_as_the_device_of_most_members_without_a_change():
    problem = uneven_problem(toy_graph(3, [(0, 1), (1, 2)]), 1)
    at = known(problem, [whole(3)], np.array([[2, 1, 2]]))
    there, stay = at.columns[0, 2], at.columns[0, P]
    for name in COLUMNS:
        expected = {"stay": 1.0}.get(
            name, 0.0 if name in ("change", "change_share", "time", "transfers", "cuts") else None
        )
        assert float(stay[AT[name]]) == (float(there[AT[name]]) if expected is None else expected)
