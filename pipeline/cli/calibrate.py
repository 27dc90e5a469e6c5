"""calibrate, predict: simulators fitted to measurements of models, and what they say of machines not at hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import (
    COUNT,
    SEED,
    Choices,
    debug_option,
    input_option,
    json_option,
    keep_dynamic_option,
    open_store,
    settings_from,
    shape_option,
    split_directions_option,
    split_groups_option,
    store_option,
)

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("model")
@click.option("--devices", help='Devices: "CPU,GPU", "A=CPU{KEY=VALUE},B=CPU{...}" or devices.toml.')
@click.option("--measurements", type=COUNT, default=40, help="Placements to measure for the fit.")
@click.option(
    "--holdout", type=click.IntRange(min=0), default=12, help="Placements to measure and hold out for validation."
)
@click.option(
    "--runtime",
    type=click.Choice(["hetero", "dataflow"]),
    default="hetero",
    help="How placements run: OpenVINO's HETERO or concurrent segments (dataflow).",
)
@click.option("--seed", type=SEED, help="Random seed.")
@click.option("--out", type=PATH, required=True, help="Folder for costs.csv, topology.toml and calibration.json.")
@click.option("--machines", type=PATH, help="Folder of machines' calibrations for predict; gets lines on this machine.")
@click.option("--config", type=PATH, help="TOML file of settings.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a setting; repeatable.")
@shape_option
@keep_dynamic_option
@split_directions_option
@split_groups_option
@input_option
@store_option
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def calibrate(
    model: str, out: Path, measurements: int, holdout: int, runtime: str, machines: Path | None, **options: Any
) -> None:
    """Fit the simulators to measured placements of MODEL.

    Writes costs.csv and topology.toml, with which `placewright search --costs --topology --evaluator sequential`
    predicts the latency of HETERO, or with --runtime dataflow `--evaluator listsched` that of concurrent segments; and
    the prediction error on held-out placements.
    """
    from pipeline import api
    from pipeline.deploy.calibrate import Sampling
    from pipeline.deploy.calibrate import calibrate as fit
    from pipeline.settings.config import Settings

    choices = Choices.taken(
        {**options, "budget": None, "dry_run": False, "verbose": False, "shape_ranges": (), "allow": ()}
    )
    settings = settings_from(choices, Settings().updated({"measure.runtime": runtime}, "--runtime"))
    store = open_store(choices.store)
    sampling = Sampling(measurements, holdout)
    with console.show_progress(quiet=choices.quiet) as progress:
        document = fit(
            api.model_path(model, store), settings, out, store, sampling=sampling, machines=machines, progress=progress
        )
    if choices.as_json:
        console.print_json(document)
        return
    errors = document["median_relative_error"]
    rows = [
        [role, name, _format_percent(errors["before"][role][name]), _format_percent(errors["after"][role][name])]
        for role in errors["after"]
        for name in errors["after"][role]
    ]
    console.print_table("", ["placements", "simulator", "error before", "error after"], rows)
    console.print_result(
        f"{document['used']} of {document['measurements']} measurements used, {document['holdout']} held out"
    )
    console.print_result(f"Written to {out}: costs.csv, topology.toml, calibration.json, and for predict a .jsonl")


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--machine", type=PATH, multiple=True, help="What `calibrate --out` wrote, or a file of --machines; repeatable."
)
@click.option("--machines", type=PATH, help="Folder of machines' calibrations: which machine for this model.")
@shape_option
@json_option
@debug_option
def predict(
    model: Path, machine: tuple[Path, ...], machines: Path | None, shapes: tuple[str, ...], as_json: bool, debug: bool
) -> None:
    """Predict the latency of MODEL on calibrated machines.

    They were calibrated with other models.

    \b
    placewright calibrate a.onnx --devices CPU --out a/ --machines machines/   on each machine, for several models
    placewright predict b.onnx --machines machines/                            anywhere: the fastest machine first
    placewright predict b.onnx --machine a/                                    anywhere: on the machine of that folder

    The interval is of 90 %, from each known model predicted by the others. Nothing is measured.
    """  # noqa: D301  click wants the real backspace character
    from pipeline.core.errors import UsageError
    from pipeline.deploy import predict as predicting
    from pipeline.report.text import interval_text, seconds_text

    known = machine if machines is None else (machines,)
    if not known or (machine and machines):
        raise UsageError("predict takes either --machine or --machines.", "placewright predict MODEL --machines FOLDER")
    record = predicting.predict(model, known, shapes)
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
        if said.low is not None and said.error is not None:
            added = "" if said.held_out is None else f", and when they were added by {said.held_out:.0%}"
            console.print_result(
                f"  The interval rests on {said.models} models: predicted from the others, they are off by "
                f"{said.error:.0%} in the middle{added}."
            )
        far = [
            f"{name} ({'never measured' if f is None else f'by {f:.0f} times'})" for name, f in said.furthest.items()
        ]
        if far:
            console.print_result(f"  extrapolated: {', '.join(far)}")
        console.print_result(f"  check: {each.check}")
