"""The calls of one inference as answers tell them, counted independently of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.offline.records import CallRecord
from pipeline.offline.scenario import LoadedScenario
from pipeline.offline.stages import broken_rules, nets_of, slowest_link_s

Block = tuple[str, int, int]  # ("call", device, number of the call), or ("cpu", device, operation)


class CheckedLatency(NamedTuple):
    """One inference, counted from the definition.

    value_s: seconds; inf where calls wait for one another. calls: by their ends. cpu_s: what each
    device computes outside of calls. faults: what is wrong with the placement, in words.
    """

    value_s: float
    calls: list[CallRecord]
    cpu_s: list[float]
    faults: list[str]


def checked_latency(problem: Problem, device: Sequence[int], turn: Sequence[int]) -> CheckedLatency:
    """Return what one inference takes, operation by operation and net by net; turn: the call of each operation."""
    graph, topology, costs = problem.graph, problem.topology, problem.costs
    if costs is None:
        raise ValueError("a problem without costs")
    cpu = [spec.kind == "cpu" for spec in topology.devices]
    block_of: list[Block] = [("cpu", d, i) if cpu[d] else ("call", d, turn[i]) for i, d in enumerate(device)]
    lasts_s: dict[Block, float] = {}
    for i, block in enumerate(block_of):
        lasts_s[block] = lasts_s.get(block, 0.0) + float(costs.op_s[i, device[i]])
    for _, members, size in nets_of(graph):
        blocks = {block_of[i] for i in members}
        for block in blocks if len(blocks) > 1 else ():
            if block[0] == "call":
                lasts_s[block] += slowest_link_s(topology, block[1], size)
    waits: dict[Block, set[Block]] = {block: set() for block in lasts_s}
    for a, b in graph.edges.T.tolist():
        if block_of[a] != block_of[b]:
            waits[block_of[b]].add(block_of[a])
    for kind, d, number in waits:
        if kind == "call":
            waits[kind, d, number] |= {b for b in waits if b[:2] == (kind, d) and b[2] < number}
    end_s = _ends_s(waits, lasts_s)
    faults = broken_rules(problem, device)
    if end_s is None:
        return CheckedLatency(math.inf, [], [0.0] * topology.p, [*faults, "calls of accelerators wait for one another"])
    calls: list[CallRecord] = [
        {
            "device": topology.names[block[1]],
            "number": block[2],
            "start_s": end_s[block] - lasts_s[block],
            "end_s": end_s[block],
            "operations": [graph.names[i] for i, other in enumerate(block_of) if other == block],
        }
        for block in sorted(lasts_s, key=lambda block: (end_s[block], block))
        if block[0] == "call"
    ]
    cpu_s = [sum(s for (kind, e, _), s in lasts_s.items() if kind == "cpu" and e == d) for d in range(topology.p)]
    return CheckedLatency(max(end_s.values(), default=0.0), calls, cpu_s, faults)


def _ends_s(waits: dict[Block, set[Block]], lasts_s: dict[Block, float]) -> dict[Block, float] | None:
    """Return when blocks end that wait for others; None where they wait for one another."""
    end_s: dict[Block, float] = {}
    left = dict(waits)
    while left:
        ready = [block for block, others in left.items() if others <= end_s.keys()]
        if not ready:
            return None
        for block in ready:
            end_s[block] = lasts_s[block] + max((end_s[other] for other in left.pop(block)), default=0.0)
    return end_s


def turns_of(placement: Placement, calls: int) -> list[int]:
    """Return the call of each operation, where accelerators may be called so often."""
    if placement.priority is None:
        return [0] * placement.device.size
    turns: list[int] = np.clip(placement.priority, 0, calls - 1).astype(int).tolist()
    return turns


def call_records(case: LoadedScenario, placement: Placement) -> list[CallRecord] | None:
    """Return the calls of a placement; None where the evaluator knows none."""
    calls = case.scenario.measurer().execution.call_limit
    if calls is None:
        return None
    return checked_latency(case.problem, placement.device.tolist(), turns_of(placement, calls)).calls
