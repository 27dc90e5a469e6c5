"""A policy trained on some graphs of Placeto's families and tuned on others, against annealing with ten times as much.

python -m benchmarks.placeto_tuned [graphs of each family to test on, 12 at most]
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.common import Figure, figure, say
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.registry import build
from runtime.workloads.placeto import FAMILIES, split

DEVICES = (4, 8)
TRAINED_ON = 4  # graphs of each family, each with each number of devices
EVALUATIONS = 1000
ANNEALED = 10_000


@dataclass(slots=True)
class Shelf:
    """Keeps the policy published last, and nothing of searches."""

    policy: Snapshot | None = None

    def load(self) -> Snapshot | None:
        """Return None: every search is new."""
        return None

    def save(self, state: Snapshot) -> None:
        """Keep nothing."""

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy."""
        self.policy = policy


def figures(count: int) -> Iterator[Figure]:
    """Yield geometric means of times over those of annealing with 10,000 evaluations."""
    shelf = Shelf()
    for family, index, devices in instances(0, TRAINED_ON):
        value_s(case_of(family, index, devices), "hsdag", EVALUATIONS, {}, shelf)
    policy = shelf.policy
    ratios: dict[str, list[float]] = {}
    for family, index, devices in instances(2, count):
        case = case_of(family, index, devices)
        annealed_s = value_s(case, "anneal", ANNEALED, {})
        for name, placer, params, learned in (
            ("anneal", "anneal", {}, None),
            ("portfolio", "portfolio", {"solvable": 0}, None),
            ("cold", "hsdag", {"warm": 0.0}, None),
            ("warm", "hsdag", {}, None),
            ("tuned_cold", "hsdag", {"warm": 0.0}, policy),
            ("tuned", "hsdag", {}, policy),
        ):
            found_s = value_s(case, placer, EVALUATIONS, params, Shelf(learned))
            for group in (name, f"{name}.{family}"):
                ratios.setdefault(group, []).append(math.log(found_s / annealed_s))
    for name, logs in ratios.items():
        target = 1.0 if name == "tuned" else None
        how = (
            f"geometric mean over {len(logs)} test graphs with {DEVICES} devices, T2: {EVALUATIONS} evaluations over "
            f"anneal with {ANNEALED}; tuned: begun with a policy trained on {TRAINED_ON * len(FAMILIES)} other graphs"
        )
        yield figure(f"placeto_tuned.{name}", math.exp(statistics.mean(logs)), "", how, target=target)


def instances(part: int, count: int) -> Iterator[tuple[str, int, int]]:
    """Yield (family, index, devices) of `count` graphs of each family; part: 0 to learn from, 2 to test on."""
    for i in range(count):
        for family in FAMILIES:
            for devices in DEVICES:
                yield family, split(family, seed=0)[part][i], devices


def case_of(family: str, index: int, devices: int) -> LoadedScenario:
    """Return one graph on equal devices, with what a policy needs."""
    return load(Scenario(f"zoo:{family}?index={index}", f"equal:{devices}")).with_policy()


def value_s(
    case: LoadedScenario, placer: str, evaluations: int, params: Mapping[str, float], shelf: Shelf | None = None
) -> float:
    """Return the seconds of the best placement found; a shelf lends its policy, and takes the new one."""
    problem = case.problem
    if shelf is not None and problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, learned=shelf.policy, checkpointer=shelf))
    placed = build("place", placer, params)
    answer = placed.place(problem, case.simulator(), Budget(evaluations), seed=0, progress=lambda _: None)
    value: float = answer.value_s
    return value


if __name__ == "__main__":
    say(figures(int(sys.argv[1]) if len(sys.argv) > 1 else 12))
