"""Policies learned on train graphs of the protocol, which no cell is about: graph after graph, each step on file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.bench.cells import BenchCell, LearnedPolicy
from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.entries import LeagueEntry
from pipeline.bench.league.protocol import LeagueInstance
from pipeline.bench.methods import prepared
from pipeline.core.errors import PlacewrightError
from pipeline.core.learning import Snapshot
from pipeline.core.params import canonical
from pipeline.core.problem import Budget, Progress
from pipeline.progress.interruption import run_interruptible
from pipeline.shared import payload
from pipeline.store.checkpoint import FolderCheckpointer, read_policy
from pipeline.store.store import json_digest, write_json

VERSION = 1  # raised when policies come out differently for equal settings
RECORD = "lesson.json"


@dataclass(frozen=True, slots=True)
class PolicyShelf:
    """A `Checkpointer` that keeps what is published, and nothing of searches: every policy is whole or none."""

    checkpointer: FolderCheckpointer

    def load(self) -> Snapshot | None:
        """Return None: every search is new."""
        return None

    def save(self, state: Snapshot) -> None:
        """Keep nothing."""

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy in place of the one before."""
        self.checkpointer.publish(policy)


def learn_policy_interruptible(
    entry: LeagueEntry, instances: Sequence[LeagueInstance], budget: tuple[int, float | None], folder: Path
) -> LearnedPolicy | None:
    """Return what `learn_policy` does, on another thread, so that an interrupt ends it at once.

    budget: evaluations and seconds.
    """
    return run_interruptible(lambda check: learn_policy(entry, instances, Budget(*budget), folder, check))


def learn_policy(
    entry: LeagueEntry, instances: Sequence[LeagueInstance], budget: Budget, folder: Path, check: Callable[[], None]
) -> LearnedPolicy | None:
    """Return what a placer learns on the instances one after another; None if it publishes no policy.

    budget: of each instance. Every step has a folder of its own, whose name is the digest of all that decided it: an
    interrupted training goes on with its step, and a changed placer begins from scratch. check: raises where the run is
    to end.

    Raises:
        PlacewrightError: what the placer says of an instance that it cannot learn from.
    """
    known: LearnedPolicy | None = None
    for instance in instances:
        known = _learn_step(entry, instance, budget, known, folder, check)
        if known is None:
            return None
    return known


def _learn_step(
    entry: LeagueEntry,
    instance: LeagueInstance,
    budget: Budget,
    before: LearnedPolicy | None,
    folder: Path,
    check: Callable[[], None],
) -> LearnedPolicy | None:
    """Return what is known after one more instance."""
    case = load_arena(instance).case
    placer = entry.method.build()
    cell = BenchCell(case, entry.method, placer, budget.evaluations, 0, seconds=budget.seconds, policy=before)
    key = json_digest([VERSION, cell.settings])
    step = folder / f"{entry.method.placer}-{key[:16]}"
    on_file = _on_file(step, key)
    if on_file is not None:
        return on_file
    start_s = time.monotonic()
    grouping, problem = prepared(entry.method, placer, case, seed=0)
    if problem.policy is None:
        return None
    shelf = PolicyShelf(FolderCheckpointer(step, key))
    learned = None if before is None else before.policy
    problem = replace(problem, policy=replace(problem.policy, learned=learned, checkpointer=shelf))
    hook = partial(_hook, check)
    placer.place(problem, case.bind(grouping), budget, seed=0, progress=hook)
    seconds = time.monotonic() - start_s + (0.0 if before is None else before.seconds)
    record = {"key": key, "placer": entry.method.placer, "params": canonical(placer)}
    write_json(step / RECORD, {**record, "instance": instance.name, "seconds": seconds})
    return _on_file(step, key)


def _on_file(step: Path, key: str) -> LearnedPolicy | None:
    """Return the policy of a step that was finished."""
    try:
        record: dict[str, Any] = payload.read_json(step / RECORD)
        if record["key"] != key:
            return None
        return LearnedPolicy(key, read_policy(step), record["seconds"], step)
    except (OSError, ValueError, KeyError, PlacewrightError):  # absent or torn: it is learned from scratch
        return None


def _hook(check: Callable[[], None], _: Progress) -> None:
    check()
