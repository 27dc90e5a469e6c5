"""The result of a run as one HTML file, without scripts or anything to load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pipeline.runs.words import failure_text

PLOT_PIXELS = 190.0


def render(document: Mapping[str, Any], placement: Mapping[str, str]) -> str:
    """Return the HTML of a result document and of the placement {operation: device} of its best candidate."""
    import jinja2

    template = files("pipeline.runs").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    highest = max((c["latency_s"]["high"] for c in document["candidates"] if c["latency_s"]), default=1.0)
    counts = Counter(placement.values()).most_common()
    machine = [("fingerprint", document["fingerprint"]), *document["hardware"].items(), *document["versions"].items()]
    return environment.from_string(template).render(
        model=document["model"]["path"],
        verdict=document["verdict"],
        notes=document["notes"],
        candidates=[_candidate(c, document["best"], highest) for c in document["candidates"]],
        placement=", ".join(f"{device}: {count} operations" for device, count in counts) or "left to the runtime",
        stages=document["stages"],
        machine=machine,
    )


def _candidate(c: Mapping[str, Any], best: str, highest_s: float) -> dict[str, Any]:
    """Return a candidate's cells: text in milliseconds, and positions on a line from 0 to the highest latency."""
    row: dict[str, Any] = {"name": c["name"], "best": c["name"] == best, "failed": ""}
    if c["failed"]:
        return row | {"failed": failure_text(c["failed"])}
    latency = c["latency_s"]
    row |= {key: f"{latency[key] * 1e3:.2f}" for key in ("median", "low", "high")}
    row |= {f"x_{key}": round(5 + PLOT_PIXELS * latency[key] / highest_s, 1) for key in ("median", "low", "high")}
    return row | {"about": c["about"]}
