"""worth: what lower bounds say of a split before anything is searched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import console
from pipeline.cli.options import POSITIVE, RunnerOfSplits, open_store, store_option
from pipeline.cli.search import scenario_from_options, scenario_options

if TYPE_CHECKING:
    from pipeline.placing.worth import WhatIfRecord, WorthRecord
    from pipeline.store.task import Progress

NOT_WORTH = 8  # exit code: no placement can pay
PROFILE_S = 5.0  # seconds for proving from a profile
# Options, with their defaults, of graphs on machines that are not at hand, and of this machine's devices.
OF_GRAPHS = {
    **{"topology": "", "costs": None, "evaluator": "listsched", "level": "", "pins": None, "contiguous": False},
    **{"no_memory": False, "no_ties": False, "calls": 1, "cost_scale": 1.0},
}
OF_DEVICES = {"devices": None, "runtime": None, "budget": None, "store": None}


@click.command()
@scenario_options
@click.option("--devices", help='Devices of this machine, profiled first: "CPU,GPU"; instead of --topology.')
@click.option("--runtime", type=RunnerOfSplits(["hetero", "dataflow"]), help="With --devices: how splits run.")
@click.option("--budget", help="With --devices: time for profiling, such as 30s.")
@click.option("--least", default="5%", help="Share by which a placement must be able to win; default 5%.")
@click.option("--seconds", type=POSITIVE, help="Time for proving; default 1, with --devices 5.")
@store_option
def worth(**options: Any) -> None:
    """Prove how far a placement can beat the best device alone.

    Nothing is searched: lower bounds tell what a split can gain at most, what that rests on, and what it would be on
    a machine with faster links, one device more, or less memory. GRAPH is a JSON file, a model, or zoo:NAME. With
    --devices, or for a model without --topology, costs are those measured on this machine.

    Exit code 8 if no placement can win by more than --least (proven).
    """
    from pipeline.placing.worth import worth_sentences

    with console.show_progress(quiet=options["quiet"]) as progress:
        record = _judge(options, progress)
    if options["as_json"]:
        console.print_json(record)
    else:
        for line in worth_sentences(record):
            console.print_result(line)
        console.print_table(
            "",
            ["what if", "no placement below", "bound falls by", "gain at most"],
            list(map(_cells, record["what_if"])),
        )
    if record["worth"] is False:
        raise click.exceptions.Exit(NOT_WORTH)


def _judge(options: Mapping[str, Any], progress: Progress) -> WorthRecord:
    """Return what is proven, of a graph or of a model on this machine.

    Raises:
        UsageError: options of both are given.
    """
    from pipeline.core.errors import UsageError
    from pipeline.core.settings import WORTH_S
    from pipeline.settings.config import Settings, parse_assignment, parse_share

    here = options["devices"] is not None or (not options["topology"] and _is_model(options["graph"]))
    known, other = (OF_GRAPHS, "--devices") if here else (OF_DEVICES, "--topology")
    foreign = [f"--{name.replace('_', '-')}" for name, usual in known.items() if options[name] != usual]
    if foreign:
        of = "this machine's devices" if here else "a graph on a machine that is described"
        raise UsageError(f"{', '.join(foreign)} says nothing of {of}.", f"Remove it, or give {other} alone.")
    least = parse_share(options["least"], "least")
    if not here:
        from pipeline.offline import search as offline

        scenario = scenario_from_options(options)
        return offline.worth(scenario, least=least, seconds=options["seconds"] or WORTH_S, progress=progress)
    from pipeline import api  # as heavy as the whole answer for a graph

    given = {
        "devices": options["devices"],
        "budget": options["budget"],
        "seed": options["seed"],
        "measure.runtime": options["runtime"],
        "coarsen.shapes": options["shapes"] or None,
        "coarsen.keep_dynamic": options["keep_dynamic"] or None,
    }
    settings = Settings().updated(dict(parse_assignment(a) for a in options["assignments"]), "--set")
    settings = settings.updated({key: value for key, value in given.items() if value is not None}, "the options")
    seconds = options["seconds"] or PROFILE_S
    store = open_store(options["store"])
    return api.worth(options["graph"], settings, store, least=least, seconds=seconds, progress=progress)


def _is_model(graph: str) -> bool:
    """Return whether a text names a model, not a graph."""
    from coarsen.reading.graph.graph_file import is_graph_file
    from runtime import zoo

    return graph.removeprefix("zoo:") in zoo.names() if graph.startswith("zoo:") else not is_graph_file(Path(graph))


def _cells(row: WhatIfRecord) -> list[str]:
    """Return the cells of a what-if price."""
    from pipeline.placing.worth import percent_text

    if not row["feasible"]:
        return [row["change"], "-", "-", "the weights do not fit (proven)"]
    gain = "open" if row["most_gain"] is None else percent_text(row["most_gain"])
    below = "nothing is proven" if not row["lower_bound_s"] else f"{row['lower_bound_s'] * 1e3:.4g} ms"
    gain = gain if row["single_fits"] else f"{gain}; that device alone no longer holds it"
    return [row["change"], below, f"{100 * row['fall']:.1f} %", gain]
