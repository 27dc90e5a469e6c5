"""What `hsdag` gains by learning: beside the same without it, at equal evaluations and at equal time.

python -m benchmarks.hsdag [test graphs of each family, 1 unless given] [seeds, 1 unless given]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.common import Figure, figure, say
from benchmarks.neural_list import ANNEALED, DEVICES, EVALUATIONS, value_s
from pipeline.core.problem import Budget
from pipeline.offline.scenario import Scenario, load
from policy.place.agent.hsdag import Hsdag
from runtime.workloads.placeto import FAMILIES, split

SECONDS = 3.0
COLD: Mapping[str, Any] = {"warm": 0.0}
LEARNED = "learned"
CONTROLS = {name: {**COLD, **values} for name, values in Hsdag.controls.items() if name != "cold"}
DRAWS: Mapping[str, Any] = {"drawing": 1.0}  # nothing is annealed
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    LEARNED: ("hsdag", COLD),
    **{name: ("hsdag", values) for name, values in CONTROLS.items()},
    f"{LEARNED}, draws alone": ("hsdag", {**COLD, **DRAWS}),
    **{f"{name}, draws alone": ("hsdag", {**values, **DRAWS}) for name, values in CONTROLS.items()},
    "warm": ("hsdag", {}),
    "neural_list": ("neural_list", {}),
    "portfolio": ("portfolio", {"solvable": 0}),
    "anneal": ("anneal", {}),
}


def figures(graphs: int, seeds: int) -> Iterator[Figure]:
    """Yield times over those of `anneal` with 10,000 evaluations, and of what learns over each control's."""
    found: dict[tuple[str, str], list[float]] = {}
    warmed_up = False
    budgets = {"evaluations": Budget(EVALUATIONS), "seconds": Budget(seconds=SECONDS)}
    for family in FAMILIES:
        for index in split(family, seed=0)[2][:graphs]:
            for devices in DEVICES:
                case = load(Scenario(f"zoo:{family}?index={index}", f"equal:{devices}")).with_policy()
                annealed_s = value_s(case, "anneal", {}, Budget(ANNEALED))
                if not warmed_up:  # kernels are compiled and loaded before any clock runs
                    warmed_up = bool([value_s(case, placer, values, Budget(50)) for placer, values in METHODS.values()])
                for name, (placer, values) in METHODS.items():
                    for label, budget in budgets.items():
                        for seed in range(seeds):
                            found_s = value_s(case, placer, values, budget, seed=seed)
                            found.setdefault((label, name), []).append(found_s / annealed_s)
    for (label, name), ratios in found.items():
        how = f"{len(ratios)} searches of Placeto's families, T2, {budgets[label]}"
        key = f"{label}.{name.replace(', ', '.').replace(' ', '_')}"
        yield figure(f"hsdag.{key}", statistics.geometric_mean(ratios), "", f"{how}, over anneal with {ANNEALED}")
        control, comma, draws = name.partition(", ")
        if control in CONTROLS:
            learned = found[label, f"{LEARNED}{comma}{draws}"]
            over = [a / b for a, b in zip(learned, ratios, strict=True)]
            yield figure(
                f"hsdag.gain.{key}", statistics.geometric_mean(over), "", f"{how}, learned over it", target=1.0
            )


if __name__ == "__main__":
    graphs, seeds = (int(argument) for argument in (*sys.argv[1:], "1", "1")[:2])
    say(figures(graphs, seeds))
