"""GDP: a device for every operation in a single shot, learned by proximal policy optimisation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.learning import PolicyInputs
from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Method, Search, policy_of
from policy.place.local.anneal import BudgetClock
from policy.place.published.gdp.clusters import ClusterBy
from policy.place.published.gdp.keeping import adopt, check_learned, published, state_of, take_up
from policy.place.published.gdp.network import PlacerDesign, SingleShotPolicy
from policy.place.published.gdp.ppo import PpoSettings, PpoTrainer, Trial
from policy.place.published.gdp.sequence import NodeSequence

SAVE_EVERY_S = 2.0
BLOCKS = ("type_hash", "shapes", "index_neighbours")
MODES = ("one", "zero_shot", "finetune")
FROM_ZERO = ("hops", "memory", "greedy_every", "elites")  # counts that may be 0


@dataclass(frozen=True, slots=True)
class Gdp(Method):
    """Learns to place all operations at once, each by a softmax over the devices, from how long placements take.

        x = GraphSAGE(types, shapes, neighbours);  x = attention in segments of the topological order (x)
        p(placement) = product over nodes v of softmax(W x_v);  reward = - sqrt(seconds), -10 for what cannot run

    Nothing is told of times, bytes or devices: the policy learns them from the rewards. The gate of superposition
    multiplies the input of every dense layer behind the encoder by what the graph is like, so that one policy serves
    several graphs. PPO clips each node's ratio. The answer is the best placement seen, the likeliest one included.

    mode "one" learns until the budget ends, on a policy given if there is one; "zero_shot" draws from a policy that was
    learned on other graphs; "finetune" learns `updates` times at most. GDP-batch, one policy on several graphs, is
    `learn_jointly` in `batch.py`. Of more than `nodes` nodes clusters are made first; `found_by` says so.

    Source: Zhou et al., "GDP: Generalized device placement for dataflow graphs", arXiv 1910.01578, 2019. No code was
    published. Deliberate differences and what the paper leaves open: docs/methods/gdp.md.
    """

    version: ClassVar[int] = 3
    keeps: ClassVar[bool] = True
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"learning_rate": 1e-9}}

    mode: Literal["one", "zero_shot", "finetune"] = param(
        "one", "one, zero_shot or finetune; the last two need --policy"
    )
    rollouts: int = param(16, "placements drawn per update", within="[1, inf)")
    minibatches: int = param(4, "parts into which an update's placements are dealt", within="[1, inf)")
    epochs: int = param(4, "how often an update learns from each", within="[1, inf)")
    learning_rate: float = param(3e-4, "step size of Adam at the start; it falls to 0 by a cosine", within="(0, inf)")
    clip: float = param(
        0.2, "change of a node's probability, as a share, beyond which nothing is learned", within="(0, inf)"
    )
    entropy_coef: float = param(0.01, "weight of the entropy bonus at the start; it falls to 0 with the budget")
    baseline: Literal["all", "batch"] = param(
        "all", "rewards are compared with all earlier ones, or within their batch"
    )
    invalid_reward: float = param(-10.0, "reward of a placement that cannot run", within="(-inf, inf)")
    greedy_every: int = param(0, "updates between two looks at the likeliest placement; 0: at the end alone")
    elites: int = param(0, "best placements drawn so far that every step imitates as well; 0: none, as published")
    elite_coef: float = param(0.3, "weight of imitating them")
    warm: float = param(0.0, "by which share draws get warmer after each update that draws mostly old placements")
    gate: Literal["node", "graph", "none"] = param("node", "superposition: a gate per node, one per graph, or none")
    width: int = param(128, "numbers per node in encoder and attention", within="[1, inf)")
    hops: int = param(3, "layers of the encoder")
    layers: int = param(2, "layers of attention", within="[1, inf)")
    heads: int = param(4, "attention heads", within="[1, inf)")
    inner: int = param(256, "units behind the attention; a multiple of the width", within="[1, inf)")
    standardise: bool = param(True, "standardise embeddings over the nodes of a graph before the attention")
    segment: int = param(256, "nodes that attend to one another", within="[1, inf)")
    memory: int = param(256, "nodes before a segment that it attends to")
    devices: int = param(8, "devices of the softmax; more if there are more", within="[1, inf)")
    nodes: int = param(10_000, "most nodes that are placed one by one", within="[1, inf)")
    clusters: int = param(2000, "about how many clusters are made of more nodes", within="[1, inf)")
    cluster_by: Literal["edges", "layers", "contraction"] = param(
        "edges",
        "edges: clusters share most; layers: they are layers, cut by time, where operations share weights; "
        "contraction: a learned score merges them",
    )
    updates: int = param(50, "updates at most in mode finetune", within="[1, inf)")
    frozen_encoder: bool = param(False, "learn the placer alone, and leave the encoder as it is")
    patience: int = param(20, "stop after so many updates in a row without a placement that is new", within="[1, inf)")

    def __post_init__(self) -> None:
        check_params(self)
        for name, known in (
            ("mode", MODES),
            ("gate", ("node", "graph", "none")),
            ("baseline", ("all", "batch")),
            ("cluster_by", get_args(ClusterBy)),
        ):
            if getattr(self, name) not in known:
                raise UnknownNameError(name, getattr(self, name), known)
        if self.width % self.heads or self.inner % self.width:
            raise UsageError(
                f"{self} has widths that do not fit.", "The width must be a multiple of heads, and inner of the width."
            )

    @property
    def recipe(self) -> Recipe:
        """Return the stages before: operations as they are, what GDP knows of them, and its encoder."""
        encoder = {"width": self.width, "layers": self.hops}
        return Recipe(coarsen=(), blocks=BLOCKS, embed=("sage", encoder), group=("identity", {}))

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget or the updates end, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or a policy that does not fit; or there is none to begin with.
        """
        inputs = policy_of(search.problem, "gdp")
        if self.mode != "one" and inputs.learned is None:
            raise UsageError(f"The mode {self.mode} begins with a policy, and there is none.", "Give one as --policy.")
        with torch_seeded(seed):
            trainer = self.trainer([search], seed=seed)
            kept = None if inputs.checkpointer is None else inputs.checkpointer.load()
            if kept is not None:
                take_up(trainer, kept)
            (trial,) = trainer.trials
            author = f"{search.author} on {trial.sequence.k} clusters" if trial.sequence.coarse else search.author
            with search.limited(author):
                self._train(trainer, inputs)
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(published(trainer, search.author, asdict(self)))

    def trainer(self, searches: Sequence[Search], *, seed: int) -> PpoTrainer:
        """Return what trains one policy on searches: a fresh one, or that of the first problem's policy inputs.

        Raises:
            UsageError: a problem has no policy inputs, or the policy does not fit.
        """
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        inputs = [policy_of(search.problem, "gdp") for search in searches]
        devices = max(search.problem.topology.p for search in searches)
        learned = inputs[0].learned
        head = max(self.devices, devices) if learned is None else check_learned(learned, inputs[0], devices=devices)
        names = [f.name for f in fields(PlacerDesign) if f.name != "devices"]
        policy = SingleShotPolicy(
            inputs[0], PlacerDesign(devices=head, **{name: getattr(self, name) for name in names}), seed=seeds[0]
        )
        if learned is not None:
            adopt(policy, learned)
        if self.frozen_encoder:
            policy.encoder.module.requires_grad_(False)
        trials = [
            Trial(
                search,
                NodeSequence.of(
                    search.problem, given.features, most=self.nodes, clusters=self.clusters, by=self.cluster_by
                ),
                BudgetClock.of(search),
            )
            for search, given in zip(searches, inputs, strict=True)
        ]
        settings = PpoSettings(**{f.name: getattr(self, f.name) for f in fields(PpoSettings)})
        most = self.updates if self.mode == "finetune" else math.inf
        return PpoTrainer(trials, policy, settings, seed=seeds[1], most=most)

    def _train(self, trainer: PpoTrainer, inputs: PolicyInputs) -> None:
        (trial,), saved_s = trainer.trials, time.monotonic()
        if self.mode == "zero_shot":
            trainer.decode(trial)
            trainer.ask()
            return
        trial.search.expect("update", trainer.settings.rollouts)
        while trial.sequence.free and not trainer.done and trainer.idle < self.patience:
            trainer.update()
            if inputs.checkpointer is not None and time.monotonic() - saved_s >= SAVE_EVERY_S:
                inputs.checkpointer.save(state_of(trainer))
                saved_s = time.monotonic()
        trainer.decode(trial)
