"""What the benchmark `dominance` asks: cells drawn from a seed, and the instances that they stand for.

A cell is a graph on devices under an execution model, with memory limits and a number of seconds. The properties that
decide how hard it is are drawn as in a Latin hypercube: each in strata, every value in proportion to its weight.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks.common import ROOT
from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, sum_per_group, topological_order
from pipeline.core.tensors import INFERRED
from pipeline.core.workload import Tags, Workload
from pipeline.offline.scenario import LoadedScenario, Scenario, read_graph
from pipeline.placing.setup import problem_of
from pipeline.shared.contiguity import BACKWARD
from pipeline.shared.partition import colocation_grouping
from pipeline.store.store import json_digest
from runtime.machines.costs import cost_table
from runtime.machines.topology import machine_of
from runtime.zoo.workloads.random_graphs import Shape, layered
from runtime.zoo.workloads.random_graphs import workload as with_amounts

Value = TypeVar("Value")
Generator = np.random.Generator

MSR = Path(os.environ.get("PLACEWRIGHT_MSR", ROOT.parent / "shared" / "data" / "msr"))
LEAST, MOST = 5, 80_000  # operations
OWN_MEMORY = "of the file"  # limits as the graph's file has them
NEAR = 1.6  # factor by which a network may have more or fewer operations than were drawn
ROOM = 1.05  # least share of a device beyond what must fit into it
BLOCK = 8  # operations of a component
SPEEDS = 2.0  # unequal devices differ from the usual one by at most this factor, on average over operations
SPREAD = 0.5  # sigma of the logarithm of how much faster or slower one operation is on one device
UNSAID = 1.0  # seconds: the time that stands for no time where speeds are compared

# Execution models, with their weights and what they are called in scenarios.
MODELS: Mapping[str, tuple[float, Mapping[str, Any]]] = MappingProxyType(
    {
        "sequential": (3, {"evaluator": "sequential"}),
        **{
            f"listsched {level} {mode}": (1.5, {"evaluator": "listsched", "level": level, "ordered": mode == "order"})
            for level in ("T0", "T1", "T2")
            for mode in ("placement", "order")
        },
        **{
            f"pipelined {contiguity} {passes}": (
                1,
                {"evaluator": "pipelined", "contiguity": contiguity, "settings": {"measure.pipelined.passes": passes}},
            )
            for contiguity in ("free", "convex", "ordered")
            for passes in ("together", "apart")
        },
        "latency 1 call": (2, {"evaluator": "latency"}),
        "latency 3 calls": (2, {"evaluator": "latency", "calls": 3}),
    }
)
MEMORY: Mapping[float | None, float] = {1.05: 1, 1.2: 1, 1.5: 1, None: 1}  # over an equal share; None: no limit
DEVICES: Mapping[int, float] = {2: 2, 3: 1, 4: 2, 6: 1, 8: 1, 12: 1, 16: 1}
TWISTS: Mapping[str, float] = {"": 4, "zero-cost": 1, "colocated": 1, "one-device": 1}
MACHINES: Mapping[str, float] = {
    "equal": 2,
    "unequal": 2,
    "accelerators": 1.5,
    "two-level": 1,
    "ring": 1,
    "p100": 1,
    "cpu+gpu": 1,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """An instance, the rules it is placed by, and the seconds that every method gets.

    graph: "zoo:NAME?options"; "msr:FILE" of the published inputs, without its suffix; "own:SHAPE?options"; "mirror:"
    before any of them adds a backward pass. topology: a preset; "" for the graph's own. model: see MODELS. memory: of
    each device over its share of all, None without limit, or OWN_MEMORY. twist: see TWISTS. unequal: whether every
    operation is faster on some devices than on others. seed: of what is drawn in it, and of the placers.
    """

    graph: str
    topology: str
    model: str
    seconds: float
    memory: float | str | None = None
    twist: str = ""
    unequal: bool = False
    seed: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @property
    def key(self) -> str:
        """Return the digest of the description."""
        return json_digest(self.document)[:10]

    @property
    def title(self) -> str:
        """Return the description in words."""
        memory = "no limit" if self.memory is None else f"memory {self.memory}"
        parts = (
            self.graph,
            self.topology or "its own devices",
            "unequal times" if self.unequal else "",
            self.twist,
            self.model,
            memory,
            f"{self.seconds:g} s",
        )
        return ", ".join(filter(None, parts))

    @property
    def scenario(self) -> Scenario:
        """Return the rules as the command line has them."""
        return Scenario(
            self.graph, self.topology, memory=self.memory is not None, seed=self.seed, **MODELS[self.model][1]
        )

    @property
    def file(self) -> Path | None:
        """Return the file of published inputs that the graph is read from, None if it is made here."""
        return MSR / f"{self.graph.removeprefix('msr:')}.json" if self.graph.startswith("msr:") else None


LATENCY_LAYERS = "msr:latency-inputs/LayerGraphs"
# Where the portfolio was once behind one of its members.
KNOWN: tuple[Cell, ...] = (
    Cell(f"{LATENCY_LAYERS}/gnmt_inference", "", "latency 1 call", 20.0, OWN_MEMORY),
    Cell(f"{LATENCY_LAYERS}/inceptionv3_inference", "", "latency 1 call", 5.0, OWN_MEMORY),
    Cell(f"{LATENCY_LAYERS}/inceptionv3_inference", "", "latency 1 call", 20.0, OWN_MEMORY),
    Cell(f"{LATENCY_LAYERS}/resnet50_inference", "", "latency 1 call", 5.0, OWN_MEMORY),
    Cell("zoo:gnmt4?steps=3&fidelity=core&training=false", "accelerators:6x1", "latency 1 call", 20.0, 1.2),
    Cell("zoo:inception-v3", "accelerators:6x1", "latency 1 call", 5.0, 1.2),
    Cell("zoo:txl2?fidelity=core", "equal:2", "listsched T2 placement", 5.0),
    Cell("zoo:txl2?fidelity=core", "equal:4", "listsched T2 order", 5.0, 1.2),
    Cell("zoo:nas-rnn?index=0", "equal:4", "listsched T2 placement", 5.0),
    Cell("zoo:nas-rnn?index=1", "equal:8", "listsched T2 order", 1.0, 1.05),
)


class Family(NamedTuple):
    """Graphs of one kind.

    networks: texts and about how many operations each has; empty: `text` makes one of any size. repeated: whether the
    backward pass of a network is a mirrored copy. published: on accelerators alone, and with nothing added.
    """

    networks: tuple[tuple[str, int], ...] = ()
    text: Callable[[int, Generator], str] | None = None
    repeated: bool = False
    published: bool = False


def _random(name: str, *options: str) -> Family:
    """Return a family of random graphs; options: further ones, "{n}" is the number of operations."""

    def text(n: int, rng: Generator) -> str:
        given = [f"n={n}", f"ccr={rng.choice(('0.1', '1', '10'))}", *options]
        return f"{name}?{'&'.join(given)}"

    return Family(text=text, repeated=True)


def _drawn(name: str, count: int = 32) -> Family:
    """Return one of Placeto's families, whose graphs go by their numbers."""
    return Family(tuple((f"zoo:{name}?index={i}", 300) for i in range(count)))


def _zoo(**networks: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"zoo:{text}", n) for text, n in networks.items())


CORE, FORWARD = "fidelity=core", "fidelity=core&training=false"
FAMILIES: Mapping[str, Family] = {
    "chain": _random("own:chain"),
    "star": _random("own:star"),
    "components": _random("own:components"),
    "layered": _random("zoo:layered", "degree=2"),
    "wide": _random("zoo:layered", "degree=1.5", "fatness=4"),
    "erdos-renyi": _random("zoo:erdos-renyi", "degree=2"),
    "stochastic-block": _random("zoo:stochastic-block", "blocks=2"),
    "watts-strogatz": _random("zoo:watts-strogatz"),
    "barabasi-albert": _random("zoo:barabasi-albert"),
    "series-parallel": _random("zoo:series-parallel"),
    "tiled": Family(_zoo(chainmm=76, ffnn=180, **{"llama-block": 182, "llama-layer": 224})),
    "nas-cnn": _drawn("nas-cnn"),
    "nas-rnn": _drawn("nas-rnn"),
    "nas-nmt": _drawn("nas-nmt"),
    "gnmt": Family(
        _zoo(
            **{
                f"gnmt2?steps=2&{FORWARD}": 198,
                f"gnmt4?steps=3&{FORWARD}": 480,
                f"gnmt2?steps=3&{CORE}": 713,
                f"gnmt4?steps=10&{CORE}": 4_049,
                f"gnmt2?{CORE}": 9_260,
                "gnmt2": 28_052,
                "gnmt4": 46_559,
            }
        )
    ),
    "txl": Family(_zoo(**{f"txl2?segments=1&{CORE}": 217, f"txl2?{CORE}": 753, f"txl8?{CORE}": 2_859, "txl8": 10_196})),
    "rnnlm": Family(
        _zoo(
            **{
                f"rnnlm2?steps=3&{FORWARD}": 109,
                f"rnnlm2?steps=3&{CORE}": 267,
                f"rnnlm8?steps=20&{CORE}": 6_283,
                f"rnnlm8?{CORE}": 12_563,
                "rnnlm8": 34_017,
            }
        )
    ),
    "transformer": Family(
        _zoo(
            **{
                f"bert-base-training?layers=2&{FORWARD}": 107,
                f"bert-base-training?layers=2&{CORE}": 256,
                "moe-block?training=false": 322,
                "moe-block": 611,
                "bert-base-training": 2_529,
            }
        )
    ),
    "convolutional": Family(
        _zoo(
            **{
                f"resnet50-training?{FORWARD}": 338,
                f"wavenet4?{CORE}": 1_163,
                "resnet50-training": 1_544,
                "wavenet4": 3_546,
                "nasnet-mobile": 7_673,
                "inception-v3-training": 24_687,
            }
        )
    ),
    "model": Family(
        _zoo(
            **{
                "bilstm-128": 10,
                "two-towers": 35,
                "gnmt-encoder": 64,
                "mixture-of-experts": 72,
                "ensemble": 98,
                "nasnet-cells": 177,
                "randwire": 239,
                "inception-v3": 326,
            }
        ),
        repeated=True,
    ),
    "published": Family(
        (
            ("msr:latency-inputs/LayerGraphs/bert24_inference", 32),
            ("msr:latency-inputs/LayerGraphs/resnet50_inference", 177),
            ("msr:latency-inputs/OperatorGraphs/bert_l-3_inference", 235),
            ("msr:latency-inputs/OperatorGraphs/resnet50_inference", 604),
            ("msr:throughput-inputs/LayerGraphs/bert24_training", 64),
            ("msr:throughput-inputs/OperatorGraphs/bert_l-3_training", 600),
        ),
        published=True,
    ),
}


def draw(count: int, seed: int, seconds: Sequence[float]) -> tuple[Cell, ...]:
    """Return the known cells and `count` drawn ones, the same for the same arguments.

    seconds: limits of time, the commonest first: of three, half of the cells have the first and a sixth the last.
    """
    rng = np.random.default_rng(seed)
    models = _column({name: weight for name, (weight, _) in MODELS.items()}, count, rng)
    limits = _column({s: float(len(seconds) - i) for i, s in enumerate(seconds)}, count, rng)
    memory, devices, twists = (_column(dict(values), count, rng) for values in (MEMORY, DEVICES, TWISTS))
    quantile = (rng.permutation(count) + rng.random(count)) / count
    sizes = np.exp(math.log(LEAST) + quantile * math.log(MOST / LEAST)).astype(int).tolist()
    families: Counter[str] = Counter()
    machines: Counter[str] = Counter()
    drawn = []
    for i in range(count):
        fitting = [name for name, family in FAMILIES.items() if _offered(family, sizes[i], models[i], twists[i])]
        family = _least_used(dict.fromkeys(fitting, 1.0), families, rng)
        kind = _least_used(_machines_of(devices[i], FAMILIES[family]), machines, rng)
        graph = _graph_text(FAMILIES[family], sizes[i], models[i], rng)
        drawn.append(
            Cell(
                graph,
                _topology_text(kind, devices[i]),
                models[i],
                limits[i],
                memory[i],
                twists[i],
                kind == "unequal",
                int(rng.integers(2**31)),
            )
        )
    known = [replace(cell, seconds=_nearest(cell.seconds, seconds)) for cell in KNOWN]
    return tuple(dict.fromkeys((*known, *drawn)))


def _nearest(limit_s: float, seconds: Sequence[float]) -> float:
    return min(seconds, key=lambda s: abs(s - limit_s))


def strata(cell: Cell) -> dict[str, str]:
    """Return {property: the stratum that a cell lies in}, but for sizes, which only its instance tells."""
    return {
        "model": cell.model,
        "family": family_of(cell.graph),
        "machine": cell.topology.partition(":")[0] or "its own",
        "memory": "no limit" if cell.memory is None else str(cell.memory),
        "twist": cell.twist or "none",
        "seconds": f"{cell.seconds:g}",
    }


def family_of(graph: str) -> str:
    """Return what kind of graph a text stands for: its name without options and what is before it."""
    name = graph.removeprefix("mirror:").partition("?")[0]
    return "published" if name.startswith("msr:") else name.partition(":")[2]


def size_stratum(n: int) -> str:
    """Return the decade that a number of operations lies in, as words."""
    low = 10 ** int(math.log10(n))
    return f"{low:,} to {10 * low:,}"


def _column(weights: Mapping[Value, float], count: int, rng: Generator) -> list[Value]:
    """Return `count` values in proportion to their weights, by largest remainders, in random order."""
    values, share = list(weights), np.array(list(weights.values()))
    exact = share / share.sum() * count
    often = np.floor(exact).astype(int)
    missing = count - int(often.sum())
    often[np.argsort(-(exact - often), kind="stable")[:missing]] += 1
    column = [value for value, times in zip(values, often.tolist(), strict=True) for _ in range(times)]
    return [column[i] for i in rng.permutation(count).tolist()]


def _least_used(weights: Mapping[str, float], used: Counter[str], rng: Generator) -> str:
    """Return the value that is furthest behind its weight, one of them at random, and count it."""
    least = min(used[value] / weight for value, weight in weights.items())
    behind = [value for value, weight in weights.items() if used[value] / weight == least]
    chosen = behind[int(rng.integers(len(behind)))]
    used[chosen] += 1
    return chosen


def _offered(family: Family, n: int, model: str, twist: str) -> bool:
    """Return whether a family has a graph of about n operations for a model and a twist."""
    if family.published and twist:
        return False
    if model.endswith("apart") and not (family.repeated or family.published):
        return False
    return not family.networks or bool(_networks(family, n, model))


def _networks(family: Family, n: int, model: str) -> list[str]:
    """Return the networks of a family that have about n operations and suit a model."""
    if family.repeated and model.endswith("apart"):
        n //= 2
    near = [text for text, size in family.networks if max(size, n) <= NEAR * min(size, n)]
    if family.published and model.endswith("apart"):
        near = [text for text in near if text.endswith("training")]
    if family.published and model.startswith("latency"):
        near = [text for text in near if not text.endswith("training")]
    return near


def _graph_text(family: Family, n: int, model: str, rng: Generator) -> str:
    mirrored = family.repeated and model.endswith("apart")
    if family.text is None:
        networks = _networks(family, n, model)
        text = networks[int(rng.integers(len(networks)))]
    else:
        text = family.text(max(LEAST, n // 2) if mirrored else n, rng)
    return f"mirror:{text}" if mirrored else text


def _machines_of(p: int, family: Family) -> dict[str, float]:
    """Return the kinds of machines that can have p devices, with their weights."""
    if family.published:
        return {"accelerators": MACHINES["accelerators"]}
    fits = {"two-level": p >= 4 and p % 2 == 0, "ring": p >= 3, "cpu+gpu": p == 2}
    return {kind: weight for kind, weight in MACHINES.items() if fits.get(kind, True)}


def _topology_text(kind: str, p: int) -> str:
    sizes = {"two-level": f":2x{p // 2}", "accelerators": f":{p - 1}x1", "cpu+gpu": ""}
    return kind + sizes.get(kind, f":{p}")


def loaded(cell: Cell) -> LoadedScenario:
    """Return the instance of a cell, made anew.

    Raises:
        PlacewrightError: a file is missing, or the parts of the cell do not go together.
    """
    rng = np.random.default_rng(cell.seed)
    workload = _twisted(_workload(cell.graph, cell), cell.twist, rng)
    own = workload.memory_bytes if cell.memory == OWN_MEMORY else 0
    devices = machine_of(
        cell.topology or workload.topology, link_bytes_per_s=workload.link_bytes_per_s, memory_bytes=own
    )
    if cell.memory != OWN_MEMORY:
        devices = devices.without_memory_limits()
    costs = cost_table(workload, devices)
    if cell.twist == "zero-cost":
        free = (workload.graph.flops == 0)[:, None] & costs.supported
        costs = replace(costs, op_s=np.where(free, 0.0, costs.op_s))
    if cell.unequal:
        costs = _unequal(costs, rng)
    scenario = cell.scenario
    ordered = scenario.ordered or scenario.calls > 1

    def of(topology: Topology, table: CostTable) -> LoadedScenario:
        problem = problem_of(workload.graph, topology, table, ordered=ordered, tags=workload.tags)
        return LoadedScenario(scenario, problem, table, None)

    topology = devices.topology
    limited = _limited(of(topology, costs), cell) if isinstance(cell.memory, float) else topology
    return of(limited, _one_device(workload.graph, costs, limited) if cell.twist == "one-device" else costs)


def _workload(graph: str, cell: Cell) -> Workload:
    """Return the graph that a text stands for.

    Raises:
        PlacewrightError: there is none.
    """
    kind, _, text = graph.partition(":")
    if kind == "mirror":
        return _mirrored(_workload(text, cell))
    if kind == "own":
        return _own(text, cell.seed)
    if kind == "zoo":
        return read_graph(Scenario(graph, seed=cell.seed)).workload
    scale = 1000.0 if text.startswith("throughput-inputs/LayerGraphs") else 1.0  # see `read_msr`
    return read_graph(Scenario(str(cell.file), cost_scale=scale)).workload


def _own(text: str, seed: int) -> Workload:
    """Return a graph of an awkward shape."""
    name, _, query = text.partition("?")
    options = dict(pair.split("=") for pair in query.split("&"))
    n, ccr = int(options["n"]), float(options["ccr"])
    rng, i = np.random.default_rng(seed), np.arange(n)
    if name == "chain":
        return with_amounts(Shape(n, np.stack([i[:-1], i[1:]])), ccr=ccr, rng=rng)
    if name == "star":
        hub = n // 2
        pairs = np.stack([np.minimum(np.delete(i, hub), hub), np.maximum(np.delete(i, hub), hub)])
        return with_amounts(Shape(n, pairs), ccr=ccr, rng=rng)
    if name == "components":
        whole = layered(n=n, ccr=ccr, seed=seed)
        block = whole.graph.edges // BLOCK
        return replace(whole, graph=_with_edges(whole.graph, block[0] == block[1]))
    raise UsageError(f"There is no shape {name}.", "Use chain, star or components.")


def _with_edges(graph: Graph, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Graph:
    return replace(graph, edges=graph.edges[:, kept], edge_bytes=graph.edge_bytes[kept], reads=INFERRED)


def _mirrored(workload: Workload) -> Workload:
    """Return a graph with a backward pass: a copy whose edges are turned round, colocated, of twice the seconds.

    A copy also reads what the operation it is of puts out.
    """
    graph, n = workload.graph, workload.graph.n
    (a, b), i = graph.edges.astype(np.int64), np.arange(n)
    pairs = np.concatenate([graph.edges, np.stack([n + b, n + a]), np.stack([i, n + i])], axis=1)
    edge_bytes = np.concatenate([graph.edge_bytes, graph.edge_bytes, graph.out_bytes])
    order = np.lexsort((pairs[1], pairs[0]))
    group = colocation_grouping(graph).group
    types = (*graph.type_names, BACKWARD)
    out_bytes = np.zeros(2 * n, np.int64)
    np.maximum.at(out_bytes, pairs[0], edge_bytes)
    both = Graph(
        names=(*graph.names, *(f"{name}/back" for name in graph.names)),
        op_type=np.concatenate([graph.op_type, np.full(n, len(types) - 1)]),
        type_names=types,
        edges=pairs[:, order].astype(np.int32),
        flops=np.concatenate([graph.flops, 2 * graph.flops]),
        weight_bytes=np.concatenate([graph.weight_bytes, np.zeros(n, np.int64)]),
        out_bytes=out_bytes,
        edge_bytes=edge_bytes[order],
        shape_ptr=np.concatenate([graph.shape_ptr, graph.shape_ptr[-1] + graph.shape_ptr[1:]]),
        shape_dim=np.tile(graph.shape_dim, 2),
        colocate=np.tile(group, 2),
        kernel=np.full(2 * n, -1),
    )
    tags = Tags(np.tile(workload.tags.layer, 2), np.tile(workload.tags.step, 2))
    times = {kind: np.concatenate([op_s, 2 * op_s]) for kind, op_s in workload.times.items()}
    return replace(workload, graph=both, tags=tags, times=times)


def _twisted(workload: Workload, twist: str, rng: Generator) -> Workload:
    """Return a graph of which a third has no FLOPs, or is colocated with what is beside it; others as they are."""
    graph, n = workload.graph, workload.graph.n
    if twist == "zero-cost":
        free = rng.random(n) < 1 / 3
        silent = free[graph.edges[0]] & (rng.random(graph.m) < 1 / 2)
        edge_bytes = np.where(silent, 0, graph.edge_bytes)
        changed = replace(graph, flops=np.where(free, 0.0, graph.flops), edge_bytes=edge_bytes, reads=INFERRED)
        return replace(workload, graph=changed)
    if twist == "colocated":
        group = colocation_grouping(graph).group.astype(np.int64)
        edges = topological_order(graph)
        starts = rng.random(n) < 1 / 4  # sets of four on average, each of consecutive operations
        run = np.empty(n, np.int64)
        run[edges] = np.cumsum(starts)
        taken = rng.random(int(run.max()) + 1) < 1 / 3
        label = np.where(taken[run] & (graph.colocate < 0), int(group.max()) + 1 + run, -1)
        _, dense = np.unique(np.where(label < 0, group, label), return_inverse=True)
        return replace(workload, graph=replace(graph, colocate=dense.astype(np.int32)))
    return workload


def _unequal(costs: CostTable, rng: Generator) -> CostTable:
    """Return costs by which devices differ, and every operation differs between devices."""
    n, p = costs.op_s.shape
    speed = SPEEDS ** rng.uniform(-1, 1, p)
    return replace(costs, op_s=costs.op_s / speed * rng.lognormal(0.0, SPREAD, (n, p)))


def _limited(case: LoadedScenario, cell: Cell) -> Topology:
    """Return the devices with memory for a share of all that is in proportion to their speed.

    What is shared are the weights, with what the operations put out where that counts as well: then as much as one
    device alone would hold at most. CPUs hold anything where there are others. Every set of colocated operations fits.
    """
    graph, topology = case.graph, case.topology
    units = colocation_grouping(graph)
    need = sum_per_group(graph.weight_bytes.astype(float), units)
    total = float(graph.weight_bytes.sum())
    if case.simulator().execution.activations:
        total = float(case.simulator().simulate(np.zeros((1, graph.n), np.int32)).peak_bytes.max())
        around = graph.out_bytes + np.bincount(graph.edges[1], weights=graph.edge_bytes, minlength=graph.n)
        most = np.zeros(units.k)
        np.maximum.at(most, units.group, around)
        need = need + most
    kinds = np.array([device.kind for device in topology.devices])
    capped = (kinds != "cpu") | bool((kinds == "cpu").all())
    speed = _speed(case.costs)
    pinned = _pinned_bytes(graph, topology) if cell.twist == "one-device" else np.zeros(topology.p)
    least = ROOM * np.maximum(float(need.max()), pinned)
    share = float(cell.memory or 0.0) * total * speed / speed.sum()
    limit = np.where(capped, np.maximum(np.maximum(share, least), 1.0), 0.0)
    devices = zip(topology.devices, limit.tolist(), strict=True)
    return replace(topology, devices=tuple(replace(d, memory_bytes=math.ceil(most)) for d, most in devices))


def _speed(costs: CostTable) -> Float64:
    """Return float64 [p], how fast devices are on average."""
    finite = np.where(costs.supported, costs.op_s, 0.0).mean(axis=0)
    return 1.0 / np.where(finite > 0, finite, UNSAID)


def _first_ones(graph: Graph) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bool [n], the first twentieth of the operations, with what is colocated with them."""
    first = np.zeros(graph.n, bool)
    first[topological_order(graph)[: max(1, graph.n // 20)]] = True
    units = colocation_grouping(graph)
    with_first = np.zeros(units.k, bool)
    np.logical_or.at(with_first, units.group, first)
    return with_first[units.group]


def _pinned_bytes(graph: Graph, topology: Topology) -> Float64:
    """Return float64 [p], weights of what only one device supports."""
    held = np.zeros(topology.p)
    held[-1] = graph.weight_bytes[_first_ones(graph)].sum()
    return held


def _one_device(graph: Graph, costs: CostTable, topology: Topology) -> CostTable:
    """Return costs by which the first operations are supported by the last device alone."""
    only = np.arange(topology.p) == topology.p - 1
    refused = _first_ones(graph)[:, None] & ~only & np.isfinite(costs.op_s[:, -1:])
    return replace(costs, op_s=np.where(refused, np.inf, costs.op_s))
