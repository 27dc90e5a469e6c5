"""One update after another: draw, ask, learn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.arrays import Float64
from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch
from pipeline.shared.feasibility import made_feasible
from policy.place.agent.bases import Bases
from policy.place.agent.context import GroupBatch, context
from policy.place.agent.leave_one_out import LeaveOneOut
from policy.place.agent.net import pooled
from policy.place.agent.proposal import options, propose
from policy.place.agent.rollout import Actor, Base
from policy.place.local.anneal import BudgetClock, best_order, levelled, mean_time_s
from policy.place.search import Search

FAILED = 2.0  # a placement that failed counts as so many times the slowest one that did not
WORST = 1.02  # a move that makes its placement slower than so many times is no worse than that: it is not taken
MOST_MOVES = 8.0  # groups expected to move at most in a pass, at the step_scale the search begins with
STALE, FRESH = 0.5, 0.1  # shares of draws seen before above which the search gets bolder, and below which more careful
STEP_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """How an agent learns; `policy.place.agent.hsdag.Hsdag` says what each field means."""

    batch: int
    learning_rate: float
    entropy_coef: float
    p_local_search: float
    groupings: int
    temperature: float
    last_temperature: float
    p_incumbent: float
    elites: int
    p_scratch: float
    imitation_coef: float


class Trainer:
    """Trains one policy on one search.

    placement, plan_s: where the local search stands. step_scale: how many times more groups move than at first.
    updates: how many there were; idle: of these, the last ones in a row that asked about nothing. clock: tells which
    share of the budget is spent.
    """

    def __init__(self, search: Search, actor: Actor, hyper: Hyperparameters, *, seed: int) -> None:
        self.search, self.actor, self.hyper = search, actor, hyper
        self.rng = np.random.default_rng(seed)
        self.optimiser = torch.optim.Adam(actor.policy.parameters(), lr=hyper.learning_rate)
        self.learner = LeaveOneOut(entropy_coef=hyper.entropy_coef)
        self.bases = Bases(search, actor.world)
        self.scale_s = mean_time_s(search)
        self.plan: Placement | None = None
        self.plan_s = math.inf
        self.step_scale = 1.0
        self.updates = self.idle = 0
        self.clock = BudgetClock.of(search)

    def update(self) -> None:
        """Draw, ask and learn once."""
        share = self.clock.share()
        spent = self.search.spent
        self.updates += 1
        local_searches = self.rng.random() < self.hyper.p_local_search and self.search.best is not None
        loss = self._searched(share) if local_searches else self._drawn(share)
        if loss is not None:
            self._step(loss)
        self.idle = 0 if self.search.spent > spent else self.idle + 1

    def decode(self) -> None:
        """Ask about the best placement changed as the policy would, without chance."""
        leaders = self.search.leaders(1)
        if leaders and not self.search.done:
            with torch.no_grad():
                rollout = self.actor.decode(self.actor.nodes(), self.bases.of(*leaders[0]))
            self.search.evaluate(rollout.placements)

    def _drawn(self, share: float) -> Tensor | None:
        """Let all groups of a batch of placements choose at once; return the loss."""
        actor, search, hyper = self.actor, self.search, self.hyper
        nodes = actor.nodes()
        fresh = hyper.p_scratch * (1.0 - share)
        r = min(hyper.batch, search.left)
        if r < 1:
            return None  # the time was up after all
        bases = self.bases.drawn(r, elites=hyper.elites, fresh=fresh, rng=self.rng)
        moves = np.exp(self.rng.uniform(0.0, math.log(MOST_MOVES), r)) * self.step_scale
        rollout = actor.draw(nodes, bases, moves=moves, reach=1.0 + self.rng.exponential(1.0, r) ** 2, rng=self.rng)
        self._tell(rollout.entropy, float(np.mean(rollout.groups)))
        spent = search.spent
        value_s = search.evaluate(rollout.placements)
        if np.isnan(value_s).any():
            return None  # the budget is spent
        self._adapt(r - (search.spent - spent), r)
        loss = self._loss(bases, rollout.log_prob, rollout.entropy, self._relative(bases, value_s), share)
        best = search.best
        return loss if best is None or hyper.imitation_coef == 0 else loss + hyper.imitation_coef * self._unlike(best)

    def _searched(self, share: float) -> Tensor | None:
        """Try single moves one after another, each on what the ones before have left; return the loss."""
        actor, search, hyper = self.actor, self.search, self.hyper
        placement, plan_s = self._standing()
        base = self.bases.of(plan_s, placement)
        found = options(actor, actor.nodes(), base, placement, r=hyper.groupings, rng=self.rng)
        self._tell(found.entropy, float(found.groups.k.float().mean()))
        reach = 1.0 + float(self.rng.exponential(1.0)) ** 2
        proposal = propose(found, each=max(1, 2 * hyper.batch // hyper.groupings), reach=reach, rng=self.rng)
        if proposal is None:
            return None
        warmth_s = self.scale_s * hyper.temperature * (hyper.last_temperature / hyper.temperature) ** share
        moves = replace(proposal.moves, threshold_s=-warmth_s * np.log1p(-self.rng.random(proposal.moves.r)))
        local_search = search.local_search(placement, moves)
        self.plan, self.plan_s = levelled(local_search.end), local_search.end_s
        ratio = _ratios(local_search, plan_s)
        tried = torch.from_numpy(np.flatnonzero(local_search.tried))
        if tried.numel() < 2:
            return None
        times = torch.tensor(np.minimum(ratio[local_search.tried], WORST), dtype=torch.float32)
        return self.learner.loss(proposal.log_prob[tried], proposal.entropy[tried], times, progress=share)

    def _standing(self) -> tuple[Placement, float]:
        """Return where the local search goes on: where it stands, or, sometimes, from the best placement again."""
        best = self.search.leaders(1)[0]
        if self.plan is None or self.rng.random() < self.hyper.p_incumbent:
            self.plan_s, self.plan = best
            if self.search.problem.ordered and self.plan.priority is None:
                self.plan = best_order(self.search, self.plan)
                self.plan_s = float(np.nan_to_num(self.search.evaluate([self.plan])[0], nan=math.inf))
        return self.plan, self.plan_s

    def _loss(self, bases: Sequence[Base], log_prob: Tensor, entropy: Tensor, times: Tensor, share: float) -> Tensor:
        """Return the loss; placements made from scratch and changed ones are compared among themselves only."""
        from_scratch = torch.tensor([base.plan is None for base in bases])
        loss = log_prob.new_zeros(())
        for part in (torch.nonzero(from_scratch).flatten(), torch.nonzero(~from_scratch).flatten()):
            if part.numel():
                one = self.learner.loss(log_prob[part], entropy[part], times[part], progress=share)
                loss = loss + one * part.numel() / len(bases)
        return loss

    def _relative(self, bases: Sequence[Base], value_s: Float64) -> Tensor:
        """Return float32 [r], the time of each placement over that of its base."""
        base_s = np.array([base.value for base in bases]) * self.actor.world.unit_s
        slowest_s = max(value_s[np.isfinite(value_s)].max(initial=0.0), base_s.max())
        return torch.tensor(np.where(np.isinf(value_s), FAILED * slowest_s, value_s) / base_s, dtype=torch.float32)

    def _adapt(self, seen: int, asked: int) -> None:
        """Get bolder where most draws were seen before, and more careful where nearly none were."""
        if seen > STALE * asked:
            self.step_scale = min(self.step_scale * STEP_FACTOR, float(self.actor.world.n))
        elif seen < FRESH * asked:
            self.step_scale = max(self.step_scale / STEP_FACTOR, 1.0)

    def imitate(self, placement: Placement, steps: int, *, seconds: float) -> None:
        """Make it likelier, in so many steps as are begun in time, that groups are placed from scratch as in a
        placement.
        """
        end_s = time.monotonic() + seconds
        for _ in range(steps):
            if time.monotonic() >= end_s:
                return
            self._step(self._unlike(placement))

    def _unlike(self, placement: Placement) -> Tensor:
        """Return the scalar mean of -log p over groups of which a placement has all members on one device."""
        actor, world = self.actor, self.actor.world
        nodes = actor.nodes()
        samples = actor.policy.grouper.draws(nodes, actor.problem.graph, 1, rng=self.rng)
        groups = GroupBatch.of([made_feasible(actor.problem, sample.grouping) for sample in samples])
        from_scratch = torch.full((1, world.n), world.p)
        at = context(world, groups, from_scratch, [None], value=torch.ones(1))
        log_p = actor.policy.targets(pooled(nodes, groups), at, calm=torch.zeros(groups.total))
        device = torch.tensor(placement.device, dtype=torch.int64)[None]
        on = groups.sum(nn.functional.one_hot(device, world.p + 1).float())  # [K, p + 1]
        share, home = (on / on.sum(dim=1, keepdim=True)).max(dim=1)
        whole = (share == 1.0) & ~at.forbidden.gather(1, home[:, None])[:, 0]
        if not bool(whole.any()):
            return log_p.new_zeros((), requires_grad=True)
        return -log_p[whole].gather(1, home[whole, None]).mean()

    def _step(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.actor.policy.parameters(), 1.0)
        self.optimiser.step()

    def _tell(self, entropy: Tensor, groups: float) -> None:
        known = {"entropy": float(entropy.detach().mean()), "groups": groups, "update": float(self.updates)}
        self.search.details |= known


def _ratios(local_search: LocalSearch, start_s: float) -> Float64:
    """Return float64 [b], what each tried move would make of the plan it changed, as a ratio; inf if it failed."""
    ratio = np.full(local_search.tried.size, math.inf)
    before_s = start_s
    for i in np.flatnonzero(local_search.tried).tolist():
        ratio[i] = local_search.value_s[i] / before_s if before_s > 0 else 1.0
        before_s = local_search.value_s[i] if local_search.taken[i] else before_s
    return ratio
