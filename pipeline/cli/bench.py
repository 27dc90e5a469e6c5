"""bench: comparing the methods on published cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli import console
from pipeline.cli.options import COUNT, POSITIVE, debug_option, json_option, on_option, open_store, store_option
from pipeline.core.figures import gap_text

if TYPE_CHECKING:
    from pipeline.bench.hsdag import BenchEffort
    from pipeline.bench.league.protocol import LeagueEffort
    from pipeline.fleet.engine import Engine

# What is compared -> options that only others read.
SUITES = {
    "hsdag": ("instances", "parts", "seconds", "page", "retry_disturbed", "inputs"),
    "league": ("models", "evaluators", "tables", "measurements", "set", "inputs"),
    "exact": (
        *("models", "evaluators", "tables", "instances", "parts", "seeds", "evaluations", "measurements", "workers"),
        *("set", "page", "retry_disturbed"),
    ),
}
PATH = click.Path(path_type=Path)
MOST_WORKERS = 8  # unless given; each holds some hundred MB
FULL_S, QUICK_S = 60.0, 5.0  # seconds of a cell of exact

Run = tuple[dict[str, Any], Callable[[], None]]  # a suite's document, and what shows it to people
Effort = TypeVar("Effort", "BenchEffort", "LeagueEffort")


@click.command()
@click.argument("suite")
@click.option(
    "--out", type=PATH, required=True, help="Folder for results, one file per cell; an interrupted benchmark resumes."
)
@click.option("--quick", is_flag=True, help="Reduced benchmark: minutes instead of hours.")
@click.option("--models", help="hsdag: zoo models or paths, comma-separated.")
@click.option("--evaluators", help="hsdag: comma-separated from sequential, shared, hetero; default all.")
@click.option("--tables", is_flag=True, help="hsdag: also write the rows of tables 2 and 3 of the paper to tables.md.")
@click.option("--instances", help="league: families or graphs of the protocol, or graph files.")
@click.option("--parts", help="league: search, levels, order, memory, unseen, noise, transfer; --quick omits two.")
@click.option("--methods", help="Methods or placers, comma-separated.")
@click.option("--seeds", type=COUNT, help="Seeds per randomised method; default 5, with --quick 2.")
@click.option(
    "--evaluations", type=COUNT, help="Simulated placements per cell; default 2000, with --quick 300; league 1000."
)
@click.option(
    "--seconds",
    type=POSITIVE,
    help="Seconds per cell; league with equal time: 6, with --quick 1; exact: 60, with --quick 5.",
)
@click.option("--inputs", type=PATH, help="exact: folder of graphs in the format of Tarnawski et al.")
@click.option("--measurements", type=COUNT, help="hsdag: measured placements per cell; default 60, with --quick 6.")
@click.option("--workers", type=COUNT, help="Parallel simulated cells; default one per processor.")
@on_option
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="profile.KEY=VALUE, measure.KEY=VALUE.")
@click.option(
    "--retry-disturbed", is_flag=True, help="league: repeat cells whose time limit ended them on a busy machine."
)
@click.option("--page", type=PATH, help="league: also write the page and its figures here.")
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def bench(suite: str, out: Path, as_json: bool, **options: Any) -> None:
    """Compare placement methods at equal budget.

    Graphs, devices and latencies are those of the literature.

    SUITE is hsdag: three networks on a CPU and a GPU; writes results.json, results.md and figures into --out. Or
    league: every placer on many graphs, machines and budgets, all simulated; writes league.json, league.md and figures.
    Or exact: all exact methods, and what they are compared with, on all graphs of --inputs; likewise.

    `placewright report DIR` makes one page of the intervals of such a folder.
    """
    from pipeline.core.errors import UnknownNameError, UsageError

    if suite not in SUITES:
        raise UnknownNameError("benchmark", suite, SUITES)
    given = [name for name in SUITES[suite] if options["assignments" if name == "set" else name]]
    foreign = [f"--{name.replace('_', '-')}" for name in given]
    if foreign:
        raise UsageError(f"The benchmark {suite} has no {', '.join(foreign)}.", "Remove it; see --help.")
    run = {"hsdag": _hsdag, "league": _league, "exact": _exact}[suite]
    document, show = run(out, options)
    if as_json:
        console.print_json(document)
    else:
        show()


def _hsdag(out: Path, options: Mapping[str, Any]) -> Run:
    """Run hsdag; return its document, and what shows it to people."""
    from pipeline.bench.hsdag import FULL, QUICK, WORKER, Question
    from pipeline.bench.hsdag import bench as compare
    from pipeline.bench.pages import sentences
    from pipeline.bench.paper_tables import sentences as missing_rows

    models, evaluators, methods = (_names(options[key]) for key in ("models", "evaluators", "methods"))
    question = Question(models, evaluators, methods, tables=options["tables"])
    effort = _effort(QUICK if options["quick"] else FULL, options, ("seeds", "evaluations", "measurements"))
    settings = _settings(options["assignments"])
    store = open_store(options["store"])
    with _fleet(options, WORKER) as fleet, console.progress(quiet=options["quiet"]) as progress:
        document = compare(question, effort, out, store, settings=settings, fleet=fleet, progress=progress)

    def show() -> None:
        _show_cases(document)
        for line in [*sentences(document), *missing_rows(document.get("tables", ())), *document["notes"]]:
            console.show(line)
        console.show(f"Written to {out}: results.md, results.json and figures")

    return document, show


def _league(out: Path, options: Mapping[str, Any]) -> Run:
    """Run the league; return its document, and what shows it to people."""
    from pipeline.bench.league.pages import in_words
    from pipeline.bench.league.protocol import FULL, QUICK
    from pipeline.bench.league.run import WORKER, LeagueQuestion, league

    question = LeagueQuestion(_names(options["methods"]), _names(options["instances"]))
    effort = _effort(QUICK if options["quick"] else FULL, options, ("seeds", "evaluations", "seconds"))
    effort = replace(effort, parts=_names(options["parts"]) or effort.parts)
    more = {"page": options["page"], "retry": options["retry_disturbed"]}
    with _fleet(options, WORKER) as fleet, console.progress(quiet=options["quiet"]) as progress:
        document = league(question, effort, out, **more, fleet=fleet, progress=progress)

    def show() -> None:
        for line in [*in_words(document), *document["notes"]]:
            console.show(line)
        console.show(f"Written to {out}: league.md, league.json and figures")

    return document, show


def _exact(out: Path, options: Mapping[str, Any]) -> Run:
    """Run exact; return its document, and what shows it to people."""
    from pipeline.bench import exact
    from pipeline.core.errors import UsageError

    if options["inputs"] is None:
        raise UsageError("The benchmark exact needs graphs.", "Give their folder with --inputs.")
    seconds = options["seconds"] or (QUICK_S if options["quick"] else FULL_S)
    asked = exact.cells(options["inputs"], _names(options["methods"]), seconds)
    with _fleet(options, exact.WORKER) as fleet, console.progress(quiet=options["quiet"]) as progress:
        rows = list(exact.run(asked, out, progress, fleet))
    document = exact.write(rows, out)

    def show() -> None:
        for name in dict.fromkeys(row.graph for row in rows):
            mine = [[row.method, *exact.figures(row)] for row in rows if row.graph == name]
            console.table(name, ["method", "value ms", "bound ms", "gap", "s", "memory"], mine)
        console.show(f"Written to {out}: results.md, results.json and figures")

    return document, show


@contextlib.contextmanager
def _fleet(options: Mapping[str, Any], module: str) -> Iterator[Engine | None]:
    """Give the engine that --on names, whose processes run a module; None for this machine alone."""
    from pipeline.fleet.target import engine_for

    if options["on"] is None:
        yield None
        return
    say = (lambda text: None) if options["quiet"] else console.say
    store = open_store(options["store"])
    with engine_for(options["on"], module, store, workers=options["workers"], say=say) as engine:
        yield engine


def _effort(usual: Effort, options: Mapping[str, Any], keys: Sequence[str]) -> Effort:
    """Return how much is spent: the usual, with what the options say in its place."""
    from pipeline.system.process import cpu_count

    given = {key: options[key] for key in keys if options[key] is not None}
    return replace(usual, workers=options["workers"] or min(cpu_count(), MOST_WORKERS), **given)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _settings(assignments: tuple[str, ...]) -> Any:
    """Return the settings of the stages.

    Raises:
        UsageError: a key is unknown, its value wrong, or it is of a stage that a benchmark does not leave open.
    """
    from pipeline.bench.cases import plain_settings
    from pipeline.core.errors import UsageError
    from pipeline.settings.config import parse_assignment

    values = dict(parse_assignment(text) for text in assignments)
    unknown = [key for key in values if key.split(".")[0] not in ("profile", "measure")]
    if unknown:
        raise UsageError(
            f"A benchmark does not use {', '.join(unknown)}.",
            "Set profile.KEY or measure.KEY; use options for the rest.",
        )
    return plain_settings().updated(values, "--set")


def _show_cases(document: Mapping[str, Any]) -> None:
    for case in document["cases"]:
        rows = [
            [
                row["method"],
                "-" if row["ratio"] is None else f"{row['ratio']['median']:.4f}",
                "-" if row["gap"] is None else gap_text(row["gap"]),
                "-" if row["near_evaluations"] is None else f"{row['near_evaluations']:g}",
                "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            ]
            for row in document["summary"]
            if (row["model"], row["evaluator"]) == (case["model"], case["evaluator"])
        ]
        title = f"{case['model']}, {case['evaluator']}"
        console.table(title, ["method", "times as fast as best single", "gap", "evaluations to 1 %", "s"], rows)
