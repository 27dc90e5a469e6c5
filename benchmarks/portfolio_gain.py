"""What the portfolio reaches in 20 s on tiled matrix programs and on Placeto's families, beside another version of it.

python -m benchmarks.portfolio_gain [folder of the other version] [seeds]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Figure, figure, say

BUDGET_S = 20.0
TILED = [
    (f"zoo:{name}", "equal:4", level) for name in ("llama-block", "llama-layer") for level in ("T0", "T1-bare", "T2")
]
SOLVED = [("zoo:chainmm", "equal:4", "T2"), ("zoo:ffnn", "equal:4", "T0"), ("zoo:ffnn", "equal:4", "T2")]
PLACETO = [(f"zoo:{name}", f"equal:{p}", "T2") for name in ("nas-cnn", "nas-nmt", "nas-rnn") for p in (4, 8)]
CASES = TILED + SOLVED + PLACETO
HERE = Path(__file__).resolve().parent.parent

CHILD = """
import sys
from pipeline.offline.search import Effort, search
from pipeline.offline.scenario import Scenario

graph, topology, level, seed, placer, budget = sys.argv[1:]
limit = {"budget_s": float(budget)} if placer == "portfolio" else {"evaluations": 100}
print(search(Scenario(graph, topology, level=level, seed=int(seed)), Effort(placer, **limit))["value_s"])
"""
COMPILED = ("heft", "expert", "cpop", "m_topo", "peft", "etf", "metis", "m_sct", "anneal", "portfolio")


def figures(other: Path | None = None, seeds: int = 3) -> Iterator[Figure]:
    """Yield milliseconds, and their ratio to those of the other version if there is one; the two run in turn."""
    trees = [HERE] if other is None else [other, HERE]
    for tree in trees:
        for placer in COMPILED:  # what is compiled now costs no time later
            _value_s(tree, ("zoo:llama-block", "equal:4", "T2"), 0, placer, 1.0)
    found: dict[tuple[str, Path], list[float]] = {}
    for seed in range(seeds):
        for case in CASES:
            for tree in trees:
                value_s = _value_s(tree, case, seed, "portfolio", BUDGET_S)
                found.setdefault((_name(case), tree), []).append(value_s)
                print(f"seed {seed}, {_name(case)}, {tree.name}: {value_s * 1e3:.6g} ms", file=sys.stderr, flush=True)
    ratios = []
    for name in map(_name, CASES):
        value_s, spread = _summary(found[name, HERE])
        yield figure(f"portfolio_gain.{name}", value_s * 1e3, "ms", f"{BUDGET_S:g} s; {spread}")
        if other is not None:
            before_s, before = _summary(found[name, other])
            ratios.append(value_s / before_s)
            yield figure(f"portfolio_gain.{name}.ratio", ratios[-1], "", f"over {before}")
    if ratios:
        how = f"geometric mean over {len(ratios)} cases"
        yield figure("portfolio_gain.ratio", statistics.geometric_mean(ratios), "", how, target=1.0)


def _name(case: tuple[str, str, str]) -> str:
    graph, topology, level = case
    return ".".join((graph.removeprefix("zoo:"), topology.replace(":", ""), level))


def _summary(values_s: list[float]) -> tuple[float, str]:
    """Return the median of the seeds, and all of them in words."""
    listed = ", ".join(f"{value_s * 1e3:.6g}" for value_s in values_s)
    return statistics.median(values_s), f"median of {listed} ms"


def _value_s(tree: Path, case: tuple[str, str, str], seed: int, placer: str, budget_s: float) -> float:
    """Return the seconds of the best placement that a version of the project finds in a process of its own."""
    command = [sys.executable, "-c", CHILD, *case, str(seed), placer, str(budget_s)]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return float(subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    say(figures(Path(arguments[0]).resolve() if arguments else None, int(arguments[1]) if len(arguments) > 1 else 3))
