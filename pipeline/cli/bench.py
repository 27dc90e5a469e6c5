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
    *("workers", "assignments", "page", "retry_disturbed", "inputs"),
)
WRITTEN = {"assignments": "set"}
PATH = click.Path(path_type=Path)


@click.command()
@click.argument("suite")
@click.option("--out", type=PATH, required=True, help="Folder for results, one file per cell; goes on from there.")
@click.option("--quick", is_flag=True, help="Less of everything: a few minutes in place of hours.")
@click.option("--models", help="hsdag: networks of the zoo, or paths, separated by commas.")
@click.option("--evaluators", help="hsdag: of sequential, shared and hetero, separated by commas; all unless given.")
@click.option("--tables", is_flag=True, help="hsdag: the rows of tables 2 and 3 of the paper, into tables.md.")
@click.option("--instances", help="league: families or graphs of the protocol, or files of graphs.")
@click.option("--parts", help="league: search, levels, order, memory, unseen, noise, transfer; quick without two.")
@click.option("--methods", help="Methods or placers, separated by commas.")
@click.option("--seeds", type=COUNT, help="Seeds of every method that draws: 5, quick 2.")
@click.option("--evaluations", type=COUNT, help="Placements per cell in the simulator: 2000, quick 300; league 1000.")
@click.option("--seconds", type=POSITIVE, help="Per cell; league, equal time: 6, quick 1; exact: 60, quick 5.")
@click.option("--inputs", type=PATH, help="exact: a folder of graphs in the format of Tarnawski et al.")
@click.option("--measurements", type=COUNT, help="hsdag: placements per cell on devices: 60, quick 6.")
@click.option("--workers", type=COUNT, help="Cells in the simulator at a time: one per processor.")
@on_option
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="profile.KEY=VALUE, measure.KEY=VALUE.")
@click.option("--retry-disturbed", is_flag=True, help="league: also cells that the clock ended on a busy machine.")
@click.option("--page", type=PATH, help="league: where to write the page and its pictures, too.")
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Show no progress.")
@debug_option
def bench(suite: str, out: Path, as_json: bool, **options: Any) -> None:
    """Compare methods at equal budget, as the literature does.

    Graphs, devices and latencies are those of the literature.

    SUITE is hsdag: three networks on a CPU and a GPU; writes results.json, results.md and figures into --out. Or
    league: every placer on many graphs, machines and budgets, all simulated; writes league.json, league.md and figures.
    Or exact: all exact methods, and what they are compared with, on all graphs of --inputs; likewise.

    `placewright report DIR` makes one page of the intervals of such a folder.
    """
    from pipeline.bench.suites import BenchRequest, TextTable, foreign_options, suite_of
    from pipeline.core.errors import UsageError

    ran = suite_of(suite)
    foreign = [f"--{WRITTEN.get(o, o).replace('_', '-')}" for o in foreign_options(ran, options, SPECIAL)]
    if foreign:
        raise UsageError(f"The benchmark {suite} has no {', '.join(foreign)}.", "Leave it out; see --help.")
    document = ran.run(BenchRequest(out, options, lambda: open_store(options["store"]), lambda: _open_workers(options)))
    if as_json:
        console.print_json(document)
        return
    for text in ran.texts(document, out):
        if isinstance(text, TextTable):
            console.table(*text)
        else:
            console.show(text)


@contextlib.contextmanager
def _open_workers(options: Mapping[str, Any]) -> Iterator[tuple[Engine | None, Progress]]:
    """Give the engine that --on names, None for this machine alone; and what is told of progress."""
    from pipeline.bench.running import WORKER
    from pipeline.fleet.target import engine_for

    with contextlib.ExitStack() as entered:
        fleet = None
        if options["on"] is not None:
            say = (lambda text: None) if options["quiet"] else console.say
            store = open_store(options["store"])
            engine = engine_for(options["on"], WORKER, store, workers=options["workers"], say=say)
            fleet = entered.enter_context(engine)
        yield fleet, entered.enter_context(console.progress(quiet=options["quiet"]))
