"""Small problems against brute force: bounds, proofs and answers of all placers, on simulators and beside failures.

Costs spread over up to 15 orders of magnitude, devices and links are unlike, memory is short, operations are colocated
or have one home. What no placer may do: give an answer that does not fit, say other seconds than the simulator does,
claim a bound above the optimum or a proof of what is none, exceed its evaluations, or raise anything but what it says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from embed.features import node_features
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Subject
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.testing.problems import SumEvaluator, ignore_progress
from policy.place.exact.shared.proofs import lower_bound
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.plain_listsched import PlainMachine
from tests.small_cases import small_case

CLOSE = 1e-9
PROVEN = 1.01e-4  # `proven` is to 1e-4 of the value
RULES: Sequence[tuple[str, dict[str, Any]]] = (
    ("listsched", {"level": "T0"}),
    ("listsched", {"level": "T1"}),
    ("listsched", {"level": "T2"}),
    ("sequential", {}),
    ("pipelined", {}),
    ("latency", {}),
)
ORDERS = 8  # priorities drawn where orders count
LARGE_EVERY = 50  # the others have five operations at most, and placers that take milliseconds
PROOF_S = 0.02  # for a bound, of a small problem
QUICK = ("single", "random", "round_robin", "greedy", "heft", "cpop", "peft", "etf", "critical_path", "m_etf", "m_sct")
QUICK = (*QUICK, "m_topo", "metis", "expert", "min_cut", "dp", "dpl", "pipedream", "latency_dp", "anneal", "multilevel")
SLOW = ("gdp", "sgdp", "hdp", "rnn", "placeto", "hsdag_paper", "hsdag_released", "hsdag", "neural_list", "milp")
SLOW = (*SLOW, "cpsat")


def drawn_problem(case: Case) -> Problem:
    """Return a small problem, of every second one with times and links that differ by orders of magnitude."""
    rng = case.rng
    problem = small_case(int(rng.integers(10**9))).problem
    while problem.graph.n > 5 and not is_large(case):
        problem = small_case(int(rng.integers(10**9))).problem
    costs, topology = problem.costs, problem.topology
    if costs is None:
        raise ValueError("a problem without costs")
    if case.seed % 2:
        spread = float(rng.uniform(1, 7.5))
        op_s = costs.op_s * 10.0 ** rng.uniform(-spread, spread, costs.op_s.shape)
        apart = ~np.eye(topology.p, dtype=bool)
        speed = 10.0 ** rng.uniform(-spread / 2, spread / 2, apart.shape)
        links = np.where(apart, topology.link_bytes_per_s * speed, np.inf)
        topology = dataclasses.replace(topology, link_bytes_per_s=links)
        problem = problem.on(topology=topology, costs=dataclasses.replace(costs, op_s=op_s))
    if not is_large(case):
        return problem
    features = node_features(problem.graph, Grouping.identity(problem.graph.n), problem.costs).values
    policy = PolicyInputs(
        features, build_implementation("embed", "directed"), build_implementation("group", "identity")
    )
    return dataclasses.replace(problem, policy=policy)


def is_large(case: Case) -> bool:
    """Return whether a case may take seconds."""
    return case.seed % LARGE_EVERY == LARGE_EVERY - 1


def drawn_placer(case: Case) -> str:
    """Return a placer, a quick one for a small case."""
    names = sorted(implementation_table("place")) if is_large(case) else QUICK
    return str(names[case.rng.integers(len(names))])


def simulator_for(problem: Problem, rules: tuple[str, dict[str, Any]]) -> Any:
    """Return a simulator of a problem's operations, its count at 0."""
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build_implementation("measure", *rules).bind(subject)


class Unreliable(SumEvaluator):
    """An evaluator that refuses some placements, scatters, and may be interrupted at a call."""

    version: ClassVar[int] = 1

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        if problem.costs is None:
            raise ValueError("a problem without costs")
        super().__init__(problem.graph, problem.topology, problem.costs.op_s)
        self._rng, self._share = rng, float(rng.choice([0.0, 0.2, 0.9, 1.0]))
        self.interrupt_at = int(rng.integers(1, 8)) if rng.random() < 0.3 else 0
        self.said: dict[bytes, float] = {}
        self._calls = 0

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return one answer per placement: a failure of some kind, or scattered seconds."""
        self._calls += 1
        if self._calls == self.interrupt_at:
            raise KeyboardInterrupt
        answers: list[Evaluation] = []
        for placement, measured in zip(placements, super().evaluate(placements), strict=True):
            if self._rng.random() < self._share:
                kind = str(self._rng.choice(["refused", "out_of_memory", "timeout", "crashed", "wrong_output"]))
                answers.append(MeasurementFailed(kind, "not now"))  # type: ignore[arg-type]
                continue
            seconds = measured.samples_s * self._rng.uniform(0.9, 1.1, 3)  # type: ignore[union-attr]
            self.said[placement.key()] = float(np.median(seconds))
            answers.append(Measurement(seconds))
        return answers


def judge_bound(case: Case) -> str:
    """Hold the lower bound of a simulator against all placements, and some orders."""
    problem, rules = drawn_problem(case), RULES[case.rng.integers(len(RULES))]
    simulator = simulator_for(problem, rules)
    least_s = least_of(problem, simulator)
    bound_s, by = lower_bound(problem, simulator.execution, seconds=2.0 if is_large(case) else PROOF_S, one_to_one=True)
    require(bound_s <= least_s * (1 + CLOSE), f"{rules}: {by} proves {bound_s}, and a placement takes {least_s}")
    if rules[0] == "listsched" and math.isfinite(least_s):
        device = np.array([p.device for p in every_placement(problem)], np.int32)
        for _ in range(ORDERS):
            priority = case.rng.permutation(problem.graph.n).astype(float)
            found = simulator.simulate(device, np.tile(priority, (device.shape[0], 1)))
            fits = found.over_bytes == 0
            if fits.any():
                value_s = float(found.value_s[fits].min())
                require(bound_s <= value_s * (1 + CLOSE), f"{rules}: {by} proves {bound_s}, an order takes {value_s}")
    return f"bound of {rules[0]}"


def every_placement(problem: Problem) -> list[Placement]:
    """Return all placements of groups on devices that they may use."""
    from itertools import product

    homes = [np.flatnonzero(row).tolist() for row in problem.group_allowed(problem.grouping)]
    groups = (np.array(d, np.int32) for d in product(*homes))
    return [Placement(g[problem.grouping.group], problem.topology.names) for g in groups]


def least_of(problem: Problem, simulator: Any) -> float:
    """Return the least seconds of all placements that fit; inf if none does."""
    device = np.array([p.device for p in every_placement(problem)], np.int32)
    if device.size == 0:
        return math.inf
    found = simulator.fork().simulate(device)
    return float(np.where(found.over_bytes == 0, found.value_s, math.inf).min(initial=math.inf))


def judge_placer(case: Case) -> str:
    """Hold what a placer says on a simulator against all placements."""
    problem, rules = drawn_problem(case), RULES[case.rng.integers(len(RULES))]
    name = "portfolio" if case.rng.random() < (0.4 if is_large(case) else 0.05) else drawn_placer(case)
    most = 40 if not is_large(case) else 60 if name in SLOW else 3000
    evaluations = int(case.rng.choice([1, 2, 7, 40, most]))
    simulator, where = simulator_for(problem, rules), f"{name} on {rules} with {evaluations} evaluations"
    least_s = least_of(problem, simulator)
    before = simulator.evaluations
    try:
        answer = build_implementation("place", name, {}).place(
            problem, simulator, Budget(evaluations), seed=int(case.rng.integers(100)), progress=ignore_progress
        )
    except (DeviceError, UsageError) as error:
        require(
            not isinstance(error, DeviceError) or math.isinf(least_s) or evaluations < 3000 or name != "portfolio",
            f"{where}: finds nothing where a placement takes {least_s}: {error}",
        )
        return "refused"
    require(simulator.evaluations - before <= evaluations, f"{where}: asks {simulator.evaluations - before} times")
    check_answer(problem, simulator, answer, least_s, where)
    return "placed"


def check_answer(problem: Problem, simulator: Any, answer: Answer, least_s: float, where: str) -> None:
    """Hold an answer against brute force."""
    require(answer.lower_bound_s <= least_s * (1 + CLOSE), f"{where}: bound {answer.lower_bound_s} above {least_s}")
    values = [c.result.value_s if isinstance(c.result, Prediction) else math.inf for c in answer.candidates]
    require(values == sorted(values), f"{where}: not best first: {values}")
    for candidate, value_s in zip(answer.candidates, values, strict=True):
        placement = candidate.placement
        if math.isinf(value_s):
            continue
        require(problem.fits(placement), f"{where}: an answer on a device that is not allowed")
        found = simulator.fork().simulate(placement.device[None], None)
        require(found.over_bytes[0] == 0, f"{where}: an answer {found.over_bytes[0]} bytes over memory")
        again_s = float(found.value_s[0])
        require(math.isclose(again_s, value_s, rel_tol=1e-6), f"{where}: says {value_s} of what takes {again_s}")
        require(value_s >= least_s * (1 - CLOSE), f"{where}: {value_s} below the least of all, {least_s}")
    if answer.proven and math.isfinite(answer.value_s):
        require(
            answer.value_s <= least_s * (1 + PROVEN), f"{where}: {answer.value_s} is proven, and {least_s} is there"
        )


def judge_unreliable(case: Case) -> str:
    """Hold a placer to its evaluator, of which measurements fail, scatter and are interrupted."""
    problem = drawn_problem(case)
    name = drawn_placer(case)
    evaluations = int(case.rng.choice([1, 2, 5, 20]))
    seconds = float(case.rng.choice([0.01, 0.1, 1.0])) if case.rng.random() < 0.4 else None
    evaluator, where = Unreliable(problem, case.rng), f"{name} with {evaluations} evaluations and {seconds} s"
    placer = build_implementation("place", name, {})
    try:
        answer = placer.place(problem, evaluator, Budget(evaluations, seconds), seed=0, progress=ignore_progress)
    except (DeviceError, UsageError):
        return "refused"
    except KeyboardInterrupt:
        require(evaluator.interrupt_at, f"{where}: an interrupt of its own")
        return "interrupted"
    require(
        not evaluator.interrupt_at or evaluator.evaluations < evaluator.interrupt_at * 1000, "swallows an interrupt"
    )
    require(evaluator.evaluations <= evaluations, f"{where}: asks about {evaluator.evaluations}")
    for candidate in answer.candidates:
        if isinstance(candidate.result, Measurement):
            said = evaluator.said.get(candidate.placement.key())
            require(said is not None, f"{where}: a measurement of what was not measured")
    least = min(evaluator.said.values(), default=math.inf)
    if math.isfinite(least):
        value = answer.value_s
        require(math.isclose(value, least, rel_tol=1e-6), f"{where}: answers {value}, and measured {least}")
    return "measured"


def judge_told_otherwise(case: Case) -> str:
    """Hold a simulator against itself with all seconds doubled, and with devices called otherwise; against a plain one.

    Doubling is exact in floating point.
    """
    problem, rules = drawn_problem(case), RULES[case.rng.integers(len(RULES))]
    simulator, where = simulator_for(problem, rules), str(rules)
    device = np.array([p.device for p in every_placement(problem)], np.int32)
    if device.size == 0 or problem.costs is None:
        return "nothing fits"
    found = simulator.simulate(device)
    topology, costs, p = problem.topology, problem.costs, problem.topology.p
    slow = dataclasses.replace(
        topology,
        link_bytes_per_s=topology.link_bytes_per_s / 2,
        link_latency_s=topology.link_latency_s * 2,
    )
    twice = dataclasses.replace(costs, op_s=costs.op_s * 2, launch_s=costs.launch_s * 2)
    doubled = simulator_for(problem.on(topology=slow, costs=twice), rules).simulate(device)
    if rules[1] != {"level": "T1"}:  # which has seconds of its own
        require((doubled.value_s == 2 * found.value_s).all(), f"{where}: {found.value_s} become {doubled.value_s}")
    require((doubled.peak_bytes == found.peak_bytes).all(), f"{where}: bytes depend on seconds")
    if rules[0] == "listsched":
        row = device[int(case.rng.integers(device.shape[0]))]
        plain = PlainMachine(problem.graph, topology, costs.op_s, simulator.execution, row.tolist(), None)
        ours = float(simulator.fork().simulate(row[None]).value_s[0])
        theirs = plain.go().value_s
        require(math.isclose(ours, theirs, rel_tol=CLOSE), f"{where}: {row} takes {ours}, plainly {theirs}")
        return "simulated by listsched"  # where of equal claims the first device's comes first
    order = case.rng.permutation(p)
    back = np.argsort(order).astype(np.int32)
    swapped = dataclasses.replace(
        topology,
        devices=tuple(topology.devices[d] for d in order),
        link_bytes_per_s=topology.link_bytes_per_s[np.ix_(order, order)],
        link_latency_s=topology.link_latency_s[np.ix_(order, order)],
    )
    moved = dataclasses.replace(costs, devices=swapped.names, op_s=costs.op_s[:, order], launch_s=costs.launch_s[order])
    other = problem.on(topology=swapped, costs=moved, allowed=problem.allowed[:, order])
    again = simulator_for(other, rules).simulate(back[device])
    alike = np.isclose(again.value_s, found.value_s, rtol=CLOSE)
    require(alike.all(), f"{where}: devices in the order {order} take {again.value_s}, not {found.value_s}")
    require(
        (again.peak_bytes[:, back] == found.peak_bytes).all(), f"{where}: devices in the order {order} hold other bytes"
    )
    return f"simulated by {rules[0]}"


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what judges bounds, placers on simulators, and placers beside failures, in turn."""
    trials = (judge_bound, judge_placer, judge_placer, judge_unreliable, judge_told_otherwise)

    def judge(case: Case) -> str:
        return trials[case.seed // 2 % len(trials)](case)

    yield judge


CAMPAIGN = Campaign("graphs", 2.0, begin)
