"""Whether the portfolio is ever worse than its own members: both on drawn cells, with equal seconds.

python -m benchmarks.dominance [--cells N] [--seed S] [--seconds 1,5,20] [--only TEXT] [--members a,b] [--out DIR]
                               [--members-from DIR] [--seeds N] [--table]

A cell on which the portfolio is worse than the best member by over 2 % is run again, by these two and with fresh seeds,
and judged by them alone: the best of many by few seeds is partly the luckiest.

Every cell is a line of DIR/cells.jsonl when it is done, and is not run again; DIR/table.txt has the table. What a cell
is and how they are drawn: `dominance_cells`; how one is run: `dominance_runs`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.common import ROOT, say
from benchmarks.dominance_cells import Cell, draw
from benchmarks.dominance_runs import PORTFOLIO, Lanes, Row, run_again, run_cell
from benchmarks.dominance_table import WORSE, compared, figures, table
from pipeline.core.errors import PlacewrightError
from pipeline.system.json_lines import append_line, load_lines
from pipeline.system.private_files import write_whole

CELLS, SECONDS, SEEDS = 120, "1,5,20", 3
JOURNAL, TABLE = "cells.jsonl", "table.txt"


def rows_of(
    cells: Sequence[Cell],
    out: Path,
    lanes: Lanes,
    *,
    jobs: int = 1,
    others: Mapping[str, Row] | None = None,
) -> Iterator[Row]:
    """Yield the rows of cells: those on file, then the others as they are run and written there.

    What cannot be made is told and left out. jobs: cells at a time. others: rows by key, whose members' runs stand for
    new ones of equal version.
    """
    journal = out / JOURNAL
    out.mkdir(parents=True, exist_ok=True)
    on_file = journal_rows(out)
    yield from (on_file[cell.key] for cell in cells if cell.key in on_file)

    def run(cell: Cell) -> Row | None:
        if cell.file is not None and not cell.file.is_file():
            tell(f"{cell.key} left out: there is no file {cell.file.name}; set PLACEWRIGHT_MSR ({cell.title})")
            return None
        other = (others or {}).get(cell.key)
        members = () if other is None else other.runs
        known = {(run.method, run.repeat): run for run in members if run.method != PORTFOLIO}
        try:
            row = run_cell(cell, lanes, known, lambda _: None)
            found = compared(row)
            if found.best is not None and found.ratio > 1 + WORSE:
                row = run_again(row, found.best.first.method, lanes, lambda _: None)
            return row
        except PlacewrightError as error:
            tell(f"{cell.key} left out: {error.cause} ({cell.title})")
            return None

    missing = [cell for cell in cells if cell.key not in on_file]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, cell) for cell in missing]
        try:
            for i, done in enumerate(as_completed(waiting)):
                if (row := done.result()) is not None:
                    append_line(journal, row.document)
                    tell(f"{i + 1} of {len(missing)}: {_line(row)}")
                    yield row
        finally:
            for later in waiting:  # after an interruption no further cell begins
                later.cancel()


def journal_rows(out: Path) -> dict[str, Row]:
    """Return {key: row} of what is on file in a folder."""
    return {document["key"]: Row.of(document) for document in load_lines(out / JOURNAL, summed=False)}


def tell(text: str) -> None:
    """Print a line for people."""
    print(text, file=sys.stderr, flush=True)


def _line(row: Row) -> str:
    c = compared(row)
    by = "nobody" if c.best is None else c.best.first.method
    return f"{row.cell.key} ratio {c.ratio:.4f} (best member {by}), n={row.instance.n}, {row.cell.title}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, or the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dominance", description=__doc__)
    parser.add_argument("--cells", type=int, default=CELLS, help="cells to draw, beside the known ones")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--seconds", default=SECONDS, help="limits of time, the commonest first")
    parser.add_argument("--only", default="", help="cells whose key or description has this text")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out" / "dominance", help="folder")
    parser.add_argument("--members", default="", help="these members alone")
    parser.add_argument("--members-from", type=Path, help="folder whose runs of members are taken over")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="for methods that one seed does not tell apart")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; the portfolio has two lanes")
    parser.add_argument(
        "--side-by-side",
        action=argparse.BooleanOptionalAction,
        default=(os.cpu_count() or 1) > 1,
        help="two members of one thread at the same time",
    )
    parser.add_argument("--list", action="store_true", help="print the cells and run nothing")
    parser.add_argument("--table", action="store_true", help="print the table of what is on file and run nothing")
    chosen = parser.parse_args(arguments)
    seconds = tuple(float(text) for text in chosen.seconds.split(","))
    drawn = draw(chosen.cells, chosen.seed, seconds)
    cells = [cell for cell in drawn if chosen.only in f"{cell.key} {cell.title}"]
    tell(f"seed {chosen.seed}: {len(cells)} cells of {len(drawn)}")
    if chosen.list:
        print("\n".join(f"{cell.key} {cell.title}" for cell in cells))
        return
    if chosen.table:
        on_file = journal_rows(chosen.out)
        print(table([on_file[cell.key] for cell in cells if cell.key in on_file]))
        return
    lanes = Lanes(tuple(filter(None, chosen.members.split(","))), chosen.side_by_side, chosen.seeds)
    others = None if chosen.members_from is None else journal_rows(chosen.members_from)
    rows = list(rows_of(cells, chosen.out, lanes, jobs=chosen.jobs, others=others))
    write_whole(chosen.out / TABLE, f"seed {chosen.seed}\n\n{table(rows)}".encode())
    say(figures(rows))


if __name__ == "__main__":
    main()
