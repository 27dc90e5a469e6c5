"""Whether it is worth placing a model over several devices: what lower bounds say before anything is searched."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar, cast

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.arrays import Bool, Float64
from pipeline.core.devices import Topology
from pipeline.core.figures import bound_text, finite_or_none, times_as_fast
from pipeline.core.problem import Problem
from pipeline.core.settings import WORTH_LEAST, WORTH_S
from pipeline.core.simulation import ExecutionModel
from pipeline.core.stages import Simulator
from pipeline.shared.graphs import edge_depths

PARTS = 8  # of about equal work, in topological order, one of which is what a bound rests on most
BASE = 0.4  # of the seconds, for the machine as it is
QUESTIONS = 30  # among which the rest of the seconds is shared
FALLS = 1e-6  # share by which a bound falls, or does not
LINKS, MEMORY = "all links twice as fast", "memory half as large"

T = TypeVar("T")


class PartRecord(TypedDict):
    """The part of the model that a bound rests on most: `fall` is the share it falls by if the part took no time.

    first, last: names of operations, of those that come first and last.
    """

    first: str
    last: str
    operations: int
    fall: float


class LinkRecord(TypedDict):
    """The link that a bound rests on most: `fall` is the share it falls by if the link were twice as fast."""

    source: str
    target: str
    fall: float


class RestsOnRecord(TypedDict):
    """What a bound rests on; None where nothing of the kind lowers it."""

    part: PartRecord | None
    link: LinkRecord | None


class WhatIfRecord(TypedDict):
    """What holds of a machine that differs in one thing; docs/worth.md says what the keys mean."""

    change: str
    feasible: bool
    lower_bound_s: float | None
    bound_by: str
    most_gain: float | None
    fall: float
    single_fits: bool


class SingleRecord(TypedDict):
    """The best device alone."""

    device: str
    value_s: float


class WorthFigures(TypedDict):
    """What is proven of all placements; docs/worth.md says what the keys mean."""

    single: SingleRecord | None
    singles: dict[str, float | None]
    lower_bound_s: float
    bound_by: str
    most_gain: float | None
    least: float
    worth: bool | None
    rests_on: RestsOnRecord
    what_if: list[WhatIfRecord]
    asked_all: bool
    seconds: float
    verdict: str


class WorthRecord(WorthFigures):
    """The answer of worth."""

    schema: Literal["placewright.worth/1"]
    graph: str
    topology: str
    evaluator: str
    operations: int
    edges: int
    devices: list[str]
    costs: dict[str, str]


class MachineChange(NamedTuple):
    """A machine that differs in one thing. fits: whether weights are not proven to exceed its memory."""

    name: str
    problem: Problem
    fits: bool = True


def judge_worth(
    problem: Problem, simulator: Simulator, *, least: float = WORTH_LEAST, seconds: float = WORTH_S
) -> WorthFigures:
    """Return by how much a placement can beat the best single device at most, what that rests on, and what-if prices.

    problem: its nodes are the simulator's operations. least: the share that counts as worth it. seconds: for all of it;
    questions for which they do not last are left out, and `asked_all` says so.
    """
    begun, names = time.monotonic(), problem.topology.names
    alone_s = single_seconds(problem, simulator)
    best = int(alone_s.argmin())
    single_s = float(alone_s[best])
    bound_s, by = proven_bound(problem, simulator.execution, BASE * seconds)
    rest_s = (1 - BASE) * seconds  # from here on: the first bound has loaded the kernels, or compiled them
    questions = Questions(problem, simulator.execution, rest_s / QUESTIONS, time.monotonic() + rest_s)
    what_if: list[WhatIfRecord] = []
    for change in questions.in_time(changed_machines(problem, memory=simulator.execution.memory)):
        changed_s, changed_by = questions.bound(change.problem) if change.fits else (math.inf, "")
        if change.name == MEMORY and changed_s < bound_s:  # whatever fits there fits here, and takes as long
            changed_s, changed_by = bound_s, by
        room = change.problem.topology.devices[best].memory_bytes
        what_if.append(
            {
                "change": change.name,
                "feasible": change.fits,
                "lower_bound_s": finite_or_none(changed_s),
                "bound_by": changed_by,
                "most_gain": finite_or_none(most_gain(single_s, changed_s)) if change.fits else None,
                "fall": questions.fall(change.problem) if change.fits else 0.0,
                "single_fits": not room or alone_bytes(problem, simulator, best) <= room,
            }
        )
    on_links = any(row["change"] == LINKS and row["fall"] > FALLS for row in what_if)
    alone = math.isfinite(single_s)
    gain = most_gain(single_s, bound_s) if alone else math.inf
    figures: WorthFigures = {
        "single": {"device": names[best], "value_s": single_s} if alone else None,
        "singles": {name: finite_or_none(float(s)) for name, s in zip(names, alone_s, strict=True)},
        "lower_bound_s": bound_s,
        "bound_by": by,
        "most_gain": finite_or_none(gain),
        "least": least,
        "worth": gain > least if alone else None,
        "rests_on": {"part": questions.part(), "link": questions.link() if on_links else None},
        "what_if": what_if,
        "asked_all": not questions.left_out,
        "seconds": time.monotonic() - begun,
        "verdict": "",
    }
    return {**figures, "verdict": verdict_text(figures)}


class Questions:
    """Questions about machines like one, each with the same seconds: falls are told between bounds that took as long.

    left_out: whether the time did not last for one.
    """

    def __init__(self, problem: Problem, execution: ExecutionModel, each_s: float, until: float) -> None:
        self._problem, self._execution, self._each_s, self._until = problem, execution, each_s, until
        self._base_s, _ = self.bound(problem)
        self.left_out = False

    def in_time(self, asked: Iterable[T]) -> Iterator[T]:
        """Yield what is asked as long as there is time."""
        for each in asked:
            if time.monotonic() >= self._until:
                self.left_out = True
                return
            yield each

    def bound(self, problem: Problem) -> tuple[float, str]:
        """Return the bound of a machine."""
        return proven_bound(problem, self._execution, self._each_s)

    def fall(self, changed: Problem) -> float:
        """Return the share by which a change lowers the bound."""
        return max(0.0, 1.0 - self.bound(changed)[0] / self._base_s) if self._base_s > 0 else 0.0

    def part(self) -> PartRecord | None:
        """Return the part of the model that the bound rests on most."""
        most: PartRecord | None = None
        for operations in self.in_time(parts_in_order(self._problem)):
            fall = self.fall(without_time(self._problem, operations))
            if fall > max(FALLS, most["fall"] if most else 0.0):
                first, last = (self._problem.graph.names[i] for i in (operations[0], operations[-1]))
                most = {"first": first, "last": last, "operations": int(operations.size), "fall": fall}
        return most

    def link(self) -> LinkRecord | None:
        """Return the link, both ways, that the bound rests on most."""
        topology, most = self._problem.topology, cast(LinkRecord | None, None)
        for d, e in self.in_time(zip(*np.triu_indices(topology.p, 1), strict=True)):
            faster = np.zeros((topology.p, topology.p), bool)
            faster[d, e] = faster[e, d] = True
            fall = self.fall(self._problem.on(topology=with_faster_links(topology, faster)))
            if fall > max(FALLS, most["fall"] if most else 0.0):
                most = {"source": topology.names[d], "target": topology.names[e], "fall": fall}
        return most


def split_may_pay(problem: Problem, simulator: Simulator, seconds: float, *, least: float = WORTH_LEAST) -> bool:
    """Return whether it is open that a placement beats the best single device by more than `least`.

    seconds: for proving that it does not.
    """
    single_s = float(single_seconds(problem, simulator).min())
    bound_s, _ = proven_bound(problem, simulator.execution, seconds)
    return not math.isfinite(single_s) or most_gain(single_s, bound_s) > least


def most_gain(single_s: float, bound_s: float) -> float:
    """Return the share by which a placement may be faster than a single device; inf where nothing is proven.

    >>> round(most_gain(0.107, 0.1), 9), most_gain(1.0, 0.0)
    (0.07, inf)
    """
    return max(0.0, times_as_fast(bound_s, single_s) - 1.0) if bound_s > 0 else math.inf


def proven_bound(problem: Problem, execution: ExecutionModel, seconds: float) -> tuple[float, str]:
    """Return (seconds that no placement of a problem's operations falls below, what proves it)."""
    from policy.place.exact.shared.proofs import lower_bound

    return lower_bound(problem, execution, seconds=seconds, one_to_one=True)


def single_seconds(problem: Problem, simulator: Simulator) -> Float64:
    """Return float64 [p], what all operations on one device take; inf where it does not run or hold them all."""
    n, p = problem.graph.n, problem.topology.p
    found = simulator.simulate(np.repeat(np.arange(p, dtype=np.int32)[:, None], n, axis=1))
    runs = problem.allowed.all(axis=0) & (found.over_bytes == 0)
    alone_s: Float64 = np.where(runs, found.value_s, math.inf)
    return alone_s


def alone_bytes(problem: Problem, simulator: Simulator, device: int) -> int:
    """Return the most bytes that a device holds at a time if it runs everything."""
    everything = np.full((1, problem.graph.n), device, np.int32)
    return int(simulator.simulate(everything).peak_bytes[0, device])


def changed_machines(problem: Problem, *, memory: bool) -> Iterator[MachineChange]:
    """Yield the machines that what-if prices are told of; memory: whether it limits anything."""
    topology, p = problem.topology, problem.topology.p
    if p > 1:
        everywhere = np.ones((p, p), bool)
        yield MachineChange(LINKS, problem.on(topology=with_faster_links(topology, everywhere)))
        unlike = [d for d in range(p) if not any(problem.alike(d, other) for other in range(d))]
        for d in unlike:
            yield MachineChange(f"one {topology.names[d]} more", with_copy(problem, d))
    if memory and any(device.memory_bytes for device in topology.devices):
        halved = tuple(replace(device, memory_bytes=device.memory_bytes // 2) for device in topology.devices)
        room = sum(device.memory_bytes if device.memory_bytes else math.inf for device in halved)
        fits = int(problem.graph.weight_bytes.sum()) <= room
        yield MachineChange(MEMORY, problem.on(topology=replace(topology, devices=halved)), fits)


def with_faster_links(topology: Topology, faster: Bool) -> Topology:
    """Return the topology with the links bool [p, p] twice as fast: half the latency, twice the bandwidth."""
    factor = np.where(faster, 2.0, 1.0)
    return replace(
        topology,
        link_bytes_per_s=topology.link_bytes_per_s * factor,
        link_latency_s=topology.link_latency_s / factor,
    )


def with_copy(problem: Problem, device: int) -> Problem:
    """Return the problem with one device more: a copy of one, with its links, the fastest of them between the two."""
    topology, costs = problem.topology, problem.costs
    if costs is None:
        raise ValueError("a problem without costs")
    p = topology.p
    others = np.arange(p) != device

    def joined(links: Float64, between: float) -> Float64:
        rows = np.r_[np.arange(p), device]
        wide: Float64 = links[np.ix_(rows, rows)]
        wide[device, p] = wide[p, device] = between
        return wide

    devices = topology.devices
    copy = replace(devices[device], name=f"{devices[device].name}+")
    bytes_per_s, latency_s = topology.link_bytes_per_s, topology.link_latency_s
    fastest = max(bytes_per_s[device, others].max(), bytes_per_s[others, device].max())
    soonest = min(latency_s[device, others].min(), latency_s[others, device].min())
    wider = Topology((*devices, copy), joined(bytes_per_s, fastest), joined(latency_s, soonest))
    op_s, launch_s = np.c_[costs.op_s, costs.op_s[:, device]], np.r_[costs.launch_s, costs.launch_s[device]]
    more = replace(
        costs, devices=wider.names, op_s=op_s, launch_s=launch_s, origin=(*costs.origin, costs.origin[device])
    )
    return problem.on(topology=wider, costs=more, allowed=np.c_[problem.allowed, problem.allowed[:, device]])


def parts_in_order(problem: Problem) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the operations in PARTS parts of about equal work, or fewer, producers before consumers; int64 each."""
    least_s = least_seconds(problem)
    order = np.argsort(edge_depths(problem.graph), kind="stable")
    done = np.cumsum(least_s[order])
    if not done.size or done[-1] == 0:
        return []
    part = np.minimum((done - least_s[order] / 2) / done[-1] * PARTS, PARTS - 1).astype(int)
    return [order[part == i] for i in range(PARTS) if np.any(part == i)]


def least_seconds(problem: Problem) -> Float64:
    """Return float64 [n], what each operation takes on the device that suits it best."""
    if problem.costs is None:
        raise ValueError("a problem without costs")
    least_s: Float64 = np.where(problem.allowed, problem.costs.op_s, math.inf).min(axis=1)
    return least_s


def without_time(problem: Problem, operations: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Problem:
    """Return the problem in which operations take no time, wherever they may run."""
    if problem.costs is None:
        raise ValueError("a problem without costs")
    op_s = problem.costs.op_s.copy()
    op_s[operations] = np.where(np.isfinite(op_s[operations]), 0.0, math.inf)
    return problem.on(costs=replace(problem.costs, op_s=op_s))


def percent_text(share: float) -> str:
    """Return a share that nothing exceeds as people read it, rounded up: what is said is proven as well.

    >>> percent_text(0.07), percent_text(0.0701), percent_text(1.5)
    ('7 %', '7.1 %', '150 %')
    """
    tenths = math.ceil(1000 * (share - FALLS))
    return f"{tenths / 10:g} %" if tenths < 1000 else f"{math.ceil(tenths / 10)} %"


def verdict_text(figures: WorthFigures) -> str:
    """Return in one sentence what is proven."""
    single, gain = figures["single"], figures["most_gain"]
    if single is None:
        bound = f"; no placement takes less than {figures['lower_bound_s'] * 1e3:.4g} ms (proven)"
        return f"No device alone runs and holds the model{bound if figures['lower_bound_s'] > 0 else ''}."
    if gain is None:
        return f"Nothing is proven: how far a placement can beat {single['device']} alone is open."
    if gain < FALLS:
        return f"{single['device']} alone is optimal: no placement on this machine is faster (proven)."
    return f"No placement on this machine can beat {single['device']} alone by more than {percent_text(gain)} (proven)."


def worth_sentences(figures: WorthFigures) -> list[str]:
    """Return what is proven, and what it rests on, as people read it."""
    lines, single, rests = [figures["verdict"]], figures["single"], figures["rests_on"]
    if figures["lower_bound_s"] <= 0:
        return lines
    alone = f"; {single['device']} alone takes {single['value_s'] * 1e3:.4g} ms" if single else ""
    lines.append(f"The {bound_text(figures['bound_by'])} is {figures['lower_bound_s'] * 1e3:.4g} ms{alone}.")
    if part := rests["part"]:
        lines.append(
            f"It rests most on {part['operations']} operations, {part['first']} to {part['last']}: "
            f"if they took no time it would be {100 * part['fall']:.1f} % less."
        )
    whole = next((row["fall"] for row in figures["what_if"] if row["change"] == LINKS), 0.0)
    if link := rests["link"]:
        lines.append(
            f"It rests on the link {link['source']} - {link['target']}: twice as fast, {100 * link['fall']:.1f} % less."
        )
    elif whole > FALLS:
        lines.append(f"It rests on no single link; with all twice as fast it would be {100 * whole:.1f} % less.")
    elif figures["asked_all"] and len(figures["singles"]) > 1:
        lines.append("It rests on no link: faster ones do not lower it.")
    if not figures["asked_all"]:
        lines.append("The time did not last for all questions; give more with --seconds.")
    return lines
