"""Instances of the protocol, loaded: a graph, a machine and a simulator, as the cells of a benchmark want them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from coarsen.reading.model.files import is_written_as_path
from pipeline.bench.cases import BenchCase
from pipeline.bench.league.protocol import LeagueInstance
from pipeline.core.devices import Topology
from pipeline.core.graph import Grouping
from pipeline.core.problem import Problem
from pipeline.core.stages import Predictor, Subject
from pipeline.offline.scenario import Scenario, load
from pipeline.placing.setup import problem_of
from pipeline.settings import registry

SIMULATOR = "listsched"
GIPH = "giph?index="
BOUND_S = 0.2  # seconds for the parts of a lower bound that improve with time


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """An instance, ready to be asked about.

    floor_s: no placement is faster. single_s: device -> seconds of everything on it, inf where that cannot be.
    """

    instance: LeagueInstance
    case: BenchCase
    single_s: dict[str, float]
    floor_s: float

    @property
    def n(self) -> int:
        """Return the number of operations."""
        return self.case.subject.graph.n

    @property
    def trivial(self) -> bool:
        """Return whether a device alone is within 5 % of what anything could reach, so that nothing can be gained."""
        return min(self.single_s.values()) <= 1.05 * self.floor_s


@cache
def load_arena(instance: LeagueInstance) -> Arena:
    """Return an instance, loaded.

    Raises:
        UsageError: the file of a graph cannot be placed.
        ModelError: it cannot be read.
    """
    from policy.place.exact.shared.proofs import lower_bound

    problem = _problem_of_instance(instance)
    topology = problem.topology
    if instance.links != 1:
        topology = replace(topology, link_bytes_per_s=topology.link_bytes_per_s * instance.links)
    if instance.share is not None:
        topology = with_memory_share(problem.on(topology=topology), instance.level, instance.share)
    problem = problem.on(topology=topology)
    measurer = build_simulator(instance.level)
    subject = _subject_of(problem)
    identity = {
        "evaluator": SIMULATOR,
        "measurer": SIMULATOR,
        "level": instance.level,
        "ordered": instance.ordered,
        "version": measurer.version,
        "figures": measurer.bind(subject).fingerprint,
    }
    case = BenchCase(instance.name, measurer, subject, identity, problem=problem)
    floor_s, _ = lower_bound(problem, measurer.execution, seconds=BOUND_S, one_to_one=True)
    return Arena(instance, case, case.alone(), floor_s)


def build_simulator(level: str) -> Predictor:
    """Return what builds the simulators of a level."""
    predictor: Predictor = registry.build_implementation("measure", SIMULATOR, {"level": level})
    return predictor


def with_memory_share(problem: Problem, level: str, share: float) -> Topology:
    """Return devices that each hold a share of an equal part of what one device alone would hold; inf: anything."""
    free = tuple(replace(d, memory_bytes=0) for d in problem.topology.devices)
    unlimited = replace(problem.topology, devices=free)
    if np.isinf(share):
        return unlimited
    alone = np.zeros((1, problem.graph.n), np.int32)
    evaluator = registry.build_implementation("measure", SIMULATOR, {"level": level}).bind(
        _subject_of(problem.on(topology=unlimited))
    )
    total = float(evaluator.simulate(alone).peak_bytes.sum())
    tight = tuple(replace(d, memory_bytes=int(share * total / unlimited.p)) for d in free)
    return replace(unlimited, devices=tight)


def _subject_of(problem: Problem) -> Subject:
    return Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)


def _problem_of_instance(instance: LeagueInstance) -> Problem:
    """Return the problem of placing a graph on its machine as that comes."""
    text, level = instance.graph.text, instance.level
    if text.startswith(GIPH):
        return _giph_problem(int(text.removeprefix(GIPH)), ordered=instance.ordered)
    graph = text if is_written_as_path(text.partition("?")[0]) else f"zoo:{text}"
    scenario = Scenario(graph, instance.topology, level=level, ordered=instance.ordered, seed=instance.graph.seed)
    return load(scenario).problem


def _giph_problem(index: int, *, ordered: bool) -> Problem:
    from runtime.machines.costs import cost_table
    from runtime.machines.machine import Machine
    from runtime.zoo.workloads.giph import instance

    workload, topology = instance(index, seed=0)
    costs = cost_table(workload, Machine(topology, (None,) * topology.p))
    return problem_of(workload.graph, topology, costs, ordered=ordered, tags=workload.tags)
