"""The agent that `tune` runs: groups and devices learned together, by changing placements that are good already."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch

from pipeline.core.errors import UsageError
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.params import param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import seeded
from policy.place.agent.keeping import state_of, take_up
from policy.place.agent.net import Policy
from policy.place.agent.rollout import Actor
from policy.place.agent.trainer import Hyperparameters, Trainer
from policy.place.agent.world import World
from policy.place.local.anneal import BudgetClock
from policy.place.portfolio import Portfolio
from policy.place.search import Method, Search, policy_of

SAVE_EVERY_S = 2.0
LEARNING = 0.1  # share of the time in which the policy learns from the start, at most
POLICY_SCHEMA = "placewright.policy/hsdag/1"


@dataclass(frozen=True, slots=True)
class Hsdag(Method):
    """Learns which groups of operations to move where, from how much faster or slower each change made a placement.

        z = encoder(features),  groups ~ grouper(z),  target of group g ~ softmax over t of score(z_g, x_gt)

    x_gt is what is known about group g on device t while all others stay where they are: operation times, transfers,
    loads, memory, and from the simulator's timeline how late the group's inputs are there, how much time there is
    until its outputs must leave, how busy the device is meanwhile, and how critical the group is. The same score
    serves every device, so a policy carries over to other devices and any number of them. Two kinds of updates take
    turns. In a draw, all groups of a batch of placements choose at once, in a few passes, each pass knowing what the
    one before has led to; a draw changes one of the best placements, where a group may also stay, or places everything
    from scratch. In a local search, moves of single groups are tried one after another, each on what the ones before
    have left; that is simulated annealing with a learned choice of moves, and every move has a reward of its own. Where
    placements may carry priorities, groups also shift in the order of execution.

    REINFORCE with a leave-one-out baseline on log times (`LeaveOneOut`); draws made from scratch, changes and moves are
    each compared among themselves. A further term imitates the incumbent. A placement drawn again costs nothing; every
    move of a local search counts. Without a start, the portfolio searches first with `warm` of the budget; whatever is
    best then is what the policy learns to make, and goes on from. Equal seed and evaluation budget give equal answers,
    interrupted or not.

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024 (HSDAG), of which little is left but the idea that one policy groups and places. Deliberate differences: those
    that docs/methods/hsdag.md lists. Changing a placement rather than making one follows Addanki et al., Placeto,
    NeurIPS 2019; imitation Oh et al., Self-imitation learning, ICML 2018.
    """

    version: ClassVar[int] = 2
    keeps: ClassVar[bool] = True
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "never learns": {"learning_rate": 1e-9},
        "cold": {"warm": 0.0},
    }

    batch: int = param(16, "placements drawn per update, or half the moves tried")
    passes: int = param(2, "how often every group may choose in one draw, knowing what all chose before")
    p_local_search: float = param(0.9, "share of updates that try moves of single groups one after another")
    groupings: int = param(8, "groupings from which such moves are drawn")
    learning_rate: float = param(0.01, "step size of Adam")
    hidden: int = param(32, "width of the network that scores targets")
    entropy_coef: float = param(0.05, "weight of the entropy bonus at the start; it falls to 0 with the budget")
    temperature: float = param(1.0, "first temperature of local search over the mean time of an operation")
    last_temperature: float = param(0.03, "last temperature of local search over the mean time of an operation")
    p_incumbent: float = param(
        0.2, "probability that local search goes on from the incumbent instead of where it stands"
    )
    elites: int = param(4, "best placements among which one is chosen to be changed")
    p_scratch: float = param(
        0.2, "share of draws that place every group from scratch at the start; it falls to 0 with the budget"
    )
    imitation_coef: float = param(0.1, "weight of imitating the incumbent when placing from scratch")
    warm: float = param(0.3, "share of the budget that the portfolio gets first, if no start is given; 0: a cold start")
    imitation_steps: int = param(
        20, "steps, in a tenth of the time at most, that teach placing from scratch as the start does"
    )
    patience: int = param(20, "end after so many updates in a row that asked about nothing")

    def __post_init__(self) -> None:
        counts = (self.batch, self.passes, self.groupings, self.hidden, self.elites, self.patience)
        shares = (self.p_local_search, self.p_incumbent, self.p_scratch, self.warm)
        if not all(math.isfinite(getattr(self, f.name)) for f in fields(self)):
            raise UsageError(f"{self} has values that are no numbers.", "Use finite values.")
        if (
            min(counts) < 1
            or self.imitation_steps < 0
            or not self.learning_rate > 0
            or min(self.entropy_coef, self.imitation_coef) < 0
        ):
            raise UsageError(f"{self} cannot learn.", "Use counts of at least 1, a positive rate, no negative weights.")
        if not all(0 <= share <= 1 for share in shares) or not 0 < self.last_temperature <= self.temperature:
            raise UsageError(
                f"{self} has a share outside [0, 1], or wrong temperatures.",
                "Shares must lie in [0, 1], and 0 < last_temperature <= temperature.",
            )

    @property
    def recipe(self) -> Recipe | None:
        """Return None: it learns on what the stages before it have made."""
        return None

    @property
    def placers(self) -> tuple[str, ...]:
        """Return what may search before it learns."""
        return ("portfolio",) if self.warm > 0 else ()

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget ends, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or weights that do not fit them.
        """
        inputs = policy_of(search.problem, "hsdag")
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        with seeded(seeds[0]):  # encoders may draw from torch's own generator
            trainer = self.trainer(search, seed=seeds[1])
            kept = None if inputs.checkpointer is None else inputs.checkpointer.load()
            if kept is not None:
                take_up(trainer, kept)
            elif not search.done:
                self._warm_up(trainer, seed)
                trainer.clock = BudgetClock.of(search)
            self._train(trainer, inputs)
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(published(trainer, self))

    def trainer(self, search: Search, *, seed: int) -> Trainer:
        """Return what trains a fresh policy, or one learned before, on a search.

        Raises:
            UsageError: the problem has no policy inputs, or weights that do not fit them.
        """
        inputs = policy_of(search.problem, "hsdag")
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        policy = Policy(inputs, hidden=self.hidden, execution=search.execution, seed=seeds[0])
        if inputs.learned is not None:
            adopt(policy, inputs.learned)
        actor = Actor(search.problem, World.of(search.problem), policy, torch.tensor(inputs.features), self.passes)
        hyper = Hyperparameters(**{f.name: getattr(self, f.name) for f in fields(Hyperparameters)})
        return Trainer(search, actor, hyper, seed=seeds[1])

    def _warm_up(self, trainer: Trainer, seed: int) -> None:
        """Start from a good placement: the one given, or the portfolio's."""
        search = trainer.search
        if search.problem.start is None and self.warm > 0:
            evaluations = max(1, math.floor(self.warm * search.left))
            seconds = self.warm * search.left_s if math.isfinite(search.left_s) else None
            with search.limited("portfolio", evaluations=evaluations, seconds=seconds):
                Portfolio(solvable=0).run(search, seed=seed)  # the solver's seconds are no evaluations
        if (search.problem.start is not None or self.warm > 0) and search.best is not None and not search.done:
            trainer.imitate(search.best, self.imitation_steps, seconds=LEARNING * search.left_s)

    def _train(self, trainer: Trainer, inputs: PolicyInputs) -> None:
        search, saved_s = trainer.search, time.monotonic()
        while not search.done and trainer.idle < self.patience:
            trainer.update()
            if inputs.checkpointer is not None and time.monotonic() - saved_s >= SAVE_EVERY_S:
                inputs.checkpointer.save(state_of(trainer))
                saved_s = time.monotonic()
        trainer.decode()


def published(trainer: Trainer, params: Hsdag) -> Snapshot:
    """Return the policy for other graphs: its parameters, and the recipe to build it again."""
    policy, search = trainer.actor.policy, trainer.search
    facts = {
        "schema": POLICY_SCHEMA,
        "placer": "hsdag",
        "params": asdict(params),
        "features": trainer.actor.features.shape[1],
        "width": policy.encoder.width,
        "trained_on": {
            "operations": search.problem.graph.n,
            "devices": list(search.problem.topology.names),
            "evaluations": search.spent,
            "updates": trainer.updates,
        },
    }
    return Snapshot(policy.weights(), facts)


def adopt(policy: Policy, learned: Snapshot) -> None:
    """Take over a policy published before.

    Raises:
        UsageError: it is of another kind or of other sizes.
    """
    if learned.facts.get("schema") != POLICY_SCHEMA or not learned.arrays:
        raise UsageError(
            f"The policy is of kind {learned.facts.get('schema')!r}, not {POLICY_SCHEMA!r}, or empty.",
            "Give a policy that `hsdag` has published.",
        )
    policy.load({name: np.asarray(values, np.float32) for name, values in learned.arrays.items()})
