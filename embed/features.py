"""What an encoder gets to know about each group of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from embed.operation_identities import hashed_types, neighbour_places
from embed.published_features import Block, degree_values, dims, sines
from embed.structure import fractal_dimension, heaviest_path, mean_rank
from embed.vocabulary import OP_TYPES
from pipeline.core.arrays import Float32, Float64, Int32, frozen
from pipeline.core.devices import CostTable, contract_costs
from pipeline.core.errors import CyclicGraphError, UnknownNameError
from pipeline.core.graph import Graph, Grouping, contract, sum_per_group, topological_order

DEGREES = 8  # degrees 0 to 7 have a column each, larger ones share one
AXES = 5
LOG_SCALE = 10.0  # log1p of FLOPs and bytes reaches 25; a tenth of it lies beside the one-hot columns

BLOCKS = (
    *("types", "degrees", "shapes", "fractal", "position", "paths", "sizes", "times", "spread", "index"),
    *("degree_values", "dims", "index_encoding"),
    *("type_hash", "index_neighbours"),
)
# No `times`: what is learned on these carries over to other devices.
DEFAULT_BLOCKS = ("types", "degrees", "shapes", "fractal", "position", "paths", "sizes", "spread")
FROM_COSTS = ("times", "spread", "paths")
FROM_ORDER = ("position", "paths", "index", "index_encoding", "index_neighbours")


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


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """What features that rest on a topological order are computed on.

    The quotient graph with an order of it; where that is cyclic the raw graph, whose operations then speak for their
    groups: the least of their values counts. members: operations to the nodes of `graph`. groups: those to groups.
    """

    graph: Graph
    order: Int32
    members: Grouping
    groups: Grouping

    @classmethod
    def of(cls, graph: Graph, grouping: Grouping, quotient: Graph) -> Ordered:
        """Return the order of a quotient graph.

        Raises:
            CyclicGraphError: the raw graph has a cycle.
        """
        try:
            return cls(quotient, topological_order(quotient), grouping, Grouping.identity(quotient.n))
        except CyclicGraphError:
            return cls(graph, topological_order(graph), Grouping.identity(graph.n), grouping)

    def per_group(self, values: Float64) -> Float64:
        """Return the least of values [nodes, ...] in each group, [k, ...]."""
        least = np.full((self.groups.k, *values.shape[1:]), np.inf)
        np.minimum.at(least, self.groups.group, values)
        return least


def needs_costs(blocks: Sequence[str]) -> bool:
    """Return whether some of the blocks look at what operations cost.

    Raises:
        UnknownNameError: there is no such block.
    """
    for block in blocks:
        if block not in BLOCKS:
            raise UnknownNameError("block of features", block, BLOCKS)
    return any(block in FROM_COSTS for block in blocks)


def node_features(
    graph: Graph,
    grouping: Grouping,
    costs: CostTable | None,
    *,
    blocks: Sequence[str] = DEFAULT_BLOCKS,
    exact_up_to: int = 2000,
) -> Features:
    """Return the features of the k groups of a graph's n operations, the columns of the blocks one after another.

        types       type:<T>             share of members of operation type T (embed.vocabulary; "other" for the rest)
        degrees     in:<d>, out:<d>      one-hot degrees in the quotient graph
        shapes      axis:<i>, dynamic    log dimensions of the head's output, 0 where dynamic or absent; is one dynamic?
        fractal     fractal              fractal dimension in the quotient graph
        position    position, sin:, cos: topological rank in [0, 1], and its sine encoding
        paths       depth_in, depth_out, slack      of the heaviest path, as shares of the critical path
        sizes       flops, weight_bytes, out_bytes, in_bytes                    log1p / 10
        times       time:<device>, supported:<device>   log times, standardised over all entries
        spread      time_mean, time_least, time_most, supported_share   the same without the devices' names and number
        index       index                place in a topological order, from 0, unscaled
        degree_values   in=<d>, out=<d>  one-hot degrees, a column for every value that occurs
        dims        dim:<i>              dimensions of the head's output as they are, zero-padded; 0 where dynamic
        index_encoding  index_sin:, index_cos:  the sine encoding of the place in a topological order, from 1
        type_hash   hash:<i>             share of members whose type's name has a hash (embed.operation_identities)
        index_neighbours    place, before:<i>, after:<i>    place in a topological order, and its neighbours' places

    graph: the raw, acyclic graph. costs: seconds of its operations, or None; then `times` and `spread` are left out,
    and paths are weighted by FLOPs. exact_up_to: above this number of groups the fractal dimension looks at each
    node's neighbourhood only.

    Columns depend on the blocks alone, those of `times` on the devices' names as well, so rows of two models can be
    compared; those of `degree_values` and `dims` depend on the graph. Renumbering operations and groups renumbers the
    rows, provided no two members of one group tie for its head (see `contract`); blocks whose names begin with `index`
    alone depend on the numbering.

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024: `types`, `degree_values`, `dims`, `fractal` and `index_encoding`; `index` is the position feature of the code
    published with it; `type_hash` and `index_neighbours` follow Zhou et al., GDP, 2019.
    Deliberate differences: a fixed vocabulary instead of the types of the models at hand; of our own, `degrees`,
    `shapes` and `position` (degrees above 7 share a column, five log dimensions, operations of one level share the
    mean of their ranks) keep their columns for every graph, and so do all cost columns.

    Raises:
        UnknownNameError: there is no such block.
        CyclicGraphError: the raw graph has a cycle, and a block rests on an order.
    """
    needs_costs(blocks)
    quotient = contract(graph, grouping)
    makers: dict[str, Callable[[], Block]] = {
        "types": partial(_type_block, graph, grouping),
        "type_hash": partial(hashed_types, graph, grouping),
        "degrees": partial(_degree_block, quotient),
        "degree_values": partial(degree_values, quotient),
        "shapes": partial(_shape_block, quotient),
        "dims": partial(dims, quotient),
        "fractal": lambda: (
            ("fractal",),
            fractal_dimension(quotient.n, quotient.edges, exact_up_to=exact_up_to)[:, None],
        ),
        "sizes": partial(_size_block, quotient),
        **_from_order(graph, grouping, quotient, costs, blocks),
    }
    if costs is not None:
        coarse = contract_costs(costs, quotient, grouping)
        makers |= {"times": partial(_time_block, coarse), "spread": partial(_spread_block, coarse)}
    made = [makers[block]() for block in blocks if block in makers]
    columns = tuple(name for names, _ in made for name in names)
    values = np.concatenate([np.zeros((grouping.k, 0)), *(values for _, values in made)], axis=1)
    return Features(values.astype(np.float32), columns)


def _from_order(
    graph: Graph, grouping: Grouping, quotient: Graph, costs: CostTable | None, blocks: Sequence[str]
) -> Mapping[str, Callable[[], Block]]:
    """Return what makes the blocks that rest on a topological order; nothing if none of them is wanted."""
    if not any(block in FROM_ORDER for block in blocks):
        return {}
    at = Ordered.of(graph, grouping, quotient)
    return {
        "position": partial(_position_block, at),
        "paths": partial(_path_block, at, _path_weight(graph, costs)),
        "index": partial(_index_block, at),
        "index_encoding": partial(_index_encoding, at),
        "index_neighbours": partial(_index_neighbours, at, quotient),
    }


def _type_block(graph: Graph, grouping: Grouping) -> Block:
    """Return the mean of the members' one-hot types."""
    column = {name: i for i, name in enumerate(OP_TYPES)}
    width = len(OP_TYPES) + 1
    known = np.array([column.get(name, width - 1) for name in graph.type_names], dtype=np.int64)
    cell = grouping.group.astype(np.int64) * width + known[graph.op_type]
    count = np.bincount(cell, minlength=grouping.k * width).reshape(grouping.k, width)
    names = (*(f"type:{name}" for name in OP_TYPES), "type:other")
    return names, count / np.maximum(count.sum(axis=1, keepdims=True), 1)


def _degree_block(quotient: Graph) -> Block:
    """Return in-degree and out-degree, one-hot."""
    one_hot = np.eye(DEGREES + 1)
    labels = (*(str(d) for d in range(DEGREES)), f"{DEGREES}+")
    names = tuple(f"{side}:{label}" for side in ("in", "out") for label in labels)
    sides = [one_hot[np.minimum(degree, DEGREES)] for degree in (quotient.in_degree, quotient.out_degree)]
    return names, np.concatenate(sides, axis=1)


def _shape_block(quotient: Graph) -> Block:
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


def _size_block(quotient: Graph) -> Block:
    """Return FLOPs and bytes, logarithmic."""
    arriving = np.bincount(quotient.edges[1], weights=quotient.edge_bytes, minlength=quotient.n)
    sizes = np.column_stack([quotient.flops, quotient.weight_bytes, quotient.out_bytes, arriving])
    return ("flops", "weight_bytes", "out_bytes", "in_bytes"), np.log1p(sizes) / LOG_SCALE


def _time_block(costs: CostTable) -> Block:
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


def _spread_block(costs: CostTable) -> Block:
    """Return each group's mean log time over the devices that support it, standardised over the groups; how much the
    logs of its least and its greatest time differ from that mean; the share of devices that support it.

    A group that no device supports counts as an average one.
    """
    supported = costs.supported
    count = supported.sum(axis=1)
    logs = np.log1p(np.where(supported, costs.op_s, 0.0) * 1e6)  # times below a microsecond count as nothing
    mean = logs.sum(axis=1) / np.maximum(count, 1)
    known = count > 0
    deviation = float(mean[known].std()) if known.any() else 0.0
    scaled = (mean - mean[known].mean()) / deviation if deviation > 1e-12 else np.zeros_like(mean)
    least = np.where(supported, logs, np.inf).min(axis=1) - mean
    most = logs.max(axis=1) - mean  # where nothing is supported logs are 0, and elsewhere no less
    rows = np.where(known, np.stack([scaled, least, most]), 0.0)  # [3, k]
    names = ("time_mean", "time_least", "time_most", "supported_share")
    return names, np.column_stack([*rows, count / supported.shape[1]])


def _path_weight(graph: Graph, costs: CostTable | None) -> Float64:
    """Return float64 [n], what an operation adds to a path: its mean time, else its FLOPs, else 1 if all have none."""
    weight = graph.flops
    if costs is not None:
        total = np.where(costs.supported, costs.op_s, 0.0).sum(axis=1)
        weight = total / np.maximum(costs.supported.sum(axis=1), 1)
    return weight if weight.any() else np.ones(graph.n)


def _position_block(at: Ordered) -> Block:
    """Return the topological rank in [0, 1], and its encoding PE(rank, 2i) = sin(rank / base^(2i / d)), cosines after.

    Ranks go by levels, the most hops from a source. In the encoding they count from 1, as in the source.
    """
    from pipeline.shared.graphs import edge_depths  # compiled code, which whoever only asks for names does not need

    level = at.per_group(edge_depths(at.graph).astype(np.float64))
    rank = mean_rank(level)
    names, encoding = sines(rank + 1)
    return ("position", *names), np.column_stack([rank / max(level.size - 1, 1), encoding])


def _path_block(at: Ordered, operation_weight: Float64) -> Block:
    """Return depths and slack from weights of the operations, float64 [n].

    The depths are what must run before and after a node on the heaviest path through it, the slack is how much
    heavier the node could be without lengthening the critical path; all as shares of the critical path.
    """
    weight = sum_per_group(operation_weight, at.members)
    before = heaviest_path(at.graph, at.order, weight)
    after = heaviest_path(at.graph, at.order, weight, reverse=True)
    critical = float((before + weight + after).max(initial=0.0)) or 1.0
    slack = np.maximum(critical - (before + weight + after), 0.0)  # rounding can make it negative
    return ("depth_in", "depth_out", "slack"), at.per_group(np.column_stack([before, after, slack])) / critical


def _index_block(at: Ordered) -> Block:
    """Return the place in a topological order in which the smallest ready index comes first."""
    place = np.empty(at.graph.n)
    place[at.order] = np.arange(at.graph.n)
    return ("index",), at.per_group(place)[:, None]


def _index_neighbours(at: Ordered, quotient: Graph) -> Block:
    """Return the place in that order, in [0, 1], and those of neighbours."""
    _, index = _index_block(at)
    return neighbour_places(quotient, index[:, 0])


def _index_encoding(at: Ordered) -> Block:
    """Return the encoding of the place in that order, counted from 1."""
    _, index = _index_block(at)
    names, encoding = sines(index[:, 0] + 1)
    return tuple(f"index_{name}" for name in names), encoding
