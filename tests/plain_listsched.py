"""The event simulator of `listsched` once more, in plain Python: a calendar of events, memory from intervals."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.devices import Topology
from pipeline.core.graph import Graph
from pipeline.core.simulation import ExecutionModel

RELEASE, BUS, DEVICE = range(3)  # at one moment ends come first, then arrivals, then starts


@dataclass
class Run:
    """What one placement gave: seconds of the whole, of every operation, and every transfer."""

    value_s: float = 0.0
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    sent: list[tuple[int, int, float, float, float]] = field(default_factory=list)  # maker, target, start, over, bytes
    peak_bytes: list[float] = field(default_factory=list)


class PlainMachine:
    """One run of one placement; `quirks` as in `ListSched`."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        op_s: np.ndarray,
        execution: ExecutionModel,
        device: list[int],
        priority: list[float] | None,
        *,
        quirks: bool = False,
    ) -> None:
        self.graph, self.topology, self.op_s, self.rules = graph, topology, op_s, execution
        self.device, self.priority, self.quirks = device, priority, quirks
        self.turn = itertools.count()
        self.calendar: list[tuple[float, int, int, tuple]] = []
        self.queue: list[list[tuple]] = [[] for _ in topology.devices]
        self.busy = [False] * topology.p
        self.out_s, self.in_s, self.free_s = ([0.0] * topology.p for _ in range(3))
        self.waiting = graph.in_degree.tolist()
        self.run = Run()
        self.holds: list[tuple[float, int, int, float]] = []  # when, 1 for taking, device, bytes

    def tensors(self, i: int) -> list[tuple[float, list[int]]]:
        """Return the bytes and the readers of an operation's outputs, and of their parts, smallest first."""
        found: dict[tuple[float, int], list[int]] = {}
        for a, b, tensor, size in self.graph.read_rows():
            if a == i:
                if size == 0 and self.quirks:
                    size = int(self.graph.out_bytes[i])
                found.setdefault((float(size), tensor), []).append(b)
        return [(size, readers) for (size, _), readers in sorted(found.items())]

    def at(self, when: float, kind: int, *what: object) -> None:
        heapq.heappush(self.calendar, (when, kind, next(self.turn), what))

    def go(self) -> Run:
        for i in range(self.graph.n):
            if self.waiting[i] == 0:
                self.wait_for_device(i, 0.0)
        while self.calendar:
            when = self.calendar[0][0]
            kind = self.calendar[0][1]
            *_, what = heapq.heappop(self.calendar)
            self.run.value_s = max(self.run.value_s, when)
            if kind == RELEASE and what:
                self.end(what[0], when)
            elif kind == BUS:
                for j in what[0]:
                    self.read(j, when)
            elif kind == DEVICE:
                self.start(what[0], when)
        self.run.peak_bytes = self.peaks()
        return self.run

    def wait_for_device(self, i: int, now: float) -> None:
        d = self.device[i]
        key = (0.0, next(self.turn)) if self.priority is None else (self.priority[i], i)
        heapq.heappush(self.queue[d], (*key, i))
        self.at(max(now, self.free_s[d]), DEVICE, d)

    def start(self, d: int, now: float) -> None:
        if self.busy[d] or now < self.free_s[d] or not self.queue[d]:
            return
        i = heapq.heappop(self.queue[d])[-1]
        cost = float(self.op_s[i, d])
        self.busy[d] = True
        self.run.start_s[i], self.run.end_s[i] = now, now + cost
        blocks = self.rules.block_s if cost > 0 or self.quirks else 0.0
        self.free_s[d] = now + cost + blocks
        self.at(now + cost, RELEASE, i)
        self.at(self.free_s[d], DEVICE, d)

    def end(self, i: int, now: float) -> None:
        d = self.device[i]
        self.busy[d] = False
        for size, readers in self.tensors(i):
            for j in readers:
                if self.device[j] == d:
                    self.read(j, now)
            away = sorted({self.device[j] for j in readers} - {d})
            if not away:
                continue
            shared = max(size / self.topology.link_bytes_per_s[d, e] for e in away)
            begin = max(now, self.out_s[d])
            for e in away:
                over = now + size / self.topology.link_bytes_per_s[d, e]
                if size > 0 and self.rules.level == "T1":
                    over = begin + shared
                    self.out_s[d] = over + self.rules.gap_s
                    self.at(self.out_s[d], RELEASE)
                elif size > 0 and self.rules.level == "T2":
                    begin = max(now, self.out_s[d], self.in_s[e])
                    over = begin + size / self.topology.link_bytes_per_s[d, e]
                    self.out_s[d] = self.in_s[e] = over
                arrives = over + self.topology.link_latency_s[d, e]
                self.run.sent.append((i, e, begin if size > 0 and self.rules.level != "T0" else now, arrives, size))
                self.holds.append((now, 1, e, size))
                self.at(arrives, BUS, [j for j in readers if self.device[j] == e])
        self.at(now, DEVICE, d)

    def read(self, j: int, now: float) -> None:
        self.waiting[j] -= 1
        if self.waiting[j] == 0:
            self.wait_for_device(j, now)

    def peaks(self) -> list[float]:
        """Return the most that every device held, from intervals; bytes given back at a moment are free at once."""
        events = [(when, 1, d, size) for when, _, d, size in self.holds]
        for i in range(self.graph.n):
            d = self.device[i]
            events.append((self.run.start_s[i], 2, d, float(self.graph.out_bytes[i])))
            local = [self.run.end_s[j] for _, js in self.tensors(i) for j in js if self.device[j] == d]
            arrived = [over for maker, _, _, over, _ in self.run.sent if maker == i]
            events.append((max([self.run.end_s[i], *local, *arrived]), 0, d, -float(self.graph.out_bytes[i])))
            for size, readers in self.tensors(i):
                for e in {self.device[j] for j in readers} - {d}:
                    last = max(self.run.end_s[j] for j in readers if self.device[j] == e)
                    events.append((last, 0, e, -size))
        held = np.bincount(self.device, weights=self.graph.weight_bytes, minlength=self.topology.p)
        peak = held.copy()
        for _, _, d, size in sorted(events, key=lambda event: event[:2]):
            held[d] += size
            peak[d] = max(peak[d], held[d])
        return peak.tolist()
