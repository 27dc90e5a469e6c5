"""What the portfolio reaches on Placeto's families with ever less memory, and whether more of it makes answers worse.

python -m benchmarks.memory_caps [graphs of each family]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.common import Figure, figure, say
from pipeline.bench.league.arena import with_memory_share
from pipeline.core.errors import DeviceError
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.settings import registry

FAMILIES = ("nas-cnn", "nas-nmt", "nas-rnn")
SHARES = (1.05, 1.1, 1.5, math.inf)  # memory of a device over an equal share of what one device alone would hold
BUDGET_S = 20.0


def figures(graphs: int = 1) -> Iterator[Figure]:
    """Yield what is reached at every share, and the worst ratio of a looser one to the best of the tighter ones."""
    worst = 0.0
    for family in FAMILIES:
        for number in range(graphs):
            name = f"{family}?index={number}"
            case = load(Scenario(f"zoo:{name}", "equal:4", level="T2"))
            compile_kernels(("portfolio",), "listsched", case.graph.n, say=lambda _: None)
            tighter_s = math.inf
            for share in SHARES:
                value_s = _value_s(_within(case, share))
                found = value_s * 1e3 if math.isfinite(value_s) else None
                label = "unlimited" if math.isinf(share) else f"{share:g}"
                yield figure(f"memory_caps.{name}.{label}", found, "ms", f"{case.graph.n} operations, {BUDGET_S:g} s")
                if math.isfinite(tighter_s):
                    worst = max(worst, value_s / tighter_s)
                tighter_s = min(tighter_s, value_s)
    yield figure("memory_caps.looser_over_tighter", worst, "", "worst of all families", target=1.01)


def _within(case: LoadedScenario, share: float) -> LoadedScenario:
    """Return the case on devices that hold a share of an equal part of what one device alone would hold."""
    return replace(case, problem=case.problem.on(topology=with_memory_share(case.problem, "T2", share)))


def _value_s(case: LoadedScenario) -> float:
    """Return the seconds of the best placement; inf if none is found that fits."""
    placer = registry.build_implementation("place", "portfolio")
    budget = Budget(seconds=BUDGET_S)
    try:
        return float(placer.place(case.problem, case.simulator(), budget, seed=0, progress=lambda _: None).value_s)
    except DeviceError:
        return math.inf


if __name__ == "__main__":
    say(figures(*map(int, sys.argv[1:])))
