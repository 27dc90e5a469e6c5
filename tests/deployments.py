"""Run directories as a finished run leaves them, without running one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from coarsen.reading.model.read import save_model
from pipeline.core.devices import DeviceSpec
from pipeline.core.estimates import RatioEstimate
from pipeline.placing.comparison import latency_of
from pipeline.placing.records import ContestRecord
from pipeline.result.records import (
    CandidateRecord,
    ModelRecord,
    PlacementRecord,
    RegisteredRecord,
    ResultRecord,
    SourceRecord,
    to_json,
)
from runtime.measuring.process.affinity import HETERO_PROPERTIES, hetero_target
from tests.reports import READ_STAGE


def deployed(
    folder: Path,
    model: ov.Model,
    devices: Sequence[DeviceSpec],
    *,
    target: str = "",
    placement: Mapping[str, str] | None = None,
    candidate: str = "best",
    properties: Mapping[str, str] | None = None,
    requests: int = 1,
    batch: int = 1,
    source: str = "models/tiny net.onnx",
    sha256: str = "0" * 64,
) -> Path:
    """Write placed.xml, placement.json and manifest.json; return the folder.

    target: HETERO over the devices if there is a placement, else the only device. source, sha256: the user's model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder / "placed.xml")
    split = placement is not None and not target
    record = PlacementRecord(
        schema="placewright.placement/1",
        model=SourceRecord("placed.xml", sha256),
        candidate=candidate,
        target=target or (hetero_target(devices) if split else devices[0].openvino_name),
        properties=dict(properties if properties is not None else HETERO_PROPERTIES if split else {}),
        devices={d.name: RegisteredRecord(d.openvino_name, d.plugin, dict(d.properties)) for d in devices},
        placement=dict(placement or {}),
        requests=requests,
        batch=batch,
    )
    write(folder / "placement.json", to_json(record))
    write(
        folder / "manifest.json",
        {"schema": 1, "model": {"path": source, "sha256": sha256}, "settings": {}, "stages": {"read": READ_STAGE}},
    )
    return folder


def write(path: Path, document: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def halves(model: ov.Model, names: Sequence[str] = ("A", "B")) -> dict[str, str]:
    """Return a placement whose first half of the operations, in order, is on the first device."""
    operations = [op.get_friendly_name() for op in model.get_ordered_ops()]
    return {op: names[i >= len(operations) // 2] for i, op in enumerate(operations)}


def measured(
    folder: Path,
    samples_s: Sequence[float],
    *,
    sha256: str = "0" * 64,
    fingerprint: str = "here",
    contest: ContestRecord | None = None,
) -> Path:
    """Write a result.json whose best candidate has these samples, seconds; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    best = CandidateRecord(
        name="CPU",
        placer="baseline",
        baseline=True,
        single=True,
        devices_used=["CPU"],
        subgraphs=1,
        latency_s=latency_of(samples_s),
        samples_s=list(samples_s),
    )
    record = ResultRecord(
        schema="placewright.result/1",
        model=ModelRecord(f"{sha256[:2]}.xml", sha256),
        devices=[],
        fingerprint=fingerprint,
        hardware={"cpu": f"of {fingerprint}", "processors": 2},
        versions={},
        seed=0,
        stages=[],
        candidates=[best],
        best="CPU",
        verdict="",
        contest=contest,
        speedup_over_best_single=RatioEstimate(1.0, 1.0, 1.0),
        files={},
    )
    write(folder / "result.json", to_json(record))
    return folder
