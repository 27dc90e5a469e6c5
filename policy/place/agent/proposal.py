"""Single moves proposed for one placement: which group goes where, or forward or back in the order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import row_ptr
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from pipeline.shared.feasibility import made_feasible
from policy.place.agent.context import GroupBatch, context
from policy.place.agent.net import STILL, pooled
from policy.place.agent.rollout import Actor, Base


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Everything that r groupings could do to one placement, one choice for each grouping.

    groups: of all groupings. log_p: float32 [K, p + 2], of each group's going to a device, forward or back in the
    order; adds up to 1 over the groups of a grouping; -inf where it is no option. log_prob: float32 [r], of the
    groupings themselves.
    """

    groups: GroupBatch
    log_p: Tensor
    log_prob: Tensor

    @property
    def entropy(self) -> Tensor:
        """Return float32 [r], the entropy of each choice over its largest value."""
        finite = self.log_p.masked_fill(torch.isinf(self.log_p), 0.0)
        spread = -(self.log_p.exp() * finite).sum(dim=1)
        r = self.log_prob.numel()
        largest = (self.groups.k * self.log_p.shape[1]).float().log().clamp(min=1.0)
        return spread.new_zeros(r).index_add(0, self.groups.owner, spread) / largest

    def drawn(self, each: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
        """Return (group, option) of up to `each` different draws for every grouping, in random order."""
        width = self.log_p.shape[1]
        value = self.log_p.detach().double().numpy()
        value = value + rng.gumbel(size=value.shape)
        found: list[Int64] = []
        first = 0
        for k in self.groups.k.tolist():
            part = value[first : first + k].reshape(-1)
            best = np.argsort(-part, kind="stable")[:each]
            found.append(best[np.isfinite(part[best])] + first * width)
            first += k
        chosen = rng.permutation(np.concatenate(found))
        return np.divmod(chosen, width)


@dataclass(frozen=True, slots=True, eq=False)
class MoveProposal:
    """b moves of one placement, and how likely each was.

    moves: their acceptance thresholds are 0 yet. log_prob, entropy: float32 [b], with gradient.
    """

    moves: Moves
    log_prob: Tensor
    entropy: Tensor


def options(
    actor: Actor, nodes: Tensor, base: Base, placement: Placement, *, r: int, rng: np.random.Generator
) -> Options:
    """Return what r drawn groupings could do to a placement, the one of `base`."""
    samples = actor.policy.grouper.draws(nodes, actor.problem.graph, r, rng=rng)
    groups = GroupBatch.of([made_feasible(actor.problem, sample.grouping) for sample in samples])
    z, p = pooled(nodes, groups), actor.world.p
    device = torch.tensor(placement.device, dtype=torch.int64).expand(r, -1)
    at = context(actor.world, groups, device, [base.schedule] * r, value=torch.full((r,), base.value))
    score = actor.policy.changing.scores(z, at)
    stay = score[:, p:].masked_fill(at.forbidden[:, p:], 0.0)
    shift = actor.policy.ordering(z)
    ordering = shift[:, [0, 2]] - shift[:, STILL, None]
    if placement.priority is None:
        ordering = torch.full_like(ordering, -torch.inf)
    every = torch.cat([score[:, :p] - stay, ordering], dim=1)
    parts = torch.split(every, groups.k.tolist())
    log_p = torch.cat([_among_all(part) for part in parts])
    return Options(groups, log_p, torch.stack([sample.log_prob for sample in samples]))


def _among_all(score: Tensor) -> Tensor:
    """Return log-probabilities, float32 [k, p + 2], among all options of a grouping; -inf if there are none."""
    if bool(torch.isinf(score).all()):
        return torch.full_like(score, -torch.inf)  # a softmax would be nan, and its gradient would reach every weight
    return torch.log_softmax(score.reshape(-1), 0).reshape(score.shape)


def propose(found: Options, *, each: int, reach: float, rng: np.random.Generator) -> MoveProposal | None:
    """Return up to `each` moves for every grouping; None where nothing can move. reach: places in the order."""
    group, option = found.drawn(each, rng)
    if group.size == 0:
        return None
    p = found.log_p.shape[1] - 2
    ptr, member = _members(found.groups)
    size = np.diff(ptr)[group]
    at = np.repeat(ptr[:-1][group] - np.cumsum(size) + size, size) + np.arange(size.sum())
    moves = Moves(
        np.concatenate([[0], np.cumsum(size)]),
        member[at],
        np.where(option < p, option, -1),
        np.full(group.size, -1),
        np.where(option < p, 0.0, np.where(option == p, -reach, reach)),
        np.zeros(group.size),
    )
    owner = found.groups.owner[torch.from_numpy(group)]
    log_prob = found.log_p[torch.from_numpy(group), torch.from_numpy(option)] + found.log_prob[owner]
    return MoveProposal(moves, log_prob, found.entropy[owner])


def _members(groups: GroupBatch) -> tuple[Int64, Int32]:
    """Return (ptr, member): the nodes of group g are member[ptr[g]:ptr[g + 1]]."""
    label = groups.label.reshape(-1).numpy()
    member: Int32 = (np.argsort(label, kind="stable") % groups.label.shape[1]).astype(np.int32)
    return row_ptr(label, groups.total), member
