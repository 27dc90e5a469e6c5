"""search, simulate and bound: placing without the hardware at hand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli import console
from pipeline.cli.options import (
    COUNT,
    POSITIVE,
    SEED,
    debug_option,
    json_option,
    keep_dynamic_option,
    on_option,
    open_store,
    shape_option,
    store_option,
)
from pipeline.core.figures import bytes_text, gap_text, share_text

if TYPE_CHECKING:
    from pipeline.core.problem import Progress
    from pipeline.offline.records import (
        BoundRecord,
        FiguresRecord,
        PipelineStageRecord,
        ScenarioRecord,
        SearchDocument,
        SimulateRecord,
    )
    from pipeline.offline.scenario import Scenario
    from pipeline.offline.search import Effort
    from pipeline.progress.curve import Row

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
# Options that name files or folders to write.
WRITTEN = ("trace", "official_out", "write_official", "curve", "tensorboard", "checkpoint", "report")

OF_ONE_SEARCH = ("curve", "tensorboard", "checkpoint", "trace", "official_out")
# Objectives by the words of Tarnawski et al., and the evaluator of each.
OBJECTIVES: Mapping[str, str] = {"max-load": "pipelined", "max-fw-bw": "pipelined", "latency": "latency"}
PASSES = {"max-fw-bw": {"measure.pipelined.passes": "apart"}}

trace_option = click.option(
    "--trace", type=PATH, help="Write the placement's timeline for Perfetto: .json or .json.gz."
)
report_option = click.option("--report", type=PATH, help="Write a page about the answer, with the placed graph: .html.")


def scenario_options(command: Command) -> Command:
    """Add the options that say what placements are made for."""
    for option in reversed(
        (
            click.argument("graph"),
            click.option(
                "--topology",
                default="",
                help="A TOML file, or a preset as equal:4; else the graph's own.",
            ),
            click.option("--costs", type=PATH, help="Seconds per operation and device, CSV or JSON."),
            click.option("--evaluator", default="listsched", help="listsched, sequential, pipelined or latency."),
            click.option("--contiguous", is_flag=True, help="Of pipelined: stages that can be put in an order."),
            click.option("--calls", type=COUNT, default=1, help="Of latency: of each accelerator at most."),
            click.option("--level", default="", help="Of listsched: T0, T1, T1-bare or T2."),
            click.option("--no-memory", is_flag=True, help="Let devices hold anything."),
            click.option("--no-ties", is_flag=True, help="Let operations part that must share a device."),
            click.option("--pins", type=PATH, help="JSON file {operation: device} of what must run where."),
            click.option("--cost-scale", type=POSITIVE, default=1.0, help="Factor of the costs in a file of nodes."),
            shape_option,
            keep_dynamic_option,
            click.option("--seed", type=SEED, default=0, help="Seed of everything that is random."),
            click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="place.NAME.KEY=VALUE ..."),
            json_option,
            click.option("--quiet", is_flag=True, help="Show no progress."),
            debug_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@scenario_options
@click.option("--mode", type=click.Choice(["placement", "order"]), default="placement", help="Order: priorities too.")
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    help="max-load, latency: as --evaluator pipelined, latency; max-fw-bw: largest load forward and largest backward.",
)
@click.option(
    "--placer", default="auto", help="Which method searches: auto, or see `placewright list place`; several with --on."
)
@click.option("--replicate", is_flag=True, help="Of pipelined: also the best stages that accelerators take turns at.")
@click.option("--microbatches", type=click.IntRange(min=0), default=0, help="Of --replicate: per batch.")
@click.option("--official-out", type=PATH, help="Write the placement as the tools of Tarnawski et al. do.")
@click.option("--budget", help="Time for the search, such as 10s; 10s if there is no other limit.")
@click.option("--evaluations", type=COUNT, help="Placements to evaluate at most.")
@click.option("--gap", default="0", help="End where no placement can be faster by more than this: 1%% or 0.01.")
@click.option("--curve", type=PATH, help="Write the learning curve: .svg or .png, or its numbers: .jsonl.")
@click.option("--tensorboard", type=PATH, help="Folder to write event files for TensorBoard to, all along.")
@click.option("--checkpoint", type=PATH, help="Folder in which learning goes on where it was interrupted.")
@click.option("--policy", type=PATH, help="A policy that a search left in its --checkpoint, to begin with.")
@on_option
@store_option
@trace_option
@report_option
def search(**options: Any) -> None:
    """Find where operations of GRAPH should run, without hardware.

    GRAPH is a JSON file, a model, or zoo:NAME. The answer tells how far from optimal it can still be.
    """
    from pipeline.offline import search as offline
    from pipeline.progress.curve import Curve
    from pipeline.progress.watch import watching
    from pipeline.settings.config import parse_budget, parse_share

    _check_page(options["report"])
    budget_s = None if options["budget"] is None else parse_budget(options["budget"])
    effort = offline.Effort(
        "portfolio" if options["placer"] == "auto" else options["placer"],
        budget_s,
        options["evaluations"],
        checkpoint=options["checkpoint"],
        policy=options["policy"],
        gap=parse_share(options["gap"], "gap"),
        replicate=options["microbatches"] if options["replicate"] else None,
    )
    if options["objective"] is not None:
        options["evaluator"] = OBJECTIVES[options["objective"]]
    scenario = _scenario(options, ordered=options["mode"] == "order")
    if options["on"] is not None:
        document = _search_on(scenario, effort, options)
        _report(scenario, document, options["report"])
        _show(document, _of_search(document), options, placed=document)
        _warn(document)
        return
    with (
        watching(options["curve"], options["tensorboard"]) as watch,
        console.progress(quiet=options["quiet"]) as progress,
    ):
        curve = Curve()

        def told(placer: str, made: Progress) -> None:
            curve(placer, made)
            watch(placer, made)

        files = {"trace": options["trace"], "official": options["official_out"]}
        document = offline.search(scenario, effort, **files, progress=progress, watch=told)
    _report(scenario, document, options["report"], curve.rows)
    _show(document, _of_search(document), options, placed=document)
    _warn(document)


def _warn(document: SearchDocument) -> None:
    """Say what the placer has to say of itself, as why a single device is the answer."""
    for note in document["notes"]:
        console.say(f"warning: {note}")


def _search_on(scenario: Scenario, effort: Effort, options: Mapping[str, Any]) -> SearchDocument:
    """Return the answer of many workers.

    Raises:
        UsageError: a file is asked for that tells of one search alone.
    """
    from pipeline.core.errors import UsageError
    from pipeline.fleet.searches import SEARCHER, search_on
    from pipeline.fleet.target import engine_for

    alone = [f"--{name.replace('_', '-')}" for name in OF_ONE_SEARCH if options[name] is not None]
    if alone:
        raise UsageError(f"--on and {', '.join(alone)} exclude each other.", "Leave out one of them.")
    say = (lambda text: None) if options["quiet"] else console.say
    with (
        engine_for(options["on"], SEARCHER, open_store(options["store"]), workers=None, say=say) as engine,
        console.progress(quiet=options["quiet"]) as progress,
    ):
        return search_on(engine, scenario, effort, effort.placer.split(","), progress=progress)


@click.command()
@scenario_options
@click.option("--placement", type=PATH, help="JSON {operation: device}, or the answer of a search.")
@click.option("--official", type=PATH, help="A result of the tools of Tarnawski et al. instead, which is checked.")
@trace_option
@report_option
def simulate(**options: Any) -> None:
    """Say what a placement of GRAPH costs, without hardware."""
    from pipeline.core.errors import UsageError
    from pipeline.offline import search as offline

    _check_page(options["report"])
    given = [options[name] for name in ("placement", "official") if options[name] is not None]
    if len(given) != 1:
        raise UsageError("One placement is simulated.", "Give either --placement or --official.")
    official, scenario = options["official"] is not None, _scenario(options)
    with console.progress(quiet=options["quiet"]) as progress:
        document = offline.simulate(scenario, given[0], official=official, trace=options["trace"], progress=progress)
    _report(scenario, document, options["report"])
    _show(document, _of_simulation(document), options, placed=document)


@click.command()
@scenario_options
@click.option("--write-costs", type=PATH, help="Also write the seconds it uses, as CSV for --costs.")
@click.option("--write-official", type=PATH, help="Also write all of it in the format of Tarnawski et al.")
def bound(**options: Any) -> None:
    """Say what no placement of GRAPH can be faster than, and why."""
    from pipeline.offline import search as offline

    scenario = _scenario(options)
    with console.progress(quiet=options["quiet"]) as progress:
        document = offline.bound(
            scenario, write_costs=options["write_costs"], write_graph=options["write_official"], progress=progress
        )
    _show(document, _of_bound(document), options)


def _check_page(path: Path | None) -> None:
    """Check, before a long search, that a page can be written.

    Raises:
        UsageError: it cannot.
    """
    from pipeline.progress.trace import check_writable

    if path is not None:
        check_writable(path)


def _report(
    scenario: Scenario, document: SearchDocument | SimulateRecord, path: Path | None, curve: Sequence[Row] = ()
) -> None:
    """Write the page of an answer, if one is asked for."""
    from pipeline.report.search_page import write_search_page

    if path is not None:
        command = shlex.join(["placewright", *sys.argv[1:]])
        write_search_page(scenario, document, path, command=command, curve=curve)


def _scenario(options: Mapping[str, Any], *, ordered: bool = False) -> Scenario:
    from pipeline.offline.scenario import Scenario
    from pipeline.settings.config import parse_assignment

    kept = ("graph", "topology", "costs", "evaluator", "level", "pins", "cost_scale", "calls", "seed")
    return Scenario(
        **{name: options[name] for name in kept},
        memory=not options["no_memory"],
        ties=not options["no_ties"],
        ordered=ordered,
        contiguity="ordered" if options["contiguous"] else "",
        settings={
            **PASSES.get(options.get("objective") or "", {}),
            **dict(parse_assignment(a) for a in options["assignments"]),
            **({"coarsen.shapes": options["shapes"]} if options["shapes"] else {}),
            **({"coarsen.keep_dynamic": True} if options["keep_dynamic"] else {}),
        },
    )


def _show(
    document: ScenarioRecord,
    lines: Iterable[str],
    options: Mapping[str, Any],
    placed: SearchDocument | SimulateRecord | None = None,
) -> None:
    """Write an answer as JSON, or for people; placed: the same, if it has a placement."""
    if options["as_json"]:
        console.print_json(document)
        return
    for line in [_asked(document), *lines]:
        console.show(line)
    if placed is not None:
        _device_table(placed)
    for name in WRITTEN:
        if options.get(name) is not None and options[name].exists():
            console.show(f"Written to {options[name]}")


def _asked(document: ScenarioRecord) -> str:
    rules = f"{document['evaluator']} {document['level'] or ''}".strip()
    memory = "" if document["memory"] else ", memory without limit"
    origins = ", ".join(sorted(set(document["costs"].values())))
    return (
        f"{document['graph']}: {document['operations']} operations, {document['edges']} edges; "
        f"{document['topology']}: {len(document['devices'])} device(s); {rules}{memory}; times {origins}"
    )


def _of_search(document: SearchDocument) -> list[str]:
    value_s, bound_s = document["value_s"], document["lower_bound_s"]
    standing = "no bound is known"
    if document["proven"]:
        standing = f"proven optimal by {document['bound_by']}"
    elif bound_s > 0:
        gap = gap_text(document["gap"])
        standing = f"no placement is faster than {_ms(bound_s)} ({document['bound_by']}): gap {gap}"
    return [
        f"{_ms(value_s)}, found by {document['found_by']}; {standing}",
        f"{document['evaluations']} placements in {document['seconds']:.1f} s",
        *_of_stages(document["replicated"]),
        *_orders(document, document["planned_s"]),
    ]


def _of_stages(stages: list[PipelineStageRecord] | None) -> list[str]:
    if stages is None:
        return []
    longest_s = max(stage["load_s"] for stage in stages)
    rows = [f"{len(stage['operations'])} on {'+'.join(stage['devices'])}, {_ms(stage['load_s'])}" for stage in stages]
    return [f"with replicas {_ms(longest_s)}: {'; '.join(rows)}"]


def _of_simulation(document: SimulateRecord) -> list[str]:
    over = document["over_bytes"]
    fits = "" if over == 0 else f"; does not fit: {bytes_text(over, 6)} too much"
    lines = [f"{_ms(document['value_s'])}{fits}", *_orders(document, None)]
    if document["official"] is not None:
        lines.append("; ".join(document["official"]["faults"]) or "as it is stated, and nothing is wrong with it")
    return lines


def _of_bound(document: BoundRecord) -> list[str]:
    if document["lower_bound_s"] <= 0:
        return ["nothing could be proven"]
    return [f"no placement is faster than {_ms(document['lower_bound_s'])} ({document['bound_by']})"]


def _orders(figures: FiguresRecord, planned_s: float | None) -> list[str]:
    if figures["priority_s"] is None:
        return []
    placement = "" if planned_s is None else f", as planned {_ms(planned_s)}"
    return [f"by its order {_ms(figures['priority_s'])}, first come first served {_ms(figures['fifo_s'])}{placement}"]


def _device_table(document: SearchDocument | SimulateRecord) -> None:
    whole_s = document["value_s"] or 1.0
    peak = document["peak_bytes"]
    rows = [
        [name, f"{busy_s * 1e3:.4g}", share_text(busy_s / whole_s), bytes_text(peak[name])]
        for name, busy_s in document["busy_s"].items()
    ]
    console.table("", ["device", "busy ms", "utilization", "peak memory"], rows)
    console.show(f"{bytes_text(document['cut_bytes'], 6)} sent between devices")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.6g} ms"
