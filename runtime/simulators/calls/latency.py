"""A simulator of one inference in which accelerators are called with sets of operations."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable
from pipeline.core.errors import UsageError, list_some
from pipeline.core.graph import adjacency, topological_order
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement, check_size
from pipeline.core.simulation import CallsModel, LatencyModel, LocalSearch, Moves, Simulation, Timeline
from pipeline.core.stages import Subject
from pipeline.shared.contiguity import backward_operations
from runtime.simulators.calls import kernels
from runtime.simulators.shared.local_search import changes_of, local_search_of, new_trace
from runtime.simulators.shared.simulated import (
    Nodes,
    SentTensors,
    batches,
    digest,
    known_costs,
    over_bytes,
    owned,
    pieces,
    running_s,
)


@dataclass(frozen=True, slots=True)
class SingleInference:
    """Predicts the latency of one inference where accelerators are called with sets of operations.

    An operation on a device of kind "cpu" starts when all it reads is there, whatever else runs. What lies on an
    accelerator is one call: it starts when all that it reads from elsewhere is there, and all its results are there
    when it ends. It takes the times of its operations, one after another, and for every net (a tensor's maker and those
    who read it) that it holds partly, the tensor's time over the accelerator's slowest link. The whole takes until the
    last operation has ended. Placements in which calls wait for one another are refused.

    With `calls` above 1 every accelerator may be called so often, one call after another. Priorities say in which call
    an operation is: those below 1 in the first, those from 1 to below 2 in the second, and so on, all others in the
    last. Without priorities each accelerator is called once. Weights count against memory, over all calls together.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (2020), section 4.2; as
    there, the number of CPUs does not matter.
    """

    version: ClassVar[int] = 1
    real: ClassVar[bool] = False
    memory: bool = param(True, "refuse placements whose weights exceed the memory of a device, where it is known")
    calls: int = param(1, "how often each accelerator may be called")

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise UsageError(f"Accelerators may be called {self.calls} times.", "Use 1 call or more.")

    @property
    def execution(self) -> LatencyModel:
        """Return the rules it follows."""
        model = LatencyModel if self.calls == 1 else CallsModel
        return model(memory=self.memory, calls=self.calls)

    def bind(self, subject: Subject) -> LatencyEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the subject has no cost table, or operations of a backward pass.
        """
        backward = np.flatnonzero(backward_operations(subject.graph))
        if backward.size:
            raise UsageError(
                f"One inference has no backward pass: {list_some([subject.graph.names[i] for i in backward])}.",
                "Give a graph of inference, or use --objective max-load.",
            )
        return LatencyEvaluator(subject, known_costs(subject, "latency"), self.execution)


class LatencyEvaluator:
    """Evaluates placements of one subject's nodes."""

    version: ClassVar[int] = SingleInference.version

    def __init__(self, subject: Subject, costs: CostTable, execution: LatencyModel) -> None:
        self.evaluations = 0
        self.execution = execution
        self._subject, self._costs = subject, costs
        self._nodes = Nodes.of(subject, costs, memory=execution.memory)
        self._nets = SentTensors.of(subject.graph, np.arange(subject.graph.n, dtype=np.int32))
        out_ptr, reader = adjacency(subject.graph)
        self._machine = kernels.LatencyMachine(
            op_s=owned(costs.op_s),
            node=owned(subject.grouping.group),
            weight_bytes=owned(self._nodes.weight_bytes),
            capacity_bytes=owned(self._nodes.capacity_bytes),
            cpu=np.array([device.kind == "cpu" for device in subject.topology.devices]),
            ptr=self._nets.ptr,
            member=self._nets.member,
            size=self._nets.size,
            pay_s=subject.topology.slowest_link_s(self._nets.size),
            out_ptr=owned(out_ptr),
            reader=owned(reader),
            calls=execution.calls,
        )

    def fork(self) -> LatencyEvaluator:
        """Return a simulator of the same subject for another thread; see the Protocol."""
        twin = copy.copy(self)  # what it is made of never changes
        twin.evaluations = 0
        return twin

    def absorb(self, evaluations: int) -> None:
        """Count what a fork has evaluated."""
        self.evaluations += evaluations

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs, the devices, the nets and the rules."""
        return digest("latency", *self._machine[:-1], str(self._machine.calls))

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        """Return what b placements cost: device int32 [b, k], priority float64 [b, k] or None.

        busy_s is what the calls of an accelerator take, transfers included, and what a CPU computes.
        """
        check_size(device.shape[1], len(self._nodes.names))
        b, p = len(device), len(self._nodes.devices)
        self.evaluations += b
        figures = kernels.LatencyFigures(
            np.empty(b), np.empty((b, p), np.int64), np.empty((b, p)), np.empty(b, np.int64)
        )
        orders = np.zeros(device.shape) if priority is None else owned(priority)
        kernels.simulate(
            self._machine, kernels.blank(self._machine), np.array(device, np.int32, order="C"), orders, figures
        )
        over = over_bytes(figures.held_bytes, self._nodes.capacity_bytes)
        return Simulation(figures.value_s, over, figures.busy_s, figures.held_bytes, figures.sent_bytes)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return the predicted latency of each placement, or why the devices cannot run it."""
        self._nodes.check(placements)
        answers: dict[int, Evaluation] = {}
        edges, group = self._subject.graph.edges, self._subject.grouping.group
        for rows, device, priority in batches(placements):
            simulation = self.simulate(device, priority)
            for at, i in enumerate(rows):
                used = np.bincount(device[at], minlength=len(self._nodes.devices)) > 0
                count = pieces(edges, device[at][group])
                value_s, held = float(simulation.value_s[at]), simulation.peak_bytes[at]
                waits = self._waiting(device[at], value_s)
                answers[i] = waits or self._nodes.answer(placements[i], value_s, held, used, count)
        return [answers[i] for i in range(len(placements))]

    def _waiting(self, device: Int32, value_s: float) -> MeasurementFailed | None:
        supported = np.isfinite(self._nodes.op_s[np.arange(device.size), device]).all()
        if np.isfinite(value_s) or not supported:
            return None
        return MeasurementFailed("refused", "calls of accelerators wait for one another")

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from a placement; see the Protocol."""
        self._nodes.check([start])
        ordered = start.priority is not None
        state, trace = kernels.blank(self._machine), new_trace(moves, start)
        if start.priority is not None:
            state.order[:] = start.priority
        kernels.local_search(self._machine, state, trace, changes_of(moves), owned(allowed), limit, ordered)
        local_search = local_search_of(start, moves, trace, state.device)
        self.evaluations += local_search.evaluations
        return local_search

    def timeline(self, placement: Placement) -> Timeline:
        """Return when each operation runs; in a call, what is received comes first, and what is sent last.

        A net is told once for every call that pays for it: by one that reads it as a transfer from the net's source, by
        the source's as one to the first other device that reads it.

        Raises:
            UsageError: the placement puts an operation where it is not supported, or calls wait for one another.
        """
        self._nodes.check([placement])
        graph, machine = self._subject.graph, self._machine
        took_s = running_s(self._subject, self._costs, placement)
        self.evaluations += 1
        state = kernels.blank(machine)
        order = np.zeros(state.device.size) if placement.priority is None else owned(placement.priority)
        value_s = kernels.run(machine, state, owned(placement.device), order)
        if not np.isfinite(value_s):
            raise UsageError("The calls of accelerators form a cycle.", "Simulate the placement first.")
        device = placement.device[self._subject.grouping.group]
        paid = PaidByCalls.of(self._nets, machine.pay_s, state.block, device)
        free_s = state.start_s.copy()  # [blocks], until when each block is busy so far
        sent_start_s = np.zeros(paid.seconds.size)

        def send(which: Int64) -> None:
            for x in which.tolist():
                sent_start_s[x] = free_s[paid.block[x]]
                free_s[paid.block[x]] += paid.seconds[x]

        send(np.flatnonzero(paid.receives))
        start_s = np.zeros(graph.n)
        for i in topological_order(graph).tolist():
            start_s[i] = free_s[state.block[i]]
            free_s[state.block[i]] += took_s[i]
        send(np.flatnonzero(~paid.receives))
        return Timeline(
            names=graph.names,
            devices=self._subject.topology.names,
            device=device,
            start_s=start_s,
            end_s=start_s + took_s,
            sent=paid.maker,
            source=paid.source,
            target=paid.target,
            sent_start_s=sent_start_s,
            sent_end_s=sent_start_s + paid.seconds,
            sent_bytes=paid.size,
            value_s=value_s,
        )


class PaidByCalls(NamedTuple):
    """What calls pay under one placement, one entry per net and call; see `LatencyEvaluator.timeline`.

    maker, source, target: int32 [c]. size: int64 [c], bytes. seconds: float64 [c]. block: int64 [c], the call.
    receives: bool [c], whether the call reads the net and does not make it.
    """

    maker: Int32
    source: Int32
    target: Int32
    size: Int64
    seconds: Float64
    block: Int64
    receives: Bool

    @classmethod
    def of(cls, nets: SentTensors, pay_s: Float64, block: Int64, device: Int32) -> PaidByCalls:
        """Return what is paid for pay_s float64 [t, p] by blocks int64 [n] of operations on devices int32 [n]."""
        rows = []
        for i, maker in enumerate(nets.maker.tolist()):
            members = nets.member[nets.ptr[i] : nets.ptr[i + 1]]
            for called in np.unique(block[members[block[members] >= device.size]]).tolist():
                others = members[block[members] != called]
                if others.size:
                    d = device[members[block[members] == called][0]]
                    receives = block[maker] != called
                    target = d if receives else device[others[0]]
                    rows.append((i, device[maker], target, pay_s[i, d], called, receives))
        net, source, target, seconds, called, receives = np.array(rows).reshape(-1, 6).T
        which = net.astype(np.int64)
        ends = source.astype(np.int32), target.astype(np.int32)
        return cls(nets.maker[which], *ends, nets.size[which], seconds, called.astype(np.int64), receives == 1)
