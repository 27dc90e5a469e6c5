"""The stages of a pipeline as answers tell them, and an independent count of what each device has to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.core.devices import Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.offline.records import PipelineStageRecord
from pipeline.offline.scenario import LoadedScenario
from pipeline.shared.contiguity import forward_edges, substitute_edges
from pipeline.shared.partition import colocation_grouping


def checked_loads(
    problem: Problem, device: Sequence[int], counts: Sequence[bool] | None = None
) -> tuple[list[float], list[str]]:
    """Return (the load of every device in seconds, what is wrong with a placement, in words).

    Counted from the definition, operation by operation and net by net, without the simulator. counts: bool [n], which
    operations count, and the nets of which; all if None.
    """
    graph, topology, costs = problem.graph, problem.topology, problem.costs
    load_s = [0.0] * topology.p
    for i, d in enumerate(device):
        load_s[d] += 0.0 if costs is None or (counts is not None and not counts[i]) else float(costs.op_s[i, d])
    for maker, members, size in nets_of(graph):
        if counts is not None and not counts[maker]:
            continue
        used = {device[i] for i in members}
        for d in used if len(used) > 1 else ():
            if topology.devices[d].kind != "cpu":
                load_s[d] += slowest_link_s(topology, d, size)
    return load_s, broken_rules(problem, device)


def nets_of(graph: Graph) -> list[tuple[int, set[int], int]]:
    """Return, for every tensor that is read, (who makes it, who makes and reads it, the most bytes that one reads)."""
    nets: dict[int, tuple[int, set[int], int]] = {}
    for u, v, tensor, size in graph.read_rows():
        _, members, largest = nets.get(tensor, (u, {u}, 0))
        nets[tensor] = (u, members | {v}, max(largest, size))
    return list(nets.values())


def slowest_link_s(topology: Topology, d: int, size: int) -> float:
    """Return the seconds of so many bytes over the slowest link of a device; 0 where it has none."""
    ends = [(d, e) for e in range(topology.p) if e != d] + [(e, d) for e in range(topology.p) if e != d]
    seconds = (float(topology.link_latency_s[e] + size / topology.link_bytes_per_s[e]) for e in ends)
    return max(seconds, default=0.0)


def broken_rules(problem: Problem, device: Sequence[int]) -> list[str]:
    """Return what is wrong with a placement whatever is made of it, in words."""
    graph, topology = problem.graph, problem.topology
    held, faults = [0] * topology.p, list[str]()
    for i, d in enumerate(device):
        held[d] += int(graph.weight_bytes[i])
        if not problem.allowed[i, d]:
            faults.append(f"{topology.names[d]} may not run {graph.names[i]}")
    for spec, bytes_held in zip(topology.devices, held, strict=True):
        if 0 < spec.memory_bytes < bytes_held:
            faults.append(f"{spec.name} holds {bytes_held} bytes of {spec.memory_bytes}")
    labels: dict[int, int] = {}
    for i, label in enumerate(graph.colocate.tolist()):
        if label >= 0 and labels.setdefault(label, device[i]) != device[i]:
            faults.append(f"{graph.names[i]} is parted from what it must share a device with")
    return faults


def device_order(problem: Problem, device: Sequence[int]) -> list[int] | None:
    """Return the devices in use in an order that all edges of the forward pass follow; None if there is none."""
    graph = problem.graph
    edges = np.concatenate([forward_edges(graph), substitute_edges(graph, colocation_grouping(graph))], axis=1)
    before: dict[int, set[int]] = {d: set() for d in sorted(set(device))}
    for a, b in edges.T.tolist():
        if device[a] != device[b]:
            before[device[b]].add(device[a])
    order: list[int] = []
    while before:
        ready = [d for d, others in before.items() if others <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
        del before[ready[0]]
    return order


def stage_records(case: LoadedScenario, placement: Placement) -> list[PipelineStageRecord] | None:
    """Return the stages of a placement, first to last; None where the evaluator is no pipeline, or no order exists."""
    if case.scenario.measurer().execution.stage_rules is None:
        return None
    device = placement.device.tolist()
    order = device_order(case.problem, device)
    if order is None:
        return None
    load_s, _ = checked_loads(case.problem, device)
    names = case.topology.names
    return [
        {
            "devices": [names[d]],
            "replicas": 1,
            "load_s": load_s[d],
            "operations": [case.graph.names[i] for i in np.flatnonzero(placement.device == d).tolist()],
        }
        for d in order
    ]


def replicated_records(case: LoadedScenario, microbatches: int) -> list[PipelineStageRecord]:
    """Return the best contiguous stages where each may run on several accelerators that take turns.

    microbatches: of a batch, after which replicas exchange the weights' gradients; 0 for inference, without exchange.

    Raises:
        UsageError: the graph has no contiguous stages that fit, or too many devices or ideals.
    """
    from policy.place.exact.pipelined.replicated import replicated_stages

    stages = replicated_stages(case.problem, microbatches)
    alone = Grouping.identity(case.graph.n)
    names = np.array(case.graph.names)[alone.group]
    return [
        {
            "devices": [case.topology.names[d] for d in stage.devices],
            "replicas": len(stage.devices),
            "load_s": stage.load_s,
            "operations": names[stage.operations].tolist(),
        }
        for stage in stages
    ]
