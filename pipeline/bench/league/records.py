"""Records of a league's cells in one file, from which it goes on anywhere: JSON lines, gzip, the first the schema's.

A line has what of a `CellRecord` does not follow from its cell, and the machine that ran it. `devices` is the
placement, a digit per operation in the order of the graph; it is left out where priorities or more than 5,000
operations, which no part runs again, would make up most of the file.
"""

from __future__ import annotations

import gzip
import json
import platform
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.bench.cells import SCHEMA as CELL_SCHEMA
from pipeline.bench.cells import BenchCell, CellRecord, beside_single
from pipeline.core.errors import UsageError
from pipeline.stages.host import installed_version
from pipeline.store.store import write_content

SCHEMA = "placewright.league-records/1"
KEPT = (
    *("key", "model", "method", "seed", "failed", "value_s", "infeasible", "evaluations", "planned", "nodes"),
    *("found_by", "proven", "seconds", "cpu_s"),
)
PACKAGES = ("placewright", "numpy", "numba", "scipy", "ortools", "pymetis", "torch", "torch-geometric")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MOST_PLACED = 5000  # operations
DECIMALS = 4  # of seconds that a search took

Line = Mapping[str, Any]


def machine_text(facts: Mapping[str, Any]) -> str:
    """Return what pages call a machine: its processors, and the versions of what placers answer by."""
    packages = ", ".join(f"{name} {installed_version(name)}" for name in PACKAGES)
    return f"{facts['cpu']}, {facts['processors']} processors, Python {platform.python_version()}, {packages}"


def line_of(cell: BenchCell, budget: str, record: CellRecord, machine: str) -> dict[str, Any]:
    """Return the line of a cell's record; budget: what tables call it."""
    line: dict[str, Any] = {name: record[name] for name in KEPT if name in record}  # type: ignore[literal-required]
    line |= {name: round(line[name], DECIMALS) for name in ("seconds", "cpu_s")}
    curve = [[int(done), round(spent_s, DECIMALS), value_s] for done, spent_s, value_s in record.get("curve", [])]
    line |= {"budget": budget, "machine": machine, "curve": curve}
    names, devices = cell.case.subject.graph.names, cell.case.devices
    if "placement" in record and len(names) <= MOST_PLACED and len(devices) <= len(DIGITS) and not record["priority"]:
        digit = dict(zip(devices, DIGITS, strict=False))
        line["devices"] = "".join(digit[record["placement"][name]] for name in names)
    return line


def record_of(cell: BenchCell, line: Line, single_s: Mapping[str, float]) -> CellRecord:
    """Return the record of a cell that `line_of` wrote; single_s: see `run_cell`."""
    best_single_s, ratio = beside_single(line["value_s"], single_s)
    names, devices = cell.case.subject.graph.names, cell.case.devices
    placed = {}
    if "devices" in line:
        device = dict(zip(DIGITS, devices, strict=False))
        placement = {name: device[digit] for name, digit in zip(names, line["devices"], strict=True)}
        placed = {"placement": placement, "priority": None}
    return {
        "schema": CELL_SCHEMA,
        **{name: line[name] for name in (*KEPT, "curve") if name in line},  # type: ignore[typeddict-item]
        **placed,
        "evaluator": cell.case.evaluator,
        "learned": cell.method.learned,
        "seeded": cell.method.seeded,
        "single_s": best_single_s,
        "ratio": ratio,
        "settings": cell.settings,
    }


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; none if there is no such file.

    Raises:
        UsageError: it holds anything else, or cannot be read.
    """
    try:
        head, *lines = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
        if head != {"schema": SCHEMA}:
            raise ValueError("its schema is another's")
        for line in lines:
            _ = line["key"], line["machine"], line["failed"], line["infeasible"], place_of(line)
    except FileNotFoundError:
        return []
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} holds no records of a league: {error}.", "Name a file that --records has written, or a new one."
        ) from error
    return lines


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write lines in an order of their own, so that equal lines give equal bytes.

    Raises:
        StoreError: the file cannot be written.
    """
    ordered = sorted(lines, key=lambda line: (line["model"], *place_of(line)))
    texts = [json.dumps(line, sort_keys=True, separators=(",", ":")) for line in ({"schema": SCHEMA}, *ordered)]
    write_content(path, gzip.compress(("\n".join(texts) + "\n").encode(), 9, mtime=0))


def place_of(line: Line) -> tuple[str, str, str, int]:
    """Return what a line is about; of two about the same, the later one holds."""
    return line["budget"], line["model"], line["method"], line["seed"]
