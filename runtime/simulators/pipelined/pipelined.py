"""A simulator of a pipeline in its steady state: the most loaded device sets the pace."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable
from pipeline.core.graph import sum_per_group, topological_order
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement, check_size
from pipeline.core.simulation import LocalSearch, Moves, PipelineModel, Simulation, Timeline
from pipeline.core.stages import Subject
from pipeline.shared.contiguity import FREE, backward_operations, stage_edges
from pipeline.shared.partition import colocation_grouping
from runtime.simulators.pipelined import kernels
from runtime.simulators.shared.local_search import changes_of, local_search_of, new_trace
from runtime.simulators.shared.simulated import (
    Nodes,
    SentTensors,
    digest,
    known_costs,
    over_bytes,
    owned,
    pieces,
    running_s,
)


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Predicts the seconds from one inference to the next when many are under way at once.

        T(P) = max over devices d of: sum_{i on d} op_s[i, d] + sum over nets t that d holds partly: c[t, d]

    The net of a tensor t is who makes it and who reads it. A device that holds part of it but not all either sends or
    receives t, once. Nothing else is waited for: consecutive inferences fill the gaps. Devices of kind "cpu"
    work in host memory, through which all devices exchange tensors, and pay nothing.

    c[t, d] is latency + bytes / bandwidth of the slowest link between d and another device, in either direction, for
    the bytes of t's largest edge; a tensor without bytes costs its latency. Weights count against memory; priorities
    mean nothing.

    Of training, a device works on the backward pass of one batch beside the forward pass of another (1F1B). With
    `passes` apart all work on one pass at a time (GPipe): the largest load of the forward pass and the largest of the
    backward pass add up. A net belongs to the pass of who makes it.

    Where contiguous stages are asked for, all other placements are refused; see `pipeline.shared.contiguity`.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (2020), maximum
    throughput; there every operation has one output, whose c is given and equal on all accelerators.
    """

    version: ClassVar[int] = 2
    real: ClassVar[bool] = False
    memory: bool = param(True, "refuse placements whose weights exceed the memory of a device, where it is known")
    contiguity: Literal["free", "convex", "ordered"] = param(
        "free", "what is asked of stages: free, convex or ordered; others are refused"
    )
    passes: Literal["together", "apart"] = param("together", "of training: the passes' largest loads, or their sum")

    @property
    def execution(self) -> PipelineModel:
        """Return the rules it follows."""
        return PipelineModel(memory=self.memory, contiguity=self.contiguity, passes=self.passes)

    def bind(self, subject: Subject) -> PipelinedEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the subject has no cost table.
        """
        return PipelinedEvaluator(subject, known_costs(subject, "pipelined"), self.execution)


class PipelinedEvaluator:
    """Evaluates placements of one subject's nodes."""

    version: ClassVar[int] = Pipelined.version

    def __init__(self, subject: Subject, costs: CostTable, execution: PipelineModel) -> None:
        self.evaluations = 0
        self.execution = execution
        self._subject, self._costs = subject, costs
        self._nodes = Nodes.of(subject, costs, memory=execution.memory)
        self._nets = SentTensors.of(subject.graph, subject.grouping.group)
        nets = self._nets
        in_ptr, net = nets.by_node(len(self._nodes.names))
        graph, grouping = self._subject.graph, self._subject.grouping
        op_s, back_s = owned(self._nodes.op_s), np.zeros((0, len(self._nodes.devices)))
        backward = backward_operations(graph) & (self.execution.passes == "apart")
        if backward.any():
            own_s = self._costs.op_s
            op_s, back_s = (
                sum_per_group(np.where(mine[:, None], own_s, 0.0), grouping) for mine in (~backward, backward)
            )
        self._machine = kernels.PipelinedMachine(
            op_s=op_s,
            back_s=back_s,
            back=backward[nets.maker].astype(np.int64),
            weight_bytes=owned(self._nodes.weight_bytes),
            capacity_bytes=owned(self._nodes.capacity_bytes),
            ptr=nets.ptr,
            member=nets.member,
            size=nets.size,
            pay_s=self._subject.topology.slowest_link_s(nets.size),
            in_ptr=in_ptr,
            net=net,
            stages=stage_edges(
                graph,
                grouping,
                colocation_grouping(graph),
                self.execution.contiguity,
            ),
        )

    def fork(self) -> PipelinedEvaluator:
        """Return a simulator of the same subject for another thread; see the Protocol."""
        twin = copy.copy(self)  # what it is made of never changes
        twin.evaluations = 0
        return twin

    def absorb(self, evaluations: int) -> None:
        """Count what a fork has evaluated."""
        self.evaluations += evaluations

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs, the devices and the nets."""
        stages = self._machine.stages
        contiguity = () if stages.kind == FREE else (self.execution.contiguity, stages.edges)
        return digest("pipelined", *self._machine[:-1], *contiguity)

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        """Return what b placements cost, device int32 [b, k]; priorities mean nothing.

        busy_s is the load of each device, what it sends and receives included.
        """
        check_size(device.shape[1], len(self._nodes.names))
        self.evaluations += len(device)
        return self._figures(device)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return the predicted seconds between two inferences for each placement, or why the devices cannot run it."""
        self._nodes.check(placements)
        if not placements:
            return []
        devices = np.stack([placement.device for placement in placements])
        simulation = self.simulate(devices)
        used = np.zeros((len(placements), len(self._nodes.devices)), bool)
        np.put_along_axis(used, devices.astype(np.int64), True, axis=1)
        edges, group = self._subject.graph.edges, self._subject.grouping.group
        return [
            self._not_contiguous(placement)
            or self._nodes.answer(placement, float(value_s), held, on, pieces(edges, placement.device[group]))
            for placement, value_s, held, on in zip(
                placements, simulation.value_s, simulation.peak_bytes, used, strict=True
            )
        ]

    def _not_contiguous(self, placement: Placement) -> MeasurementFailed | None:
        if kernels.is_contiguous(self._machine, placement.device.astype(np.int64), len(self._nodes.devices)):
            return None
        return MeasurementFailed("refused", f"the stages are not {self.execution.contiguity}")

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from a placement; see the Protocol."""
        self._nodes.check([start])
        ordered = start.priority is not None
        state, trace = kernels.blank(self._machine), new_trace(moves, start)
        kernels.local_search(self._machine, state, trace, changes_of(moves), owned(allowed), limit, ordered)
        local_search = local_search_of(start, moves, trace, state.device)
        self.evaluations += local_search.evaluations
        return local_search

    def timeline(self, placement: Placement) -> Timeline:
        """Return one period: each device's operations back to back, then what it pays for nets it holds partly.

        A net is told once for every device that pays for it: by one that reads it as a transfer from the net's
        source, by the source's as one to the first other device that reads it.

        Raises:
            UsageError: the placement puts an operation where it is not supported.
        """
        self._nodes.check([placement])
        graph, topology = self._subject.graph, self._subject.topology
        device = placement.device[self._subject.grouping.group]
        op_s = running_s(self._subject, self._costs, placement)
        order = topological_order(graph)
        paid = Paid.of(self._nets, self._machine.pay_s, device, placement.device)
        payer, row = np.r_[device[order], paid.payer], np.r_[order, graph.n + np.arange(paid.payer.size)]
        took_s = np.r_[op_s, paid.seconds]
        start_s = np.zeros(took_s.size)
        for d in range(topology.p):
            mine = row[payer == d]
            start_s[mine[1:]] = np.cumsum(took_s[mine])[:-1]
        end_s = start_s + took_s
        return Timeline(
            names=graph.names,
            devices=topology.names,
            device=device,
            start_s=start_s[: graph.n],
            end_s=end_s[: graph.n],
            sent=paid.maker,
            source=paid.source,
            target=paid.target,
            sent_start_s=start_s[graph.n :],
            sent_end_s=end_s[graph.n :],
            sent_bytes=paid.size,
            value_s=float(self._figures(placement.device[None]).value_s[0]),
        )

    def _figures(self, device: Int32) -> Simulation:
        b, p = len(device), len(self._nodes.devices)
        figures = kernels.PipelinedFigures(
            np.empty(b), np.empty((b, p), np.int64), np.empty((b, p)), np.empty(b, np.int64)
        )
        placements = np.array(device, np.int32, order="C")
        kernels.simulate(self._machine, kernels.blank(self._machine), placements, figures)
        over = over_bytes(figures.held_bytes, self._nodes.capacity_bytes)
        return Simulation(figures.value_s, over, figures.busy_s, figures.held_bytes, figures.sent_bytes)


class Paid(NamedTuple):
    """What devices pay under one placement, one entry per net and paying device; see `PipelinedEvaluator.timeline`.

    maker, source, target, payer: int32 [c]. size: int64 [c], bytes. seconds: float64 [c].
    """

    maker: Int32
    source: Int32
    target: Int32
    payer: Int32
    size: Int64
    seconds: Float64

    @classmethod
    def of(cls, nets: SentTensors, pay_s: Float64, device: Int32, node_device: Int32) -> Paid:
        """Return what is paid for pay_s float64 [t, p], device int32 [n] and node_device int32 [k]."""
        t, p = pay_s.shape
        holds = np.zeros((t, p), np.int64)
        np.add.at(holds, (nets.owner, node_device[nets.member]), 1)
        net, payer = np.nonzero((holds > 0) & (holds < np.diff(nets.ptr)[:, None]) & (pay_s > 0))
        home = device[nets.maker[net]]
        elsewhere = holds[net] > 0  # [c, p]
        elsewhere[np.arange(net.size), home] = False
        target = np.where(payer == home, elsewhere.argmax(axis=1), payer).astype(np.int32)
        return cls(nets.maker[net], home, target, payer.astype(np.int32), nets.size[net], pay_s[net, payer])
