"""A placed model in segments, to run them concurrently."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import (
    COUNT,
    debug_option,
    json_option,
    keep_dynamic_option,
    open_store,
    shape_option,
    store_option,
)

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("model")
@click.option(
    "--placement", type=PATH, required=True, help="JSON file {operation: device}, or the placement.json of a run."
)
@click.option("--out", type=PATH, required=True, help="Folder to write.")
@click.option("--devices", help='Devices of the placement: "A=CPU{KEY=VALUE},GPU"; not needed with a placement.json.')
@click.option("--runner", type=click.Choice(["serial", "level", "threads", "pipeline"]), default="threads")
@click.option("--requests", type=COUNT, default=1, help="Inferences in flight.")
@shape_option
@keep_dynamic_option
@store_option
@json_option
@debug_option
def split(model: str, placement: Path, out: Path, as_json: bool, debug: bool, **options: Any) -> None:
    """Split MODEL into segments that run concurrently.

    A segment is one model per device and stage.

    \b
    placewright split model.xml --placement run/placement.json --out split/
    placewright split zoo:bert_base --placement mine.json --devices 'A=CPU{INFERENCE_NUM_THREADS=1},GPU' --out split/

    The folder needs openvino and numpy only: `import placed; placed.load("split/")` in it, or
    `pipeline.load("split/")`; docs/executor.md says how.
    """  # noqa: D301  click wants the real backspace character
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.api import model_path
    from pipeline.deploy.split import split as write
    from runtime.executor.splitting import how_to_run

    path = model_path(model, open_store(options["store"]))
    inputs = InputShapes(options["shapes"], options["keep_dynamic"])
    how = how_to_run(options["runner"], options["requests"])
    manifest = write(path, placement, out, devices=options["devices"], how=how, shapes=inputs)
    if as_json:
        console.print_json(asdict(manifest))
        return
    rows = [
        [s.id, s.device, f"{len(s.operations)}", f"{len(s.inputs)}", f"{len(s.outputs)}"] for s in manifest.segments
    ]
    console.print_table("", ["segment", "device", "operations", "takes", "gives"], rows)
    if manifest.moved:
        console.print_result(
            f"{len(manifest.moved)} operation(s) moved to the device of their neighbours: {manifest.moved[0]} ..."
        )
    console.print_result(f"Written to {out}: {len(manifest.segments)} segments")
