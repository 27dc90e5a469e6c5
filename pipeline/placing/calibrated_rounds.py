"""The reward on two levels: search in a simulator, measure a few placements on the devices, correct it, search again.

    round:  every placer searches in the simulator as it is calibrated so far, from the best measured placement
            as often as the round allows: of all placements found, measure the most promising one, calibrate again

The most promising placement is the one of the least log T - KAPPA sd(log T): T is what the simulator predicts, and the
standard deviation stems from that of the fitted coefficients. Low times come first, and times that are hardly known.

Source: Srinivas, Krause, Kakade, Seeger, Gaussian Process Optimization in the Bandit Setting (2010), for choosing by a
confidence bound. Different: a linear model in place of the process, logarithms to first order, and a constant factor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Evaluation, MeasurementFailed, Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget
from pipeline.core.stages import Candidate, Evaluator, Measurer, Subject, is_simulator
from pipeline.placing.searchers import Say, Searcher, SearchOutcome, in_turn
from pipeline.placing.shortlist import CALIBRATION
from runtime.calibration.calibrate import median_error, relative_noise
from runtime.calibration.draw_placements import plausible_placements
from runtime.calibration.ridge import fit_ridge
from runtime.calibration.terms import Terms
from runtime.measuring.process.affinity import normalise_placement

KAPPA = 1.0  # standard deviations by which a prediction is taken to be too high
SEARCH_SHARE = 0.5  # of a round's seconds, for all placers together
LEAST_S = 1e-3  # seconds a placer gets in any case

LEAST_ASKED = 2  # placements that the first round measures in any case: a single device and one that is not
REFUSALS = 3  # after which no more is measured, if no placement on several devices has run
DRAWN = 64  # plausible placements to measure if they promise more than what the placers find

Ask = Callable[[Placement], Evaluation]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How much may be spent.

    number: of rounds. measurements: on the devices, in all. evaluations: in the simulator, of each placer, in all.
    seconds: in all, or None; the first round is completed whatever it takes, but for measurements beyond the first that
    would end more than `latest_s` after the beginning.
    """

    number: int
    measurements: int
    evaluations: int
    seconds: float | None = None
    latest_s: float = math.inf

    def __post_init__(self) -> None:
        if self.number < 1 or self.measurements < 0:
            raise UsageError(
                f"{self.number} rounds and {self.measurements} measurements: at least 1 and 0 are needed.",
                "Raise place.rounds or place.measurements.",
            )


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one round.

    evaluations: in the simulator, of all placers. measurements, failed: on the devices. error: median relative error
    of what was predicted of each placement right before it was measured; None where all failed.
    """

    evaluations: int
    measurements: int
    failed: int
    error: float | None


@dataclass(slots=True, eq=False)
class Proposal:
    """A placement of the n operations, and what is known of it.

    placer: whose search proposed it first, CALIBRATION if none did. row: float64 [q], what it multiplies the
    coefficients with. predicted_s: in the eyes of the simulator as it is calibrated by now; inf if that refuses it.
    measured: what the devices said, if asked.
    """

    placer: str
    placement: Placement
    found_by: str
    row: Float64
    predicted_s: float = math.inf
    measured: Evaluation | None = None

    @property
    def measured_s(self) -> float:
        """Return what the devices took; inf if they were not asked, or refused it."""
        return math.inf if self.measured is None else seconds_of(self.measured)

    @property
    def candidate(self) -> Candidate:
        """Return the placement with what the devices said of it, or else with what is predicted."""
        if self.measured is not None:
            return Candidate(self.placement, self.measured, self.found_by)
        if math.isinf(self.predicted_s):
            return Candidate(self.placement, MeasurementFailed("refused", "by the simulator"), self.found_by)
        return Candidate(self.placement, Prediction(self.predicted_s), self.found_by)

    @property
    def rank(self) -> tuple[int, float]:
        """Return what proposals are sorted by: measured ones come first, refused ones last."""
        if self.measured is None and math.isfinite(self.predicted_s):
            return 1, self.predicted_s
        return (0 if math.isfinite(self.measured_s) else 2), self.measured_s


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """What is believed of the devices.

    subject: with the tables to simulate by. covariance: float64 [q, q], of the coefficients. used: how many
    measurements it is fitted to; without any the tables are the profile's.
    """

    subject: Subject
    covariance: Float64
    used: int


@dataclass(frozen=True, slots=True, eq=False)
class HybridOutcome:
    """What a hybrid search found.

    proposals: measured ones by their time, then others by what is predicted in the end, then refused ones.
    last: what the last search of each placer found. evaluations: in the simulator, by placer. used: how many
    measurements the simulator is calibrated to in the end.
    """

    proposals: tuple[Proposal, ...]
    last: tuple[SearchOutcome, ...]
    evaluations: dict[str, int]
    rounds: tuple[Round, ...]
    used: int

    def of(self, placer: str) -> list[Proposal]:
        """Return the proposals of one placer, in their order."""
        return [p for p in self.proposals if p.placer == placer]

    @property
    def refusal(self) -> str | None:
        """Return in words why a placement could not be measured; None if none failed."""
        failed = (p.measured for p in self.proposals if isinstance(p.measured, MeasurementFailed))
        return next((f"{f.kind}: {f.message}" for f in failed), None)


def alternate_with_measuring(
    subject: Subject,
    searchers: Sequence[Searcher],
    simulator: Measurer,
    ask: Ask,
    rounds: Rounds,
    *,
    seed: int,
    say: Say,
) -> HybridOutcome:
    """Return what the searchers find in a simulator that measurements correct.

    subject: of n operations, each a node of its own. simulator: binds the searchers' evaluators. ask: measures a
    normalised placement of the operations; it is asked at most `rounds.measurements` times, and never twice for one.

    Raises:
        UsageError: the evaluator is not a simulator, or the subject has no cost table.
        PlacewrightError: whatever a placer raises.
    """
    campaign = Campaign.of(subject, simulator)
    begun_s = time.monotonic()
    end_s = math.inf if rounds.seconds is None else begun_s + rounds.seconds
    evaluations = dict.fromkeys((s.name for s in searchers), 0)
    history: list[Round] = []
    last: list[SearchOutcome] = []
    for turn in range(rounds.number):
        left, left_s = rounds.number - turn, end_s - time.monotonic()
        if turn and left_s <= 0:
            break
        until_s = time.monotonic() + left_s / left
        seconds = None if math.isinf(left_s) else max(LEAST_S, SEARCH_SHARE * left_s / left / len(searchers))
        spent = max(evaluations.values(), default=0)
        budget = Budget(max(1, (rounds.evaluations - spent) // left), seconds)
        last = in_turn(
            searchers, campaign.belief.subject, campaign.best, budget, seed=seed + turn, say=say, before=last
        )
        for outcome in last:
            evaluations[outcome.placer] += outcome.evaluations
            campaign.note(outcome.placer, [(c.placement, c.found_by) for c in outcome.answer.candidates])
        if not turn:
            campaign.note(CALIBRATION, _draw_placements(subject, searchers[0].grouping, seed))
        campaign.predict()
        quota = math.ceil((rounds.measurements - len(campaign.measured)) / left)
        least = 0 if turn else LEAST_ASKED
        ends = Ends(until_s, begun_s + rounds.latest_s, least)
        asked = campaign.measure(ask, quota, ends, say=partial(_say_round, say, turn + 1, rounds.number))
        history.append(_round_record(sum(s.evaluations for s in last), asked))
    ranked = sorted(campaign.proposals.values(), key=lambda p: p.rank)
    return HybridOutcome(tuple(ranked), tuple(last), evaluations, tuple(history), campaign.belief.used)


def _draw_placements(subject: Subject, grouping: Grouping, seed: int) -> list[tuple[Placement, str]]:
    """Return placements of the operations that a search might find, single devices first, with who they are from."""
    placements = plausible_placements(replace(subject, grouping=grouping), DRAWN, seed=seed)
    return [
        (placement.lift(grouping), "drawn" if len(placement.devices_used) > 1 else "single") for placement in placements
    ]


def _say_round(say: Say, number: int, total: int, text: str) -> None:
    say(f"round {number} of {total}: {text}")


def _round_record(evaluations: int, asked: Sequence[tuple[float, Proposal]]) -> Round:
    pairs = [(said_s, p.measured_s) for said_s, p in asked if 0 < p.measured_s < math.inf]
    error = median_error(*np.array(pairs).T) if pairs else None
    return Round(evaluations, len(asked), sum(math.isinf(p.measured_s) for _, p in asked), error)


@dataclass(frozen=True, slots=True)
class Ends:
    """When measuring ends, by the clock `time.monotonic`.

    until_s: nothing beyond the `least` is begun that would not end by then. latest_s: nothing beyond the first one.
    """

    until_s: float
    latest_s: float = math.inf
    least: int = 0

    def reached(self, count: int, ends_s: float) -> bool:
        """Return whether no more is begun after `count` measurements, as the next would end at `ends_s`."""
        return (count >= self.least and ends_s >= self.until_s) or (count >= 1 and ends_s >= self.latest_s)


@dataclass(slots=True, eq=False)
class Campaign:
    """The placements proposed so far, by what they are once normalised, and what the measured ones make believe."""

    simulator: Measurer
    terms: Terms
    belief: Belief
    proposals: dict[bytes, Proposal] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, simulator: Measurer) -> Campaign:
        """Return the campaign of a subject before any placement is known.

        Raises:
            UsageError: the evaluator is not a simulator, or the subject has no cost table.
        """
        predicting = simulator.bind(subject)
        if not is_simulator(predicting):
            raise UsageError(
                f"{type(simulator).__name__} is not a simulator, so it cannot be calibrated to measurements.",
                "Set place.evaluator=sequential, or pass --reward simulated or measured.",
            )
        # Simulators that know no launches must find the cost of a sub-graph in the latencies.
        terms = Terms.of(subject, launches=predicting.execution.additive)
        return cls(simulator, terms, fit_belief(terms, []))

    @property
    def measured(self) -> list[Proposal]:
        """Return the proposals that the devices were asked about."""
        return [p for p in self.proposals.values() if p.measured is not None]

    @property
    def all_refused(self) -> bool:
        """Return whether placements were refused several times, and none on several devices has ever run."""
        refused = [p for p in self.measured if math.isinf(p.measured_s)]
        ran = [p for p in self.measured if math.isfinite(p.measured_s) and len(p.placement.devices_used) > 1]
        return len(refused) >= REFUSALS and not ran

    @property
    def best(self) -> Candidate | None:
        """Return the best measured placement; the best predicted one before any is, None if there is none at all."""
        proposal = min(self.proposals.values(), key=lambda p: p.rank, default=None)
        return None if proposal is None or math.isinf(proposal.rank[1]) else proposal.candidate

    def note(self, placer: str, placements: Sequence[tuple[Placement, str]]) -> None:
        """Add a placer's placements of operations, each with who found it; who proposes one first keeps it."""
        for placement, found_by in placements:
            key = self._normalised(placement).key()
            if key not in self.proposals:
                (row,) = self.terms.rows([placement])
                self.proposals[key] = Proposal(placer, placement, found_by, row)

    def predict(self) -> None:
        """Let the simulator, as the devices are believed to be now, say what it thinks of all proposals."""
        proposals = list(self.proposals.values())
        evaluator: Evaluator = self.simulator.bind(self.belief.subject)
        answers = evaluator.evaluate([p.placement for p in proposals])
        for proposal, answer in zip(proposals, answers, strict=True):
            proposal.predicted_s = seconds_of(answer)

    def measure(self, ask: Ask, quota: int, ends: Ends, *, say: Say) -> list[tuple[float, Proposal]]:
        """Return up to `quota` proposals now measured, each with the seconds that were predicted right before.

        Every answer changes the belief, and with it what is asked next; the very first question is the best single
        device, to which the others are compared.
        """
        asked: list[tuple[float, Proposal]] = []
        took_s = 0.0
        while len(asked) < quota and not self.all_refused:
            if ends.reached(len(asked), time.monotonic() + took_s):
                break
            proposal = self.most_promising(alone=not self.measured)
            if proposal is None:
                break
            began_s = time.monotonic()
            proposal.measured = ask(self._normalised(proposal.placement))
            asked.append((proposal.predicted_s, proposal))
            took_s = time.monotonic() - began_s
            say(f"measured {len(asked)} of {quota} placements")
            self.belief = fit_belief(self.terms, self.measured)
            self.predict()
        return asked

    def most_promising(self, *, alone: bool = False) -> Proposal | None:
        """Return which proposal to measure next, None if none is left; `alone`: on a single device, if there is one."""
        waiting = [p for p in self.proposals.values() if p.measured is None and 0 < p.predicted_s < math.inf]
        if alone:
            waiting = [p for p in waiting if len(p.placement.devices_used) == 1] or waiting
        return min(waiting, key=self._promise, default=None)

    def _normalised(self, placement: Placement) -> Placement:
        return normalise_placement(self.terms.subject.graph, placement)

    def _promise(self, proposal: Proposal) -> float:
        """Return the lower bound of a proposal's log T."""
        variance = float(proposal.row @ self.belief.covariance @ proposal.row)
        return math.log(proposal.predicted_s) - KAPPA * math.sqrt(max(variance, 0.0)) / proposal.predicted_s


def fit_belief(terms: Terms, proposals: Sequence[Proposal]) -> Belief:
    """Return what the measured ones of the proposals make believe."""
    prior, subject = terms.prior, terms.subject
    known = [
        (p.row, p.measured)
        for p in proposals
        if p.measured is not None
        and not isinstance(p.measured, MeasurementFailed)
        and p.measured.value_s > 0
        and np.isfinite(p.row).all()
    ]
    if not known:
        return Belief(subject, np.outer(prior.scale, prior.scale) * prior.correlation, 0)
    seconds = np.array([result.value_s for _, result in known])
    noise = np.array([relative_noise(result.samples_s) for _, result in known])
    belief = fit_ridge(np.array([row for row, _ in known]), seconds, noise, prior)
    costs, topology = terms.corrected(belief.value)
    return Belief(replace(subject, costs=costs, topology=topology), belief.covariance, len(known))


def every_best_first(proposals: Sequence[Proposal], placers: Sequence[str]) -> list[Proposal]:
    """Return proposals, best first, with the first split of every placer before any other."""
    first: dict[str, int] = {}
    for i, proposal in enumerate(proposals):
        if proposal.placer in placers and len(proposal.placement.devices_used) > 1:
            first.setdefault(proposal.placer, i)
    order = sorted(range(len(proposals)), key=lambda i: (i not in first.values(), i))
    return [proposals[i] for i in order]
