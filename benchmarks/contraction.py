"""The learned contraction of `pipeline.shared.contraction`: what it learns from, its training, and what it is worth.

python -m benchmarks.contraction label|fit|judge|move|coarse [--folder FOLDER] [--graphs N]
                                 [--only WORKLOAD] [--seeds N] [--seconds S] [--weights FILE]

label: places N generated graphs, 229 unless given, of which those of fewer are the first, and keeps the placements, one
file per graph: killed, it goes on where it was. fit: trains the score of edges on them and writes weights and log.
judge: what annealing reaches on clusters of several kinds of the graphs of GDP's table, whose families nothing was
learned from. move: what `multilevel` gains by moving the groups of the contraction, over those of a network with random
weights, those by weights in a file, and none, in 1,000 evaluations or S seconds; on graphs of these families and, told
apart, of others. coarse: what `hsdag` reaches in S seconds, 20 unless given, on nodes that coarseners made of large
graphs, over what it reaches on their operations.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common import Figure, figure, say
from benchmarks.gdp import WORKLOADS, PlacedWorkload
from coarsen.heavy_edge import HeavyEdge
from pipeline.bench.summary import geometric_mean
from pipeline.core.arrays import Float64
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import seconds_of
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Recipe
from pipeline.offline.curriculum import Exercise
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.recipes import prepare_problem
from pipeline.placing.setup import coarse_problem, with_policy
from pipeline.settings.registry import build_implementation
from pipeline.shared.contraction.edge_figures import EdgeFigures
from pipeline.shared.contraction.edge_network import SHIPPED, edge_logits, edge_weights, shipped_weights, weight_shapes
from pipeline.shared.feasibility import made_feasible
from pipeline.shared.partition import metis_parts
from pipeline.shared.payload import load_arrays, save_arrays, save_weights
from pipeline.store.store import write_json
from policy.place.base import contraction
from policy.place.base.hierarchy import work_of
from policy.place.local.anneal import Anneal
from policy.place.published.gdp.clusters import clusters_of
from policy.place.published.gdp.sgdp import Sgdp

FOLDER = Path("benchmarks/out/contraction")
GRAPHS = 229
SEEDS = 2  # of the search that labels a graph
EVALUATIONS = 1200
CLOSE = 0.02  # by which share a placement may be slower than the best to count a third
RATE, EPOCHS = 3e-3, 30
TIED = Recipe(coarsen=(), blocks=("type_hash",), embed=("identity", {}), group=("identity", {}))
ANNEALED, JUDGED = 640, 3
MOST = 3000  # operations of a graph to learn from

# Graphs of 750 to 4,300 operations on which `multilevel` is asked; those of UNSEEN are of families not learned from.
UNSEEN = (
    *("rnnlm4?fidelity=core&steps=12", "gnmt2?fidelity=core&steps=8", "gnmt4?fidelity=core&steps=4"),
    *("txl2?fidelity=core", "txl4?fidelity=core", "amoebanet?fidelity=core", "inception-v3-training?fidelity=core"),
    "wavenet4",
)
SEEN = (
    *("nmt?steps=8&fidelity=core", "nasnet-mobile?cells=2&fidelity=core", "moe-block?blocks=6&fidelity=core"),
    "bert-base-training?fidelity=core",
)
MOVED_ON = ("equal:8", "p100:4")
MOVED = 1000  # evaluations of `multilevel`
LARGE = (("txl8", "equal:4"), ("rnnlm8?fidelity=core", "equal:4"), ("gnmt4?fidelity=core", "equal:8"))
COARSE_S = 20.0
COARSENERS = (("contraction", 512), ("contraction", 2048), ("metis", 512))  # and their parts, before cycles are cut

Draw = Callable[[np.random.Generator], str]


def _pick(rng: np.random.Generator, *options: object) -> str:
    return str(options[int(rng.integers(len(options)))])


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    """Return a whole number whose logarithm is uniform."""
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _random(name: str, extra: str = "") -> Draw:
    def draw(rng: np.random.Generator) -> str:
        return f"{name}?n={_size(rng, 50, 1000)}&ccr={np.exp(rng.normal(0, 1.2)):.2f}{extra}"

    return draw


def _fidelity(rng: np.random.Generator) -> str:
    return _pick(rng, "core", "core", "tf")


# Family -> a graph drawn from it. Those of GDP's table (RNNLM, GNMT, TXL, Inception, AmoebaNet, WaveNet) are left out.
FAMILIES: Mapping[str, Draw] = {
    "nmt": lambda r: (
        f"nmt?layers={_pick(r, 1, 2, 3, 4)}&steps={_size(r, 2, 8)}&hidden={_pick(r, 256, 512, 1024, 2048)}"
        f"&batch={_pick(r, 32, 64, 128)}&vocab={_pick(r, 5000, 20000, 40000)}&fidelity={_fidelity(r)}"
    ),
    "nas-rnn": lambda r: f"nas-rnn?index={r.integers(32)}",
    "nas-nmt": lambda r: f"nas-nmt?index={r.integers(32)}",
    "nas-cnn": lambda r: f"nas-cnn?index={r.integers(32)}",
    "bert": lambda r: (
        f"bert-base-training?layers={_size(r, 1, 6)}&hidden={_pick(r, 384, 768, 1536)}"
        f"&training={_pick(r, 'true', 'false')}&fidelity={_fidelity(r)}"
    ),
    "moe": lambda r: (
        f"moe-block?blocks={_pick(r, 1, 2, 3)}&experts={_pick(r, 4, 8, 16)}&training={_pick(r, 'true', 'false')}"
        f"&fidelity={_fidelity(r)}"
    ),
    "resnet": lambda r: f"resnet50-training?batch={_pick(r, 16, 64, 128)}&training={_pick(r, 'true', 'false')}",
    "nasnet": lambda r: f"nasnet-mobile?cells={_pick(r, 1, 2)}&fidelity=core&training={_pick(r, 'true', 'false')}",
    "tiled": lambda r: _pick(r, "chainmm", "ffnn", "llama-block", "llama-layer"),
    "layered": _random("layered"),
    "erdos-renyi": _random("erdos-renyi"),
    "stochastic-block": _random("stochastic-block"),
    "watts-strogatz": _random("watts-strogatz"),
    "barabasi-albert": _random("barabasi-albert"),
    "series-parallel": _random("series-parallel"),
}
MACHINES = ("p100:2", "p100:4", "p100:8", "equal:2", "equal:4", "equal:8", "two-level:2x4", "unequal:4", "ring:4")
RECURRENT = ("nmt", "nas-rnn", "nas-nmt")  # three lessons of each in a round: chains of steps that share weights
JUDGES = ("moe", "nas-cnn", "series-parallel")  # families by which the training is ended and settings are chosen


def lessons(count: int = GRAPHS, *, seed: int = 0) -> list[Exercise]:
    """Return graphs on machines, families in turn."""
    rng, turns = np.random.default_rng(seed), [*FAMILIES, *RECURRENT, *RECURRENT]
    drawn = []
    for i in range(count):
        family = turns[i % len(turns)]
        cap = float(rng.choice([0.0, 0.0, 0.0, 0.0, 2.5]))
        drawn.append(Exercise(family, FAMILIES[family](rng), str(rng.choice(MACHINES)), "T2", cap, seed + i))
    return drawn


def label(folder: Path, graphs: int) -> None:
    """Place every lesson with several seeds, and keep the placements and their seconds."""
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    for i, lesson in enumerate(lessons(graphs)):
        file = folder / "labels" / f"{i:03d}.npz"
        if file.exists():
            continue
        case = lesson.case()
        found = []
        if case.graph.n <= MOST:
            placer = build_implementation("place", "multilevel")
            for seed in range(SEEDS):
                try:
                    answer = placer.place(
                        case.problem, case.simulator(), Budget(EVALUATIONS), seed=seed, progress=lambda _: None
                    )
                except DeviceError:
                    continue
                found += answer.candidates[:1]
        seconds = np.array([seconds_of(c.result) for c in found])
        save_arrays(file, {"device": np.array([c.placement.device for c in found]), "seconds": seconds})
        print(i, lesson, case.graph.n, seconds.tolist(), flush=True)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledGraph:
    """A graph as the network sees it, and of every edge how often both ends shared a device: float64 [m]."""

    family: str
    figures: EdgeFigures
    together: Float64

    @classmethod
    def read(cls, lesson: Exercise, file: Path) -> list[LabelledGraph]:
        """Return a lesson with its labels, its operations and its colocated operations as nodes.

        Nothing if the graph was too large or no placement fitted.
        """
        arrays = load_arrays(file)
        if not arrays["seconds"].size or not np.isfinite(arrays["seconds"]).all():
            return []
        problem = lesson.case().problem
        ties, coarse = prepare_problem(TIED, problem, problem.costs, seed=0)
        first = np.unique(ties.group, return_index=True)[1]
        share = np.exp(-(arrays["seconds"] / arrays["seconds"].min() - 1) / CLOSE)
        share /= share.sum()
        found = []
        for own, device in ((problem, arrays["device"]), (coarse, arrays["device"][:, first])):
            together = share @ (device[:, own.graph.edges[0]] == device[:, own.graph.edges[1]])
            found.append(cls(lesson.family, EdgeFigures.of_problem(own, work_of(own)), together))
        return found

    def tensors(self) -> tuple[EdgeFigures, Tensor]:
        """Return figures and labels as tensors."""
        figures = self.figures
        node, edge, together = (
            torch.tensor(array, dtype=torch.float32) for array in (figures.node, figures.edge, self.together)
        )
        along, against = (_sparse_tensor(part.tocoo()) for part in (figures.along, figures.against))
        ends: Any = torch.tensor(figures.ends)
        tensors: dict[str, Any] = {"node": node, "edge": edge, "along": along, "against": against, "ends": ends}
        return replace(figures, **tensors), together


def _sparse_tensor(matrix: Any) -> Tensor:
    at = torch.tensor(np.stack([matrix.row, matrix.col]))
    return torch.sparse_coo_tensor(at, torch.tensor(matrix.data, dtype=torch.float32), matrix.shape).coalesce()


def fit(folder: Path, graphs: int) -> None:
    """Train the network on the labels there are, end where it does best on other families, and write what it is."""
    files = [(lesson, folder / "labels" / f"{i:03d}.npz") for i, lesson in enumerate(lessons(graphs))]
    labelled = [graph for lesson, file in files if file.exists() for graph in LabelledGraph.read(lesson, file)]
    labelled = [graph for graph in labelled if graph.together.size]
    learned = [graph.tensors() for graph in labelled if graph.family not in JUDGES]
    judged = [graph.tensors() for graph in labelled if graph.family in JUDGES]
    torch.set_num_threads(1)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=generator) * (1.4 / max(shape[0], 1) ** 0.5 if len(shape) > 1 else 0.1))
        .requires_grad_()
        for name, shape in weight_shapes().items()
    }  # fmt: skip
    optimiser = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * len(learned))
    log, best = [], -math.inf
    for epoch in range(EPOCHS):
        total = 0.0
        for i in rng.permutation(len(learned)):
            figures, together = learned[i]
            loss = functional.binary_cross_entropy_with_logits(edge_logits(weights, figures), together)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) / len(learned)
        with torch.no_grad():
            found = [(edge_logits(weights, figures), together) for figures, together in judged]
        other = statistics.mean(float(functional.binary_cross_entropy_with_logits(x, y)) for x, y in found)
        ranked = statistics.mean(_ranked(x, y) for x, y in found)
        log.append({"epoch": epoch + 1, "learned": total, "judged": other, "ranked": ranked})
        if ranked > best:
            best = ranked
            save_weights(folder / SHIPPED.name, {name: w.detach().numpy().copy() for name, w in weights.items()})
        print(log[-1], flush=True)
    settings = {
        "graphs": len(labelled),
        "epochs": EPOCHS,
        "rate": RATE,
        "families": sorted({g.family for g in labelled}),
    }
    write_json(folder / "contraction.json", {**settings, "judges": JUDGES, "best": best, "log": log})


def _ranked(logit: Tensor, together: Tensor) -> float:
    """Return how often an edge with both ends on one device ranks above one without, ties counting half."""
    together = together.clamp(1e-3, 1 - 1e-3)
    order = np.argsort(logit.numpy(), kind="stable")
    apart = 1 - together.double().numpy()[order]
    both = together.double().numpy()[order]
    below = np.cumsum(apart) - apart / 2
    return float((both * below).sum() / (both.sum() * apart.sum()))


def judge(workloads: Sequence[str]) -> Iterator[Figure]:
    """Yield the seconds of the best placement of clusters, medians of JUDGED seeds of annealing."""
    for workload in workloads:
        placed = PlacedWorkload.of(workload, Sgdp())
        problem = placed.problem
        for name, clusters in _clusters(problem).items():
            whole = problem.on(grouping=made_feasible(problem, clusters))
            values = [
                Anneal().place(whole, placed.simulator, Budget(ANNEALED), seed=seed, progress=lambda _: None).value_s
                for seed in range(JUDGED)
            ]
            how = f"{clusters.k} clusters, {ANNEALED} evaluations of anneal, {JUDGED} seeds"
            yield figure(f"contraction.{workload}.{name}", statistics.median(values), "s", how)


def _clusters(problem: Problem) -> dict[str, Grouping]:
    """Return clusters of a problem's operations by kind."""
    work, parts = work_of(problem) + 1e-12, {"edges": 64, "layers": 64, "contraction": 32}
    found: dict[str, Grouping] = {
        by: clusters_of(problem, about=about, by=by)  # type: ignore[arg-type]
        for by, about in parts.items()
    }
    for count in (32, 64):
        metis = metis_parts(
            problem.graph, count, node_weight=work, edge_weight=problem.graph.edge_bytes, balance=1.1, seed=0
        )
        found[f"metis{count}"] = Grouping(metis)
    heavy = HeavyEdge(parts=32, acyclic=False).coarsen(problem.graph, seed=0)
    return {**found, "heavy_edge": heavy}


def move(budget: Budget, seeds: int, weights: Path | None) -> Iterator[Figure]:
    """Yield times that `multilevel` reaches with the learned contraction over those without, and with random weights.

    Geometric means over graphs and machines, with 95 % bootstrap intervals over these. weights: a file of others, with
    which it is compared, too.
    """
    for label, graphs in (("unseen", UNSEEN), ("seen", SEEN)):
        logs: dict[str, list[float]] = {}
        for graph, machine in product(graphs, MOVED_ON):
            case = load(Scenario(f"zoo:{graph}", machine))
            for name, value in _moved_logs(case, budget, seeds, weights).items():
                logs.setdefault(name, []).append(value)
        how = f"{len(logs['none'])} problems, {budget}, {seeds} seeds"
        for other in (name for name in logs if name != "learned"):
            ratio = geometric_mean([np.exp(np.subtract(logs["learned"], logs[other]))])
            for end, value in (("", ratio.median), (".low", ratio.low), (".high", ratio.high)):
                yield figure(f"contraction.moved.{label}.over_{other}{end}", value, "", how, target=1.0)


def _moved_logs(case: LoadedScenario, budget: Budget, seeds: int, given: Path | None) -> dict[str, float]:
    """Return by kind of weights the mean logarithm of the seconds that `multilevel` reaches."""
    rng, found = np.random.default_rng(0), {}
    drawn = {name: rng.standard_normal(shape) / max(shape[0], 1) ** 0.5 for name, shape in weight_shapes().items()}
    kinds: dict[str, Mapping[str, Float64] | None] = {"none": None, "random": drawn, "learned": shipped_weights()}
    if given is not None:
        kinds["given"] = edge_weights(given)
    for name, weights in kinds.items():
        placer = build_implementation("place", "multilevel", {"contracted": weights is not None})
        with patch.object(contraction, "shipped_weights", lambda weights=weights: weights):
            case.problem.forget()  # the scores of edges
            values = [
                placer.place(case.problem, case.simulator(), budget, seed=seed, progress=lambda _: None).value_s
                for seed in range(seeds)
            ]
        found[name] = float(np.log(values).mean())
    return found


def coarse(seconds: float, seeds: int) -> Iterator[Figure]:
    """Yield times that `hsdag` reaches on nodes made by coarseners over those on operations, medians of the seeds."""
    for graph, machine in LARGE:
        case = load(Scenario(f"zoo:{graph}", machine))
        alone_s = _median_s(case, Grouping.identity(case.graph.n), seconds, seeds)
        for name, parts in COARSENERS:
            built = build_implementation("coarsen", name, {"parts": parts, "acyclic": True})
            begun = time.monotonic()
            nodes = built.coarsen(case.graph, seed=0)
            left_s = seconds - (time.monotonic() - begun)
            how = f"{nodes.k} nodes of {case.graph.n} operations, {machine}, {seconds:g} s, {seeds} seeds"
            ratio = _median_s(case, nodes, left_s, seeds) / alone_s
            yield figure(f"contraction.coarse.{graph.partition('?')[0]}.{name}{parts}", ratio, "", how, target=1.0)


def _median_s(case: LoadedScenario, nodes: Grouping, seconds: float, seeds: int) -> float:
    """Return the median of the seconds that `hsdag` reaches by placing nodes of a case's operations."""
    problem = with_policy(coarse_problem(case.graph, case.topology, case.costs, nodes))
    placer, budget = build_implementation("place", "hsdag"), Budget(seconds=seconds)
    found: list[float] = [
        placer.place(problem.on(), case.simulator(nodes), budget, seed=seed, progress=lambda _: None).value_s
        for seed in range(seeds)
    ]
    return statistics.median(found)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contraction", description=__doc__)
    parser.add_argument("part", choices=("label", "fit", "judge", "move", "coarse"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="of label and fit")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="this workload alone; repeatable")
    parser.add_argument("--seeds", type=int, default=5, help="of move and coarse")
    parser.add_argument("--seconds", type=float, help="of move, in place of evaluations; of coarse")
    parser.add_argument("--weights", type=Path, help="of move: a file of others to compare with")
    chosen = parser.parse_args()
    if chosen.part == "move":
        budget = Budget(MOVED) if chosen.seconds is None else Budget(seconds=chosen.seconds)
        say(move(budget, chosen.seeds, chosen.weights))
    elif chosen.part == "coarse":
        say(coarse(chosen.seconds or COARSE_S, chosen.seeds))
    elif chosen.part == "judge":
        say(judge(chosen.only or list(WORKLOADS)))
    else:
        {"label": label, "fit": fit}[chosen.part](chosen.folder, chosen.graphs)


if __name__ == "__main__":
    main()
