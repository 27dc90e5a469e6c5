"""Lower bounds: what no placement, and no order, can fall below; and what the weights need of memory.

Every bound holds for all placements that the problem allows, colocation constraints kept, with and without priorities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.errors import DeviceError
from pipeline.core.figures import bytes_text
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.base.groups import Groups
from policy.place.exact.shared.bound_kernels import first_fit

SAFETY = 1e-9  # the share by which sums of floats may be off
CUT_PER_SECOND = 50_000  # operations whose minimum cut takes about a second


Bound = tuple[float, str]  # seconds, and what proves them


def least_memory(problem: Problem) -> int:
    """Return the least bytes per device, equal for all, that surely hold the weights.

    Found by halving the interval between what no packing can fall below, and what one device needs alone; whether a
    size suffices is tried by first fit decreasing.
    Source: Coffman, Garey, Johnson, SIAM J. Comput. 7, 1978 (MULTIFIT).
    """
    groups = Groups.of(problem)
    p = problem.topology.p
    total = int(groups.held_bytes.sum())
    low, high = max(int(groups.held_bytes.max(initial=0)), -(-total // p)), total
    while low < high:
        middle = (low + high) // 2
        if _packed(groups, np.full(p, middle, np.int64)) is not None:
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
    groups = Groups.of(problem)
    if _packed(groups, groups.room_bytes) is not None:
        return None
    total, needed = int(groups.held_bytes.sum()), least_memory(problem)
    device = _packed(groups, np.full(problem.topology.p, needed, np.int64))
    if device is not None:
        needed = max(needed, peak_bytes(groups.placement(device)))
    rooms = ", ".join(f"{d.name} {bytes_text(d.memory_bytes, 6)}" for d in problem.topology.devices if d.memory_bytes)
    return DeviceError(
        f"No way was found to fit weights of {bytes_text(total, 6)}, in {groups.k} groups, into the devices ({rooms}).",
        f"{needed} bytes ({bytes_text(needed, 6)}) on each of the {problem.topology.p} devices suffice.",
    )


def _packed(groups: Groups, room_bytes: Int64) -> Int32 | None:
    """Return int32 [k], the devices of the groups by first fit decreasing; None if it does not pack them.

    The smallest devices are tried first, and then the largest.
    """
    largest_first = np.argsort(-groups.held_bytes, kind="stable")
    by_room = np.argsort(room_bytes, kind="stable")
    for order in (by_room, by_room[::-1]):
        allowed = np.array(groups.allowed[:, order], order="C")  # writable, so that the kernel is compiled once
        device = first_fit(largest_first, groups.held_bytes.copy(), room_bytes[order], allowed)
        if np.all(device >= 0):
            packed: Int32 = order[device].astype(np.int32)
            return packed
    return None
