"""Makes the instances of the open benchmark: graphs, machines, and the index of both.

    python -m benchmarks.make_instances

Everything follows from what stands here: running it again writes the same files. Larger instances are in the index
alone, with what makes them; `python -m benchmarks.make_instances NAME ...` writes their graphs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from coarsen.reading.graph.document import FORMAT
from pipeline.core.devices import CostTable, Origin, Topology
from pipeline.core.graph import Graph, topological_order
from pipeline.offline.curriculum import seen_by
from pipeline.offline.scenario import Scenario, load
from pipeline.shared.graphs import edge_depths
from policy.place.exact.shared.bounds import least_memory
from runtime.machines.topology_text import topology_text
from runtime.zoo.workloads.giph import instance as giph_instance
from runtime.zoo.workloads.placeto import FAMILIES

HERE = Path(__file__).absolute().parent / "instances"
GENERATED = "generated"  # the folder of graphs that are not kept
INDEX_FORMAT = "placewright.instances/1"
DIGITS = 6  # of times in the files
ROOM = 1.05  # of what surely holds the weights, at least; of what one device alone would hold see `Setting`


@dataclass(frozen=True, slots=True)
class Setting:
    """A machine and the rules by which it runs.

    topology: a preset with its size. memory: of a device over an equal part of what one alone would hold; 0 for the
    preset's own.
    """

    topology: str
    evaluator: str = "listsched"
    level: str = "T2"
    order: bool = False
    contiguity: str = "free"
    calls: int = 1
    memory: float = 0.0

    @property
    def rules(self) -> dict[str, Any]:
        """Return the rules as the index has them."""
        order = self.order or self.calls > 1
        known: dict[str, dict[str, Any]] = {
            "listsched": {"level": self.level},
            "pipelined": {"contiguity": self.contiguity},
            "latency": {"calls": self.calls},
        }
        return {"evaluator": self.evaluator, "order": order, **known.get(self.evaluator, {})}

    @property
    def label(self) -> str:
        """Return what names of instances say of it."""
        words = [self.topology, self.evaluator]
        words += {"listsched": [self.level], "pipelined": [self.contiguity], "latency": [f"calls{self.calls}"]}.get(
            self.evaluator, []
        )
        words += ["order"] if self.order else []
        return "-".join([*words, *([f"memory{round(100 * self.memory)}"] if self.memory else [])])


# Graphs that are trained, or drawn: each is asked about in a few of these, in turn.
DATAFLOW = (
    Setting("equal:2"),
    Setting("equal:4"),
    Setting("equal:8"),
    Setting("equal:4", memory=2.0),
    Setting("two-level:2x4"),
    Setting("equal:4", order=True),
    Setting("unequal:6"),
    Setting("accelerators:4x1", "pipelined"),
    Setting("ring:4", level="T1"),
    Setting("equal:8", order=True),
    Setting("equal:16"),
    Setting("equal:4", "pipelined", contiguity="ordered", memory=2.0),
    Setting("equal:3", level="T0"),
    Setting("equal:4", memory=1.5),
    Setting("p100:8"),
    Setting("unequal:4", "pipelined", contiguity="convex"),
    Setting("equal:4", level="T0", order=True),
)
# Inferences of whole networks.
INFERENCE = (
    Setting("cpu+gpu", "sequential"),
    Setting("cpu+gpu"),
    Setting("accelerators:2x1", "latency"),
    Setting("accelerators:1x1", "latency", calls=2),
    Setting("accelerators:4x2", "pipelined"),
    Setting("sockets:2", "sequential"),
    Setting("sockets:2"),
    Setting("accelerators:4x1", "pipelined", contiguity="ordered"),
    Setting("unequal:3", "sequential"),
    Setting("sockets:4", level="T1-bare"),
    Setting("equal:4", "pipelined", contiguity="convex"),
)
GIPH = (Setting("own:8"), Setting("own:12"), Setting("own:16", order=True), Setting("own:8", level="T0"))
RANDOM = ("layered", "erdos-renyi", "stochastic-block", "watts-strogatz", "barabasi-albert", "series-parallel")
SIZES_AND_RATIOS = ((20, 1.0), (40, 0.1), (60, 10.0), (100, 1.0), (150, 0.3), (300, 1.0))
MODELS: Mapping[str, str] = {  # models of the zoo, and the family of each
    "bert-base": "bert",
    "bilstm-128": "bilstm",
    "ensemble": "ensemble",
    "four-towers": "towers",
    "gnmt-encoder": "gnmt",
    "inception-v3": "inception",
    "mixture-of-experts": "moe",
    "nasnet-cells": "nasnet",
    "randwire": "randwire",
    "resnet50": "resnet",
    "two-towers": "towers",
}
NETWORKS: Mapping[str, tuple[str, ...]] = {
    "rnnlm": tuple(f"rnnlm2?steps={steps}&fidelity=core" for steps in (2, 4, 8)),
    "gnmt": ("gnmt2?steps=2&fidelity=core", "gnmt2?steps=5&fidelity=core", "gnmt4?steps=3&fidelity=core"),
    "txl": ("txl2?segments=1&fidelity=core", "txl2?segments=3&fidelity=core"),
    "inception": (
        "inception-v3-training?fidelity=core&training=false",
        "inception-v3-training?fidelity=core",
    ),
    "resnet": ("resnet50-training?fidelity=core&training=false", "resnet50-training?fidelity=core"),
    "nasnet": ("nasnet-mobile?cells=1&fidelity=core&training=false",),
    "amoebanet": ("amoebanet?layers=3&fidelity=core&training=false",),
    "bert": (
        *(f"bert-base-training?layers={layers}&fidelity=core" for layers in (1, 3)),
        *(f"bert-base-training?layers={layers}&fidelity=core&training=false" for layers in (2, 12)),
    ),
    "moe": ("moe-block?fidelity=core", "moe-block?fidelity=core&training=false"),
    "wavenet": ("wavenet2?layers=5&fidelity=core", "wavenet2?layers=7&fidelity=core&training=false"),
    "nmt": ("nmt?steps=2&fidelity=core", "nmt?steps=4&fidelity=core"),
    "tiled": ("chainmm", "ffnn", "llama-block", "llama-layer"),
}
# Instances that would come up, and of which nobody knows a placement that fits.
UNSOLVED = frozenset(
    {
        "barabasi-albert-n20-ccr1-s1-equal-4-listsched-T2-memory150",
        "bert-base-training-layers1-equal-4-pipelined-ordered-memory200",
        "inception-v3-training-forward-equal-4-listsched-T2-memory150",
        "layered-n100-ccr1-s6-equal-4-listsched-T2-memory150",
        "layered-n20-ccr1-s1-equal-4-listsched-T2-memory200",
        "nas-cnn-index1-equal-4-pipelined-ordered-memory200",
        "nas-nmt-index2-equal-4-pipelined-ordered-memory200",
        "nas-rnn-index2-equal-4-pipelined-ordered-memory200",
        "rnnlm2-steps8-equal-4-listsched-T2-memory150",
        "rnnlm2-steps8-equal-4-pipelined-ordered-memory200",
        "series-parallel-n20-ccr1-s1-equal-4-listsched-T2-memory200",
        "txl2-segments3-equal-4-pipelined-ordered-memory200",
    }
)
PLACETO_GRAPHS = 8  # of each of its families
LARGE: tuple[tuple[str, str, Setting], ...] = (
    ("rnnlm", "rnnlm4?steps=40", Setting("equal:4")),
    ("gnmt", "gnmt4", Setting("equal:4")),
    ("gnmt", "gnmt8", Setting("p100x8", order=True)),
    ("txl", "txl8", Setting("equal:8")),
    ("inception", "inception-v3-training", Setting("equal:4")),
    ("amoebanet", "amoebanet", Setting("two-level:2x4")),
    ("wavenet", "wavenet4", Setting("equal:4")),
    ("nasnet", "nasnet-large", Setting("equal:8", order=True)),
    ("layered", "layered?n=20000", Setting("equal:8")),
    ("series-parallel", "series-parallel?n=50000", Setting("equal:16")),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes an instance. graph: as `placewright search` takes it; giph?index=I for GiPH's."""

    family: str
    graph: str
    seed: int
    setting: Setting

    @property
    def graph_label(self) -> str:
        """Return what the graph is called."""
        text = self.graph.replace("training=false", "forward").replace("fidelity=core", "").replace("=", "")
        seed = f"-s{self.seed}" if self.family in RANDOM else ""
        return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") + seed

    @property
    def name(self) -> str:
        """Return the name of the instance; no two are equal."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.graph_label}-{self.setting.label}")


def recipes() -> Iterator[Recipe]:
    """Yield what makes every instance, the large ones last."""
    yield from (recipe for recipe in drawn_recipes() if recipe.name not in UNSOLVED)


def drawn_recipes() -> Iterator[Recipe]:
    """Yield what makes every instance, and those that nobody can solve."""
    turns = cycle(DATAFLOW)
    for family in RANDOM:
        for number, (n, ratio) in enumerate(SIZES_AND_RATIOS):
            for seed in (2 * number, 2 * number + 1):
                text = f"{family}?n={n}&ccr={ratio:g}"
                yield from (Recipe(family, text, seed, setting) for setting in islice(turns, 2))
    for family in FAMILIES:
        for index in range(PLACETO_GRAPHS):
            yield from (Recipe(family, f"{family}?index={index}", 0, each) for each in islice(turns, 2))
    for family, graphs in NETWORKS.items():
        for text in graphs:
            forward = "training=false" in text
            yield from (Recipe(family, text, 0, each) for each in islice(turns, 2 if forward else 3))
    for index in range(12):
        yield from (
            Recipe("giph", f"giph?index={index}", 0, each) for each in islice(cycle(GIPH), index % 4, index % 4 + 2)
        )
    turns = cycle(INFERENCE)
    for model, family in MODELS.items():
        yield from (Recipe(family, model, 0, each) for each in islice(turns, 7))
    yield from (Recipe(family, text, 0, setting) for family, text, setting in LARGE)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """An instance as it is written: a graph of which producers come first, a machine, and what operations cost."""

    graph: Graph
    topology: Topology
    costs: CostTable


def make(recipe: Recipe) -> Made:
    """Return the instance of a recipe."""
    setting = recipe.setting
    if recipe.family == "giph":
        index, devices = int(recipe.graph.partition("=")[2]), int(setting.topology.partition(":")[2])
        workload, topology = giph_instance(index, seed=0, devices=devices)
        op_s = np.stack([workload.times[name] for name in topology.names], axis=1)
        given: tuple[Origin, ...] = tuple("given" for _ in topology.devices)
        costs = CostTable(workload.graph.names, topology.names, op_s, np.zeros(topology.p), given)
        return Made(workload.graph, topology, costs)
    contiguity = setting.contiguity if setting.evaluator == "pipelined" else ""
    scenario = Scenario(
        f"zoo:{recipe.graph}",
        setting.topology,
        evaluator=setting.evaluator,
        level=setting.level if setting.evaluator == "listsched" else "",
        contiguity=contiguity,
        calls=setting.calls,
        seed=recipe.seed,
    )
    case = load(scenario)
    topology = case.topology
    if setting.memory:
        everything = np.zeros((1, case.graph.n), np.int32)
        free = tuple(replace(device, memory_bytes=0) for device in topology.devices)
        unlimited = replace(case, problem=case.problem.on(topology=replace(topology, devices=free)))
        total = float(unlimited.simulator().simulate(everything).peak_bytes.sum())
        room = max(int(setting.memory * total / topology.p), int(ROOM * least_memory(unlimited.problem)))
        topology = replace(topology, devices=tuple(replace(d, memory_bytes=room) for d in topology.devices))
    return Made(case.graph, topology, case.costs)


def graph_document(made: Made) -> dict[str, Any]:
    """Return a graph with its times as JSON values: producers first, every output told, times of DIGITS digits."""
    graph, op_s = made.graph, made.costs.op_s
    order = topological_order(graph).tolist()
    alike = bool(np.all(op_s == op_s[:, :1]))
    by_kind = {d.kind for d in made.topology.devices}
    columns = {d.kind: i for i, d in enumerate(made.topology.devices)}
    kinds_tell = all(np.array_equal(op_s[:, i], op_s[:, columns[d.kind]]) for i, d in enumerate(made.topology.devices))

    def seconds(value: float) -> float | None:
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None

    def times(i: int) -> Any:
        if alike:
            return seconds(op_s[i, 0])
        if kinds_tell:
            return {kind: seconds(op_s[i, columns[kind]]) for kind in sorted(by_kind)}
        return {d.name: seconds(op_s[i, x]) for x, d in enumerate(made.topology.devices)}

    operations = []
    for i in order:
        row = {
            "name": graph.names[i],
            "type": graph.type_names[graph.op_type[i]],
            "flops": float(f"{graph.flops[i]:.{DIGITS}g}"),
            "weight_bytes": int(graph.weight_bytes[i]),
            "output_bytes": int(graph.out_bytes[i]),
            "time_s": times(i),
        }
        operations.append(row | ({"colocate": int(graph.colocate[i])} if graph.colocate[i] >= 0 else {}))
    edges = [
        {"from": graph.names[a], "to": graph.names[b], "bytes": size, "output": port}
        for (a, b, _, size), port in zip(graph.read_rows(), graph.reads.port.tolist(), strict=True)
    ]
    return {"format": FORMAT, "operations": operations, "edges": edges}


def tags_of(recipe: Recipe, made: Made) -> dict[str, Any]:
    """Return what is known of an instance: family, size, width, traffic over work, who has seen its family."""
    graph, costs = made.graph, made.costs
    least_s = np.where(np.isfinite(costs.op_s), costs.op_s, np.inf).min(axis=1)
    sent_s = made.topology.mean_transfer_s(graph.edge_bytes).sum()
    width = int(np.bincount(edge_depths(graph)).max())
    size = next(word for word, most in SIZE_WORDS if graph.n <= most)
    return {
        "family": recipe.family,
        "size": size,
        "operations": graph.n,
        "edges": graph.m,
        "devices": made.topology.p,
        "width": width,
        "traffic_over_work": float(f"{sent_s / max(least_s.sum(), 1e-30):.3g}"),
        "seen_by": list(seen_by(recipe.graph)),
    }


# Families for testing alone. Sets are fixed, whoever learns from what: tags say who has seen a family.
TESTING = ("bilstm", "ensemble", "giph", "gnmt", "inception", "moe", "randwire", "rnnlm", "tiled", "towers", "txl")
SIZE_WORDS = (("up to 50", 50), ("up to 150", 150), ("up to 500", 500), ("up to 2000", 2000), ("larger", 10**9))


def set_of(recipe: Recipe) -> str:
    """Return the set of an instance, the same for all instances of a graph."""
    if recipe.family in TESTING:
        return "test"
    drawn = hashlib.sha256(recipe.graph_label.encode()).digest()[0] / 256
    return "train" if drawn < 0.5 else "validation" if drawn < 0.7 else "test"


def compressed(document: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a document as bytes of gzip that depend on nothing else, and the sha256 of its text."""
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text, 9, mtime=0), hashlib.sha256(text).hexdigest()


def write_instances(folder: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Write all instances below a folder and return the index; names: large ones whose graphs are wanted."""
    entries: dict[str, Any] = {}
    graphs: dict[str, str] = {}  # sha256 of a graph's text -> its file
    machines: dict[
        str, str
    ] = {}  # a machine as TOML -> its file; a graph that knows its links changes those of presets
    for recipe in recipes():
        large = (recipe.family, recipe.graph, recipe.setting) in LARGE
        if large and (folder / "index.json").exists() and recipe.name not in names:
            known = json.loads((folder / "index.json").read_bytes())["instances"].get(recipe.name)
            if known is not None:
                entries[recipe.name] = known
                continue
        made = make(recipe)
        data, digest = compressed(graph_document(made))
        machine = topology_text(made.topology)
        called = recipe.setting.topology.replace(":", "-").replace("+", "-")
        if recipe.setting.memory or recipe.family == "giph":
            called = recipe.name
        where = GENERATED if large else "graphs"
        file = graphs.setdefault(digest, f"{where}/{recipe.graph_label}-{digest[:6]}.json.gz")
        of_machine = machines.setdefault(
            machine, f"machines/{called}-{hashlib.sha256(machine.encode()).hexdigest()[:6]}.toml"
        )
        for path, content in ((folder / file, data), (folder / of_machine, machine.encode())):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not large or path.suffix == ".toml" or recipe.name in names:
                path.write_bytes(content)
        entries[recipe.name] = {
            "graph": file,
            "sha256": digest,
            "machine": of_machine,
            "rules": recipe.setting.rules,
            "tags": tags_of(recipe, made),
            "set": set_of(recipe),
            "made_by": {"graph": recipe.graph, "seed": recipe.seed, "topology": recipe.setting.topology},
            "kept": not large,
        }
    index = {"format": INDEX_FORMAT, "instances": entries}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return index


if __name__ == "__main__":
    written = write_instances(HERE, sys.argv[1:])["instances"]
    print(f"{len(written)} instances, {sum(not each['kept'] for each in written.values())} of them not kept")
