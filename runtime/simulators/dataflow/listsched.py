"""A simulator of a dataflow machine: devices work at the same time, operations start when what they read is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import row_ptr
from pipeline.core.measurement import Evaluation
from pipeline.core.params import param
from pipeline.core.placement import Placement, check_size
from pipeline.core.simulation import DataflowModel, Level, LocalSearch, Moves, Simulation, Timeline
from pipeline.core.stages import Subject
from runtime.simulators.dataflow.events import run
from runtime.simulators.dataflow.search import DataflowFigures, MoveTrials, run_all, search_all
from runtime.simulators.dataflow.state import BEFORE_S, BEGUN, DataflowMachine, Dispatch, Part, new_snapshots, new_state
from runtime.simulators.shared.local_search import changes_of
from runtime.simulators.shared.simulated import Nodes, batches, digest, expanded, known_costs, members, owned, pieces

STORED = frozenset({"Variable", "Constant"})  # what they put out is the weight they hold


@dataclass(frozen=True, slots=True)
class ListSched:
    """Predicts latency on devices and links that all work at once.

    An operation is ready when everything it reads has arrived, and joins the queue of its device. A free device never
    waits while something is ready: if the placement has priorities, it takes the least, of equals the one of the least
    index. Without priorities it takes what joined its queue first. At the start operations join by index. Later, at one
    moment, those join first that read what ended on the device, then those that read what arrives, in the order in
    which it was sent. The outputs of one operation go to their readers, and are sent, from the one of the fewest bytes
    to that of the most, equals as the operation numbers them; the readers of one output join by index. What is read on
    the producer's device is there at once. Elsewhere:

        T0  a tensor arrives latency + bytes / bandwidth after it was made, whatever else is sent
        T1  a device sends one tensor at a time, first come, first served, one send for all readers of a tensor
            together, with a gap between sends; a device stays blocked for a moment after an operation that takes time
        T2  a device sends one tensor at a time and receives one at a time; each reading device gets its own transfer

    The outputs of an operation are told apart by their bytes. A read of 0 bytes only waits for the latency. Time
    ends with the last event, the release of devices and links included. Memory counts weights all the time, outputs
    from the operation's start until the last local reader has ended and the last transfer has arrived, received
    copies from the request of the transfer until the last reader on that device has ended.

    Source: T1 is the simulator of Addanki et al., Placeto, NeurIPS 2019. Deliberate differences, unless `quirks`: a
    read of 0 bytes is no transfer, an operation of 0 seconds never blocks.
    """

    version: ClassVar[int] = 2
    real: ClassVar[bool] = False

    level: str = param("T2", "T0, T1 or T2: how links are shared; T1-bare is T1 without block and gap")
    memory: bool = param(True, "refuse placements that need more memory than a device has")
    block_s: float = param(5.7e-6, "T1: seconds a device stays blocked after an operation that takes time")
    gap_s: float = param(25e-6, "T1: seconds between two sends of a device")
    quirks: bool = param(False, "T1: reads of 0 bytes carry the whole output, operations of 0 seconds block as well")

    def __post_init__(self) -> None:
        known = (*get_args(Level), "T1-bare")
        if self.level not in known:
            raise UnknownNameError("level of listsched", self.level, known)
        if not (self.block_s >= 0 and self.gap_s >= 0):
            raise UsageError(f"{self} has a negative time.", "Use 0 seconds or more.")

    @property
    def execution(self) -> DataflowModel:
        """Return the rules of this level."""
        if self.level == "T1":
            return DataflowModel("T1", self.block_s, self.gap_s, memory=self.memory)
        bare: Level = "T0" if self.level == "T0" else "T1" if self.level == "T1-bare" else "T2"
        return DataflowModel(bare, memory=self.memory)

    def bind(self, subject: Subject) -> ListSchedEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the subject has no cost table.
        """
        nodes = Nodes.of(subject, known_costs(subject, "listsched"), memory=self.memory)
        return ListSchedEvaluator(subject, nodes, self.execution, machine_of(subject, self.execution, self.quirks))


class ListSchedEvaluator:
    """Evaluates placements of one subject's nodes, by its operations."""

    version: ClassVar[int] = 2

    def __init__(self, subject: Subject, nodes: Nodes, execution: DataflowModel, machine: DataflowMachine) -> None:
        self.execution = execution
        self.evaluations = 0
        self._subject, self._nodes, self._machine = subject, nodes, machine
        self._grouping = subject.grouping
        self._members = members(subject.grouping)
        ptr, operation = self._members
        self._first = operation[ptr[:-1]]  # [k], one operation of each node
        # What a device can hold at most needs no accounting where it is within every device's memory.
        most = float(machine.weight.sum() + machine.own.sum() + machine.size.sum())
        self._quick = machine._replace(track=bool(most > machine.capacity.min()))

    def fork(self) -> ListSchedEvaluator:
        """Return a simulator of the same subject for another thread; see the Protocol."""
        return ListSchedEvaluator(self._subject, self._nodes, self.execution, self._machine)

    def absorb(self, evaluations: int) -> None:
        """Count what a fork has evaluated."""
        self.evaluations += evaluations

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs, the links, the tensors and the rules."""
        m = self._machine
        arrays = (m.op_s, m.size, m.reader_ptr, m.reader, m.per_byte_s, m.latency_s, m.capacity, m.weight, m.own)
        return digest(*arrays, self._grouping.group, repr(self.execution), str(m.blocks_always))

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        """Return what b placements cost: device int32 [b, k], priority float64 [b, k] or None."""
        return _simulation(self._run(device, priority))

    def simulate_starts(self, device: Int32) -> tuple[Simulation, Float64]:
        """Return what b placements cost, and when the first operation of each node starts; see the Protocol."""
        figures = self._run(device, None, starts=True)
        ptr, operation = self._members
        return _simulation(figures), np.minimum.reduceat(figures.start_s[:, operation], ptr[:-1], axis=1)

    def _run(self, device: Int32, priority: Float64 | None, *, starts: bool = False) -> DataflowFigures:
        """Run b placements, and count them."""
        check_size(device.shape[1], len(self._nodes.names))
        self.evaluations += device.shape[0]
        group, ordered = self._grouping.group, priority is not None
        order = np.zeros((1, group.size)) if priority is None else owned(priority[:, group])
        return run_all(self._machine, Dispatch(owned(device[:, group]), order, ordered), starts=starts)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return the predicted latency of each placement, or why it cannot run."""
        self._nodes.check(placements)
        answers: dict[int, Evaluation] = {}
        edges, group = self._subject.graph.edges, self._grouping.group
        for rows, device, priority in batches(placements):
            simulation = self.simulate(device, priority)
            for at, i in enumerate(rows):
                used = np.bincount(device[at], minlength=len(self._nodes.devices)) > 0
                count = pieces(edges, device[at][group])
                answers[i] = self._nodes.answer(
                    placements[i], simulation.value_s[at], simulation.peak_bytes[at], used, count
                )
        return [answers[i] for i in range(len(placements))]

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from a placement; see `LocalSearch`."""
        self._nodes.check([start])
        group, ordered = self._grouping.group, start.priority is not None
        trials = MoveTrials(changes_of(expanded(moves, self._grouping)), owned(allowed[group]), limit)
        order = np.zeros(group.size) if start.priority is None else owned(start.priority[group])
        placement = Dispatch(owned(start.device[group]), order, ordered)
        steps = search_all(self._quick, trials, placement)
        end_s, best_s, over = steps.summary.tolist()
        local_search = LocalSearch(
            steps.tried,
            steps.value_s,
            steps.taken,
            self._of_nodes(start, placement.device, placement.priority),
            end_s if over == 0 else np.inf,
            self._of_nodes(start, steps.best_device, steps.best_priority),
            best_s,
        )
        self.evaluations += local_search.evaluations
        return local_search

    def timeline(self, placement: Placement) -> Timeline:
        """Return when each operation and every transfer happens.

        Raises:
            UsageError: the placement puts an operation where it is not supported.
        """
        self._nodes.check([placement])
        self.evaluations += 1
        device = owned(placement.device[self._grouping.group])
        ordered = placement.priority is not None
        order = owned(placement.priority[self._grouping.group]) if placement.priority is not None else np.zeros(1)
        state = new_state(self._machine)
        dispatch, whole = Dispatch(device, order, ordered), Part(BEFORE_S, np.inf)
        value_s = run(self._machine, state, new_snapshots(state, 0), dispatch, whole)
        if not np.isfinite(value_s):
            raise UsageError("The placement puts operations where they are not supported.", "Simulate it first.")
        sent = slice(0, int(state.tally[BEGUN]))
        tensor = state.sent[sent]
        return Timeline(
            self._subject.graph.names,
            self._nodes.devices,
            device,
            state.start_s,
            state.end_s,
            self._machine.maker[tensor],
            device[self._machine.maker[tensor]],
            state.target[sent],
            state.sent_s[sent],
            state.arrive_s[sent],
            self._machine.size[tensor].astype(np.int64),
            value_s,
        )

    def _of_nodes(self, start: Placement, device: Int32, priority: Float64) -> Placement:
        """Return the placement of the nodes from that of their operations."""
        order = None if start.priority is None else priority[self._first]
        return Placement.made(device[self._first], start.devices, order)


def _simulation(figures: DataflowFigures) -> Simulation:
    over, peak, cut = (bytes_held.astype(np.int64) for bytes_held in (figures.over, figures.peak, figures.cut))
    return Simulation(figures.value_s, over, figures.busy_s, peak, cut)


def machine_of(subject: Subject, execution: DataflowModel, quirks: bool) -> DataflowMachine:
    """Return the machine that runs a subject's n operations; activations and copies are accounted for."""
    graph, topology = subject.graph, subject.topology
    costs = known_costs(subject, "listsched")
    (producer, consumer), tensor, size = graph.edges[:, graph.reads.edge], graph.reads.tensor, graph.reads.size
    size = np.where((size == 0) & quirks, graph.out_bytes[producer], size)
    by_tensor = np.lexsort((consumer, tensor, size, producer))
    producer, consumer, tensor, size = producer[by_tensor], consumer[by_tensor], tensor[by_tensor], size[by_tensor]
    first = np.r_[True, (np.diff(tensor) != 0) | (np.diff(size) != 0)][: size.size]  # a tensor's first reader
    maker = producer[first]
    stored = np.isin(np.array(graph.type_names)[graph.op_type], list(STORED))
    # inf where a device's memory is not known or does not matter; of whole numbers alone numpy would make another
    # type, to compile for again
    limits = [d.memory_bytes if execution.memory and d.memory_bytes else np.inf for d in topology.devices]
    return DataflowMachine(
        op_s=owned(costs.op_s),
        weight=graph.weight_bytes.astype(np.float64),
        own=np.where(stored, 0.0, graph.out_bytes),
        tensor_ptr=row_ptr(maker, graph.n),
        maker=maker.astype(np.int32),
        size=size[first].astype(np.float64),
        reader_ptr=np.r_[np.flatnonzero(first), size.size].astype(np.int64),
        reader=consumer.astype(np.int32),
        in_ptr=row_ptr(consumer, graph.n),
        in_slot=np.argsort(consumer, kind="stable").astype(np.int64),
        slot_tensor=(np.cumsum(first) - 1).astype(np.int32),
        per_byte_s=1.0 / topology.link_bytes_per_s,
        latency_s=owned(topology.link_latency_s),
        capacity=np.array(limits, np.float64),
        level=execution.contention,
        block_s=execution.block_s,
        gap_s=execution.gap_s,
        blocks_always=quirks,
        track=True,
    )
