"""predict: what a model would take on machines that are not at hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option, json_option, shape_option

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("model", type=PATH)
@click.option("--machine", type=PATH, help="File of one machine's calibrations, as `calibrate --machines` writes it.")
@click.option("--machines", type=PATH, help="Folder of such files: which machine for this model.")
@shape_option
@json_option
@debug_option
def predict(
    model: Path, machine: Path | None, machines: Path | None, shapes: tuple[str, ...], as_json: bool, debug: bool
) -> None:
    """Predict the latency of MODEL on machines that were calibrated with other models.

    \b
    placewright calibrate a.onnx --devices CPU --out a/ --machines machines/   on each machine, for several models
    placewright predict b.onnx --machines machines/                            anywhere: the fastest machine first

    The interval is of 90 %, from each known model predicted by the others. Nothing is measured.
    """  # noqa: D301  click wants the real backspace character
    from pipeline.core.errors import UsageError
    from pipeline.deploy import predict as predicting
    from pipeline.report.text import interval_text, seconds_text

    if (machine is None) == (machines is None):
        raise UsageError("predict takes either --machine or --machines.", "placewright predict MODEL --machines FOLDER")
    record = predicting.predict(model, machine or machines or Path(), shapes)
    if as_json:
        console.print_json(asdict(record))
        return
    rows = [
        [
            each.machine or each.fingerprint,
            each.device,
            seconds_text(each.prediction.seconds),
            interval_text(each.prediction.low, each.prediction.high, seconds_text) or "too few models",
            "-" if each.prediction.error is None else f"{each.prediction.error:.0%}",
            f"{each.prediction.models}",
            seconds_text(each.measured_s) or "-",
        ]
        for each in record.machines
    ]
    columns = ["machine", "device", "predicted", "90 % interval", "error on held-out models", "models", "measured"]
    console.print_table("", columns, rows)
    for each in record.machines:
        said = each.prediction
        console.print_result(
            f"{each.machine or each.fingerprint}, {each.device}: {said.measured:.0%} of the time rests on operations "
            f"measured at these sizes, {said.modelled:.0%} on others within a factor of 4, {said.extrapolated:.0%} is "
            "extrapolated."
        )
        far = [
            f"{name} ({'never measured' if f is None else f'by {f:.0f} times'})" for name, f in said.furthest.items()
        ]
        if far:
            console.print_result(f"  extrapolated: {', '.join(far)}")
        console.print_result(f"  check: {each.check}")
