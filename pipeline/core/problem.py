"""What a placer is given: a graph, devices, limits, and how much it may spend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from pipeline.core.arrays import Bool, frozen
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.placement import Placement
from pipeline.core.workload import Tags

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a placer may spend: evaluations, seconds, or both, whichever ends first; None is no limit.

    gap: the share of the best time by which another may still be faster when a search ends before.
    """

    evaluations: int | None = None
    seconds: float | None = None
    gap: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.gap < 1:
            raise UsageError(f"The gap must lie in [0, 1), got {self.gap}.", "Pass for example 1% or 0.01.")
        if self.evaluations is None and self.seconds is None:
            raise UsageError("The budget has no limit.", "Give evaluations, seconds or both.")
        if (self.evaluations is not None and self.evaluations < 1) or (self.seconds is not None and self.seconds <= 0):
            raise UsageError(
                f"The budget is {self.evaluations} evaluations and {self.seconds} seconds.",
                "Give at least one evaluation and more than 0 seconds.",
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a placer has come.

    done, total: evaluations; total is None without a limit. value_s: the best so far. single_s: the best single device;
    nan while none is known. bound_s: what no placement can fall below; 0 while nothing is proven. left_s: seconds left,
    inf without a limit. details: what the placer tells of itself, such as {"entropy": 0.7, "groups": 40.0}; empty for
    most.
    """

    done: int
    total: int | None
    value_s: float
    single_s: float = math.nan
    bound_s: float = 0.0
    left_s: float = math.inf
    details: Mapping[str, float] = field(default_factory=dict)


ProgressHook = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """What is to be placed, and where it may go: what several runs, learners and bounds share.

    graph: its n nodes are placed. topology: the p devices. grouping: the group stage's answer; a placer that learns no
    grouping gives all nodes of a group one device. costs: seconds per node and device, or None where nothing is known.
    allowed: bool [n, p], where each node may go: unsupported operations and pins are False entries. tags: layers and
    time steps, for rules of thumb; never features of a policy.

    What follows from an instance is made once and kept with it: see `Problem.derived`.
    """

    graph: Graph
    topology: Topology
    grouping: Grouping
    costs: CostTable | None
    allowed: Bool
    tags: Tags | None = None
    view: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        n, p = self.graph.n, self.topology.p
        object.__setattr__(self, "allowed", frozen(self.allowed, np.bool_, (n, p), "allowed"))
        if self.grouping.n != n:
            raise ValueError(f"a grouping of {self.grouping.n} nodes does not fit a graph of {n}")
        if self.costs is not None and (self.costs.names, self.costs.devices) != (self.graph.names, self.topology.names):
            raise ValueError("costs must name the operations of the graph and the devices of the topology, in order")
        without_device = np.flatnonzero(~self.allowed.any(axis=1))
        if without_device.size:
            named = ", ".join(self.graph.names[i] for i in without_device[:5])
            raise DeviceError(
                f"No device supports {without_device.size} operation(s): {named}.",
                f"Add a device that supports them; the devices are {', '.join(self.topology.names)}.",
            )


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One run over an instance: what a placer is given.

    start: a placement the answer must not be worse than, or None. start_by: the method that found it.
    policy: what a learning placer needs, or None.
    ordered: whether placements may carry priorities; without, devices run first come, first served.
    """

    instance: Instance
    start: Placement | None = None
    start_by: str = "start"
    policy: PolicyInputs | None = None
    ordered: bool = False

    @property
    def graph(self) -> Graph:
        """Return the graph whose nodes are placed."""
        return self.instance.graph

    @property
    def topology(self) -> Topology:
        """Return the devices."""
        return self.instance.topology

    @property
    def grouping(self) -> Grouping:
        """Return which nodes share a device."""
        return self.instance.grouping

    @property
    def costs(self) -> CostTable | None:
        """Return seconds per node and device, or None where nothing is known."""
        return self.instance.costs

    @property
    def allowed(self) -> Bool:
        """Return bool [n, p], where each node may go."""
        return self.instance.allowed

    @property
    def tags(self) -> Tags | None:
        """Return the layers and time steps of the nodes."""
        return self.instance.tags

    def derived(self, make: Callable[Concatenate[Problem, P], T], /, *args: P.args, **options: P.kwargs) -> T:
        """Return `make(problem, *args, **options)`, made when it is first asked for; nobody may change what it returns.

        Made of the bare instance, and so the same for every run over it: without start, policy and priorities.

        make: a function of the module level, or a method of a class. All that it is given must be hashable.
        """
        view, key = self.instance.view, (make, args, tuple(sorted(options.items())))
        try:
            value: T = view[key]
        except KeyError:  # asked for the first time, or forgotten; of several threads the first one's is kept
            value = view.setdefault(key, make(Problem(self.instance), *args, **options))
        return value

    def on(self, **changes: Any) -> Problem:
        """Return the same run over an instance of which some fields are changed."""
        return replace(self, instance=replace(self.instance, **changes))

    def forget(self) -> None:
        """Let go of all that `derived` has made, which of a large graph fills the memory; it is made again if asked."""
        self.instance.view.clear()

    def group_allowed(self, grouping: Grouping) -> Bool:
        """Return bool [k, p], where a group may go: where all its members may.

        A row without True means the group's members have no device in common.
        """
        return allowed_for_all(self.allowed, grouping)

    def alike(self, device: int, other: int) -> bool:
        """Return whether two devices may run the same nodes in the same times, and hold as much."""
        devices, costs = self.topology.devices, self.costs
        return (
            devices[device].memory_bytes == devices[other].memory_bytes
            and np.array_equal(self.allowed[:, device], self.allowed[:, other])
            and (costs is None or np.array_equal(costs.op_s[:, device], costs.op_s[:, other]))
        )

    def fits(self, placement: Placement) -> bool:
        """Return whether each node's device is allowed and no device must hold more weights than its memory.

        Raises:
            UsageError: it is no placement of these nodes, but of groups of them, or on other devices.
        """
        placement.check(self.graph.n, self.topology.names)
        if not bool(self.allowed[np.arange(self.graph.n), placement.device].all()):
            return False
        held = np.bincount(placement.device, weights=self.graph.weight_bytes, minlength=self.topology.p)
        return all(d.memory_bytes == 0 or b <= d.memory_bytes for d, b in zip(self.topology.devices, held, strict=True))


def allowed_for_all(allowed: Bool, grouping: Grouping) -> Bool:
    """Return bool [k, p], where each group may go if its members may go where bool [n, p] says."""
    together = np.ones((grouping.k, allowed.shape[1]), dtype=bool)
    member, device = np.nonzero(~allowed)
    together[grouping.group[member], device] = False
    return together


def allowed_devices(graph: Graph, topology: Topology, costs: CostTable | None, pins: Mapping[str, str]) -> Bool:
    """Return bool [n, p]: where each operation may go, by the devices' support and by `pins` {operation: device}.

    Raises:
        UsageError: a pin names an operation or a device that is not there.
        DeviceError: a pin names a device that does not support the operation.
    """
    allowed = np.ones((graph.n, topology.p), dtype=bool) if costs is None else costs.supported.copy()
    operation = {name: i for i, name in enumerate(graph.names)}
    device = {name: i for i, name in enumerate(topology.names)}
    unknown = [f"{o} -> {d}" for o, d in pins.items() if o not in operation or d not in device]
    if unknown:
        raise UsageError(
            f"Pins name an unknown operation or device: {', '.join(unknown)}.",
            f"Use names of the model's operations, and of the devices {', '.join(topology.names)}.",
        )
    forbidden = [f"{o} -> {d}" for o, d in pins.items() if not allowed[operation[o], device[d]]]
    if forbidden:
        raise DeviceError(
            f"Pins put operations on devices that do not support them: {', '.join(forbidden)}.",
            "Pin them to other devices, or remove these pins.",
        )
    for o, d in pins.items():
        allowed[operation[o]] = False
        allowed[operation[o], device[d]] = True
    return allowed
