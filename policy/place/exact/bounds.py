"""Lower bounds: what no placement, and no order, can fall below; and what the weights need of memory.

Every bound holds for all placements that the problem allows, colocation constraints kept, with and without priorities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.devices import Topology
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Grouping, row_ptr, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import DataflowModel
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import depths
from policy.place.exact.bound_kernels import first_fit, interval_bound, path_starts, through_cut
from policy.place.exact.counting import counting_bound
from policy.place.exact.relaxation import load_bound
from policy.place.units import Units

SAFETY = 1e-9  # the share by which sums of floats may be off
MB = 1e6
CUT_PER_SECOND = 50_000  # operations whose minimum cut takes about a second


@dataclass(frozen=True, slots=True, eq=False)
class BoundInputs:
    """The operations of a problem as bounds see them.

    op_s: float64 [n, p], inf where the operation, or one colocated with it, is not allowed. unit: int32 [n], equal for
    operations that share a device. unit_s: float64 [k, p]; unit_bytes: int64 [k]; room_bytes: int64 [p].
    """

    op_s: Float64
    unit: Int32
    unit_s: Float64
    unit_bytes: Int64
    room_bytes: Int64

    @classmethod
    def of(cls, problem: Problem) -> BoundInputs:
        """Return a problem's operations; its costs are known."""
        if problem.costs is None:
            raise ValueError("a problem without costs")
        n = problem.graph.n
        units = Units.of_grouping(problem, finest_grouping(problem))
        unit = units.grouping.group
        op_s = np.where(units.allowed[unit], problem.costs.op_s, math.inf)
        alone = units.k == n and bool(np.array_equal(unit, np.arange(n)))
        unit_s = op_s if alone else sum_per_group(op_s, units.grouping)
        return cls(op_s, unit, unit_s, units.held_bytes, units.room_bytes)

    def load(self, block_s: float, seconds: float) -> tuple[float, Float64]:
        """Return (the least largest load of a device, prices float64 [p] of the devices' time that prove it).

        block_s: what every operation that takes time costs besides; the last one of a device does not count.
        """
        unit_s = self.unit_s if block_s == 0 else self._blocking(block_s)
        load_s, price = load_bound(unit_s, self.unit_bytes, self.room_bytes, seconds=seconds)
        return max(0.0, load_s - block_s), price

    def _blocking(self, block_s: float) -> Float64:
        op_s = self.op_s + np.where(self.op_s > 0, block_s, 0.0)
        return sum_per_group(op_s, Grouping(self.unit))

    def devices_needed(self, held_bytes: Int64 | None = None) -> int:
        """Return the least number of devices whose memory holds all weights, or int64 [k] bytes of the units."""
        total = int((self.unit_bytes if held_bytes is None else held_bytes).sum())
        largest_first = np.sort(self.room_bytes)[::-1].astype(np.float64)
        enough = np.flatnonzero(np.cumsum(largest_first) >= total)
        return int(enough[0]) + 1 if enough.size else self.room_bytes.size


Bound = tuple[float, str]  # seconds, and what proves them


def dataflow_bounds(problem: Problem, execution: DataflowModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds where devices and links work at the same time; see `proofs.lower_bound`."""
    work = problem.derived(BoundInputs.of)
    load_s, price = work.load(execution.block_s, seconds)
    found = [(load_s, "load")]
    paths = problem.derived(Paths.of, work) if one_to_one else None
    if paths is None:
        return found
    found.append((paths.longest_s(work.op_s), "critical path"))
    p = work.op_s.shape[1]
    prices = [price, *(np.eye(p) if not _alike(work.op_s) and p <= 8 else [])]
    found += [(paths.interval_s(work.op_s, each, execution.block_s), "work between heads and tails") for each in prices]
    needed = work.devices_needed()
    if needed > 1:
        found.append((paths.forced_s(problem, work, needed), "transfers that memory forces"))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """When operations can start at the earliest, and what must follow them, on each device.

    start_s, tail_s: float64 [n, p]: each operation with every producer, and every consumer, on the device that suits
    this one best; inf where not allowed. per_byte_s, latency_s: float64 [p, p].
    Source: Arabnejad, Barbosa, PEFT, IEEE TPDS 25, 2014, section 4 (optimistic cost table), in both directions.
    """

    start_s: Float64
    tail_s: Float64
    per_byte_s: Float64
    latency_s: Float64

    @classmethod
    def of(cls, problem: Problem, work: BoundInputs) -> Paths | None:
        """Return the paths of a problem, or None if its graph has a cycle."""
        graph = problem.graph
        producer, consumer = graph.edges[:, graph.reads.edge]
        depth = depths(graph)
        if np.any(depth[producer] >= depth[consumer]):
            return None
        order = np.argsort(depth, kind="stable").astype(np.int32)
        per_byte_s, latency_s = link_times(problem.topology)
        size = graph.reads.size.astype(np.float64)
        by_consumer = np.argsort(consumer, kind="stable")
        into = (row_ptr(consumer, graph.n), producer[by_consumer], size[by_consumer])
        out = (row_ptr(producer, graph.n), consumer.copy(), size)
        start_s = path_starts(order, into, work.op_s, work.unit.copy(), per_byte_s, latency_s)
        # What must follow is what must precede in the graph turned round.
        turned = (np.ascontiguousarray(per_byte_s.T), np.ascontiguousarray(latency_s.T))
        tail_s = path_starts(order[::-1].copy(), out, work.op_s, work.unit.copy(), *turned)
        return cls(start_s, tail_s, per_byte_s, latency_s)

    def longest_s(self, op_s: Float64) -> float:
        """Return the length of the longest path, every operation on its best device."""
        return float((self.start_s + op_s + self.tail_s).min(axis=1).max())

    def interval_s(self, op_s: Float64, price: Float64, block_s: float) -> float:
        """Return the greatest (least head + work + least tail) over all sets {head >= a, tail >= b}.

        price: float64 [p], at least 0, of sum 1: the work of an operation is its least priced time. All of a set
        happens between a and the end less b on every device, and so on their weighted mean.
        Source: Carlier, Pinson, Management Science 35, 1989, for one machine; several are made one by the prices.
        """
        known = np.isfinite(op_s)  # 0 times inf is no number
        priced = np.where(known, price * (np.where(known, op_s, 0.0) + np.where(op_s > 0, block_s, 0.0)), np.inf)
        work_s = np.where(np.isfinite(op_s), priced, math.inf).min(axis=1)
        found = interval_bound(self.start_s.min(axis=1), self.tail_s.min(axis=1), work_s)
        return max(0.0, float(found) - block_s)

    def forced_s(self, problem: Problem, work: BoundInputs, needed: int) -> float:
        """Return the time of the cheapest paths with a transfer, as at least so many devices must be used.

        A graph of c components on q devices has q - c edges between devices, or more.
        """
        reads = problem.graph.reads
        edges, sizes = problem.graph.edges, np.zeros(problem.graph.m)
        np.maximum.at(sizes, reads.edge, reads.size)  # tensors may travel side by side
        cut = needed - _components(problem.graph.n, edges, work.unit)
        apart = work.unit[edges[0]] != work.unit[edges[1]]
        if cut < 1 or np.count_nonzero(apart) < cut:
            return 0.0
        edges = np.ascontiguousarray(edges[:, apart])
        links = (self.per_byte_s, self.latency_s)
        value_s = through_cut(edges, sizes[apart], self.start_s, work.op_s, self.tail_s, *links)
        return float(np.partition(value_s, cut - 1)[cut - 1])


def load_bounds(problem: Problem, *, seconds: float) -> list[Bound]:
    """Return bounds of the largest load of a device."""
    work = problem.derived(BoundInputs.of)
    load_s, _ = work.load(0.0, seconds)
    largest_s = float(work.unit_s.min(axis=1).max())
    counted_s = counting_bound(work.unit_s, max(load_s, largest_s))
    return [(load_s, "load"), (largest_s, "largest unit"), (counted_s, "number of large units")]


def sum_bounds(problem: Problem, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds of the sum of operations, transfers and launches; see `proofs.lower_bound`."""
    from policy.place.exact.nets import Cut

    work = problem.derived(BoundInputs.of)
    if problem.costs is None:
        raise ValueError("a problem without costs")
    launch_s = float(problem.costs.launch_s.min())
    found = [(float(work.unit_s.min(axis=1).sum()) + launch_s, "work")]
    if one_to_one and problem.topology.p > 1:
        cut = Cut.of(problem, finest_grouping(problem))
        if problem.topology.p > 2:
            found.append((cut.relaxed_s(seconds=seconds) + launch_s, "linear relaxation"))
        elif problem.graph.n <= CUT_PER_SECOND * seconds:
            found.append((cut.two_devices()[1] + launch_s, "minimum cut"))
    return found


def least_memory(problem: Problem) -> int:
    """Return the least bytes per device, equal for all, that surely hold the weights.

    Found by halving the interval between what no packing can fall below, and what one device needs alone; whether a
    size suffices is tried by first fit decreasing.
    Source: Coffman, Garey, Johnson, SIAM J. Comput. 7, 1978 (MULTIFIT).
    """
    units = Units.of(problem)
    p = problem.topology.p
    total = int(units.held_bytes.sum())
    low, high = max(int(units.held_bytes.max(initial=0)), -(-total // p)), total
    while low < high:
        middle = (low + high) // 2
        if _packed(units, np.full(p, middle, np.int64)) is not None:
            high = middle
        else:
            low = middle + 1
    return high


def explain_memory(
    problem: Problem, peak_bytes: Callable[[Placement], int] = lambda placement: 0
) -> DeviceError | None:
    """Return the error to raise if no packing of the weights into the devices is found; None if one is.

    peak_bytes: the most a device holds under a placement, outputs and all; what is named suffices for the packing
    found.
    """
    units = Units.of(problem)
    if _packed(units, units.room_bytes) is not None:
        return None
    total, needed = int(units.held_bytes.sum()), least_memory(problem)
    device = _packed(units, np.full(problem.topology.p, needed, np.int64))
    if device is not None:
        needed = max(needed, peak_bytes(units.placement(device)))
    rooms = ", ".join(f"{d.name} {d.memory_bytes / MB:.6g} MB" for d in problem.topology.devices if d.memory_bytes)
    return DeviceError(
        f"No way was found to fit weights of {total / MB:.6g} MB, in {units.k} groups, into the devices ({rooms}).",
        f"{needed} bytes ({needed / MB:.6g} MB) on each of the {problem.topology.p} devices suffice.",
    )


def _packed(units: Units, room_bytes: Int64) -> Int32 | None:
    """Return int32 [k], the devices of the units by first fit decreasing; None if it does not pack them.

    The smallest devices are tried first, and then the largest.
    """
    largest_first = np.argsort(-units.held_bytes, kind="stable")
    by_room = np.argsort(room_bytes, kind="stable")
    for order in (by_room, by_room[::-1]):
        allowed = np.array(units.allowed[:, order], order="C")  # writable, so that the kernel is compiled once
        device = first_fit(largest_first, units.held_bytes.copy(), room_bytes[order], allowed)
        if np.all(device >= 0):
            found: Int32 = order[device].astype(np.int32)
            return found
    return None


def link_times(topology: Topology) -> tuple[Float64, Float64]:
    """Return (seconds per byte, seconds of latency) of each link, float64 [p, p]."""
    return 1.0 / topology.link_bytes_per_s, topology.link_latency_s.copy()


def _alike(op_s: Float64) -> bool:
    return bool(np.all(op_s == op_s[:, :1]))


def _components(n: int, edges: Int32, unit: Int32) -> int:
    """Return into how many connected parts the units of a graph fall."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    k = int(unit.max(initial=-1)) + 1
    links = coo_array((np.ones(edges.shape[1], bool), (unit[edges[0]], unit[edges[1]])), shape=(k, k))
    return int(connected_components(links, directed=False)[0])
