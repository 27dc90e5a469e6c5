"""report: pages about runs, and runs as other tools take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option, json_option
from pipeline.core.errors import UsageError

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("runs", nargs=-1, type=PATH, required=True, metavar="RUN [RUN_B]")
@click.option("--out", type=PATH, help="HTML page to write; default: in the folder of the run.")
@click.option("--csv", "table", type=PATH, help="Also write the operations of RUN, their devices and costs, as CSV.")
@click.option("--model-explorer", "overlay", type=PATH, help="Also write RUN as JSON node data for Model Explorer.")
@click.option("--measure", is_flag=True, help="First run the segments of RUN here and record their timeline.")
@click.option("--trace", type=PATH, help="Also write the timelines of RUN for Perfetto: .json or .json.gz.")
@click.option("--mlflow", metavar="URI", help="Also log RUN to an MLflow server or folder.")
@json_option
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def report(runs: tuple[Path, ...], out: Path | None, measure: bool, mlflow: str | None, **options: Any) -> None:
    """Write an HTML page on a run, two runs, or a folder of runs.

    \b
    placewright report run/                        write run/report.html again from the records of the run
    placewright report before/ after/ --out c.html two runs side by side, with intervals of their ratios
    placewright report runs/                       runs/index.html: all runs, batches and benchmarks there
    placewright report run/ --measure              add the measured timeline of an answer that runs in segments
    placewright report run/ --csv ops.csv --model-explorer overlay.json --trace timeline.json.gz

    A page is one self-contained file.
    """  # noqa: D301  click wants the real backspace character
    if len(runs) > 2:
        raise UsageError(f"{len(runs)} runs are too many to compare.", "Name one or two, or a folder for an index.")
    if measure:
        if len(runs) != 1:
            raise UsageError("Only one run can be measured.", "Name one run directory.")
        from pipeline.report.timeline import measure_timeline

        measure_timeline(runs[0])
    written = _write_page(runs, out, quiet=options["quiet"])
    exports = {name: options[name] for name in ("table", "overlay", "trace")}
    if mlflow is not None or any(exports.values()):
        if len(runs) != 1 or not (runs[0] / "result.json").is_file():
            raise UsageError("Only one finished run can be exported.", "Name one run directory.")
        written += _write_exports(runs[0], **exports)
    if mlflow is not None:
        from pipeline.report.run import RunRecords
        from pipeline.report.tracking import log_run

        logged = f"Logged to {mlflow} as {log_run(RunRecords.load(runs[0]), mlflow)}"
        (console.print_notice if options["as_json"] else console.print_result)(logged)
    if options["as_json"]:
        console.print_json({"files": [str(path) for path in written]})
        return
    console.print_result(f"Written: {', '.join(map(str, written))}")


def _write_page(runs: tuple[Path, ...], out: Path | None, *, quiet: bool) -> list[Path]:
    """Write the page and return its path in a list."""
    if len(runs) == 2:
        from pipeline.report.two_runs_page import write_side_by_side

        path = out or Path(f"{runs[0].name}-and-{runs[1].name}.html")
        write_side_by_side(runs[0], runs[1], path)
        return [path]
    from pipeline.report.index import INDEX, is_run, write_index

    if not runs[0].is_dir():
        raise UsageError(f"{runs[0]} is not a folder.", "Name a run directory, two, or a folder of some.")
    if is_run(runs[0]):
        from pipeline.deploy.several import is_scenario_run
        from pipeline.report.run_page import REPORT, write_report

        path = out or runs[0] / REPORT
        if is_scenario_run(runs[0]):
            from pipeline.report.scenario_page import write_scenario_page

            write_scenario_page(runs[0], path)
            return [path]
        write_report(runs[0], path=path, again=True)
        return [path]
    path = out or runs[0] / INDEX
    with console.show_progress(quiet=quiet) as progress:
        write_index(runs[0], path, progress=progress)
    return [path]


def _write_exports(run: Path, table: Path | None, overlay: Path | None, trace: Path | None) -> list[Path]:
    """Write a run for other tools and return the paths."""
    from pipeline.report import exports
    from pipeline.report.run import RunRecords

    records, written = RunRecords.load(run), []
    if table is not None:
        exports.write_csv(records, table)
        written.append(table)
    if overlay is not None:
        written += exports.write_node_data(records, overlay)
    if trace is not None:
        exports.write_run_trace(records, trace)
        written.append(trace)
    return written
