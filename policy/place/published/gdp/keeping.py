"""What `gdp` and `sgdp` leave behind: the state of a search to go on from, and a policy for other graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.learning import PolicyInputs, Snapshot, prefixed
from pipeline.shared.torch_tools import load_moments, moments_of, weights_of
from policy.place.base.training import check_policy
from policy.place.local.anneal import BudgetClock
from policy.place.published.gdp.network import SingleShotPolicy
from policy.place.published.gdp.ppo import PpoTrainer, Trial

POLICY_SCHEMA = "placewright.policy/gdp/1"
RECIPE = 1  # raised whenever a column of the features changes its meaning
SEARCH, POLICY, ADAM = "search.", "policy.", "adam."


def state_of(trainer: PpoTrainer) -> Snapshot:
    """Return everything on which the next update on one graph depends."""
    (trial,) = trainer.trials
    search = trial.search.state()
    arrays = prefixed(SEARCH, search.arrays) | prefixed(POLICY, weights_of(trainer.policy))
    arrays |= prefixed(ADAM, moments_of(trainer.optimiser)) | {"rewards": np.array(trial.rewards, np.float64)}
    arrays["elite.s"] = np.array([value_s for value_s, _ in trial.elite], np.float64)
    arrays["elite.device"] = np.array([row for _, row in trial.elite], np.int64).reshape(-1, trial.sequence.k)
    facts = {
        "search": search.facts,
        "budget": {"evaluations": trial.search.budget.evaluations, "seconds": trial.search.budget.seconds},
        "clock": trial.clock.state(),
        "rng": trainer.rng.bit_generator.state,
        "updates": trainer.updates,
        "idle": trainer.idle,
        "temperature": trial.temperature,
    }
    return Snapshot(arrays, facts)


def take_up(trainer: PpoTrainer, state: Snapshot) -> None:
    """Bring a new trainer of the same search to a state.

    Raises:
        UsageError: the parameters are those of another policy.
    """
    (trial,), facts = trainer.trials, state.facts
    trial.search.resume(Snapshot(state.part(SEARCH), facts["search"]))
    trial.clock = BudgetClock.resumed(trial.search, facts["clock"], facts["budget"])
    trial.rewards = state.arrays["rewards"].tolist()
    elite = state.arrays["elite.device"].astype(np.int64)
    trial.elite = list(zip(state.arrays["elite.s"].tolist(), elite, strict=True))
    trainer.policy.load(state.part(POLICY))
    load_moments(trainer.optimiser, state.part(ADAM))
    trainer.rng.bit_generator.state = facts["rng"]
    trainer.updates, trainer.idle = facts["updates"], facts["idle"]
    trial.temperature = facts["temperature"]


def published(trainer: PpoTrainer, placer: str, params: Mapping[str, Any]) -> Snapshot:
    """Return the policy for other graphs: its parameters, and what another problem must have in common with it."""
    trials: Sequence[Trial] = trainer.trials
    facts = {
        "schema": POLICY_SCHEMA,
        "placer": placer,
        "params": dict(params),
        "recipe": RECIPE,
        "features": int(trials[0].sequence.features.shape[1]),
        "encoder": trainer.policy.encoder.width,
        "design": asdict(trainer.policy.design),
        "trained_on": [
            {
                "operations": trial.search.problem.graph.n,
                "nodes": trial.sequence.k,
                "devices": list(trial.search.problem.topology.names),
                "evaluations": trial.search.spent,
            }
            for trial in trials
        ],
        "updates": trainer.updates,
    }
    return Snapshot(weights_of(trainer.policy), facts)


def check_learned(learned: Snapshot, inputs: PolicyInputs, *, devices: int) -> int:
    """Return how many devices a policy published before tells apart.

    Raises:
        UsageError: it is of another kind, of an older recipe, for other features, or for fewer devices.
    """
    facts, features = learned.facts, inputs.features.shape[1]
    check_policy(learned, schema=POLICY_SCHEMA, placer="gdp", sizes={"recipe": RECIPE, "features": features})
    known = int(facts["design"]["devices"])
    if known < devices:
        raise UsageError(
            f"The policy tells {known} devices apart, and there are {devices}.",
            "Learn one from scratch with place.gdp.devices at least as large, or use fewer devices.",
        )
    return known


def adopt(policy: SingleShotPolicy, learned: Snapshot) -> None:
    """Take over a policy that `check_learned` has accepted.

    Raises:
        UsageError: it was learned with other sizes.
    """
    mine, other = asdict(policy.design), dict(learned.facts["design"])
    wrong = sorted(name for name in mine if mine[name] != other.get(name))
    if wrong:
        told = ", ".join(f"{name} {other.get(name)} instead of {mine[name]}" for name in wrong)
        raise UsageError(
            f"The policy was learned with {told}.", "Set place.gdp.* as they were, or learn one from scratch."
        )
    policy.load({name: np.asarray(values, np.float32) for name, values in learned.arrays.items()})
