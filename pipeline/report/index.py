"""All runs, batches and benchmarks below a folder: their comparisons as pictures, and the runs as one table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pipeline.core.errors import PlacewrightError, StoreError, UsageError
from pipeline.report.batch_page import BATCH_PAGE
from pipeline.report.comparison import RECORD, read_comparisons
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section, TableCell, number_cell
from pipeline.report.text import count_text, seconds_text
from pipeline.result.directory import MANIFEST, RESULT, RunDirectory
from pipeline.result.result import Result
from pipeline.result.result_text import model_name

INDEX = "index.html"
BATCH = "table.jsonl"
BATCHES = ("batch", "jobs", "failed")
DEEPEST = 6  # folders below one another that are looked into
PICTURES = 12  # comparisons that are drawn; the others are named
COLUMNS = (
    "run",
    "model",
    "devices",
    "answer",
    "latency",
    "times as fast",
    "interval",
    "finished",
    "machine",
    "verdict",
)


def write_index(folder: Path, path: Path, *, progress: Callable[[str], None] = lambda _: None) -> int:
    """Write the index of a folder and return how many runs it lists; progress: told which run is looked at.

    Raises:
        UsageError: there is no run below the folder.
        StoreError: the page cannot be written.
    """
    rows, unreadable = [], []
    runs = sorted(_folders_below(folder, MANIFEST, DEEPEST))
    for i, run in enumerate(runs):
        progress(f"{run} ({i + 1} of {len(runs)})")
        try:
            rows.append(_run_cells(run, folder, path.parent))
        except PlacewrightError as error:
            unreadable.append((str(run.relative_to(folder)), error.cause))
    compared, damaged = _read_comparisons(folder)
    batches = []
    for home in sorted(_folders_below(folder, BATCH, DEEPEST)):
        try:
            batches.append(_batch_cells(home, folder, path.parent))
        except (OSError, ValueError, KeyError, TypeError):
            damaged.append((_relative_place(home, folder) or str(folder), "the table of the batch is damaged"))
    if not (rows or unreadable or compared or batches or damaged):
        raise UsageError(f"There is no run in {folder}.", "Name a run directory, or a folder of some.")
    page = PlainPage(
        f"{count_text(len(rows), 'run')} in {folder}" if rows or not compared else f"Comparison in {folder}",
        sections=[
            Section("Runs", columns=COLUMNS, rows=rows, numbers=(4, 5), filtered=True),
            Section("Batches", columns=BATCHES, rows=batches, numbers=(1, 2), filtered=True),
            *compared,
            Section("Runs that are not finished", columns=("run", "why"), rows=unreadable),
            Section("Batches and comparisons that cannot be read", columns=("folder", "why"), rows=damaged),
        ],
    )
    write_page(path, page.text())
    return len(rows)


def _read_comparisons(folder: Path) -> tuple[list[Section], list[tuple[str, str]]]:
    """Return the comparisons of batches and benchmarks below a folder, and the folders whose record is damaged."""
    sections, damaged, left = list[Section](), list[tuple[str, str]](), list[str]()
    for home in sorted(_folders_below(folder, RECORD, DEEPEST)):
        place = _relative_place(home, folder)
        try:
            for comparison in read_comparisons(home / RECORD):
                if len(sections) < PICTURES:
                    sections.append(comparison.section(place))
                else:
                    left.append(f"{comparison.title} ({home / comparison.file})")
        except StoreError as error:
            damaged.append((place or str(folder), error.cause))
    if left:
        sections.append(Section("Further comparisons", words=f"Not drawn here: {'; '.join(left)}."))
    return sections, damaged


def _relative_place(home: Path, folder: Path) -> str:
    return "" if home == folder else str(home.relative_to(folder))


def _folders_below(folder: Path, name: str, depth: int) -> Iterator[Path]:
    """Give the folders that hold a file of a name, from this one down; links are not followed."""
    if (folder / name).is_file():
        yield folder
    if not depth:
        return
    try:
        inside = [Path(e.path) for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
    except PermissionError:  # what cannot be looked into holds nothing for this user
        return
    for each in inside:
        yield from _folders_below(each, name, depth - 1)


def _run_cells(run: Path, folder: Path, home: Path) -> list[str | TableCell]:
    """Return the cells of a run; home: the folder of the page, from which links lead.

    Raises:
        StoreError: it is not finished, or a file is damaged.
    """
    record, manifest = Result.load(run).record, RunDirectory(run).manifest()
    best = next(c for c in record.candidates if c.name == record.best)
    gain, latency_s = record.speedup_over_best_single, best.latency_s.median if best.latency_s else None
    at = max((s["at"] for s in manifest["stages"].values()), default=0.0) if manifest else 0.0
    report = run / "report.html"
    link = os.path.relpath(report, home) if report.is_file() else ""
    name = str(run.relative_to(folder)) if run != folder else run.name
    interval = f"{gain.low:.3f} to {gain.high:.3f}" if gain.low != gain.high else ""
    return [
        TableCell(name, name, link),
        model_name(record.model.path),
        ", ".join(d.name for d in record.devices),
        best.name,
        number_cell(seconds_text(latency_s), latency_s),
        number_cell(f"{gain.ratio:.3f}", gain.ratio),
        number_cell(interval, gain.low if interval else None),
        number_cell(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") if at else "", at),
        record.fingerprint[:12],
        record.verdict,
    ]


def _batch_cells(batch: Path, folder: Path, home: Path) -> list[str | TableCell]:
    """Return the cells of a batch, whose own page tells of its jobs; home: the folder of the page.

    Raises:
        OSError, ValueError, KeyError, TypeError: its table is damaged.
    """
    rows = [json.loads(line) for line in (batch / BATCH).read_text(encoding="utf-8").splitlines()]
    failed = sum(bool(row["failed"]) for row in rows)
    link = os.path.relpath(batch / BATCH_PAGE, home) if (batch / BATCH_PAGE).is_file() else ""
    name = _relative_place(batch, folder) or folder.resolve().name
    return [TableCell(name, name, link), str(len(rows)), str(failed)]


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run directory itself."""
    return (folder / RESULT).is_file() or (folder / MANIFEST).is_file()
