"""Files of costs: seconds per operation and device as CSV or JSON."""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, DeviceSpec
from pipeline.core.errors import NAMED, UNPARSABLE, UsageError, list_some
from pipeline.shared.validation import Faults

LONG = {"device", "seconds"}  # columns beside the operation where each row tells of one device
REMEDY = "Use the names of this very graph and of the topology; --write-costs writes a file to begin with."


def _cell_value(value: Any) -> Any:
    """Return what stands in a cell as a number if it is one, inf where it is empty."""
    with contextlib.suppress(ValueError):
        return math.inf if value in (None, "") else float(value) if isinstance(value, str) else value
    return value


Cell = Annotated[
    float, Field(ge=0, strict=True), BeforeValidator(_cell_value, json_schema_input_type=float | str | None)
]
Costs = dict[str, dict[str, Cell]]  # operation -> device -> seconds


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
    text, faults = _file_content(path), Faults(str(path), UsageError, REMEDY)
    table = faults.checked(Costs, _json_table(text, path) if path.suffix == ".json" else _csv_table(text, path, faults))
    known = sorted({key for d in devices for key in (d.name, d.kind)} | {"*"})
    columns = list(dict.fromkeys(device for row in table.values() for device in row))
    there = set(names)
    unknown = list(islice((operation for operation in table if operation not in there), NAMED + 1))
    _note_fault(faults, "operations the graph does not have", [_with_nearest(o, names) for o in unknown])
    _note_fault(
        faults, "devices the topology does not have", [_with_nearest(d, known) for d in columns if d not in known]
    )
    if not faults.faults:
        missing = (f"{name} on {d}" for d in columns for name in names if d not in table.get(name, {}))
        _note_fault(faults, "no times for", list(islice(missing, NAMED + 1)))
    faults.end()
    if not columns:
        raise UsageError(f"{path} holds no times.", f"Give columns for {', '.join(d.name for d in devices)}.")
    return {device: np.array([table[name][device] for name in names]) for device in columns}


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


def _file_content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets put a mark first
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Give a CSV or JSON file of costs.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: {error}.", "Give a CSV or JSON file of costs.") from error


def _csv_table(text: str, path: Path, faults: Faults) -> dict[str, dict[str, str]]:
    """Return operation -> device -> text of a cell; cells given twice are noted."""
    rows = csv.reader(io.StringIO(text))
    header = [word.strip() for word in next(rows, [])]
    if "operation" not in header or len(header) < 2 or len(set(header)) < len(header):
        raise UsageError(
            f"{path} begins with the columns {', '.join(header) or 'none'}.",
            "Name a column operation and one per device, or operation, device, seconds; each once.",
        )
    table: dict[str, dict[str, str]] = {}
    twice = []
    for row in rows:
        if not any(word.strip() for word in row):
            continue
        if len(row) != len(header):
            where = f"Line {rows.line_num} of {path}"
            raise UsageError(f"{where} has {len(row)} of {len(header)} columns.", "Correct the line.")
        cells = dict(zip(header, map(str.strip, row), strict=True))
        operation = cells.pop("operation")
        for device, cell in [(cells["device"], cells["seconds"])] if cells.keys() == LONG else cells.items():
            if device in table.setdefault(operation, {}):
                twice.append(f"{operation} on {device}")
            table[operation][device] = cell
    _note_fault(faults, "given twice", twice)
    return table


def _json_table(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except UNPARSABLE as error:
        raise UsageError(f"{path} is not valid JSON: {error}.", 'Write {"operation": {"device": seconds}}.') from error


def _with_nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1) if len(known) <= 10_000 else []
    return f"{name} (did you mean {near[0]}?)" if near else name


def _note_fault(faults: Faults, what: str, columns: Sequence[str]) -> None:
    if columns:
        faults.add(f"{what}: {list_some(columns)}")
