"""Small layered graphs on unequal devices that each run some types of operations: instances in the style of GiPH.

Published kind, with the published values: size 10 and 15, fatness 0.1, 0.2 and 0.3, edge probability 0.1 and 0.2, five
types, 20 devices, mean work 100 and mean volume 100 with a spread of 20 %, mean speed 5 and mean bandwidth 100 with a
spread of 50 %. Height and widths are drawn as Topcuoglu et al. do; graphs have 28 operations on average.

Chosen by us: that edges come from any earlier layer, and that latencies spread by 100 %. Calibrated by us, from the
published 0.2 and 10: the probability of support, `SUPPORT`, and the mean latency, `LATENCY`, so that 600 instances come
near a random placement at 1.92 and HEFT at 1.285 times the longest path of least seconds, with contention-free links,
first come first served. Measured with seeds 0 to 3: random 1.92 to 1.94, HEFT 1.28 to 1.29; best known 1.23 (seed 0).

Source: Hu et al., GiPH: Generalizable Placement Learning for Adaptive Heterogeneous Computing (MLSys 2023); Topcuoglu,
Hariri and Wu, Performance-effective and low-complexity task scheduling (2002), section 5.2.
"""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.workload import Tags, Workload

SIZES = (10, 15)
FATNESS = (0.1, 0.2, 0.3)
EDGE_PROBABILITY = (0.1, 0.2)
TYPES = 5
DEVICES = 20
WORK = VOLUME = BANDWIDTH = 100.0
SPEED = 5.0
GRAPH_SPREAD, DEVICE_SPREAD = 0.2, 0.5
LATENCY, LATENCY_SPREAD = 7.0, 1.0
SUPPORT = 0.25

# What one published unit means: of time, of work, of volume.
UNIT_S, UNIT_FLOP, UNIT_BYTES = 1e-3, 1e8, 1e3


def instance(
    index: int, *, seed: int, devices: int = DEVICES, size: int | None = None, support: float = SUPPORT
) -> tuple[Workload, Topology]:
    """Return one graph with its devices; `times` has an entry per device, inf where it does not support the type.

    index: sizes, fatness and edge probability take turns over twelve indices. devices: how many. size: instead of the
    published sizes; the mean number of operations is a little above its double. support: the probability that a
    device supports a type; every type has at least one device.

    Raises:
        UsageError: an option makes no sense.
    """
    if index < 0 or devices < 1 or (size is not None and size < 1) or not 0 <= support <= 1:
        raise UsageError(
            f"There is no instance {index} of size {size} on {devices} devices of support {support}.",
            "Give an index of at least 0, a size and devices of at least 1, and a support between 0 and 1.",
        )
    rng = np.random.default_rng([seed, index])
    turn, which = divmod(index, len(SIZES))
    fatness = FATNESS[turn % len(FATNESS)]
    probability = EDGE_PROBABILITY[turn // len(FATNESS) % len(EDGE_PROBABILITY)]
    # int32 [n], layers: a source, then random widths of mean about fatness * sqrt(size), then a sink
    size = SIZES[which] if size is None else size
    height = int(np.ceil(rng.uniform(0, 2 * np.sqrt(size) / fatness)))
    widths = np.ceil(rng.uniform(0, 2 * fatness * np.sqrt(size), height)).astype(np.int64)
    layer = np.repeat(np.arange(height + 2), [1, *np.maximum(widths, 1), 1]).astype(np.int32)
    graph = _random_graph(layer, _random_reads(layer, probability, rng), rng)
    speed = _uniform_around(SPEED, DEVICE_SPREAD, (devices,), rng)
    able = rng.random((devices, TYPES)) < support  # [p, types]
    unable = np.flatnonzero(~able.any(axis=0))
    able[rng.integers(0, devices, unable.size), unable] = True
    # Devices d00, d01, ... with a random bandwidth and latency for every ordered pair
    bandwidth = _uniform_around(BANDWIDTH * UNIT_BYTES / UNIT_S, DEVICE_SPREAD, (devices, devices), rng)
    latency_s = _uniform_around(LATENCY * UNIT_S, LATENCY_SPREAD, (devices, devices), rng)
    np.fill_diagonal(bandwidth, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    specs = tuple(DeviceSpec(name, name, name) for name in (f"d{d:02d}" for d in range(devices)))
    topology = Topology(specs, bandwidth, latency_s)
    op_s = np.where(able[:, graph.op_type], graph.flops / UNIT_FLOP / speed[:, None] * UNIT_S, np.inf)  # [p, n]
    times = dict(zip(topology.names, op_s, strict=True))
    return Workload(graph, Tags(layer, np.full(graph.n, -1)), times=times), topology


def _uniform_around(mean: float, spread: float, shape: tuple[int, ...], rng: np.random.Generator) -> Float64:
    """Return float64 of the given shape, uniform within `spread` times the mean of the mean."""
    return mean * (1 + spread * rng.uniform(-1, 1, shape))


def _random_reads(layer: Int32, probability: float, rng: np.random.Generator) -> Bool:
    """Return bool [n, n], whether the column reads the row.

    Every earlier operation is read with equal probability, the source by none. Who would then read nothing reads one
    operation of the layer before; who would then be read by none is read by one of the layer behind.
    """
    n = layer.size
    reads: Bool = (layer[:, None] < layer) & (rng.random((n, n)) < probability)
    reads[0] = reads[:, -1] = False
    first = np.searchsorted(layer, np.arange(layer[-1] + 2))
    idle = np.flatnonzero(~reads.any(axis=0))[1:]
    reads[rng.integers(first[layer[idle] - 1], first[layer[idle]]), idle] = True
    unread = np.flatnonzero(~reads.any(axis=1))[:-1]
    reads[unread, rng.integers(first[layer[unread] + 1], first[layer[unread] + 2])] = True
    return reads


def _random_graph(layer: Int32, reads: Bool, rng: np.random.Generator) -> Graph:
    """Return the graph with random types, work and volumes; an operation's output is the largest tensor read of it."""
    n = layer.size
    producer, consumer = np.nonzero(reads)
    edge_bytes = np.round(_uniform_around(VOLUME * UNIT_BYTES, GRAPH_SPREAD, producer.shape, rng)).astype(np.int64)
    out_bytes = np.zeros(n, np.int64)
    np.maximum.at(out_bytes, producer, edge_bytes)
    return Graph(
        names=tuple(f"op{i}" for i in range(n)),
        op_type=rng.integers(0, TYPES, n, dtype=np.int16),
        type_names=tuple(f"type{i}" for i in range(TYPES)),
        edges=np.stack([producer, consumer]),
        flops=_uniform_around(WORK * UNIT_FLOP, GRAPH_SPREAD, (n,), rng),
        weight_bytes=np.zeros(n, np.int64),
        out_bytes=out_bytes,
        edge_bytes=edge_bytes,
        shape_ptr=np.zeros(n + 1, np.int64),
        shape_dim=np.zeros(0, np.int64),
        colocate=np.full(n, -1),
        kernel=np.full(n, -1),
    )
