"""search, simulate and bound: placing without the hardware at hand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
    near_options,
    near_settings,
    on_option,
    open_store,
    shape_option,
    store_option,
)
from pipeline.core.figures import bound_text, bytes_text, gap_text, share_text, times_as_fast

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
    from pipeline.placing.robust import RobustRecord
    from pipeline.progress.curve import Row

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
# Options that name files or folders to write.
WRITTEN = ("out", "trace", "official_out", "write_official", "curve", "tensorboard", "checkpoint", "report")

OF_ONE_SEARCH = ("curve", "tensorboard", "checkpoint", "trace", "official_out")
CALIBRATION = "calibration"  # whose error --robust takes
# Objectives by the words of Tarnawski et al., and the evaluator of each.
OBJECTIVES: Mapping[str, str] = {"max-load": "pipelined", "max-fw-bw": "pipelined", "latency": "latency"}
PASSES = {"max-fw-bw": {"measure.pipelined.passes": "apart"}}

trace_option = click.option(
    "--trace", type=PATH, help="Write the timeline of the placement for Perfetto: .json or .json.gz."
)
out_option = click.option(
    "--out", type=PATH, help="Write the answer as JSON, as --json prints it, for `simulate` or your own use."
)
report_option = click.option("--report", type=PATH, help="Write an HTML page with the answer and the placed graph.")


def scenario_options(command: Command) -> Command:
    """Add the options that say what placements are made for."""
    for option in reversed(
        (
            click.argument("graph"),
            click.option(
                "--topology",
                default="",
                help="TOML file or preset such as equal:4; default: that of the graph.",
            ),
            click.option("--costs", type=PATH, help="CSV or JSON file of seconds per operation and device."),
            click.option(
                "--evaluator", default="listsched", help="Execution model: listsched, sequential, pipelined or latency."
            ),
            click.option("--contiguous", is_flag=True, help="pipelined: require stages that can be ordered."),
            click.option("--calls", type=COUNT, default=1, help="latency: most calls of each accelerator."),
            click.option("--level", default="", help="listsched: contention level T0, T1, T1-bare or T2."),
            click.option("--no-memory", is_flag=True, help="Ignore memory limits."),
            click.option("--no-ties", is_flag=True, help="Ignore colocation constraints."),
            click.option("--pins", type=PATH, help="JSON file {operation: device} of pinned operations."),
            click.option(
                "--cost-scale", type=POSITIVE, default=1.0, help="Factor applied to the costs of a file of nodes."
            ),
            shape_option,
            keep_dynamic_option,
            click.option("--seed", type=SEED, default=0, help="Random seed."),
            click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="place.NAME.KEY=VALUE ..."),
            json_option,
            click.option("--quiet", is_flag=True, help="Hide progress."),
            debug_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@scenario_options
@click.option(
    "--mode", type=click.Choice(["placement", "order"]), default="placement", help="order: also search priorities."
)
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    help="max-load, latency: as --evaluator pipelined, latency; max-fw-bw: largest load forward and largest backward.",
)
@click.option(
    "--placer", default="auto", help="Search method: auto or one of `placewright list place`; with --on, several."
)
@click.option("--replicate", is_flag=True, help="pipelined: also find the best replicated stages.")
@click.option("--microbatches", type=click.IntRange(min=0), default=0, help="Micro-batches per batch with --replicate.")
@click.option("--official-out", type=PATH, help="Write the placement in the format of Tarnawski et al.")
@click.option("--budget", help="Time limit of the search, such as 30s; default 10s without another limit.")
@click.option("--evaluations", type=COUNT, help="Most placements to evaluate.")
@click.option("--gap", default="0", help="Stop at this optimality gap: 1%% or 0.01.")
@near_options
@click.option("--robust", help="Error of costs, 10% or `calibration` (of --costs): minimise the 90th percentile.")
@click.option("--curve", type=PATH, help="Write the learning curve as .svg, .png or .jsonl (numbers).")
@click.option("--tensorboard", type=PATH, help="Folder for TensorBoard event files, written during the search.")
@click.option("--checkpoint", type=PATH, help="Folder of the learning state; an interrupted search resumes from it.")
@click.option("--policy", type=PATH, help="Initial policy: from the --checkpoint folder of an earlier search.")
@on_option
@store_option
@out_option
@trace_option
@report_option
def search(**options: Any) -> None:
    """Search a placement of GRAPH in a simulator, without hardware.

    GRAPH is a JSON file, a model, or zoo:NAME. The answer states a lower bound and the gap to it.
    """
    from pipeline.offline import search as offline
    from pipeline.progress.curve import Curve
    from pipeline.progress.watchers import open_watcher
    from pipeline.settings.config import parse_budget, parse_share

    _check_page(options["report"])
    _check_page(options["out"])
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
    scenario = _with_earlier(scenario_from_options(options, ordered=options["mode"] == "order"), options)
    if options["on"] is not None:
        document = _search_on(scenario, effort, options)
        _write_report(scenario, document, options["report"])
        _print_answer(document, _of_search(document), options, placed=document)
        _print_notes(document)
        return
    with (
        open_watcher(options["curve"], options["tensorboard"]) as watch,
        console.show_progress(quiet=options["quiet"]) as progress,
    ):
        curve = Curve()

        def watch_and_collect(placer: str, made: Progress) -> None:
            curve(placer, made)
            watch(placer, made)

        files = {"trace": options["trace"], "official": options["official_out"]}
        document = offline.search(scenario, effort, **files, progress=progress, watch=watch_and_collect)
    _write_report(scenario, document, options["report"], curve.rows)
    _print_answer(document, _of_search(document), options, placed=document)
    _print_notes(document)


def _with_earlier(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """Return the scenario with the earlier placement that it stays near, and with the residual of its costs.

    Raises:
        UsageError: an option needs another, or has a wrong value.
    """
    from pipeline.core.errors import UsageError
    from pipeline.offline.scenario import calibrated_residual
    from pipeline.settings.config import parse_share

    robust, near = options["robust"], near_settings(dict(options))
    residual = None if robust in (None, CALIBRATION) else parse_share(robust, "residual")
    if robust == CALIBRATION:
        if options["costs"] is None:
            raise UsageError("No calibrated costs are given.", "Give --costs, or a percentage, such as --robust 10%.")
        residual = calibrated_residual(options["costs"])
    scenario = replace(scenario, robust=residual)
    if not near:
        return scenario
    return replace(
        scenario, near=Path(near["place.near"]), moves=near.get("place.moves"), move_price_s=near["place.move_price_s"]
    )


def _print_notes(document: SearchDocument) -> None:
    """Say what the placer has to say of itself, as why a single device is the answer."""
    for note in document["notes"]:
        console.print_notice(f"note: {note}")


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
        raise UsageError(f"--on and {', '.join(alone)} exclude each other.", "Remove one of them.")
    say = (lambda text: None) if options["quiet"] else console.print_notice
    with (
        engine_for(options["on"], SEARCHER, open_store(options["store"]), workers=None, say=say) as engine,
        console.show_progress(quiet=options["quiet"]) as progress,
    ):
        return search_on(engine, scenario, effort, effort.placer.split(","), progress=progress)


@click.command()
@scenario_options
@click.option("--placement", type=PATH, help="JSON file {operation: device}, or the --json answer of a search.")
@click.option("--official", type=PATH, help="Result of the tools of Tarnawski et al., to check and simulate instead.")
@trace_option
@report_option
def simulate(**options: Any) -> None:
    """Simulate a placement of GRAPH, without hardware."""
    from pipeline.core.errors import UsageError
    from pipeline.offline import search as offline

    _check_page(options["report"])
    given = [options[name] for name in ("placement", "official") if options[name] is not None]
    if len(given) != 1:
        raise UsageError("Not exactly one placement is given.", "Pass exactly one of --placement, --official.")
    official, scenario = options["official"] is not None, scenario_from_options(options)
    with console.show_progress(quiet=options["quiet"]) as progress:
        document = offline.simulate(scenario, given[0], official=official, trace=options["trace"], progress=progress)
    _write_report(scenario, document, options["report"])
    _print_answer(document, _of_simulation(document), options, placed=document)


@click.command()
@scenario_options
@click.option("--write-costs", type=PATH, help="Also write the operation times as CSV for --costs.")
@click.option("--write-official", type=PATH, help="Also write the instance in the format of Tarnawski et al.")
def bound(**options: Any) -> None:
    """Compute a lower bound of all placements of GRAPH."""
    from pipeline.offline import search as offline

    scenario = scenario_from_options(options)
    with console.show_progress(quiet=options["quiet"]) as progress:
        document = offline.bound(
            scenario, write_costs=options["write_costs"], write_graph=options["write_official"], progress=progress
        )
    _print_answer(document, _of_bound(document), options)


def _check_page(path: Path | None) -> None:
    """Check, before a long search, that a page can be written.

    Raises:
        UsageError: it cannot.
    """
    from pipeline.progress.perfetto import check_writable

    if path is not None:
        check_writable(path)


def _write_report(
    scenario: Scenario, document: SearchDocument | SimulateRecord, path: Path | None, curve: Sequence[Row] = ()
) -> None:
    """Write the page of an answer, if one is asked for."""
    from pipeline.report.search_page import write_search_page

    if path is not None:
        command = shlex.join(["placewright", *sys.argv[1:]])
        write_search_page(scenario, document, path, command=command, curve=curve)


def scenario_from_options(options: Mapping[str, Any], *, ordered: bool = False) -> Scenario:
    """Return what placements are asked for."""
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


def _print_answer(
    document: ScenarioRecord,
    lines: Iterable[str],
    options: Mapping[str, Any],
    placed: SearchDocument | SimulateRecord | None = None,
) -> None:
    """Write an answer as JSON, or for people; placed: the same, if it has a placement."""
    if options.get("out") is not None:
        from pipeline.store.store import write_json

        write_json(options["out"], document)
    if options["as_json"]:
        console.print_json(document)
        return
    for line in [_describe_question(document), *lines]:
        console.print_result(line)
    if placed is not None:
        _device_table(placed)
    for name in WRITTEN:
        if options.get(name) is not None and options[name].exists():
            console.print_result(f"Written to {options[name]}")


def _describe_question(document: ScenarioRecord) -> str:
    rules = f"{document['evaluator']} {document['level'] or ''}".strip()
    memory = "" if document["memory"] else ", memory limits ignored"
    origins = ", ".join(sorted(set(document["costs"].values())))
    return (
        f"{document['graph']}: {document['operations']} operations, {document['edges']} edges; "
        f"{document['topology']}: {len(document['devices'])} device(s); {rules}{memory}; times {origins}"
    )


def _of_search(document: SearchDocument) -> list[str]:
    from pipeline.placing.near import moved_lines

    value_s, bound_s = document["value_s"], document["lower_bound_s"]
    standing = "no lower bound known"
    if document["proven"]:
        standing = f"proven optimal ({bound_text(document['bound_by'])})"
    elif bound_s > 0:
        gap = gap_text(document["gap"])
        standing = f"lower bound {_ms_text(bound_s)} ({bound_text(document['bound_by'])}); gap at most {gap}"
    return [
        f"{_ms_text(value_s)}, found by {document['found_by']}; {standing}",
        *_compare_with_single(document),
        f"{document['evaluations']} placements in {document['seconds']:.1f} s",
        *([] if document["near"] is None else moved_lines(document["near"])),
        *_of_residual(document["robust"]),
        *_of_stages(document["replicated"]),
        *_format_orders(document, document["planned_s"]),
    ]


def _of_residual(robust: RobustRecord | None) -> list[str]:
    """Return what a placement takes under disturbed costs, beside the nominal one."""
    if robust is None:
        return []
    at_most, nominal, whole = (_ms_text(robust[key]) for key in ("value_s", "nominal_value_s", "nominal_s"))
    residual, share = share_text(robust["residual"]), share_text(robust["quantile"])
    return [
        f"with costs off by {residual}: at most {at_most} in {share} of {robust['draws']} draws; the best without, "
        f"{whole}, at most {nominal}; {robust['differs']} operations differ"
    ]


def _compare_with_single(figures: SearchDocument | SimulateRecord) -> list[str]:
    """Return how a placement compares with the best single device; nothing where none can run all operations."""
    if figures["single_s"] is None or not figures["value_s"]:
        return []
    ratio = f"{times_as_fast(figures['value_s'], figures['single_s']):.4g}"
    times = "as fast" if ratio == "1" else f"{ratio} times as fast"
    return [f"{times} as the best single device, {figures['single_device']} ({_ms_text(figures['single_s'])})"]


def _of_stages(stages: list[PipelineStageRecord] | None) -> list[str]:
    if stages is None:
        return []
    longest_s = max(stage["load_s"] for stage in stages)
    rows = [
        f"{len(stage['operations'])} on {'+'.join(stage['devices'])}, {_ms_text(stage['load_s'])}" for stage in stages
    ]
    return [f"with replicas {_ms_text(longest_s)}: {'; '.join(rows)}"]


def _of_simulation(document: SimulateRecord) -> list[str]:
    over = document["over_bytes"]
    fits = "" if over == 0 else f"; infeasible: {bytes_text(over)} over the memory limits"
    lines = [f"{_ms_text(document['value_s'])}{fits}", *_compare_with_single(document), *_format_orders(document, None)]
    if document["official"] is not None:
        lines.append("; ".join(document["official"]["faults"]) or "the official result is confirmed")
    return lines


def _of_bound(document: BoundRecord) -> list[str]:
    if document["lower_bound_s"] <= 0:
        return ["no lower bound found"]
    return [f"lower bound {_ms_text(document['lower_bound_s'])} ({bound_text(document['bound_by'])})"]


def _format_orders(figures: FiguresRecord, planned_s: float | None) -> list[str]:
    if figures["priority_s"] is None:
        return []
    orders = f"with priorities {_ms_text(figures['priority_s'])}, first come first served {_ms_text(figures['fifo_s'])}"
    return [orders if planned_s is None else f"{orders}, planned {_ms_text(planned_s)}"]


def _device_table(document: SearchDocument | SimulateRecord) -> None:
    whole_s = document["value_s"] or 1.0
    peak = document["peak_bytes"]
    rows = [
        [name, f"{busy_s * 1e3:.4g}", share_text(busy_s / whole_s), bytes_text(peak[name])]
        for name, busy_s in document["busy_s"].items()
    ]
    console.print_table("", ["device", "busy ms", "utilization", "peak memory"], rows)
    console.print_result(f"{bytes_text(document['cut_bytes'])} sent between devices")


def _ms_text(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
