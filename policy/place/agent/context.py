"""What the head gets to know about each group and each target, given the placements that groups would change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.core.graph import Grouping
from policy.place.agent.schedule import SLOTS, Schedule
from policy.place.agent.world import World

COLUMNS = (
    "change",  # of operation times and transfers, if the group went there: in mean times of a group, then in
    "change_share",  # hundredths of the whole
    "time",
    "transfers",
    "cuts",
    "relative_time",  # log time of the group over its mean time over devices
    "stay",
    "load",  # share of all work that the target does, over an equal share
    "speed",
    "headroom",  # share of the target's memory that would be left
    "size",  # log of the group's own time
    "fresh",  # no placement is changed: groups are placed for the first time
    "delay",  # how much later than now its inputs are there
    "room",  # time between its inputs and when its outputs must leave, over what it takes
    "occupied",  # share of that time in which the target is busy
    "critical",  # 1 on the critical path, falling with the slack
    "scheduled",  # whether the last four are known
)
AT = {name: i for i, name in enumerate(COLUMNS)}
UNCHANGED = ("change", "change_share", "time", "transfers", "cuts")  # where a group stays
FAR = 20.0  # mean times of a group beyond which delay and room are told apart no more


@dataclass(frozen=True, slots=True, eq=False)
class GroupBatch:
    """The groups of r groupings of n nodes below one another, K in all.

    label: int64 [r, n], in [0, K). owner: int64 [K], the grouping of each. k: int64 [r].
    """

    label: Tensor
    owner: Tensor
    k: Tensor

    @classmethod
    def of(cls, groupings: list[Grouping]) -> GroupBatch:
        """Return the groups of groupings."""
        k = torch.tensor([grouping.k for grouping in groupings])
        stacked = torch.tensor(np.stack([grouping.group for grouping in groupings]), dtype=torch.int64)
        return cls(stacked + (torch.cumsum(k, 0) - k)[:, None], torch.arange(len(groupings)).repeat_interleave(k), k)

    @property
    def total(self) -> int:
        """Return K."""
        return self.owner.numel()

    def sum(self, values: Tensor) -> Tensor:
        """Return [K, ...], sums over members of values [r, n, ...]."""
        flat = values.reshape(-1, *values.shape[2:])
        return flat.new_zeros(self.total, *values.shape[2:]).index_add(0, self.label.reshape(-1), flat)

    def least(self, values: Tensor) -> Tensor:
        """Return float32 [K], the least of values [r, n] in each group."""
        found: Tensor = values.new_full((self.total,), torch.inf).scatter_reduce(
            0, self.label.reshape(-1), values.reshape(-1), "amin"
        )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Columns and masks for p + 1 targets of K groups: the devices, and to stay.

    columns: float32 [K, p + 1, c], see COLUMNS. forbidden: bool [K, p + 1], targets that may not be chosen.
    """

    columns: Tensor
    forbidden: Tensor


@torch.no_grad()
def context(
    world: World, groups: GroupBatch, device: Tensor, schedules: list[Schedule | None], *, value: Tensor
) -> Context:
    """Return what there is to know.

    device: int64 [r, n], the placements; p where a node is not placed yet, which then holds for all nodes of that
    placement. schedules: of each placement, where known. value: float32 [r], what each placement takes, units; any if
    not placed.

    Source of the idea that a policy looks at the plan it changes: Addanki et al., Placeto, NeurIPS 2019. The columns
    are those of list schedulers and of local search: what a move changes where the others stay.
    """
    p, fresh = world.p, (device[:, :1] == world.p).expand(-1, 1)  # [r, 1]
    edges = _Edges.of(world, groups, device)
    op = groups.sum(world.op.expand(device.shape[0], -1, -1))  # [K, p]
    hot, spent = _hot(device, p), _gathered(world.op, device)
    work, weight = hot * spent[..., None], hot * world.weight[:, None]  # [r, n, p], by device, time and bytes
    now_op = groups.sum(spent)  # [K]
    unit = (groups.sum(world.mean.expand(device.shape[0], -1)) + 1e-9).reshape(-1)  # [K], the group's own mean time
    each = (float(world.mean.sum()) or world.n) / groups.k[groups.owner]  # [K], mean time of a group, if there is any
    was_placed = ~fresh[groups.owner, 0]
    time = op - now_op[:, None]
    moved = edges.there - edges.now[:, None]
    change = time + moved
    need = groups.sum(world.weight.expand(device.shape[0], -1))
    on = groups.sum(hot.float())  # [K, p], members on each device
    count = on.sum(dim=1, keepdim=True)
    home = on == count.clamp(min=1)  # [K, p], all members are there already
    allowed = groups.sum((~world.allowed).float().expand(device.shape[0], -1, -1)) == 0
    already = groups.sum(weight)  # [K, p], bytes the group itself holds on each device
    left = world.capacity - (weight.sum(dim=1)[groups.owner] - already) - need[:, None]  # [K, p]
    columns = torch.zeros(groups.total, p + 1, len(COLUMNS))
    put = {
        "change": torch.asinh(change / each[:, None]),
        "change_share": torch.asinh(100 * change / value[groups.owner, None].clamp(min=1e-6)),
        "time": torch.asinh(time / each[:, None]),
        "transfers": torch.asinh(moved / each[:, None]),
        "cuts": torch.asinh(edges.cuts_there - edges.cuts_now[:, None]),
        "relative_time": ((op + 1e-6) / (unit[:, None] + 1e-6)).log().clamp(-4, 4),
        "load": _load(work)[groups.owner],
        "speed": world.speed.expand(groups.total, p),
        "headroom": torch.where(torch.isinf(world.capacity), 1.0, left / world.capacity).clamp(-1, 1),
        "size": torch.log1p(unit / each)[:, None].expand(-1, p),
    }
    for name, values in put.items():
        columns[:, :p, AT[name]] = values
    columns[:, :, AT["fresh"]] = (~was_placed)[:, None].float()
    _schedule_columns(columns, world, groups, edges, schedules, _Times(op, groups.sum(work), each))
    most = on.argmax(dim=1)  # [K], the device of most members, as which the present one is described
    _describe_staying(columns, most)
    forbidden = torch.zeros(groups.total, p + 1, dtype=torch.bool)
    forbidden[:, :p] = ~allowed | (home & was_placed[:, None])
    full = left < 0
    forbidden[:, :p] |= full & ~(forbidden[:, :p] | full).all(dim=1, keepdim=True)
    forbidden[:, p] = ~was_placed
    forbidden[:, p] &= ~forbidden[:, :p].all(dim=1)  # a group that may go nowhere stays
    return Context(columns, forbidden)


class _Times(NamedTuple):
    """Of K groups, in units.

    op: float32 [K, p], what each takes on each device. own: float32 [K, p], what it takes on each device as it is
    placed now. each: float32 [K], the mean time of a group of its grouping.
    """

    op: Tensor
    own: Tensor
    each: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Transfers between groups: into and out of every group.

    inner: bool [r, m], edges within a group. into, out: float32 [r, m, p], units of each edge if its consumer, or its
    producer, were on a device. there: float32 [K, p], now: float32 [K], units that a group's transfers would take, and
    do. cuts_there, cuts_now: the same, counted.
    """

    inner: Tensor
    into: Tensor
    out: Tensor
    there: Tensor
    now: Tensor
    cuts_there: Tensor
    cuts_now: Tensor

    @classmethod
    def of(cls, world: World, groups: GroupBatch, device: Tensor) -> _Edges:
        p, every = world.p, torch.arange(world.p)
        producer, consumer = device[:, world.source], device[:, world.target]  # [r, m]
        at_producer, at_consumer = groups.label[:, world.source], groups.label[:, world.target]
        inner = at_producer == at_consumer
        outer = (~inner)[..., None].float()
        size = world.size[:, None]
        into = (world.latency[producer][..., :p] + size * world.per_byte[producer][..., :p]) * outer  # [r, m, p]
        out = (
            world.latency[:, consumer][:p].permute(1, 2, 0) + size * world.per_byte[:, consumer][:p].permute(1, 2, 0)
        ) * outer
        known_p, known_c = (producer < p)[..., None], (consumer < p)[..., None]
        cut_into = ((producer[..., None] != every) & known_p).float() * outer
        cut_out = ((consumer[..., None] != every) & known_c).float() * outer
        now = world.transfer(producer, consumer)
        cut_now = (producer != consumer).float()
        once = outer[..., 0]

        def per_group(in_side: Tensor, out_side: Tensor) -> Tensor:
            total = in_side.new_zeros(groups.total, *in_side.shape[2:])
            total.index_add_(0, at_consumer.reshape(-1), in_side.reshape(-1, *in_side.shape[2:]))
            return total.index_add_(0, at_producer.reshape(-1), out_side.reshape(-1, *out_side.shape[2:]))

        return cls(
            inner,
            into,
            out,
            per_group(into, out),
            per_group(now, now * once),
            per_group(cut_into, cut_out),
            per_group(cut_now, cut_now * once),
        )


def _schedule_columns(
    columns: Tensor,
    world: World,
    groups: GroupBatch,
    edges: _Edges,
    schedules: list[Schedule | None],
    times: _Times,
) -> None:
    """Fill in the columns that rest on schedules, for the groups whose placement has one."""
    op, own, each = times
    known = torch.tensor([schedule is not None for schedule in schedules])
    if not bool(known.any()):
        return
    blank = torch.zeros(world.n)
    start, finish, latest = (
        torch.stack([blank if s is None else getattr(s, name) for s in schedules])
        for name in ("start", "finish", "latest")
    )
    makespan = torch.tensor([0.0 if s is None else s.makespan for s in schedules])
    idle = torch.zeros(world.p, SLOTS + 1)
    busy = torch.stack([idle if s is None else s.busy for s in schedules])  # [r, p, SLOTS + 1]
    p, inner = world.p, edges.inner[..., None]
    arrives = torch.where(inner, 0.0, finish[:, world.source, None] + edges.into)  # [r, m, p]
    leaves = torch.where(inner, torch.inf, latest[:, world.target, None] - edges.out)
    ends = makespan[groups.owner, None].expand(-1, p)
    into, outof = (groups.label[:, side].reshape(-1, 1).expand(-1, p) for side in (world.target, world.source))
    ready = torch.zeros(groups.total, p).scatter_reduce(0, into, arrives.reshape(-1, p), "amax")
    due = ends.clone().scatter_reduce(0, outof, leaves.reshape(-1, p), "amin")
    now = groups.least(start)
    slack = groups.least((latest - start).clamp(min=0.0))
    room = due - ready - op
    far = FAR * each[:, None]
    one = each[:, None]
    values = {
        "delay": torch.asinh((ready - now[:, None]).clamp(-far, far) / one),
        "room": torch.asinh(room.clamp(-far, far) / one),
        "occupied": _occupied(busy[groups.owner], ready, due, ends, own=own),
        "critical": torch.exp(-slack / each)[:, None].expand(-1, p),
        "scheduled": torch.ones(groups.total, p),
    }
    for name, found in values.items():
        columns[:, :p, AT[name]] = found * known[groups.owner, None]


def _describe_staying(columns: Tensor, most: Tensor) -> None:
    """Fill in the last target: to stay is like going where most members are, but that nothing changes."""
    p = columns.shape[1] - 1
    columns[:, p] = columns[torch.arange(len(most)), most]
    columns[:, p, [AT[name] for name in UNCHANGED]] = 0.0
    columns[:, p, AT["stay"]] = 1.0


def _occupied(busy: Tensor, begin: Tensor, end: Tensor, makespan: Tensor, *, own: Tensor) -> Tensor:
    """Return float32 [K, p], the share of the time from begin to end that devices compute for other groups.

    begin, end, makespan: float32 [K, p]. busy: float32 [K, p, SLOTS + 1]. own: float32 [K, p], the group's own part.
    """
    slot = makespan / SLOTS + 1e-12
    first = (begin / slot).long().clamp(0, SLOTS - 1)
    last = torch.maximum((end / slot).ceil().long().clamp(0, SLOTS), first + 1)
    done = busy.gather(2, last[..., None]) - busy.gather(2, first[..., None])
    return ((done[..., 0] - own) / ((last - first) * slot)).clamp(0, 1)


def _gathered(op: Tensor, device: Tensor) -> Tensor:
    """Return float32 [r, n], the time of each node on its device; 0 where it has none."""
    padded = torch.cat([op, torch.zeros(op.shape[0], 1)], dim=1)
    return padded.expand(device.shape[0], -1, -1).gather(2, device[..., None])[..., 0]


def _hot(device: Tensor, p: int) -> Tensor:
    """Return int64 [r, n, p], 1 at each node's device; 0 everywhere for one without."""
    return torch.nn.functional.one_hot(device, p + 1)[..., :p]


def _load(work: Tensor) -> Tensor:
    """Return float32 [r, p], each device's work over an equal share of it, less 1; 0 where there is none.

    work: float32 [r, n, p], the time of each node where it is.
    """
    per_device = work.sum(dim=1)
    total = per_device.sum(dim=1, keepdim=True)
    return torch.where(total > 0, per_device * work.shape[2] / total.clamp(min=1e-9) - 1.0, 0.0)
