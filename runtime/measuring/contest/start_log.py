"""Starts that are written down: what was interrupted goes on, and a larger budget extends what a smaller one found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core.measurement import MeasurementFailed, is_transient
from pipeline.system.json_lines import append_line, load_lines
from runtime.measuring.contest.pair_bench import Bench, Part, Start
from runtime.measuring.contest.variant import Variant


@dataclass(slots=True)
class Written:
    """A bench whose starts are added to a file of JSON Lines, and taken from it where they are there already.

    context: what the figures depend on beside the variants; lines of another are left alone. run: what new starts are
    told apart by from those of earlier runs, since seconds of different hours do not compare.
    """

    bench: Bench
    path: Path
    context: str
    run: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    known: dict[str, Start | MeasurementFailed] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench, path: Path, context: str) -> Written:
        """Return the bench with what a file holds; a torn last line is left out."""
        written = cls(bench, path, context)
        for record in load_lines(path):
            if record.get("context") == context and "key" in record:
                written.known[record["key"]] = _start_result(record)
        return written

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return one start, measured now unless it is known; a failure that may pass is not written down."""
        key = f"{part} {number} {variant.identity} {control.identity}"
        if key not in self.known:
            result = self.bench.start(variant, control, part=part, number=number, pairs=pairs, seconds=seconds)
            if is_transient(result):
                return result
            result = replace(result, run=self.run) if isinstance(result, Start) else result
            append_line(self.path, {"context": self.context, "key": key, **_start_document(result)})
            self.known[key] = result
        return self.known[key]


def _start_document(result: Start | MeasurementFailed) -> dict[str, Any]:
    name = "failed" if isinstance(result, MeasurementFailed) else "start"
    return {name: asdict(result)}


def _start_result(record: Mapping[str, Any]) -> Start | MeasurementFailed:
    if "failed" in record:
        return MeasurementFailed(**record["failed"])
    said: Mapping[str, Any] = record["start"]
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return Start(**fields)
