"""After a run: files for other tools, where a model really runs, and whether a run became slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import console
from pipeline.cli.options import (
    debug_option,
    input_option,
    json_option,
    keep_dynamic_option,
    open_store,
    shape_option,
    store_option,
)
from pipeline.core.errors import UsageError
from pipeline.core.figures import number_text, share_text, shares_of

if TYPE_CHECKING:
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.deploy.where import WhereRecord
    from pipeline.deploy.where_outputs import WhereOutputsRecord

PATH = click.Path(path_type=Path)
SLOWEST = 20  # operations that `where` shows, by time or, of those that depart, by the data flow


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--to", "target", required=True, help="Target: benchmark-app, ovms, ovms-dag, python, cpp, olive or onnxruntime."
)
@click.option("--out", type=PATH, help="Folder to write; default RUN/emit/TARGET.")
@json_option
@debug_option
def emit(run: Path, target: str, out: Path | None, as_json: bool, debug: bool) -> None:
    """Write the answer of RUN for another tool.

    RUN is the directory of a finished run. What was written is run on the inputs that the answer was judged on: exit
    code 6 if its outputs are not those of the source.

    \b
    placewright emit run/ --to benchmark-app   the JSON of -load_config, and the command line
    placewright emit run/ --to ovms            a model repository and config.json of OpenVINO Model Server
    placewright emit run/ --to ovms-dag        the same for a placement: a model per segment, joined by a pipeline
    placewright emit run/ --to python          a program that needs openvino and numpy only
    placewright emit run/ --to cpp             the same in C++, with its CMakeLists.txt
    placewright emit run/ --to olive           an Olive workflow
    placewright emit run/ --to onnxruntime     the ONNX file with a device on every node, and its session option

    Of a scenario, ovms and python write all models at once; RUN/MODEL is one of them.

    A placement over several devices needs python, cpp, ovms-dag (segments) or onnxruntime: OpenVINO drops affinities
    when it saves a model, so that a tool that takes a model and a device
    string cannot have them.
    """  # noqa: D301  click wants the real backspace character
    from pipeline.deploy.emitted_outputs import compare_emitted
    from pipeline.deploy.several import emit_run

    folder, written = emit_run(run, target, out)
    compared = compare_emitted(run, target, folder, written)
    names = [path.relative_to(folder).as_posix() for path in written]
    if as_json:
        console.print_json({"target": target, "folder": str(folder), "files": names, "outputs": compared})
        return
    console.print_result(f"Written to {folder}: {', '.join(names)}")
    console.print_result(compared)


@click.command()
@click.argument("run_a", type=PATH)
@click.argument("run_b", type=PATH)
@click.option("--least", default="2%", show_default=True, help="Allowed slow-down of RUN_B, such as 2%.")
@click.option("--across", is_flag=True, help="Allow runs of different models or machines.")
@json_option
@debug_option
def compare(run_a: Path, run_b: Path, least: str, across: bool, as_json: bool, debug: bool) -> None:
    """Check whether the answer of RUN_B is slower than that of RUN_A.

    Exit code 7 if it is.

    \b
    placewright compare before/ after/               for CI: 7 if slower, 0 if not slower or undecided
    placewright compare before/ after/ --least 5%    allow a slow-down of 5 %
    placewright compare laptop/ server/ --across     runs of different machines

    Slower means that the whole interval of the ratio lies above 1 and --least. Starts of two runs are unpaired, so the
    interval is wider than within a run; both runs need 3 starts.
    """  # noqa: D301  click wants the real backspace character
    from pipeline.deploy import compare as comparing
    from pipeline.report.text import interval_text
    from pipeline.settings.config import parse_share

    comparison = comparing.compare(run_a, run_b, least=parse_share(least, "slowdown"), across=across)
    if as_json:
        console.print_json(asdict(comparison))
    else:
        rows = [
            [
                r.run,
                r.candidate,
                number_text(r.latency_s.median * 1e3),
                interval_text(r.latency_s.low, r.latency_s.high, lambda s: number_text(s * 1e3)),
                f"{r.samples}",
            ]
            for r in (comparison.a, comparison.b)
        ]
        console.print_table("", ["run", "best", "ms", "interval", "starts"], rows)
        for note in comparison.notes:
            console.print_result(note)
        if comparison.verdict != "slower":
            console.print_result(comparison.text)
    comparing.refuse_slower(comparison)


@click.command()
@click.argument("model", required=False)
@click.option("--run", type=PATH, help="Run directory: locate its placed model instead of MODEL on --device.")
@click.option(
    "--device",
    "--devices",
    "device",
    help='"CPU", "A=CPU{KEY=VALUE}", "AUTO:GPU,CPU", "HETERO:NPU,CPU" or "onnxruntime"; default CPU.',
)
@click.option("--all", "every", is_flag=True, help=f"Show all operations instead of the first {SLOWEST}.")
@click.option("--outputs", is_flag=True, help="Show operations whose results differ from a reference.")
@click.option(
    "--against",
    metavar="WHAT",
    help="Reference of --outputs: source (default), a device like --device, or a run directory.",
)
@click.option("--budget", metavar="TIME", help="Time for comparing operations with --outputs; default 30s.")
@click.option("--memory", metavar="SIZE", help="Memory for results held by --outputs; default 256MB.")
@shape_option
@keep_dynamic_option
@input_option
@store_option
@json_option
@debug_option
def where(
    model: str | None, run: Path | None, device: str | None, every: bool, as_json: bool, debug: bool, **options: Any
) -> None:
    """Show where operations run, or where results go wrong.

    Exit code 6 on a silent fallback; with --outputs, if an output differs from the reference.

    \b
    placewright where model.xml                          on the CPU
    placewright where model.onnx --device AUTO:GPU,CPU   exit code 6 if AUTO uses the CPU
    placewright where model.xml --device HETERO:NPU,CPU  operations that the NPU refuses, and their time
    placewright where --run run/                         the placed model of a finished run, as placed
    placewright where model.onnx --outputs               the first operation that differs from ONNX Runtime
    placewright where model.xml --device GPU --outputs --against 'CPU{INFERENCE_PRECISION_HINT=f32}'

    Times are the performance counters of the device; names are those of the model after constant folding.
    """  # noqa: D301  click wants the real backspace character
    from coarsen.reading.sizes.shapes import InputShapes, inputs_sha256
    from pipeline.api import model_path
    from pipeline.deploy import where as locating

    data = "" if options["input"] is None else str(options["input"])
    inputs = InputShapes(options["shapes"], options["keep_dynamic"], data, inputs_sha256(data) if data else "")
    path = None if model is None else model_path(model, open_store(options["store"]))
    if path is None and run is None:
        raise UsageError("No model and no run given.", "Write `placewright where MODEL` or `where --run RUN`.")
    if run is not None and (device is not None or inputs != InputShapes()):
        raise UsageError("A run already determines its devices and shapes.", "Remove --run, or all other options.")
    if options["outputs"]:
        if device == "onnxruntime":
            raise UsageError("ONNX Runtime is what --outputs compares an ONNX file with.", "Leave out --device.")
        _where_outputs(path, run, device, inputs, options, every=every, as_json=as_json)
        return
    alone = [f"--{name}" for name in ("against", "budget", "memory") if options[name] is not None]
    if alone:
        raise UsageError(f"{alone[0]} needs --outputs.", f"Add --outputs, or remove {alone[0]}.")
    if run is not None:
        located = locating.where_run(run, path)
    elif path is not None:
        located = locating.where_model(path, device or "CPU", inputs)
    if as_json:
        console.print_json(asdict(located))
    else:
        _print_where(located, every=every)
    locating.refuse_fallback(located)


def _where_outputs(
    path: Path | None,
    run: Path | None,
    device: str | None,
    inputs: InputShapes,
    options: Mapping[str, Any],
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Compare two runs, operation by operation."""
    from pipeline.deploy import where_outputs as departing
    from pipeline.deploy.two_runs import SOURCE
    from pipeline.settings.config import parse_bytes, parse_time

    budget, memory, against = options["budget"], options["memory"], options["against"] or SOURCE
    limits = departing.ComparisonLimits(
        departing.BUDGET_S if budget is None else parse_time(budget, "budget", "30s"),
        departing.HELD_BYTES if memory is None else parse_bytes(memory, "memory"),
    )
    if run is not None:
        found = departing.departing_run(run, path, against, limits)
    elif path is not None:
        found = departing.departing_model(path, device or "CPU", against, inputs, limits)
    if as_json:
        console.print_json(asdict(found))
    else:
        _show_departing(found, every=every)
    departing.refuse_departure(found)


def _show_departing(found: WhereOutputsRecord, *, every: bool) -> None:
    """Write the first operation that departs, the others, the outputs, and what is not known."""
    from pipeline.deploy.where_outputs import difference_words, first_sentence, not_known
    from runtime.measuring.outputs.outputs import format_percent

    console.print_result(first_sentence(found))
    shown = found.operations if every else found.operations[:SLOWEST]
    if shown:
        rows = [
            [
                row.operation,
                row.type,
                difference_words(row),
                row.device or "-",
                row.precision or "-",
                row.kernel or "-",
                row.seen,
            ]
            for row in shown
        ]
        console.print_table("", ["operation", "type", "differs by", "device", "precision", "kernel", "exposed"], rows)
    if len(shown) < len(found.operations):
        console.print_result(f"{len(found.operations) - len(shown)} more; show them with --all.")
    outputs = [
        [
            o.name,
            o.operation,
            difference_words(o),
            format_percent(o.allowed),
            o.inputs,
            "departs" if o.departs else "same",
        ]
        for o in found.outputs
    ]
    console.print_table("", ["output", "operation", "differs by", "allowed", "inputs", ""], outputs)
    for line in not_known(found):
        console.print_result(line)


def _print_where(located: WhereRecord, *, every: bool) -> None:
    """Write the sums by device, and the slowest operations."""
    counted = sum(total.seconds for total in located.devices)
    shares = shares_of({total.device: total.seconds for total in located.devices})
    totals = [
        [total.device, f"{total.seconds * 1e3:.3f}", share_text(shares[total.device]), f"{total.operations}"]
        for total in located.devices
    ]
    console.print_table("", ["device", "ms", "share of the time", "operations"], totals)
    shown = located.operations if every else located.operations[:SLOWEST]
    rows = [
        [row.operation, row.type, row.device or "-", f"{row.seconds * 1e3:.3f}", row.precision or "-", row.why]
        for row in shown
    ]
    console.print_table("", ["operation", "type", "device", "ms", "precision", "why"], rows)
    if len(shown) < len(located.operations):
        console.print_result(f"{len(located.operations) - len(shown)} faster ones not shown; use --all.")
    console.print_result(
        f"{located.target} ran on {', '.join(located.executed_on)}: {number_text(located.latency_s * 1e3)} ms per "
        f"inference, of which kernels are {share_text(min(counted / located.latency_s, 1.0))}."
    )
