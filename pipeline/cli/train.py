"""train: the weights of `neural_list`, from graphs of all generators."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the state, the weights and the log; goes on from there.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything that is random."
)
@click.option(
    "--generations", type=click.IntRange(min=1), default=300, show_default=True, help="Rounds of draws of weights."
)
@click.option(
    "--leave-out", "left_out", multiple=True, metavar="FAMILY", help="A family of graphs not to learn from; repeatable."
)
@click.option("--limit", type=click.IntRange(min=1), help="Exercises of each family at most, for a quick look.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@debug_option
def train(
    out: Path, seed: int, generations: int, left_out: tuple[str, ...], limit: int | None, quiet: bool, debug: bool
) -> None:
    """Train the placer neural_list by the cross-entropy method, on simulated times alone.

    Use what it writes with --set place.neural_list.weights=DIR/neural_list.safetensors.
    """
    from pipeline.offline.train import WEIGHTS
    from pipeline.offline.train import train as run
    from policy.place.neural.training import CrossEntropy

    course = CrossEntropy(generations=generations, seed=seed)
    with console.progress(quiet=quiet) as progress:
        run(out, course, left_out=left_out, limit=limit, say=progress)
    console.say(f"Written to {out / WEIGHTS}")
