"""Models on a simulated desktop, whose devices are as fast as published, or on two devices of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipeline.bench.cases import SIMULATOR, BenchCase
from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, Origin, Topology
from pipeline.core.graph import Graph, Grouping, contract, weight_side
from pipeline.core.settings import CoarsenSettings
from pipeline.core.stages import Measurer, Subject
from pipeline.placing.journal import Journal
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.stages.execution import execute_tasks
from pipeline.stages.host import look_at_machine, look_at_model
from pipeline.stages.plan import plan_tasks
from pipeline.store.store import Entry, Store, json_digest
from pipeline.store.task import Progress


class Link(NamedTuple):
    """What a tensor pays between the two devices."""

    bytes_per_s: float
    latency_s: float


DESKTOP = "cpu+gpu"
# Evaluators without hardware: what stands between the CPU and the GPU. None: the desktop's own PCIe link.
LINKS: Mapping[str, Link | None] = MappingProxyType({"sequential": None, "shared": Link(40e9, 2e-6)})
# Named devices take the precision of the machine unless told; random weights do not tolerate bf16.
HALVES = ",".join(f"{name}=CPU{{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}}" for name in "AB")


class Latency(NamedTuple):
    """What a whole model takes on the CPU alone and on the GPU alone, in seconds."""

    cpu_s: float
    gpu_s: float


# Source: Duan et al., NeurIPS 2024 (HSDAG), table 2: i9-12900K and Data Center GPU Flex 170.
PUBLISHED: Mapping[str, Latency] = MappingProxyType(
    {
        "resnet50": Latency(0.0160, 0.00781),
        "inception-v3": Latency(0.0128, 0.0120),
        "bert-base": Latency(0.00638, 0.00277),
    }
)


def simulated(model: str, path: Path, store: Store, progress: Progress, *, evaluator: str = "sequential") -> BenchCase:
    """Return a model on a desktop's CPU and GPU, whose speeds are such that each alone takes what was published.

    A model of which nothing was published takes what a roofline of the two chips says. evaluator: one of LINKS.

    Raises:
        ModelError: the model cannot be read.
    """
    from runtime.machines.topology import preset_machine

    entries = _run_stages(path, plain_settings(), store, progress, upto="read")
    graph = payload.load_graph(entries["read"].path("graph.npz"))
    desktop = preset_machine(DESKTOP).without_memory_limits()
    costs = desktop_costs(graph, PUBLISHED.get(model))
    link, topology = LINKS[evaluator], desktop.topology
    if link is not None:
        topology = Topology.uniform(topology.devices, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)
    subject = Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)
    measurer: Measurer = registry.build_implementation("measure", SIMULATOR)
    figures = measurer.bind(subject).fingerprint
    return BenchCase(
        model, measurer, subject, {"evaluator": evaluator, "version": measurer.version, "figures": figures}
    )


def plain_settings() -> Settings:
    """Return settings under which nothing is fused, so that a model can be read without looking at the machine."""
    return Settings(devices=(HALVES,), coarsen=CoarsenSettings(use=("fold",)))


def desktop_costs(graph: Graph, published: Latency | None) -> CostTable:
    """Return what a model's operations cost on the desktop; each column adds up to what was published, if anything was.

    The times are a roofline's. Reading its weights counts for the operation that reads them; what is computed from
    constants alone is computed before the first inference and takes no time wherever it is placed.
    """
    from runtime.machines.roofline import roofline_s
    from runtime.machines.topology import preset_machine

    machine = preset_machine(DESKTOP)
    folded: Grouping = registry.build_implementation("coarsen", "fold").coarsen(graph, seed=0)
    merged = contract(graph, folded)
    root = np.flatnonzero(~(weight_side(graph) & (graph.out_degree > 0)))  # one of each group
    op_s: Float64 = np.zeros((graph.n, machine.topology.p))
    for d, chip in enumerate(machine.chips):
        if chip is not None:
            op_s[root, d] = roofline_s(merged, chip)[folded.group[root]]
    if published is not None:
        op_s *= np.array(published) / op_s.sum(axis=0)
    names = machine.topology.names
    origin: tuple[Origin, ...] = tuple("modelled" for _ in names)
    return CostTable(graph.names, names, op_s, np.zeros(len(names)), origin)


def real(model: str, path: Path, settings: Settings, store: Store, journal: Path, progress: Progress) -> BenchCase:
    """Return a model on the devices of the settings, profiled once; what is measured goes to a file.

    Measured by `measure.use` of the settings.

    Raises:
        DeviceError: this machine does not have the devices.
        ModelError: the model cannot be read.
    """
    entries = _run_stages(path, settings, store, progress, upto="profile")
    read = entries["read"]
    read.path("model.bin")
    graph = payload.load_graph(read.path("graph.npz"))
    costs, topology = payload.load_profile(entries["profile"].path("profile.npz"))
    subject = Subject(read.path("model.xml"), graph, Grouping.identity(graph.n), topology, costs, 0)
    name = settings.measure.use
    measurer: Measurer = registry.build_implementation("measure", name, settings.params_of("measure", name))
    evaluator = measurer.bind(subject)
    identity = {
        "evaluator": "hetero",
        "measurer": name,
        "version": measurer.version,
        "figures": evaluator.fingerprint,
        "profile": [read.key, entries["profile"].key],
    }
    journal.parent.mkdir(parents=True, exist_ok=True)
    return BenchCase(model, measurer, subject, identity, Journal.of(journal, json_digest(identity), evaluator))


def _run_stages(path: Path, settings: Settings, store: Store, progress: Progress, *, upto: str) -> dict[str, Entry]:
    """Return stage -> what it left in the store, made now where it is not there."""
    store.prepare()
    machine = None if upto == "read" else look_at_machine(settings.devices)
    tasks = plan_tasks(look_at_model(path), settings, machine, upto=upto)
    outcomes = execute_tasks(tasks, store, progress=progress, previous={})
    return {stage: outcome.entry for stage, outcome in outcomes.items()}
