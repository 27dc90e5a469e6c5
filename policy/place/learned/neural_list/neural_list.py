"""A list scheduler whose choices are learned, its samples, and a local search from the best of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.core.errors import UnknownNameError
from pipeline.core.params import check_params, param
from policy.place.base.search import Method, Search
from policy.place.learned.neural_list.instances import contracted_instances, list_instances
from policy.place.learned.neural_list.list_policy import ListPolicy, shipped
from policy.place.learned.neural_list.planning import CELLS, Parents, Plan, plans
from policy.place.learned.neural_list.sampling import Noise, asked
from policy.place.lists.submit import submit
from policy.place.local.anneal import Anneal
from policy.place.local.room import repair_memory

ORIGINS = ("learned", "untrained", "uniform")
PASSES = 4  # schedules without noise that are asked about at most
FIRST = 16  # samples after which half as many schedules are planned for each
PLANNING = 0.3  # share of the time that plans may take before any is asked about
CONTRACTED_PER_S = 10_000  # operations of which groups are made in a second, roughly, for all instances together
SAMPLING = 0.5  # share of the budget that samples may take where annealing follows


@dataclass(frozen=True, slots=True)
class NeuralList(Method):
    """Schedules ready operations by learned keys, each on the device of the greatest learned score; then samples.

    A score is a function of about twenty relative figures of an operation and a device, given what is placed already:
    any number of devices, unseen ones too. Before anything is asked about, several policies that complement one another
    plan schedules by priority and by pairs, with operations alone and with neighbours joined whose tensors cost more
    than their producers; so do two list rules. The first of the plans are made again and see where they put what is
    still to come. What is expected of a plan lies between its own end and that of a replay, in which operations run as
    they become ready; those that are expected to end first are asked about. With `contracted`, plans are also made of
    groups of the learned contraction, of several sizes, whose operations share a device or are scheduled as one.
    Samples put noise on weights and scores of the best of those before; in the end `anneal` spends what is left, from
    the best.

    Source: after "Neural DAG scheduling via one-shot priority sampling", ICLR 2023, for samples, and
    Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, for the list scheduler; the figures and the cross-entropy method that
    finds their weights are ours.
    """

    version: ClassVar[int] = 4  # raised with every change of the weights that come along
    placers: ClassVar[tuple[str, ...]] = ("anneal",)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "uniform": {"scores": "uniform"},
        "untrained": {"scores": "untrained"},
    }

    passes: int = param(
        PASSES, "schedules without noise that are asked about, those planned fastest, 1 to 4", within=f"[1, {PASSES}]"
    )
    planned: int = param(
        8,
        "schedules planned for each of the first 16 samples, of which one is asked about; then fewer",
        within="[1, inf)",
    )
    samples: int = param(256, "schedules drawn with noise, as far as half of the budget allows; 0 for none")
    improve: bool = param(True, "anneal from the best with what is left")
    scores: str = param("learned", "learned, or as a control: untrained or uniform")
    contracted: bool = param(
        False, "plan and draw on groups of the learned contraction as well: better passes, in more time"
    )
    weights: str = param("", "file of weights in place of those that come with placewright", file=True)
    spread: float = param(0.4, "relative deviation of the weights of samples")
    temperature: float = param(0.1, "noise on the scores of samples, over the mean weight")

    def __post_init__(self) -> None:
        check_params(self)
        if self.scores not in ORIGINS:
            raise UnknownNameError("origin of the scores", self.scores, ORIGINS)

    def run(self, search: Search, *, seed: int) -> None:
        """Plan, sample and improve until the budget or the ideas end."""
        if search.done:
            return
        rng, instances = np.random.default_rng(seed), list_instances(search)
        made = list[Plan]()
        with search.limited(search.author, seconds=PLANNING * search.left_s):
            policies = self.policies(rng)
            made = plans(instances, policies, self.noise, rng)
            if self.contracted and search.problem.graph.n <= CONTRACTED_PER_S * search.left_s:
                for instance in contracted_instances(search, instances[0]):
                    search.look()
                    instances.append(instance)
                    made += plans([instance], policies, self.noise, rng)
        made.sort(key=lambda plan: plan.expected_s)
        for plan in made[: self.passes]:
            submit(search, plan.instance.handed, (), (plan.instance.of_operations(plan.schedule),))
        if made and self.samples and not (self.improve and search.best is None):  # making room needs the whole budget
            share = SAMPLING if self.improve else 1.0
            evaluations, seconds = max(1, math.ceil(share * search.left)), share * search.left_s
            with search.limited(search.author, evaluations=evaluations, seconds=seconds):
                self._sample(search, Parents(made, instances, self.noise, rng))
        if self.improve and not search.done:
            Anneal().run(search, seed=seed)
        elif search.best is None:
            repair_memory(search, seed=seed)

    @property
    def noise(self) -> Noise:
        """Return what tells samples apart."""
        return Noise(self.spread, self.temperature)

    def policies(self, rng: np.random.Generator) -> tuple[ListPolicy, ...]:
        """Return the policies that plan, as many as come along where they are controls.

        Raises:
            UsageError: the file of weights cannot be read.
        """
        if self.scores == "uniform":
            return (ListPolicy.uniform(),) * len(shipped())
        if self.scores == "untrained":
            return tuple(ListPolicy.untrained(rng) for _ in shipped())
        return ListPolicy.read(Path(self.weights)) if self.weights else shipped()

    def _sample(self, search: Search, parents: Parents) -> None:
        """Ask about schedules drawn with noise around the best, of several planned the one expected to end first."""
        for i in range(self.samples):
            if search.done:
                return
            most, cells, drawn = self.planned if i < FIRST else self.planned // 2, 0, list[Plan]()
            while not drawn or (len(drawn) < most and cells + drawn[-1].cells <= CELLS):
                drawn.append(parents.drawn())
                cells += drawn[-1].cells
            plan = min(drawn, key=lambda plan: plan.expected_s)
            parents.note(asked(search, plan.instance, plan.schedule), plan)
