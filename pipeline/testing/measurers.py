"""What every measurer promises, the evaluators it binds, and the simulators among them."""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.arrays import Int32
from pipeline.core.devices import CostTable
from pipeline.core.graph import Grouping
from pipeline.core.measurement import MeasurementFailed, Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from pipeline.core.stages import Measurer, Simulator, Subject, is_simulator
from pipeline.testing.graphs import graph_of
from pipeline.testing.problems import small_topology
from pipeline.testing.promises import check_declaration, promise_that_ends, require_promise

MOVES = 8


@promise_that_ends
def check_measurer(measurer: Measurer, subject: Subject | None = None) -> None:
    """Hold a measurer, and the evaluator it binds, to all promises of their Protocols.

    subject: what it is bound to, two devices and costs at least; one of no model unless given.

    Raises:
        AssertionError: it breaks one of them; the message says which.
    """
    subject = small_subject() if subject is None else subject
    check_declaration(measurer)
    require_promise(isinstance(measurer.real, bool), measurer, f"says real is {measurer.real!r}, not True or False")
    check_answers(measurer, subject)
    check_fingerprint(measurer, subject)
    if is_simulator(measurer.bind(subject)):
        check_simulations(measurer, subject)
        check_local_search(measurer, subject)
        check_forks(measurer, subject)


def small_subject() -> Subject:
    """Return two towers of three operations between a source and a sink, on devices A and B, each with a weight."""
    graph = graph_of(
        8,
        [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 6), (3, 7), (6, 7)],
        types=["Parameter", *["MatMul"] * 6, "Result"],
        weight_bytes=[0, *[8] * 6, 0],
        out_bytes=[4] * 8,
    )
    topology = small_topology()
    op_s = np.outer([0.0, *[1.0] * 6, 0.0], [1e-3, 2e-3])
    costs = CostTable(graph.names, topology.names, op_s, np.full(2, 1e-4), ("given", "given"))
    return Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)


def check_answers(measurer: Measurer, subject: Subject) -> None:
    """Require one answer per placement, in order, a count of them, and times above 0 for devices that run them."""
    evaluator = measurer.bind(subject)
    require_promise(
        evaluator.evaluations == 0, measurer, f"binds an evaluator that begins at {evaluator.evaluations}, not 0"
    )
    require_promise(evaluator.evaluate([]) == [], measurer, "answers where nothing was asked")
    names = subject.topology.names
    alone, split = (Placement(device, names) for device in _device_rows(subject)[:2])
    answers = evaluator.evaluate([split, alone])
    require_promise(len(answers) == 2, measurer, f"gives {len(answers)} answers to 2 placements")
    require_promise(evaluator.evaluations == 2, measurer, f"counts {evaluator.evaluations} evaluations instead of 2")
    for placement, answer in zip((split, alone), answers, strict=True):
        if isinstance(answer, MeasurementFailed):
            raise AssertionError(f"{measurer} fails on a placement that the devices support: {answer.message}")
        require_promise(answer.value_s > 0, measurer, f"says that a placement takes {answer.value_s} s")
        predicted = isinstance(answer, Prediction)
        require_promise(predicted == is_simulator(evaluator), measurer, f"calls a {type(answer).__name__} what is none")
        ran, used = set(answer.executed_on), {names[d] for d in placement.device}
        require_promise(
            ran <= used, measurer, f"answers out of order: says {sorted(ran)} of a placement on {sorted(used)}"
        )


def check_fingerprint(measurer: Measurer, subject: Subject) -> None:
    """Require that evaluators of equal subjects have equal fingerprints, which say something."""
    first, again = (measurer.bind(subject).fingerprint for _ in range(2))
    require_promise(first != "", measurer, "binds an evaluator of an empty fingerprint")
    require_promise(first == again, measurer, "gives equal subjects different fingerprints")


def check_simulations(measurer: Measurer, subject: Subject) -> None:
    """Require of a simulator that batches, single questions and timelines tell one time, and that all are counted."""
    simulator = _bound_simulator(measurer, subject)
    device = _device_rows(subject)
    simulation = simulator.simulate(device)
    require_promise(simulator.evaluations == len(device), measurer, "does not count each placement of a batch once")
    for row, value_s in zip(device, simulation.value_s.tolist(), strict=True):
        placement = Placement(row, subject.topology.names)
        answer = simulator.evaluate([placement])[0]
        one_s = seconds_of(answer)
        require_promise(
            math.isclose(one_s, value_s, rel_tol=1e-9), measurer, f"says {one_s} s and {value_s} s of one placement"
        )
    before = simulator.evaluations
    simulator.timeline(Placement(device[0], subject.topology.names))
    spent = simulator.evaluations - before
    require_promise(spent in (0, 1), measurer, f"counts {spent} evaluations for a timeline")


def check_local_search(measurer: Measurer, subject: Subject) -> None:
    """Require that local search takes moves that are no slower, ends in what it says, and within its limit."""
    simulator = _bound_simulator(measurer, subject)
    names, k = subject.topology.names, subject.grouping.k
    rng = np.random.default_rng(0)
    start = Placement(_device_rows(subject)[0], names)
    moves = Moves.single(
        rng.integers(0, k, MOVES).astype(np.int32), np.arange(MOVES, dtype=np.int32) % 2, np.zeros(MOVES)
    )
    allowed = np.ones((k, len(names)), np.bool_)
    local_search = simulator.local_search(start, moves, allowed=allowed, limit=MOVES // 2)
    tried = int(np.count_nonzero(local_search.tried))
    require_promise(tried <= MOVES // 2, measurer, f"tries {tried} moves of at most {MOVES // 2}")
    spent = simulator.evaluations
    require_promise(
        spent == local_search.evaluations,
        measurer,
        f"counts {spent} evaluations of a local search of {local_search.evaluations}",
    )
    plain = _bound_simulator(measurer, subject)
    for placement, said_s in ((local_search.end, local_search.end_s), (local_search.best, local_search.best_s)):
        value_s = float(plain.simulate(placement.device[None]).value_s[0])
        require_promise(
            math.isclose(value_s, said_s, rel_tol=1e-9),
            measurer,
            f"says {said_s} s of where local search ends, at {value_s} s",
        )
    start_s = float(plain.simulate(start.device[None]).value_s[0])
    require_promise(
        local_search.end_s <= start_s * (1 + 1e-9),
        measurer,
        "searches to a slower placement by moves that must not be slower",
    )


def check_forks(measurer: Measurer, subject: Subject) -> None:
    """Require of a simulator that a fork counts from 0, says the same, and is counted once it is absorbed."""
    simulator = _bound_simulator(measurer, subject)
    device = _device_rows(subject)
    value_s = simulator.simulate(device).value_s
    fork = simulator.fork()
    require_promise(fork.evaluations == 0, measurer, f"forks a simulator that begins at {fork.evaluations}, not 0")
    require_promise(
        np.array_equal(fork.simulate(device).value_s, value_s), measurer, "forks a simulator that says other times"
    )
    simulator.absorb(fork.evaluations)
    counted = simulator.evaluations
    require_promise(
        counted == 2 * len(device), measurer, f"counts {counted} of {2 * len(device)} evaluations with its fork's"
    )


def _bound_simulator(measurer: Measurer, subject: Subject) -> Simulator:
    evaluator = measurer.bind(subject)
    if not is_simulator(evaluator):
        raise AssertionError(f"{measurer} binds no simulator")
    return evaluator


def _device_rows(subject: Subject) -> Int32:
    """Return int32 [3, k]: all nodes on the first device, one half of them on the second, and all of them there."""
    k = subject.grouping.k
    device = np.zeros((3, k), np.int32)
    device[1, k // 2 :] = 1
    device[2] = 1
    return device
