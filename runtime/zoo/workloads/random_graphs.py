"""Random directed acyclic graphs: six families, any size, a chosen ratio of communication to computation.

Every graph is weakly connected. All edges of one operation carry its whole output. Without communication every device
needs the same seconds for an operation; `link_bytes_per_s` is the bandwidth that the ratio `ccr` refers to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from pipeline.core.arrays import Int32, Int64, distinct
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, components
from pipeline.core.workload import Tags, Workload

MEAN_S = 1e-3
SPREAD = 0.75  # sigma of the logarithms of seconds and bytes
FLOP_PER_S = 1e12
LINK_BYTES_PER_S = 1e10
WEIGHT_BYTES = 2**20
TYPES = 5

Order = Literal["random", "natural"]


class Shape(NamedTuple):
    """A graph without amounts: n nodes, pairs int64 [2, m] from producer to consumer, layer int32 [n] or None."""

    n: int
    pairs: Int64
    layer: Int32 | None = None


def layered(
    *, seed: int, n: int = 100, degree: float = 2.0, ccr: float = 1.0, fatness: float = 1.0, skip: float = 0.2
) -> Workload:
    """Return layers of random width between one source and one sink.

    degree: mean inputs per operation, at least 1. fatness: mean width of a layer in sqrt(n). skip: the share of
    inputs beyond the first that come from any earlier layer instead of the one before.
    Every operation but the source reads from the layer before it; every one but the sink has a reader.
    """
    _check_options(n=n, degree=degree, ccr=ccr, least_degree=1.0)
    if fatness <= 0 or not 0 <= skip <= 1:
        raise UsageError(f"fatness is {fatness} and skip is {skip}.", "Give fatness > 0 and skip between 0 and 1.")
    rng = np.random.default_rng(seed)
    # int32 [n], layers: one source, then widths of the given mean, then one sink
    # A mean of `width` over numbers from 1 up: 1 to 2 width - 1, the fraction left to chance.
    high = max(1.0, 2 * (fatness * np.sqrt(n)) - 1)
    draws = rng.integers(1, np.floor(high + rng.random(n)) + 1)
    end = np.cumsum(draws)
    between = np.searchsorted(end, np.arange(n - 2), side="right") + 1
    last = between[-1] + 1 if n > 2 else 1
    layer = np.concatenate([[0], between, [last]]).astype(np.int32)
    first = np.searchsorted(layer, np.arange(layer[-1] + 2))  # [layers + 1]
    extra = rng.poisson((degree - 1) * n)
    consumer = np.concatenate([np.arange(1, n), rng.integers(1, n, extra)])
    far = np.arange(consumer.size) >= n - 1
    far[far] = rng.random(extra) < skip
    low = np.where(far, 0, first[layer[consumer] - 1])
    pairs = np.stack([rng.integers(low, first[layer[consumer]]), consumer])
    unread = np.setdiff1d(np.arange(n - 1), pairs[0])
    after = layer[unread] + 1
    readers = np.stack([unread, rng.integers(first[after], first[after + 1])])
    return workload(Shape(n, np.concatenate([pairs, readers], axis=1), layer), ccr=ccr, rng=rng)


def erdos_renyi(*, seed: int, n: int = 100, degree: float = 2.0, ccr: float = 1.0) -> Workload:
    """Return a graph in which every two operations are joined with equal probability; degree: mean inputs of one."""
    _check_options(n=n, degree=degree, ccr=ccr)
    rng = np.random.default_rng(seed)
    return workload(Shape(n, _pairs_below(n, degree * n, rng)), ccr=ccr, rng=rng)


def stochastic_block(
    *,
    seed: int,
    n: int = 100,
    degree: float = 2.0,
    ccr: float = 1.0,
    order: Order = "random",
    blocks: int = 5,
    inside: float = 0.8,
) -> Workload:
    """Return a graph of blocks of nearly equal size with more edges inside than between them.

    inside: the expected share of edges inside blocks. order: "natural" puts one block after the other.
    """
    _check_options(n=n, degree=degree, ccr=ccr)
    if not 1 <= blocks <= n // 2 or not 0 <= inside <= 1:
        raise UsageError(
            f"There are {blocks} blocks for {n} operations, and {inside} of the edges inside.",
            f"Give 1 to {n // 2} blocks and a share between 0 and 1.",
        )
    rng = np.random.default_rng(seed)
    start = np.linspace(0, n, blocks + 1).astype(np.int64)
    size = np.diff(start)
    inner = size * (size - 1) // 2
    within = [
        start[b] + _pairs_below(int(size[b]), degree * n * inside * inner[b] / inner.sum(), rng) for b in range(blocks)
    ]
    pairs = np.concatenate([*within, _pairs_between(start, degree * n * (1 - inside), rng)], axis=1)
    return workload(_oriented(n, pairs, order, rng), ccr=ccr, rng=rng)


def watts_strogatz(
    *, seed: int, n: int = 100, degree: int = 2, ccr: float = 1.0, order: Order = "random", rewire: float = 0.2
) -> Workload:
    """Return a ring in which every operation is joined to the `degree` next ones, with random shortcuts.

    rewire: the probability that an edge ends at a random operation instead. order: "natural" runs along the ring.
    """
    _check_options(n=n, degree=degree, ccr=ccr, least_degree=1.0)
    if degree >= n / 2 or not 0 <= rewire <= 1:
        raise UsageError(
            f"degree is {degree} for {n} operations and rewire is {rewire}.",
            "Give a degree below n / 2, and rewire between 0 and 1.",
        )
    rng = np.random.default_rng(seed)
    near = np.repeat(np.arange(n), int(degree))
    far = (near + np.tile(np.arange(1, int(degree) + 1), n)) % n
    moved = rng.random(near.size) < rewire
    far[moved] = rng.integers(0, n, int(moved.sum()))
    return workload(_oriented(n, np.stack([near, far]), order, rng), ccr=ccr, rng=rng)


def barabasi_albert(
    *, seed: int, n: int = 100, degree: int = 2, ccr: float = 1.0, order: Order = "natural"
) -> Workload:
    """Return a graph that grew: each new operation joins up to `degree` old ones, the more joined the likelier.

    order: "natural" leads from old to new, so that the hubs are early.
    Source: Batagelj and Brandes, Efficient generation of large random networks (2005); all entries at once.
    """
    _check_options(n=n, degree=degree, ccr=ccr, least_degree=1.0)
    rng = np.random.default_rng(seed)
    draws = int(degree)
    young = np.repeat(np.arange(1, n), draws)
    # Entry 2 i is the young end of edge i, entry 2 i + 1 its old end: what a random earlier entry says. Entries 0 to
    # 2 draws - 1 stand for operation 0.
    end = np.concatenate([np.zeros(2 * draws, np.int64), np.repeat(young, 2)])
    says = np.arange(end.size)
    says[2 * draws + 1 :: 2] = rng.integers(0, 2 * draws * young)
    while np.any(says != says[says]):
        says = says[says]
    old = end[says[2 * draws + 1 :: 2]]
    return workload(_oriented(n, np.stack([old, young]), order, rng), ccr=ccr, rng=rng)


def series_parallel(*, seed: int, n: int = 100, ccr: float = 1.0, series: float = 0.5) -> Workload:
    """Return a two-terminal series-parallel graph; operation 0 is its source, 1 its sink.

    It grows from one edge by rounds: half of the edges take up a new operation each, which replaces the edge by a
    path over it, with probability `series`, or lays that path beside it.
    """
    _check_options(n=n, degree=1.0, ccr=ccr)
    if not 0 <= series <= 1:
        raise UsageError(f"series is {series}.", "Give a probability between 0 and 1.")
    rng = np.random.default_rng(seed)
    pairs = np.array([[0], [1]], dtype=np.int64)
    known = 2
    while known < n:
        m = pairs.shape[1]
        new = np.arange(known, min(n, known + (m + 1) // 2))
        chosen = rng.choice(m, new.size, replace=False)
        producer, consumer = pairs[:, chosen]
        kept = np.ones(m, dtype=bool)
        kept[chosen[rng.random(new.size) < series]] = False
        pairs = np.concatenate([pairs[:, kept], np.stack([producer, new]), np.stack([new, consumer])], axis=1)
        known += new.size
    return workload(Shape(n, pairs), ccr=ccr, rng=rng)


def workload(shape: Shape, *, ccr: float, rng: np.random.Generator) -> Workload:
    """Return a shape with random types, seconds, bytes and weights; parallel edges merge, components are joined.

    ccr: mean transfer time of an edge at LINK_BYTES_PER_S over the mean time of an operation.
    """
    n = shape.n
    edges = _connected(n, shape.pairs, rng)
    op_s = _draw_log_normal(n, rng) * MEAN_S
    volume = _draw_log_normal(n, rng)
    scale = ccr * op_s.mean() * LINK_BYTES_PER_S / max(float(volume[edges[0]].mean()), 1e-12)
    out_bytes = 4 * np.round(volume * scale / 4).astype(np.int64)
    types = tuple(f"type{i}" for i in range(TYPES))
    graph = Graph(
        names=tuple(f"op{i}" for i in range(n)),
        op_type=rng.integers(0, TYPES, n, dtype=np.int16),
        type_names=types,
        edges=edges,
        flops=op_s * FLOP_PER_S,
        weight_bytes=4 * np.round(_draw_log_normal(n, rng) * WEIGHT_BYTES / 4).astype(np.int64),
        out_bytes=out_bytes,
        edge_bytes=out_bytes[edges[0]],
        shape_ptr=np.arange(n + 1),
        shape_dim=out_bytes // 4,
        colocate=np.full(n, -1),
        kernel=np.full(n, -1),
    )
    tags = Tags.none(n) if shape.layer is None else Tags(shape.layer, np.full(n, -1))
    return Workload(graph, tags, times={"*": op_s}, link_bytes_per_s=LINK_BYTES_PER_S)


def _check_options(*, n: int, degree: float, ccr: float, least_degree: float = 0.0) -> None:
    """Raise UsageError unless the common options make sense."""
    faults = [
        fault
        for wrong, fault in (
            (n < 2, f"n is {n}, the least is 2"),
            (not least_degree <= degree <= n, f"degree is {degree}, the least is {least_degree:g} and the most is n"),
            (not 0 <= ccr < np.inf, f"ccr is {ccr}, the least is 0"),
        )
        if wrong
    ]
    if faults:
        raise UsageError(f"A random graph cannot be made: {'; '.join(faults)}.", "Change these options.")


def _draw_log_normal(n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return float64 [n], draws of a log-normal distribution of mean 1."""
    return rng.lognormal(-(SPREAD**2) / 2, SPREAD, n)


def _pairs_below(n: int, mean: float, rng: np.random.Generator) -> Int64:
    """Return int64 [2, m], m distinct pairs i < j below n, each likely alike, `mean` of them on average."""
    total = n * (n - 1) // 2
    if total == 0:
        return np.zeros((2, 0), np.int64)
    code = rng.choice(total, rng.binomial(total, min(1.0, mean / total)), replace=False)
    return _pair_of(code)


def _pair_of(code: Int64) -> Int64:
    """Return int64 [2, m], the pairs i < j that stand at the given places of the order (0, 1), (0, 2), (1, 2), ..."""
    j = ((1 + np.sqrt(1 + 8.0 * code)) / 2).astype(np.int64)
    j -= j * (j - 1) // 2 > code  # the root may be rounded up
    return np.stack([code - j * (j - 1) // 2, j])


def _pairs_between(start: Int64, mean: float, rng: np.random.Generator) -> Int64:
    """Return int64 [2, m], distinct pairs of different blocks, `mean` of them on average; block b is from start[b]."""
    size = np.diff(start)
    before = np.concatenate([[0], np.cumsum(start[1:-1] * size[1:])])  # pairs whose later block is 1, ..., b
    total = int(before[-1])
    if total == 0:
        return np.zeros((2, 0), np.int64)
    code = rng.choice(total, rng.binomial(total, min(1.0, mean / total)), replace=False)
    block = np.searchsorted(before, code, side="right")
    rest = code - before[block - 1]
    return np.stack([rest % start[block], start[block] + rest // start[block]])


def _oriented(n: int, pairs: Int64, order: Order, rng: np.random.Generator) -> Shape:
    """Return undirected pairs as edges from the smaller to the larger number, after renumbering if order is random."""
    if order == "random":
        pairs = rng.permutation(n)[pairs]
    return Shape(n, np.sort(pairs, axis=0))


def _connected(n: int, pairs: Int64, rng: np.random.Generator) -> Int32:
    """Return int32 [2, m], the pairs sorted and unique, without loops, with one edge more per further component.

    The edge leads from any smaller operation to the smallest of the component, so no cycle can come of it.
    """
    code = distinct(pairs[0] * n + pairs[1])
    code = code[code // n != code % n]
    part = components(n, (code // n).astype(np.int32), (code % n).astype(np.int32))
    _, smallest = np.unique(part.group, return_index=True)
    later = smallest[smallest > 0]
    code = np.sort(np.concatenate([code, rng.integers(0, np.maximum(later, 1)) * n + later]))
    return np.stack([code // n, code % n]).astype(np.int32)
