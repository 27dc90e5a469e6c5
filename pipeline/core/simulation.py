"""What simulators are asked and what they answer: batches of placements, local searches, timelines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Float64, Int32, Int64, frozen, frozen_indices
from pipeline.core.placement import Placement

Level = Literal["T0", "T1", "T2"]
LEVELS: tuple[Level, ...] = ("T0", "T1", "T2")
Contiguity = Literal["free", "convex", "ordered"]
Passes = Literal["together", "apart"]
T0, T1, T2 = range(3)  # levels of contention as numbers, see `DataflowModel.contention`
NO_SWAPS = np.zeros(0, np.int64)


class StageRules(NamedTuple):
    """What counts where devices are the stages of a pipeline.

    contiguity: which placements count: all ("free"), those in which no path of the forward pass leaves a device and
    comes back ("convex"), or those whose devices can be put in an order that it follows ("ordered"). passes: whether
    what counts is the largest load of both passes of training "together", or the largest of the forward pass and the
    largest of the backward pass, added up ("apart").
    """

    contiguity: Contiguity = "free"
    passes: Passes = "together"


class QueueRules(NamedTuple):
    """How devices and links that work at the same time share them.

    contention: T0, T1 or T2. block_s: seconds that a device stays blocked after an operation that takes time. gap_s:
    seconds between two sends.
    """

    contention: int = T0
    block_s: float = 0.0
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionModel:
    """By which rules a simulator predicts: what placers and reports may rely on.

    A plug-in's simulator states one of the models below, one derived from them, or one derived from this. Nothing
    branches on the type of a model: its `kind`, or the nearest one that it inherits, leads to what proves bounds and
    what solvers are told, see `policy.place.exact.shared.objectives`, and everything else is asked of the facts here.

    memory: whether a placement that needs more than a device's memory at any time is refused; weights always count.
    kind: what it is called. additive: whether a time is the sum over operations, tensors sent and sub-graphs begun.
    concurrent: whether devices work at the same time, so that a timeline tells what waits for what. ordered: whether
    priorities matter. activations: whether outputs and received copies count as memory as well. anonymous: whether
    devices that are alike may change names without changing a time. cheap_moves: whether trying a move takes less time
    than drawing it. objective: "module:name" of an `Objective` of its own; "" for that of its kind.
    """

    memory: bool = True
    kind: ClassVar[str] = ""
    additive: ClassVar[bool] = False
    concurrent: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    activations: ClassVar[bool] = False
    anonymous: ClassVar[bool] = False
    cheap_moves: ClassVar[bool] = False
    objective: ClassVar[str] = ""

    @property
    def stage_rules(self) -> StageRules | None:
        """Return what counts where devices are stages of a pipeline; None where they are not."""
        return None

    @property
    def queue_rules(self) -> QueueRules | None:
        """Return how devices and links are shared where they have queues; None where they have none."""
        return None

    @property
    def call_limit(self) -> int | None:
        """Return how often each accelerator may be called; None where calls are not counted."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialModel(ExecutionModel):
    """One sub-graph after another, as HETERO runs them."""

    kind: ClassVar[str] = "sequential"
    additive: ClassVar[bool] = True
    anonymous: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineModel(ExecutionModel):
    """Inference after inference on all devices at once: the largest load of a device is the time per inference.

    contiguity, passes: see `StageRules`.
    """

    kind: ClassVar[str] = "pipelined"
    anonymous: ClassVar[bool] = True
    cheap_moves: ClassVar[bool] = True
    contiguity: Contiguity = "free"
    passes: Passes = "together"

    @property
    def stage_rules(self) -> StageRules:
        """Return what counts."""
        return StageRules(self.contiguity, self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel(ExecutionModel):
    """One inference, in which accelerators are called with sets of operations, and CPUs run operations side by side.

    calls: how often each accelerator may be called.
    """

    kind: ClassVar[str] = "latency"
    anonymous: ClassVar[bool] = True
    calls: int = 1

    @property
    def call_limit(self) -> int:
        """Return how often each accelerator may be called."""
        return self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsModel(LatencyModel):
    """The same with several calls of every accelerator: priorities say which call an operation belongs to."""

    ordered: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DataflowModel(ExecutionModel):
    """Devices and links that work at the same time, with a queue each.

    level: "T0": links without contention; "T1": a device sends one tensor at a time, once for all its readers; "T2": a
    device sends and receives one tensor at a time, once per reading device. block_s, gap_s: see `QueueRules`.
    """

    kind: ClassVar[str] = "listsched"
    concurrent: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    activations: ClassVar[bool] = True
    level: Level = "T2"
    block_s: float = 0.0
    gap_s: float = 0.0

    @property
    def contention(self) -> int:
        """Return the level as a number: T0, T1 or T2."""
        return LEVELS.index(self.level)

    @property
    def queue_rules(self) -> QueueRules:
        """Return how its devices and links are shared."""
        return QueueRules(self.contention, float(self.block_s), float(self.gap_s))


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What b placements cost.

    value_s: float64 [b], seconds; inf where a device does not support an operation.
    over_bytes: int64 [b], bytes by which memory is exceeded, summed over devices; 0 fits.
    busy_s: float64 [b, p], seconds each device computes. peak_bytes: int64 [b, p], the most each device holds.
    cut_bytes: int64 [b], bytes sent between devices.
    """

    value_s: Float64
    over_bytes: Int64
    busy_s: Float64
    peak_bytes: Int64
    cut_bytes: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """r changes to a placement of n nodes, to be tried one after another.

    ptr: int64 [r + 1], node: int32 [ptr[r]]: move i changes the nodes node[ptr[i]:ptr[i + 1]], each named once.
    device: int32 [r], where they go; -1 leaves them where they are.
    like: int32 [r], a node to whose device they go instead, as it is when the move is tried; -1 for none.
    shift: float64 [r], added to their priorities, if the placement has any; 0 leaves them.
    threshold_s: float64 [r], how much slower than the placement it changes a move may make it and still be taken.
    back: int64 [r], in [ptr[i], ptr[i + 1]]: if a move sends nodes anywhere, those from node[back[i]] on go where its
    first node was instead, so that two sets of nodes swap devices. Left out: all nodes of a move go one way.
    price_s_per_byte: what a byte beyond the memory counts as in seconds, so that a local search may pass through
    placements that do not fit; inf: less excess is worth any time. bounded: whether nobody asks what moves cost that
    are not taken; a simulator may then say inf of them, which saves it the rest of a run once it is certain to take too
    long.
    """

    ptr: Int64
    node: Int32
    device: Int32
    like: Int32
    shift: Float64
    threshold_s: Float64
    back: Int64 = field(default_factory=lambda: NO_SWAPS)
    price_s_per_byte: float = math.inf
    bounded: bool = False

    def __post_init__(self) -> None:
        put, r = object.__setattr__, int(np.size(self.device))
        put(self, "ptr", frozen(self.ptr, np.int64, (r + 1,), "ptr"))
        put(self, "back", frozen(self.back if np.size(self.back) else self.ptr[1:], np.int64, (r,), "back"))
        put(self, "node", frozen(self.node, np.int32, (int(self.ptr[-1]),), "node"))
        for name, dtype in (
            ("device", np.int32),
            ("like", np.int32),
            ("shift", np.float64),
            ("threshold_s", np.float64),
        ):
            put(self, name, frozen(getattr(self, name), dtype, (r,), name))
        if np.any(np.isnan(self.threshold_s)):
            raise ValueError("threshold_s must not be NaN")
        if np.any(self.back < self.ptr[:-1]) or np.any(self.back > self.ptr[1:]):
            raise ValueError("back must lie within the nodes of its move")
        if not self.price_s_per_byte >= 0:
            raise ValueError(f"price_s_per_byte must be at least 0, is {self.price_s_per_byte}")

    @property
    def r(self) -> int:
        """Return the number of moves."""
        return int(self.device.size)

    @classmethod
    def single(cls, node: Int32, device: Int32, threshold_s: Float64) -> Moves:
        """Return moves of one node each to one device each; all three [r]."""
        r = np.size(node)
        none = np.full(r, -1, np.int32)
        return cls(np.arange(r + 1), node, device, none, np.zeros(r), threshold_s)

    @classmethod
    def made(  # noqa: PLR0913  what arrays there are has names
        cls,
        ptr: Int64,
        node: Int32,
        device: Int32,
        like: Int32,
        shift: Float64,
        back: Int64,
        threshold_s: Float64,
        *,
        price_s_per_byte: float = math.inf,
        bounded: bool = False,
    ) -> Moves:
        """Return moves of arrays that are as said above and that nobody else writes to; they become read-only.

        Nothing is checked or copied: for what draws a few moves at a time, and takes less time than the checks would.
        """
        moves, put = object.__new__(cls), object.__setattr__
        arrays: dict[str, npt.NDArray[Any]] = {
            "ptr": ptr,
            "node": node,
            "device": device,
            "like": like,
            "shift": shift,
            "back": back,
            "threshold_s": threshold_s,
        }
        for name, array in arrays.items():
            array.setflags(write=False)
            put(moves, name, array)
        put(moves, "price_s_per_byte", price_s_per_byte)
        put(moves, "bounded", bounded)
        return moves

    def applied(self, i: int, placement: Placement) -> Placement:
        """Return the placement that move i makes of another."""
        nodes = self.node[self.ptr[i] : self.ptr[i + 1]]
        target = placement.device[self.like[i]] if self.like[i] >= 0 else self.device[i]
        device, priority = placement.device.copy(), placement.priority
        if target >= 0:
            turned = int(self.back[i] - self.ptr[i])
            device[nodes[:turned]] = target
            device[nodes[turned:]] = placement.device[nodes[:1]]
        if priority is not None and self.shift[i] != 0:
            priority = priority.copy()
            priority[nodes] += self.shift[i]
        return Placement(device, placement.devices, priority)


@dataclass(frozen=True, slots=True, eq=False)
class LocalSearch:
    """Where r moves led.

    A move that would change nothing, or put a node where it is not allowed, is skipped and costs no evaluation. A
    move is taken if its time and the price of what exceeds memory are together at most `threshold_s` more than those
    of the placement it changes; at a price of inf, if it exceeds memory less, or as much and its time is at most
    `threshold_s` longer.

    tried: bool [r], the moves that were evaluated; those behind the last within the limit were not.
    value_s: float64 [r], what each tried move would cost; nan for others; inf if it exceeds memory, and perhaps if it
    was not taken and the moves are `bounded`.
    taken: bool [r]. end: the placement after the last move, end_s its seconds. best: the best placement met, the start
    and moves not taken included, best_s its seconds; inf if all exceed memory.
    """

    tried: Bool
    value_s: Float64
    taken: Bool
    end: Placement
    end_s: float
    best: Placement
    best_s: float

    @property
    def evaluations(self) -> int:
        """Return how many moves were evaluated."""
        return int(self.tried.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When everything happens under one placement.

    start_s, end_s: float64 [n], of each operation. device: int32 [n].
    sent: int32 [t], the operation whose output each of t transfers carries; source, target: int32 [t], devices;
    sent_start_s, sent_end_s: float64 [t]; sent_bytes: int64 [t].
    value_s: seconds of the whole.
    """

    names: tuple[str, ...]
    devices: tuple[str, ...]
    device: Int32
    start_s: Float64
    end_s: Float64
    sent: Int32
    source: Int32
    target: Int32
    sent_start_s: Float64
    sent_end_s: Float64
    sent_bytes: Int64
    value_s: float
    t: int = field(init=False)

    def __post_init__(self) -> None:
        put, n = object.__setattr__, len(self.names)
        put(self, "t", int(np.size(self.sent)))
        put(self, "device", frozen_indices(self.device, (n,), len(self.devices), "device"))
        put(self, "sent", frozen_indices(self.sent, (None,), max(n, 1), "sent"))
        for name in ("source", "target"):
            put(self, name, frozen_indices(getattr(self, name), (self.t,), len(self.devices), name))
        put(self, "sent_bytes", frozen(self.sent_bytes, np.int64, (self.t,), "sent_bytes"))
        for name, length in (("start_s", n), ("end_s", n), ("sent_start_s", self.t), ("sent_end_s", self.t)):
            put(self, name, frozen(getattr(self, name), np.float64, (length,), name))
