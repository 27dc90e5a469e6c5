"""The operations of a network under construction, as plain lists, and the graph they make in the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Graph
from pipeline.core.tensors import Reads, edges_of
from pipeline.core.workload import Tags, Workload

Shape = tuple[int, ...]

SMALL_BYTES = 16  # what an auxiliary operation produces: a shape, an axis, a few offsets

# What hangs before a kernel (fed by the first of them) and behind it, in the order in which they are added.
BEFORE = ("Const", "Shape", "ConcatOffset", "BroadcastGradientArgs")
BEHIND = ("Identity", "Reshape")
AUXILIARY = frozenset(BEFORE) | frozenset(BEHIND)
"""Types of operations that exist only for a framework's book-keeping: no FLOPs, tiny, colocated with a kernel.
"""


class Record:
    """Grows operation by operation.

    An operation produces tensors, which operations behind it read; everything that refers to data names a tensor. A
    view is a tensor without an operation: another shape of one that exists, or a barrier to the gradient.

    Per operation: names, kinds, inputs (tensors), reads (bytes per input, -1 for the whole tensor), outputs (a range
    of tensors), flops, weight_bytes, owner (the operation it is colocated to, -1 for none), layers, steps.
    Per tensor: producer, shapes, sizes (bytes), base (the tensor a view shows; -1 behind a barrier), trained (whether
    a trained variable lies behind it).
    glue: auxiliary operations per operation of a type; scope, layer, step: given to the next operations.
    """

    def __init__(self, glue: Mapping[str, int], element_bytes: int) -> None:
        self.glue = dict(glue)
        self.element_bytes = element_bytes
        self.scope, self.layer, self.step = "", -1, -1
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.inputs: list[Sequence[int]] = []
        self.reads: list[Sequence[int] | None] = []
        self.outputs: list[range] = []
        self.flops: list[float] = []
        self.weight_bytes: list[int] = []
        self.owner: list[int] = []
        self.layers: list[int] = []
        self.steps: list[int] = []
        self.producer: list[int] = []
        self.shapes: list[Shape] = []
        self.sizes: list[int] = []
        self.base: list[int] = []
        self.trained: list[bool] = []
        self._taken: dict[str, int] = {}
        self._fed: dict[int, int] = {}

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        shapes: Sequence[Shape],
        *,
        flops: float = 0.0,
        name: str | None = None,
        owner: int = -1,
        reads: Sequence[int] | None = None,
    ) -> range:
        """Return the tensors of a new operation, one per shape; at fidelity "tf" its auxiliary operations follow it."""
        trained = any(self.trained[t] for t in inputs)
        op = self._append(kind, inputs, reads, flops, owner, self._unique(name or kind))
        outputs = range(len(self.producer), len(self.producer) + len(shapes))
        self.outputs.append(outputs)
        for tensor, shape in zip(outputs, shapes, strict=True):
            self._tensor(op, shape, math.prod(shape) * self.element_bytes, tensor, trained)
        extra = self.glue.get(kind, 0)
        if extra:
            self._hang(op, extra)
        return outputs

    def data(self, op: int) -> Sequence[int]:
        """Return the inputs of an operation without those that its auxiliary operations feed."""
        return self.inputs[op][: len(self.inputs[op]) - self._fed.get(op, 0)]

    def view(self, tensor: int, shape: Shape, *, barrier: bool = False) -> int:
        """Return another view of a tensor, without an operation of its own; a barrier lets no gradient through."""
        view = len(self.producer)
        base = -1 if barrier else self.base[tensor]
        self._tensor(self.producer[tensor], shape, self.sizes[tensor], base, self.trained[tensor] and not barrier)
        return view

    def _append(
        self, kind: str, inputs: Sequence[int], reads: Sequence[int] | None, flops: float, owner: int, name: str
    ) -> int:
        """Return the index of a new operation, whose outputs are still to come."""
        self.names.append(name)
        self.kinds.append(kind)
        self.inputs.append(inputs)
        self.reads.append(reads)
        self.flops.append(flops)
        self.weight_bytes.append(0)
        self.owner.append(owner)
        self.layers.append(self.layer)
        self.steps.append(self.step)
        return len(self.names) - 1

    def _tensor(self, op: int, shape: Shape, size: int, base: int, trained: bool) -> None:
        """Add a tensor."""
        self.producer.append(op)
        self.shapes.append(shape)
        self.sizes.append(size)
        self.base.append(base)
        self.trained.append(trained)

    def _unique(self, name: str) -> str:
        """Return the name within the current scope, with a number behind it if it is taken."""
        full = f"{self.scope}/{name}" if self.scope else name
        count = self._taken.get(full, 0)
        self._taken[full] = count + 1
        while count:
            numbered = f"{full}_{count}"
            if numbered not in self._taken:
                self._taken[full], self._taken[numbered] = count + 1, 1
                return numbered
            count += 1
        return full

    def _hang(self, op: int, count: int) -> None:
        """Add auxiliary operations around an operation: every second one before it, the others behind it.

        Those before it read the first of their kind alone, so that all their edges join operations that are colocated.
        """
        kernel, first = self.names[op], -1
        output = self.outputs[op][0]
        feeds: list[int] = []
        for i in range(count):
            behind = i % 2 == 1
            kind = BEHIND[i // 2 % len(BEHIND)] if behind else BEFORE[i // 2 % len(BEFORE)]
            inputs: tuple[int, ...] = (output,) if behind else (first,) if first >= 0 else ()
            reads = (SMALL_BYTES,) if behind else None
            aux = self._append(kind, inputs, reads, 0.0, op, f"{kernel}/aux{i}")
            tensor = len(self.producer)
            self.outputs.append(range(tensor, tensor + 1))
            self._tensor(aux, (SMALL_BYTES // 4,), SMALL_BYTES, tensor, False)
            if not behind:
                first = tensor if first < 0 else first
                feeds.append(tensor)
        self._fed[op] = len(feeds)
        self.inputs[op] = (*self.inputs[op], *feeds)
        if self.reads[op] is not None:
            self.reads[op] = (*(self.reads[op] or ()), *(-1 for _ in feeds))

    def workload(self) -> Workload:
        """Return the graph of all operations, with the tags of each."""
        n = len(self.names)
        type_names, op_type = np.unique(np.array(self.kinds, dtype=np.str_), return_inverse=True)
        edges, edge_bytes, reads = self._edges()
        sizes = np.array(self.sizes, np.int64)
        first = [outputs[0] if outputs else -1 for outputs in self.outputs]
        shapes = [self.shapes[tensor] if tensor >= 0 else () for tensor in first]
        # int64 [n], the sizes added up over each range of tensors
        upto = np.concatenate([[0], np.cumsum(sizes)])
        bounds = np.array([(r.start, r.stop) for r in self.outputs], np.int64).reshape(-1, 2)
        total: Int64 = upto[bounds[:, 1]] - upto[bounds[:, 0]]
        # int32 [n], one number for operations that lead to one owner; -1 for an operation without company
        owner = np.array(self.owner, np.int64)
        root = np.where(owner < 0, np.arange(owner.size), owner)
        while np.any(root != root[root]):
            root = root[root]
        crowded = np.bincount(root, minlength=owner.size) > 1
        number = np.cumsum(crowded) - 1
        graph = Graph(
            names=tuple(self.names),
            op_type=op_type.astype(np.int16),
            type_names=tuple(str(name) for name in type_names),
            edges=edges,
            flops=np.array(self.flops, np.float64),
            weight_bytes=np.array(self.weight_bytes, np.int64),
            out_bytes=total,
            edge_bytes=edge_bytes,
            shape_ptr=np.concatenate([[0], np.cumsum([len(shape) for shape in shapes])]).astype(np.int64),
            shape_dim=np.fromiter(chain.from_iterable(shapes), np.int64),
            colocate=np.where(crowded[root], number[root], -1).astype(np.int32),
            kernel=np.full(n, -1, np.int32),
            reads=reads,
        )
        return Workload(graph, Tags(np.array(self.layers, np.int32), np.array(self.steps, np.int32)))

    def _edges(self) -> tuple[Int32, Int64, Reads]:
        """Return the edges, int32 [2, m], their bytes, int64 [m], and what is read along them."""
        n = len(self.names)
        counts = np.fromiter(map(len, self.inputs), np.int64, n)
        tensor = np.fromiter(chain.from_iterable(self.inputs), np.int64, int(counts.sum()))
        pairs = zip(self.inputs, self.reads, strict=True)
        whole = (reads if reads is not None else (-1,) * len(inputs) for inputs, reads in pairs)
        size = np.fromiter(chain.from_iterable(whole), np.int64, tensor.size)
        size = np.where(size < 0, np.array(self.sizes, np.int64)[tensor], size)
        base = np.array(self.base, np.int64)[tensor]
        tensor = np.where(base < 0, tensor, base)  # what is read through two views is read once
        consumer = np.repeat(np.arange(n), counts)
        producer = np.array(self.producer, np.int64)[tensor]
        first = np.array([outputs.start for outputs in self.outputs], np.int64)
        return edges_of(producer, consumer, tensor - first[producer], size)
