"""Searching in a simulator that measurements correct, with another simulator in the place of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, ProgressHook
from pipeline.core.stages import Answer, Candidate, Evaluator, Placer, Subject
from pipeline.placing.calibrated_rounds import (
    CALIBRATION,
    Campaign,
    HybridOutcome,
    Proposal,
    Rounds,
    alternate_with_measuring,
    every_best_first,
)
from pipeline.placing.journal import Journal, Remembered
from pipeline.placing.searchers import Searcher, in_turn, lower_placement
from pipeline.settings.config import Settings
from pipeline.settings.registry import build_implementation
from pipeline.shared.payload import from_json
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.place import PlaceParams, rounds_within
from pipeline.stages.plan import plan_tasks
from runtime.measuring.contest.hetero import Hetero
from runtime.measuring.process.affinity import normalise_placement
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.sequential.sequential import Sequential
from tests.toys import toy_graph, toy_problem, toy_topology

N = 10
SLOWER = 5.0  # times the profiled seconds that the link really takes
Result = Evaluation
ROUNDS = Rounds(number=3, measurements=9, evaluations=600)


def mute(_: str) -> None:
    """Say nothing."""


def profiled(n: int = N) -> Subject:
    """Return a chain whose operations are fast on one device and slow on the other, in random turns."""
    graph = toy_graph(n, [(i, i + 1) for i in range(n - 1)])
    fast = np.random.default_rng(4).integers(0, 2, n)
    op_s = np.full((n, 2), 1.0e-3)
    op_s[np.arange(n), fast] = 0.2e-3
    topology = toy_topology()
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(2), ("given", "given"))
    return Subject(Path(), graph, Grouping.identity(n), topology, costs, 0)


def real(subject: Subject, slower: float = SLOWER) -> Subject:
    """Return the same subject on the machine as it is: its links are slower than was profiled."""
    t = subject.topology
    return replace(subject, topology=Topology(t.devices, t.link_bytes_per_s / slower, t.link_latency_s * slower))


def searcher(name: str, subject: Subject, grouping: Grouping | None = None) -> Searcher:
    assert subject.costs is not None
    problem = toy_problem(subject.graph, subject.costs.op_s, topology=subject.topology)
    placer: Placer = build_implementation("place", name)
    return Searcher(name, placer, problem, grouping or subject.grouping, Sequential().bind)


class Devices:
    """Stands for the devices: answers by a table of its own, refuses what it is told to, and counts."""

    version = 1
    fingerprint = "devices"

    def __init__(self, truth: Subject, refuse: Callable[[Placement], bool] = lambda _: False) -> None:
        self.inner: Evaluator = Sequential().bind(truth)
        self.refuse = refuse
        self.asked: list[bytes] = []

    @property
    def evaluations(self) -> int:
        return len(self.asked)

    def evaluate(self, placements: Sequence[Placement]) -> list[Result]:
        self.asked += [plan.key() for plan in placements]
        answers = zip(placements, self.inner.evaluate(placements), strict=True)
        return [MeasurementFailed("refused", "not this one") if self.refuse(p) else a for p, a in answers]

    def ask(self, placement: Placement) -> Result:
        return self.evaluate([placement])[0]


def seconds(subject: Subject, placement: Placement) -> float:
    (answer,) = Sequential().bind(subject).evaluate([placement])
    assert isinstance(answer, Prediction)
    return answer.value_s


def optimum_s(subject: Subject) -> float:
    plans = np.array(list(product(range(2), repeat=subject.graph.n)), np.int32)
    return float(Sequential().bind(subject).simulate(plans).value_s.min())


def found_by(subject: Subject, devices: Devices, rounds: Rounds = ROUNDS, *names: str) -> HybridOutcome:
    searchers = [searcher(name, subject) for name in names or ("anneal",)]
    return alternate_with_measuring(subject, searchers, Sequential(), devices.ask, rounds, seed=0, say=mute)


@pytest.mark.parametrize("slower", [SLOWER, 1 / SLOWER])
def test_it_finds_the_optimum_of_devices_with_other_links_than_profiled_and_the_simulator_alone_does_not(
    slower: float,
) -> None:
    truth = profiled() if slower > 1 else real(profiled(), SLOWER)
    subject, truth = truth, real(truth, slower)
    devices = Devices(truth)
    found = found_by(subject, devices)
    assert found.proposals[0].measured_s == pytest.approx(optimum_s(truth))
    (alone,) = in_turn([searcher("anneal", subject)], subject, None, Budget(600), seed=0, say=mute)
    assert seconds(subject, alone.answer.best.placement) == pytest.approx(optimum_s(subject))
    assert seconds(truth, alone.answer.best.placement) > 1.1 * optimum_s(truth)
    first, *_, last = [r.error for r in found.rounds if r.error is not None]
    assert last < first
    assert found.used == len(devices.asked)


@pytest.mark.parametrize(("number", "measurements"), [(3, 9), (2, 5), (1, 4), (4, 2), (3, 0), (1, 1000)])
def test_it_measures_nothing_twice_and_no_more_than_it_may(number: int, measurements: int) -> None:
    devices = Devices(real(profiled()))
    rounds = Rounds(number, measurements, 300)
    found = found_by(profiled(), devices, rounds, "anneal", "greedy")
    assert len(devices.asked) == len(set(devices.asked)) == sum(r.measurements for r in found.rounds) <= measurements
    if measurements <= 9:
        assert len(devices.asked) == measurements
    owners = [p.placer for p in found.proposals if p.measured is not None]
    assert len(owners) == len(devices.asked)
    assert set(owners) <= {"anneal", "greedy", CALIBRATION}
    assert all(count <= 300 + number for count in found.evaluations.values())
    assert sum(found.evaluations.values()) == sum(r.evaluations for r in found.rounds)


def test_measured_placements_come_first_and_all_are_distinct_once_settled() -> None:
    subject = profiled()
    found = found_by(subject, Devices(real(subject)))
    ranks = [p.rank for p in found.proposals]
    assert ranks == sorted(ranks)
    assert [r for r, _ in ranks[:9]] == [0] * 9
    assert {r for r, _ in ranks[9:]} == {1}
    keys = [normalise_placement(subject.graph, p.placement).key() for p in found.proposals]
    assert len(set(keys)) == len(keys)


def test_the_best_single_device_is_measured_first() -> None:
    subject = profiled()
    devices = Devices(real(subject))
    found_by(subject, devices)
    singles = [Placement.single(N, d, subject.topology.names) for d in range(2)]
    best = min(singles, key=lambda plan: seconds(subject, plan))
    assert devices.asked[0] == best.key()


def test_of_equal_predictions_the_less_certain_is_measured_first() -> None:
    subject = profiled()
    once = Placement(np.repeat([0, 1], N // 2), subject.topology.names)
    many = Placement(np.arange(N) % 2, subject.topology.names)
    campaign = Campaign.of(subject, Sequential())
    campaign.note("x", [(plan, "x") for plan in (once, many)])
    certain, uncertain = campaign.proposals.values()
    # Both have half of the operations on either device, but one has nine transfers of which little is known.
    certain.predicted_s = uncertain.predicted_s = 1e-2
    assert campaign.most_promising() is uncertain
    uncertain.predicted_s = 1.0
    assert campaign.most_promising() is certain


def test_the_promise_is_a_standard_deviation_below_the_prediction() -> None:
    subject = profiled(2)
    campaign = Campaign.of(subject, Sequential())
    campaign.belief = replace(campaign.belief, covariance=np.diag(np.full(len(campaign.terms.terms), 0.25)))
    plans = [Placement(np.array(d), subject.topology.names) for d in ([0, 0], [1, 1])]
    campaign.note("x", [(plan, "x") for plan in plans])
    known, unknown = campaign.proposals.values()
    known.row, unknown.row = np.zeros(len(campaign.terms.terms)), np.eye(len(campaign.terms.terms))[0]
    # log 2 - 0.5 / 2 is log 1.5576, so that the uncertain one is worth 1.5576 seconds.
    unknown.predicted_s = 2.0
    known.predicted_s = 1.55
    assert campaign.most_promising() is known
    known.predicted_s = 1.56
    assert campaign.most_promising() is unknown


def test_a_search_that_was_stopped_asks_nothing_that_its_journal_holds(tmp_path: Path) -> None:
    subject = profiled()

    def once(devices: Devices) -> HybridOutcome:
        journal = Journal.of(tmp_path / "measured.jsonl", "here", devices)
        searchers = [searcher("anneal", subject)]
        return alternate_with_measuring(subject, searchers, Sequential(), journal.ask, ROUNDS, seed=0, say=mute)

    first, second, third = (Devices(real(subject)) for _ in range(3))
    whole = once(first)
    assert len(first.asked) == 9
    again = once(second)
    assert second.asked == []
    assert [p.placement.key() for p in again.proposals] == [p.placement.key() for p in whole.proposals]
    lines = (tmp_path / "measured.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "measured.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:9])
    once(third)
    assert third.asked == first.asked[4:]


def test_where_every_split_is_refused_it_stops_asking_and_searches_on() -> None:
    subject = profiled()
    devices = Devices(real(subject), refuse=lambda plan: len(plan.devices_used) > 1)
    found = found_by(subject, devices)
    assert [(r.measurements, r.failed) for r in found.rounds] == [(3, 2), (1, 1), (0, 0)]
    assert all(r.evaluations > 0 for r in found.rounds)
    assert found.used == 1
    assert found.refusal == "refused: not this one"
    assert len(found.proposals[0].placement.devices_used) == 1


def test_devices_that_refuse_everything_leave_the_simulator_as_it_was() -> None:
    subject = profiled()
    found = found_by(subject, Devices(real(subject), refuse=lambda _: True))
    assert found.used == 0
    assert [r.error for r in found.rounds] == [None] * 3
    best = found.proposals[0]
    assert best.measured is None
    assert best.predicted_s == pytest.approx(seconds(subject, best.placement))
    assert all(p.measured is not None for p in found.proposals[-3:])


def test_when_the_time_is_over_the_first_round_measures_the_least_and_there_is_no_second() -> None:
    devices = Devices(real(profiled()))
    found = found_by(profiled(), devices, replace(ROUNDS, seconds=1e-6))
    assert [r.measurements for r in found.rounds] == [2]
    assert len(devices.asked) == 2
    measured = [p.placement for p in found.proposals if p.measured is not None]
    assert sorted(len(p.devices_used) for p in measured) == [1, 2]


def test_where_little_is_left_of_the_budget_a_single_device_alone_is_measured() -> None:
    devices = Devices(real(profiled()))
    found = found_by(profiled(), devices, replace(ROUNDS, seconds=1e-6, latest_s=0.0))
    assert [r.measurements for r in found.rounds] == [1]
    (measured,) = [p.placement for p in found.proposals if p.measured is not None]
    assert len(measured.devices_used) == 1


def test_where_next_to_nothing_is_left_of_the_budget_nothing_is_measured() -> None:
    settings = Settings().updated({"place.rounds": 3, "place.measurements": 9, "place.evaluations": 600}, "test")
    task = next(
        t
        for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, HostMachine((), {}, "here"))
        if t.stage == "place"
    )
    params = from_json(PlaceParams, task.params)
    assert rounds_within(params, 2.0, 10.0) == Rounds(3, 9, 600, 2.0, 5.0)
    assert rounds_within(params, 2.0, math.inf) == Rounds(3, 9, 600, 2.0, math.inf)
    short = rounds_within(params, 1e-6, 4.0)
    assert short == Rounds(3, 0, 600, 1e-6, 2.0)
    devices = Devices(real(profiled()))
    found = found_by(profiled(), devices, short)
    assert not devices.asked
    assert found.proposals[0].predicted_s > 0


def test_a_first_come_first_served_simulator_is_calibrated_too() -> None:
    subject = profiled()
    bound = replace(searcher("anneal", subject), bind=ListSched().bind)
    devices = Devices(real(subject))
    found = alternate_with_measuring(subject, [bound], ListSched(), devices.ask, ROUNDS, seed=0, say=mute)
    # On a chain devices take turns, so that both simulators mean the same.
    assert found.proposals[0].measured_s == pytest.approx(optimum_s(real(subject)))


def test_an_evaluator_that_predicts_nothing_is_refused() -> None:
    class Oracle:
        version, real = 1, False

        def bind(self, subject: Subject) -> Evaluator:
            return Devices(subject)

    with pytest.raises(UsageError, match="Oracle is not a simulator"):
        Campaign.of(profiled(), Oracle())


def test_a_later_placer_begins_with_the_best_so_far_and_says_who_found_it() -> None:
    subject = profiled()
    first, second = in_turn(
        [searcher("anneal", subject), searcher("single", subject)], subject, None, Budget(400), seed=0, say=mute
    )
    assert second.answer.value_s == first.answer.value_s
    assert second.answer.best.found_by == first.answer.best.found_by == "anneal"
    assert second.evaluations <= 3


def test_a_start_that_tears_a_node_apart_is_rounded_and_nobodys_find() -> None:
    subject = profiled(4)
    assert subject.costs is not None
    grouping = Grouping(np.array([0, 0, 0, 1]))
    coarse = Sequential().bind(replace(subject, grouping=grouping))
    pair = toy_graph(2, [(0, 1)])
    problem = toy_problem(pair, np.array([[3e-3, 3e-3], [1e-3, 1e-3]]), topology=subject.topology)
    torn = Candidate(Placement(np.array([1, 0, 1, 0]), ("A", "B")), Measurement(np.ones(1)), "other")
    seeker = Searcher("single", build_implementation("place", "single"), problem, grouping, lambda _: coarse)
    outcome = seeker.search(subject, torn, Budget(1), seed=0, say=mute)
    assert outcome.answer.best.placement.device.tolist() == [1, 1, 1, 0]
    assert outcome.answer.best.found_by == "start"


def test_a_majority_that_is_not_allowed_does_not_count() -> None:
    plan = Placement(np.array([1, 1, 0, 1]), ("A", "B"))
    grouping = Grouping(np.array([0, 0, 0, 1]))
    assert lower_placement(plan, grouping, np.array([[True, True], [True, True]])).device.tolist() == [1, 1]
    assert lower_placement(plan, grouping, np.array([[True, False], [True, True]])).device.tolist() == [0, 1]


def test_what_one_grouping_had_measured_another_need_not_ask_again(tmp_path: Path) -> None:
    subject = profiled(4)
    devices = Devices(subject)
    journal = Journal.of(tmp_path / "measured.jsonl", "here", devices)
    fine, coarse = (
        Remembered(journal, replace(subject, grouping=g)) for g in (subject.grouping, Grouping(np.array([0, 0, 1, 1])))
    )
    names = subject.topology.names
    (one,) = fine.evaluate([Placement(np.array([0, 0, 1, 1]), names)])
    (two,) = coarse.evaluate([Placement(np.array([0, 1]), names)])
    assert one is two
    assert len(devices.asked) == 1
    assert (fine.evaluations, coarse.evaluations) == (1, 1)


def test_placers_may_ask_the_devices_alone(tmp_path: Path) -> None:
    subject = profiled(5)
    devices = Devices(real(subject))
    journal = Journal.of(tmp_path / "measured.jsonl", "here", devices)
    measured = replace(searcher("greedy", subject), bind=partial(Remembered, journal))
    (outcome,) = in_turn([measured], subject, None, Budget(40), seed=0, say=mute)
    assert outcome.answer.value_s == pytest.approx(optimum_s(real(subject)))
    assert len(devices.asked) == len(set(devices.asked)) <= 40
    asked = len(devices.asked)
    again = in_turn([measured, measured], subject, None, Budget(40), seed=0, say=mute)
    assert len(devices.asked) == asked
    assert again[-1].answer.value_s == outcome.answer.value_s


@pytest.mark.parametrize(
    ("values", "mark", "asked"),
    [
        ({"place.reward": "simulated"}, "", ("simulated", "sequential", None)),
        ({"place.reward": "hybrid"}, "here", ("hybrid", "sequential", "hetero")),
        ({"place.reward": "measured"}, "here", ("measured", "hetero", None)),
        ({"place.reward": "simulated", "place.evaluator": "hetero"}, "here", ("measured", "hetero", None)),
        ({"place.reward": "hybrid", "measure.use": "listsched"}, "", ("hybrid", "sequential", "listsched")),
    ],
)
def test_a_reward_that_is_measured_ties_the_artifact_to_the_machine(
    values: dict[str, str], mark: str, asked: tuple[str, str, str | None]
) -> None:
    model, machine = ModelFile(Path("m.xml"), "0" * 64), HostMachine((), {}, "here")
    task = next(t for t in plan_tasks(model, Settings().updated(values, "test"), machine) if t.stage == "place")
    assert (task.fingerprint, task.measures) == (mark, bool(mark))
    assert (task.params["reward"], task.params["evaluator"][0], (task.params["devices"] or [None])[0]) == asked


def test_what_is_set_of_the_last_measurement_holds_for_those_in_between() -> None:
    values = {"measure.low_tolerance": 0.3, "measure.timeout_s": 7.0, "measure.hetero.timeout_s": 9.0}
    model, machine = ModelFile(Path("m.xml"), "0" * 64), HostMachine((), {}, "here")
    task = next(t for t in plan_tasks(model, Settings().updated(values, "test"), machine) if t.stage == "place")
    _, devices = task.params["devices"]
    assert (devices["low_tolerance"], devices["timeout_s"]) == (0.3, 9.0)
    assert devices["seconds"] == Hetero().seconds


def test_every_placers_best_split_goes_to_the_final_before_any_placers_second() -> None:
    def proposal(placer: str, *device: int) -> Proposal:
        return Proposal(placer, Placement(np.array(device), ("A", "B")), placer, np.zeros(1))

    ranked = [
        proposal("hsdag", 0, 0),  # on one device: a baseline stands for it
        proposal("hsdag", 0, 1),
        proposal("hsdag", 1, 0),
        proposal(CALIBRATION, 1, 1),
        proposal("portfolio", 1, 1),
        proposal("portfolio", 0, 1),
        proposal("portfolio", 1, 0),
    ]
    found = every_best_first(ranked, ["portfolio", "hsdag"])
    assert [ranked.index(p) for p in found] == [1, 5, 0, 2, 3, 4, 6]


class Learner:
    """Publishes what number its search has, and remembers with what each search began."""

    def __init__(self) -> None:
        self.begun: list[int | None] = []

    def place(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, *, seed: int, progress: ProgressHook
    ) -> Answer:
        policy = problem.policy
        assert policy is not None
        assert policy.checkpointer is not None
        self.begun.append(None if policy.learned is None else policy.learned.facts["number"])
        policy.checkpointer.publish(Snapshot({}, {"number": len(self.begun)}))
        greedy: Placer = build_implementation("place", "greedy")
        return greedy.place(problem, evaluator, budget, seed=seed, progress=progress)


def test_rounds_share_what_a_placer_has_learned() -> None:
    subject, learner = profiled(), Learner()
    own = replace(searcher("greedy", subject), name="learner", placer=learner)
    alternate_with_measuring(subject, [own], Sequential(), Devices(subject).ask, ROUNDS, seed=0, say=mute)
    assert learner.begun == [None, 1, 2]
