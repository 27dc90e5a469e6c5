"""What a division of operations costs where nothing overlaps, and its cheapest change by a minimum cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Graph, Grouping, leaders, makers, sum_per_group, weight_side
from pipeline.core.problem import Problem
from policy.place.exact.shared.flow import Arcs

LARGEST_PROGRAM = 100_000  # rows of a linear program that is still solved in seconds


@dataclass(frozen=True, slots=True, eq=False)
class Nets:
    """t tensors, each read by groups away from the one that makes it.

    home: int32 [t], the group that makes each. ptr: int64 [t + 1]; reader: int32: those who read tensor i are
    reader[ptr[i]:ptr[i + 1]], each once. size: float64 [t], bytes. first: bool [t], whether it pays the latency: of a
    tensor of which some read more than others the further parts are nets of their own.
    """

    home: Int32
    ptr: Int64
    reader: Int32
    size: Float64
    first: Bool

    @property
    def t(self) -> int:
        """Return the number of nets."""
        return int(self.home.size)

    @property
    def owner(self) -> Int64:
        """Return int64, for each entry of `reader` the net it belongs to."""
        return np.repeat(np.arange(self.t), np.diff(self.ptr))

    @classmethod
    def of(cls, graph: Graph, grouping: Grouping, *, normalised: bool) -> Nets:
        """Return the tensors between the groups of a graph.

        normalised: whether, as in HETERO, inputs lie where they are read, results where they are made, and nothing that
        is computed from constants alone is ever sent.
        """
        group, reads = grouping.group, graph.reads
        producer, consumer = graph.edges[:, reads.edge]
        place = group[leaders(graph)] if normalised else group
        flows = place[producer] != place[consumer]
        if normalised:
            flows &= ~weight_side(graph)[producer]
        pairs, which = np.unique(np.stack([reads.tensor, place[consumer]])[:, flows], axis=1, return_inverse=True)
        size = np.zeros(pairs.shape[1])
        np.maximum.at(size, which.reshape(-1), reads.size[flows])
        return cls._layered(pairs[0], pairs[1].astype(np.int32), size, place[makers(graph)])

    @classmethod
    def _layered(cls, tensor: Int64, reader: Int32, size: Float64, home_of: Int32) -> Nets:
        """Return the nets of tensors, sorted, that their readers read in parts of different size.

        home_of: int32, the group that makes each tensor, by the tensor's number.
        """
        home, lengths, readers, steps, first = [], [], [], [], []
        sent = np.zeros(home_of.size)  # bytes of each tensor that are in nets already
        layer = 0
        while tensor.size:
            tensors, start, which = np.unique(tensor, return_index=True, return_inverse=True)
            least = np.minimum.reduceat(size, start)
            home.append(home_of[tensors])
            lengths.append(np.diff(np.r_[start, tensor.size]))
            readers.append(reader)
            steps.append(least - sent[tensors])
            first.append(np.full(tensors.size, layer == 0))
            sent[tensors] = least
            more = size > least[which]
            tensor, reader, size = tensor[more], reader[more], size[more]
            layer += 1
        none = np.zeros(0, np.int32)
        return cls(
            np.concatenate([none, *home]).astype(np.int32),
            np.concatenate([[0], np.cumsum(np.concatenate([none, *lengths]))]).astype(np.int64),
            np.concatenate([none, *readers]).astype(np.int32),
            np.concatenate([np.zeros(0), *steps]),
            np.concatenate([np.zeros(0, bool), *first]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The division of k groups over p devices as a sum: operations, and tensors once per device that reads them.

    group_s: float64 [k, p], inf where not allowed. per_byte_s, latency_s: float64 [p, p], of the links.
    """

    group_s: Float64
    nets: Nets
    per_byte_s: Float64
    latency_s: Float64

    @classmethod
    def of(cls, problem: Problem, grouping: Grouping, *, normalised: bool = True) -> Cut:
        """Return the sum of a problem whose costs are known; see `Nets.of`."""
        if problem.costs is None:
            raise ValueError("a problem without costs")
        group_s = np.where(problem.group_allowed(grouping), sum_per_group(problem.costs.op_s, grouping), math.inf)
        nets = Nets.of(problem.graph, grouping, normalised=normalised)
        return cls(group_s, nets, 1.0 / problem.topology.link_bytes_per_s, problem.topology.link_latency_s)

    def link_s(self, net: Int64, source: Int32, target: Int32 | int, surcharge_s: float = 0.0) -> Float64:
        """Return the seconds that nets take from devices to devices, 0 within one; a surcharge on every tensor."""
        nets, away = self.nets, source != target
        latency_s = np.where(nets.first[net], self.latency_s[source, target] + surcharge_s, 0.0)
        seconds: Float64 = np.where(away, latency_s + nets.size[net] * self.per_byte_s[source, target], 0.0)
        return seconds

    def value_s(self, device: Int32, extra_s: Float64 | None = None, surcharge_s: float = 0.0) -> float:
        """Return what a division int32 [k] costs; inf if it is not allowed. The rest as in `expanded`."""
        home, reading = device[self.nets.home], device[self.nets.reader]
        p, row = self.group_s.shape[1], np.arange(device.size)
        pairs = np.unique(self.nets.owner * p + reading)
        net, target = pairs // p, (pairs % p).astype(np.int32)
        own_s = self.group_s[row, device].sum() + (0.0 if extra_s is None else extra_s[row, device].sum())
        return float(own_s + self.link_s(net, home[net], target, surcharge_s).sum())

    def two_devices(self, extra_s: Float64 | None = None, surcharge_s: float = 0.0) -> tuple[Int32, float]:
        """Return (the best division, int32 [k], over the first two devices; a lower bound of what any costs).

        The bound is the value of the cut with capacities rounded down. The rest as in `expanded`.
        """
        return self.expanded(np.zeros(self.group_s.shape[0], np.int32), 1, extra_s, surcharge_s)

    def expanded(
        self, device: Int32, target: int, extra_s: Float64 | None = None, surcharge_s: float = 0.0
    ) -> tuple[Int32, float]:
        """Return (the division after the best move of any set of groups to the device `target`; its value).

        Whether a group stays or goes is the side of a minimum cut on which it lies. What stays on device d and reads a
        tensor of a group elsewhere pays what it pays now even if that group goes where the link is faster: no cut can
        state such terms. So the value is an upper bound of what the answer costs, exact where all links into a device
        are alike; with two devices it is exact, and the division the best of all.
        extra_s: float64 [k, p], added to what the groups cost. surcharge_s: added to every transfer.
        Source: Boykov, Veksler, Zabih, IEEE TPAMI 23, 2001 (alpha-expansion); for tensors with several readers
        Kohli, Ladicky, Torr, Int. J. Comput. Vis. 82, 2009, with one further node per tensor and side.
        """
        arcs = Arcs(device.size)
        group_s = self.group_s if extra_s is None else self.group_s + extra_s
        row = np.arange(device.size)
        base_s = arcs.choose(group_s[row, device], group_s[row, target], device == target)
        # Charge nets whose home stays while a reader is on the target device
        nets = self.nets
        net = np.flatnonzero(device[nets.home] != target)
        middle, inner = arcs.gather(net, nets.owner, nets.reader, nets.t)
        arcs.add(nets.home[net], middle, self.link_s(net, device[nets.home[net]], target, surcharge_s))
        arcs.colocate(inner, outwards=True)
        # Charge nets of which a reader stays on a device other than its home's, wherever the home then is
        p = self.group_s.shape[1]
        reading = device[nets.reader]
        kept = reading != target
        pair_of = nets.owner[kept] * p + reading[kept]
        pairs = np.unique(pair_of)
        net, here = pairs // p, (pairs % p).astype(np.int32)
        home = nets.home[net]
        before_s = self.link_s(net, device[home], here, surcharge_s)
        after_s = self.link_s(net, np.full(net.size, target, np.int32), here, surcharge_s)
        every, owner = np.arange(pairs.size), np.searchsorted(pairs, pair_of)
        middle, inner = arcs.gather(every, owner, nets.reader[kept], pairs.size)
        arcs.add(middle, np.full(net.size, arcs.sink), before_s)
        arcs.add(middle, home, np.maximum(after_s - before_s, 0.0))
        arcs.colocate(inner, outwards=False)
        goes, flow_s = arcs.solve()
        return np.where(goes, np.int32(target), device).astype(np.int32), base_s + flow_s

    def relaxed_s(self, *, seconds: float) -> float:
        """Return a lower bound for any number of devices: groups divided, every tensor over its cheapest links.

        It is the value of the solver's prices, which holds for any prices: what the solver calls the optimum may be
        above it where costs differ by more than its tolerance.

        Source: Kleinberg, Tardos, J. ACM 49, 2002 (uniform labelling), for nets instead of edges.
        """
        floor_s = float(self.group_s.min(axis=1).sum())
        k, p = self.group_s.shape
        nets = self.nets
        if nets.reader.size == 0 or nets.reader.size * p > LARGEST_PROGRAM or seconds <= 0:
            return floor_s
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        every = np.arange(nets.t)
        into_s = np.full((nets.t, p), math.inf)
        for d in range(p):
            for s in range(p):
                if s != d:
                    into_s[:, d] = np.minimum(into_s[:, d], self.link_s(every, np.full(nets.t, s, np.int32), d))
        row = np.arange(nets.reader.size * p)
        owner, at = np.repeat(nets.owner, p), np.tile(np.arange(p), nets.reader.size)
        columns = [np.repeat(nets.reader, p) * p + at, nets.home[owner] * p + at, k * p + owner * p + at]
        signs = np.repeat([1.0, -1.0, -1.0], row.size)  # x of a reader - x of the home - y of the net <= 0
        size = (k + nets.t) * p
        above = coo_array((signs, (np.tile(row, 3), np.concatenate(columns))), shape=(row.size, size))
        once = coo_array((np.ones(k * p), (np.repeat(np.arange(k), p), np.arange(k * p))), shape=(k, size))
        allowed = np.isfinite(self.group_s)
        cost = np.concatenate([np.where(allowed, self.group_s, 0.0).ravel(), into_s.ravel()])
        upper = np.concatenate([allowed.ravel().astype(float), np.ones(nets.t * p)])
        scale = float(cost.max()) or 1.0
        above, once = above.tocsr(), once.tocsr()
        solved = linprog(
            cost / scale,
            A_ub=above,
            b_ub=np.zeros(row.size),
            A_eq=once,
            b_eq=np.ones(k),
            bounds=np.stack([np.zeros(size), upper], axis=1),
            method="highs",
            options={"time_limit": seconds},
        )
        if solved.status != 0:
            return floor_s
        price = scale * np.minimum(solved.ineqlin.marginals, 0.0)
        each_s = scale * solved.eqlin.marginals  # [k]
        reduced_s = cost - above.T @ price - once.T @ each_s
        proven_s = float(each_s.sum() + np.minimum(reduced_s * upper, 0.0).sum())
        return max(floor_s, proven_s * (1 - 1e-7))
