"""Which device each of several models goes to as a whole, so that the busiest device is as little busy as can be.

A model is one operation without edges, which takes a device the share of each second that its requests do; the largest
load is the objective of the simulator `pipelined`, and its exact placers prove the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Budget
from pipeline.core.scenario import LoadScenario
from pipeline.core.stages import Placer, Predictor, Subject
from pipeline.placing.setup import problem_of
from pipeline.settings import registry


@dataclass(frozen=True, slots=True)
class ModelAssignment:
    """Where models go.

    device: model -> name of its device. load: share of its time that the busiest device works at the stated rates; at
    more than 1 / load times the rates its queue grows without end. lower_bound: what no assignment is below; within
    1e-4 of `load`, the solver's tolerance, where that is proven best.
    """

    device: Mapping[str, str]
    load: float
    lower_bound: float


def assign_models(
    scenario: LoadScenario,
    devices: Sequence[DeviceSpec],
    alone_s: Mapping[tuple[str, str], float],
    *,
    memory_bytes: Mapping[str, int] | None = None,
    placer: str = "milp",
    seconds: float = 60.0,
) -> ModelAssignment:
    """Return the assignment of least largest load that is found within some seconds.

    alone_s: (model, device) -> seconds of a request that runs alone; models go nowhere else. memory_bytes: of each
    model; what devices have holds all that goes to them. A closed loop keeps any device busy all the time: each of its
    requests in flight counts as a load of 1. placer: `milp` needs the least time for proofs; every other may be asked.

    Raises:
        DeviceError: a model may run on no device, or they do not fit together.
    """
    names = tuple(load.name for load in scenario.models)
    rates = scenario.rates()
    load = np.full((len(names), len(devices)), math.inf)
    for i, model in enumerate(scenario.models):
        for d, device in enumerate(devices):
            if (model.name, device.name) in alone_s and (not model.devices or device.name in model.devices):
                per_s = rates[model.name] * alone_s[model.name, device.name]
                load[i, d] = model.concurrency if model.closed else per_s
    nowhere = [name for name, row in zip(names, load, strict=True) if not np.isfinite(row).any()]
    if nowhere:
        raise DeviceError(
            f"No device was found to run {', '.join(nowhere)}.",
            f"Allow another device for each; there are {', '.join(d.name for d in devices)}.",
        )
    topology = Topology.uniform(tuple(devices), bytes_per_s=1.0, latency_s=0.0)
    origin: tuple[Origin, ...] = tuple("modelled" for _ in devices)
    costs = CostTable(names, topology.names, load, np.zeros(len(devices)), origin)
    graph = _graph_of(names, [(memory_bytes or {}).get(name, 0) for name in names])
    problem = problem_of(graph, topology, costs)
    predictor: Predictor = registry.build_implementation("measure", "pipelined")
    simulator = predictor.bind(Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0))
    method: Placer = registry.build_implementation("place", placer)
    unfit = DeviceError(
        f"No assignment of {len(names)} models to {', '.join(topology.names)} was found that fits their memory.",
        "Leave models out, or allow more devices.",
    )
    try:
        answer = method.place(problem, simulator, Budget(seconds=seconds), seed=0, progress=lambda _: None)
    except DeviceError as error:  # of placers, which speak of operations
        raise unfit from error
    if not math.isfinite(answer.value_s):
        raise unfit
    placed = zip(names, answer.best.placement.device.tolist(), strict=True)
    return ModelAssignment(
        {name: topology.names[d] for name, d in placed}, answer.value_s, min(answer.value_s, answer.lower_bound_s)
    )


def _graph_of(names: tuple[str, ...], weight_bytes: Sequence[int]) -> Graph:
    """Return models as operations without edges."""
    n, nothing = len(names), np.zeros(0, np.int64)
    return Graph(
        names=names,
        op_type=np.zeros(n, np.int16),
        type_names=("Model",),
        edges=np.zeros((2, 0), np.int32),
        flops=np.zeros(n),
        weight_bytes=np.array(weight_bytes, np.int64),
        out_bytes=np.zeros(n, np.int64),
        edge_bytes=nothing,
        shape_ptr=np.zeros(n + 1, np.int64),
        shape_dim=nothing,
        colocate=np.full(n, -1),
        kernel=np.full(n, -1),
    )
