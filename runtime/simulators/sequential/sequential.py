"""A simulator of HETERO: the sub-graphs of one inference run one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable
from pipeline.core.graph import Graph, Grouping, contract, leaders, makers, row_ptr, topological_order, weight_side
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement, check_size
from pipeline.core.simulation import LocalSearch, Moves, SequentialModel, Simulation, Timeline
from pipeline.core.stages import SimulationInterruptedError, Subject
from runtime.simulators.sequential import cuts, kernels
from runtime.simulators.sequential.subgraphs import CONSTANT, Cutter, of_type
from runtime.simulators.shared.local_search import changes_of, local_search_of, new_trace
from runtime.simulators.shared.simulated import Nodes, digest, known_costs, over_bytes, owned, running_s

EXACT = 5000  # operations up to which sub-graphs are cut to the last one where they cost nothing
INTERRUPTED = MeasurementFailed("timeout", "The time ended while sub-graphs were counted.")


@dataclass(frozen=True, slots=True)
class Sequential:
    """Predicts latency = operation times + transfers + a launch per sub-graph.

        T(P) = sum_i op_s[i, P(i)]
             + sum over tensors t and devices d /= P(t) that read t: latency[P(t), d] + bytes(t) / bandwidth[P(t), d]
             + sum over sub-graphs g: launch_s[P(g)]

    A tensor crosses once per reading device. P is normalised before it is measured, and so it is here: inputs and
    constants lie where they are read, results where they are made. Sub-graphs are cut as HETERO cuts them, cycles
    broken. Nothing overlaps, and priorities mean nothing. Weights count against the memory of the device that their
    node is placed on.
    """

    version: ClassVar[int] = 4
    real: ClassVar[bool] = False
    memory: bool = param(True, "refuse placements whose weights exceed the memory of a device, where it is known")

    @property
    def execution(self) -> SequentialModel:
        """Return the rules it follows."""
        return SequentialModel(memory=self.memory)

    def bind(self, subject: Subject) -> SequentialEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the subject has no cost table.
        """
        return SequentialEvaluator(subject, known_costs(subject, "sequential"), self.execution)


class SequentialEvaluator:
    """Evaluates placements of one subject's nodes."""

    version: ClassVar[int] = Sequential.version

    def __init__(self, subject: Subject, costs: CostTable, execution: SequentialModel) -> None:
        self.evaluations = 0
        self.execution = execution
        self._subject, self._costs = subject, costs
        self._nodes = Nodes.of(subject, costs, memory=execution.memory)
        # Per operation the node whose device it runs on, once the placement is normalised as the runtime's is.
        self._node: Int32 = subject.grouping.group[leaders(subject.graph)]
        self._cutter = Cutter.of(subject.graph, self._node)
        tensors = Tensors.of(subject.graph, self._node)
        ptr, touched = tensors.by_node(len(self._nodes.names))
        topology = self._subject.topology
        self._machine = kernels.SequentialMachine(
            op_s=owned(self._nodes.op_s),
            weight_bytes=owned(self._nodes.weight_bytes),
            capacity_bytes=owned(self._nodes.capacity_bytes),
            launch_s=owned(self._costs.launch_s),
            latency_s=owned(topology.link_latency_s),
            bytes_per_s=owned(topology.link_bytes_per_s),
            unit_node=self._node[self._cutter.member],
            source=tensors.source,
            ptr=tensors.ptr,
            reader=tensors.reader,
            size=tensors.size,
            touch_ptr=ptr,
            touch=touched,
        )
        launching = bool(np.any(costs.launch_s > 0))
        self._whole = kernels.MachineWithCounter(self._machine, self._cutter.counter(subject.topology.p), launching)

    def fork(self) -> SequentialEvaluator:
        """Return a simulator of the same subject for another thread; see the Protocol."""
        return SequentialEvaluator(self._subject, self._costs, self.execution)

    def absorb(self, evaluations: int) -> None:
        """Count what a fork has evaluated."""
        self.evaluations += evaluations

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs, the devices and the tensors."""
        machine, graph = self._machine, self._subject.graph
        return digest("sequential", *machine[:6], self._node, graph.edges, graph.edge_bytes)

    def interrupt(self) -> None:
        """End what another thread has this simulator do; see the Protocol `Interruptible`."""
        self._whole.counter.workspace.stop[0] = 1

    def resume(self) -> None:
        """Let it work again."""
        self._whole.counter.workspace.stop[0] = 0

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        """Return what b placements cost, device int32 [b, k]; priorities mean nothing."""
        check_size(device.shape[1], len(self._nodes.names))
        self.evaluations += len(device)
        figures = self._figures(device)
        over = over_bytes(figures.held_bytes, self._nodes.capacity_bytes)
        return Simulation(figures.value_s, over, figures.busy_s, figures.held_bytes, figures.sent_bytes)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return the predicted latency of each placement, or why the devices cannot run it."""
        self._nodes.check(placements)
        self.evaluations += len(placements)
        if not placements:
            return []
        figures = self._figures(np.stack([placement.device for placement in placements]), counted=True)
        return [
            INTERRUPTED
            if counts[0] < 0
            else self._nodes.answer(placement, float(value_s), held, counts > 0, int(counts.sum()))
            for placement, value_s, held, counts in zip(
                placements, figures.value_s, figures.held_bytes, figures.counts, strict=True
            )
        ]

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from a placement; see the Protocol."""
        self._nodes.check([start])
        ordered = start.priority is not None
        state, trace = kernels.blank(self._machine), new_trace(moves, start)
        if self._whole.launching:
            self._count(trace.best[None], state.counts)
        started = state.counts[0, 0] >= 0
        kernels.local_search(self._whole, state, trace, changes_of(moves), owned(allowed), limit, ordered)
        local_search = local_search_of(start, moves, trace, state.device)
        self.evaluations += local_search.evaluations
        if not started:  # interrupted while its sub-graphs were counted
            return replace(local_search, end_s=math.inf, best_s=math.inf)
        return local_search

    def timeline(self, placement: Placement) -> Timeline:
        """Return when each of n operations runs: one sub-graph after another, with a pause for the launch of each.

        What a sub-graph reads is sent before it starts. An operation takes the time that it takes where its node was
        placed, and runs where the normalised placement has it.

        Raises:
            UsageError: the placement puts an operation where it is not supported.
            SimulationInterruptedError: it was interrupted.
        """
        self._nodes.check([placement])
        graph, topology = self._subject.graph, self._subject.topology
        op_s = running_s(self._subject, self._costs, placement)
        device = placement.device[self._node]
        rank, launch_s = self._run_order(device)
        sent = Sent.of(graph, device, rank)
        took_s = topology.link_latency_s[sent.source, sent.target]
        took_s = took_s + sent.size / topology.link_bytes_per_s[sent.source, sent.target]
        position = np.empty(graph.n, np.int64)
        position[topological_order(graph)] = np.arange(graph.n)
        turns = np.r_[rank, sent.rank, np.arange(launch_s.size)]  # operations, then transfers, then launches
        kind = np.repeat([2, 0, 1], [graph.n, sent.rank.size, launch_s.size])
        within = np.r_[position, np.arange(sent.rank.size), np.zeros(launch_s.size, np.int64)]
        duration_s = np.r_[op_s, took_s, launch_s]
        order = np.lexsort((within, kind, turns))
        end_s = np.empty(order.size)
        end_s[order] = np.cumsum(duration_s[order])
        start_s = np.empty(order.size)
        start_s[order] = np.r_[0.0, end_s[order]][:-1]
        operations, transfers = slice(0, graph.n), slice(graph.n, graph.n + sent.rank.size)
        return Timeline(
            names=graph.names,
            devices=topology.names,
            device=device,
            start_s=start_s[operations],
            end_s=end_s[operations],
            sent=sent.maker,
            source=sent.source,
            target=sent.target,
            sent_start_s=start_s[transfers],
            sent_end_s=end_s[transfers],
            sent_bytes=sent.size,
            value_s=float(self._figures(placement.device[None]).value_s[0]),
        )

    def _run_order(self, device: Int32) -> tuple[Int64, Float64]:
        """Return int64 [n], the place of each operation's sub-graph in the order they run, and float64, their launches.

        device: int32 [n], normalised. Constants alone on a device are no sub-graph and launch nothing.
        """
        graph = self._subject.graph
        if not self._whole.launching and graph.n > EXACT:  # as if each were a sub-graph, which costs nothing
            rank = np.empty(graph.n, np.int64)
            rank[topological_order(graph)] = np.arange(graph.n)
            return rank, np.zeros(graph.n)
        alone = bool(np.all(device == device[:1]))
        stop = self._whole.counter.workspace.stop
        parts = Grouping(np.zeros(graph.n, np.int32)) if alone else self._cutter.split(device, stop)
        if stop[0]:
            raise SimulationInterruptedError
        rank = np.empty(parts.k, np.int64)
        rank[topological_order(contract(graph, parts))] = np.arange(parts.k)
        launch_s = np.zeros(parts.k)
        computes = np.flatnonzero(~of_type(graph, CONSTANT) | alone)
        part, first = np.unique(parts.group[computes], return_index=True)
        launch_s[rank[part]] = self._costs.launch_s[device[computes[first]]]
        return rank[parts.group], launch_s

    def _figures(self, device: Int32, *, counted: bool = False) -> kernels.SequentialFigures:
        """Return what placements cost; sub-graphs are counted if they are asked for or cost something, else 0.

        Where they cost nothing, those of large graphs are counted before cycles are broken: there are no fewer.
        """
        b, p = len(device), len(self._nodes.devices)
        figures = kernels.SequentialFigures(
            np.empty(b), np.empty((b, p), np.int64), np.empty((b, p)), np.empty(b, np.int64), np.zeros((b, p), np.int64)
        )
        placements = np.array(device, np.int32, order="C")
        if counted or self._whole.launching:
            self._count(placements, figures.counts)
        kernels.simulate(self._machine, kernels.blank(self._machine), placements, figures)
        figures.value_s[figures.counts[:, 0] < 0] = math.inf  # nobody knows what was not counted
        return figures

    def _count(self, placements: Int32, counts: Int64) -> None:
        """Count the sub-graphs of b placements, int32 [b, k], by device, into int64 [b, p]."""
        running = placements.take(self._machine.unit_node, axis=1)
        if self._whole.launching or self._subject.graph.n <= EXACT:
            cuts.count(self._whole.counter, running, counts, cuts.unbounded(counts.shape[1]))
        else:
            cuts.count_least(self._whole.counter, running, counts)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors that flow between nodes: each is made by one operation and read by one or more other nodes.

    source: int32 [t], the node that makes each. ptr: int64 [t + 1]. reader: int32 and size: float64 bytes: the nodes
    that read tensor i are reader[ptr[i]:ptr[i + 1]], and what each reads of it is size[ptr[i]:ptr[i + 1]].
    """

    source: Int32
    ptr: Int64
    reader: Int32
    size: Float64

    @classmethod
    def of(cls, graph: Graph, node: Int32) -> Tensors:
        """Return the tensors that can cross a boundary; node: int32 [n], on whose device each operation runs.

        What is computed from constants alone is there before the first inference and never crosses.
        """
        reads = graph.reads
        producer, consumer = graph.edges[:, reads.edge]
        flows = (node[producer] != node[consumer]) & ~weight_side(graph)[producer]
        pairs, which = np.unique(np.stack([reads.tensor, node[consumer]])[:, flows], axis=1, return_inverse=True)
        size = np.zeros(pairs.shape[1])
        np.maximum.at(size, which.reshape(-1), reads.size[flows])
        tensors, start = np.unique(pairs[0], return_index=True)
        return cls(node[makers(graph)[tensors]], np.r_[start, pairs.shape[1]], pairs[1].astype(np.int32), size)

    def by_node(self, k: int) -> tuple[Int64, Int64]:
        """Return (ptr, tensor): node j makes or reads the tensors tensor[ptr[j]:ptr[j + 1]]; both int64."""
        each = np.arange(self.source.size)
        tensor = np.r_[each, np.repeat(each, np.diff(self.ptr))]
        node = np.r_[self.source, self.reader]
        return row_ptr(node, k), tensor[np.argsort(node, kind="stable")]


class Sent(NamedTuple):
    """The transfers under one placement, one per tensor and reading device.

    maker, source, target: int32 [t], the operation whose output it is, from and to which device. size: int64 [t],
    bytes. rank: int64 [t], the place of the first sub-graph there that reads it.
    """

    maker: Int32
    source: Int32
    target: Int32
    size: Int64
    rank: Int64

    @classmethod
    def of(cls, graph: Graph, device: Int32, rank: Int64) -> Sent:
        """Return the transfers for device int32 [n] and the place of each operation's sub-graph, int64 [n]."""
        reads = graph.reads
        producer, consumer = graph.edges[:, reads.edge]
        cut = (device[producer] != device[consumer]) & ~weight_side(graph)[producer]
        pairs, which = np.unique(np.stack([reads.tensor, device[consumer]])[:, cut], axis=1, return_inverse=True)
        size = np.zeros(pairs.shape[1], np.int64)
        np.maximum.at(size, which.reshape(-1), reads.size[cut])
        first = np.full(pairs.shape[1], graph.n)
        np.minimum.at(first, which.reshape(-1), rank[consumer[cut]])
        maker = makers(graph)[pairs[0]]
        return cls(maker, device[maker], pairs[1].astype(np.int32), size, first)
