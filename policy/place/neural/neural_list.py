"""A list scheduler whose choices are learned, its samples, and a local search from the best of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.params import param
from policy.place.lists.submit import submit
from policy.place.local.anneal import Anneal
from policy.place.local.room import make_room
from policy.place.neural.instances import ListInstance, list_instances
from policy.place.neural.list_policy import ListPolicy, shipped
from policy.place.neural.sampling import SWEEPS, ListDraft, Noise, Sampler, asked, drafts, ways_of
from policy.place.search import Method, Search

ORIGINS = ("learned", "untrained", "uniform")
PASSES = 4  # schedules without noise that are asked about at most
LARGE = 8000  # operations times devices beyond which no more schedules are made than asked about; 0.1 s for all
SAMPLING = 0.5  # share of the budget that samples may take where annealing follows


@dataclass(frozen=True, slots=True)
class NeuralList(Method):
    """Schedules ready operations by learned keys, each on the device of the greatest learned score; then samples.

    A score is a function of about twenty relative figures of an operation and a device, given what is placed already:
    any number of devices, unseen ones too. Without noise, a schedule is made by priority first and by pairs, with
    operations alone and with neighbours joined whose tensors cost more than their producers; each way three times, as
    the second and the third schedule see where the one before put what is still to come. Those planned fastest are
    asked about. Samples put noise on weights and scores, and follow the best of those before; in the end `anneal`
    spends what is left, from the best.

    Source: after "Neural DAG scheduling via one-shot priority sampling", ICLR 2023, for samples, and
    Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, for the list scheduler; the figures and the cross-entropy method that
    finds their weights are ours.
    """

    version: ClassVar[int] = 3  # raised with every change of the weights that come along
    placers: ClassVar[tuple[str, ...]] = ("anneal",)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "uniform": {"scores": "uniform"},
        "untrained": {"scores": "untrained"},
    }

    passes: int = param(PASSES, "schedules without noise that are asked about, those planned fastest, 1 to 4")
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
        policy, instances = self.policy(rng), list_instances(search)
        for draft in self.drafted(instances, policy, rng)[: self.passes]:
            submit(search, draft.instance.work, (), (draft.schedule,))
        if self.samples:
            share = SAMPLING if self.improve else 1.0
            evaluations, seconds = max(1, math.ceil(share * search.left)), share * search.left_s
            with search.limited(search.author, evaluations=evaluations, seconds=seconds):
                self._sample(search, Sampler(policy.scores(instances[0].context), ways_of(instances), self.noise, rng))
        if self.improve and not search.done:
            Anneal().run(search, seed=seed)
        elif search.best is None:
            make_room(search, seed=seed)

    @property
    def noise(self) -> Noise:
        """Return what tells samples apart."""
        return Noise(self.spread, self.temperature)

    def policy(self, rng: np.random.Generator) -> ListPolicy:
        """Return the policy that a search begins with.

        Raises:
            UsageError: the file of weights cannot be read.
        """
        if self.scores == "uniform":
            return ListPolicy.uniform()
        if self.scores == "untrained":
            return ListPolicy.untrained(rng)
        return ListPolicy.read(Path(self.weights)) if self.weights else shipped()

    def drafted(
        self, instances: Sequence[ListInstance], policy: ListPolicy, rng: np.random.Generator
    ) -> list[ListDraft]:
        """Return schedules without noise, planned fastest first; on large problems no more than are asked about."""
        ways = ways_of(instances)
        large = instances[0].work.op_s.size > LARGE
        return drafts(policy, ways[: self.passes] if large else ways, self.noise, rng, sweeps=1 if large else SWEEPS)

    def _sample(self, search: Search, sampler: Sampler[tuple[ListInstance, int]]) -> None:
        """Ask about schedules drawn with noise; every round around the mean of the best so far."""
        for _ in range(self.samples):
            if search.done:
                return
            instance, width = sampler.way()
            sample = sampler.scores(instance)
            sampler.note(asked(search, instance, instance.schedule(sample, width=width)), sample, (instance, width))
