"""tune, and its five stages one by one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import console
from pipeline.cli.options import (
    Choices,
    near_options,
    near_settings,
    objective_options,
    objective_settings,
    open_store,
    remeasure_option,
    reward_option,
    settings_from,
    stage_options,
    tensorboard_option,
)
from pipeline.core.errors import MeasurementError, UsageError
from pipeline.core.figures import number_text

if TYPE_CHECKING:
    from pipeline.result.result import Result
    from pipeline.stages.execution import Forecast
    from pipeline.store.store import Entry

MOST_NOTES = 3  # on a result, where nobody asks for all
MOST_WORDS = 200  # of a failure in the table; result.json has them all

model_argument = click.argument("model")
run_option = click.option(
    "--run", "--out", "folder", type=click.Path(path_type=Path), help="Run directory; created for a new run."
)


@click.command()
@model_argument
@run_option
@reward_option
@tensorboard_option
@objective_options
@near_options
@remeasure_option
@stage_options
def tune(
    model: str, folder: Path | None, reward: str | None, tensorboard: Path | None, remeasure: bool, **options: Any
) -> None:
    """Find the fastest measured way to run MODEL on this machine.

    It decides where each operation runs and the properties of each device.

    MODEL is an OpenVINO IR, an ONNX file, any other format that OpenVINO reads, zoo:NAME, or a scenario:
    a TOML file of several models that run at once. The answer is measured on the devices and is never worse than
    the best single device.

    \b
    placewright tune model.onnx                                     the lowest latency
    placewright tune model.onnx --objective throughput --p99 50ms   the most inferences per second within 50 ms
    placewright tune box.toml                                       several models at once, within their deadlines
    """  # noqa: D301  click wants the real backspace character
    extra = _reward_settings(reward) | objective_settings(options) | near_settings(options)
    choices = Choices.taken(options)
    if model.endswith(".toml"):
        model, more = _single_model(model, folder, choices, extra)
        if not model:
            return
        extra = more | extra
    _advance_and_print(
        model, folder, choices, upto="measure", extra=extra, tensorboard=tensorboard, remeasure=remeasure
    )


def _single_model(
    path: str, folder: Path | None, choices: Choices, extra: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Tune a scenario, and return ""; or return the model, and settings, of one that asks for one model alone."""
    from pipeline import api
    from pipeline.scenario.scenario_file import read_scenario
    from pipeline.settings.config import Settings

    file, store = read_scenario(Path(path)), open_store(choices.store)
    if file.plain:
        ((_, source),) = file.sources.items()
        more = {"coarsen.shapes": source.shapes, "coarsen.input": source.input, "measure.objective": file.stated}
        return source.model, {key: value for key, value in more.items() if value}
    taken = sorted(
        set(extra)
        & {"measure.objective", "measure.rate", "measure.p99_s", "place.reward", "measure.runtimes", "place.near"}
    )
    if taken or choices.shapes or choices.input:
        what = ", ".join([*taken, *(["--shape"] if choices.shapes else []), *(["--input"] if choices.input else [])])
        raise UsageError(f"{what}: a scenario says this itself.", f"Write it into {path}.")
    folder = folder or api.default_run_directory(path)
    settings = settings_from(choices, Settings()).updated(extra, "the options")
    if choices.dry_run:
        with tempfile.TemporaryDirectory(prefix="placewright-") as aside:
            _show_dry_run(api.dry_run_scenario(file, settings, folder, store, Path(aside)), choices)
        return "", {}
    with console.show_progress(quiet=choices.quiet) as progress:
        result = api.advance_scenario(file, settings, folder, store, progress=progress)
    if choices.as_json:
        console.print_json(result.to_json())
    else:
        from pipeline.scenario.verdict import scenario_table

        console.print_table("", *scenario_table(result))
        _show_verdict(result.verdict, result.notes, folder, result.files, verbose=choices.verbose)
    _check_limits(result.best, result.answer.limit)
    return "", {}


def _reward_settings(reward: str | None) -> dict[str, Any]:
    return {} if reward is None else {"place.reward": reward}


@click.command()
@model_argument
@run_option
@stage_options
@click.option("--raw", is_flag=True, help="Keep weights as separate operations.")
def coarsen(model: str, folder: Path | None, raw: bool, **options: Any) -> None:
    """Read MODEL and merge operations that belong together."""
    choices = Choices.taken(options)
    _advance_and_print(model, folder, choices, upto="coarsen", extra={"coarsen.raw": True} if raw else {})


def _stage_command(name: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
    @stage_options
    def command(folder: Path, **options: Any) -> None:
        _advance_and_print(None, folder, Choices.taken(options), upto=name)

    return command


embed = _stage_command("embed", "Compute features and embeddings of the coarse operations.")
group = _stage_command("group", "Merge coarse operations into groups that are placed as one.")


@click.command()
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
@reward_option
@tensorboard_option
@remeasure_option
@stage_options
def place(folder: Path, reward: str | None, tensorboard: Path | None, remeasure: bool, **options: Any) -> None:
    """Search for placements of the groups."""
    choices = Choices.taken(options)
    _advance_and_print(
        None,
        folder,
        choices,
        upto="place",
        extra=_reward_settings(reward),
        tensorboard=tensorboard,
        remeasure=remeasure,
    )


@click.command()
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
@objective_options
@remeasure_option
@stage_options
def measure(folder: Path, remeasure: bool, **options: Any) -> None:
    """Measure candidates and baselines, and write the result.

    Candidates are placements and device properties; all are measured against one another.
    """
    extra = objective_settings(options)
    _advance_and_print(None, folder, Choices.taken(options), upto="measure", extra=extra, remeasure=remeasure)


def _advance_and_print(
    model: str | None,
    folder: Path | None,
    choices: Choices,
    *,
    upto: str,
    extra: dict[str, Any] | None = None,
    tensorboard: Path | None = None,
    remeasure: bool = False,
) -> None:
    from pipeline import api
    from pipeline.settings.config import Settings

    store = open_store(choices.store)
    if model is None:
        if folder is None:
            raise UsageError("No run directory is given.", "Give --run DIR.")
        path, base = api.resume_run(folder)
    else:
        base = Settings()
        folder = folder or api.default_run_directory(model)
    settings = settings_from(choices, base).updated(extra or {}, "the options")
    if choices.dry_run:
        with tempfile.TemporaryDirectory(prefix="placewright-") as aside:
            path = path if model is None else api.model_path(model, store, aside=Path(aside))
            rows = api.dry_run(path, settings, folder, store, upto=upto, remeasure=remeasure)
            _show_dry_run(rows, choices)
        return
    path = path if model is None else api.model_path(model, store)
    if remeasure:
        api.forget_measurements(path, settings, store, upto=upto)
    with console.show_progress(quiet=choices.quiet) as progress:
        advance = api.advance_run(path, settings, folder, store, upto=upto, progress=progress, tensorboard=tensorboard)
    if not choices.quiet:
        for outcome in advance.outcomes.values():
            console.print_notice(console.outcome_line(outcome))
    if advance.result is not None:
        if choices.as_json:
            from pipeline.result.result_text import disturbed_text

            console.print_json(advance.result.document)
            warning = disturbed_text(advance.result.record)
            if warning:
                console.print_notice(warning)
        else:
            show_result(advance.result, verbose=choices.verbose)
        _check_limits(advance.result.best.name, advance.result.best.limit)
        return
    outcome = advance.outcomes[upto]
    summary = _summarise_artifact(upto, outcome.entry)
    if choices.as_json:
        told = {"stage": upto, "key": outcome.task.key, "ran": outcome.ran, "why": outcome.why}
        console.print_json(told | summary)
    else:
        _show_summary(upto, summary)


def _show_dry_run(rows: Sequence[Forecast], choices: Choices) -> None:
    if choices.as_json:
        console.print_json(rows)
        return
    for row in rows:
        console.print_result(
            f"{row['stage']:<10} {'would run ' if row['would_run'] else 'not needed'}  {row['key'][:12]}  {row['why']}"
        )


def _summarise_artifact(stage: str, entry: Entry) -> dict[str, Any]:
    """Return in a few figures what a stage's artifact holds."""
    from pipeline.shared import payload

    if stage == "coarsen":
        return {"nodes": payload.read_json(entry.path("steps.json"))}
    if stage == "embed":
        arrays = payload.load_arrays(entry.path("embedding.npz"))
        return {name: list(arrays[name].shape) for name in ("features", "nodes")}
    if stage == "group":
        return {"groups": payload.load_grouping(entry.path("grouping.npz")).k}
    rows = payload.read_json(entry.path("candidates.json"))
    kept = ("placer", "rank", "value_s", "found_by", "measured", "failed")
    return {
        "candidates": [{k: r[k] for k in kept} | {"devices": dict(Counter(r["placement"].values()))} for r in rows],
        "searches": payload.read_json(entry.path("searches.json")),
    }


def _show_summary(stage: str, summary: Mapping[str, Any]) -> None:
    """Write what `_summarise_artifact` returns as a person reads it."""
    if stage == "coarsen":
        rows = [[r["name"], str(r["nodes"]), str(r["edges"])] for r in summary["nodes"]]
        console.print_table("", ["after", "nodes", "edges"], rows)
    elif stage == "embed":
        (nodes, features), (_, width) = summary["features"], summary["nodes"]
        console.print_result(f"{nodes} nodes with {features} features and an embedding of width {width} each.")
    elif stage == "group":
        console.print_result(f"The nodes form {summary['groups']} groups.")
    else:
        from pipeline.result.result_text import search_text

        console.print_table(
            "", ["placement", "ms", "", "operations on", "found by"], list(map(_candidate_cells, summary["candidates"]))
        )
        for search in summary["searches"]:
            console.print_result(search_text(search))


def _candidate_cells(candidate: Mapping[str, Any]) -> list[str]:
    """Return the cells of a placement that a placer found."""
    from pipeline.result.result_text import failure_text

    name = f"{candidate['placer']} {candidate['rank'] + 1}"
    counts = ", ".join(f"{device} {count}" for device, count in sorted(candidate["devices"].items()))
    if candidate["failed"]:
        return [name, "-", failure_text(**candidate["failed"]), counts, candidate["found_by"]]
    level = "measured" if candidate["measured"] else "predicted"
    return [name, f"{candidate['value_s'] * 1e3:.2f}", level, counts, candidate["found_by"]]


def show_result(result: Result, *, verbose: bool) -> None:
    """Write the table of candidates, the verdict, the first notes on it (verbose: all), and where the files are.

    Whoever was in the screening alone is told without milliseconds.
    """
    from pipeline.result.accuracy import accuracy_cell
    from pipeline.result.result_text import (
        failure_text,
        format_milliseconds,
        format_speedup,
        is_first_sight,
        is_untried,
    )
    from runtime.measuring.contest.statistics import TWIN

    record = result.record
    rows = []
    for c in record.candidates:
        # The twin stands for noise, not for a way to run the model; what is one with another is that one.
        if c.name == TWIN or is_untried(c) or c.same_as:
            continue
        mark = "*" if c.name == record.best and not c.limit else ""
        if c.latency_s is None:
            failure = failure_text(c.failed.kind, c.failed.message) if c.failed else ""
            rows.append([mark + c.name, "-", "", "", "", "", "", failure[:MOST_WORDS]])
            continue
        rate = "" if c.rate is None or is_first_sight(c, record.contest) else number_text(c.rate)
        right = [c.precision, accuracy_cell(c)]
        cells = [
            *format_milliseconds(c, record.contest),
            rate,
            format_speedup(c, record.contest),
            *right,
            c.limit or c.about,
        ]
        rows.append([mark + c.name, *cells])
    ratio = f"times as fast as {record.contest.control}" if record.contest else ""
    metric = record.contest.metric if record.contest else ""
    differs = f"{metric} falls by" if metric else "outputs differ by"
    console.print_table(
        "", ["candidate", "ms", "range over starts", "per second", ratio, "precision", differs, "description"], rows
    )
    _show_verdict(record.verdict, ranked_notes(result), result.path, record.files, verbose=verbose)


def _check_limits(name: str, limit: str) -> None:
    """Raise if not even the answer keeps the limits; limit: which one, "" for none.

    Raises:
        MeasurementError: it does not, as nothing does.
    """
    if limit:
        raise MeasurementError(
            f"No candidate is within the limits; the best, {name}: {limit}.",
            "Raise the limit, or tune smaller models, or with other --devices.",
        )


def _show_verdict(verdict: str, notes: Sequence[str], folder: Path, files: Mapping[str, str], *, verbose: bool) -> None:
    """Write the verdict, the first notes on it (verbose: all), and where the files are."""
    console.print_result(verdict)
    shown = notes if verbose else notes[:MOST_NOTES]
    for note in shown:
        console.print_result(f"- {note}")
    if len(notes) > len(shown):
        where = ", ".join(files[kind] for kind in ("result", "report") if kind in files)
        console.print_result(f"- {len(notes) - len(shown)} more notes: --verbose, or in {where}.")
    console.print_result(f"Written to {folder}: {', '.join(dict.fromkeys(files.values()))}")


def ranked_notes(result: Result) -> list[str]:
    """Return what else there is to say of a result: what was lost or disturbed, then of the answer, then the rest."""
    from pipeline.result.accuracy import accuracy_text, checks_text
    from pipeline.result.result_text import (
        alone_text,
        disturbed_text,
        pipelines_text,
        reader_warnings,
        search_text,
        sizes_text,
        untried_text,
        winner_text,
    )

    record, best = result.record, result.best
    other = [note for note in record.notes if "--runtimes" in note]  # a faster runtime that nobody asked for
    lost = [note for note in record.notes if "left out" in note or "disturbed" in note]
    metric = record.contest.metric if record.contest else ""
    answer = [sizes_text(best), accuracy_text(best, metric), untried_text(record.candidates), *record.notes]
    rest = [alone_text(record.candidates, record.best), winner_text(record.candidates)]
    rest += [pipelines_text(record.searches, record.candidates), *map(search_text, record.searches)]
    rest += [*reader_warnings(record), checks_text(record.contest) if record.contest else ""]
    return [note for note in dict.fromkeys([*other, disturbed_text(record), *lost, *answer, *rest]) if note]
