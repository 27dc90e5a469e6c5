"""The result of a run as one HTML file, without scripts or anything to load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pipeline.runs.records import CandidateRecord, ResultRecord
from pipeline.runs.words import compared, failure_text

PLOT_PIXELS = 190.0


def render(result: ResultRecord, placement: Mapping[str, str]) -> str:
    """Return the HTML of a result and of the placement {operation: device} of its best candidate."""
    import jinja2

    template = files("pipeline.runs").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    highest = max((c.latency_s.high or c.latency_s.median for c in result.candidates if c.latency_s), default=1.0)
    counts = Counter(placement.values()).most_common()
    return environment.from_string(template).render(
        model=result.model.path,
        verdict=result.verdict,
        notes=result.notes,
        candidates=[_candidate(c, result, highest) for c in result.candidates],
        yardstick=result.contest.control if result.contest else "",
        placement=", ".join(f"{device}: {count} operations" for device, count in counts) or "left to the runtime",
        stages=result.stages,
        machine=[("fingerprint", result.fingerprint), *result.hardware.items(), *result.versions.items()],
    )


def _candidate(c: CandidateRecord, result: ResultRecord, highest_s: float) -> dict[str, Any]:
    """Return a candidate's cells: text in milliseconds, and positions on a line from 0 to the highest latency."""
    row: dict[str, Any] = {"name": c.name, "best": c.name == result.best, "failed": "", "about": c.limit or c.about}
    if c.latency_s is None:
        return row | {"failed": failure_text(c.failed.kind, c.failed.message) if c.failed else c.left}
    row |= {"ratio": compared(c, result.contest), "rate": "" if c.rate is None else f"{c.rate:.1f}"}
    middle = c.latency_s.median
    ends = (c.latency_s.low or middle, c.latency_s.high or middle)
    for key, seconds in (("median", middle), ("low", ends[0]), ("high", ends[1])):
        row |= {key: f"{seconds * 1e3:.3f}", f"x_{key}": round(5 + PLOT_PIXELS * seconds / highest_s, 1)}
    return row
