"""The last round: which placements go on to be measured, and the record of each candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.errors import MeasurementError, OutputMismatchError
from pipeline.core.graph import Graph
from pipeline.core.measurement import Evaluation
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Candidate, Measurer, Subject
from pipeline.shared import payload

if TYPE_CHECKING:
    from runtime.measuring.variant import Variant

CALIBRATION = "calibration"  # stands for the placer where a placement is drawn, not searched


def check_something_ran(measured: Sequence[Mapping[str, Any]]) -> None:
    """Check that at least one candidate was measured.

    Raises:
        OutputMismatchError: all candidates that ran gave wrong outputs.
        MeasurementError: nothing ran.
    """
    if not all(row["failed"] for row in measured):
        return
    wrong = [row for row in measured if row["failed"]["kind"] == "wrong_output"]
    words = "; ".join(
        f"{row['name']}: {row['failed']['kind']} ({row['failed']['message']})" for row in wrong or measured
    )
    if wrong:
        raise OutputMismatchError(
            f"No candidate gives the reference outputs: {words[:600]}.",
            "Pin f32, or raise measure.tolerance if the difference is acceptable.",
        )
    raise MeasurementError(f"No candidate could be measured: {words[:600]}.", "Run `placewright doctor`.")


def shortlist(found: Sequence[Candidate], most: int) -> Sequence[Candidate]:
    """Return the best candidates, in order, until `most` of them use more than one device.

    Those on a single device come on top: they stand among the baselines anyway, and must not crowd out the others.
    """
    split = np.cumsum([len(c.placement.devices_used) > 1 for c in found])
    return found[: int(np.searchsorted(split, most)) + 1]


def distinct_finalists(rows: list[dict[str, Any]], most: int, *, ordered: bool = True) -> list[dict[str, Any]]:
    """Return the placements to measure: each placer's best before any placer's second, equal placements once.

    A placement that uses a single device is left out: it stands among the baselines. ordered: whether placements that
    differ in priorities alone are different; to real devices they are not.
    """
    chosen: list[dict[str, Any]] = []
    seen: set[tuple[Any, ...]] = set()
    for row in sorted(rows, key=lambda r: (r["value_s"] is None, r["rank"], r["value_s"])):
        priority = (row.get("priority") if ordered else None) or {}
        content = (*sorted(row["placement"].items()), *sorted(priority.items()))
        if content not in seen and len(set(row["placement"].values())) > 1:
            seen.add(content)
            chosen.append(row)
    return chosen[:most]


def on_devices(
    subject: Subject,
    finalists: Sequence[Mapping[str, Any]],
    settings: MeasureSettings,
    *,
    journal: Path,
    progress: Callable[[str], None],
    tried: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return the records of the baselines and the finalists, measured against one another on the devices.

    tried: what became of the model in low precisions; there are no baselines in those it does not bear.
    """
    from runtime.machines.devices import discover
    from runtime.measuring.affinity import affinities, settle
    from runtime.measuring.baselines import baselines
    from runtime.measuring.interleave import interleave
    from runtime.measuring.precisions import without
    from runtime.measuring.variant import hetero_variant

    graph, devices = subject.graph, subject.topology.devices
    variants = baselines(devices, without(discover(), tried))
    placements: dict[str, Placement] = {}
    for row in finalists:
        placement = Placement.from_document(row, graph.names, subject.topology.names)
        variants.append(hetero_variant(_name(row), row["placer"], devices, affinities(graph, placement, devices)))
        placements[_name(row)] = settle(graph, placement)  # what is measured is what is deployed
    if subject.model is None:
        raise ValueError("a graph alone cannot be measured")
    results = interleave(variants, subject.model, settings, seed=subject.seed, journal=journal, progress=progress)
    return [_record(v, results[v.name], placements.get(v.name), graph) for v in variants]


def in_simulator(subject: Subject, measurer: Measurer, finalists: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of the single devices and the finalists, as an evaluator without hardware sees them."""
    from runtime.measuring.affinity import HETERO_PROPERTIES, settle
    from runtime.measuring.variant import Variant

    graph, topology = subject.graph, subject.topology
    asked: list[tuple[Variant, Placement, Placement | None]] = []
    for j, d in enumerate(topology.devices):
        alone = Variant(d.name, "baseline", f"HETERO:{d.openvino_name}", (d,), {}, single=True)
        asked.append((alone, Placement.single(graph.n, j, topology.names), None))
    for row in finalists:
        placement = Placement.from_document(row, graph.names, topology.names)
        used = tuple(d for d in topology.devices if d.name in placement.devices_used)
        target = "HETERO:" + ",".join(d.openvino_name for d in used)
        variant = Variant(_name(row), row["placer"], target, used, HETERO_PROPERTIES if len(used) > 1 else {})
        asked.append((variant, placement, settle(graph, placement)))
    results = measurer.bind(subject).evaluate([placement for _, placement, _ in asked])
    return [
        _record(variant, result, settled, graph) for (variant, _, settled), result in zip(asked, results, strict=True)
    ]


def _name(row: Mapping[str, Any]) -> str:
    """Return what a placer's placement is called among the candidates."""
    placer = "drawn split" if row["placer"] == CALIBRATION else row["placer"]
    return f"{placer} {row['rank'] + 1}"


def _record(variant: Variant, result: Evaluation, placement: Placement | None, graph: Graph) -> dict[str, Any]:
    return {
        "name": variant.name,
        "placer": variant.placer,
        "baseline": variant.baseline,
        "single": variant.single,
        "target": variant.target,
        "devices": [d.to_json() for d in variant.devices],
        "properties": dict(variant.properties),
        **({"placement": None, "priority": None} if placement is None else placement.to_document(graph.names)),
        **payload.result_to_json(result),
    }
