"""The course of learning: episodes of steps, each of which ends in steps of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from policy.place.base.search import Search
from policy.place.published.hsdag.agent import Step

REFUSED_S = 1e10  # what a refused placement is said to take


class Agent(Protocol):
    """What learns: see `policy.place.published.hsdag.agent.ParsingAgent`."""

    def restart(self) -> None:
        """Forget the steps so far."""

    def step(self) -> Step:
        """Return a draw."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is learned."""


@dataclass(frozen=True, slots=True)
class Course:
    """How an agent learns.

    episodes, steps: how many at most, and how many steps an episode has. epochs: how many steps of the optimiser an
    episode ends in, all of which learn from its draws. learning_rate: of Adam. gamma: discount.
    shared_return: every step of an episode is credited with the return of the whole, instead of its own reward.
    refuse_uniform: placements on one device are not evaluated. patience: episodes in a row without a new placement,
    after which learning ends.
    """

    episodes: int
    steps: int
    epochs: int
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


def learn(search: Search, agent: Agent, course: Course) -> None:
    """Go through the episodes, until they or the budget end.

        loss of an episode = - scale * sum over i of weight_i * log p(placement_i)

    The gradient is summed up step by step, so that no more than one step's is held in memory. The first epoch takes
    the probabilities under which an episode was drawn, every other those that the same draws have by then.
    """
    parameters = list(agent.parameters())
    optimiser = torch.optim.Adam(parameters, lr=course.learning_rate)
    idle = 0
    search.expect("episode", course.steps)
    for episode in range(1, course.episodes + 1):
        spent, rewards, drawn = search.spent, list[float](), list[Step]()
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
            _learn_from(step.log_prob, course.weight(i, reward))
            if course.epochs > 1:
                drawn.append(step)
        search.reached()
        _step(optimiser, parameters, course.scale(rewards))
        for _ in range(1, course.epochs):
            optimiser.zero_grad()
            for i, (step, reward) in enumerate(zip(drawn, rewards, strict=True), 1):
                _learn_from(step.again(), course.weight(i, reward))
            _step(optimiser, parameters, course.scale(rewards))
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


def _learn_from(log_prob: Tensor, weight: float) -> None:
    """Add the gradient of one draw."""
    (-weight * log_prob).backward()  # type: ignore[no-untyped-call]


def _step(optimiser: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Step along the gradients times a factor, if they are finite."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    if all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in parameters):
        optimiser.step()
