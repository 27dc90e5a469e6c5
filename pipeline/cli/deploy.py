"""After a run: files for other tools, where a model really runs, and whether a run became slower."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option, json_option

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=PATH)
@click.option("--to", "target", required=True, help="benchmark-app, ovms, python, cpp or olive.")
@click.option("--out", type=PATH, help="Folder to write; RUN/emit/TARGET unless given.")
@json_option
@debug_option
def emit(run: Path, target: str, out: Path | None, as_json: bool, debug: bool) -> None:
    """Write files that run the best candidate of RUN, a finished run, with another tool.

    \b
    placewright emit run/ --to benchmark-app   the JSON of -load_config, and the command line
    placewright emit run/ --to ovms            a model repository and config.json of OpenVINO Model Server
    placewright emit run/ --to python          a program that needs openvino and numpy only
    placewright emit run/ --to cpp             the same in C++, with its CMakeLists.txt
    placewright emit run/ --to olive           an Olive workflow

    A placement over several devices can be written as a program only, python or cpp: OpenVINO forgets affinities when
    it saves a model, so that a tool that takes a model and a device string cannot have them.
    """  # noqa: D301  click wants the real backspace character
    from pipeline.runs.emit import emit as write

    folder, written = write(run, target, out)
    names = [path.relative_to(folder).as_posix() for path in written]
    if as_json:
        console.print_json({"target": target, "folder": str(folder), "files": names})
        return
    console.say(f"Written to {folder}: {', '.join(names)}")
