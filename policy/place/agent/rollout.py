"""Draws of placements: which placement is changed, how nodes are grouped, where each group goes in each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Float64
from pipeline.core.learning import GroupSample
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import made_feasible
from policy.place.agent.context import GroupBatch, context
from policy.place.agent.net import STILL, Policy, pooled
from policy.place.agent.schedule import Schedule
from policy.place.agent.world import World
from policy.place.local.anneal import ranks

Choose = Callable[[Tensor], Tensor]
"""Which target each group takes, int64 [K], from log-probabilities float32 [K, targets]."""


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A plan to be changed, or to be made where there is none.

    placement: None to place every group from scratch. value: units that it takes; of a new placement, the best known.
    schedule: when it runs what, where that is known. order: float64 [n], the place of each node in the order of
    execution, in the placement or to begin with; None where placements have no order.
    """

    plan: Placement | None
    value: float
    schedule: Schedule | None = None
    order: Float64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """r draws.

    placements: what came out. log_prob, entropy: float32 [r], with gradient; the entropy is per decision.
    groups: the number of groups of each.
    """

    placements: list[Placement]
    log_prob: Tensor
    entropy: Tensor
    groups: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Actor:
    """Draws plans for one problem from a policy.

    features: float32 [n, f]. passes: how often every group may choose, each time knowing what all chose before.
    """

    problem: Problem
    world: World
    policy: Policy
    features: Tensor
    passes: int

    def nodes(self) -> Tensor:
        """Return the embeddings of all nodes, float32 [n, h]."""
        edges = torch.stack([self.world.source, self.world.target])
        return self.policy.encoder(self.features, edges)

    def draw(
        self, nodes: Tensor, bases: Sequence[Base], *, moves: Float64, reach: Float64, rng: np.random.Generator
    ) -> Rollout:
        """Return one draw for each base; moves, reach: float64 [r], see `rollout`."""
        samples = self.policy.grouper.draws(nodes, self.problem.graph, len(bases), rng=rng)
        return self.rollout(nodes, bases, samples, dice(rng), moves=moves, reach=reach)

    def decode(self, nodes: Tensor, base: Base) -> Rollout:
        """Return the draw in which every choice is the likeliest, but for groups that would rather stay."""
        rng = np.random.default_rng(0)  # a greedy grouping asks for none
        sample = self.policy.grouper.group(nodes, self.problem.graph, rng=rng, greedy=True)
        return self.rollout(nodes, [base], [sample], likeliest, moves=np.ones(1), reach=np.ones(1))

    def rollout(
        self,
        nodes: Tensor,
        bases: Sequence[Base],
        samples: Sequence[GroupSample],
        choose: Choose,
        *,
        moves: Float64,
        reach: Float64,
    ) -> Rollout:
        """Return what comes out where `choose` decides.

        moves: float64 [r], how many groups about move in each pass where the head finds all targets alike.
        reach: float64 [r], how many places in the order of execution a group shifts.
        """
        r = len(bases)
        groupings = [made_feasible(self.problem, sample.grouping) for sample in samples]
        groups = GroupBatch.of(groupings)
        z = pooled(nodes, groups)
        count = _Count.of(samples, groups)
        calm = (groups.k * (self.world.p - 1) / torch.tensor(moves)).clamp(min=1.0).log().float()[groups.owner]
        schedules = [base.schedule for base in bases]
        value = torch.tensor([base.value for base in bases], dtype=torch.float32)
        device = torch.stack([self._devices(base) for base in bases])  # [r, n]
        for _ in range(self.passes):
            at = context(self.world, groups, device, schedules, value=value)
            log_p = self.policy.targets(z, at, calm=calm)
            target = choose(log_p)
            count.add(log_p, target)
            asked = target[groups.label]
            device = torch.where(asked == self.world.p, device, asked)
        shifts = None
        if bases[0].order is not None:
            log_p = self.policy.ordering.shifts(z, calm=calm)
            shifts = choose(log_p)
            count.add(log_p, shifts)
        placements = [self._placement(device[i], bases[i], shifts, groups.label[i], float(reach[i])) for i in range(r)]
        return Rollout(placements, count.log_prob, count.entropy / count.decisions, groups.k.tolist())

    def _devices(self, base: Base) -> Tensor:
        if base.plan is None:
            return torch.full((self.world.n,), self.world.p)
        return torch.tensor(base.plan.device, dtype=torch.int64)

    def _placement(self, device: Tensor, base: Base, shifts: Tensor | None, label: Tensor, reach: float) -> Placement:
        names = self.problem.topology.names
        if shifts is None or base.order is None:
            return Placement(device.numpy(), names)
        order = base.order + (shifts[label].numpy() - STILL) * reach
        return Placement(device.numpy(), names, ranks(order, base.order))


def dice(rng: np.random.Generator) -> Choose:
    """Return what draws from log-probabilities, by Gumbel's trick."""

    def choose(log_p: Tensor) -> Tensor:
        value = log_p.detach().numpy().astype(np.float64)
        return torch.from_numpy((value + rng.gumbel(size=value.shape)).argmax(axis=1))

    return choose


def likeliest(log_p: Tensor) -> Tensor:
    """Return the likeliest of each row, the first among equals."""
    return log_p.detach().argmax(dim=1)


@dataclass(slots=True, eq=False)
class _Count:
    """Adds up the log-probability and the entropy of r draws, and counts their decisions; all [r]."""

    owner: Tensor
    log_prob: Tensor
    entropy: Tensor
    decisions: Tensor

    @classmethod
    def of(cls, samples: Sequence[GroupSample], groups: GroupBatch) -> _Count:
        drawn = torch.tensor([max(1, sample.choice.numel()) for sample in samples], dtype=torch.float32)
        return cls(
            groups.owner,
            torch.stack([sample.log_prob for sample in samples]),
            torch.stack([sample.entropy for sample in samples]),
            drawn,
        )

    def add(self, log_p: Tensor, chosen: Tensor) -> None:
        """Count one decision per group: log_p float32 [K, t], chosen int64 [K]."""
        finite = log_p.masked_fill(torch.isinf(log_p), 0.0)
        spread = -(log_p.exp() * finite).sum(dim=1)
        self.log_prob = self.log_prob.index_add(0, self.owner, log_p.gather(1, chosen[:, None]).squeeze(1))
        self.entropy = self.entropy.index_add(0, self.owner, spread)
        self.decisions = self.decisions.index_add(0, self.owner, torch.ones(len(chosen)))
