"""What every placer promises where the evaluator is a simulator, and where placements may carry priorities."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Evaluation, Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import ExecutionModel, LocalSearch, Moves, Simulation, Timeline
from pipeline.core.stages import Answer, Placer, Simulator, Subject
from pipeline.settings.registry import build_implementation
from pipeline.testing.graphs import graph_of
from pipeline.testing.problems import ignore_progress, small_problem, small_topology
from pipeline.testing.promises import promise_that_ends, require_promise

SIMULATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sequential": ("sequential", {}),
    "T0": ("listsched", {"level": "T0"}),
    "T1": ("listsched", {"level": "T1"}),
    "T2": ("listsched", {"level": "T2"}),
    "pipelined": ("pipelined", {}),
    "latency": ("latency", {}),
}
DATAFLOW = ("T0", "T1", "T2")  # those to which priorities matter
EVALUATIONS = 60
DEADLINE_S = 0.05
THREADS = 2  # of which each may have looked at the clock just before
BUDGETS = (1, 2, 5, EVALUATIONS)
OPERATIONS = 18
COLOCATED, PINNED = (2, 9), (5, 1)  # operations that share a device; an operation and the one device that it may use
DEVICES = ("A", "B", "C")


def wide_problem(*, ordered: bool = False, memory_bytes: int = 0, start: Placement | None = None) -> Problem:
    """Return four chains of four operations between a source and a sink; two operations colocated, one pinned."""
    rng = np.random.default_rng(0)
    chains = [[1 + 4 * c + i for i in range(4)] for c in range(4)]
    edges = [(0, c[0]) for c in chains] + [(c[-1], OPERATIONS - 1) for c in chains]
    edges += [pair for c in chains for pair in itertools.pairwise(c)]
    colocate = [0 if i in COLOCATED else -1 for i in range(OPERATIONS)]
    graph = graph_of(OPERATIONS, edges, colocate=colocate, weight_bytes=[10] * OPERATIONS, out_bytes=[4] * OPERATIONS)
    allowed = np.ones((OPERATIONS, 3), bool)
    allowed[PINNED[0]] = np.arange(3) == PINNED[1]
    return small_problem(
        graph,
        1e-3 * (0.5 + rng.random((OPERATIONS, 3))),
        allowed=allowed,
        topology=small_topology(3, memory_bytes=memory_bytes),
        group="edge_score",
        ordered=ordered,
        start=start,
    )


def simulator_of(problem: Problem, rules: str) -> Simulator:
    """Return a simulator of a problem's operations; rules: a name in SIMULATORS."""
    name, values = SIMULATORS[rules]
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    simulator: Simulator = build_implementation("measure", name, values).bind(subject)
    return simulator


def check_on_every_simulator(placer: Placer) -> None:
    """Require of every simulator: budget, bound, values as it says, constraints kept, and who found what."""
    for rules in SIMULATORS:
        check_on_simulator(placer, rules)


def check_on_simulator(placer: Placer, rules: str) -> None:
    """Require of one simulator what `check_on_every_simulator` requires of all."""
    problem, where = wide_problem(), f"on the simulator {rules}"
    simulator = simulator_of(problem, rules)
    answer = _place_with_simulator(placer, problem, simulator)
    spent = simulator.evaluations
    require_promise(1 <= spent <= EVALUATIONS, placer, f"asks about {spent} placements of {EVALUATIONS} {where}")
    for candidate in answer.candidates:
        placement = candidate.placement
        require_promise(problem.fits(placement), placer, f"answers with a device that is not allowed {where}")
        require_promise(_constraints_hold(placement.device), placer, f"breaks a colocation constraint or a pin {where}")
        require_promise(
            placement.priority is None, placer, f"gives priorities, which the problem does not allow, {where}"
        )
        require_promise(bool(candidate.found_by), placer, f"does not say who found a placement {where}")
        if isinstance(candidate.result, Prediction):
            said = _evaluated_s(simulator, placement)
            same = math.isclose(candidate.result.value_s, said, rel_tol=1e-6)
            require_promise(
                same, placer, f"says {candidate.result.value_s} s of a placement that takes {said} s {where}"
            )
    bounded = answer.lower_bound_s <= answer.value_s * (1 + 1e-9)  # both are sums of the same times, in another order
    require_promise(bounded, placer, f"finds a placement faster than its lower bound {where}")


def check_priorities(placer: Placer) -> None:
    """Require with priorities: an answer no worse than the start, equal for equal seeds."""
    device = np.where(np.arange(OPERATIONS) % 2 == 0, 0, 1).astype(np.int32)
    device[list(COLOCATED)], device[PINNED[0]] = 0, PINNED[1]
    start = Placement(device, DEVICES, np.arange(float(OPERATIONS))[::-1])
    problem = wide_problem(ordered=True, start=start)
    for rules in DATAFLOW:
        first, again = (_place_with_simulator(placer, problem, simulator_of(problem, rules), seed=3) for _ in range(2))
        start_s = _evaluated_s(simulator_of(problem, rules), start)
        require_promise(first.value_s <= start_s, placer, f"ends worse than its start on the simulator {rules}")
        keys = [[c.placement.key() for c in answer.candidates] for answer in (first, again)]
        require_promise(keys[0] == keys[1], placer, f"answers differently for an equal seed on the simulator {rules}")


def check_budgets_with_priorities(placer: Placer) -> None:
    """Require that looking for an order keeps the budget as well."""
    problem = wide_problem(ordered=True)
    for evaluations in BUDGETS:
        simulator = simulator_of(problem, "T2")
        _place_with_simulator(placer, problem, simulator, evaluations=evaluations)
        spent = simulator.evaluations
        require_promise(
            spent <= evaluations, placer, f"asks about {spent} placements of {evaluations}, looking for an order"
        )


def check_activations(placer: Placer) -> None:
    """Require that activations count against memory where the simulator says so."""
    # 18 weights of 10 bytes and tensors of 4: no device holds them all, two do only just.
    device = (np.arange(OPERATIONS) % 3).astype(np.int32)
    device[list(COLOCATED)], device[PINNED[0]] = 0, PINNED[1]
    problem = wide_problem(memory_bytes=95, start=Placement(device, DEVICES))
    simulator = simulator_of(problem, "T2")
    for candidate in _place_with_simulator(placer, problem, simulator).candidates:
        if isinstance(candidate.result, Prediction):
            over_bytes = simulator.simulate(candidate.placement.device[None]).over_bytes[0]
            require_promise(over_bytes == 0, placer, f"answers with a placement {over_bytes} bytes over memory")


def check_deadline(placer: Placer) -> None:
    """Require that, once the time is up, no thread asks about more than one placement, batch or local search."""
    problem = _chains_problem()
    asked = _Clocked(simulator_of(problem, "T2"), [])
    until_s = time.monotonic() + DEADLINE_S
    placer.place(problem, asked, Budget(seconds=DEADLINE_S), seed=0, progress=ignore_progress)
    late = sum(at_s > until_s for at_s in asked.asked_s[1:])  # the first question is asked in any case
    require_promise(late <= THREADS, placer, f"asks its evaluator {late} times after its time is up")


class _Clocked:
    """A simulator that notes when it is asked about a placement; its forks note it in the same list."""

    version: ClassVar[int] = 1

    def __init__(self, simulator: Simulator, asked_s: list[float]) -> None:
        self._simulator, self.asked_s = simulator, asked_s

    @property
    def fingerprint(self) -> str:
        return self._simulator.fingerprint

    @property
    def evaluations(self) -> int:
        return self._simulator.evaluations

    @property
    def execution(self) -> ExecutionModel:
        return self._simulator.execution

    def fork(self) -> _Clocked:
        return _Clocked(self._simulator.fork(), self.asked_s)

    def absorb(self, evaluations: int) -> None:
        self._simulator.absorb(evaluations)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        self.asked_s.append(time.monotonic())
        return self._simulator.evaluate(placements)

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        if len(device):
            self.asked_s.append(time.monotonic())
        return self._simulator.simulate(device, priority)

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        if limit > 0:
            self.asked_s.append(time.monotonic())
        return self._simulator.local_search(start, moves, allowed=allowed, limit=limit)

    def timeline(self, placement: Placement) -> Timeline:
        self.asked_s.append(time.monotonic())
        return self._simulator.timeline(placement)


def _chains_problem() -> Problem:
    """Return 12 chains of 25 operations between a source and a sink, on three devices."""
    n, rng = 12 * 25 + 2, np.random.default_rng(1)
    chains = [[1 + 25 * c + i for i in range(25)] for c in range(12)]
    edges = [(0, c[0]) for c in chains] + [(c[-1], n - 1) for c in chains]
    edges += [pair for c in chains for pair in itertools.pairwise(c)]
    graph = graph_of(n, edges, weight_bytes=[10] * n, out_bytes=[4] * n)
    return small_problem(graph, 1e-3 * (0.5 + rng.random((n, 3))), topology=small_topology(3), group="edge_score")


_PROMISES = (
    check_on_every_simulator,
    check_priorities,
    check_budgets_with_priorities,
    check_activations,
    check_deadline,
)
SIMULATED_PROMISES = tuple(map(promise_that_ends, _PROMISES))  # each ends, whatever it tries


def _place_with_simulator(
    placer: Placer, problem: Problem, simulator: Simulator, *, evaluations: int = EVALUATIONS, seed: int = 0
) -> Answer:
    return placer.place(problem, simulator, Budget(evaluations), seed=seed, progress=ignore_progress)


def _constraints_hold(device: Int32) -> bool:
    return bool(device[COLOCATED[0]] == device[COLOCATED[1]] and device[PINNED[0]] == PINNED[1])


def _evaluated_s(simulator: Simulator, placement: Placement) -> float:
    result = simulator.evaluate([placement])[0]
    return seconds_of(result)
