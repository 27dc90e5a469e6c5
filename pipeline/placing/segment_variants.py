"""Finalists run in segments: made of fewer of them, by which runners, and what the placement then is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.core.deadline import Deadline
from pipeline.core.graph import Graph
from pipeline.core.measurement import seconds_of
from pipeline.core.placement import Placement
from pipeline.core.stages import Candidate, Evaluator, Subject
from pipeline.placing.shortlist import FinalistRow, candidate_name

if TYPE_CHECKING:
    from runtime.measuring.contest.variant import Variant

SEGMENT_S = 3e-5  # what a segment takes beyond its operations; docs/executor.md
# Worth trying, the most promising first; all but that with the best finalist alone.
RUNNERS: Mapping[str, Sequence[str]] = {"latency": ("threads", "level"), "throughput": ("pipeline", "serial")}


def segment_variants(
    subject: Subject, row: FinalistRow, placement: Placement, objective: str, *, first: bool
) -> list[tuple[Variant, Placement]]:
    """Return the variants that run a finalist in segments, each with the placement as it is deployed.

    Where throughput counts, every device has a request to work on and one that waits. first: whether it is the best
    finalist. A placement that parts operations that must run in one sub-model has none.
    """
    from runtime.measuring.contest.dataflow import executor_variant
    from runtime.measuring.contest.variant import Variant

    graph, devices = subject.graph, subject.topology.devices
    variants = []
    for runner in RUNNERS[objective][: None if first else 1]:
        name = f"{candidate_name(row)} {runner}"
        variant = executor_variant(name, row["placer"], graph, placement, devices, runner=runner)
        if isinstance(variant, Variant):
            requests = 2 * len(variant.devices) if objective == "throughput" else 1
            variants.append((replace(variant, requests=requests), executed_placement(variant, graph, placement)))
    return variants


def fewer_segments(subject: Subject, evaluator: Evaluator, candidate: Candidate, deadline: Deadline) -> Candidate:
    """Return the candidate with whole segments moved to other devices, one by one, as long as that promises less.

    What counts is what the evaluator predicts, and SEGMENT_S for every segment: a simulator of devices that overlap
    sees no harm in a small operation elsewhere, as long as nobody waits for it. A candidate whose best is a single
    device stays as it is.

    candidate: of the subject's operations.
    """
    best, count = candidate, _count_segments(subject.graph, candidate.placement)
    better = True
    while better:
        better = False
        value_s = seconds_of(best.result) + SEGMENT_S * count
        trials = _one_segment_moves(subject.graph, best.placement)
        answers = sorted(zip(trials, evaluator.evaluate(trials), strict=True), key=lambda pair: seconds_of(pair[1]))
        for trial, answer in answers:
            if deadline.passed or seconds_of(answer) >= value_s:
                break
            segments = _count_segments(subject.graph, trial)
            if seconds_of(answer) + SEGMENT_S * segments < value_s:
                best, count, better = replace(best, placement=trial, result=answer), segments, True
                break
    return best if len(best.placement.devices_used) > 1 else candidate


def _count_segments(graph: Graph, placement: Placement) -> int:
    from runtime.executor.segments import segment_graph

    return len(segment_graph(graph, placement).segments)


def _one_segment_moves(graph: Graph, placement: Placement) -> list[Placement]:
    """Return the placements in which one segment has another device."""
    from runtime.executor.segments import segment_graph
    from runtime.measuring.process.affinity import normalise_placement

    index = {name: i for i, name in enumerate(graph.names)}
    moves = []
    for spec in segment_graph(graph, placement).segments:
        for d in (d for d, name in enumerate(placement.devices) if name != spec.device):
            device = placement.device.copy()
            device[[index[name] for name in spec.operations]] = d
            moves.append(normalise_placement(graph, replace(placement, device=device)))
    return moves


def executed_placement(variant: Variant, graph: Graph, placement: Placement) -> Placement:
    """Return the placement as segments run it: what lies between operations that must not be parted is with them."""
    from runtime.measuring.process.affinity import normalise_placement

    index = {name: i for i, name in enumerate(graph.names)}
    device = placement.device.copy()
    for part in variant.segments.parts if variant.segments is not None else ():
        device[[index[name] for name in part.operations]] = placement.devices.index(part.device)
    return normalise_placement(graph, replace(placement, device=device))
