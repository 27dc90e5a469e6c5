"""What an encoder gets to know about each group of operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embed.structure import fractal_dimension, heaviest_path, mean_rank
from embed.vocabulary import OP_TYPES
from pipeline.core.arrays import Float32, Float64, Int32, frozen
from pipeline.core.devices import CostTable, contract_costs
from pipeline.core.errors import CyclicGraphError
from pipeline.core.graph import Graph, Grouping, contract, sum_per_group, topological_order

DEGREES = 8  # degrees 0 to 7 have a column each, larger ones share one
AXES = 5
POSITION_DIMS = 8
POSITION_BASE = 1000.0
LOG_SCALE = 10.0  # log1p of FLOPs and bytes reaches 25; a tenth of it lies beside the one-hot columns

Block = tuple[tuple[str, ...], Float64]
"""Columns that belong together: their names and their values, float64 [k, columns]."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """One row of numbers per group.

    values: float32 [k, f]. columns: f names.
    """

    values: Float32
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen(self.values, np.float32, (None, len(self.columns)), "values"))

    def column(self, name: str) -> Float32:
        """Return one column, float32 [k], by its name."""
        return self.values[:, self.columns.index(name)]


def node_features(graph: Graph, grouping: Grouping, costs: CostTable | None, *, exact_up_to: int = 2000) -> Features:
    """Return the features of the k groups of a graph's n operations.

        type:<T>             share of members of operation type T (embed.vocabulary; "other" for the rest)
        in:<d>, out:<d>      one-hot degrees in the quotient graph
        axis:<i>, dynamic    log dimensions of the head's output, 0 where dynamic or absent; whether one is dynamic
        fractal              fractal dimension in the quotient graph
        position, sin:, cos: topological rank in [0, 1], and its sine encoding
        flops, weight_bytes, out_bytes, in_bytes                    log1p / 10
        time:<device>, supported:<device>   log times, standardised over all entries; only if `costs` are given
        depth_in, depth_out, slack          of the heaviest path, as shares of the critical path

    graph: the raw, acyclic graph. costs: seconds of its operations, or None; then paths are weighted by FLOPs.
    exact_up_to: above this number of groups the fractal dimension looks at each node's neighbourhood only.

    The columns depend on the devices' names alone, so rows of two models can be compared. Renumbering operations and
    groups renumbers the rows, provided no two members of one group tie for its head (see `contract`).

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024. Deliberate differences: operations of one level share the mean of their ranks instead of
    taking an arbitrary order; a fixed vocabulary; all cost columns.

    Raises:
        CyclicGraphError: the raw graph has a cycle.
    """
    quotient = contract(graph, grouping)
    blocks = [
        _types(graph, grouping),
        _degrees(quotient),
        _shapes(quotient),
        (("fractal",), fractal_dimension(quotient.n, quotient.edges, exact_up_to=exact_up_to)[:, None]),
        *_order_features(graph, grouping, quotient, _path_weight(graph, costs)),
        _sizes(quotient),
    ]
    if costs is not None:
        blocks.append(_times(contract_costs(costs, quotient, grouping)))
    columns = tuple(name for names, _ in blocks for name in names)
    return Features(np.concatenate([values for _, values in blocks], axis=1).astype(np.float32), columns)


def _types(graph: Graph, grouping: Grouping) -> Block:
    """Return the mean of the members' one-hot types."""
    column = {name: i for i, name in enumerate(OP_TYPES)}
    width = len(OP_TYPES) + 1
    known = np.array([column.get(name, width - 1) for name in graph.type_names], dtype=np.int64)
    cell = grouping.group.astype(np.int64) * width + known[graph.op_type]
    count = np.bincount(cell, minlength=grouping.k * width).reshape(grouping.k, width)
    names = (*(f"type:{name}" for name in OP_TYPES), "type:other")
    return names, count / np.maximum(count.sum(axis=1, keepdims=True), 1)


def _degrees(quotient: Graph) -> Block:
    """Return in-degree and out-degree, one-hot."""
    one_hot = np.eye(DEGREES + 1)
    labels = (*(str(d) for d in range(DEGREES)), f"{DEGREES}+")
    names = tuple(f"{side}:{label}" for side in ("in", "out") for label in labels)
    sides = [one_hot[np.minimum(degree, DEGREES)] for degree in (quotient.in_degree, quotient.out_degree)]
    return names, np.concatenate(sides, axis=1)


def _shapes(quotient: Graph) -> Block:
    """Return log dimensions, zero-padded; axes beyond the last column are multiplied into it."""
    length = np.diff(quotient.shape_ptr)
    owner = np.repeat(np.arange(quotient.n), length)
    axis = np.arange(quotient.shape_dim.size) - np.repeat(quotient.shape_ptr[:-1], length)
    dynamic = quotient.shape_dim < 0
    dims = np.ones((quotient.n, AXES))
    np.multiply.at(dims, (owner, np.minimum(axis, AXES - 1)), np.where(dynamic, 0, quotient.shape_dim))
    present = np.arange(AXES) < length[:, None]
    logs = np.where(present, np.log1p(dims), 0.0) / LOG_SCALE
    any_dynamic = np.bincount(owner[dynamic], minlength=quotient.n) > 0
    return (*(f"axis:{i}" for i in range(AXES)), "dynamic"), np.column_stack([logs, any_dynamic])


def _sizes(quotient: Graph) -> Block:
    """Return FLOPs and bytes, logarithmic."""
    arriving = np.bincount(quotient.edges[1], weights=quotient.edge_bytes, minlength=quotient.n)
    sizes = np.column_stack([quotient.flops, quotient.weight_bytes, quotient.out_bytes, arriving])
    return ("flops", "weight_bytes", "out_bytes", "in_bytes"), np.log1p(sizes) / LOG_SCALE


def _times(costs: CostTable) -> Block:
    """Return log times, standardised by one mean and deviation over all groups and devices, and what is supported.

    Standardising each device alone would hide that one is faster than the other.
    """
    supported = costs.supported
    logs = np.log1p(np.where(supported, costs.op_s, 0.0) * 1e6)  # times below a microsecond count as nothing
    known = logs[supported]
    spread = float(known.std()) if known.size else 0.0
    scaled = (logs - known.mean()) / spread if spread > 1e-12 else np.zeros_like(logs)
    names = (*(f"time:{d}" for d in costs.devices), *(f"supported:{d}" for d in costs.devices))
    return names, np.concatenate([np.where(supported, scaled, 0.0), supported], axis=1)


def _path_weight(graph: Graph, costs: CostTable | None) -> Float64:
    """Return float64 [n], what an operation adds to a path: its mean time, else its FLOPs, else 1 if all have none."""
    weight = graph.flops
    if costs is not None:
        total = np.where(costs.supported, costs.op_s, 0.0).sum(axis=1)
        weight = total / np.maximum(costs.supported.sum(axis=1), 1)
    return weight if weight.any() else np.ones(graph.n)


def _order_features(graph: Graph, grouping: Grouping, quotient: Graph, weight: Float64) -> list[Block]:
    """Return the blocks that rest on a topological order.

    A cyclic quotient has none: its groups take the earliest level and the smallest depths and slack of their members
    in the raw graph.
    """
    try:
        order = topological_order(quotient)
    except CyclicGraphError:
        level, paths = _levels_and_paths(graph, topological_order(graph), weight)
        level, paths = _min_per_group(level, grouping), _min_per_group(paths, grouping)
    else:
        level, paths = _levels_and_paths(quotient, order, sum_per_group(weight, grouping))
    return [_position(level), (("depth_in", "depth_out", "slack"), paths)]


def _levels_and_paths(graph: Graph, order: Int32, weight: Float64) -> tuple[Float64, Float64]:
    """Return level, float64 [n]: the most hops from a source, and float64 [n, 3]: depths and slack.

    The depths are what must run before and after an operation on the heaviest path through it, the slack is how much
    heavier the operation could be without lengthening the critical path; all as shares of the critical path.
    """
    level = heaviest_path(graph, order, np.ones(graph.n))
    before = heaviest_path(graph, order, weight)
    after = heaviest_path(graph, order, weight, reverse=True)
    critical = float((before + weight + after).max(initial=0.0)) or 1.0
    slack = np.maximum(critical - (before + weight + after), 0.0)  # rounding can make it negative
    return level, np.column_stack([before, after, slack]) / critical


def _min_per_group(values: Float64, grouping: Grouping) -> Float64:
    """Return the least of values [n, ...] in each group, [k, ...]."""
    least = np.full((grouping.k, *values.shape[1:]), np.inf)
    np.minimum.at(least, grouping.group, values)
    return least


def _position(level: Float64) -> Block:
    """Return the topological rank in [0, 1], and its encoding PE(rank, 2i) = sin(rank / base^(2i / d)), cosines after.

    Ranks in the encoding count from 1, as in the source.
    """
    rank = mean_rank(level)
    half = POSITION_DIMS // 2
    angle = (rank[:, None] + 1) / POSITION_BASE ** (np.arange(half) * 2 / POSITION_DIMS)
    names = ("position", *(f"sin:{i}" for i in range(half)), *(f"cos:{i}" for i in range(half)))
    share = rank / max(level.size - 1, 1)
    return names, np.column_stack([share, np.sin(angle), np.cos(angle)])
