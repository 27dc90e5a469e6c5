"""What one inference takes at least where accelerators are called: a path of operations, cut into calls.

Along a path of the graph every call meets one interval, for a call starts when all it reads is there, and so no path
leaves it and comes back. A call that meets the path from i to j holds all that lies between the two, and nothing that
comes before the operation ahead of i, or after the one behind j; of all the rest it may hold what suits it best, which
is a minimum cut. What operations and calls along the path take adds up.

Source: our own, for the problem of Tarnawski et al., NeurIPS 2020, section 4.2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping, row_ptr, sum_per_group, topological_order
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import longest_paths
from policy.place.base.groups import Groups
from policy.place.exact.calls.call_kernels import CallMembership, CallSets, decide, surely_s
from policy.place.exact.shared.cpsat_models import whole_nets
from policy.place.exact.shared.flow import Arcs
from policy.place.exact.shared.paths import BoundInputs

LARGEST = 4000  # operations up to which it is known which of them lead to which


@dataclass(frozen=True, slots=True, eq=False)
class CallInputs:
    """The operations of a problem as bounds of calls see them: at least as fast as on any accelerator, or CPU.

    sets: which of them belong together. parts: which share a call, if they are in one. cpu_s: float64 [n], seconds on
    a CPU; inf where not allowed. slots: calls of all accelerators together. order: int32 [n], producers first. edges:
    int32 [2, m]. maker: int64 [t], the first operation of the part that each net begins at.
    """

    sets: CallSets
    parts: Grouping
    cpu_s: Float64
    slots: int
    order: Int32
    edges: Int32
    maker: Int64

    @classmethod
    def of(cls, problem: Problem, calls: int) -> CallInputs | None:
        """Return the inputs of a problem; None where there are no accelerators, or too many operations."""
        graph, topology = problem.graph, problem.topology
        cpu = np.array([device.kind == "cpu" for device in topology.devices])
        if graph.n > LARGEST or cpu.all():
            return None
        op_s = problem.derived(BoundInputs.of).op_s
        # Operations of one colour share an accelerator, and so its only call.
        parts = finest_grouping(problem) if calls == 1 else Grouping.identity(graph.n)
        groups = Groups.of_grouping(problem, parts)
        nets = whole_nets(problem, groups) if topology.p > 1 else []
        member = np.argsort(parts.group, kind="stable")
        ptr = row_ptr(parts.group, parts.k)
        order = topological_order(graph)
        leads = leads_to(graph.n, graph.edges, order)
        sets = CallSets(
            leads,
            leads.T.copy(),
            parts.group.copy(),
            ptr,
            member,
            op_s[:, ~cpu].min(axis=1),
            graph.weight_bytes.astype(np.int64),
            int(groups.room_bytes[~cpu].max()),
            np.cumsum([0, *(len(members) for members, _ in nets)]),
            np.array([g for members, _ in nets for g in members], np.int64),
            topology.slowest_link_s(np.array([size for _, size in nets], np.int64))[:, ~cpu].min(axis=1),
        )
        cpu_s: Float64 = op_s[:, cpu].min(axis=1, initial=math.inf)
        maker = member[ptr[[members[0] for members, _ in nets]]] if nets else np.zeros(0, np.int64)
        return cls(sets, parts, cpu_s, int((~cpu).sum()) * calls, order, graph.edges, maker)

    def paths(self) -> list[Int64]:
        """Return the longest paths, int64 [l], by time on accelerators, by that and transfers, by time on CPUs."""
        sent_s = np.zeros(self.parts.n)
        np.add.at(sent_s, self.maker, 2 * self.sets.pay_s)
        work_s = self.sets.work_s
        own = [np.where(np.isfinite(s), s, 0.0) for s in (work_s, work_s + sent_s, self.cpu_s + sent_s)]
        return [np.array(path) for path in dict.fromkeys(tuple(self._longest(own_s)) for own_s in own)]

    def _longest(self, own_s: Float64) -> list[int]:
        """Return the longest path by float64 [n] seconds."""
        producer = self.edges[0, np.argsort(self.edges[1], kind="stable")].astype(np.int64)
        order, ptr = self.order[::-1].astype(np.int64), row_ptr(self.edges[1], own_s.size)
        end_s = longest_paths(order, ptr, producer, np.zeros(producer.size), own_s.copy())
        path = [int(end_s.argmax())]
        while (before := self.edges[0, self.edges[1] == path[-1]]).size:
            path.append(int(before[end_s[before].argmax()]))
        return path[::-1]


@dataclass(slots=True, eq=False)
class PathCalls:
    """What calls that meet a path of l operations take at least.

    least_s: float64 [l, l], of the call that meets it from i to j; inf where there is none. exact: bool [l, l], whether
    that is a minimum cut, and not only what surely belongs to the call. decided: scratch.
    """

    inputs: CallInputs
    path: Int64
    least_s: Float64
    exact: Bool
    decided: CallMembership

    @classmethod
    def of(cls, inputs: CallInputs, path: Int64, goes_on: Callable[[], bool]) -> PathCalls:
        """Return the calls along a path; what they take is only what surely belongs to them.

        goes_on: asked for each operation of the path; without it, calls that meet the path from there on may take
        nothing.
        """
        n = inputs.parts.n
        flags = [np.zeros(n, bool) for _ in range(4)]
        decided = CallMembership(flags[0], flags[1], flags[2], flags[3], np.zeros(n, np.int64))
        exact, least_s = np.zeros((path.size, path.size), bool), np.zeros((path.size, path.size))
        for i in range(path.size):
            if not goes_on():
                break
            surely_s(inputs.sets, path, i, least_s[i], decided)
        return cls(inputs, path, least_s, exact, decided)

    def cut_s(self, i: int, j: int) -> float:
        """Return the least seconds of a call that meets the path from i to j, memory left aside."""
        sets, parts = self.inputs.sets, self.inputs.parts
        decide(sets, self.path, i, j, self.decided)
        first = sets.member[sets.ptr[:-1]]  # of each part; all of a part is decided, or nothing
        inside, outside = self.decided.inside[first], self.decided.outside[first]
        work_s = sum_per_group(sets.work_s, parts)
        arcs = Arcs(parts.k)
        least_s = arcs.choose(np.zeros(parts.k), np.where(outside, math.inf, work_s), inside)
        t = sets.pay_s.size
        owner = np.repeat(np.arange(t), np.diff(sets.net_ptr))
        held, left = (np.bincount(owner, weights=of[sets.net_part], minlength=t) for of in (inside, outside))
        certain = held + left == np.diff(sets.net_ptr)
        least_s += float(sets.pay_s[certain & (held > 0) & (left > 0)].sum())
        net = np.flatnonzero(~certain & (sets.pay_s > 0))
        if not net.size:
            return least_s
        group = sets.net_part.astype(np.int32)
        stays, staying = arcs.gather(net, owner, group, t)  # outside if one member is
        goes, going = arcs.gather(net, owner, group, t)  # inside if one member is
        arcs.colocate(staying, outwards=False)
        arcs.colocate(going, outwards=True)
        arcs.add(stays, goes, sets.pay_s[net])
        return least_s + arcs.solve()[1]

    def prefix_least_s(self) -> Float64:
        """Return float64 [slots + 1, l + 1], the least time of the first operations of the path by so many calls."""
        inputs, size = self.inputs, self.path.size
        least_s = np.full((inputs.slots + 1, size + 1), math.inf)
        least_s[:, 0] = 0.0
        cpu_s = inputs.cpu_s[self.path]
        for j in range(size):
            least_s[:, j + 1] = least_s[:, j] + cpu_s[j]
            called_s = (least_s[:-1, : j + 1] + self.least_s[: j + 1, j]).min(axis=1)
            least_s[1:, j + 1] = np.minimum(least_s[1:, j + 1], called_s)
        return least_s

    def cheapest(self, prefix_least_s: Float64) -> list[tuple[int, int]]:
        """Return the calls of the cheapest way along the path."""
        used, at = int(prefix_least_s[:, -1].argmin()), self.path.size
        calls: list[tuple[int, int]] = []
        while at > 0:
            called_s = prefix_least_s[used - 1, :at] + self.least_s[:at, at - 1] if used else np.full(1, math.inf)
            if called_s.min() <= prefix_least_s[used, at]:
                first = int(called_s.argmin())
                calls.append((first, at - 1))
                at, used = first, used - 1
            else:
                at -= 1
        return calls

    def refined_s(self, until: float) -> float:
        """Return the bound, with minimum cuts for the calls of the cheapest way, again and again until `until`."""
        while True:
            prefix_least_s = self.prefix_least_s()
            value_s = float(prefix_least_s[:, -1].min())
            if not math.isfinite(value_s):
                return value_s
            rough = [call for call in self.cheapest(prefix_least_s) if not self.exact[call]]
            if not rough or time.monotonic() >= until:
                return value_s
            for call in rough:
                if time.monotonic() >= until:
                    return value_s
                self.least_s[call] = max(float(self.least_s[call]), self.cut_s(*call))
                self.exact[call] = True


def path_bound(problem: Problem, calls: int, *, seconds: float) -> float:
    """Return seconds that no placement falls below, which calls each accelerator so often at most; 0 if unknown."""
    inputs = CallInputs.of(problem, calls)
    if inputs is None:
        return 0.0
    until, best_s = time.monotonic() + seconds, 0.0
    paths = inputs.paths()
    for left, path in zip(range(len(paths), 0, -1), paths, strict=True):
        now = time.monotonic()
        if now >= until:
            break
        end = now + (until - now) / left
        best_s = max(best_s, PathCalls.of(inputs, path, partial(_is_before, end)).refined_s(end))
    return best_s


def _is_before(until: float) -> bool:
    return time.monotonic() < until


def leads_to(n: int, edges: Int32, order: Int32) -> Bool:
    """Return bool [n, n], whether a path leads from one operation to another, or they are one."""
    leads = np.eye(n, dtype=bool)
    ptr = np.searchsorted(edges[0], np.arange(n + 1))
    for v in order[::-1].tolist():
        leads[v] |= leads[edges[1, ptr[v] : ptr[v + 1]]].any(axis=0)
    return leads
