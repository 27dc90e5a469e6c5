"""The agent that `tune` runs: HSDAG's groups, scheduled by learned scores, and both adapted to the graph at hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pipeline.core.errors import UnknownNameError
from pipeline.core.learning import Snapshot, prefixed
from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import load_weights, torch_seeded, weights_of
from policy.place.base.search import Method, Search, policy_of
from policy.place.base.training import check_policy, train
from policy.place.learned.hsdag.agent import AgentHyperparameters
from policy.place.learned.hsdag.trainer import HsdagHyperparameters, HsdagTrainer, Parser
from policy.place.learned.neural_list.list_policy import LINEAR, ListPolicy
from policy.place.learned.neural_list.neural_list import NeuralList
from policy.place.local.anneal import Anneal
from policy.place.multilevel.multilevel import Multilevel
from policy.place.portfolio import Portfolio, clusters_first, find_room

POLICY_SCHEMA = "placewright.policy/hsdag/2"
LEARNERS = ("both", "policy_gradient", "cross_entropy")


@dataclass(frozen=True, slots=True)
class Hsdag(Method):
    """Parses the graph into groups, schedules these by learned scores, and learns both from how long schedules take.

        z = encoder(features),  groups ~ grouper(z),  weights ~ N(centre, spread)
        device of an operation ~ softmax((weights . figures + table) / temperature),  its group goes with it

    The list scheduler is that of `neural_list`: a ready operation of the greatest key, on a device drawn given what is
    placed already. Figures are recorded, so that the gradient of log pi is exact (`likelihood`). Weights come with
    placewright, or from a policy learned before; the table of logits, one for each operation and device, is of this
    graph alone. First the portfolio has `warm` of the budget, of large graphs all of it, unless there is a start; then
    schedules without noise; then batches of samples, with operations alone, costly neighbours joined, or groups parsed,
    mostly as in the best samples so far. Where placements have orders, ready operations are drawn as well.

    Two things are learned from every batch. The centre of the weights, by `learner`: the mean of the best samples
    (cross_entropy, both) or a step of Adam along the gradient (policy_gradient). And, but with cross_entropy, the
    table: by the gradient with a leave-one-out baseline on log times and an entropy bonus, and by imitation of the
    fastest placements known.

    Groups parsed again in a batch are scheduled under the same scores, so that their times differ by the groups alone,
    and encoder and grouper learn from these by REINFORCE (`LeaveOneOut`). Draws end early where they gain too little.
    `anneal`, or `multilevel` on large graphs, spends what is left, from the best. Equal seed and evaluation budget give
    equal answers, interrupted or not, whatever the number of workers.

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024 (HSDAG), for one policy that groups and places, and parsing by scores of edges. Deliberate differences: those
    that docs/methods/hsdag.md lists.
    """

    version: ClassVar[int] = 7
    keeps: ClassVar[bool] = True
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "uniform": {"scores": "uniform"},
        "never learns": {"scores": "untrained", "learns": False},
    }
    ablations: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"learns": False}}

    batch: int = param(32, "schedules drawn per update", within="[1, inf)")
    scores: str = param("learned", "what it begins with: learned, or as a control: untrained or uniform")
    learns: bool = param(True, "learn from the schedules drawn; false as a control")
    learning_rate: float = param(0.01, "step size of Adam, for encoder and grouper")
    entropy_coef: float = param(0.05, "weight of the grouper's entropy bonus at the start; it falls to 0")
    spread: float = param(0.8, "relative deviation of the weights of samples")
    temperature: float = param(0.1, "noise on the scores of samples, over the mean weight")
    learner: str = param(
        "cross_entropy",
        "policy_gradient for weights and tables of logits, cross_entropy for weights alone, or both: weights by "
        "cross-entropy, tables by policy gradient",
    )
    table_rate: float = param(1.0, "step size of the tables of logits", within="[0, inf)")
    imitation_coef: float = param(0.0, "share of a step towards the fastest placements known", within="[0, inf)")
    warm: float = param(
        0.3,
        "share of the budget that the portfolio gets first, if no start is given; 0: a cold start. On graphs so large "
        "that there is no time to move operations it gets all",
        within="[0, 1]",
    )
    drawing: float = param(
        0.5, "share of the rest that goes to draws at most; local search has what they leave", within="(0, 1]"
    )
    least_gain: float = param(
        0.001,
        "share of its time that the incumbent must fall by in an eighth of the budget, or draws end",
        within="[0, 1]",
    )
    workers: int = param(2, "schedules constructed at the same time, each on a thread", within="[1, inf)")
    patience: int = param(20, "draw no more after so many updates in a row that asked about nothing", within="[1, inf)")

    def __post_init__(self) -> None:
        check_params(self)
        NeuralList(scores=self.scores)  # which knows them
        if self.learner not in LEARNERS:
            raise UnknownNameError("learner", self.learner, LEARNERS)

    @property
    def recipe(self) -> Recipe | None:
        """Return None: it learns on what the stages before it have made."""
        return None

    @property
    def placers(self) -> tuple[str, ...]:
        """Return what searches before and after it draws, and whose weights it begins with."""
        return ("neural_list", "anneal", "multilevel", *(("portfolio",) if self.warm > 0 else ()))

    def run(self, search: Search, *, seed: int) -> None:
        """Draw and learn, then anneal, until the budget ends.

        Raises:
            UsageError: the problem has no policy inputs, or a policy that does not fit.
        """
        inputs = policy_of(search.problem, "hsdag")
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        with torch_seeded(seeds[0]):  # encoders may draw from torch's own generator
            trainer = self.trainer(search, seed=seed)
            search.expect("batch of schedules", self.batch)
            train(trainer, inputs, patience=self.patience)
            drawn_s = search.best_s
            if not search.done and not trainer.annealed and self.drawing < 1:
                self._local_search(search).run(search, seed=seeds[1])
                trainer.annealed = not search.done
                if inputs.checkpointer is not None:
                    inputs.checkpointer.save(trainer.state())
        if math.isfinite(trainer.begun_s):
            search.notes.append(what_learning_added(trainer.begun_s, drawn_s, search.best_s))
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(published(trainer, self))

    def trainer(self, search: Search, *, seed: int) -> HsdagTrainer:
        """Return what trains a policy on a search: the one given, or else that which comes along.

        Raises:
            UsageError: the problem has no policy inputs, or a policy that does not fit.
        """
        inputs = policy_of(search.problem, "hsdag")
        parser = Parser(inputs, search.problem.graph, seed=seed)
        policy = self._draws.policies(np.random.default_rng(seed))[0]
        if inputs.learned is not None:
            check_policy(inputs.learned, schema=POLICY_SCHEMA, placer="hsdag", sizes=_sizes(parser))
            load_weights(parser, {k: np.asarray(v, np.float32) for k, v in inputs.learned.part("parser.").items()})
            policy = ListPolicy.of_named(inputs.learned.part("scores."), "The policy")
        warm = self._warm_share(search)
        hyper = HsdagHyperparameters(
            self.batch,
            self.workers,
            self.least_gain,
            self.learns,
            self.learning_rate,
            self.entropy_coef,
            self._draws.noise,
            until=warm + self.drawing * (1.0 - warm),
            agent=self._agent(search),
        )
        trainer = HsdagTrainer(search, parser, policy, hyper, partial(self._warm_up, share=warm, seed=seed), seed=seed)
        if inputs.learned is not None and trainer.agent is not None:
            own = inputs.learned.part("agent.")
            if own and inputs.learned.facts.get("graph") == _graph_facts(search):  # tables serve this graph alone
                trainer.agent.resume(own)
                trainer.agent.elites = []  # their seconds may be of other costs
        return trainer

    def _agent(self, search: Search) -> AgentHyperparameters | None:
        """Return how tables of logits are learned; None where there are none."""
        if self.learner == "cross_entropy":
            return None
        return AgentHyperparameters(
            self._draws.noise,
            rate=self.learning_rate if self.learner == "policy_gradient" else 0.0,
            table_rate=self.table_rate,
            imitation_coef=self.imitation_coef,
            entropy_coef=self.entropy_coef,
            ordered=search.problem.ordered,
        )

    @property
    def _draws(self) -> NeuralList:
        """Return what has the scores, and the noise on them."""
        return NeuralList(scores=self.scores, spread=self.spread, temperature=self.temperature)

    def _local_search(self, search: Search) -> Method:
        """Return what goes on from the best of the draws: moves of operations, or of clusters where there are many."""
        return Multilevel(contracted=self.scores == "learned") if clusters_first(search) else Anneal()

    def _warm_share(self, search: Search) -> float:
        """Return which share of the budget the portfolio has; all of it where there is no time to move operations."""
        if self.warm == 0 or search.problem.start is not None:
            return 0.0
        return 1.0 if clusters_first(search) else self.warm

    def _warm_up(self, search: Search, *, share: float, seed: int) -> None:
        """Let the portfolio search for a share of the budget; where memory is short, first for what fits."""
        if share == 0:
            return
        find_room(search, seed)
        if search.done:
            return
        seconds = share * search.left_s if math.isfinite(search.left_s) else None
        with search.limited("portfolio", evaluations=max(1, math.floor(share * search.left)), seconds=seconds):
            # The solver's seconds are no evaluations; and a control's portfolio has no learned scores either.
            Portfolio(solvable=0, learned=self.scores == "learned").run(search, seed=seed)


def what_learning_added(begun_s: float, drawn_s: float, end_s: float) -> str:
    """Return in a sentence what a search gained by schedules drawn while it learned, and by local search after them.

    >>> what_learning_added(0.050, 0.048, 0.048)
    'hsdag began with 50.00 ms; schedules drawn while it learned made it 4.0 % less, and local search after them 0.0 %.'
    """
    learned, moved = 1 - drawn_s / begun_s, 1 - end_s / drawn_s
    return (
        f"hsdag began with {begun_s * 1e3:.2f} ms; schedules drawn while it learned made it {learned:.1%} less, and "
        f"local search after them {moved:.1%}."
    ).replace("%", " %")


def published(trainer: HsdagTrainer, params: Hsdag) -> Snapshot:
    """Return the policy for other graphs: its parameters, and the recipe to build it again."""
    search = trainer.search
    facts = {
        "schema": POLICY_SCHEMA,
        "placer": "hsdag",
        "params": asdict(params),
        **_sizes(trainer.parser),
        "graph": _graph_facts(search),
        "trained_on": {
            "operations": search.problem.graph.n,
            "devices": list(search.problem.topology.names),
            "evaluations": search.spent,
            "updates": trainer.updates,
        },
    }
    arrays = prefixed("parser.", weights_of(trainer.parser)) | prefixed("scores.", trainer.learned.named)
    if trainer.agent is not None:
        arrays |= prefixed("agent.", trainer.agent.state())
    return Snapshot(arrays, facts)


def _graph_facts(search: Search) -> dict[str, Any]:
    """Return what a policy's tables are bound to: operations and devices, by name."""
    names = "\n".join(search.problem.graph.names)
    return {"operations": hashlib.sha256(names.encode()).hexdigest(), "devices": list(search.problem.topology.names)}


def _sizes(parser: Parser) -> dict[str, Any]:
    """Return what a policy must have in common with the one that goes on from it."""
    return {"features": parser.features.shape[1], "width": parser.encoder.width, "weights": LINEAR}
