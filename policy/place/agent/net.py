"""The policy: an encoder and a grouper handed over by the stages before, and the head that scores targets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.arrays import Float32
from pipeline.core.learning import Encoder, GroupModel, PolicyInputs
from pipeline.core.simulation import ExecutionModel
from pipeline.shared.torch_tools import load_weights, seeded, weights_of
from policy.place.agent.context import AT, COLUMNS, Context, GroupBatch

SHIFTS = 3  # in the order of execution a group goes forward, stays, or goes back
STILL = 1
# What the head thinks of the columns before it has learned anything: a group goes where it takes less time; and, where
# devices work at the same time, where its inputs are there in time, and where the device is idle meanwhile.
FIRST: Mapping[str, float] = {"change": -1.0, "relative_time": -0.3}
FIRST_CONCURRENT: Mapping[str, float] = {
    "change": -0.3,
    "relative_time": -0.3,
    "delay": -0.5,
    "room": 0.7,
    "occupied": -1.0,
    "load": -0.3,
}


class Head(nn.Module):
    """Scores p + 1 targets for each of K groups.

        score(g, t) = w . relu(A z_g + B x_gt) + v . x_gt,        z_g = mean of the members' embeddings

    The same weights serve every target, so any number of devices can be told apart, unseen ones included. The linear
    term begins with what a list scheduler would say.
    """

    def __init__(self, width: int, hidden: int, *, concurrent: bool) -> None:
        super().__init__()
        self.group = nn.Linear(width, hidden)
        self.pair = nn.Linear(len(COLUMNS), hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)
        nn.init.normal_(self.out.weight, std=0.01)
        first = torch.zeros(len(COLUMNS))
        for name, weight in (FIRST_CONCURRENT if concurrent else FIRST).items():
            first[AT[name]] = weight
        self.v = nn.Parameter(first)

    def scores(self, z: Tensor, at: Context) -> Tensor:
        """Return float32 [K, p + 1] for embeddings float32 [K, h]; -inf where forbidden."""
        hidden = torch.relu(self.group(z)[:, None] + self.pair(at.columns))
        score: Tensor = self.out(hidden).squeeze(2) + at.columns @ self.v
        return score.masked_fill(at.forbidden, -torch.inf)

    def targets(self, z: Tensor, at: Context, *, calm: Tensor) -> Tensor:
        """Return float32 [K, p + 1], log-probabilities of the targets; -inf where forbidden.

        z: float32 [K, h]. calm: float32 [K], added to the score of staying.
        """
        score = self.scores(z, at)
        score = torch.cat([score[:, :-1], score[:, -1:] + calm[:, None]], dim=1)
        return torch.log_softmax(score, dim=1)


class OrderHead(nn.Sequential):
    """Scores three places in the order of execution for each of K groups: forward, where it is, back."""

    def __init__(self, width: int, hidden: int) -> None:
        last = nn.Linear(hidden, SHIFTS)
        nn.init.normal_(last.weight, std=0.01)
        nn.init.zeros_(last.bias)
        super().__init__(nn.Linear(width, hidden), nn.ReLU(), last)

    def shifts(self, z: Tensor, *, calm: Tensor) -> Tensor:
        """Return float32 [K, 3], log-probabilities of the three; calm: float32 [K], added to keeping one's place."""
        still = torch.zeros(SHIFTS)
        still[STILL] = 1.0
        return torch.log_softmax(self(z) + still * calm[:, None], dim=1)


class Policy(nn.Module):
    """All parameters that are trained together."""

    def __init__(self, inputs: PolicyInputs, *, hidden: int, execution: ExecutionModel | None, seed: int) -> None:
        super().__init__()
        seeds = np.random.SeedSequence(seed).generate_state(3).tolist()
        self.encoder: Encoder = inputs.embedder.encoder(inputs.features.shape[1], seed=seeds[0])
        self.grouper: GroupModel = inputs.grouper.build(self.encoder.width, seed=seeds[1])
        load_weights(self.encoder.module, inputs.encoder_weights)
        load_weights(self.grouper.module, inputs.grouper_weights)
        with seeded(seeds[2]):
            concurrent = execution is not None and execution.concurrent
            self.making, self.changing = (Head(self.encoder.width, hidden, concurrent=concurrent) for _ in range(2))
            self.ordering = OrderHead(self.encoder.width, hidden)
        # A Protocol is no nn.Module to torch: registered under these names, they are found by parameters() and train().
        self.encoder_module, self.grouper_module = self.encoder.module, self.grouper.module

    def targets(self, z: Tensor, at: Context, *, calm: Tensor) -> Tensor:
        """Return float32 [K, p + 1], log-probabilities of the targets; -inf where forbidden.

        Groups that are placed for the first time have a head of their own. z: float32 [K, h]. calm: float32 [K].
        """
        log_p = self.changing.targets(z, at, calm=calm)
        unplaced = at.columns[:, :1, AT["fresh"]] > 0  # [K, 1]
        return torch.where(unplaced, self.making.targets(z, at, calm=calm), log_p) if bool(unplaced.any()) else log_p

    def weights(self) -> dict[str, Float32]:
        """Return copies of all parameters by name."""
        return weights_of(self)

    def load(self, weights: Mapping[str, Float32]) -> None:
        """Take over parameters, of another graph's policy perhaps.

        Raises:
            UsageError: they are of another kind of policy.
        """
        load_weights(self, weights)


def pooled(nodes: Tensor, groups: GroupBatch) -> Tensor:
    """Return float32 [K, h], the mean over each group's members of embeddings float32 [n, h]."""
    r = groups.label.shape[0]
    size = torch.bincount(groups.label.reshape(-1), minlength=groups.total)
    return groups.sum(nodes.expand(r, -1, -1)) / size[:, None]
