"""Starts that are written down: what was interrupted goes on, and a larger budget extends what a smaller one found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.measurement import MeasurementFailed
from pipeline.core.private import open_alike
from runtime.measuring.pairs import Bench, Part, Start
from runtime.measuring.variant import Variant


@dataclass(slots=True)
class Written:
    """A bench whose starts are added to a file of JSON Lines, and taken from it where they are there already.

    context: what the figures depend on beside the variants; lines of another are left alone.
    """

    bench: Bench
    path: Path
    context: str
    known: dict[str, Start | MeasurementFailed] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench, path: Path, context: str) -> Written:
        """Return the bench with what a file holds; a torn last line is cut off."""
        found = cls(bench, path, context)
        if not path.exists():
            return found
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.truncate(path, whole)
        for line in content[:whole].splitlines():
            record = _record(line)
            if record.get("context") == context:
                found.known[record["key"]] = _result(record)
        return found

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int
    ) -> Start | MeasurementFailed:
        """Return one start, measured now unless it is known; a failure that may pass is not written down."""
        key = f"{part} {number} {variant.identity} {control.identity}"
        if key not in self.known:
            result = self.bench.start(variant, control, part=part, number=number, pairs=pairs)
            if isinstance(result, MeasurementFailed) and result.transient:
                return result
            with open_alike(self.path, "a") as out:
                out.write(json.dumps({"context": self.context, "key": key, **_document(result)}) + "\n")
            self.known[key] = result
        return self.known[key]


def _document(result: Start | MeasurementFailed) -> dict[str, Any]:
    name = "failed" if isinstance(result, MeasurementFailed) else "start"
    return {name: asdict(result)}


def _result(record: Mapping[str, Any]) -> Start | MeasurementFailed:
    if "failed" in record:
        return MeasurementFailed(**record["failed"])
    fields = dict(record["start"])
    for name in ("variant_s", "control_s", "samples_s", "turns_s"):
        fields[name] = tuple(fields[name])
    return Start(**fields)


def _record(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, Mapping) and "key" in document else {}
