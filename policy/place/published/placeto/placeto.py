"""Placeto: one node after another is placed again, each step rewarded by how much faster it made the placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from torch.nn.utils import parameters_to_vector

from pipeline.core.errors import UsageError
from pipeline.core.learning import Snapshot
from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import load_weights, torch_seeded, weights_of
from policy.place.base.search import Method, Search, policy_of
from policy.place.base.training import Adam, check_policy, train
from policy.place.published.placeto.network import PlacetoNetwork
from policy.place.published.placeto.process import ProcessRules
from policy.place.published.placeto.trainer import PlacetoHyperparameters, PlacetoTrainer

POLICY_SCHEMA = "placewright.policy/placeto/1"


@dataclass(frozen=True, slots=True)
class Placeto(Method):
    """Learns to place nodes one after another, each knowing where all others are and when they run.

        an episode: for every group v in turn,  device of v ~ softmax(network(graph, placement, v))
        reward of a step = cost before - cost after;   cost = min(cap, time + penalty * bytes beyond the memory)

    What the network is told of a node: its time, the bytes it puts out, how often it was placed, whether it is in hand,
    when it starts in the last simulation from the start of the node in hand, the bytes it holds, its device. Messages
    pass along and against the edges, for 8 rounds or in one sweep of the graph; the head sees the node in hand and sums
    over the nodes before it, behind it, and parallel to it. REINFORCE with a baseline for every step of the episode,
    the mean of the last returns, and an entropy bonus that falls. The answer is the best placement visited.

    Source: Addanki et al., Placeto, NeurIPS 2019, and the code published with it. Deliberate differences: times count
    in multiples of the best single device's, bytes beyond memory in eighths of it, and the entropy bonus falls with the
    budget, so that none depends on the scale of a problem; a node's time is its mean over devices, which may differ;
    starts are divided by the greatest distance; what a group puts out is the sum over its output ports; pins,
    colocation and memory are respected; where groups form cycles, edges back are unseen; a step that changes nothing
    asks nothing. Where the evaluator tells no starts, all are 0. docs/methods/placeto.md has the faults not copied.
    """

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = True
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "never learns": {"control": "frozen"},
        "uniform": {"control": "uniform"},
    }

    network: Literal["placeto", "gnn"] = param(
        "placeto", "placeto, or gnn: one pool, and messages that know no direction"
    )
    rounds: int = param(8, "rounds of messages; 0: one exact sweep in topological order")
    memory: bool = param(True, "tell the network how many bytes each node holds")
    initial: Literal["random", "fresh", "first", "best"] = param(
        "random", "where episodes begin: random (drawn once), fresh (drawn again), first, best"
    )
    order: Literal["topological", "shuffled"] = param("topological", "in which nodes come up: topological or shuffled")
    steps: int = param(0, "steps of an episode; 0: as many as groups")
    reward: Literal["dense", "terminal"] = param(
        "dense", "dense: after every step; terminal: after the last one, minus the whole cost"
    )
    penalty: float = param(2.0, "cost of a GB, or an eighth of a device's memory, beyond its memory")
    cap: float = param(10.0, "greatest cost of a placement", within="(0, inf)")
    seconds: bool = param(False, "count costs in seconds and GB, as published, not relative to the problem")
    algorithm: Literal["reinforce", "ppo"] = param("reinforce", "reinforce or ppo")
    workers: int = param(4, "episodes per update", within="[1, inf)")
    learning_rate: float = param(1e-3, "step size of Adam at the start", within="(0, inf)")
    last_learning_rate: float = param(1e-4, "step size of Adam at the end of the budget", within="(0, inf)")
    gamma: float = param(1.0, "discount from step to step", within="[0, 1]")
    window: int = param(10, "updates over which the baseline is a mean", within="[1, inf)")
    entropy_coef: float = param(1.0, "weight of the entropy bonus at the start")
    entropy_until: float = param(0.5, "share of the budget in which this weight falls to 0", within="(0, inf)")
    clip_norm: float = param(1.25, "greatest norm of a gradient", within="(0, inf)")
    greedy_every: int = param(
        999, "every so many episodes one takes the likeliest device in every step", within="[1, inf)"
    )
    control: Literal["", "frozen", "uniform"] = param(
        "", "'' learns; frozen: never learns; uniform: draws all devices alike"
    )
    patience: int = param(20, "end after so many updates in a row that asked about nothing", within="[1, inf)")

    def __post_init__(self) -> None:
        check_params(self)
        if self.network == "gnn" and self.rounds == 0:
            raise UsageError("A network without directions cannot sweep.", "Use rounds=8, or network=placeto.")

    @property
    def recipe(self) -> Recipe | None:
        """Return None: it places the groups of the run, and makes its features itself."""
        return None

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget ends, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or a policy to begin with that does not fit.
        """
        inputs = policy_of(search.problem, "placeto")
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        with torch_seeded(seeds[0]):
            trainer = self.trainer([search], seed=seeds[1])
            if inputs.learned is not None:
                adopt(trainer, inputs.learned)
            if not self.control:
                search.expect("update", self.workers * trainer.processes[0].asks)
            train(trainer, inputs, patience=self.patience)
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(published(trainer, self))

    def trainer(self, searches: list[Search], *, seed: int) -> PlacetoTrainer:
        """Return what trains a fresh network, on one search or on several of equally many devices.

        Weights are drawn from torch's own generator.

        Raises:
            UsageError: the numbers of devices differ.
        """
        devices = {search.problem.topology.p for search in searches}
        if len(devices) != 1:
            raise UsageError(
                f"Placeto has one output per device, and these problems have {sorted(devices)}.",
                "Train on problems of equally many devices.",
            )
        rules = ProcessRules(**{f.name: getattr(self, f.name) for f in fields(ProcessRules)})
        names = [f.name for f in fields(PlacetoHyperparameters)]
        hyper = PlacetoHyperparameters(**{name: getattr(self, name) for name in names})
        network = PlacetoNetwork(self.network, devices=devices.pop(), rounds=self.rounds, memory=self.memory)
        return PlacetoTrainer(searches, network, rules, hyper, seed=seed)


def published(trainer: PlacetoTrainer, params: Placeto) -> Snapshot:
    """Return the policy for other graphs on as many devices: its parameters, and the recipe to build it again."""
    facts = {
        "schema": POLICY_SCHEMA,
        "placer": "placeto",
        "params": asdict(params),
        **_sizes(trainer.network),
        "trained_on": {
            "operations": [process.search.problem.graph.n for process in trainer.processes],
            "evaluations": [process.search.spent for process in trainer.processes],
            "updates": trainer.updates,
        },
    }
    return Snapshot(weights_of(trainer.network), facts)


def adopt(trainer: PlacetoTrainer, learned: Snapshot) -> None:
    """Take over a policy published before.

    Raises:
        UsageError: it is of another kind, or of other sizes.
    """
    check_policy(learned, schema=POLICY_SCHEMA, placer="placeto", sizes=_sizes(trainer.network))
    load_weights(trainer.network, {name: np.asarray(values, np.float32) for name, values in learned.arrays.items()})
    trainer.adam = Adam(parameters_to_vector(trainer.network.parameters()).detach().numpy())


def _sizes(network: PlacetoNetwork) -> dict[str, Any]:
    """Return what a policy must have in common with the one that goes on from it."""
    names = ("network", "features", "devices", "rounds")
    return {name: getattr(network, name) for name in names}
