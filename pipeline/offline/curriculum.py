"""What `neural_list` is trained on: graphs of all generators on many machines, under every simulator level and cap."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from pipeline.core.errors import UnknownNameError
from pipeline.core.problem import Budget
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from policy.place.base.search import Search
from policy.place.learned.neural_list.training import ListTrainingCase
from policy.place.local.anneal import Anneal
from policy.place.rules.catalogue import RULES
from runtime.zoo.workloads.placeto import FAMILIES, split

# Family -> graphs, small ones: what is learned is relative. Those of Placeto's families come on top, by their splits.
GRAPHS: Mapping[str, tuple[str, ...]] = {
    "rnnlm": ("rnnlm2?steps=3&fidelity=core", "rnnlm4?steps=2&fidelity=core"),
    "gnmt": ("gnmt2?steps=2&fidelity=core", "gnmt2?steps=1&fidelity=core&batch=128"),
    "txl": ("txl2?segments=2&fidelity=core", "txl2?segments=1&fidelity=core&hidden=1000"),
    "inception": ("inception-v3-training?fidelity=core&training=false",),
    "resnet": ("resnet50-training?fidelity=core&training=false&batch=64",),
    "nasnet": ("nasnet-mobile?cells=1&fidelity=core&training=false",),
    "amoebanet": ("amoebanet?layers=3&fidelity=core&training=false",),
    "bert": ("bert-base-training?layers=1&fidelity=core", "bert-base-training?layers=2&fidelity=core&hidden=1536"),
    "moe": ("moe-block?fidelity=core", "moe-block?fidelity=core&experts=16&training=false"),
    "wavenet": ("wavenet2?layers=5&fidelity=core", "wavenet2?layers=7&fidelity=core&training=false"),
    "nmt": ("nmt?steps=2&fidelity=core", "nmt?steps=1&fidelity=core&hidden=1024"),
    "tiled": ("chainmm", "ffnn", "llama-block", "llama-layer"),
    "layered": ("layered?n=100", "layered?n=300&ccr=0.1", "layered?n=60&ccr=10", "layered?n=200&fatness=3&ccr=3"),
    "erdos-renyi": ("erdos-renyi?n=100", "erdos-renyi?n=250&ccr=0.3"),
    "stochastic-block": ("stochastic-block?n=150", "stochastic-block?n=80&ccr=5"),
    "watts-strogatz": ("watts-strogatz?n=150", "watts-strogatz?n=80&ccr=5"),
    "barabasi-albert": ("barabasi-albert?n=150", "barabasi-albert?n=80&ccr=0.2"),
    "series-parallel": ("series-parallel?n=150", "series-parallel?n=300&ccr=4"),
}
# Numbers of machines, levels and caps without common divisors: all pairs of them come up.
TOPOLOGIES = (
    *("equal:4", "equal:8", "two-level:2x4", "unequal:4", "equal:2", "equal:8", "unequal:8", "equal:4", "ring:4"),
    *("p100x8", "cpu+gpu"),
)
LEVELS = ("T2", "T2", "T1", "T2", "T0")
CAPS = (
    0.0,
    0.0,
    0.0,
    3.0,
    0.0,
    0.0,
    0.0,
    0.0,
    1.6,
)  # memory over an equal share of what one device alone would hold; 0 for any
JUDGES = ("nmt", "wavenet", "watts-strogatz", "resnet")  # families never learned from, by which weights are chosen
OTHER_NAMES = {"mixture-of-experts": "moe"}  # of graphs of a family that is called otherwise
PER_GRAPH = 2  # lessons of one graph, each on another machine
INDICES = 6  # graphs of each of Placeto's families to learn from
ANSWERED = 10**6  # evaluations, more than rules of thumb take
RULE_S = 1.0  # seconds that one of them may be expected to take
ANNEALED = 3000  # evaluations of `anneal` where no rule's answer fits


def learned_family(graph: str) -> str | None:
    """Return the family of exercises that a graph or a model is of, by its name; None for what nothing is learned from.

    >>> learned_family("gnmt8?steps=4"), learned_family("zoo:resnet50"), learned_family("giph?index=0")
    ('gnmt', 'resnet', None)
    """
    name = graph.removeprefix("zoo:").partition("?")[0]
    listed = {text.partition("?")[0]: family for family, graphs in GRAPHS.items() for text in graphs} | OTHER_NAMES
    return listed.get(name) or next((family for family in (*GRAPHS, *FAMILIES) if name.startswith(family)), None)


@cache
def seen_families() -> Mapping[str, frozenset[str]]:
    """Return the families that weights which ship were learned from, or chosen by, as their own records say."""
    scores = json.loads(files("policy.place.learned.neural_list").joinpath("neural_list.json").read_text("utf-8"))
    edges = json.loads(files("pipeline.shared.contraction").joinpath("contraction.json").read_text("utf-8"))
    return {
        "neural_list": frozenset({*GRAPHS, *FAMILIES} - set(scores["left_out"])),
        "contraction": frozenset(edges["families"]),
    }


def seen_by(graph: str) -> tuple[str, ...]:
    """Return what has weights that ship and have seen graphs of this one's family, in learning or in choosing.

    >>> seen_by("layered?n=20"), seen_by("chainmm"), seen_by("gnmt2?steps=2")
    (('neural_list', 'contraction'), ('contraction',), ())
    """
    family = learned_family(graph)
    return tuple(name for name, seen in seen_families().items() if family in seen)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A lesson by its words. share: memory of a device over an equal part of what one alone would hold; 0 for any."""

    family: str
    graph: str
    topology: str
    level: str
    share: float
    seed: int

    def case(self) -> LoadedScenario:
        """Return the exercise with its graph made, on devices of its memory."""
        scenario = Scenario(f"zoo:{self.graph}", self.topology, level=self.level, seed=self.seed)
        return limit_memory(load(scenario), self.share) if self.share else load(scenario)

    def training_case(self) -> ListTrainingCase:
        """Return the exercise with the best that rules of thumb reach."""
        case = self.case()
        simulator = case.simulator()
        return ListTrainingCase.of(self.family, case.problem, simulator, reference_s=best_rule_s(case))


def split_exercises(*, left_out: Collection[str] = ()) -> tuple[list[Exercise], list[Exercise]]:
    """Return what to learn from and what to judge by, the same every time.

    left_out: families that are in neither.

    Raises:
        UnknownNameError: one of them is none.
    """
    families = {*GRAPHS, *FAMILIES}
    for family in left_out:
        if family not in families:
            raise UnknownNameError("family", family, families)
    learned: list[Exercise] = []
    judged: list[Exercise] = []
    for i, (family, graph) in enumerate(
        (family, graph) for family, graph in _exercise_graphs() for _ in range(PER_GRAPH)
    ):
        machine = TOPOLOGIES[i % len(TOPOLOGIES)], LEVELS[i % len(LEVELS)], CAPS[i % len(CAPS)]
        if family not in left_out:
            seed = 0 if family in FAMILIES else i
            (judged if family in JUDGES else learned).append(Exercise(family, graph, *machine, seed))
    return learned, judged


def _exercise_graphs() -> Iterator[tuple[str, str]]:
    """Yield families and graphs."""
    for family, graphs in GRAPHS.items():
        for graph in graphs:
            yield family, graph
    for family in FAMILIES:
        for index in split(family, seed=0)[0][:INDICES]:
            yield family, f"{family}?index={index}"


def limit_memory(case: LoadedScenario, share: float) -> LoadedScenario:
    """Return a case on devices that hold a share of an equal part of what one device alone would hold."""
    topology = case.topology
    free = tuple(replace(d, memory_bytes=0) for d in topology.devices)
    unlimited = replace(case, problem=case.problem.on(topology=replace(topology, devices=free)))
    alone = np.zeros((1, case.graph.n), np.int32)
    total = float(unlimited.simulator().simulate(alone).peak_bytes.sum())
    tight = tuple(replace(d, memory_bytes=int(share * total / topology.p)) for d in topology.devices)
    return replace(case, problem=case.problem.on(topology=replace(topology, devices=tight)))


def best_rule_s(case: LoadedScenario) -> float:
    """Return the seconds of the best placement of all rules of thumb, or of one device; inf if none fits."""
    search = Search(case.problem, case.simulator(), Budget(ANSWERED), lambda _: None)
    for rule, per_second in RULES.values():
        if case.graph.n <= RULE_S * per_second:
            rule.run(search, seed=0)
    if search.best is None:
        with search.limited("anneal", evaluations=ANNEALED):
            Anneal().run(search, seed=0)
    return search.best_s
