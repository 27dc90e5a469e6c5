"""GDP on the workloads of its first table and on RNNLM-8, beside METIS, experts, HDP and controls that do not learn.

python -m benchmarks.gdp [--quick] [--evaluations N] [--clusters N] [--only WORKLOAD] [--method NAME] [--together]
                         [--journal FILE] [--seeds N]

Seconds are medians over the seeds. Every cell is written into the journal when it is done and is not made again;
policies lie in a folder beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import CellJournal, Figure, figure, median_row, say
from pipeline.core.graph import Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Placer, Simulator
from pipeline.offline.scenario import Scenario, load
from pipeline.placing.recipes import for_placer
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.store.checkpoint import FolderCheckpointer, read_policy
from pipeline.store.store import json_digest
from policy.place.base.search import Search
from policy.place.published.gdp.batch import learn_jointly
from policy.place.published.gdp.sgdp import Sgdp

EVALUATIONS, QUICK = 1000, 64
TABLE: Mapping[str, int] = {  # and their devices, in the order of the paper's table
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
WORKLOADS: Mapping[str, int] = {**TABLE, "rnnlm8": 8}  # RNNLM-8 is one of SGDP's
DEEPEST = ("gnmt8", "rnnlm8")  # to be ahead of the expert on
BEHIND = 3  # workloads of the table, fewer than which METIS or HDP may be ahead on
QUICK_ONES = ("txl2", "inception-v3-training", "wavenet2")
STILL = 1e-12  # a step size at which nothing is learned
# HDP at a step size at which it learns, with networks an eighth as wide, so that it is done in minutes.
HDP: Mapping[str, Any] = {"hidden": 64, "learning_rate": 1e-3, "first_baseline": 0.0, "seconds": False}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "expert": ("expert", {}),
    "metis": ("metis", {}),
    "random": ("random", {}),
    "hdp": ("hdp", {}),
    "hdp_tuned": ("hdp", HDP),
    "never_learning": ("gdp", {"learning_rate": STILL, "epochs": 1, "minibatches": 1}),
    "gdp": ("gdp", {}),
    "sgdp": ("sgdp", {}),
    "sgdp_contraction": ("sgdp", {"cluster_by": "contraction", "clusters": 32}),
}
OURS = ("gdp", "sgdp", "sgdp_contraction")
UNSEEDED = ("expert",)
BASELINES = ("metis", "hdp", "hdp_tuned", "expert", "random", "never_learning")
WITH_POLICY = ("zero_shot", "finetune")
SHOT = 17  # evaluations of a zero-shot answer: the likeliest placement and 16 draws


def figures(cells: Cells, workloads: Sequence[str], methods: Sequence[str], *, together: bool) -> Iterator[Figure]:
    """Yield seconds per step of every workload and method, and how often GDP is ahead of whom."""
    value_s: dict[tuple[str, str], float] = {}
    for workload in workloads:
        for method in methods:
            if METHODS[method][0] in implementation_table("place"):
                row = cells.alone(workload, method)
                value_s[workload, method] = row["value_s"]
                yield _told(f"gdp.{workload}.{method}", row)
            else:
                yield figure(f"gdp.{workload}.{method}", None, "s", f"there is no placer {METHODS[method][0]} here")
    if together:
        for workload, mode, row in _together(cells, workloads):
            value_s[workload, mode] = row["value_s"]
            yield _told(f"gdp.{workload}.{mode}", row)
    for ours in (*OURS, "batch", *WITH_POLICY):
        for other in BASELINES:
            yield from _compared(value_s, ours, other, workloads)
        yield from _not_ahead(value_s, ours)


def _compared(
    value_s: Mapping[tuple[str, str], float], ours: str, other: str, workloads: Sequence[str]
) -> Iterator[Figure]:
    """Yield the mean ratio and how often ours is ahead on the paper's table, and the ratios to beat the expert by."""
    ratio = {w: value_s[w, ours] / value_s[w, other] for w in workloads if {(w, ours), (w, other)} <= value_s.keys()}
    listed = [ratio[w] for w in ratio if w in TABLE]
    if listed:
        how = f"geometric mean of times over {len(listed)} workloads; ahead on {sum(r < 1.0 for r in listed)}"
        yield figure(f"gdp.{ours}_over_{other}", statistics.geometric_mean(listed), "", how)
    for workload in DEEPEST:
        if other == "expert" and ours in OURS and workload in ratio:
            yield figure(f"gdp.{ours}_over_expert.{workload}", ratio[workload], "", "of times", target=1.0)


def _not_ahead(value_s: Mapping[tuple[str, str], float], ours: str) -> Iterator[Figure]:
    """Yield on how many workloads of the paper's table ours is not ahead of METIS and of HDP at either step size."""
    others = ("metis", "hdp", "hdp_tuned")
    known = [w for w in TABLE if {(w, name) for name in (ours, *others)} <= value_s.keys()]
    if known:
        behind = [w for w in known if value_s[w, ours] >= min(value_s[w, other] for other in others)]
        how = f"of {len(known)} workloads: {', '.join(behind) or 'none'}"
        yield figure(f"gdp.{ours}_not_ahead_of_metis_and_hdp", len(behind), "", how, target=BEHIND)


def _told(name: str, row: Mapping[str, Any]) -> Figure:
    how = f"{row['evaluations']} evaluations, {row['seconds']:.0f} s, {row['nodes']} nodes, found by {row['found_by']}"
    return figure(name, row["value_s"], "s", f"{how}; {row['devices']} P100s, T2, FIFO")


@dataclass(frozen=True, slots=True)
class PlacedWorkload:
    """A workload on its devices as one placer gets it. grouping: the workload's operations as the problem's."""

    problem: Problem
    grouping: Grouping
    simulator: Simulator

    @classmethod
    def of(cls, workload: str, placer: Placer, learned: Snapshot | None = None) -> PlacedWorkload:
        """Return a workload as a placer that begins with a policy gets it, with a simulator of its own."""
        case = load(Scenario(f"zoo:{workload}", f"p100:{WORKLOADS[workload]}"))
        if learned is not None:
            case = case.with_policy(learned=learned)
        alone = Grouping.identity(case.graph.n)
        grouping, problem = for_placer(placer, case.problem, lambda: (alone, case.problem), seed=0)
        return cls(problem, grouping, case.simulator(grouping))

    def row(self, answer: Answer, seconds: float) -> dict[str, Any]:
        """Return what is written down of an answer that took so many seconds to find."""
        return {
            "value_s": answer.value_s,
            "found_by": answer.best.found_by,
            "evaluations": self.simulator.evaluations,
            "seconds": seconds,
            "nodes": self.problem.graph.n,
            "devices": self.problem.topology.p,
        }


@dataclass(frozen=True, slots=True)
class Cells:
    """Everything that is searched, each cell once: what has been written down is not searched again.

    journal: file of the cells; policies lie in folders beside it. evaluations: of every method on every workload.
    clusters: about how many of each graph's nodes GDP places; None for as many as the placer would.
    seeds: of each cell.
    """

    journal: Path
    evaluations: int
    clusters: int | None
    seeds: int = 1

    def alone(self, workload: str, method: str) -> Mapping[str, Any]:
        """Return what a method finds for a workload, with the seed that finds the median."""
        placer, values = METHODS[method]
        seeds = 1 if method in UNSEEDED else self.seeds
        rows = [
            self._searched(workload, method, placer, values, self.evaluations, others=(), seed=seed)
            for seed in range(seeds)
        ]
        return median_row(rows, "value_s")

    def by_policy(self, workload: str, mode: str, others: Sequence[str]) -> Mapping[str, Any]:
        """Return what `sgdp` finds in a mode that begins with the policy of other workloads, with the median seed."""
        evaluations = SHOT if mode == "zero_shot" else self.evaluations
        rows = [
            self._searched(workload, mode, "sgdp", {"mode": mode}, evaluations, others=others, seed=seed)
            for seed in range(self.seeds)
        ]
        return median_row(rows, "value_s")

    def batch(self, workloads: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return what one policy of `sgdp` that learns on all workloads at once finds for each, with the median seed.

        The policies of the seeds learn one after another.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        for seed in range(self.seeds):
            names = {workload: self._name(workload, "batch", workloads, seed) for workload in workloads}
            if not self.rows.rows().keys() >= set(names.values()):
                self._learned(workloads, seed)
            known = self.rows.rows()
            for workload, name in names.items():
                found.setdefault(workload, []).append(known[name])
        return {workload: median_row(rows, "value_s") for workload, rows in found.items()}

    @property
    def rows(self) -> CellJournal:
        """Return what has been written down."""
        return CellJournal(self.journal)

    def _searched(
        self,
        workload: str,
        method: str,
        placer: str,
        values: Mapping[str, Any],
        evaluations: int,
        *,
        others: Sequence[str],
        seed: int,
    ) -> Mapping[str, Any]:
        def search() -> Mapping[str, Any]:
            built: Placer = build_implementation("place", placer, {**self._sizes(placer), **values})
            placed = PlacedWorkload.of(workload, built, self._policy(others, seed) if others else None)
            budget, begun = Budget(evaluations), time.monotonic()
            answer = built.place(placed.problem, placed.simulator, budget, seed=seed, progress=lambda _: None)
            return placed.row(answer, time.monotonic() - begun)

        return self.rows.found(self._name(workload, method, others, seed), search)

    def _policy(self, workloads: Sequence[str], seed: int) -> Snapshot:
        """Return the policy of some workloads, learned if it is not on file."""
        folder = self._folder(workloads, seed)
        if not folder.is_dir():
            self._learned(workloads, seed)
        return read_policy(folder)

    def _learned(self, workloads: Sequence[str], seed: int) -> None:
        """Learn one policy on workloads, and write down what it found for each of them."""
        sgdp = Sgdp() if self.clusters is None else Sgdp(nodes=self.clusters, clusters=self.clusters)
        placer = sgdp.tuned()
        placed = {workload: PlacedWorkload.of(workload, placer) for workload in workloads}
        searches = {
            workload: Search(p.problem, p.simulator, Budget(self.evaluations), lambda _: None, author="sgdp")
            for workload, p in placed.items()
        }
        begun = time.monotonic()
        policy = learn_jointly(placer, list(searches.values()), seed=seed)
        seconds = (time.monotonic() - begun) / len(workloads)
        FolderCheckpointer(self._folder(workloads, seed), " ".join(workloads)).publish(policy)
        for workload, search in searches.items():
            self.rows.note(
                self._name(workload, "batch", workloads, seed), placed[workload].row(search.answer(), seconds)
            )

    def _sizes(self, placer: str) -> Mapping[str, int]:
        if self.clusters is None or placer not in ("gdp", "sgdp"):
            return {}
        return {"nodes": self.clusters, "clusters": self.clusters}

    def _name(self, workload: str, method: str, others: Sequence[str], seed: int) -> str:
        sizes = "" if self.clusters is None else f" on {self.clusters} clusters"
        learned = f" with {' '.join(sorted(others))}" if others else ""
        return f"{workload} {method} {self.evaluations}{sizes}{learned}" + (f" seed {seed}" if seed else "")

    def _folder(self, workloads: Sequence[str], seed: int) -> Path:
        return self.journal.with_suffix("") / json_digest(self._name("", "batch", workloads, seed))[:16]


def _together(cells: Cells, workloads: Sequence[str]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield GDP-batch on all workloads; and for each, zero-shot and fine-tuned by a policy of the other families."""
    for workload, row in cells.batch(workloads).items():
        yield workload, "batch", row
    for family in dict.fromkeys(_family(workload) for workload in workloads):
        others = [w for w in workloads if _family(w) != family]
        for workload in (w for w in workloads if _family(w) == family and others):
            for mode in WITH_POLICY:
                yield workload, mode, cells.by_policy(workload, mode, others)


def _family(workload: str) -> str:
    return workload.rstrip("0123456789")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gdp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"three small workloads, {QUICK} evaluations")
    parser.add_argument("--evaluations", type=int, help=f"of every method; {EVALUATIONS} unless given")
    parser.add_argument("--clusters", type=int, help="about how many clusters of a graph gdp and sgdp place")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="this workload alone; repeatable")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="this method alone; repeatable")
    parser.add_argument("--journal", type=Path, default=Path("benchmarks/out/gdp.jsonl"), help="file of cells")
    parser.add_argument("--seeds", type=int, default=1, help="seeds per cell, from 0")
    parser.add_argument("--together", action="store_true", help="one policy on several graphs, and zero-shot, as well")
    chosen = parser.parse_args()
    chosen.journal.parent.mkdir(parents=True, exist_ok=True)
    among = chosen.only or (QUICK_ONES if chosen.quick else WORKLOADS)
    workloads = [workload for workload in WORKLOADS if workload in among]
    cells = Cells(
        chosen.journal, chosen.evaluations or (QUICK if chosen.quick else EVALUATIONS), chosen.clusters, chosen.seeds
    )
    say(figures(cells, workloads, chosen.method or tuple(METHODS), together=chosen.together))


if __name__ == "__main__":
    main()
