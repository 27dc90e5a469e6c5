"""What `hsdag` gains by learning: beside the same without it, at equal evaluations and at equal time.

python -m benchmarks.agent_gain [test graphs of each family, 1 unless given] [seeds, 1 unless given] [methods]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.common import Figure, figure, say
from benchmarks.neural_list import ANNEALED, DEVICES, EVALUATIONS, value_s
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.settings.registry import build_implementation
from policy.place.learned.hsdag.hsdag import Hsdag
from runtime.zoo.workloads.placeto import FAMILIES, split

BUDGETS = {"evaluations": Budget(EVALUATIONS), "seconds": Budget(seconds=3.0)}
COLD: Mapping[str, Any] = {"warm": 0.0}
DRAWS: Mapping[str, Any] = {"drawing": 1.0, "least_gain": 0.0}  # nothing is annealed
LEARNED, UNGROUPED, ALONE = "learned", "ungrouped", ", draws alone"
PARTS = {**Hsdag.controls, **Hsdag.ablations}
CONTROLS = {name: {**COLD, **values} for name, values in PARTS.items()} | {UNGROUPED: COLD}
COLD_ONES = {LEARNED: COLD, **CONTROLS}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: ("hsdag", values) for name, values in COLD_ONES.items()},
    **{name + ALONE: ("hsdag", {**values, **DRAWS}) for name, values in COLD_ONES.items()},
    "warm": ("hsdag", {}),
    "neural_list": ("neural_list", {}),
    "portfolio": ("portfolio", {"solvable": 0}),
    "anneal": ("anneal", {}),
}


def figures(graphs: int, seeds: int, names: Collection[str]) -> Iterator[Figure]:
    """Yield times over those of `anneal` with 10,000 evaluations, and of what learns over each control's."""
    methods = {name: method for name, method in METHODS.items() if name.partition(",")[0] in names}
    found: dict[tuple[str, str], list[float]] = {}
    for at, case in enumerate(cases(graphs)):
        annealed_s = value_s(case, "anneal", {}, Budget(ANNEALED))
        for name, (placer, values) in methods.items():
            chosen = ungrouped(case) if name.startswith(UNGROUPED) else case
            if at == 0:  # kernels are compiled and loaded before any clock runs
                value_s(chosen, placer, values, Budget(50))
            for label, budget in BUDGETS.items():
                ratios = [value_s(chosen, placer, values, budget, seed=seed) / annealed_s for seed in range(seeds)]
                found.setdefault((label, name), []).extend(ratios)
    for (label, name), ratios in found.items():
        how = f"{len(ratios)} searches of Placeto's families, T2, {BUDGETS[label]}"
        key = f"{label}.{name.replace(', ', '.').replace(' ', '_')}"
        yield figure(f"hsdag.{key}", statistics.geometric_mean(ratios), "", f"{how}, over anneal with {ANNEALED}")
        control, comma, rest = name.partition(",")
        if control in CONTROLS and (learned := found.get((label, LEARNED + comma + rest))):
            gain = statistics.geometric_mean([a / b for a, b in zip(learned, ratios, strict=True)])
            yield figure(f"hsdag.gain.{key}", gain, "", f"{how}, learned over it", target=1.0)


def cases(graphs: int) -> Iterator[LoadedScenario]:
    """Yield test graphs on equal devices, with what a policy needs."""
    for family in FAMILIES:
        for index in split(family, seed=0)[2][:graphs]:
            for devices in DEVICES:
                yield load(Scenario(f"zoo:{family}?index={index}", f"equal:{devices}")).with_policy()


def ungrouped(case: LoadedScenario) -> LoadedScenario:
    """Return a case in which parsing leaves every operation alone."""
    if case.problem.policy is None:
        return case
    policy = replace(case.problem.policy, grouper=build_implementation("group", "identity"))
    return replace(case, problem=replace(case.problem, policy=policy))


if __name__ == "__main__":
    graphs, seeds = (int(argument) for argument in (*sys.argv[1:3], "1", "1")[:2])
    say(figures(graphs, seeds, sys.argv[3:] or {name.partition(",")[0] for name in METHODS}))
