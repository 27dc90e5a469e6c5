"""The last word on real devices: the best placement of every method beside the best single device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.cases import BenchCase
from pipeline.bench.cells import CellRecord, on_file
from pipeline.bench.methods import SINGLE
from pipeline.core.deadline import Deadline
from pipeline.core.estimates import RatioEstimate
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing.comparison import ENOUGH_STARTS, Conditions, on_devices
from pipeline.placing.journal import disturbed_rows
from pipeline.placing.records import Compared, MeasuredRow
from pipeline.placing.shortlist import FinalistRow
from pipeline.result.records import to_json
from pipeline.result.result import candidate_records
from pipeline.store.store import json_digest, write_json
from pipeline.store.task import Progress
from runtime.measuring.contest.statistics import ratio_of

SCHEMA = "placewright.bench-final/2"
FINAL_S = 90.0  # seconds of a final, unless measure.seconds says otherwise

Record = CellRecord


def measure_final(
    case: BenchCase, records: Sequence[Record], settings: MeasureSettings, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Return what the best placements of all methods take beside every single device, measured now unless it is on
    file.

    A method's best placement is that of the seed for which the search measured the least; since it is measured again,
    that choice does not flatter it. Equal placements are measured once, and placements on one device are that device.

    Raises:
        ChildError: the reference cannot be run on the CPU.
    """
    placements = best_placements(case, records)
    parts = {"case": dict(case.identity), "plans": {m: p.digest().hex() for m, p in placements.items()}}
    key = json_digest({**parts, "settings": asdict(settings), "source": case.subject.graph.source})
    stem = Path(case.model).stem
    path = folder / f"{stem}.json"
    known = on_file(path, SCHEMA, key)
    if known is not None:
        return known
    folder.mkdir(parents=True, exist_ok=True)
    names, rows = _list_finalists(case, placements)
    journal = folder / f"{stem}-{key[:12]}.starts.jsonl"
    terms = Conditions(settings, Deadline.after(settings.seconds or FINAL_S), everyone=True)
    measured = on_devices(case.subject, rows, terms, journal=journal, progress=progress)
    candidates = candidate_records(measured["rows"], settings.objective)
    document = {
        "schema": SCHEMA,
        "key": key,
        "model": case.model,
        "plans": names,
        **_compare_methods(case, names, measured, {r["method"] for r in records if r["learned"]}),
        "candidates": [to_json(c) for c in candidates],
    }
    if not disturbed_rows(measured["rows"]):  # else whoever asks next measures again
        write_json(path, document)
    journal.unlink(missing_ok=True)
    return document


def best_placements(case: BenchCase, records: Sequence[Record]) -> dict[str, Placement]:
    """Return method -> its placement of least value over the seeds, normalised as by the runtime; single devices left
    out.
    """
    from runtime.measuring.process.affinity import normalise_placement

    graph, devices = case.subject.graph, case.devices
    best: dict[str, Placement] = {}
    ran = [(record["value_s"], record) for record in records if record["value_s"] is not None]
    for _, record in sorted(ran, key=lambda pair: pair[0]):
        method = str(record["method"])
        if method not in best and not method.startswith(f"{SINGLE} "):
            best[method] = normalise_placement(graph, Placement.from_document(record, graph.names, devices))
    return best


def _list_finalists(case: BenchCase, placements: Mapping[str, Placement]) -> tuple[dict[str, str], list[FinalistRow]]:
    """Return method -> the candidate that stands for its placement, and the placements to measure."""
    names: dict[str, str] = {}
    rows: list[FinalistRow] = []
    known: dict[bytes, str] = {}
    for method, placement in placements.items():
        used = placement.devices_used
        name = used[0] if len(used) == 1 else known.get(placement.device.tobytes())  # devices take no priorities
        if name is None:
            name = f"{method} 1"
            graph = case.subject.graph
            placed, order = placement.to_json(graph.names), placement.order_json(graph.names)
            rows.append({"placer": method, "rank": 0, "placement": placed, "priority": order})
            known[placement.device.tobytes()] = name
        names[method] = name
    return names, rows


def _compare_methods(
    case: BenchCase, names: Mapping[str, str], document: Compared, learned: set[str]
) -> dict[str, Any]:
    """Return the ratios of all methods to the best single device, and of the best learned to the best simple method.

    Intervals of ratios to the single device hold together at the level of the settings; see docs/measuring.md.
    """
    contest = document["contest"]
    if contest is None or contest["control"] not in case.devices:
        return {"best_single": None, "ratios": {}, "learned_over_simple": None}
    single, ratios = contest["control"], contest["ratios"]
    alone = asdict(RatioEstimate(1.0, 1.0, 1.0))
    of_method = {m: alone if name == single else ratios[name] for m, name in names.items() if name in {single, *ratios}}
    best = [
        max(
            (m for m in of_method if (m in learned) is wanted), key=lambda m: float(of_method[m]["ratio"]), default=None
        )
        for wanted in (True, False)
    ]
    versus = None
    if best[0] is not None and best[1] is not None:
        versus = _learned_over_simple(best[0], best[1], names, document["rows"], single)
    return {"best_single": single, "ratios": of_method, "learned_over_simple": versus}


def _learned_over_simple(
    learned: str, simple: str, names: Mapping[str, str], rows: Sequence[MeasuredRow], control: str
) -> dict[str, Any] | None:
    """Return how many times as fast one method's placement is as another's, of the starts that both had."""
    known = {row["name"]: row["log_ratios"] for row in rows}
    starts = {i for log_ratios in known.values() for i in log_ratios}
    ours, theirs = (dict.fromkeys(starts, 0.0) if names[m] == control else known[names[m]] for m in (learned, simple))
    pairs = [ours[i] - theirs[i] for i in sorted(ours.keys() & theirs.keys())]
    if len(pairs) < ENOUGH_STARTS:
        return None
    return {"learned": learned, "simple": simple, **asdict(ratio_of(pairs, 0.95))}
