"""Placeto: the time of an episode, what it finds against random placements and HDP, and what it knows of unseen graphs.

python -m benchmarks.placeto [graphs of each family] [evaluations] [families, separated by commas]
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.common import Figure, figure, say, timed
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.settings.registry import build_implementation
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Search
from policy.place.published.placeto.placeto import Placeto, published
from runtime.zoo.workloads.placeto import FAMILIES, split

DEVICES = 4
TRAINED_ON = 4  # graphs of a family that a policy for graphs it has not seen learns from, together
LEARNER: Mapping[str, Any] = {"workers": 1}  # as many updates as the evaluations allow
# HDP's networks are an eighth as wide as published, so that it is done in minutes; both of its step sizes.
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "random": ("random", {}),
    "anneal": ("anneal", {}),
    "placeto": ("placeto", LEARNER),
    "placeto.best": ("placeto", {**LEARNER, "initial": "best"}),
    "placeto.ppo": ("placeto", {**LEARNER, "algorithm": "ppo"}),
    "placeto.gnn": ("placeto", {**LEARNER, "network": "gnn"}),
    "uniform": ("placeto", {**LEARNER, "control": "uniform"}),
    "untrained": ("placeto", {**LEARNER, "control": "frozen"}),
    "hdp": ("hdp", {"hidden": 64}),
    "hdp.tuned": ("hdp", {"hidden": 64, "learning_rate": 1e-3, "seconds": False}),
    "rnn": ("rnn", {}),
}


def figures(count: int, evaluations: int, families: Sequence[str]) -> Iterator[Figure]:
    """Yield the seconds of an episode, and times of placements over the best single device's, with seconds spent."""
    for family in families:
        yield from family_figures(family, count, evaluations)
    yield from episode_figures()


def episode_figures() -> Iterator[Figure]:
    """Yield the seconds of an episode of about 500 nodes, its simulations included, and of learning from it."""
    case = case_of("nas-rnn", 3)
    search = Search(case.problem, case.simulator(), Budget(10**9), lambda _: None)
    for workers in (1, 4):
        with torch_seeded(0):
            trainer = Placeto(workers=workers).trainer([search], seed=0)
            process = trainer.processes[0]
            process.episodes(workers, trainer.rng, greedy=False)  # the first one compiles the simulator
            spent_s, episodes = timed(lambda: process.episodes(workers, trainer.rng, greedy=False))  # noqa: B023
            if episodes is None:
                raise RuntimeError("the budget is endless")
            lesson = trainer.credited(0, episodes)
            learning_s, _ = timed(lambda: trainer.gradient([lesson], beta=0.1, clip=0.0))  # noqa: B023
        how = f"{process.graph.n} nodes, {DEVICES} devices, T1, one thread, {workers} workers at a time; per episode"
        yield figure(f"placeto.episode.{workers}", spent_s / workers, "s", how, target=0.5 if workers == 4 else None)
        yield figure(f"placeto.gradient.{workers}", learning_s / workers, "s", how)


def family_figures(family: str, count: int, evaluations: int) -> Iterator[Figure]:
    """Yield what methods find on test graphs of one family, and what a policy of other graphs of it does."""
    train, _, test = split(family, seed=0)
    begun_s = time.perf_counter()
    policy = trained([case_of(family, index) for index in train[:TRAINED_ON]], evaluations)
    yield figure(
        f"placeto.{family}.training",
        time.perf_counter() - begun_s,
        "s",
        f"on {TRAINED_ON} graphs together, {evaluations} evaluations each",
    )
    cases = [case_of(family, index) for index in test[:count]]
    for name, (placer, params) in METHODS.items():
        yield from _rows(family, name, [found(case, placer, params, evaluations) for case in cases], evaluations)
    frozen = {**LEARNER, "control": "frozen"}
    for name, params, most in (
        ("zero_shot", frozen, 0),  # one pass, the likeliest device in every step
        ("zero_shot.sampled", frozen, evaluations),
        ("fine_tuned", LEARNER, evaluations),
    ):
        rows = [found(case, "placeto", params, most or case.graph.n + 1 + DEVICES, policy) for case in cases]
        yield from _rows(family, name, rows, most)


def _rows(family: str, name: str, rows: list[tuple[float, float, int]], evaluations: int) -> Iterator[Figure]:
    ratio = math.exp(statistics.mean(math.log(ratio) for ratio, _, _ in rows))
    spent = statistics.mean(evaluations for _, _, evaluations in rows)
    how = f"{len(rows)} test graphs, {DEVICES} devices, T1; {spent:.0f} evaluations of {evaluations or 'one pass'}"
    yield figure(f"placeto.{family}.{name}", ratio, "", f"best time over the best single device's; {how}")
    yield figure(f"placeto.{family}.{name}.seconds", statistics.mean(s for _, s, _ in rows), "s", how)


def trained(cases: Sequence[LoadedScenario], evaluations: int) -> Snapshot:
    """Return a policy that one network has learned on several graphs, with so many evaluations each."""
    params = Placeto(**{**LEARNER, "workers": len(cases)})
    searches = [Search(case.problem, case.simulator(), Budget(evaluations), lambda _: None) for case in cases]
    with torch_seeded(0):
        trainer = params.trainer(searches, seed=0)
        while not trainer.done:
            trainer.update()
    return published(trainer, params)


def case_of(family: str, index: int) -> LoadedScenario:
    """Return one graph on equal devices under Placeto's simulator, with what a policy needs."""
    return load(Scenario(f"zoo:{family}?index={index}", f"equal:{DEVICES}", level="T1")).with_policy()


def found(
    case: LoadedScenario, placer: str, params: Mapping[str, Any], evaluations: int, learned: Snapshot | None = None
) -> tuple[float, float, int]:
    """Return the best time over that of the best single device, the seconds that took, and the evaluations."""
    problem, simulator = case.problem, case.simulator()
    if problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, learned=learned))
    alone = simulator.simulate(np.repeat(np.arange(DEVICES, dtype=np.int32)[:, None], case.graph.n, axis=1))
    search_s, answer = timed(
        lambda: build_implementation("place", placer, params).place(
            problem, case.simulator(), Budget(evaluations), seed=0, progress=lambda _: None
        )
    )
    return answer.value_s / float(alone.value_s.min()), search_s, answer.evaluations or 0


if __name__ == "__main__":
    chosen = sys.argv[3].split(",") if len(sys.argv) > 3 else FAMILIES
    graphs, asked = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 4), (2, 4000)))
    say(figures(graphs, asked, chosen))
