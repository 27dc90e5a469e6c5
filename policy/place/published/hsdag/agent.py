"""The agent that parses a graph and draws a device for each cluster."""

from __future__ import annotations

from collections.abc import Callable
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
from pipeline.shared.torch_tools import load_weights, torch_seeded
from policy.place.published.hsdag.clusters import Clusters, Links, joined
from policy.place.published.hsdag.network import Parsing, ParsingRounds

FARTHEST = 1e6  # a state beyond it has no use; its square still is a float32


@dataclass(frozen=True, slots=True)
class Design:
    """What an agent is made of.

    hidden: width of the scorer, the placer and the output network. rounds: how the graph is parsed. dropped_edges:
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

    log_prob: scalar, with gradient. entropy: mean over the groups, in nats. groups: how many there are. again: returns
    log_prob of this draw under what the parameters are by then; groups, states and the edges seen stay as drawn.
    """

    placement: Placement
    log_prob: Tensor
    entropy: float
    groups: int
    again: Callable[[], Tensor]


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
        with torch_seeded(seeds[1]):
            self.parsing = Parsing(width, design.hidden, design.rounds)
            # from features of clusters to the width of the input features
            self.out = (
                nn.Sequential(
                    nn.Linear(width, design.hidden),
                    nn.ReLU(),
                    nn.Dropout(design.rounds.dropout),
                    nn.Linear(design.hidden, wide),
                    nn.ReLU(),
                    nn.Dropout(design.rounds.dropout),
                )
                if design.state == "features"
                else None
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
        state, edges = self.state, self._seen_edges()
        rounds, found = self._parsed(state, edges)
        grouping = joined(rounds)
        self.state = (state + found.detach()[_index(grouping)]).nan_to_num().clamp(-FARTHEST, FARTHEST)
        groups = made_feasible(self.problem, grouping)
        log_p = self._log_p(found, grouping, groups)
        device = torch.multinomial(log_p.detach().exp(), 1).squeeze(1)
        sure = log_p.detach()
        entropy = -(sure.exp() * sure.clamp(min=torch.finfo(sure.dtype).min)).sum(dim=1).mean()
        placement = Placement(device.numpy(), self.problem.topology.names).lift(groups)

        def again() -> Tensor:
            return _log_prob(self._log_p(self._parsed(state, edges, rounds)[1], grouping, groups), device)

        return Step(placement, _log_prob(log_p, device), float(entropy), groups.k, again)

    def _seen_edges(self) -> Tensor:
        """Return the edges that the encoder sees in a step."""
        if not self.design.dropped_edges:
            return self.edges
        return self.edges[:, torch.rand(self.edges.shape[1]) >= self.design.dropped_edges]

    def _parsed(
        self, state: Tensor, edges: Tensor, rounds: tuple[Clusters, ...] = ()
    ) -> tuple[tuple[Clusters, ...], Tensor]:
        """Return the clusters of every round, and features of the last, float32 [k, width of the state].

        state: float32 [n, width of the state]. edges: int64 [2, e]. rounds: the clusters, if they are known already.
        """
        on_features = self.out is not None
        x = self.encoder(self.features + state if on_features else self.features, edges)
        made, found = self.parsing(x if on_features else x + state, self.links, rounds)
        return made, found if self.out is None else self.out(found)

    def _log_p(self, found: Tensor, grouping: Grouping, groups: Grouping) -> Tensor:
        """Return float32 [k, p], log-probabilities of devices; found: of `grouping`, which `groups` makes feasible."""
        if groups is not grouping:
            # the mean over each group, float32 [k, f]
            values = found[_index(grouping)]
            group = _index(groups)
            size = torch.bincount(group, minlength=groups.k)[:, None]
            found = values.new_zeros(groups.k, values.shape[1]).index_add(0, group, values) / size
        forbidden = torch.from_numpy(~self.problem.group_allowed(groups))
        logits = self.placer(found).nan_to_num()  # should learning have run away
        return torch.log_softmax(logits.masked_fill(forbidden, -torch.inf), dim=1)


def _index(grouping: Grouping) -> Tensor:
    return torch.from_numpy(grouping.group.astype(np.int64))


def _log_prob(log_p: Tensor, device: Tensor) -> Tensor:
    """Return the log-probability of devices int64 [k], a scalar, from those of all, float32 [k, p]."""
    return log_p.gather(1, device[:, None]).sum()
