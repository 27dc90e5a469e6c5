"""The store of artifacts: what is in it, cleaning it, and why a stage would run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pipeline.cli import console
from pipeline.cli.options import NOT_NEGATIVE, debug_option, json_option, open_store, store_option
from pipeline.core.figures import bytes_text

DAY_S = 86400.0


@click.group()
def cache() -> None:
    """List or clean the store, or explain why a stage runs."""


@cache.command("ls")
@store_option
@json_option
@debug_option
def ls(store: Path | None, as_json: bool, debug: bool) -> None:
    """List the artifacts."""
    from pipeline.core.errors import DamagedEntryError

    place = open_store(store)
    rows = []
    for key in place.list_keys():
        try:
            entry = place.find(key)
        except DamagedEntryError:
            rows.append({"key": key, "stage": "damaged", "name": "", "made_at": 0.0, "bytes": 0})
            continue
        if entry is not None:
            made_at = entry.provenance["made_at"]
            rows.append(
                {
                    "key": key,
                    "stage": entry.parts["stage"],
                    "name": entry.parts["name"],
                    "made_at": made_at,
                    "bytes": entry.size_bytes(),
                }
            )
    if as_json:
        console.print_json(rows)
        return
    shown = [
        [
            r["key"][:12],
            r["stage"],
            r["name"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(r["made_at"])),
            bytes_text(r["bytes"]),
        ]
        for r in sorted(rows, key=lambda r: r["made_at"])
    ]
    console.print_table(f"{place.root}", ["key", "stage", "name", "made", "size"], shown)


@cache.command("gc")
@click.option(
    "--older-than",
    type=NOT_NEGATIVE,
    default=30.0,
    show_default=True,
    help="Remove artifacts older than this many days.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@store_option
@json_option
@debug_option
def gc(older_than: float, dry_run: bool, store: Path | None, as_json: bool, debug: bool) -> None:
    """Remove old artifacts."""
    swept = open_store(store).sweep(older_than_s=older_than * DAY_S, dry_run=dry_run)
    freed = sum(size for _, size in swept)
    if as_json:
        console.print_json({"removed": [key for key, _ in swept], "bytes": freed, "dry_run": dry_run})
        return
    console.print_result(f"{'Would remove' if dry_run else 'Removed'} {len(swept)} artifacts, {bytes_text(freed)}")


@cache.command("why")
@click.argument("stage")
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
@store_option
@json_option
@debug_option
def why(stage: str, folder: Path, store: Path | None, as_json: bool, debug: bool) -> None:
    """Explain whether STAGE of a run would run now.

    Prints the parts of its key as well.
    """
    from pipeline import api
    from pipeline.core.errors import UnknownNameError

    path, settings = api.resume_run(folder)
    rows = api.dry_run(path, settings, folder, open_store(store), upto="measure")
    by_stage = {row["stage"]: row for row in rows}
    if stage not in by_stage:
        raise UnknownNameError("stage in this run", stage, by_stage)
    row = by_stage[stage]
    if as_json:
        console.print_json(row)
        return
    console.print_result(
        f"{stage} {row['key'][:12]}: {'would run' if row['would_run'] else 'would not run'}; {row['why']}"
    )
