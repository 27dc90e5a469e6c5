"""GDP-batch: one policy that learns on several graphs at once, and is then kept for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pipeline.core.learning import Snapshot
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Search
from policy.place.published.gdp.gdp import Gdp
from policy.place.published.gdp.keeping import published


def learn_jointly(placer: Gdp, searches: Sequence[Search], *, seed: int) -> Snapshot:
    """Return the policy learned on the problems of searches, each within its own budget.

    Every step of the optimiser mixes placements of all graphs, each graph counts alike. What was found for a graph is
    its search's answer. The policy begins with the one that the first problem brings, if it does. An answer to the
    question for one graph alone is that of `placer.place`.

    Raises:
        UsageError: a problem has no policy inputs, or the policy does not fit.
    """
    with torch_seeded(seed):
        trainer = placer.trainer(searches, seed=seed)
        while not trainer.done and trainer.idle < placer.patience:
            trainer.update()
        for trial in trainer.trials:
            trainer.decode(trial)
    return published(trainer, "gdp", asdict(placer))
