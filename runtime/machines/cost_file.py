"""Files of costs: seconds per operation and device as CSV or JSON."""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, DeviceSpec
from pipeline.core.errors import UsageError

NAMED = 5  # culprits that a message lists
LONG = ["operation", "device", "seconds"]
Entry = tuple[str, str, Any]  # operation, device, seconds as they stand in the file


def read_costs(path: Path, names: Sequence[str], devices: Sequence[DeviceSpec]) -> dict[str, Float64]:
    """Return device name, device kind or "*" -> float64 [n], seconds of each of the operations `names`.

    CSV: a column `operation` and one per device, or the columns operation, device, seconds. JSON: {operation:
    {device: seconds}}. Instead of a device's name its kind may stand, or "*" for every device. "inf", null or nothing
    at all means that the device does not support the operation. Every operation must be there for every device that
    is; devices that are not there take their times from elsewhere.

    Raises:
        UsageError: the file cannot be read, names what is not there, leaves operations out or has them twice, or has
            wrong figures.
    """
    text = _content(path)
    entries = _json_entries(text, path) if path.suffix == ".json" else _csv_entries(text, path)
    index = {name: i for i, name in enumerate(names)}
    known = {key for d in devices for key in (d.name, d.kind)} | {"*"}
    found: dict[str, Float64] = {}
    unknown: dict[str, None] = {}
    strange: dict[str, None] = {}
    wrong: list[str] = []
    twice: list[str] = []
    for operation, device, value in entries:
        if operation not in index or device not in known:
            (unknown if operation not in index else strange)[operation if operation not in index else device] = None
            continue
        seconds = _seconds(value)
        if seconds is None:
            wrong.append(f"{operation} on {device} takes {value!r}")
            continue
        column = found.setdefault(device, np.full(len(names), math.nan))
        if not math.isnan(column[index[operation]]):
            twice.append(f"{operation} on {device}")
        column[index[operation]] = seconds
    missing = [f"{names[i]} on {d}" for d, t in found.items() for i in np.flatnonzero(np.isnan(t))[: NAMED + 1]]
    _check(
        path,
        {
            "operations the graph does not have": [_with_nearest(o, names) for o in list(unknown)[: NAMED + 1]],
            "devices the topology does not have": [_with_nearest(d, sorted(known)) for d in strange],
            "not a number of seconds of at least 0": wrong,
            "given twice": twice,
            "no times for": [] if wrong else missing,
        },
    )
    if not found:
        raise UsageError(f"{path} holds no times.", f"Give columns for {', '.join(d.name for d in devices)}.")
    return found


def write_costs(path: Path, costs: CostTable) -> None:
    """Write a cost table as CSV, a column per device, that `read_costs` reads.

    Raises:
        UsageError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["operation", *costs.devices])
    writer.writerows([name, *row] for name, row in zip(costs.names, costs.op_s.tolist(), strict=True))
    try:
        path.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another path.") from error


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets put a mark first
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Give a CSV or JSON file of costs.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}.", "Give a CSV or JSON file of costs.") from error


def _csv_entries(text: str, path: Path) -> Iterator[Entry]:
    rows = csv.reader(io.StringIO(text))
    header = [word.strip() for word in next(rows, [])]
    if "operation" not in header or len(header) < 2 or len(set(header)) < len(header):
        raise UsageError(
            f"{path} begins with the columns {', '.join(header) or 'none'}.",
            "Name a column operation and one per device, or operation, device, seconds; each once.",
        )
    at = header.index("operation")
    for row in rows:
        if not any(word.strip() for word in row):
            continue
        if len(row) != len(header):
            raise UsageError(
                f"Line {rows.line_num} of {path} has {len(row)} of {len(header)} columns.", "Correct the line."
            )
        if sorted(header) == sorted(LONG):
            yield tuple(row[header.index(key)].strip() for key in LONG)  # type: ignore[misc]
            continue
        yield from ((row[at].strip(), header[i], row[i].strip()) for i in range(len(header)) if i != at)


def _json_entries(text: str, path: Path) -> Iterator[Entry]:
    remedy = 'Write {"operation": {"device": seconds}}.'
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}.", remedy) from error
    if not isinstance(document, Mapping) or not all(isinstance(row, Mapping) for row in document.values()):
        raise UsageError(f"{path} is not a table of operations.", remedy)
    for operation, row in document.items():
        yield from ((operation, device, value) for device, value in row.items())


def _seconds(value: Any) -> float | None:
    """Return the seconds of a cell, inf where it is empty, None where it is wrong."""
    if value is None or value == "":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # neither negative nor NaN


def _with_nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1) if len(known) <= 10_000 else []
    return f"{name} (did you mean {near[0]}?)" if near else name


def _check(path: Path, faults: Mapping[str, Sequence[str]]) -> None:
    said = [
        f"{what}: {', '.join(found[:NAMED])}{' ...' if len(found) > NAMED else ''}"
        for what, found in faults.items()
        if found
    ]
    if said:
        raise UsageError(
            f"The costs in {path} do not fit: {'; '.join(said)}.",
            "Use the names of this very graph and of the topology; --write-costs writes a file to begin with.",
        )
