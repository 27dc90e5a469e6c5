"""Proximal policy optimisation of placements drawn in a single shot, each node's ratio clipped on its own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.arrays import Float64, Int64
from policy.place.base.search import Search
from policy.place.local.anneal import BudgetClock
from policy.place.published.gdp.network import SingleShotPolicy
from policy.place.published.gdp.sequence import NodeSequence, SequenceBatch

CONSTANT = 1e-9  # rewards that differ by no greater share of their size are equal: they differ by rounding
GRADIENT = 1.0  # largest norm of a gradient


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """How a policy learns; `policy.place.published.gdp.gdp.Gdp` says what each field means."""

    rollouts: int
    minibatches: int
    epochs: int
    learning_rate: float
    clip: float
    entropy_coef: float
    baseline: Literal["all", "batch"]
    invalid_reward: float
    greedy_every: int
    elites: int
    elite_coef: float
    warm: float


@dataclass(slots=True, eq=False)
class Trial:
    """One graph that a policy learns on. rewards: of all placements drawn so far. clock: of the budget's share.

    elite: the best distinct placements drawn so far, seconds and int64 [k], best first. temperature: of the
    softmax that is drawn from.
    """

    search: Search
    sequence: NodeSequence
    clock: BudgetClock
    rewards: list[float] = field(default_factory=list)
    elite: list[tuple[float, Int64]] = field(default_factory=list)
    temperature: float = 1.0

    def remember(self, value_s: Float64, device: Int64, *, most: int) -> None:
        """Take the best of some placements, float64 [r] and int64 [r, k], among the `most` best ones."""
        known = {row.tobytes() for _, row in self.elite}
        for value, row in zip(value_s.tolist(), device, strict=True):
            if math.isfinite(value) and row.tobytes() not in known:
                known.add(row.tobytes())
                self.elite.append((value, row))
        self.elite = sorted(self.elite, key=lambda one: one[0])[:most]

    def warm_up(self, fresh: int, drawn: int, rate: float) -> None:
        """Raise the temperature by a rate where fewer than half of the draws were new; else lower it, to 1 at least."""
        factor = 1 + rate
        self.temperature = self.temperature * factor if 2 * fresh < drawn else max(self.temperature / factor, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """r placements of one graph. device: int64 [r, k]. log_prob: float32 [r, k], when drawn. advantage: float32 [r].

    elite: int64 [e, k], the best placements drawn so far that are to be imitated.
    """

    device: Tensor
    log_prob: Tensor
    advantage: Tensor
    elite: Tensor


def reward(value_s: Float64, invalid: float) -> Float64:
    """Return float64 [r], minus the square root of seconds; `invalid` where there are none (inf)."""
    found: Float64 = np.where(np.isfinite(value_s), -np.sqrt(np.where(np.isfinite(value_s), value_s, 0.0)), invalid)
    return found


def advantages(drawn: Float64, earlier: Float64, baseline: Literal["all", "batch"]) -> Float64:
    """Return float64 [r], rewards less a baseline, over the standard deviation of all rewards of the graph so far.

    "all": the mean of all earlier rewards, of the new ones where there are none. "batch": the mean of the new ones.
    Over the deviation of the new ones alone, draws would be told apart the more the more alike they are. 0 where all
    rewards are equal.
    """
    known = np.concatenate([earlier, drawn])
    mean = float((earlier if baseline == "all" and earlier.size else drawn).mean())
    spread = float(known.std())
    return (drawn - mean) / spread if spread > CONSTANT * abs(float(known.mean())) else np.zeros(drawn.shape)


def clipped_loss(log_p: Tensor, rollouts: Rollouts, clip: float) -> Tensor:
    """Return the scalar loss of float32 [k, p] log-probabilities on rollouts.

        - mean over draws and nodes of min(q A, clip(q, 1 - eps, 1 + eps) A),   q = p(device of the node) / p when drawn

    Clipping each node's ratio, not their product, which is 0 or infinite for thousands of nodes after one step.

    Source: Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7, per node.
    """
    now = log_p.expand(rollouts.device.shape[0], -1, -1).gather(2, rollouts.device[..., None])[..., 0]  # [r, k]
    ratio = (now - rollouts.log_prob).exp()
    advantage = rollouts.advantage[:, None]
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def imitation_loss(log_p: Tensor, device: Tensor) -> Tensor:
    """Return the scalar cross-entropy of float32 [k, p] log-probabilities on placements int64 [e, k]; 0 for none."""
    if len(device) == 0:
        return log_p.new_zeros(())
    return -log_p.expand(len(device), -1, -1).gather(2, device[..., None]).mean()


def entropy_of(log_p: Tensor) -> Tensor:
    """Return the scalar mean entropy of the nodes' devices, in nats; log_p: float32 [k, p]."""
    finite = log_p.masked_fill(torch.isinf(log_p), 0.0)
    return -(log_p.exp() * finite).sum(dim=1).mean()


class PpoTrainer:
    """Trains one policy on one graph, or on several at once.

    updates: how many there were; idle: of these, the last ones in a row that asked about nothing. most: how many there
    may be; inf for no limit.
    """

    def __init__(
        self, trials: Sequence[Trial], policy: SingleShotPolicy, settings: PpoSettings, *, seed: int, most: float
    ) -> None:
        self.trials, self.policy, self.settings, self.most = tuple(trials), policy, settings, most
        self.rng = np.random.default_rng(seed)
        learned = [p for p in policy.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(learned, lr=settings.learning_rate)
        self.updates = self.idle = 0
        self._pass_s = 0.0

    @property
    def done(self) -> bool:
        """Return whether no graph may be asked about any more, or no pass through the network is left."""
        return self.late or self.updates >= self.most or all(trial.search.done for trial in self.trials)

    @property
    def late(self) -> bool:
        """Return whether one more pass through the network would take longer than all time limits allow."""
        return max(trial.search.left_s for trial in self.trials) <= self._pass_s

    def share(self) -> float:
        """Return how much of what may be learned is over, in [0, 1]."""
        spent = sum(trial.clock.share() for trial in self.trials) / len(self.trials)
        return max(spent, self.updates / self.most)

    def update(self) -> None:
        """Draw placements of every graph, ask about them, and learn."""
        trials = [trial for trial in self.trials if not trial.search.done]
        share, spent = self.share(), sum(trial.search.spent for trial in trials)
        self.updates += 1
        with torch.no_grad():
            log_ps = self.policy.log_p(SequenceBatch.of([trial.sequence for trial in trials]))
        drawn = [self.draw(trial, log_p) for trial, log_p in zip(trials, log_ps, strict=True)]
        self._learn([(t.sequence, r) for t, r in zip(trials, drawn, strict=True) if r is not None], share)
        if self.settings.greedy_every and self.updates % self.settings.greedy_every == 0:
            for trial in trials:
                self.decode(trial)
        self.idle = 0 if sum(trial.search.spent for trial in trials) > spent else self.idle + 1

    def ask(self) -> None:
        """Draw placements of every graph and ask about them once, without learning."""
        with torch.no_grad():
            for trial in self.trials:
                if not trial.search.done:
                    self.draw(trial, self.policy.log_p(SequenceBatch.of([trial.sequence]))[0])

    def draw(self, trial: Trial, log_p: Tensor) -> Rollouts | None:
        """Return placements drawn by Gumbel's trick from float32 [k, p], rewarded; None once the budget is spent."""
        search, settings = trial.search, self.settings
        r = min(settings.rollouts, search.left)
        if r < 1:
            return None
        entropy = float(entropy_of(log_p))
        log_p = torch.log_softmax(log_p / trial.temperature, dim=1)
        noise = self.rng.gumbel(size=(r, *log_p.shape))
        device = torch.from_numpy((log_p.numpy().astype(np.float64) + noise).argmax(axis=2))
        spent = search.spent
        value_s = search.evaluate([trial.sequence.placement(row) for row in device])
        trial.warm_up(search.spent - spent, r, settings.warm)
        asked = ~np.isnan(value_s)
        if not asked.any():
            return None
        if asked.sum() == settings.rollouts:
            search.reached()
        rewards = reward(value_s[asked], settings.invalid_reward)
        advantage = advantages(rewards, np.array(trial.rewards), settings.baseline)
        trial.rewards += rewards.tolist()
        search.details |= {
            "entropy": entropy,
            "reward": float(rewards.mean()),
            "nodes": float(trial.sequence.k),
            "update": float(self.updates),
        }
        device = device[torch.from_numpy(asked)]
        trial.remember(value_s[asked], device.numpy(), most=settings.elites)
        elite = torch.from_numpy(np.array([row for _, row in trial.elite], np.int64).reshape(-1, trial.sequence.k))
        old = log_p.expand(len(device), -1, -1).gather(2, device[..., None])[..., 0]
        return Rollouts(device, old, torch.tensor(advantage, dtype=torch.float32), elite)

    def decode(self, trial: Trial) -> None:
        """Ask about the placement of every node's likeliest device, made to fit if it does not."""
        if trial.search.done:
            return
        with torch.no_grad():
            (log_p,) = self.policy.log_p(SequenceBatch.of([trial.sequence]))
        device = log_p.argmax(dim=1)
        placement = trial.sequence.placement(device)
        fits = trial.search.problem.fits(placement)
        trial.search.evaluate([placement if fits else trial.sequence.repaired(device)])

    def _learn(self, drawn: Sequence[tuple[NodeSequence, Rollouts]], share: float) -> None:
        """Take the steps of one update, each on a part of every graph's draws."""
        if not drawn:
            return
        settings, batch = self.settings, SequenceBatch.of([sequence for sequence, _ in drawn])
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
        for _ in range(settings.epochs):
            parts = [_parts(len(rollouts.device), settings.minibatches, self.rng) for _, rollouts in drawn]
            for i in range(settings.minibatches):
                if self.late:
                    return
                self._step_on(
                    batch, [_some(rollouts, part[i]) for (_, rollouts), part in zip(drawn, parts, strict=True)], share
                )

    def _step_on(self, batch: SequenceBatch, drawn: Sequence[Rollouts], share: float) -> None:
        """Take one step of the optimiser; graphs without a draw have no part in it."""
        began_s = time.monotonic()
        entropy_coef = self.settings.entropy_coef * (1 - share)
        losses = [
            clipped_loss(log_p, rollouts, self.settings.clip)
            + self.settings.elite_coef * imitation_loss(log_p, rollouts.elite)
            - entropy_coef * entropy_of(log_p)
            for log_p, rollouts in zip(self.policy.log_p(batch), drawn, strict=True)
            if len(rollouts.device)
        ]
        if losses:
            self.optimiser.zero_grad()
            torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.policy.parameters(), GRADIENT)
            self.optimiser.step()
        self._pass_s = time.monotonic() - began_s


def _parts(r: int, count: int, rng: np.random.Generator) -> list[Tensor]:
    """Return r numbers dealt into `count` parts."""
    return [torch.from_numpy(part) for part in np.array_split(rng.permutation(r), count)]


def _some(rollouts: Rollouts, which: Tensor) -> Rollouts:
    return Rollouts(rollouts.device[which], rollouts.log_prob[which], rollouts.advantage[which], rollouts.elite)
