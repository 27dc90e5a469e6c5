"""What exact methods for pipelines place: elements, the nets between them, and the kinds of devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Grouping, components, row_ptr, sum_per_group
from pipeline.core.problem import Problem
from pipeline.shared.contiguity import forward_edges, substitute_edges
from pipeline.shared.cycles import strong_components
from policy.place.base.groups import Groups
from policy.place.exact.shared.cpsat_models import alike_devices, whole_nets

WIDEST = 32  # members of a net up to which all its pairs are looked at


class Charges(NamedTuple):
    """What k elements cost on K kinds of devices, as kernels take it.

    work_s: float64 [k, K], seconds of computing; inf where not allowed. held_bytes: int64 [k]; room_bytes: int64 [K].
    Net i has size[i] members, and a device of kind q that holds some of them but not all pays pay_s[i, q] seconds.
    Element e is in the nets net[ptr[e]:ptr[e + 1]].
    """

    work_s: Float64
    held_bytes: Int64
    room_bytes: Int64
    size: Int64
    pay_s: Float64
    ptr: Int64
    net: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The least that contiguous stages consist of.

    groups: the elements, k sets of operations. kinds: K sets of devices that can change places. charges: their costs.
    edges: int32 [2, e], unique, sorted: which element must not be in a later stage than which other; acyclic.
    """

    groups: Groups
    kinds: tuple[tuple[int, ...], ...]
    charges: Charges
    edges: Int32

    @classmethod
    def of(cls, problem: Problem) -> Elements:
        """Return the elements of a problem whose costs are known: groups in one cycle are one, idle leaves are folded.

        Source: Tarnawski et al., NeurIPS 2020, pre-processing of the published code. There leaves are folded whatever
        they hold; here only where memory cannot bind, so that the answer stays exact.
        """
        groups = problem.derived(leaves_folded)
        group = groups.grouping.group
        edges = unique_edges(_order_edges(problem, groups.grouping), groups.k)
        fused = strong_components(groups.k, edges)
        if int(fused.max(initial=-1)) + 1 < groups.k:
            groups = Groups.of_grouping(problem, Grouping.of_labels(fused[group]))
            edges = unique_edges(_order_edges(problem, groups.grouping), groups.k)
        kinds = kinds_of(problem, groups)
        return cls(groups, kinds, charges_of(problem, groups, kinds), edges)

    @property
    def k(self) -> int:
        """Return the number of elements."""
        return self.groups.k

    @property
    def counts(self) -> tuple[int, ...]:
        """Return how many devices there are of each kind."""
        return tuple(len(kind) for kind in self.kinds)

    def merged(self, together: Grouping) -> Elements:
        """Return the elements of which some are one; the quotient must be acyclic."""
        groups = Groups.of_grouping(self.groups.problem, self.groups.grouping.then(together))
        edges = unique_edges(_between(self.edges, together), together.k)
        return Elements(groups, self.kinds, merged(self.charges, together), edges)


def leaves_folded(problem: Problem) -> Groups:
    """Return groups in which what takes no time and has one neighbour only is one with it, again and again.

    No placement gets slower, nor less contiguous: such a group can as well be where its neighbour is. What holds
    weights stays alone where memory could object.
    """
    groups = problem.derived(Groups.of)
    if problem.costs is None:
        return groups
    group = groups.grouping.group
    edges = _between(problem.graph.edges, groups.grouping)
    pairs = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    neighbours: list[set[int]] = [set() for _ in range(groups.k)]
    for a, b in pairs.T.tolist():
        neighbours[a].add(b)
    idle = np.where(groups.allowed, sum_per_group(problem.costs.op_s, groups.grouping), 0.0).max(axis=1) == 0
    idle &= (groups.held_bytes == 0) | (int(groups.held_bytes.sum()) <= int(groups.room_bytes.min()))
    # int64 [k], the group that each is one with at last; uses `neighbours` up
    label = np.arange(idle.size)
    waiting = [u for u in np.flatnonzero(idle).tolist() if len(neighbours[u]) == 1]
    while waiting:
        u = waiting.pop()
        if len(neighbours[u]) != 1:
            continue
        (v,) = neighbours[u]
        if np.any(groups.allowed[v] & ~groups.allowed[u]):
            continue
        label[u] = v
        neighbours[u].clear()
        neighbours[v].discard(u)
        if idle[v] and len(neighbours[v]) == 1:
            waiting.append(v)
    while np.any(label != (further := label[label])):
        label = further
    return Groups.of_grouping(problem, Grouping.of_labels(label[group]))


def kinds_of(problem: Problem, groups: Groups) -> tuple[tuple[int, ...], ...]:
    """Return sets of devices that can change places, in the order of their first; each device is in one."""
    if problem.costs is None:
        raise ValueError("a problem without costs")
    alike = [tuple(known) for known in alike_devices(problem, groups, problem.costs.op_s)]
    alone = set(range(problem.topology.p)) - {d for known in alike for d in known}
    return tuple(sorted([*alike, *((d,) for d in alone)]))


def charges_of(problem: Problem, groups: Groups, kinds: tuple[tuple[int, ...], ...]) -> Charges:
    """Return what groups cost on the first device of each kind; nets of equal members are one."""
    if problem.costs is None:
        raise ValueError("a problem without costs")
    first = [kind[0] for kind in kinds]
    work_s = np.where(groups.allowed, sum_per_group(problem.costs.op_s, groups.grouping), math.inf)[:, first]
    total: dict[tuple[int, ...], Float64] = {}
    nets = whole_nets(problem, groups)
    pay_s = problem.topology.slowest_link_s(np.array([size for _, size in nets], np.int64))[:, first]
    for (members, _), each_s in zip(nets, pay_s, strict=True):
        key = tuple(sorted(members))
        total[key] = total.get(key, 0.0) + each_s
    return net_charges(work_s, groups.held_bytes, groups.room_bytes[first], total)


def net_charges(work_s: Float64, held_bytes: Int64, room_bytes: Int64, nets: dict[tuple[int, ...], Float64]) -> Charges:
    """Return the charges of elements and nets {members: seconds float64 [K]}; those that cost nothing are left out."""
    kept = [(members, pay_s) for members, pay_s in nets.items() if len(members) > 1 and np.any(pay_s > 0)]
    size = np.array([len(members) for members, _ in kept], np.int64)
    member = np.array([e for members, _ in kept for e in members], np.int64)
    owner = np.repeat(np.arange(size.size), size)
    pay_s = np.array([pay for _, pay in kept]).reshape(len(kept), work_s.shape[1])
    net = owner[np.argsort(member, kind="stable")]
    ptr = row_ptr(member, work_s.shape[0])
    return Charges(work_s.copy(), held_bytes.copy(), room_bytes.copy(), size, pay_s, ptr, net.astype(np.int64))


def _order_edges(problem: Problem, grouping: Grouping) -> Int32:
    """Return int32 [2, e], the edges between groups that stages follow."""
    graph = problem.graph
    alone = problem.derived(Groups.of).grouping
    return _between(np.concatenate([forward_edges(graph), substitute_edges(graph, alone)], axis=1), grouping)


def _between(edges: Int32, grouping: Grouping) -> Int32:
    """Return int32 [2, e], edges of operations as edges between different groups."""
    ends = grouping.group[edges]
    return ends[:, ends[0] != ends[1]]


def unique_edges(edges: Int32, k: int) -> Int32:
    """Return edges int32 [2, e] between k nodes sorted and each once."""
    code = np.unique(edges[0].astype(np.int64) * k + edges[1])
    return np.stack([code // max(k, 1), code % max(k, 1)]).astype(np.int32)


def merged(charges: Charges, together: Grouping) -> Charges:
    """Return the charges of elements of which some are one."""
    nets: dict[tuple[int, ...], Float64] = {}
    owner = np.repeat(np.arange(charges.ptr.size - 1), np.diff(charges.ptr))
    by_net = np.argsort(charges.net, kind="stable")
    members = np.split(together.group[owner[by_net]], np.cumsum(charges.size)[:-1])
    for i, member in enumerate(members if charges.size.size else []):
        key = tuple(np.unique(member).tolist())
        nets[key] = nets.get(key, 0.0) + charges.pay_s[i]
    work_s, held = sum_per_group(charges.work_s, together), sum_per_group(charges.held_bytes, together)
    return net_charges(work_s, held, charges.room_bytes, nets)


def inseparable_grouping(charges: Charges, counts: tuple[int, ...], value_s: float) -> Grouping:
    """Return the grouping of elements that no placement faster than `value_s` parts.

    Two elements on different devices make each of these pay for all nets that hold both. Sums over several nets, and
    what the elements themselves take, count as well.
    """
    together = Grouping.identity(charges.work_s.shape[0])
    while True:
        pairs = _inseparable(charges, counts, value_s)
        if not pairs.size:
            return together
        step = components(charges.work_s.shape[0], pairs[0], pairs[1])
        together, charges = together.then(step), merged(charges, step)


def _inseparable(charges: Charges, counts: tuple[int, ...], value_s: float) -> Int32:
    """Return int32 [2, e], pairs of elements that no placement faster than `value_s` parts."""
    shared: dict[tuple[int, int], Float64] = {}
    owner = np.repeat(np.arange(charges.ptr.size - 1), np.diff(charges.ptr))
    by_net = np.argsort(charges.net, kind="stable")
    for i, members in enumerate(np.split(owner[by_net], np.cumsum(charges.size)[:-1]) if charges.size.size else []):
        held = np.sort(members).tolist()
        for x, a in enumerate(held if len(held) <= WIDEST else []):
            for b in held[x + 1 :]:
                shared[a, b] = shared.get((a, b), 0.0) + charges.pay_s[i]
        if len(held) > WIDEST:  # a star stands for all its pairs
            for b in held[1:]:
                shared[held[0], b] = shared.get((held[0], b), 0.0) + charges.pay_s[i]
    if not shared:
        return np.zeros((2, 0), np.int32)
    pairs = np.array(list(shared), np.int32).T
    paid = np.array(list(shared.values()))  # [e, K]
    a_s, b_s = charges.work_s[pairs[0]] + paid, charges.work_s[pairs[1]] + paid
    least = np.full(pairs.shape[1], math.inf)
    for q, count in enumerate(counts):
        for r in range(len(counts)):
            if q != r or count > 1:
                least = np.minimum(least, np.maximum(a_s[:, q], b_s[:, r]))
    return pairs[:, least >= value_s]
