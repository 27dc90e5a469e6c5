"""Searches of tiny problems before the real one, so that its clock sees no import, no compilation and no loading.

Kernels are compiled when they are first called, and compiled code is loaded when a process first calls them. A
rehearsal calls them all: every method that a placer may call searches a few problems of a dozen operations, which
between them take every way through the kernels.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import ClassVar

import numpy as np

from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.errors import DeviceError, MissingPackageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Evaluation
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.scenario import LoadScenario, ModelLoad
from pipeline.core.stages import Evaluator, LearningPlacer, Placer, Predictor, Simulator, Subject
from pipeline.core.workload import Tags
from pipeline.placing.recipes import for_placer
from pipeline.placing.setup import problem_of
from pipeline.progress.compile_notice import COMPILING
from pipeline.settings import registry
from pipeline.settings.declared import is_ours

Say = Callable[[str], None]

OPERATIONS = 14
BUDGET = Budget(evaluations=48, seconds=2.0)
BOUND_S = 0.05  # seconds for the parts of a bound that improve with time
SIMULATORS = ("listsched", "sequential", "pipelined", "latency")
CALLING = ("portfolio", "hsdag")  # placers that let the portfolio's placers search


class _Plain:
    """A simulator that hides that it is one: placers ask about one placement after another, as they ask devices."""

    version: ClassVar[int] = 1

    def __init__(self, simulator: Evaluator) -> None:
        self._simulator = simulator

    @property
    def fingerprint(self) -> str:
        return self._simulator.fingerprint

    @property
    def evaluations(self) -> int:
        return self._simulator.evaluations

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        return self._simulator.evaluate(placements)


def compile_kernels(placers: Iterable[str], evaluator: str, n: int, *, say: Say) -> float:
    """Let placers, and those they may call, search tiny problems in a simulator; bounds as well.

    Return the seconds that it took if kernels were compiled, 0 if they were loaded at most. What was rehearsed before
    in this process is not rehearsed again. evaluator: its name; what is not a simulator is stood in for. n: how many
    nodes the real problem has. say: told that kernels are compiled, if any are, and how many by now.
    """
    begun = time.monotonic()
    with telling_of_compiling(say) as compilations:
        compile_kernels_of_each(
            [part for name in placers for part in (*(_called(evaluator, n) if name in CALLING else ()), name)],
            evaluator,
        )
    return time.monotonic() - begun if compilations else 0.0


def _called(evaluator: str, n: int) -> tuple[str, ...]:
    """Return the names of the placers that a portfolio may call for n nodes."""
    from policy.place.portfolio import parts  # imports all of them, which bounds alone have no need of

    return parts(n, _predictor_of(evaluator).execution if evaluator in SIMULATORS else None)


@contextlib.contextmanager
def telling_of_compiling(say: Say) -> Iterator[Sequence[int]]:
    """Tell that kernels are compiled meanwhile, if any are, and how many by now; give a list with an entry for each."""
    from pipeline.shared.compiled import announce_compiling  # numba, which planning has no need of

    begun: list[int] = []

    def tell(done: int) -> None:
        begun.append(done)
        say(f"compiling kernels: {done} functions so far" if done else COMPILING)

    with announce_compiling(tell):
        yield begun


def compile_kernels_of_each(placers: Iterable[str], evaluator: str) -> None:
    """Let placers of these names alone search tiny problems in a simulator; see `compile_kernels`.

    Those of other packages are left out: what they make of problems that nobody has, only they know.
    """
    _simulate_problems(evaluator if evaluator in SIMULATORS else SIMULATORS[0])
    for name in placers:
        if is_ours("place", name):
            _search_problems(name, evaluator)


def compile_request_kernels() -> None:
    """Simulate one request of one model."""
    from runtime.simulators.requests.requests import ServiceModel, simulate_requests

    service = ServiceModel(("a",), (np.ones(1),), np.ones(1, np.int64), np.zeros((1, 1)))
    simulate_requests(LoadScenario((ModelLoad("a", concurrency=1),)), service, seconds=0.5, seed=0, warm_up_s=0.0)


@cache
def _simulate_problems(evaluator: str) -> None:
    """Simulate and bound every tiny problem."""
    from policy.place.exact.shared.proofs import lower_bound

    for problem in _tiny_problems(evaluator):
        simulator = _tiny_simulator(evaluator, problem, Grouping.identity(problem.graph.n))
        placements = np.zeros((2, problem.graph.n), np.int32)
        placements[1] = np.arange(problem.graph.n) % problem.topology.p
        simulator.simulate(placements)
        if problem.ordered:
            simulator.simulate(placements, np.zeros(placements.shape))
        lower_bound(problem, simulator.execution, seconds=BOUND_S, one_to_one=True)


@cache
def _search_problems(placer: str, evaluator: str) -> None:
    """Let one placer search every tiny problem."""
    built: Placer = registry.build_implementation("place", placer)
    problems = _tiny_problems(evaluator)
    if isinstance(built, LearningPlacer):  # what learns is slow, and calls little
        problems = problems[:1]
    for problem in problems:
        grouping, own = for_placer(built, problem, partial(_as_it_is, problem), seed=0)
        simulator = _tiny_simulator(evaluator, problem, grouping)
        asked = simulator if evaluator in SIMULATORS else _Plain(simulator)
        # A rule of thumb may find nothing where memory is short; and what lacks a package says so when it is asked.
        with contextlib.suppress(DeviceError, MissingPackageError):
            built.place(own, asked, BUDGET, seed=0, progress=_ignore_progress)


def _as_it_is(problem: Problem) -> tuple[Grouping, Problem]:
    """Return every operation as a node of its own, and the problem."""
    return Grouping.identity(problem.graph.n), problem


def _tiny_simulator(evaluator: str, problem: Problem, grouping: Grouping) -> Simulator:
    subject = Subject(None, problem.graph, grouping, problem.topology, problem.costs, 0)
    return _predictor_of(evaluator).bind(subject)


def _predictor_of(evaluator: str) -> Predictor:
    """Return what builds the simulators of that name, or what stands in for them."""
    predictor: Predictor = registry.build_implementation(
        "measure", evaluator if evaluator in SIMULATORS else SIMULATORS[0]
    )
    return predictor


def _ignore_progress(_: Progress) -> None:
    """Take note of nothing."""


def _tiny_problems(evaluator: str) -> list[Problem]:
    """Return the tiny problems: two devices; three with colocation constraints, little memory and, where orders count,
    priorities.
    """
    tight = _tiny_problem(3, memory_bytes=700)
    return [_tiny_problem(2, memory_bytes=0), replace(tight, ordered=_predictor_of(evaluator).execution.ordered)]


def _tiny_problem(p: int, *, memory_bytes: int) -> Problem:
    """Return the problem of placing a drawn graph on p devices; with a memory limit, some operations are colocated."""
    rng = np.random.default_rng(p)
    n = OPERATIONS
    pairs = np.array([(i, j) for j in range(1, n) for i in range(max(0, j - 4), j) if i == j - 1 or rng.random() < 0.4])
    edges = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].T
    colocate = np.full(n, -1)
    if memory_bytes:
        colocate[[2, 5]] = 2
    graph = Graph(
        names=tuple(f"operation{i}" for i in range(n)),
        op_type=(np.arange(n) % 3).astype(np.int16),
        type_names=("Add", "Constant", "MatMul"),
        edges=edges,
        flops=np.full(n, 1e6),
        weight_bytes=np.full(n, 100),
        out_bytes=rng.integers(20, 40, n),
        edge_bytes=rng.integers(10, 20, len(pairs)),
        shape_ptr=np.arange(n + 1),
        shape_dim=np.full(n, 4),
        colocate=colocate,
        kernel=np.full(n, -1),
    )
    devices = tuple(DeviceSpec(chr(65 + d), "CPU", "CPU", memory_bytes=memory_bytes) for d in range(p))
    topology = Topology.uniform(devices, bytes_per_s=1e5, latency_s=1e-5)
    op_s = rng.uniform(1e-3, 2e-3, (n, p))
    op_s[3, 0] = np.inf
    origin: tuple[Origin, ...] = tuple("given" for _ in devices)
    costs = CostTable(graph.names, topology.names, op_s, np.full(p, 1e-4), origin)
    tags = Tags(np.where(np.arange(n) % 5, np.arange(n) // 4, -1), np.full(n, -1))
    return problem_of(graph, topology, costs, tags=tags)
