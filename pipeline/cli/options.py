"""Options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pipeline.core.settings import MOST_SEED, RUNTIMES

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A number within bounds that is neither infinite nor none at all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; one that is out of bounds or not finite is a fault of usage."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class RunnerOfSplits(click.Choice[str]):
    """What runs splits; a runtime of whole models goes by an option of nearly the same name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value."""
        if value in RUNTIMES:
            self.fail(f"{value!r} runs whole models: give --runtimes {value}.", param, ctx)
        return super().convert(value, param, ctx)


COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0, max=MOST_SEED)
POSITIVE = FiniteRange(min=0, min_open=True)
NOT_NEGATIVE = FiniteRange(min=0)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the shared options of a command were set to."""

    devices: str | None
    budget: str | None
    shapes: tuple[str, ...]
    shape_ranges: tuple[str, ...]
    keep_dynamic: bool
    split_directions: bool
    split_groups: bool
    allow: tuple[str, ...]
    input: Path | None
    seed: int | None
    config: Path | None
    assignments: tuple[str, ...]
    store: Path | None
    as_json: bool
    dry_run: bool
    verbose: bool
    quiet: bool

    @classmethod
    def taken(cls, options: dict[str, Any]) -> Choices:
        """Return the shared options of a command's keyword arguments, which lose them."""
        options.pop("debug")
        return cls(**{name: options.pop(name) for name in cls.__slots__})


shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help="Shape of an input; repeatable."
)
shape_range_option = click.option(
    "--shape-range",
    "shape_ranges",
    multiple=True,
    metavar="NAME=1x3x[32..640]x320",
    help="Range of input sizes to tune for, or 1x3x32|320*3|640x320 with weights; repeatable.",
)
keep_dynamic_option = click.option("--keep-dynamic", is_flag=True, help="Keep inputs dynamic that have no --shape.")
split_directions_option = click.option(
    "--split-directions", is_flag=True, help="Split every bidirectional LSTM, GRU or RNN into two operations."
)
split_groups_option = click.option(
    "--split-groups", is_flag=True, help="Split every grouped convolution and multi-head attention into two operations."
)
allow_option = click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["weights-int8"]),
    help="Also try this lossy rewrite as a candidate; repeatable.",
)
input_option = click.option(
    "--input",
    type=click.Path(path_type=Path),
    metavar="DATA.npz",
    help="Input arrays by name: they set the shapes, and are used to measure and to compare outputs.",
)


def objective_options(command: Command) -> Command:
    """Add the options that say what is to be best, and what the answer must keep to."""
    for option in reversed(
        (
            click.option(
                "--objective", type=click.Choice(["latency", "throughput"]), help="What to optimise; default latency."
            ),
            click.option(
                "--runtime",
                type=RunnerOfSplits(["hetero", "dataflow", "auto"]),
                help="How splits run: OpenVINO's HETERO, concurrent segments (dataflow), or measure both (auto). "
                "What runs the model is --runtimes.",
            ),
            click.option(
                "--runtimes",
                metavar="openvino,onnxruntime",
                help="Runtimes that may run the model; default openvino, beside which ONNX Runtime is reported.",
            ),
            click.option("--p99", metavar="TIME", help="Limit on the 99th percentile of latency, such as 20ms."),
            click.option("--min-rate", type=NOT_NEGATIVE, metavar="N", help="Least inferences per second."),
            click.option("--max-memory", metavar="SIZE", help="Limit on the memory of the process, such as 2GB."),
            click.option("--max-load-time", metavar="TIME", help="Limit on the compile time, such as 1s."),
            click.option(
                "--rate",
                type=NOT_NEGATIVE,
                metavar="N",
                help="Requests per second when the answer runs alone; 0: back to back.",
            ),
            click.option(
                "--samples-per-query",
                type=COUNT,
                metavar="N",
                help="Inferences per query when the answer runs alone.",
            ),
            click.option(
                "--accuracy",
                type=click.Choice(["strict", "usual", "loose"]),
                help="Output tolerance in low precisions, relative to the reference: strict 0.1 % (as in f32), usual "
                "5 % (default), loose 20 %; measure.tolerance and measure.low_tolerance set others.",
            ),
            click.option(
                "--metric", metavar="FILE.py:FUNCTION", help="Quality metric of the outputs; larger is better."
            ),
            click.option(
                "--condition",
                type=click.Choice(["quiet", "shared"]),
                help="Measure without real-time scheduling, or beside a load of one busy thread per two processors "
                "(measure.load_threads sets another number); default: the machine as it is.",
            ),
        )
    ):
        command = option(command)
    return command


def objective_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the options of `objective_options` stand for, which are taken out of `options`.

    Raises:
        UsageError: a time or a size is not written as it should be.
    """
    from pipeline.settings.config import parse_bytes, parse_time

    plain = ("objective", "runtime", "runtimes", "min_rate", "rate", "samples_per_query", "accuracy", "condition")
    taken = {name: options.pop(name) for name in (*plain, "p99", "max_memory", "max_load_time", "metric")}
    settings = {f"measure.{name}": taken[name] for name in plain}
    settings["measure.metric"] = taken["metric"] and str(Path(taken["metric"]).absolute())
    for name, key in (("p99", "p99_s"), ("max_load_time", "max_load_s")):
        settings[f"measure.{key}"] = (
            None if taken[name] is None else parse_time(taken[name], f"--{name.replace('_', '-')}", "20ms")
        )
    settings["measure.max_memory_bytes"] = (
        None if taken["max_memory"] is None else parse_bytes(taken["max_memory"], "--max-memory")
    )
    return {key: value for key, value in settings.items() if value is not None}


def near_options(command: Command) -> Command:
    """Add the options of searching near an earlier placement."""
    path = click.Path(path_type=Path)
    for option in reversed(
        (
            click.option(
                "--near",
                type=path,
                help="Earlier placement, placement.json or {operation: device}, of which little moves.",
            ),
            click.option("--moves", type=click.IntRange(min=0), help="With --near: most operations that may move."),
            click.option("--move-price", help="With --near: least gain per moved operation, such as 0.1ms."),
        )
    ):
        command = option(command)
    return command


def near_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the options of `near_options` stand for, which are taken out of `options`; {} if none.

    Raises:
        UsageError: an option needs another, or a price is not written as it should be.
    """
    from pipeline.core.errors import UsageError
    from pipeline.settings.config import parse_time

    near, moves, price = (options.pop(name) for name in ("near", "moves", "move_price"))
    if near is None and (moves is not None or price is not None):
        raise UsageError("--moves and --move-price count operations of an earlier placement.", "Give --near FILE.")
    if near is None:
        return {}
    price_s = 0.0 if price is None else parse_time(price, "price of a move", "0.1ms")
    limit = {} if moves is None else {"place.moves": moves}
    return {"place.near": str(near.absolute()), "place.move_price_s": price_s, **limit}


def stage_options(command: Command) -> Command:
    """Add the options that all stage commands have."""
    for option in reversed(
        (
            click.option("--devices", help='Devices: "CPU,GPU", "A=CPU{KEY=VALUE},B=CPU{...}" or devices.toml.'),
            click.option("--budget", help="Time for searching and measuring, such as 120s or 2m."),
            shape_option,
            shape_range_option,
            keep_dynamic_option,
            split_directions_option,
            split_groups_option,
            allow_option,
            input_option,
            click.option("--seed", type=SEED, help="Random seed."),
            click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings."),
            click.option(
                "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a setting; repeatable."
            ),
            click.option(
                "--store",
                type=click.Path(path_type=Path),
                help="Folder of cached artifacts.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."),
            click.option("--dry-run", is_flag=True, help="Print which stages would run, and why; run nothing."),
            click.option("--verbose", is_flag=True, help="Print all notes on the result, not the first three."),
            click.option("--quiet", is_flag=True, help="Hide progress."),
            debug_option,
        )
    ):
        command = option(command)
    return command


reward_option = click.option(
    "--reward",
    type=click.Choice(("simulated", "measured", "hybrid")),
    help="How placers value a placement: simulated, measured, or simulated and calibrated to measurements.",
)
tensorboard_option = click.option(
    "--tensorboard",
    type=click.Path(path_type=Path),
    help="Folder for TensorBoard event files of the searches.",
)
remeasure_option = click.option(
    "--remeasure", is_flag=True, help="Discard the measurements of this run and measure again."
)
on_option = click.option(
    "--on",
    metavar="local:N|dask://HOST:PORT|slurm:FILE",
    help="Where to run the work: N local workers, the workers of a Dask scheduler (tls://HOST:PORT with TLS), or "
    "workers that a batch system starts.",
)
debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error, and log messages.")
store_option = click.option("--store", type=click.Path(path_type=Path), help="Folder of cached artifacts.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


def settings_from(choices: Choices, base: Any) -> Any:
    """Return `base` settings with config file, environment, --set and options applied, in this order.

    Raises:
        UsageError: unknown keys or wrong values; all are named.
    """
    from pipeline.settings import config

    result = base
    if choices.config is not None:
        result = result.updated(config.flatten_settings(config.read_toml(choices.config)), str(choices.config))
    result = result.updated(config.from_environment(os.environ), "the environment")
    result = result.updated(dict(config.parse_assignment(a) for a in choices.assignments), "--set")
    given: dict[str, Any] = {"devices": choices.devices, "budget": choices.budget, "seed": choices.seed}
    given |= {"coarsen.shapes": choices.shapes or None, "coarsen.keep_dynamic": choices.keep_dynamic or None}
    given |= {"coarsen.shape_ranges": choices.shape_ranges or None}
    given |= {"coarsen.split_directions": choices.split_directions or None}
    given |= {"coarsen.split_groups": choices.split_groups or None}
    given |= {"coarsen.allow": choices.allow or None}
    given |= {"coarsen.input": choices.input and str(choices.input.absolute())}
    return result.updated({k: v for k, v in given.items() if v is not None}, "the options")


def open_store(path: Path | None) -> Any:
    """Return the store at a path, or the one that the environment or the user's cache has."""
    from pipeline.store.store import Store, default_store

    return Store(path if path is not None else default_store())
