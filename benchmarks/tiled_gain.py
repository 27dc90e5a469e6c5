"""Tiled matrix programs: proven optima, and what annealing and priorities gain over list schedulers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.common import Figure, figure, say
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search

LEVELS = ("T0", "T1-bare")
LISTS = ("heft", "cpop", "peft", "etf", "critical_path")
EVALUATIONS = 100_000
SEEDS = range(3)
PROVING_S = 120.0


def figures() -> Iterator[Figure]:
    """Yield optima, proofs and gains."""
    for level in LEVELS:
        for name in ("chainmm", "ffnn"):
            found = search(_scenario(name, level), Effort("portfolio", 20.0))
            how = f"portfolio on zoo:{name}, {level}: {found['value_s'] * 1e3:.6g} ms by {found['found_by']}"
            yield figure(f"tiled_gain.{name}.{level}.gap", found["gap"], "", how, target=1e-4)
            # A proof of the solver is one for all orders: the placement it belongs to needs its own.
            found = search(_scenario(name, level, ordered=True), Effort("cpsat", PROVING_S))
            how = f"cpsat alone, with priorities, {found['operations']} operations, bound by {found['bound_by']}"
            proof_s = found["seconds"] if found["proven"] else None
            yield figure(f"tiled_gain.{name}.{level}.cpsat", proof_s, "s", how, target=PROVING_S)
        for name in ("llama-block", "llama-layer"):
            yield from gains(name, level)


def gains(name: str, level: str) -> Iterator[Figure]:
    """Yield how far annealing stays below the best list scheduler run FIFO, and priorities below that."""
    lists = {rule: search(_scenario(name, level), Effort(rule, evaluations=100))["fifo_s"] for rule in LISTS}
    rule = min(lists, key=lambda known: lists[known])
    placed = [_annealed(name, level, seed, ordered=False) for seed in SEEDS]
    ordered = [_annealed(name, level, seed, ordered=True) for seed in SEEDS]
    how = f"mean of {len(SEEDS)} seeds, {EVALUATIONS} evaluations each; best list scheduler {rule}, run FIFO"
    share = statistics.mean(placed) / lists[rule]
    yield figure(f"tiled_gain.{name}.{level}.anneal", share, "of the list", how, target=0.75)
    share = statistics.mean(ordered) / statistics.mean(placed)
    yield figure(f"tiled_gain.{name}.{level}.order", share, "of placement", how, target=0.95)


def _annealed(name: str, level: str, seed: int, *, ordered: bool) -> float:
    scenario = _scenario(name, level, ordered=ordered, seed=seed)
    return float(search(scenario, Effort("anneal", evaluations=EVALUATIONS))["value_s"])


def _scenario(name: str, level: str, *, ordered: bool = False, seed: int = 0) -> Scenario:
    return Scenario(f"zoo:{name}", "equal:4", level=level, memory=False, ordered=ordered, seed=seed)


if __name__ == "__main__":
    say(figures())
