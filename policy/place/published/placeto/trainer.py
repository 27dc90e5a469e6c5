"""Placeto's training: episodes of synchronous workers, a baseline per step, one step of Adam per update."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pipeline.core.arrays import Float32, Float64
from pipeline.core.learning import Snapshot, prefixed
from policy.place.base.search import Search
from policy.place.base.training import Adam, spent_share
from policy.place.published.placeto.network import PlacetoNetwork
from policy.place.published.placeto.process import Episodes, Process, ProcessRules, returns

PPO_CLIP, PPO_EPOCHS = 0.2, 4
CHUNK = 16_384  # rows of features, of so many nodes, that are learned from at a time: what fits a processor's cache


@dataclass(frozen=True, slots=True)
class PlacetoHyperparameters:
    """How Placeto learns; `policy.place.published.placeto.placeto.Placeto` says what each field means."""

    algorithm: Literal["reinforce", "ppo"]
    workers: int
    learning_rate: float
    last_learning_rate: float
    gamma: float
    window: int
    entropy_coef: float
    entropy_until: float
    clip_norm: float
    greedy_every: int


@dataclass(frozen=True, slots=True, eq=False)
class PlacetoTrainingCase:
    """What one search's episodes teach: their returns less the baseline, float64 [t, w]."""

    process: Process
    episodes: Episodes
    advantage: Float64


class PlacetoTrainer:
    """Trains one network on one search or several, whose graphs may differ but not their number of devices.

    baselines: of each search, the mean returns of its last updates, float64 [t] each. updates, episodes: how many
    there were; idle: of these updates, the last ones in a row that asked about nothing.
    """

    def __init__(
        self,
        searches: Sequence[Search],
        network: PlacetoNetwork,
        rules: ProcessRules,
        hyper: PlacetoHyperparameters,
        *,
        seed: int,
    ) -> None:
        self.network, self.rules, self.hyper = network, rules, hyper
        self.rng = np.random.default_rng(seed)
        self.adam = Adam(parameters_to_vector(network.parameters()).detach().numpy())
        self.processes = [Process(search, network, rules, rng=self.rng) for search in searches]
        self.baselines: list[deque[Float64]] = [deque(maxlen=hyper.window) for _ in searches]
        self.updates = self.episodes = self.idle = 0

    @property
    def done(self) -> bool:
        """Return whether no search has any budget left."""
        return all(process.search.done for process in self.processes)

    def update(self, *, greedy: bool = False) -> None:
        """Let every worker go through an episode, and learn from them, if the rules say so.

        Workers are dealt out to the searches in turn.
        """
        spent, count = self._spent(), len(self.processes)
        share = float(np.mean([spent_share(process.search) for process in self.processes]))
        workers = np.bincount((self.updates * self.hyper.workers + np.arange(self.hyper.workers)) % count)
        before, self.episodes = self.episodes, self.episodes + self.hyper.workers
        greedy = greedy or before // self.hyper.greedy_every < self.episodes // self.hyper.greedy_every
        found: list[tuple[int, Episodes]] = []
        for at in np.flatnonzero(workers).tolist():
            each = 1 if greedy else int(workers[at])
            episodes = self.processes[at].episodes(each, self.rng, greedy=greedy)
            if episodes is not None and not greedy:
                found.append((at, episodes))
                self.processes[at].search.reached()
        self.updates += 1
        self.idle = 0 if self._spent() > spent else self.idle + 1
        if found and not self.rules.control:
            self.learn([self.credited(at, episodes) for at, episodes in found], share)

    def credited(self, at: int, episodes: Episodes) -> PlacetoTrainingCase:
        """Return episodes with the advantages of their steps; the baseline counts them as well."""
        gain = returns(episodes.cost, self.rules.reward, self.hyper.gamma)
        self.baselines[at].append(gain.mean(axis=1))
        return PlacetoTrainingCase(self.processes[at], episodes, gain - np.mean(self.baselines[at], axis=0)[:, None])

    def learn(self, lessons: Sequence[PlacetoTrainingCase], share: float) -> None:
        """Go a step against the gradient, or a few with PPO; share: of the budget that is spent."""
        hyper, ppo = self.hyper, self.hyper.algorithm == "ppo"
        rate = hyper.learning_rate + (hyper.last_learning_rate - hyper.learning_rate) * share
        beta = hyper.entropy_coef * max(0.0, 1.0 - share / hyper.entropy_until)
        for _ in range(PPO_EPOCHS if ppo else 1):
            gradient, entropy = self.gradient(lessons, beta=beta, clip=PPO_CLIP if ppo else 0.0)
            self.adam.step(gradient, rate=rate, most=hyper.clip_norm)
            self.take(self.adam.weights)
        for process in self.processes:
            process.search.details.update(entropy=entropy, update=float(self.updates))

    def gradient(self, lessons: Sequence[PlacetoTrainingCase], *, beta: float, clip: float) -> tuple[Float32, float]:
        """Return the slopes of the loss, float32 [q], and the mean entropy of a step.

            loss = sum over steps of all episodes of  - A log p(a) - beta H(p)

        clip > 0: with PPO's  - min(A r, A clip(r, 1 - clip, 1 + clip)),  r = p(a) / p_then(a), for the first term.
        """
        self.network.zero_grad()
        total, count = 0.0, 0
        for lesson in lessons:
            t, w, n = lesson.episodes.device.shape
            for steps in np.array_split(np.arange(t), max(1, t * w * n // CHUNK)):
                loss, entropy = _loss(lesson, steps, beta=beta, clip=clip)
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(entropy.detach())
            count += t * w
        slopes = [torch.zeros_like(value) if value.grad is None else value.grad for value in self.network.parameters()]
        return parameters_to_vector(slopes).numpy(), total / count

    def take(self, weights: Float32) -> None:
        """Put parameters into the network."""
        vector_to_parameters(torch.from_numpy(weights.copy()), self.network.parameters())

    def _spent(self) -> int:
        return sum(process.search.spent for process in self.processes)

    def state(self) -> Snapshot:
        """Return everything on which the next update of a training on one search depends."""
        (process,), (baseline,) = self.processes, self.baselines
        search = process.search.state()
        arrays = prefixed("search.", search.arrays) | prefixed("adam.", self.adam.state())
        arrays |= {"first": process.first, "visit": process.visit}
        arrays["baseline"] = np.array(baseline, np.float64).reshape(len(baseline), process.visit.size)
        facts = {
            "search": search.facts,
            "rng": self.rng.bit_generator.state,
            "unit_s": process.unit_s,
            "counts": [self.updates, self.episodes, self.idle],
        }
        return Snapshot(arrays, facts)

    def resume(self, state: Snapshot) -> None:
        """Bring a new trainer of the same search to a state."""
        (process,), arrays, facts = self.processes, state.arrays, state.facts
        process.search.resume(Snapshot(state.part("search."), facts["search"]))
        self.adam.resume(state.part("adam."))
        self.take(self.adam.weights)
        process.first, process.visit, process.unit_s = arrays["first"], arrays["visit"], facts["unit_s"]
        self.baselines = [deque(arrays["baseline"], maxlen=self.hyper.window)]
        self.rng.bit_generator.state = facts["rng"]
        self.updates, self.episodes, self.idle = facts["counts"]


def _loss(lesson: PlacetoTrainingCase, steps: np.ndarray, *, beta: float, clip: float) -> tuple[Tensor, Tensor]:
    """Return the loss of some steps of episodes, and the sum of their entropies."""
    episodes = lesson.episodes
    log_p = lesson.process.scores(steps, episodes.device[steps], episodes.start[steps])  # [c, w, p]
    chosen = log_p.gather(2, torch.from_numpy(episodes.action[steps])[..., None])[..., 0]
    advantage = torch.from_numpy(lesson.advantage[steps]).float()
    gained = advantage * chosen
    if clip > 0:
        ratio = (chosen - torch.from_numpy(episodes.log_p[steps])).exp()
        gained = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))
    entropy = -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum()
    return -gained.sum() - beta * entropy, entropy
