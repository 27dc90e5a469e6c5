"""Weights by imitation: the cross-entropy of a policy's decisions with placements that long searches found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64, Int64
from policy.place.learned.neural_list.constructing import DEVICE_FIGURES, FIGURES, PLANNED, Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.likelihood import device_slopes
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.static_features import CONTEXT

COUNTED = np.array([not name.startswith(PLANNED) for name in DEVICE_FIGURES])  # labels have no schedule before


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """Decisions to imitate.

    context: float64 [len(CONTEXT)]. figure: float32 [m, p, FIGURES], of decisions with more than one usable device.
    chosen: int64 [m].
    """

    family: str
    context: Float64
    figure: np.ndarray[Any, np.dtype[np.float32]]
    chosen: Int64

    @classmethod
    def of(cls, family: str, instance: ListInstance, scores: Scores, device: Int64) -> Label:
        """Return the decisions that lead to a placement, int64 [n], of operations in the order of scores' keys."""
        _, decisions = instance.recorded(scores, device=device)
        usable = (~np.isnan(decisions.figure[:, :, 0])).sum(axis=1) > 1
        taken = ~np.isnan(decisions.figure[np.arange(device.size), device, 0])  # memory may bar what came from moves
        at = np.flatnonzero(usable & taken)
        return cls(family, instance.context, decisions.figure[at].astype(np.float32), device[at])

    def loss(self, weight: Float64) -> tuple[float, Float64]:
        """Return the mean cross-entropy per decision in nats, and its gradient [len(CONTEXT), FIGURES] by weights."""
        if not self.chosen.size:
            return 0.0, np.zeros_like(weight)
        figure = self.figure.astype(np.float64)
        slopes, _ = device_slopes(figure, self.chosen, self.context @ weight, np.zeros(figure.shape[:2]))
        return -slopes.value / self.chosen.size, -np.outer(self.context, slopes.weight) / self.chosen.size


@dataclass(frozen=True, slots=True)
class Imitation:
    """How decisions are imitated: Adam on batches of labels.

    epochs: after which it ends. batch: labels per step. rate: step size, falling to a tenth. decay: of weights, towards
    the first ones, per step and rate.
    """

    epochs: int = 12
    batch: int = 16
    rate: float = 0.02
    decay: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ImitationState:
    """Where imitation stands: weights, Adam's moments, and the best weights; each [len(CONTEXT), FIGURES]."""

    epoch: int
    weight: Float64
    first: Float64
    second: Float64
    best: Float64
    best_loss: float
    log: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def beginning(cls, policy: ListPolicy) -> ImitationState:
        """Return the beginning at a policy."""
        nothing = np.zeros_like(policy.device)
        return cls(0, policy.device, nothing, nothing, policy.device, math.inf)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        arrays = {name: getattr(self, name).tolist() for name in ("weight", "first", "second", "best")}
        best_loss = None if math.isinf(self.best_loss) else self.best_loss
        return {"epoch": self.epoch, "best_loss": best_loss, "log": list(self.log), **arrays}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> ImitationState:
        """Return the state of such a document.

        Raises:
            KeyError: it lacks something, or is of other figures.
        """
        arrays = {key: np.array(document[key], np.float64) for key in ("weight", "first", "second", "best")}
        if any(array.shape != (len(CONTEXT), FIGURES) for array in arrays.values()):
            raise KeyError("weight")
        loss = math.inf if document["best_loss"] is None else float(document["best_loss"])
        return cls(int(document["epoch"]), best_loss=loss, log=tuple(document["log"]), **arrays)


def imitated(
    state: ImitationState, course: Imitation, labels: Sequence[Label], held_out: Sequence[Label]
) -> ImitationState:
    """Return the state one epoch later; batches depend on the seed and the epoch alone."""
    rng = np.random.default_rng([course.seed, state.epoch])
    weight, first, second = state.weight.copy(), state.first.copy(), state.second.copy()
    order, begin = rng.permutation(len(labels)), state.weight
    rate = course.rate * 0.1 ** (state.epoch / max(1, course.epochs - 1))
    step, losses = state.epoch * math.ceil(len(labels) / course.batch), []
    for at in range(0, len(labels), course.batch):
        found = [labels[i].loss(weight) for i in order[at : at + course.batch].tolist()]
        gradient = np.where(COUNTED, np.mean([slope for _, slope in found], axis=0), 0.0)
        losses += [loss for loss, _ in found]
        step += 1
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        weight -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        weight -= rate * course.decay * (weight - begin)
    judged = mean_losses(weight, held_out)
    loss = float(np.mean(list(judged.values())))
    record = {"epoch": state.epoch + 1, "training": float(np.mean(losses)), "held_out": loss, "families": judged}
    later = ImitationState(state.epoch + 1, weight, first, second, state.best, state.best_loss, (*state.log, record))
    return replace(later, best=weight, best_loss=loss) if loss < state.best_loss else later


def mean_losses(weight: Float64, labels: Sequence[Label]) -> dict[str, float]:
    """Return the mean cross-entropy per decision, family by family."""
    losses: dict[str, list[float]] = {}
    for label in labels:
        losses.setdefault(label.family, []).append(label.loss(weight)[0])
    return {family: float(np.mean(values)) for family, values in sorted(losses.items())}
