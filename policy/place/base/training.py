"""What placers that learn by gradients share: Adam on one vector of parameters, schedules, and policies of others."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Float32
from pipeline.core.errors import UsageError
from pipeline.core.learning import PolicyInputs, Snapshot
from policy.place.base.search import Search

SAVE_EVERY_S = 2.0  # between two states that a checkpointer is given
DECAYS = (0.9, 0.999)
TINY = 1e-8

Arrays = dict[str, npt.NDArray[Any]]


class Adam:
    """Adam on one vector of parameters, float32 [q], which it owns.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, algorithm 1.
    """

    def __init__(self, weights: Float32) -> None:
        self.weights = np.array(weights, np.float32)
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self.steps = 0

    def step(self, gradient: Float32, *, rate: float, most: float) -> None:
        """Go one step against a gradient, which is shortened to a norm of `most`; one that is not finite is skipped."""
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        if not math.isfinite(norm):
            return
        gradient = gradient * np.float32(min(1.0, most / max(norm, TINY)))
        self.steps += 1
        for moment, decay, value in ((self.first, DECAYS[0], gradient), (self.second, DECAYS[1], gradient**2)):
            moment *= np.float32(decay)
            moment += np.float32(1 - decay) * value
        mean, square = (
            moment / (1 - decay**self.steps) for moment, decay in zip((self.first, self.second), DECAYS, strict=True)
        )
        self.weights -= (rate * mean / (np.sqrt(square) + TINY)).astype(np.float32)

    def state(self) -> Arrays:
        """Return what the next step depends on."""
        return {
            "weights": self.weights.copy(),
            "first": self.first.copy(),
            "second": self.second.copy(),
            "steps": np.array([self.steps]),
        }

    def resume(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a state."""
        self.weights, self.first, self.second = (
            np.array(state[name], np.float32) for name in ("weights", "first", "second")
        )
        self.steps = int(state["steps"][0])


class LearnerTrainer(Protocol):
    """What `train` drives: a policy that is learned on one search.

    done: whether nothing more can be asked. idle: how many updates in a row asked about nothing.
    """

    idle: int

    @property
    def done(self) -> bool:
        """Return whether the budget is spent."""

    def update(self, *, greedy: bool = False) -> None:
        """Draw, ask and learn once; greedy: begin with what is likeliest."""

    def state(self) -> Snapshot:
        """Return everything on which the next update depends."""

    def resume(self, state: Snapshot) -> None:
        """Bring a new trainer of the same search to a state."""


def train(trainer: LearnerTrainer, inputs: PolicyInputs, *, patience: int) -> None:
    """Update until the budget ends, or `patience` updates in a row have asked about nothing; keep states meanwhile.

    Goes on from the state that was kept, if there is one; a policy learned before is asked greedily first.
    """
    checkpointer = inputs.checkpointer
    kept = None if checkpointer is None else checkpointer.load()
    if kept is not None:
        trainer.resume(kept)
    elif inputs.learned is not None and not trainer.done:
        trainer.update(greedy=True)
    saved_s = time.monotonic()
    while not trainer.done and trainer.idle < patience:
        trainer.update()
        if checkpointer is not None and time.monotonic() - saved_s >= SAVE_EVERY_S:
            checkpointer.save(trainer.state())
            saved_s = time.monotonic()


def spent_share(search: Search) -> float:
    """Return which share of its whole budget a search has spent, of evaluations or of time, whichever is more."""
    share = search.spent / max(1, search.spent + search.left)
    if search.budget.seconds is not None:
        share = max(share, 1.0 - search.left_s / search.budget.seconds)
    return min(1.0, max(0.0, share))


def unit_s(search: Search) -> float:
    """Return the seconds that times may be counted in: of the best placement yet; without one, of all the work."""
    if 0 < search.best_s < math.inf:
        return search.best_s
    costs = search.problem.costs
    if costs is None:
        return 1.0
    supported = costs.supported
    mean_s = np.where(supported, costs.op_s, 0.0).sum(axis=1) / np.maximum(supported.sum(axis=1), 1)
    return float(mean_s.sum()) or 1.0


def check_policy(learned: Snapshot, *, schema: str, placer: str, sizes: Mapping[str, Any]) -> None:
    """Check that a policy published before is of a placer's kind, and of the sizes that a problem asks for.

    sizes: facts by name that must be equal, such as {"features": 10}.

    Raises:
        UsageError: it is not; the message names what differs.
    """
    if learned.facts.get("schema") != schema or not learned.arrays:
        raise UsageError(
            f"The policy is of kind {learned.facts.get('schema')!r}, not {schema!r}, or empty.",
            f"Give a policy that this version of `{placer}` has published.",
        )
    wrong = [
        f"{name} is {learned.facts.get(name)}, not {value}"
        for name, value in sizes.items()
        if learned.facts.get(name) != value
    ]
    if wrong:
        raise UsageError(
            f"The policy does not fit this problem: {'; '.join(wrong)}.",
            f"Give a policy that `{placer}` learned with the same parameters on as many devices, or none.",
        )
