"""tune, and its five stages one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import console
from pipeline.cli.options import Choices, open_store, reward_option, settings_from, shared, tensorboard_option
from pipeline.core.errors import UsageError

if TYPE_CHECKING:
    from pipeline.result import Result

DISTURBED = 0.1  # share of the threads' time spent waiting for a processor above which a person should know

model_argument = click.argument("model")
run_option = click.option(
    "--run", "--out", "folder", type=click.Path(path_type=Path), help="Run directory; for a new run it is made."
)


@click.command()
@model_argument
@run_option
@reward_option
@tensorboard_option
@shared
def tune(model: str, folder: Path | None, reward: str | None, tensorboard: Path | None, **options: Any) -> None:
    """Find the fastest way to run MODEL on the devices: all five stages.

    MODEL is an OpenVINO IR, ONNX, whatever else OpenVINO reads, or zoo:NAME. The answer is measured on the devices
    and is never worse than the best single device.
    """
    choices = Choices.taken(options)
    _advance(model, folder, choices, upto="measure", extra=_rewarded(reward), tensorboard=tensorboard)


def _rewarded(reward: str | None) -> dict[str, Any]:
    return {} if reward is None else {"place.reward": reward}


@click.command()
@model_argument
@run_option
@shared
@click.option("--raw", is_flag=True, help="Keep weights as operations of their own.")
def coarsen(model: str, folder: Path | None, raw: bool, **options: Any) -> None:
    """Read MODEL and merge operations that belong together."""
    choices = Choices.taken(options)
    _advance(model, folder, choices, upto="coarsen", extra={"coarsen.raw": True} if raw else {})


def _stage(name: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
    @shared
    def command(folder: Path, **options: Any) -> None:
        _advance(None, folder, Choices.taken(options), upto=name)

    return command


embed = _stage("embed", "Compute features and embeddings of the coarse operations.")
group = _stage("group", "Merge coarse operations into groups that are placed as one.")


@click.command()
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True, help="Run directory.")
@reward_option
@tensorboard_option
@shared
def place(folder: Path, reward: str | None, tensorboard: Path | None, **options: Any) -> None:
    """Search for placements of the groups."""
    choices = Choices.taken(options)
    _advance(None, folder, choices, upto="place", extra=_rewarded(reward), tensorboard=tensorboard)


measure = _stage("measure", "Measure the best placements against the baselines, and write the result.")


def _advance(
    model: str | None,
    folder: Path | None,
    choices: Choices,
    *,
    upto: str,
    extra: dict[str, Any] | None = None,
    tensorboard: Path | None = None,
) -> None:
    from pipeline import api
    from pipeline.config import Settings

    store = open_store(choices.store)
    if model is None:
        if folder is None:
            raise UsageError("There is no run directory.", "Give --run DIR.")
        path, base = api.resume(folder)
    else:
        base = Settings()
        folder = folder or api.default_run_directory(model)
    settings = settings_from(choices, base).updated(extra or {}, "the options")
    if choices.dry_run:
        with tempfile.TemporaryDirectory(prefix="placewright-") as aside:
            path = path if model is None else api.model_path(model, store, aside=Path(aside))
            _show_outlook(api.outlook(path, settings, folder, store, upto=upto), choices)
        return
    path = path if model is None else api.model_path(model, store)
    with console.progress(quiet=choices.quiet) as progress:
        advance = api.advance(path, settings, folder, store, upto=upto, progress=progress, tensorboard=tensorboard)
    if not choices.quiet:
        for outcome in advance.outcomes.values():
            console.say(console.outcome_line(outcome))
    if advance.result is not None:
        if choices.as_json:
            console.print_json(advance.result.document)
        show_result(advance.result)
        return
    outcome = advance.outcomes[upto]
    summary = _summary(upto)(outcome.entry)
    if choices.as_json:
        console.print_json({"stage": upto, "key": outcome.task.key, "ran": outcome.ran, "why": outcome.why, **summary})
    else:
        for name, value in summary.items():
            console.say(f"{name}: {value}")


def _show_outlook(rows: list[dict[str, Any]], choices: Choices) -> None:
    if choices.as_json:
        console.print_json(rows)
        return
    for row in rows:
        console.say(
            f"{row['stage']:<8} {'would run ' if row['would_run'] else 'not needed'}  {row['key'][:12]}  {row['why']}"
        )


def _summary(stage: str) -> Callable[[Any], dict[str, Any]]:
    """Return the function that says in a few figures what a stage's artifact holds."""
    from pipeline import payload

    def coarsened(entry: Any) -> dict[str, Any]:
        return {"nodes": payload.read_json(entry.path("steps.json"))}

    def embedded(entry: Any) -> dict[str, Any]:
        arrays = payload.load_arrays(entry.path("embedding.npz"))
        return {name: list(arrays[name].shape) for name in ("features", "nodes")}

    def grouped(entry: Any) -> dict[str, Any]:
        return {"groups": payload.load_grouping(entry.path("grouping.npz")).k}

    def placed(entry: Any) -> dict[str, Any]:
        rows = payload.read_json(entry.path("candidates.json"))
        return {"candidates": [{k: r[k] for k in ("placer", "rank", "value_s")} for r in rows]}

    return {"coarsen": coarsened, "embed": embedded, "group": grouped, "place": placed}[stage]


def show_result(result: Result) -> None:
    """Write the table of candidates, the verdict, and where the files are."""
    document = result.document
    rows = []
    for c in document["candidates"]:
        mark = "*" if c["name"] == document["best"] else ""
        if c["failed"]:
            rows.append([mark + c["name"], "-", "-", "-", f"{c['failed']['kind']}: {c['failed']['message'][:60]}"])
            continue
        latency = c["latency_s"]
        interval = f"{latency['low'] * 1e3:.2f} to {latency['high'] * 1e3:.2f}"
        used = ", ".join(c["devices_used"])
        rows.append([mark + c["name"], f"{latency['median'] * 1e3:.2f}", interval, str(c["subgraphs"]), used])
    console.table("", ["candidate", "median ms", "95 % interval", "sub-graphs", "ran on"], rows)
    for search in document["searches"]:
        console.say(search_line(search))
    won = winner_line(document["candidates"])
    if won:
        console.say(won)
    console.say(document["verdict"])
    waited = max((c["waited_share"] or 0.0 for c in document["candidates"]), default=0.0)
    if waited > DISTURBED:
        console.say(
            "Other processes disturbed the measurement: "
            f"its threads spent up to {waited:.0%} of their time waiting for a processor."
        )
    console.say(f"Written to {result.path}: {', '.join(document['files'].values())}")


def winner_line(candidates: Sequence[Mapping[str, Any]]) -> str:
    """Return in one line whose plan was the fastest of all that placers found; "" where none of them ran.

    candidates: of the result, fastest first.
    """
    from pipeline.finals import CALIBRATION

    best: dict[str, Mapping[str, Any]] = {}
    for c in candidates:
        if not c["baseline"] and c["placer"] != CALIBRATION and c["latency_s"] is not None:
            best.setdefault(c["placer"], c)
    if not best:
        return ""
    words = [f"{placer} {c['latency_s']['median'] * 1e3:.2f} ms" for placer, c in best.items()]
    return f"Best plan of each placer, the fastest first: {', '.join(words)}."


def search_line(search: Mapping[str, Any]) -> str:
    """Return in one line what a placer's search came to."""
    figures = {"measured": search["measured_s"]}
    if search["reward"] != "measured":
        figures["predicted"] = search.get("predicted_s") or search["value_s"]
    best = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in figures.items() if value is not None)
    words = [f"{search['placer']}: best {best or 'failed'}", f"found by {search['found_by']}"]
    if search["lower_bound_s"] and search["reward"] != "hybrid":  # whose simulator changes with every measurement
        proof = "optimal" if search["proven"] else f"gap {search['gap']:.1%}"
        words.append(f"bound {search['lower_bound_s'] * 1e3:.2f} ms ({proof})")
    words.append(f"{search['evaluations']} evaluations")
    if search["measurements"] and search["reward"] == "hybrid":
        words.append(f"{search['measurements']} measurements")
    if search.get("refused") and not search["used"]:
        words.append(f"not calibrated ({search['refused'][:60]})")
    errors = [f"{r['error']:.1%}" for r in search.get("rounds", ()) if r["error"] is not None]
    if errors:
        words.append(f"prediction off by {', '.join(errors)}")
    return ", ".join(words)
