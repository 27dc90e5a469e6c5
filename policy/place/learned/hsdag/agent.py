"""The policy that places groups, and how it learns while it searches: exact policy gradient, and imitation.

    logit(operation i on device d) = w . phi[i, d] + b[i, d],     logit(i is next) = v . psi[i] + a[i]

phi and psi are figures that serve any graph; the tables b and a know this graph alone. All are logits, that is, what
they were at the beginning over the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pipeline.core.arrays import Float32, Float64, Int64
from pipeline.core.problem import Problem
from policy.place.base.history import stacked
from policy.place.base.training import Adam, Arrays
from policy.place.learned.neural_list.constructing import FIGURES, Decisions, Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.likelihood import devices_likelihood, order_likelihood
from policy.place.learned.neural_list.sampling import Noise
from policy.place.lists.listing import PartialSchedule

SHORTEST_S = 1e-12  # a simulator may say 0, which has no logarithm
SAME = 1e-9  # log times closer together differ by rounding alone
FAILED = 2.0  # a schedule that fails counts as so many times the slowest one that does not
ELITES = 4  # placements that are imitated, the incumbent among them
COLDEST = 1e-3  # temperature over the mean weight
TRUST = 1.0  # logits by which one update may move a choice at most
STEP_NORM = 10.0  # greatest norm of a gradient by weights

Table = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AgentHyperparameters:
    """How the agent learns.

    noise: of samples. rate: step size of Adam for weights, times their mean if that is above 1. table_rate: of the
    policy gradient. imitation_coef: of imitation, in the same steps. entropy_coef: of the entropy bonus at the start.
    ordered: whether the order is drawn as well.
    """

    noise: Noise
    rate: float
    table_rate: float
    imitation_coef: float
    entropy_coef: float
    ordered: bool


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One schedule: its seconds, and the gradient of its log-probability (row 0) and entropy (row 1).

    weights: float64 [2, q]. device: float32 [2, n, p]. turn: float32 [n].
    """

    seconds: float
    weights: Float64
    device: Table
    turn: Float32


def advantages(seconds: Float64) -> Float64:
    """Return how much faster than the others each sample is: leave-one-out on log times, over their deviation.

        R_i = -log t_i,    A_i = (R_i - mean_{j != i} R_j) / std(R)

    The baseline of a sample is independent of it, so it leaves the gradient's expectation as it is; dividing by the
    deviation makes the step size independent of how much times differ. Zeros where nothing differs; what failed, inf,
    counts as FAILED times the slowest other.

    Source: Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!", 2019.
    """
    finite = np.isfinite(seconds)
    if not finite.any():
        return np.zeros(seconds.size)
    reward = -np.log(np.maximum(np.where(finite, seconds, FAILED * seconds[finite].max()), SHORTEST_S))
    spread = float(reward.std())
    if seconds.size < 2 or spread < SAME:
        return np.zeros(seconds.size)
    others = (reward.sum() - reward) / (seconds.size - 1)
    gains: Float64 = (reward - others) / spread
    return gains


class PlacementAgent:
    """A policy by weights and tables, for one search.

    unit: the temperature, in the units of the scores that it began with. adam: of the weights, those of devices, then
    of keys. table: float64 [n, p], b; turn: float64 [n], a. elites: the fastest placements known, each with its
    seconds, the fastest first, equal devices called alike.
    """

    def __init__(self, scores: Scores, instance: ListInstance, problem: Problem, hyper: AgentHyperparameters) -> None:
        self.instance, self.hyper = instance, hyper
        mean = float(np.abs(scores.device).mean())
        self.unit = max(hyper.noise.temperature, COLDEST) * (mean if mean > 0 else 1.0)
        self.adam = Adam((np.concatenate([scores.device, scores.key]) / self.unit).astype(np.float32))
        (n, p), self.elites = instance.work.op_s.shape, list[tuple[float, Int64]]()
        self.table, self.turn = np.zeros((n, p)), np.zeros(n)
        self._episodes: list[Episode] = []
        self._alike = np.array([[problem.alike(d, e) for e in range(p)] for d in range(p)])

    @property
    def scores(self) -> Scores:
        """Return what figures count, in the units that it began with, without noise."""
        vector = self.adam.weights.astype(np.float64) * self.unit
        return Scores(vector[:FIGURES], vector[FIGURES:], np.zeros((0, 0)))

    def drawn(self, scores: Scores, rng: np.random.Generator) -> Scores:
        """Return scores, whose weights may have noise, with the tables and Gumbel noise at the temperature."""
        noise = self.unit * (self.table + rng.gumbel(size=self.table.shape))
        if not self.hyper.ordered:
            return scores._replace(noise=noise)
        # Keys are logits as they are: by them, ready operations are drawn at a temperature of 1.
        key = scores.key / self.unit
        return scores._replace(noise=noise, key=key, turn=self.turn + rng.gumbel(size=self.turn.size))

    def undrawn(self, scores: Scores) -> Scores:
        """Return drawn scores with keys in the units that it began with, without noise on them."""
        return scores._replace(key=scores.key * self.unit, turn=np.zeros(0)) if scores.turn.size else scores

    def scheduled(self, instance: ListInstance, scores: Scores, *, width: int) -> tuple[PartialSchedule, Episode]:
        """Return the schedule that drawn scores lead to, and its decisions, as an episode of unknown seconds."""
        schedule, decisions = instance.recorded(scores, width=width)
        return schedule, self._episode(instance, scores, schedule, decisions)

    def observe(self, episode: Episode, seconds: float) -> None:
        """Remember an episode and the seconds of its schedule until `learn`."""
        self._episodes.append(replace(episode, seconds=seconds))

    def admit(self, seconds: float, device: Int64) -> None:
        """Take a placement, int64 [n], among those that are imitated, if it is among the fastest."""
        if not np.isfinite(seconds) or (len(self.elites) == ELITES and seconds >= self.elites[-1][0]):
            return
        if self.elites and seconds >= self.elites[0][0]:
            device = self._renamed(device, self.elites[0][1])
        elif self.elites:
            self.elites = [(value_s, self._renamed(other, device)) for value_s, other in self.elites]
        if all(not np.array_equal(device, other) for _, other in self.elites):
            self.elites = sorted([*self.elites, (seconds, device)], key=lambda elite: elite[0])[:ELITES]

    def learn(self, *, progress: float) -> None:
        """Follow the gradient: what was faster than the others becomes likelier, and what elites do.

        progress: the share of the budget spent, with which the entropy bonus falls to 0.
        """
        episodes, self._episodes = self._episodes, []
        hyper, bonus = self.hyper, self.hyper.entropy_coef * (1.0 - progress)
        weights, table, turn = np.zeros(self.adam.weights.size), np.zeros(self.table.shape), np.zeros(self.turn.size)
        gains = advantages(np.array([episode.seconds for episode in episodes]))
        for gain, episode in zip(gains.tolist(), episodes, strict=True):
            weights += (gain * episode.weights[0] + bonus * episode.weights[1]) / len(episodes)
            table += (gain * episode.device[0] + bonus * episode.device[1]) / len(episodes)
            turn += gain * episode.turn / len(episodes)
        table, turn = hyper.table_rate * table, hyper.table_rate * turn
        for _, device in self.elites if hyper.imitation_coef > 0 else ():
            scores = self.scores._replace(noise=self.unit * self.table)
            shown = self._episode(self.instance, scores, *self.instance.recorded(scores, device=device))
            weights += hyper.imitation_coef * shown.weights[0] / len(self.elites)
            table += hyper.imitation_coef * shown.device[0] / len(self.elites)
        self.table += np.clip(table, -TRUST, TRUST)
        self.turn += np.clip(turn, -TRUST, TRUST)
        size = max(1.0, float(np.abs(self.adam.weights).mean()))
        if hyper.rate > 0:
            self.adam.step(-weights.astype(np.float32), rate=hyper.rate * size, most=STEP_NORM)

    def state(self) -> Arrays:
        """Return everything on which the next draw and update depend, between two updates."""
        n = self.turn.size
        return {
            **{f"adam.{name}": values for name, values in self.adam.state().items()},
            "table": self.table,
            "turn": self.turn,
            "unit": np.array([self.unit]),
            "elite_s": np.array([seconds for seconds, _ in self.elites]),
            "elite": stacked([device for _, device in self.elites], n, np.int32),
        }

    def resume(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a state."""
        self.adam.resume({name[5:]: values for name, values in state.items() if name.startswith("adam.")})
        self.table, self.turn, self.unit = state["table"].copy(), state["turn"].copy(), float(state["unit"][0])
        devices = state["elite"].astype(np.int64)
        self.elites = list(zip(state["elite_s"].tolist(), devices, strict=True))

    def _episode(
        self, instance: ListInstance, scores: Scores, schedule: PartialSchedule, decisions: Decisions
    ) -> Episode:
        logits = scores._replace(device=scores.device / self.unit)
        chosen, entropy = devices_likelihood(instance, logits, self.table, schedule, decisions)
        weights = np.zeros((2, self.adam.weights.size))
        weights[0, :FIGURES], weights[1, :FIGURES] = chosen.weight, entropy.weight
        turn = np.zeros(self.turn.size)
        if scores.turn.size:
            ordered = order_likelihood(instance, scores, self.turn, schedule, decisions)
            weights[0, FIGURES:], turn = ordered.weight, ordered.table
        device = np.stack([chosen.table, entropy.table]).astype(np.float32)
        return Episode(math.nan, weights, device, turn.astype(np.float32))

    def _renamed(self, device: Int64, like: Int64) -> Int64:
        """Return a placement with devices that are alike renamed so that it is most like another."""
        p = self._alike.shape[0]
        shared = np.zeros((p, p))
        np.add.at(shared, (device, like), 1.0)
        _, name = linear_sum_assignment(np.where(self._alike, -shared, np.inf))
        renamed: Int64 = name[device]
        return renamed
