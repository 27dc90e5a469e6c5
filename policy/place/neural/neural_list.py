"""A list scheduler whose choices are learned, its samples, and a local search from the best of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.lists.listing import Partial
from policy.place.lists.submit import fitted, submit
from policy.place.local.anneal import Anneal
from policy.place.local.room import make_room
from policy.place.neural.constructing import Scores
from policy.place.neural.list_policy import ListPolicy, shipped
from policy.place.neural.plans import Plan, plans_of
from policy.place.search import Method, Search

ORIGINS = ("learned", "untrained", "uniform")
WIDTH = 4  # ready operations compared as pairs with devices, in two of the passes
PASSES = 4  # ways to construct without noise
SAMPLING = 0.5  # share of the budget that samples may take where annealing follows
ROUND = 32  # samples drawn around one centre
LEAST = 0.3  # what a weight's noise is taken to be relative to at least, over the mean weight
BEST = 8  # samples that later ones follow
FOLLOWED = 0.7  # share of the samples that are constructed in the way of one of them

Way = tuple[Plan, int]  # and how many ready operations are compared


@dataclass(frozen=True, slots=True)
class NeuralList(Method):
    """Schedules ready operations by learned keys, each on the device of the greatest learned score; then samples.

    A score is a function of about twenty relative figures of an operation and a device, given what is placed already:
    any number of devices, unseen ones too. Up to four passes without noise: by priority first or by pairs, with
    operations alone or neighbours joined whose tensors cost more than their producers. Samples put noise on weights and
    scores, and follow the best of those before; in the end `anneal` spends what is left, beginning with the best.

    Source: after "Neural DAG scheduling via one-shot priority sampling", ICLR 2023, for samples, and
    Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, for the list scheduler; the figures and the cross-entropy method that
    finds their weights are ours.
    """

    version: ClassVar[int] = 1  # raised with every change of the weights that come along
    placers: ClassVar[tuple[str, ...]] = ("anneal",)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "uniform": {"scores": "uniform"},
        "untrained": {"scores": "untrained"},
    }

    passes: int = param(PASSES, "ways to construct without noise, 1 to 4")
    samples: int = param(256, "schedules drawn with noise, as far as half of the budget allows; 0 for none")
    improve: bool = param(True, "anneal from the best with what is left")
    scores: str = param("learned", "learned, or as a control: untrained or uniform")
    weights: str = param("", "file of weights in place of those that come with placewright", file=True)
    spread: float = param(0.8, "relative deviation of the weights of samples")
    temperature: float = param(0.1, "noise on the scores of samples, over the mean weight")

    def __post_init__(self) -> None:
        if self.scores not in ORIGINS:
            raise UnknownNameError("origin of the scores", self.scores, ORIGINS)
        if not (1 <= self.passes <= PASSES and self.samples >= 0 and self.spread >= 0 and self.temperature >= 0):
            raise UsageError(
                f"{self} has a count or a deviation out of range.",
                f"Use 1 to {PASSES} passes, and nothing negative.",
            )

    def run(self, search: Search, *, seed: int) -> None:
        """Construct, sample and improve until the budget or the ideas end."""
        if search.done:
            return
        rng = np.random.default_rng(seed)
        policy, plans = self._policy(rng), plans_of(search)
        ways = [(plan, width) for width in (1, WIDTH) for plan in plans]
        for plan, width in ways[: self.passes]:
            scores = policy.scores(plan.context)
            if not np.any(scores.device):  # a uniform choice is a draw
                scores = noisy(scores, plan, rng, self)
            submit(search, plan.work, (), (plan.schedule(scores, width=width),))
        if self.samples:
            share = SAMPLING if self.improve else 1.0
            evaluations, seconds = max(1, math.ceil(share * search.left)), share * search.left_s
            with search.limited(search.author, evaluations=evaluations, seconds=seconds):
                self._sample(search, ways, policy.scores(plans[0].context), rng)
        if self.improve and not search.done:
            Anneal().run(search, seed=seed)
        elif search.best is None:
            make_room(search, seed=seed)

    def _policy(self, rng: np.random.Generator) -> ListPolicy:
        if self.scores == "uniform":
            return ListPolicy.uniform()
        if self.scores == "untrained":
            return ListPolicy.untrained(rng)
        return ListPolicy.read(Path(self.weights)) if self.weights else shipped()

    def _sample(self, search: Search, ways: Sequence[Way], scores: Scores, rng: np.random.Generator) -> None:
        """Ask about schedules drawn with noise; every round around the mean of the best so far."""
        centre = scores
        found: list[tuple[float, Scores, Way]] = []
        for i in range(self.samples):
            if search.done:
                return
            if i and i % ROUND == 0:
                found = sorted(found, key=lambda entry: entry[0])[:BEST]
                centre = _mean(scores, [sample for _, sample, _ in found])
            plan, width = _way(ways, [way for _, _, way in found[:BEST]], rng)
            sample = noisy(centre, plan, rng, self)
            found.append((asked(search, plan, plan.schedule(sample, width=width)), sample, (plan, width)))


def _way(ways: Sequence[Way], best: Sequence[Way], rng: np.random.Generator) -> Way:
    """Return a way to construct: mostly that of one of the best samples."""
    among = best if best and rng.random() < FOLLOWED else ways
    return among[int(rng.integers(len(among)))]


def noisy(scores: Scores, plan: Plan, rng: np.random.Generator, placer: NeuralList) -> Scores:
    """Return scores with normal noise on their weights and Gumbel noise on what they score, as a placer's samples."""
    n, p = plan.work.op_s.shape
    mean = float(np.abs(scores.device).mean())

    def drawn(weights: Float64) -> Float64:
        deviation = placer.spread * np.hypot(weights, LEAST * np.abs(weights).mean())
        moved: Float64 = weights + deviation * rng.standard_normal(weights.size)
        return moved

    return scores._replace(
        device=drawn(scores.device),
        key=drawn(scores.key),
        noise=(placer.temperature * mean if mean > 0 else 1.0) * rng.gumbel(size=(n, p)),
    )


def _mean(scores: Scores, best: Sequence[Scores]) -> Scores:
    """Return scores with the mean weights of the best samples."""
    device = np.mean([sample.device for sample in best], axis=0)
    key = np.mean([sample.key for sample in best], axis=0)
    return scores._replace(device=device, key=key)


def asked(search: Search, plan: Plan, schedule: Partial) -> float:
    """Return the seconds of a schedule's placement, with its order where placements have one.

    inf where it does not fit, or where the budget has ended while it was made.
    """
    device = fitted(search.problem, plan.work, schedule.homes.device)
    if search.simulator is not None and not search.problem.ordered:
        found = search.simulate(device[None])
        return float(np.where(found.over_bytes == 0, found.value_s, np.inf).min(initial=np.inf))
    return float(np.nan_to_num(search.evaluate([_placement(search.problem, device, schedule)])[0], nan=np.inf))


def _placement(problem: Problem, device: Int32, schedule: Partial) -> Placement:
    """Return a schedule as a placement, with the order of its starts where placements have orders."""
    if not problem.ordered:
        return Placement(device, problem.topology.names)
    rank = np.empty(device.size)
    rank[np.argsort(schedule.start_s, kind="stable")] = np.arange(device.size)
    return Placement(device, problem.topology.names, rank)
