"""The last word on real devices: the best placement of every method and every single device, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.store import digest, write_json
from pipeline.artifacts.task import Progress
from pipeline.bench.cases import BenchCase
from pipeline.bench.methods import SINGLE
from pipeline.core.measurement import Interval, ratio_interval
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing.finals import on_devices
from pipeline.placing.journal import disturbed_rows
from pipeline.runs.records import CandidateRecord, to_json
from pipeline.runs.result import candidate_rows
from pipeline.shared import payload

SCHEMA = "placewright.bench-final/1"

Record = Mapping[str, Any]
Plans = Mapping[str, Placement]


def final(
    case: BenchCase, records: Sequence[Record], settings: MeasureSettings, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Return what the best placements of all methods take beside every single device, measured now unless it is on
    file.

    A method's best placement is that of the seed for which the search measured the least; since it is measured anew,
    that choice does not flatter it. Equal placements are measured once, and placements on one device are that device.

    Raises:
        ChildError: the reference cannot be run on the CPU.
    """
    placements = best_placements(case, records)
    parts = {"case": dict(case.identity), "plans": {m: p.digest().hex() for m, p in placements.items()}}
    key = digest({**parts, "settings": asdict(settings), "source": case.subject.graph.source})
    stem = Path(case.model).stem
    path = folder / f"{stem}.json"
    known = _on_file(path, key)
    if known is not None:
        return known
    folder.mkdir(parents=True, exist_ok=True)
    names, rows = _distinct(case, placements)
    journal = folder / f"{stem}-{key[:12]}.rounds.jsonl"
    measured = on_devices(case.subject, rows, settings, journal=journal, progress=progress)
    candidates = candidate_rows(measured, case.subject.seed)
    document = {
        "schema": SCHEMA,
        "key": key,
        "model": case.model,
        "plans": names,
        **_compared(case, names, candidates, {r["method"] for r in records if r["learned"]}),
        "candidates": [to_json(c) for c in candidates],
    }
    if not disturbed_rows(measured):  # else whoever asks next measures again
        write_json(path, document)
    journal.unlink(missing_ok=True)
    return document


def best_placements(case: BenchCase, records: Sequence[Record]) -> dict[str, Placement]:
    """Return method -> its placement of least value over the seeds, settled as the runtime does; single devices left
    out.
    """
    from runtime.measuring.affinity import settle

    graph, devices = case.subject.graph, case.devices
    found: dict[str, Placement] = {}
    for record in sorted((r for r in records if r["failed"] is None), key=lambda r: float(r["value_s"])):
        method = str(record["method"])
        if method not in found and not method.startswith(f"{SINGLE} "):
            found[method] = settle(graph, Placement.from_document(record, graph.names, devices))
    return found


def _on_file(path: Path, key: str) -> dict[str, Any] | None:
    """Return the document of an earlier measurement of the very same placements."""
    try:
        document: dict[str, Any] = payload.read_json(path)
        return document if (document["schema"], document["key"]) == (SCHEMA, key) else None
    except (OSError, ValueError, KeyError, TypeError):  # absent, torn, or not ours: it is written anew
        return None


def _distinct(case: BenchCase, placements: Plans) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return method -> the candidate that stands for its placement, and the placements to measure."""
    names: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    known: dict[bytes, str] = {}
    for method, placement in placements.items():
        used = placement.devices_used
        name = used[0] if len(used) == 1 else known.get(placement.device.tobytes())  # devices heed no priorities
        if name is None:
            name = f"{method} 1"
            rows.append({"placer": method, "rank": 0, **placement.to_document(case.subject.graph.names)})
            known[placement.device.tobytes()] = name
        names[method] = name
    return names, rows


def _compared(
    case: BenchCase, names: Mapping[str, str], candidates: Sequence[CandidateRecord], learned: set[str]
) -> dict[str, Any]:
    """Return the ratios of all methods to the best single device, and of the best learned to the best simple method.

    Intervals of ratios to the single device are widened so that all of them hold together with 95 % (Bonferroni).
    """
    samples = {c.name: np.array(c.samples_s) for c in candidates if c.failed is None}
    alone = [d for d in case.devices if d in samples]
    if not alone:
        return {"best_single": None, "ratios": {}, "learned_over_simple": None}
    single = min(alone, key=lambda d: float(np.median(samples[d])))
    there = {method: name for method, name in names.items() if name in samples}
    level = 1 - 0.05 / max(len(set(there.values()) - set(case.devices)), 1)
    ratios = {m: ratio_interval(samples[single], samples[name], level=level) for m, name in there.items()}
    best = [
        max((m for m in ratios if (m in learned) is wanted), key=lambda m: ratios[m].median, default=None)
        for wanted in (True, False)
    ]
    versus = None
    if best[0] is not None and best[1] is not None:
        interval = ratio_interval(samples[there[best[1]]], samples[there[best[0]]])
        versus = {"learned": best[0], "simple": best[1], **_json(interval)}
    return {
        "best_single": single,
        "ratios": {m: _json(interval) for m, interval in ratios.items()},
        "learned_over_simple": versus,
    }


def _json(interval: Interval) -> dict[str, float]:
    return {"ratio": interval.median, "low": interval.low, "high": interval.high}
