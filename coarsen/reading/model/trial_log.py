"""Which sizes of open dimensions were tried, kept in a file: a process that one of them kills leaves it behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tries:
    """A file of which sizes were tried and what became of them, which outlives the process that an inference kills.

    path: None if nobody reads it.
    """

    path: Path | None = None

    def begin(self, sizes: str) -> None:
        """Write down that an inference with these sizes begins."""
        self._write({"sizes": sizes, "fault": None})

    def end(self, sizes: str, fault: str) -> None:
        """Write down what was wrong with sizes, "" for nothing."""
        self._write({"sizes": sizes, "fault": fault})

    def faults(self) -> dict[str, str]:
        """Return sizes -> what was wrong with them, of those with which something was."""
        return {row["sizes"]: row["fault"] for row in self._rows() if row["fault"]}

    def unfinished(self) -> str:
        """Return the sizes with which an inference has begun but not ended; "" if there are none."""
        rows = self._rows()
        return str(rows[-1]["sizes"]) if rows and rows[-1]["fault"] is None else ""

    def _write(self, row: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _rows(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
