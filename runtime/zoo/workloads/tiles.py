"""Matrices cut into tiles, and the operations on tiles that a product or a sum of such matrices takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from pipeline.core.graph import Graph
from pipeline.core.workload import Tags, Workload

GIVEN = -1  # in place of an operation: the tile is stored on every device before the run
FLOAT_BYTES = 4

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileMachine:
    """What one device and one link of the machine do, from which the times of tiles follow.

    flop_per_s: what matrix products reach. memory_bytes_per_s: what element-wise operations reach. launch_s: seconds
    that every operation takes beyond that. link_bytes_per_s: from device to device.

    The defaults are an NVIDIA P100: half of 9.3 TFLOP/s, three quarters of 732 GB/s, and one PCIe link.
    """

    flop_per_s: float = 9.3e12 * 0.5
    memory_bytes_per_s: float = 732e9 * 0.75
    launch_s: float = 8e-6
    link_bytes_per_s: float = 8e9

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Return how long an operation takes that computes `flops` and reads and writes `moved_bytes`."""
        return self.launch_s + max(flops / self.flop_per_s, moved_bytes / self.memory_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a matrix: the operation that makes it, or GIVEN, and its shape."""

    op: int
    shape: Shape

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the tile."""
        return FLOAT_BYTES * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix as a grid of equal tiles: tile[i][j] holds row block i and column block j."""

    tile: tuple[tuple[Tile, ...], ...]

    @classmethod
    def given(cls, rows: int, columns: int, grid: tuple[int, int]) -> Blocks:
        """Return a matrix that every device holds before the run."""
        shape = (rows // grid[0], columns // grid[1])
        return cls(((Tile(GIVEN, shape),) * grid[1],) * grid[0])

    @property
    def grid(self) -> tuple[int, int]:
        """Return the numbers of row blocks and column blocks."""
        return len(self.tile), len(self.tile[0])

    @property
    def rows(self) -> int:
        """Return the rows of the matrix."""
        return sum(row[0].shape[0] for row in self.tile)

    @property
    def columns(self) -> int:
        """Return the columns of the matrix."""
        return sum(tile.shape[1] for tile in self.tile[0])

    @property
    def transposed(self) -> Blocks:
        """Return the transpose; reading a tile the other way round costs nothing."""
        turned = tuple(tuple(Tile(t.op, t.shape[::-1]) for t in column) for column in zip(*self.tile, strict=True))
        return Blocks(turned)

    def within(self, rows: tuple[int, int], columns: tuple[int, int]) -> list[Tile]:
        """Return the tiles that hold part i of r equal parts of the rows and part j of c of the columns.

        rows, columns: (i, r) and (j, c).
        """
        picked = _overlap(rows, self.grid[0]), _overlap(columns, self.grid[1])
        return [self.tile[i][j] for i in picked[0] for j in picked[1]]


def _overlap(part: tuple[int, int], cells: int) -> range:
    """Return which of equal cells hold part i of r equal parts of the same length; part: (i, r)."""
    i, r = part
    return range(i * cells // r, -(-(i + 1) * cells // r))


@dataclass(slots=True)
class Program:
    """The operations written down so far. A tile travels whole, even to a reader of half of it."""

    machine: TileMachine = field(default_factory=TileMachine)
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    inputs: list[list[Tile]] = field(default_factory=list)
    outputs: list[Tile] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    stage: int = -1

    def add(self, kind: str, name: str, inputs: Sequence[Tile], shape: Shape, flops: float, read_bytes: float) -> Tile:
        """Write down one operation and return its output, of `shape`; read_bytes: what it reads of its inputs."""
        tile = Tile(len(self.names), shape)
        self.names.append(name)
        self.kinds.append(kind)
        self.inputs.append(list(inputs))
        self.outputs.append(tile)
        self.flops.append(flops)
        self.seconds.append(self.machine.seconds(flops, read_bytes + tile.size_bytes))
        self.layer.append(self.stage)
        return tile

    def elementwise(self, kind: str, name: str, inputs: Sequence[Tile], *, per_element: float = 1.0) -> Tile:
        """Return a tile of the first input's shape; per_element: floating point operations for each."""
        shape = inputs[0].shape
        return self.add(kind, name, inputs, shape, per_element * prod(shape), sum(t.size_bytes for t in inputs))

    def reduction(self, kind: str, name: str, tile: Tile, *, axis: int = -1, per_element: float = 1.0) -> Tile:
        """Return a tile reduced along one axis, which is kept with length 1."""
        shape = list(tile.shape)
        shape[axis] = 1
        return self.add(kind, name, [tile], tuple(shape), per_element * prod(tile.shape), tile.size_bytes)

    def each(self, kind: str, name: str, *operands: Blocks, per_element: float = 1.0) -> Blocks:
        """Return the tile-by-tile outcome of an element-wise operation on matrices of one grid.

        A vector operand, of one row block or one column block, is read by all.
        """
        rows, columns = operands[0].grid

        def cell(i: int, j: int) -> Tile:
            read = [b.tile[i if b.grid[0] > 1 else 0][j if b.grid[1] > 1 else 0] for b in operands]
            return self.elementwise(kind, f"{name}[{i},{j}]", read, per_element=per_element)

        return Blocks(tuple(tuple(cell(i, j) for j in range(columns)) for i in range(rows)))

    def total(self, name: str, terms: Sequence[Tile]) -> Tile:
        """Return the sum of tiles of one shape, added in pairs, neighbours first."""
        level, depth = list(terms), 0
        while len(level) > 1:
            pairs = [
                self.elementwise("Add", f"{name}+{depth}.{i}", level[2 * i : 2 * i + 2]) for i in range(len(level) // 2)
            ]
            level, depth = pairs + level[2 * len(pairs) :], depth + 1
        return level[0]

    def partial_products(
        self, name: str, left: Blocks, right: Blocks, grid: tuple[int, int], splits: int
    ) -> list[list[list[Tile]]]:
        """Return the terms of a matrix product: [i][j][k] is part k of `splits` of the sum for output tile (i, j)."""
        r, c = grid
        rows, inner, columns = left.rows // r, left.columns // splits, right.columns // c
        flops, read_bytes = 2.0 * rows * inner * columns, FLOAT_BYTES * inner * (rows + columns)

        def term(i: int, j: int, k: int) -> Tile:
            read = left.within((i, r), (k, splits)) + right.within((k, splits), (j, c))
            return self.add("MatMul", f"{name}[{i},{j},{k}]", read, (rows, columns), flops, read_bytes)

        return [[[term(i, j, k) for k in range(splits)] for j in range(c)] for i in range(r)]

    def product(
        self, name: str, left: Blocks, right: Blocks, *, grid: tuple[int, int] = (2, 2), splits: int = 4
    ) -> Blocks:
        """Return a matrix product in a grid of tiles, each the sum of `splits` terms."""
        terms = self.partial_products(name, left, right, grid, splits)
        return Blocks(
            tuple(
                tuple(self.total(f"{name}[{i},{j}]", parts) for j, parts in enumerate(row))
                for i, row in enumerate(terms)
            )
        )

    def workload(self) -> Workload:
        """Return the operations as a graph, with their times on every device."""
        edges = sorted({(t.op, i) for i, read in enumerate(self.inputs) for t in read if t.op != GIVEN})
        producer, consumer = np.array(edges, np.int32).reshape(-1, 2).T
        out_bytes = np.array([t.size_bytes for t in self.outputs], np.int64)
        types = sorted(set(self.kinds))
        shapes = [t.shape for t in self.outputs]
        n = len(self.names)
        graph = Graph(
            names=tuple(self.names),
            op_type=np.array([types.index(kind) for kind in self.kinds], np.int16),
            type_names=tuple(types),
            edges=np.stack([producer, consumer]),
            flops=np.array(self.flops),
            weight_bytes=np.array([_given_bytes(read) for read in self.inputs], np.int64),
            out_bytes=out_bytes,
            edge_bytes=out_bytes[producer],
            shape_ptr=np.cumsum([0, *map(len, shapes)]),
            shape_dim=np.array([d for shape in shapes for d in shape], np.int64),
            colocate=np.full(n, -1),
            kernel=np.full(n, -1),
        )
        tags = Tags(np.array(self.layer, np.int32), np.full(n, -1))
        return Workload(graph, tags, {"*": np.array(self.seconds)}, link_bytes_per_s=self.machine.link_bytes_per_s)


def _given_bytes(read: Sequence[Tile]) -> int:
    """Return the bytes of the stored tiles among those that an operation reads."""
    return sum(t.size_bytes for t in read if t.op == GIVEN)
