"""gate: whether a new version, export or setting makes models slower, wrong or unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option, input_option, json_option, remeasure_option, shape_option

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("models", nargs=-1)
@click.option(
    "--before",
    multiple=True,
    metavar="SIDE",
    help="Virtual environment, its python, model file, run directory, or KEY=VALUE of the runtime; repeatable. "
    "Default: this environment.",
)
@click.option("--after", multiple=True, metavar="SIDE", help="The same of what is to take its place.")
@click.option("--config", type=PATH, help="TOML file of sides, models, limits and accepted exceptions.")
@click.option("--budget", metavar="TIME", help="Time for all models together; default 60s per model.")
@click.option("--device", help='Device, such as CPU, GPU or "AUTO:GPU,CPU"; default CPU.')
@click.option(
    "--runtime",
    type=click.Choice(["openvino", "onnxruntime"]),
    help="Runtime to measure; default whichever the environment has, OpenVINO first.",
)
@click.option(
    "--accuracy", type=click.Choice(["strict", "usual", "loose"]), help="Output tolerance, as of tune; default usual."
)
@input_option
@shape_option
@click.option("--out", type=PATH, default=Path("gate"), show_default=True, help="Folder of what is found.")
@click.option(
    "--ci", type=click.Choice(["github", "gitlab"]), help="Print a CI job that runs the gate; measure nothing."
)
@remeasure_option
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def gate(models: tuple[str, ...], out: Path, ci: str | None, **options: Any) -> None:
    """Compare MODELS before and after a change, taking turns.

    \b
    placewright gate model.xml --before old/ --after new/     two environments with different versions
    placewright gate --before a.onnx --after b.onnx           two exports of a model
    placewright gate m.xml --after INFERENCE_PRECISION_HINT=f32
    placewright gate --config gate.toml                       models, limits and exceptions in a file
    placewright gate --ci github > .github/workflows/gate.yml

    Exit code 7 if a model is slower by more than its limit, 6 if outputs differ, 5 if a model does not run any more, 3
    if it runs on neither side; 0 otherwise, also where it cannot be told. OUT gets gate.json, gate.html, junit.xml and
    summary.md.
    """  # noqa: D301  click wants the real backspace character
    from datetime import UTC, datetime
    from importlib.resources import files

    from pipeline.gate import gate as gating
    from pipeline.gate import gate_text
    from pipeline.gate.gate_file import GateOptions, read_gate

    if ci is not None:
        console.print_result(files("pipeline.gate").joinpath("ci", f"{ci}.yml").read_text(encoding="utf-8").rstrip())
        return
    gate_text.remove_gate(out)
    names = ("before", "after", "budget", "device", "runtime", "accuracy", "input", "shapes")
    asked = read_gate(GateOptions(models, file=options["config"], **{name: options[name] for name in names}))
    today = datetime.now(UTC).date()
    with console.show_progress(quiet=options["quiet"]) as progress:
        record = gating.run_gate(asked, out, today=today, say=progress, remeasure=options["remeasure"])
    gate_text.write_gate(record, out)
    if options["as_json"]:
        console.print_result((out / "gate.json").read_text(encoding="utf-8").rstrip())
    else:
        rows = [row for model in record.models for row in gate_text.figure_rows(model)]
        console.print_table("", gate_text.COLUMNS, rows)
        for model in record.models:
            console.print_result(f"{model.model}: {model.text}")
            for line in (*map(gate_text.change_text, model.look.changes[:3]), *model.notes):
                console.print_result(f"  {line}")
        for note in (*record.notes, record.text):
            console.print_result(note)
        console.print_result(f"Written to {out}: {', '.join(gate_text.FILES)}")
    gating.refuse_change(record)
