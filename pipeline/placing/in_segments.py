"""Finalists run in segments: by which runners, and what the placement then is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.placing.finals import candidate_name

if TYPE_CHECKING:
    from runtime.measuring.variant import Variant

# Worth trying, the most promising first; all but that with the best finalist alone.
RUNNERS: Mapping[str, Sequence[str]] = {"latency": ("threads", "level"), "throughput": ("pipeline", "serial")}


def in_segments(
    subject: Subject, row: Mapping[str, Any], placement: Placement, objective: str, *, first: bool
) -> list[tuple[Variant, Placement]]:
    """Return the variants that run a finalist in segments, each with the placement as it is deployed.

    Where throughput counts, every device has a request to work on and one that waits. first: whether it is the best
    finalist. A placement that parts operations that must run in one sub-model has none.
    """
    from runtime.measuring.dataflow import executor_variant
    from runtime.measuring.variant import Variant

    graph, devices = subject.graph, subject.topology.devices
    found = []
    for runner in RUNNERS[objective][: None if first else 1]:
        name = f"{candidate_name(row)} {runner}"
        made = executor_variant(name, row["placer"], graph, placement, devices, runner=runner)
        if isinstance(made, Variant):
            requests = 2 * len(made.devices) if objective == "throughput" else 1
            found.append((replace(made, requests=requests), executed(made, graph, placement)))
    return found


def executed(variant: Variant, graph: Graph, placement: Placement) -> Placement:
    """Return the placement as segments run it: what lies between operations that must not be parted is with them."""
    from runtime.measuring.affinity import settle

    index = {name: i for i, name in enumerate(graph.names)}
    device = placement.device.copy()
    for part in variant.segments.parts if variant.segments is not None else ():
        device[[index[name] for name in part.operations]] = placement.devices.index(part.device)
    return settle(graph, replace(placement, device=device))
