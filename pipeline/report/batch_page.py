"""The page of a batch: all its jobs, and those side by side that ran on every kind of machine of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.charts import draw_forest
from pipeline.report.comparison import interval_row
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section, TableCell, number_cell
from pipeline.report.run_page import REPORT
from pipeline.report.text import count_text, seconds_text
from pipeline.result.result import Result

BATCH_PAGE = "batch.html"
JOBS = ("job", "model", "devices", "machine", "answer", "latency", "times as fast", "verdict or why it failed")
KINDS = ("machine", "processor", "answer", "latency", "interval", "times as fast", "interval of that", "verdict")
NAMED_BY = 8  # digits of a fingerprint that stand for a kind of machine where there is little room

Row = Mapping[str, Any]


def write_batch_page(folder: Path, rows: Sequence[Row], asked: Mapping[str, Sequence[str]]) -> Path:
    """Write the page of a batch into its folder, where the run directories lie as well, and return its path.

    asked: job, as it was asked for, -> its runs, for those that ran on every kind of machine.

    Raises:
        StoreError: the page cannot be written, or a run is damaged.
    """
    by_name = {row["job"]: row for row in rows}
    failed = sum(bool(row["failed"]) for row in rows)
    page = PlainPage(
        f"{count_text(len(rows), 'job')} in {folder}",
        verdict=f"{len(rows) - failed} done, {failed} failed",
        sections=[
            *(_comparison_section(folder, job, [by_name[name] for name in names]) for job, names in asked.items()),
            Section("All jobs", columns=JOBS, rows=[_job_cells(r) for r in rows], numbers=(5, 6), filtered=True),
        ],
    )
    write_page(folder / BATCH_PAGE, page.text())
    return folder / BATCH_PAGE


def _job_cells(row: Row) -> list[str | TableCell]:
    link = "" if row["failed"] else f"{row['job']}/{REPORT}"
    return [
        TableCell(row["job"], row["job"], link),
        row["model"],
        row["devices"],
        row["machine"],
        row["best"],
        *_figure_cells(row),
        row["failed"] or row["verdict"],
    ]


def _figure_cells(row: Row) -> list[TableCell]:
    """Return the latency of a row's answer, and how many times as fast it is as the best single device."""
    if row["failed"]:
        return [number_cell("", None), number_cell("", None)]
    latency_s, ratio = row["median_s"], row["speedup"]
    shown = number_cell(seconds_text(latency_s), latency_s) if latency_s else number_cell("", None)
    return [shown, number_cell(f"{ratio:.3f}", ratio)]


def _comparison_section(folder: Path, job: str, rows: Sequence[Row]) -> Section:
    """Return what a job came to on each kind of machine, the fastest first."""
    done = sorted((row for row in rows if not row["failed"]), key=lambda row: row["median_s"])
    results = [(row, Result.load(folder / row["job"]).record) for row in done]
    gains = [(row["machine"][:NAMED_BY], record.speedup_over_best_single) for row, record in results]
    intervals = [interval_row(name, (g.ratio, g.low, g.high), words=f"{g.ratio:.3f}x") for name, g in gains]
    shown: list[list[str | TableCell]] = [
        [
            TableCell(row["machine"], row["machine"], f"{row['job']}/{REPORT}"),
            str(record.hardware.get("cpu", "")),
            row["best"],
            (figures := _figure_cells(row))[0],
            number_cell(f"{seconds_text(row['low_s'])} to {seconds_text(row['high_s'])}", row["low_s"]),
            figures[1],
            number_cell(f"{(gain := record.speedup_over_best_single).low:.3f} to {gain.high:.3f}", gain.low),
            row["verdict"],
        ]
        for row, record in results
    ]
    failed = [row for row in rows if row["failed"]]
    shown += [[row["machine"] or row["job"], "", "", "", "", "", "", f"failed: {row['failed']}"] for row in failed]
    return Section(
        f"{job} on {count_text(len(rows), 'kind')} of machine",
        words=_in_words(done),
        chart=draw_forest(
            intervals, label=f"{job}: the answer against the best single device", reference="the best single device"
        )
        if intervals
        else None,
        columns=KINDS,
        rows=shown,
        numbers=(3, 5),
        filtered=True,
    )


def _in_words(done: Sequence[Row]) -> str:
    """Return which machine is fastest, and by how much; done: rows, the fastest first."""
    if len(done) < 2:
        return ""
    first, last = done[0], done[-1]
    return (
        f"Fastest on {first['machine'][:NAMED_BY]}, {seconds_text(first['median_s'])}: "
        f"{last['median_s'] / first['median_s']:.3g} times as fast as on {last['machine'][:NAMED_BY]}, "
        f"{seconds_text(last['median_s'])}."
    )
