"""Placeto: what it finds against random placements, the RNN and HDP, and what it knows of graphs it has not seen.

python -m benchmarks.placeto [alone|unseen|episode ...] [--evaluations N] [--graphs N] [--seeds N] [--only FAMILY]
                             [--method NAME] [--journal FILE] [--picture FILE]

alone: test graphs, each searched by itself; the median of the seeds. unseen: the paper's question, a policy of a
family's graphs to learn from on those to test on, every seed with a policy of its own; --picture draws the cumulative
distributions. episode: seconds of an episode. Every cell is written into the journal when it is done and is not made
again; policies lie in a folder beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CellJournal, Figure, figure, median_row, say, timed
from pipeline.bench.cells import Improvements
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.report.charts import draw_cumulative
from pipeline.report.page import svg_file
from pipeline.settings.registry import build_implementation
from pipeline.shared.torch_tools import torch_seeded
from pipeline.store.checkpoint import FolderCheckpointer, read_policy
from policy.place.base.search import Search
from policy.place.published.placeto.placeto import Placeto, published
from runtime.zoo.workloads.placeto import FAMILIES, split

DEVICES = 4
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
FROZEN: Mapping[str, Any] = {**LEARNER, "control": "frozen"}
# What a policy of other graphs is asked for: one greedy pass, draws of it, and going on to learn.
WITH_POLICY: Mapping[str, Mapping[str, Any]] = {"zero_shot": FROZEN, "sampled": FROZEN, "fine_tuned": LEARNER}
BESIDE = ("placeto", "random", "anneal")  # what searches each test graph as well, without a policy
PARTS = ("alone", "unseen", "episode")


@dataclass(frozen=True, slots=True)
class Cells:
    """Everything that is searched, each cell once: what has been written down is not searched again.

    journal: file of the cells; policies lie in a folder beside it. evaluations: of every search, and of every graph
    that a policy learns from. seeds: of each cell.
    """

    journal: CellJournal
    evaluations: int
    seeds: int

    def alone(self, family: str, index: int, method: str, seed: int) -> Mapping[str, Any]:
        """Return what a method finds for one graph by itself."""
        placer, params = METHODS[method]
        return self.journal.found(
            self._name(f"{family} {index} {method}", seed),
            lambda: found(case_of(family, index), placer, params, self.evaluations, seed=seed),
        )

    def unseen(self, family: str, index: int, mode: str, seed: int) -> Mapping[str, Any]:
        """Return what is found for one graph with the policy that has learned on the family's graphs to learn from."""

        def search() -> Mapping[str, Any]:
            case = case_of(family, index)
            evaluations = case.graph.n + 1 + DEVICES if mode == "zero_shot" else self.evaluations
            return found(case, "placeto", WITH_POLICY[mode], evaluations, seed=seed, learned=self._policy(family, seed))

        return self.journal.found(self._name(f"{family} {index} {mode}", seed), search)

    def _policy(self, family: str, seed: int) -> Snapshot:
        """Return the policy of a family, learned if it is not on file."""
        folder = self.journal.path.with_suffix("") / f"{family}-{self.evaluations}-{seed}"
        if not folder.is_dir():
            train, _, _ = split(family, seed=0)
            policy = trained([case_of(family, index) for index in train], self.evaluations, seed=seed)
            FolderCheckpointer(folder, folder.name).publish(policy)
        return read_policy(folder)

    def _name(self, what: str, seed: int) -> str:
        return f"{what} {self.evaluations} seed {seed}"


def alone(cells: Cells, families: Sequence[str], graphs: int, methods: Sequence[str]) -> Iterator[Figure]:
    """Yield times over the best single device's that methods reach on test graphs, and the seconds they took."""
    for family in families:
        for method in methods:
            rows = [
                median_row([cells.alone(family, index, method, seed) for seed in range(cells.seeds)], "ratio")
                for index in split(family, seed=0)[2][:graphs]
            ]
            how = (
                f"{len(rows)} test graphs, {DEVICES} devices, T1, {cells.evaluations} evaluations, {cells.seeds} seeds"
            )
            ratio = statistics.geometric_mean([row["ratio"] for row in rows])
            yield figure(f"placeto.{family}.{method}", ratio, "", f"best time over the best single device's; {how}")
            best_after = statistics.mean(row["best_after"] for row in rows)
            yield figure(f"placeto.{family}.{method}.best_after", best_after, "", f"evaluations to its best; {how}")
            seconds = statistics.mean(row["seconds"] for row in rows)
            yield figure(f"placeto.{family}.{method}.seconds", seconds, "s", how)


def unseen(
    cells: Cells, families: Sequence[str], graphs: int, modes: Sequence[str], picture: Path | None
) -> Iterator[Figure]:
    """Yield times over the best single device's on test graphs, of policies of other graphs and of searches of each.

    picture: file for the cumulative distributions over graphs and seeds.
    """
    ratios: dict[str, list[float]] = {}
    for family in families:
        for mode in modes:
            ask = cells.unseen if mode in WITH_POLICY else cells.alone
            mine = [
                ask(family, index, mode, seed)["ratio"]
                for seed in range(cells.seeds)
                for index in split(family, seed=0)[2][:graphs]
            ]
            ratios.setdefault(mode, []).extend(mine)
            low, middle, high = np.quantile(mine, [0.1, 0.5, 0.9]).tolist()
            how = f"median time over the best single device's; {len(mine)} test graphs and seeds, T1"
            spread = f"{cells.evaluations} evaluations; a tenth below {low:.3f}, a tenth above {high:.3f}"
            yield figure(f"placeto.unseen.{family}.{mode}", middle, "", f"{how}, {spread}")
    if picture is not None:
        lines = {mode.replace("_", " "): np.array(values) for mode, values in ratios.items()}
        along = "time over that of the best single device"
        drawing = draw_cumulative(lines, label="Test graphs by time, Placeto's families", along=along)
        picture.write_text(svg_file(drawing), encoding="utf-8")


def episode() -> Iterator[Figure]:
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


def trained(cases: Sequence[LoadedScenario], evaluations: int, *, seed: int) -> Snapshot:
    """Return a policy that one network has learned on several graphs, with so many evaluations each."""
    params = Placeto(**{**LEARNER, "workers": len(cases)})
    searches = [Search(case.problem, case.simulator(), Budget(evaluations), lambda _: None) for case in cases]
    with torch_seeded(seed):
        trainer = params.trainer(searches, seed=seed)
        while not trainer.done:
            trainer.update()
    return published(trainer, params)


def case_of(family: str, index: int) -> LoadedScenario:
    """Return one graph on equal devices under Placeto's simulator, with what a policy needs."""
    return load(Scenario(f"zoo:{family}?index={index}", f"equal:{DEVICES}", level="T1")).with_policy()


def found(
    case: LoadedScenario,
    placer: str,
    params: Mapping[str, Any],
    evaluations: int,
    *,
    seed: int,
    learned: Snapshot | None = None,
) -> dict[str, Any]:
    """Return what is written down of a search.

    ratio: of the best time over the best single device's. best_after: evaluations until then. seconds: it took.
    """
    problem, simulator = case.problem, case.simulator()
    if problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, learned=learned))
    alone = simulator.simulate(np.repeat(np.arange(DEVICES, dtype=np.int32)[:, None], case.graph.n, axis=1))
    curve = Improvements()
    search_s, answer = timed(
        lambda: build_implementation("place", placer, params).place(
            problem,
            case.simulator(),
            Budget(evaluations),
            seed=seed,
            progress=lambda now: curve.add(now.done, now.value_s),
        )
    )
    curve.add(answer.evaluations, answer.value_s)
    return {
        "ratio": answer.value_s / float(alone.value_s.min()),
        "best_after": curve.points[-1][0],
        "evaluations": answer.evaluations,
        "seconds": search_s,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placeto", description=__doc__)
    parser.add_argument("part", nargs="*", default=["alone", "episode"], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--evaluations", type=int, default=1000, help="of every search")
    parser.add_argument("--graphs", type=int, default=1, help="test graphs of each family")
    parser.add_argument("--seeds", type=int, default=1, help="seeds per cell, from 0")
    parser.add_argument("--only", action="append", choices=FAMILIES, help="this family alone; repeatable")
    parser.add_argument(
        "--method", action="append", choices=[*METHODS, *WITH_POLICY], help="this one alone; repeatable"
    )
    parser.add_argument("--journal", type=Path, default=Path("benchmarks/out/placeto.jsonl"), help="file of cells")
    parser.add_argument("--picture", type=Path, help="unseen: file for the distributions, SVG")
    chosen = parser.parse_args()
    if foreign := set(chosen.part) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(foreign))}; parts are {', '.join(PARTS)}")
    chosen.journal.parent.mkdir(parents=True, exist_ok=True)
    cells = Cells(CellJournal(chosen.journal), chosen.evaluations, chosen.seeds)
    families = chosen.only or FAMILIES
    if "alone" in chosen.part:
        say(alone(cells, families, chosen.graphs, [name for name in METHODS if name in (chosen.method or METHODS)]))
    if "unseen" in chosen.part:
        modes = [name for name in (*WITH_POLICY, *BESIDE) if name in (chosen.method or (*WITH_POLICY, *BESIDE))]
        say(unseen(cells, families, chosen.graphs, modes, chosen.picture))
    if "episode" in chosen.part:
        say(episode())


if __name__ == "__main__":
    main()
