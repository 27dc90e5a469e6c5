"""bench: comparing the methods on published cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option, json_option, open_store, store_option

SUITES = ("hsdag", "exact")
PATH = click.Path(path_type=Path)
MOST_WORKERS = 8  # unless given; each holds some hundred MB
FULL_S, QUICK_S = 60.0, 5.0  # seconds of a cell of exact
HSDAG = ("models", "evaluators", "seeds", "evaluations", "measurements", "workers")  # options of hsdag alone
COUNT = click.IntRange(min=1)


@click.command()
@click.argument("suite")
@click.option("--out", type=PATH, required=True, help="Folder for results, one file per cell; goes on from there.")
@click.option("--quick", is_flag=True, help="Less of everything: a few minutes in place of hours.")
@click.option("--models", help="Networks of the zoo, or paths, separated by commas.")
@click.option("--evaluators", help="Of sequential, shared and hetero, separated by commas; all unless given.")
@click.option("--methods", help="Methods or placers, separated by commas.")
@click.option("--seeds", type=COUNT, help="Seeds of every method that draws: 5, quick 2.")
@click.option("--evaluations", type=COUNT, help="Placements per cell in the simulator: 2000, quick 300.")
@click.option("--measurements", type=COUNT, help="Placements per cell on devices: 60, quick 6.")
@click.option("--workers", type=COUNT, help="Cells that learn in the simulator, at a time: one per processor.")
@click.option("--inputs", type=PATH, help="Of exact: a folder of graphs in the format of Tarnawski et al.")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Of exact: time for every cell: 60, quick 5.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="profile.KEY=VALUE, measure.KEY=VALUE.")
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Show no progress.")
@debug_option
def bench(suite: str, out: Path, store: Path | None, as_json: bool, **options: Any) -> None:
    """Compare methods at equal budget, on graphs, devices and latencies of the literature.

    SUITE is hsdag: three networks on a CPU and a GPU. Writes results.json, results.md and figures into --out. Or exact:
    all exact methods, and what they are compared with, on all graphs of --inputs; results.json and results.md.
    """
    _check_suite(suite, options)
    if suite == "exact":
        _exact(out, as_json, options)
        return
    from pipeline.bench.hsdag import FULL, QUICK, Question
    from pipeline.bench.hsdag import bench as compare
    from pipeline.bench.pages import sentences
    from pipeline.core.process import cpu_count

    question = Question(*(_names(options[key]) for key in ("models", "evaluators", "methods")))
    given = {key: options[key] for key in ("seeds", "evaluations", "measurements") if options[key] is not None}
    workers = options["workers"] or min(cpu_count(), MOST_WORKERS)
    effort = replace(QUICK if options["quick"] else FULL, workers=workers, **given)
    settings = _settings(options["assignments"])
    with console.progress(quiet=options["quiet"]) as progress:
        document = compare(question, effort, out, open_store(store), settings=settings, progress=progress)
    if as_json:
        console.print_json(document)
    _show(document)
    for line in sentences(document):
        console.say(line)
    for note in document["notes"]:
        console.say(note)
    console.say(f"Written to {out}: results.md, results.json and figures")


def _check_suite(suite: str, options: Mapping[str, Any]) -> None:
    """Check that there is such a benchmark, and that it knows the options that are given.

    Raises:
        UnknownNameError: there is none of that name.
        UsageError: an option is of another benchmark, or one is missing.
    """
    from pipeline.core.errors import UnknownNameError, UsageError

    if suite not in SUITES:
        raise UnknownNameError("benchmark", suite, SUITES)
    foreign = ("inputs", "seconds") if suite != "exact" else HSDAG
    wrong = [f"--{name}" for name in foreign if options[name] is not None]
    if wrong:
        raise UsageError(f"The benchmark {suite} knows no {', '.join(wrong)}.", "Leave it out.")
    if suite == "exact" and options["inputs"] is None:
        raise UsageError("The benchmark exact needs graphs.", "Give their folder with --inputs.")


def _exact(out: Path, as_json: bool, options: Mapping[str, Any]) -> None:
    from pipeline.bench import exact

    seconds = options["seconds"] or (QUICK_S if options["quick"] else FULL_S)
    asked = exact.cells(options["inputs"], _names(options["methods"]), seconds)
    with console.progress(quiet=options["quiet"]) as progress:
        rows = list(exact.run(asked, out, progress))
    document = exact.write(rows, out)
    if as_json:
        console.print_json(document)
    for name in dict.fromkeys(row.graph for row in rows):
        mine = [[row.method, *exact.figures(row)] for row in rows if row.graph == name]
        console.table(name, ["method", "value ms", "bound ms", "gap", "s", "MB"], mine)
    console.say(f"Written to {out}: results.md and results.json")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _settings(assignments: tuple[str, ...]) -> Any:
    """Return the settings of the stages.

    Raises:
        UsageError: a key is unknown, its value wrong, or it is of a stage that a benchmark does not leave open.
    """
    from pipeline.bench.cases import plain_settings
    from pipeline.config import parse_assignment
    from pipeline.core.errors import UsageError

    values = dict(parse_assignment(text) for text in assignments)
    unknown = [key for key in values if key.split(".")[0] not in ("profile", "measure")]
    if unknown:
        raise UsageError(
            f"A benchmark does not read {', '.join(unknown)}.",
            "Set profile.KEY and measure.KEY; options and the table of methods stand for the rest.",
        )
    return plain_settings().updated(values, "--set")


def _show(document: Mapping[str, Any]) -> None:
    for case in document["cases"]:
        rows = [
            [
                row["method"],
                "-" if row["ratio"] is None else f"{row['ratio']['median']:.4f}",
                "-" if row["gap"] is None else f"{max(row['gap'], 0.0):.2%}",
                "-" if row["near_evaluations"] is None else f"{row['near_evaluations']:g}",
                "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            ]
            for row in document["summary"]
            if (row["model"], row["evaluator"]) == (case["model"], case["evaluator"])
        ]
        title = f"{case['model']}, {case['evaluator']}"
        console.table(title, ["method", "ratio to best single", "above optimum", "plans to 1 %", "s"], rows)
