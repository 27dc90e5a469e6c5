"""The state of a training as arrays and facts, from which it goes on as if it had never stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipeline.core.learning import Snapshot, prefixed
from pipeline.core.placement import Placement
from pipeline.shared.torch_tools import load_moments, moments_of, weights_of
from policy.place.agent.trainer import Trainer
from policy.place.local.anneal import BudgetClock
from policy.place.search import stacked

Arrays = dict[str, npt.NDArray[Any]]
SEARCH, POLICY, ADAM, BASES = "search.", "policy.", "adam.", "bases."


def state_of(trainer: Trainer) -> Snapshot:
    """Return everything on which the next update depends."""
    search = trainer.search.state()
    arrays = prefixed(SEARCH, search.arrays) | prefixed(POLICY, weights_of(trainer.actor.policy))
    arrays |= prefixed(ADAM, moments_of(trainer.optimiser))
    arrays["torch_rng"] = torch.get_rng_state().numpy().copy()
    bases = list(trainer.bases.known.values())
    arrays |= _plans(BASES, [base.plan for _, base in bases], trainer.actor.world.n)
    arrays[BASES + "value_s"] = np.array([value_s for value_s, _ in bases], np.float64)
    arrays |= _plans("standing.", [trainer.plan], trainer.actor.world.n)
    facts = {
        "search": search.facts,
        "budget": {"evaluations": trainer.search.budget.evaluations, "seconds": trainer.search.budget.seconds},
        "clock": trainer.clock.state(),
        "rng": trainer.rng.bit_generator.state,
        "plan_s": trainer.plan_s if np.isfinite(trainer.plan_s) else None,
        "boldness": trainer.step_scale,
        "updates": trainer.updates,
        "idle": trainer.idle,
    }
    return Snapshot(arrays, facts)


def take_up(trainer: Trainer, state: Snapshot) -> None:
    """Bring a new trainer of the same search to a state; timelines that were asked for before count no more.

    Raises:
        UsageError: the parameters are those of another policy.
    """
    arrays, facts = state.arrays, state.facts
    trainer.search.resume(Snapshot(state.part(SEARCH), facts["search"]))
    trainer.actor.policy.load(state.part(POLICY))
    load_moments(trainer.optimiser, state.part(ADAM))
    torch.default_generator.set_state(torch.tensor(arrays["torch_rng"]))
    trainer.rng.bit_generator.state = facts["rng"]
    trainer.plan_s = np.inf if facts["plan_s"] is None else facts["plan_s"]
    trainer.step_scale, trainer.updates, trainer.idle = facts["boldness"], facts["updates"], facts["idle"]
    trainer.clock = BudgetClock.resumed(trainer.search, facts["clock"], facts["budget"])
    names = trainer.search.problem.topology.names
    standing = _placements(state.part("standing."), names)
    trainer.plan = standing[0] if standing else None
    bases = state.part(BASES)
    trainer.bases.known = {
        placement.digest(): (value_s, trainer.bases.made(value_s, placement, counted=False))
        for value_s, placement in zip(bases["value_s"].tolist(), _placements(bases, names), strict=True)
    }


def _plans(prefix: str, placements: list[Placement | None], n: int) -> Arrays:
    """Return arrays of placements; those that are None are left out."""
    known = [placement for placement in placements if placement is not None]
    unordered = np.full(n, np.nan)
    return {
        prefix + "device": stacked([placement.device for placement in known], n, np.int32),
        prefix + "priority": stacked(
            [unordered if placement.priority is None else placement.priority for placement in known], n, np.float64
        ),
    }


def _placements(arrays: Arrays, names: tuple[str, ...]) -> list[Placement]:
    return [
        Placement(device, names, None if np.isnan(priority).any() else priority)
        for device, priority in zip(arrays["device"], arrays["priority"], strict=True)
    ]
