"""What search places: the groups of a problem, with where they may go, what they hold, and when they come up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.compiled import compiled
from pipeline.shared.feasibility import feasible_grouping

UNLIMITED = np.iinfo(np.int64).max // 4  # bytes of a device of unknown memory


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """k sets of operations that share a device.

    grouping: the problem's, with groups joined that are colocated and groups taken apart that have no device in common.
    allowed: bool [k, p]. held_bytes: int64 [k], weights. room_bytes: int64 [p], memory of the devices.
    """

    problem: Problem
    grouping: Grouping
    allowed: Bool
    held_bytes: Int64
    room_bytes: Int64

    @classmethod
    def of(cls, problem: Problem) -> Groups:
        """Return the groups of a problem."""
        grouping = feasible_grouping(problem)
        return cls.of_grouping(problem, grouping)

    @classmethod
    def of_grouping(cls, problem: Problem, grouping: Grouping) -> Groups:
        """Return the groups of a grouping, all of which have a device in common."""
        held = sum_per_group(problem.graph.weight_bytes, grouping)
        room = np.array([d.memory_bytes or UNLIMITED for d in problem.topology.devices], dtype=np.int64)
        return cls(problem, grouping, problem.group_allowed(grouping), held, room)

    @property
    def k(self) -> int:
        """Return the number of groups."""
        return self.grouping.k

    def placement(self, device: Int32, order: Float64 | None = None) -> Placement:
        """Return the operations' placement from the groups' devices, int32 [k], and priorities, float64 [k]."""
        return Placement(device, self.problem.topology.names, order).lift(self.grouping)

    def devices_of(self, placement: Placement) -> Int32:
        """Return int32 [k], the device of each group; of groups that a placement splits, that of one member."""
        device = np.zeros(self.k, np.int32)
        device[self.grouping.group] = placement.device
        return device

    def repaired(self, device: Int32) -> Int32:
        """Return int32 [k], the devices with groups moved away from devices whose memory their weights exceed.

        The groups that hold most are moved first, each to the allowed device with most room. What fits nowhere stays.
        """
        load = np.bincount(device, weights=self.held_bytes, minlength=self.room_bytes.size)
        if np.all(load <= self.room_bytes):
            return device
        heaviest_first = np.argsort(-self.held_bytes, kind="stable")
        return _repaired(device.copy(), heaviest_first, self.held_bytes, self.room_bytes, self.allowed)


@compiled
def _repaired(device: Int32, heaviest_first: Int64, held: Int64, room: Int64, allowed: Bool) -> Int32:
    free = room.copy()
    for i in range(device.size):
        free[device[i]] -= held[i]
    for i in heaviest_first:
        here = device[i]
        if free[here] >= 0 or held[i] == 0:
            continue
        best = -1
        for d in range(free.size):
            if allowed[i, d] and free[d] >= held[i] and (best < 0 or free[d] > free[best]):
                best = d
        if best >= 0:
            free[here] += held[i]
            free[best] -= held[i]
            device[i] = best
    return device


def mostly_on(problem: Problem, device: int) -> Placement:
    """Return the placement of every group on `device` where it is allowed, else where it is fastest."""
    grouping = feasible_grouping(problem)
    allowed = problem.group_allowed(grouping)
    time_s = np.zeros(allowed.shape)
    if problem.costs is not None:
        np.add.at(time_s, grouping.group, problem.costs.op_s)
    elsewhere = np.where(allowed, np.minimum(time_s, np.finfo(np.float64).max), np.inf).argmin(axis=1)
    chosen = np.where(allowed[:, device], device, elsewhere)
    return Placement(chosen.astype(np.int32), problem.topology.names).lift(grouping)
