"""train: the weights of `neural_list`, from graphs of all generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli import console
from pipeline.cli.options import COUNT, SEED, debug_option
from pipeline.core.errors import UsageError


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the state, the weights and the log; training resumes from it.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@click.option(
    "--generations", type=COUNT, default=300, show_default=True, help="Generations of the cross-entropy method."
)
@click.option(
    "--after",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Weights of an earlier training, kept; learn the weight of the previous schedule.",
)
@click.option(
    "--members",
    type=click.IntRange(min=2),
    help="With --after: number of complementary policies; the first has those weights.",
)
@click.option(
    "--labels", type=COUNT, help="With --after: number of drawn graphs whose best known placements it imitates."
)
@click.option(
    "--leave-out", "left_out", multiple=True, metavar="FAMILY", help="Family of graphs to leave out; repeatable."
)
@click.option("--limit", type=COUNT, help="Most training cases per family.")
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def train(**options: Any) -> None:
    """Train the placer neural_list on simulated times.

    It learns by the cross-entropy method.

    With --after it learns the weight of the previous schedule and keeps all other weights. With --members it also draws
    policies around those weights, and keeps complementary ones. With --labels it searches for a good placement of
    each drawn graph, and imitates these from those weights on (self-labelling).
    Use what it writes with --set place.neural_list.weights=DIR/neural_list.safetensors.
    """
    from pipeline.offline.self_labelling import Labelling, train_by_labels
    from pipeline.offline.train import WEIGHTS, train_complement
    from pipeline.offline.train import train as run
    from policy.place.learned.neural_list.complementing import Complementing
    from policy.place.learned.neural_list.imitation import Imitation
    from policy.place.learned.neural_list.training import CrossEntropy

    out, after, members = options["out"], options["after"], options["members"]
    for name in ("members", "labels"):
        if options[name] is not None and after is None:
            raise UsageError(f"--{name} needs --after.", "Pass the weights of an earlier training with --after.")
    course = (CrossEntropy if after is None else CrossEntropy.after)(
        generations=options["generations"], seed=options["seed"]
    )
    some = {"left_out": options["left_out"], "limit": options["limit"]}
    with console.show_progress(quiet=options["quiet"]) as progress:
        if options["labels"] is not None:
            labelling = Labelling(graphs=options["labels"], seed=options["seed"])
            train_by_labels(out, labelling, Imitation(), after=after, left_out=options["left_out"], say=progress)
        elif members is None:
            run(out, course, after=after, **some, say=progress)
        else:
            train_complement(
                out, Complementing(members=members, seed=options["seed"]), after=after, **some, say=progress
            )
    console.print_result(f"Written to {out / WEIGHTS}")
