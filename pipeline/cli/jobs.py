"""batch: many jobs over one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import COUNT, debug_option, json_option, on_option, open_store, remeasure_option, store_option
from pipeline.core.figures import number_text

CAUSE = 240  # characters of a job's cause that its row shows


@click.command()
@click.argument("jobs", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run directories; default beside JOBS.")
@click.option("--workers", type=COUNT, help="Parallel stages that do not measure; default one per processor.")
@on_option
@remeasure_option
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress; still print job outcomes.")
@debug_option
def batch(
    jobs: Path, out: Path | None, workers: int | None, on: str | None, store: Path | None, **options: Any
) -> None:
    """Run all jobs of the TOML file JOBS.

    Stages whose results are in the store are skipped.

    Exit code 5 if a job failed, 3 if every failed job has an unreadable model; the table states each cause.
    """
    from pipeline.fleet.batch import WORKER, run_batch
    from pipeline.fleet.jobs import read_jobs
    from pipeline.fleet.target import engine_for

    listed = read_jobs(jobs)
    folder = out if out is not None else jobs.with_suffix("")
    place = open_store(store)
    with (
        engine_for(on, WORKER, place, workers=workers, say=console.print_notice) as engine,
        console.show_progress(quiet=options["quiet"]) as progress,
    ):
        found = run_batch(
            listed,
            folder,
            place,
            engine=engine,
            say=console.print_notice,
            progress=progress,
            remeasure=options["remeasure"],
        )
    if options["as_json"]:
        console.print_json(found.rows)
    else:
        _show_batch(found.rows, folder)
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _show_batch(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the table of a batch, and where the files are."""
    shown = [
        [
            r["job"],
            r["best"] or "-",
            number_text(r["median_s"] * 1e3) if r["median_s"] else "-",
            _gain_text(r) if r["best"] else "-",
            shorten(r["failed"], CAUSE, placeholder=" ..."),
        ]
        for r in rows
    ]
    console.print_table("", ["job", "best", "median ms", "times as fast as best single", "failed"], shown)
    written = "batch.html, table.csv, table.jsonl, intervals-*.svg, and a run directory per job"
    console.print_result(f"Written to {folder}: {written}")


def _gain_text(row: Mapping[str, Any]) -> str:
    """Return how many times as fast as the best single device a job's answer is, with the interval if it has one."""
    ends = (row["speedup_low"], row["speedup_high"])
    between = "" if ends[0] == ends[1] else f" ({ends[0]:.3f} to {ends[1]:.3f})"
    return f"{row['speedup']:.3f}{between}"
