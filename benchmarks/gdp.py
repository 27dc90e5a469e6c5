"""GDP on the twelve workloads of its first table, beside METIS, experts, HDP and controls that do not learn.

python -m benchmarks.gdp [--quick] [--evaluations N] [--only WORKLOAD] [--method NAME] [--journal FILE] [--together]

Every cell is written into the journal when it is done and is not made again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Figure, figure, say
from pipeline.core.graph import Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Placer, Simulator
from pipeline.offline.scenario import Scenario, load
from pipeline.placing.recipes import for_placer
from pipeline.registry import build, table
from pipeline.shared.json_lines import append_line, load_lines
from policy.place.gdp.gdp import Gdp
from policy.place.gdp.together import learn_together
from policy.place.search import Search

EVALUATIONS, QUICK = 1000, 64
WORKLOADS: Mapping[str, int] = {  # and their devices, in the order of the paper's table
    "rnnlm2": 2,
    "rnnlm4": 4,
    "gnmt2": 2,
    "gnmt4": 4,
    "gnmt8": 8,
    "txl2": 2,
    "txl4": 4,
    "txl8": 8,
    "inception-v3-training": 2,
    "amoebanet": 4,
    "wavenet2": 2,
    "wavenet4": 4,
}
QUICK_ONES = ("txl2", "inception-v3-training", "wavenet2")
STILL = 1e-12  # a step size at which nothing is learned
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "expert": ("expert", {}),
    "metis": ("metis", {}),
    "random": ("random", {}),
    "hdp": ("hdp", {}),
    "never_learning": ("gdp", {"learning_rate": STILL, "epochs": 1, "minibatches": 1}),
    "gdp": ("gdp", {}),
    "sgdp": ("sgdp", {}),
}
BASELINES = ("metis", "hdp", "expert", "random", "never_learning")
MIX: Mapping[str, Any] = {"minibatches": 1, "baseline": "batch"}  # of the policy of several graphs
SHOT = 17  # evaluations of a zero-shot answer: the likeliest placement and 16 draws


@dataclass(frozen=True, slots=True)
class PlacedWorkload:
    """A workload on its devices as one placer gets it. grouping: the workload's operations as the problem's."""

    problem: Problem
    grouping: Grouping
    simulator: Simulator


def figures(
    workloads: Sequence[str], methods: Sequence[str], evaluations: int, journal: Path, *, together: bool
) -> Iterator[Figure]:
    """Yield seconds per step of every workload and method, and how often GDP is ahead of whom."""
    known = {row["cell"]: row for row in load_lines(journal)}
    value_s: dict[tuple[str, str], float] = {}
    for workload in workloads:
        for method in methods:
            placer, values = METHODS[method]
            if placer not in table("place"):
                yield figure(f"gdp.{workload}.{method}", None, "s", f"there is no placer {placer} here")
                continue
            row = _once(known, journal, f"{workload} {method} {evaluations}", workload, placer, values, evaluations)
            value_s[workload, method] = row["value_s"]
            yield _told(f"gdp.{workload}.{method}", row)
    for ours in ("gdp", "sgdp"):
        for other in BASELINES:
            both = [w for w in workloads if {(w, ours), (w, other)} <= value_s.keys()]
            pairs = [(value_s[w, ours], value_s[w, other]) for w in both]
            if pairs:
                yield from _ahead(f"gdp.{ours}_over_{other}", pairs)
    if together:
        yield from _together(workloads, evaluations, known, journal)


def _ahead(name: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Figure]:
    ahead = sum(mine < other for mine, other in pairs)
    ratio = math.exp(sum(math.log(mine / other) for mine, other in pairs) / len(pairs))
    yield figure(name, ratio, "", f"geometric mean of times over {len(pairs)} workloads; ahead on {ahead}")


def _once(
    known: Mapping[str, Mapping[str, Any]],
    journal: Path,
    cell: str,
    workload: str,
    placer: str,
    values: Mapping[str, Any],
    evaluations: int,
) -> Mapping[str, Any]:
    """Return the row of a cell, from the journal if it is there."""
    if cell in known:
        return known[cell]
    row = {"cell": cell, **searched(workload, placer, values, evaluations)}
    append_line(journal, row)
    return row


def _told(name: str, row: Mapping[str, Any]) -> Figure:
    how = f"{row['evaluations']} evaluations, {row['seconds']:.0f} s, {row['nodes']} nodes, found by {row['found_by']}"
    return figure(name, row["value_s"], "s", f"{how}; {row['devices']} P100s, T2, FIFO")


def searched(
    workload: str, placer: str, values: Mapping[str, Any], evaluations: int, learned: Snapshot | None = None
) -> dict[str, Any]:
    """Return what a placer finds, and what it spent."""
    built: Placer = build("place", placer, values)
    placed = placed_workload(workload, built)
    problem = placed.problem
    if learned is not None and problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, learned=learned))
    begun = time.monotonic()
    answer = built.place(problem, placed.simulator, Budget(evaluations), seed=0, progress=lambda _: None)
    return _row(workload, answer, placed, time.monotonic() - begun)


def _row(workload: str, answer: Answer, placed: PlacedWorkload, seconds: float) -> dict[str, Any]:
    return {
        "value_s": answer.value_s,
        "found_by": answer.best.found_by,
        "evaluations": placed.simulator.evaluations,
        "seconds": seconds,
        "nodes": placed.problem.graph.n,
        "devices": WORKLOADS[workload],
    }


def placed_workload(workload: str, placer: Placer) -> PlacedWorkload:
    """Return a workload as a placer gets it, with a simulator of its own."""
    case = load(Scenario(f"zoo:{workload}", f"p100:{WORKLOADS[workload]}"))
    alone = Grouping.identity(case.graph.n)
    grouping, problem = for_placer(placer, case.problem, lambda: (alone, case.problem), seed=0)
    return PlacedWorkload(problem, grouping, case.simulator(grouping))


def _together(
    workloads: Sequence[str], evaluations: int, known: Mapping[str, Mapping[str, Any]], journal: Path
) -> Iterator[Figure]:
    """Yield GDP-batch on all workloads; and for each, zero-shot and fine-tuned by a policy of the other families."""
    yield from _batch(workloads, evaluations, "batch", known, journal)
    for family in dict.fromkeys(_family(workload) for workload in workloads):
        held_out = [w for w in workloads if _family(w) == family]
        others = [w for w in workloads if _family(w) != family]
        wanted = {f"{w} {mode} {evaluations}": (w, mode) for w in held_out for mode in ("zero_shot", "finetune")}
        if not others:
            continue
        policy = None
        for cell, (workload, mode) in wanted.items():
            if cell not in known:
                policy = policy or _learned(others, evaluations)[0]
                spent = SHOT if mode == "zero_shot" else evaluations
                row = {"cell": cell, **searched(workload, "gdp", {**MIX, "mode": mode}, spent, policy)}
                append_line(journal, row)
            else:
                row = dict(known[cell])
            yield _told(f"gdp.{workload}.{mode}", row)


def _batch(
    workloads: Sequence[str], evaluations: int, mode: str, known: Mapping[str, Mapping[str, Any]], journal: Path
) -> Iterator[Figure]:
    cells = {workload: f"{workload} {mode} {evaluations} of {len(workloads)}" for workload in workloads}
    found: Mapping[str, Mapping[str, Any]] = known
    if any(cell not in known for cell in cells.values()):
        found = {cells[w]: {"cell": cells[w], **row} for w, row in _learned(workloads, evaluations)[1].items()}
        for row in found.values():
            append_line(journal, row)
    for workload, cell in cells.items():
        yield _told(f"gdp.{workload}.{mode}", found[cell])


def _learned(workloads: Sequence[str], evaluations: int) -> tuple[Snapshot, dict[str, dict[str, Any]]]:
    """Return a policy learned on several workloads at once, and what was found for each on the way."""
    placer = Gdp(**MIX)
    placed = {workload: placed_workload(workload, placer) for workload in workloads}
    searches = {
        workload: Search(p.problem, p.simulator, Budget(evaluations), lambda _: None, author="gdp")
        for workload, p in placed.items()
    }
    begun = time.monotonic()
    policy = learn_together(placer, list(searches.values()), seed=0)
    seconds = (time.monotonic() - begun) / len(workloads)
    return policy, {w: _row(w, searches[w].answer(), placed[w], seconds) for w in workloads}


def _family(workload: str) -> str:
    return workload.rstrip("0123456789")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gdp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"three small workloads, {QUICK} evaluations")
    parser.add_argument("--evaluations", type=int, help=f"of every method; {EVALUATIONS} unless given")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="this workload alone; repeatable")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="this method alone; repeatable")
    parser.add_argument("--journal", type=Path, default=Path("benchmarks/out/gdp.jsonl"), help="file of cells")
    parser.add_argument("--together", action="store_true", help="one policy on several graphs, and zero-shot, as well")
    chosen = parser.parse_args()
    chosen.journal.parent.mkdir(parents=True, exist_ok=True)
    workloads = chosen.only or (QUICK_ONES if chosen.quick else tuple(WORKLOADS))
    evaluations = chosen.evaluations or (QUICK if chosen.quick else EVALUATIONS)
    methods = chosen.method or tuple(METHODS)
    say(figures(workloads, methods, evaluations, chosen.journal, together=chosen.together))


if __name__ == "__main__":
    main()
