"""Lower bounds: what no placement, and no order, can fall below; and what the weights need of memory.

Every bound holds for all placements that the problem allows, colocation constraints kept, with and without priorities.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.errors import DeviceError
from pipeline.core.figures import bytes_text
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import DataflowModel
from pipeline.shared.feasibility import finest_grouping
from policy.place.base.groups import Units
from policy.place.exact.pipelined.counting import counting_bound
from policy.place.exact.shared.bound_kernels import first_fit
from policy.place.exact.shared.paths import BoundInputs, Paths

SAFETY = 1e-9  # the share by which sums of floats may be off
CUT_PER_SECOND = 50_000  # operations whose minimum cut takes about a second
BUSY_PER_SECOND = 200_000  # operations whose heads and tails are made longer in about a second


Bound = tuple[float, str]  # seconds, and what proves them


def dataflow_bounds(problem: Problem, execution: DataflowModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds where devices and links work at the same time; see `proofs.lower_bound`."""
    work = problem.derived(BoundInputs.of)
    load_s, price = work.load(execution.block_s, seconds)
    bounds = [(load_s, "load")]
    paths = problem.derived(Paths.of, work) if one_to_one else None
    if paths is None:
        return bounds
    bounds.append((paths.longest_s(work.op_s), "critical path"))
    p = work.op_s.shape[1]
    prices = [price, *(np.eye(p) if not _alike(work.op_s) and p <= 8 else [])]
    until = time.monotonic() + (seconds if problem.graph.n <= BUSY_PER_SECOND * seconds else 0.0)
    bounds += [
        (paths.interval_s(work.op_s, each, execution.block_s), "work between heads and tails") for each in prices
    ]
    busy = paths.busy(work, price, execution.block_s, lambda: time.monotonic() < until)
    bounds.append((busy.least_s(work.op_s, price, execution.block_s), "work before and after paths"))
    needed = work.devices_needed()
    if needed > 1:
        bounds.append((paths.forced_s(problem, work, needed), "transfers that memory forces"))
    return bounds


def load_bounds(problem: Problem, *, seconds: float) -> list[Bound]:
    """Return bounds of the largest load of a device."""
    work = problem.derived(BoundInputs.of)
    load_s, _ = work.load(0.0, seconds)
    largest_s = float(work.unit_s.min(axis=1).max())
    counted_s = counting_bound(work.unit_s, max(load_s, largest_s))
    return [(load_s, "load"), (largest_s, "largest unit"), (counted_s, "number of large units")]


def sum_bounds(problem: Problem, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds of the sum of operations, transfers and launches; see `proofs.lower_bound`."""
    from policy.place.exact.shared.nets import Cut

    work = problem.derived(BoundInputs.of)
    if problem.costs is None:
        raise ValueError("a problem without costs")
    launch_s = float(problem.costs.launch_s.min())
    bounds = [(float(work.unit_s.min(axis=1).sum()) + launch_s, "work")]
    if one_to_one and problem.topology.p > 1:
        cut = Cut.of(problem, finest_grouping(problem))
        if problem.topology.p > 2:
            bounds.append((cut.relaxed_s(seconds=seconds) + launch_s, "linear relaxation"))
        elif problem.graph.n <= CUT_PER_SECOND * seconds:
            bounds.append((cut.two_devices()[1] + launch_s, "minimum cut"))
    return bounds


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
    rooms = ", ".join(f"{d.name} {bytes_text(d.memory_bytes, 6)}" for d in problem.topology.devices if d.memory_bytes)
    return DeviceError(
        f"No way was found to fit weights of {bytes_text(total, 6)}, in {units.k} groups, into the devices ({rooms}).",
        f"{needed} bytes ({bytes_text(needed, 6)}) on each of the {problem.topology.p} devices suffice.",
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
            packed: Int32 = order[device].astype(np.int32)
            return packed
    return None


def _alike(op_s: Float64) -> bool:
    return bool(np.all(op_s == op_s[:, :1]))
