"""bench: comparing the methods on published cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import console
from pipeline.cli.options import COUNT, POSITIVE, debug_option, json_option, on_option, open_store, store_option

if TYPE_CHECKING:
    from pipeline.fleet.engine import Engine
    from pipeline.store.task import Progress

# Options that not every suite reads, and what users write where that is not their name.
SPECIAL = (
    *("models", "evaluators", "tables", "instances", "parts", "seeds", "evaluations", "seconds", "measurements"),
    *("workers", "assignments", "page", "records", "retry_disturbed", "inputs", "files"),
)
WRITTEN = {"assignments": "set"}
PATH = click.Path(path_type=Path)


@click.command()
@click.argument("suite")
@click.argument("files", nargs=-1, type=PATH)
@click.option("--out", type=PATH, help="Folder for results, one file per cell; an interrupted benchmark resumes.")
@click.option("--quick", is_flag=True, help="Reduced benchmark: minutes instead of hours.")
@click.option("--models", help="hsdag: zoo models or paths, comma-separated.")
@click.option("--evaluators", help="hsdag: comma-separated from sequential, shared, hetero; default all.")
@click.option(
    "--tables", is_flag=True, help="hsdag: also write the rows of tables 2, 3 and 5 of the paper to tables.md."
)
@click.option(
    "--instances", help="league: families or graphs of the protocol, or graph files. open: families, sets or instances."
)
@click.option(
    "--parts", help="league: search, large, levels, order, memory, unseen, noise, transfer; default all but the last."
)
@click.option("--methods", help="Methods or placers, comma-separated.")
@click.option("--seeds", type=COUNT, help="Seeds per randomised method; default 5, with --quick 2.")
@click.option(
    "--evaluations", type=COUNT, help="Simulated placements per cell; default 2000, with --quick 300; league 1000."
)
@click.option(
    "--seconds",
    type=POSITIVE,
    help="Seconds per cell; league with equal time: 3, with --quick 1; exact: 60, with --quick 5; open: 2.",
)
@click.option("--inputs", type=PATH, help="exact: folder of graphs in the format of Tarnawski et al.")
@click.option("--measurements", type=COUNT, help="hsdag: measured placements per cell; default 60, with --quick 6.")
@click.option("--workers", type=COUNT, help="Parallel simulated cells; default one per processor.")
@on_option
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="profile.KEY=VALUE, measure.KEY=VALUE.")
@click.option(
    "--retry-disturbed", is_flag=True, help="league: repeat cells whose time limit ended them on a busy machine."
)
@click.option(
    "--records", type=PATH, help="league: file to take finished cells from and write them to; see docs/bench.md."
)
@click.option("--page", type=PATH, help="league: also write a brief page and its figures here.")
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def bench(suite: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Compare placement methods at equal budget.

    Graphs, devices and latencies are those of the literature.

    SUITE is hsdag: three networks on a CPU and a GPU; writes results.json, results.md and figures into --out. Or
    league: every placer on many graphs, machines and budgets, all simulated; writes league.json, league.md and figures.
    Or exact: all exact methods, and what they are compared with, on all graphs of --inputs; likewise.

    Of the open benchmark: open searches its instances and improves the values kept in --out; submit FILE ... checks,
    scores and ranks submissions; board writes the page of all of them into --out.

    `placewright report DIR` makes one page of the intervals of such a folder.
    """
    from pipeline.bench.suites import WITHOUT_OUT, BenchRequest, TextTable, foreign_options, suite_of
    from pipeline.core.errors import UsageError

    ran = suite_of(suite)
    foreign = [
        "FILE" if o == "files" else f"--{WRITTEN.get(o, o).replace('_', '-')}"
        for o in foreign_options(ran, options, SPECIAL)
    ]
    if foreign:
        raise UsageError(f"The benchmark {suite} has no {', '.join(foreign)}.", "Remove it; see --help.")
    if out is None and suite not in WITHOUT_OUT:
        raise UsageError(f"The benchmark {suite} writes files.", "Give --out DIR.")
    out = out or Path()
    document = ran.run(BenchRequest(out, options, lambda: open_store(options["store"]), lambda: _open_workers(options)))
    if as_json:
        console.print_json(document)
        return
    for text in ran.texts(document, out):
        if isinstance(text, TextTable):
            console.print_table(*text)
        else:
            console.print_result(text)


@contextlib.contextmanager
def _open_workers(options: Mapping[str, Any]) -> Iterator[tuple[Engine | None, Progress]]:
    """Give the engine that --on names, None for this machine alone; and what is told of progress."""
    from pipeline.bench.running import WORKER
    from pipeline.fleet.target import engine_for

    with contextlib.ExitStack() as entered:
        fleet = None
        if options["on"] is not None:
            say = (lambda text: None) if options["quiet"] else console.print_notice
            store = open_store(options["store"])
            engine = engine_for(options["on"], WORKER, store, workers=options["workers"], say=say)
            fleet = entered.enter_context(engine)
        yield fleet, entered.enter_context(console.show_progress(quiet=options["quiet"]))
