"""The agent that parses a graph and draws a device for each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.graph import Grouping
from pipeline.core.learning import Encoder, PolicyInputs
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import made_feasible
from pipeline.shared.torch_tools import load_weights, seeded
from policy.place.parsing.clusters import Links
from policy.place.parsing.network import Parsing, ParsingRounds

FARTHEST = 1e6  # a state beyond it has no use; its square still is a float32


@dataclass(frozen=True, slots=True)
class Design:
    """What an agent is made of.

    hidden: units of the scorer, the placer and the output network. rounds: how the graph is parsed. dropped_edges:
    share of the edges that the encoder does not see in a step. state: what the features of the clusters are added to
    from step to step: the embeddings, or the input features, to whose width a network then brings them.
    """

    hidden: int
    rounds: ParsingRounds
    dropped_edges: float
    state: Literal["embeddings", "features"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One drawn placement.

    log_prob: scalar, with gradient. entropy: mean over the groups, in nats. groups: how many there are.
    """

    placement: Placement
    log_prob: Tensor
    entropy: float
    groups: int


class ParsingAgent(nn.Module):
    """Encoder, parsing network and placer of one problem, and the state they leave from step to step."""

    def __init__(self, problem: Problem, policy: PolicyInputs, design: Design, *, seed: int) -> None:
        super().__init__()
        self.problem, self.design = problem, design
        self.features = torch.tensor(policy.features)
        self.edges = torch.tensor(problem.graph.edges, dtype=torch.int64)
        self.links = Links.of(problem.graph.n, *problem.graph.edges)
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        self.encoder: Encoder = policy.embedder.encoder(policy.features.shape[1], seed=seeds[0])
        load_weights(self.encoder.module, policy.encoder_weights)
        self.encoder_module = self.encoder.module  # under this name parameters() and train() find it
        width, wide = self.encoder.width, policy.features.shape[1]
        with seeded(seeds[1]):
            self.parsing = Parsing(width, design.hidden, design.rounds)
            self.out = (
                _output(width, design.hidden, wide, design.rounds.dropout) if design.state == "features" else None
            )
            width = width if self.out is None else wide
            self.placer = nn.Sequential(
                nn.Linear(width, design.hidden), nn.ReLU(), nn.Linear(design.hidden, problem.topology.p)
            )
        self.state = torch.zeros(problem.graph.n, width)

    def restart(self) -> None:
        """Forget the steps so far."""
        self.state = torch.zeros_like(self.state)

    def step(self) -> Step:
        """Return a draw, and add the features of each node's cluster to its state."""
        grouping, found = self._parsed()
        group = torch.from_numpy(grouping.group.astype(np.int64))
        self.state = (self.state + found.detach()[group]).nan_to_num().clamp(-FARTHEST, FARTHEST)
        groups = made_feasible(self.problem, grouping)
        if groups is not grouping:
            found = _mean_per_group(found[group], groups)
        forbidden = torch.from_numpy(~self.problem.group_allowed(groups))
        logits = self.placer(found).nan_to_num()  # should learning have run away
        log_p = torch.log_softmax(logits.masked_fill(forbidden, -torch.inf), dim=1)  # [k, p]
        device = torch.multinomial(log_p.detach().exp(), 1).squeeze(1)
        sure = log_p.detach()
        entropy = -(sure.exp() * sure.clamp(min=torch.finfo(sure.dtype).min)).sum(dim=1).mean()
        placement = Placement(device.numpy(), self.problem.topology.names).lift(groups)
        return Step(placement, log_p.gather(1, device[:, None]).sum(), float(entropy), groups.k)

    def _parsed(self) -> tuple[Grouping, Tensor]:
        """Return the clusters and their features, float32 [k, width of the state]."""
        on_features = self.out is not None
        edges = self.edges
        if self.design.dropped_edges:
            edges = edges[:, torch.rand(edges.shape[1]) >= self.design.dropped_edges]
        x = self.encoder(self.features + self.state if on_features else self.features, edges)
        grouping, found = self.parsing(x if on_features else x + self.state, self.links)
        return grouping, found if self.out is None else self.out(found)


def _output(width: int, hidden: int, wide: int, dropout: float) -> nn.Sequential:
    """Return the network from features of clusters to the width of the input features."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, wide),
        nn.ReLU(),
        nn.Dropout(dropout),
    )


def _mean_per_group(values: Tensor, grouping: Grouping) -> Tensor:
    """Return the mean of values float32 [n, f] over each group, float32 [k, f]."""
    group = torch.from_numpy(grouping.group.astype(np.int64))
    size = torch.bincount(group, minlength=grouping.k)[:, None]
    return values.new_zeros(grouping.k, values.shape[1]).index_add(0, group, values) / size
