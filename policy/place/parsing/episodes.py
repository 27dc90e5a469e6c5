"""The course of learning: episodes of steps, each of which ends in one step of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from pipeline.core.errors import UsageError
from policy.place.parsing.agent import Step
from policy.place.search import Search

REFUSED_S = 1e10  # what a refused placement is said to take


class Agent(Protocol):
    """What learns: see `policy.place.parsing.agent.ParsingAgent`."""

    def restart(self) -> None:
        """Forget the steps so far."""

    def step(self) -> Step:
        """Return a draw."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is learned."""


@dataclass(frozen=True, slots=True)
class Course:
    """How an agent learns.

    episodes, steps: how many at most, and how many steps an episode has. learning_rate: of Adam. gamma: discount.
    shared_return: every step of an episode is credited with the return of the whole, instead of its own reward.
    refuse_uniform: placements on one device are not evaluated. patience: episodes in a row without a new placement,
    after which learning ends.
    """

    episodes: int
    steps: int
    learning_rate: float
    gamma: float
    shared_return: bool
    refuse_uniform: bool
    patience: int

    def weight(self, i: int, reward: float) -> float:
        """Return what the gradient of step i = 1, 2, ... is weighted with when its reward is known.

        Its own discounted reward, gamma^i r_i; 1 where the return is shared.
        """
        return 1.0 if self.shared_return else self.gamma**i * reward

    def scale(self, rewards: Sequence[float]) -> float:
        """Return what the gradient of the x steps of an episode is multiplied with in the end.

        The shared return, sum over k = 0 ... x - 1 of gamma^k r_(x - k), in which the last step counts most; 1 where
        the return is not shared.
        """
        if not self.shared_return:
            return 1.0
        return math.fsum(self.gamma**k * reward for k, reward in enumerate(reversed(rewards)))


def check_course(placer: object, counts: Sequence[int], *, rate: float, gamma: float, dropout: float) -> None:
    """Check the parameters of a placer that learns in a course.

    Raises:
        UsageError: a count is below 1, or a rate or a share out of range.
    """
    if min(counts) < 1 or not 0 < rate < 1 or not 0 <= gamma <= 1 or not 0 <= dropout < 1:
        raise UsageError(
            f"{placer} cannot learn.", "Use counts of at least 1, a positive rate, gamma and dropout from 0 to 1."
        )


def learn(search: Search, agent: Agent, course: Course) -> None:
    """Go through the episodes, until they or the budget end.

        loss of an episode = - scale * sum over i of weight_i * log p(placement_i)

    The gradient is summed up step by step, so that no more than one step is held in memory.
    """
    parameters = list(agent.parameters())
    optimiser = torch.optim.Adam(parameters, lr=course.learning_rate)
    idle = 0
    search.expect("episode", course.steps)
    for episode in range(1, course.episodes + 1):
        spent, rewards = search.spent, list[float]()
        agent.restart()
        optimiser.zero_grad()
        for i in range(1, course.steps + 1):
            if search.done:
                return
            step = agent.step()
            search.details.update(entropy=step.entropy, groups=float(step.groups), episode=float(episode))
            reward = _reward(search, step, course)
            if math.isnan(reward):
                return
            rewards.append(reward)
            (-course.weight(i, reward) * step.log_prob).backward()  # type: ignore[no-untyped-call]
        search.reached()
        _scale_gradients(parameters, course.scale(rewards))
        if _finite(parameters):
            optimiser.step()
        idle = idle + 1 if search.spent == spent else 0
        if idle == course.patience:
            return


def _reward(search: Search, step: Step, course: Course) -> float:
    """Return 1 / seconds; 0 for a placement that failed or does not fit; nan where the budget ran out."""
    device = step.placement.device
    if course.refuse_uniform and bool(np.all(device == device[0])):
        return 1 / REFUSED_S
    value_s = float(search.evaluate([step.placement])[0])
    return value_s if math.isnan(value_s) else 1 / max(value_s, 1 / REFUSED_S)


def _scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _finite(parameters: Sequence[nn.Parameter]) -> bool:
    return all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in parameters)
