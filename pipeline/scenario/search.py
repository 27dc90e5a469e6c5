"""Which of many configurations of several models is best, and by how much.

    alone       a few settings of each model while nothing else runs: the best of each make the baseline "each tuned
                alone", and tell whether a deadline can be kept at all
    screening   every configuration has a first sight in a process that is kept: baselines, what is usually good, then
                the others in the order in which `pipeline.scenario.screening` predicts them to be good, unless that was
                too far off so far; then the neighbours of the best, in that order too. Under a load that should grow,
                a first sight begins at the greatest multiple that another holds, so that most configurations take one
                window
    final       the control, which is the best of what nobody has to think of (defaults and hints), its twin, the other
                hints and the baselines that are near, and the best of what was searched. For every start all are
                compiled again, in processes that change roles, and take turns in an order that is reversed from turn
                to turn: what disturbs the machine disturbs all of them, and ratios are of one start. Claims are those
                of `runtime.measuring.contest.statistics`
    check       the answer in new processes, with more requests: the stated load, and the multiple that is said to hold

Every finished start is written to a journal, from which a run that was interrupted goes on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pipeline.core.deadline import Deadline
from pipeline.core.errors import MeasurementError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import LoadScenario, chain_to
from pipeline.core.settings import MeasureSettings
from pipeline.scenario.configurations import (
    BASELINES,
    HINTS,
    USUAL,
    CandidateConfiguration,
    ConfigurationSpace,
    configured,
)
from pipeline.scenario.figures import (
    CHECK_TIMES,
    HOPELESS,
    LEAST_MULTIPLE,
    MOST_MULTIPLE,
    SIGHT_TIMES,
    TURNS,
    LoadMultiples,
    Measured,
    StartTurns,
    Yardstick,
    one_second,
)
from pipeline.scenario.records import AloneRecord, CheckRecord, ScenarioForecast, ServedFigures
from pipeline.scenario.screening import FIRST_SHARE, SIGHT_SEED, ConfigurationPredictor, request_seconds
from pipeline.shared.payload import from_json
from pipeline.system.json_lines import append_line, load_lines
from runtime.measuring.contest.statistics import TWIN, Judgement, Rules, judge_starts
from runtime.measuring.contest.variant import Variant
from runtime.measuring.load.bench import LoadConfiguration, LoadError, ScenarioBench, SeatedModels, Window

ALONE_S, MOST_ALONE = 0.4, 500  # of a probe of one model, and latencies of it that are kept
ALONE_SHARE, SCREENING_SHARE, CHECK_SHARE = 0.15, 0.45, 0.15  # of the time left at their beginning
LAST = 0.8  # of the time left, that the last window may take
STATED_SHARE = 0.05  # of the time left, that is kept for the stated load where a greater one must hold before
MOST_CHECK_SHARE = 0.4  # that the check has at most where it needs more
ROUNDS = 2  # of neighbours of the best
# Of the best baseline, within which another meets it in the final; hints, of which a start can be so bad, stay.
NEAR, NEAR_HINT = math.log(1.15), math.log(1.6)
MOST_CONTENDERS = 3
ROOM = 0.8  # of the memory that is free, that all configurations of a start may take
TURN_REQUESTS = 10  # of the slowest model, that a turn in closed loops should see
START = 1.8  # times a first sight that a start of the final takes, roughly
START_TIMES = (1.0, 0.7, SIGHT_TIMES)  # as many requests as a percentile takes, in its windows: the most that fit
START_WINDOWS = 1.8  # that it takes under a load that should grow, mostly
NEARLY = 1.25  # factor by which what a final, or a start of it, seems to take may be off
# First sights that a final may not take the time of, as baselines may not: some of what is usually good is among them.
LEAST_SIGHTS, LEAST_SHARE = 8, 0.5  # and the share of the time left that they may take for it
LOWERED, STEP = 3, 1.5  # first sights that find a load multiple too great, after which less is tried: by this at least
# Times what seems to hold, that a check tries: first, as few requests miss a deadline by chance less often than many
# do, and then; times what held, above which it tries more; how often it tries.
FIRST_LOWER, LOWER, RAISE, MOST_CHECKS = 0.85, 0.93, 1.1, 5
CHECKS = 1.5  # that time is kept for: one that fails is short, mostly

UNTRIED = "not tried within the budget"

Say = Callable[[str], None]
CheckOutputs = Callable[[str, Variant], MeasurementFailed | None]  # of a model, run so


@dataclass(slots=True)
class ContendingConfiguration:
    """A configuration, and its starts: sight, of the screening; starts, of the final, by their number.

    failed, failed_model: why it is out, and of which model; left: why it took no further part.
    """

    candidate: CandidateConfiguration
    sight: Measured | None = None
    starts: dict[int, Measured] = field(default_factory=dict)
    failed: MeasurementFailed | None = None
    failed_model: str = ""
    left: str = ""

    @property
    def standing(self) -> float:
        """Return how good it seems: by the starts of the final, else at first sight; -inf of what failed."""
        if self.failed is not None:
            return -math.inf
        if self.starts:
            return float(np.mean([m.goodness for m in self.starts.values()]))
        return self.sight.goodness if self.sight is not None else -math.inf

    @property
    def standing_at_all(self) -> float:
        """Return how good it seems by its first sight and its starts alike; -inf of what failed."""
        measured = [*self.starts.values(), *([] if self.sight is None else [self.sight])]
        return float(np.mean([m.goodness for m in measured])) if measured and self.failed is None else -math.inf


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """What a search has come to. entrants: by name; best: of the answer; checked: None without time for it."""

    entrants: Mapping[str, ContendingConfiguration]
    control: str
    best: str
    judgement: Judgement | None
    alone: Sequence[AloneRecord]
    checked: CheckRecord | None
    missing_s: float
    forecast: ScenarioForecast


@dataclass(slots=True)
class StartJournal:
    """Starts that were measured, in a file of JSON Lines; context: what they depend on beside the configuration."""

    path: Path
    context: str
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, context: str) -> StartJournal:
        """Return what a file holds; a torn last line is left out."""
        lines = [line for line in load_lines(path) if line.get("context") == context and "key" in line]
        return cls(path, context, {line["key"]: line["value"] for line in lines})

    def ask(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a JSON object, made now unless known; with an "error" that may pass, or "cut", it is not kept."""
        if key not in self.known:
            value = make()
            passing = "error" in value and MeasurementFailed(**value["error"]).transient
            if not (passing or value.get("cut")):
                append_line(self.path, {"context": self.context, "key": key, "value": value})
            self.known[key] = value
        return self.known[key]


@dataclass(slots=True)
class ScenarioSearch:
    """The search for the best configuration of one scenario; see the module."""

    scenario: LoadScenario
    space: ConfigurationSpace
    bench: ScenarioBench
    yardstick: Yardstick
    settings: MeasureSettings
    deadline: Deadline
    journal: StartJournal
    check_outputs: CheckOutputs
    say: Say
    entrants: dict[str, ContendingConfiguration] = field(default_factory=dict)
    bar: float = 1.0
    sights_s: list[float] = field(default_factory=list)

    def run(self) -> ScenarioOutcome:
        """Return what the search has come to by the deadline.

        Raises:
            MeasurementError: no configuration runs, or a deadline is too short for a single request.
        """
        predictor = ConfigurationPredictor.of(
            self.scenario, self.bench, self.yardstick, self.journal.ask, self.deadline
        )
        alone = self._alone()
        self._check_deadlines(alone)
        self._know_alone(predictor, alone)
        best_alone = self._best_alone(alone)
        self.bar = self._first_bar(alone)
        share = self.deadline.share(SCREENING_SHARE)
        self._screen(self.space.baselines(best_alone), share)
        first = self.space.first()
        order = first
        if self._sights_left_s(share) > 2 * USUAL * self._sight_s:  # else little but what is usually good is tried
            order = predictor.rank(first, FIRST_SHARE, self._sights_left_s(share))
        self._screen(first[:USUAL], share)
        predictor.review(self._sights())
        self._screen(order if predictor.trusted else first, share)
        for _ in range(ROUNDS):
            leader = max(self._searched(), key=lambda e: e.standing, default=None)
            if leader is not None:
                near = [c for c in self.space.around(leader.candidate) if c.name not in self.entrants]
                self._screen(predictor.rank(near, 1.0, self._sights_left_s(share)), share)
        ran = [e for e in self.entrants.values() if e.failed is None and e.sight is not None]
        if not ran:
            why = "; ".join(
                f"{n}: {e.failed_model or 'all models'}: {e.failed.message}"
                for n, e in self.entrants.items()
                if e.failed
            )
            raise MeasurementError(
                f"No configuration runs. {why}.", "Tune each model on its own to see which one fails."
            )
        forecast = predictor.review(self._sights())
        control = max([e for e in ran if e.candidate.kind in HINTS] or ran, key=lambda e: e.standing)
        control, judgement, missing_s = self._final(control)
        best = self._answer(control, judgement)
        checked = self._check(best)
        ranked = sorted((e for e in self.entrants.values() if e.failed is None), key=lambda e: -e.standing)
        fits = ranked[0].standing >= 0 or (checked is not None and checked.holds and checked.multiple >= 1)
        if self.scenario.objective == "load" and not fits:
            held = [(e.candidate.configuration, math.exp(e.standing)) for e in ranked]
            forecast = replace(forecast, remedies=predictor.remedies(held))
        return ScenarioOutcome(
            self.entrants,
            control.candidate.name,
            best.candidate.name,
            judgement,
            list(alone.values()),
            checked,
            missing_s,
            forecast,
        )

    def _know_alone(self, predictor: ConfigurationPredictor, alone: Mapping[tuple[str, str], AloneRecord]) -> None:
        for load in self.scenario.models:
            for variant in self.space.settings_alone(load.name, self.scenario.objective):
                if (load.name, variant.name) in alone:
                    predictor.know_alone(alone[load.name, variant.name], variant)

    def _sights(self) -> dict[str, tuple[LoadConfiguration, Measured]]:
        """Return the first sights of what runs, by name, with the configurations."""
        return {n: (e.candidate.configuration, e.sight) for n, e in self.entrants.items() if e.sight and not e.failed}

    def _searched(self) -> list[ContendingConfiguration]:
        known = [e for e in self.entrants.values() if e.candidate.kind == "searched" and e.failed is None]
        return [e for e in known if e.sight is not None and not e.sight.limit]

    # --- each model alone

    def _alone(self) -> dict[tuple[str, str], AloneRecord]:
        """Return what each model takes under a few settings while nothing else runs."""
        share, found = self.deadline.share(ALONE_SHARE), dict[tuple[str, str], AloneRecord]()
        for load in self.scenario.models:
            for variant in self.space.settings_alone(load.name, self.scenario.objective):
                if share.passed and any(model == load.name for model, _ in found):
                    continue
                self.say(f"running {load.name} alone, {variant.name}")
                key = f"alone {load.name} {variant.identity}"
                told = self.journal.ask(key, partial(self._probe, load.name, variant))
                if "error" not in told:
                    found[load.name, variant.name] = from_json(AloneRecord, told)
        return found

    def _probe(self, model: str, variant: Variant) -> dict[str, Any]:
        configuration = configured("", {model: variant}, "process")
        try:
            with self.bench.seat(configuration, fresh=False) as seats:
                seconds = request_seconds(seats, {model: 0}, ALONE_S, MOST_ALONE)[model]
        except LoadError as error:
            return {"error": asdict(error.failed)}
        properties = dict(variant.devices[0].properties)
        rate = float(seats.loaded[model]["requests"] / np.mean(seconds))
        return asdict(AloneRecord(model, variant.name, properties, variant.requests, rate, seconds))

    def _best_alone(self, alone: Mapping[tuple[str, str], AloneRecord]) -> dict[str, Variant]:
        """Return the best setting of each model alone: of the least median latency, or the greatest rate."""
        best: dict[str, Variant] = {}
        for load in self.scenario.models:
            tried = {v.name: v for v in self.space.settings_alone(load.name, self.scenario.objective)}
            known = [r for (model, _), r in alone.items() if model == load.name]
            if known:
                first = max(
                    known,
                    key=lambda r: r.rate if self.scenario.objective == "throughput" else -float(np.median(r.seconds)),
                )
                best[load.name] = tried[first.about]
        return best

    def _check_deadlines(self, alone: Mapping[tuple[str, str], AloneRecord]) -> None:
        """Check that single requests, and those of their chain before them, can keep the deadlines at all.

        Raises:
            MeasurementError: one cannot, under any setting that was tried.
        """
        if self.scenario.objective != "load":
            return
        for load in self.scenario.models:
            chain = chain_to(load.name, {m.name: m for m in self.scenario.models})
            least_s = sum(
                min((float(np.median(r.seconds)) for (m, _), r in alone.items() if m == n), default=0.0) for n in chain
            )
            if least_s > load.deadline_s:
                what = f"inferences of {' and '.join(chain)} take"
                raise MeasurementError(
                    f"The deadline of {load.name}, {1e3 * load.deadline_s:g} ms, cannot be kept: while nothing else "
                    f"runs {what} {1e3 * least_s:.3g} ms at best.",
                    "Raise the deadline, or take a smaller model or input.",
                )

    def _first_bar(self, alone: Mapping[tuple[str, str], AloneRecord]) -> float:
        """Return a load multiple that the machine may hold: at which models, one after another, keep it half busy.

        It is where the search begins; the greater it is, the shorter are the windows that tell a percentile.
        """
        rates = self.scenario.rates()
        best = {
            name: min((float(np.median(r.seconds)) for (m, _), r in alone.items() if m == name), default=0.0)
            for name in rates
        }
        busy = sum(rate * best[name] for name, rate in rates.items())
        return min(64.0, max(1 / 8, 0.5 / busy)) if busy else 1.0

    # --- all of them

    def _next_bar(self) -> float:
        """Return the multiple that the next first sight begins with: the greatest that held so far.

        Where none did it is less once several failed at it, but not by much: low multiples have long windows.
        """
        sights = [e.sight for e in self.entrants.values() if e.sight is not None]
        held = [sight.goodness for sight in sights if sight.held]
        if held:
            return math.exp(min(max(held), math.log(MOST_MULTIPLE)))
        missed = [sight.goodness for sight in sights if sight.multiple == self.bar]
        if len(missed) < LOWERED:
            return self.bar
        return max(self.bar / STEP**2, min(self.bar / STEP, math.exp(max(missed))))

    def _screen(self, candidates: Sequence[CandidateConfiguration], share: Deadline) -> None:
        for candidate in candidates:
            entrant = self.entrants.setdefault(candidate.name, ContendingConfiguration(candidate))
            if entrant.sight is not None or entrant.failed is not None or entrant.left:
                continue
            if self._sights_left_s(share) < self._sight_s and candidate.kind != "defaults":
                entrant.left = UNTRIED
                continue
            self.say(f"trying {candidate.name}")
            entrant.sight = self._sight(entrant)
            if entrant.sight is not None and self.scenario.objective == "load":
                self.bar = self._next_bar()

    def _sights_left_s(self, share: Deadline) -> float:
        """Return the seconds that first sights, and probes, have left: so that time for the final stays.

        Where a final is far out of reach, first sights have the time: of hints one is better than none.
        """
        left_s, final_s = self.deadline.left_s, self._least_final_s
        least_s = min((LEAST_SIGHTS - len(self.sights_s)) * self._sight_s, LEAST_SHARE * left_s)
        allowed_s = share.left_s if left_s < final_s / NEARLY else min(share.left_s, left_s - final_s)
        return max(allowed_s, least_s)

    @property
    def _least_final_s(self) -> float:
        """Return what the check takes and a final of three: the control, its twin, and one that is searched."""
        hints = [e.standing for e in self.entrants.values() if e.candidate.kind in HINTS and e.sight is not None]
        best = math.log(self.bar)
        start_s = 2 * self._start_s(max(hints, default=best), SIGHT_TIMES) + self._start_s(best, SIGHT_TIMES)
        return self.settings.least_starts * start_s + self._check_s(self.deadline.left_s)

    def _check_s(self, left_s: float) -> float:
        """Return the seconds of so many that are kept for the check.

        It runs the stated load as long as that takes, or as time is left where a greater one must hold before.
        """
        share_s, objective = CHECK_SHARE * left_s, self.scenario.objective
        if objective == "throughput":
            return share_s
        needed_s = self.yardstick.times(least=CHECK_TIMES).due_s
        if objective == "load":
            stated_s = min(self.yardstick.times().due_s, STATED_SHARE * left_s)
            needed_s = CHECKS * self.yardstick.times(self.bar, CHECK_TIMES).due_s + stated_s
        return min(MOST_CHECK_SHARE * left_s, max(share_s, needed_s))

    @property
    def _shortest_s(self) -> float:
        """Return the seconds of a window of the check at least, however little time is left."""
        return self.yardstick.longest_s / CHECK_TIMES

    def _start_s(self, goodness: float, times: float) -> float:
        """Return the seconds that a start of the final takes, roughly, of what seems to be so good.

        times: the requests that a percentile takes, as `Yardstick.start_times`.
        """
        objective = self.scenario.objective
        if objective == "throughput" or not math.isfinite(goodness):
            return START * self._sight_s
        loads_s = [e.sight.load_s for e in self.entrants.values() if e.sight is not None]
        if objective == "load":
            windows_s = START_WINDOWS * self.yardstick.times(math.exp(goodness), times).due_s
        else:
            windows_s = TURNS[objective] * self.yardstick.times(least=times / TURNS[objective]).due_s
        return windows_s + (float(np.median(loads_s)) if loads_s else 0.0)

    @property
    def _sight_s(self) -> float:
        """Return the seconds that a first sight of one window takes, by the last few; 0 where there was none."""
        return float(np.median(self.sights_s[-5:])) if self.sights_s else 0.0

    def _sight(self, entrant: ContendingConfiguration) -> Measured | None:
        """Return the first sight of a configuration, None where it failed: measured now, or taken from the journal."""
        configuration = entrant.candidate.configuration

        def look() -> dict[str, Any]:
            begun = self.deadline.clock()
            try:
                with self.bench.seat(configuration, fresh=False) as seats:
                    told = _start_document(configuration, self.yardstick.sight(seats, SIGHT_SEED, self.bar))
            except LoadError as error:
                told = {"error": asdict(error.failed), "model": error.model}
            return {**told, "took_s": self.deadline.clock() - begun}

        told = self.journal.ask(f"sight {configuration.identity}", look)
        self.sights_s.append(told["took_s"] / told.get("windows", 1))
        return _take_start(entrant, told)

    def _side_by_side(self, entrants: Sequence[ContendingConfiguration], number: int, yardstick: Yardstick) -> None:
        """Add one start to each of the entrants, which take turns; all of it, or nothing, is in the journal."""
        there = [e for e in entrants if e.failed is None and not e.left]
        about = " ".join(_start_key(e) for e in there[:3])
        told = self.journal.ask(f"final {number} {about}", lambda: self._run_turns(there, number, yardstick))
        for entrant in there:
            if (start := told["starts"].get(_start_key(entrant))) is not None:
                measured = _take_start(entrant, start)
                entrant.starts |= {} if measured is None else {number: measured}

    def _run_turns(self, there: Sequence[ContendingConfiguration], number: int, yardstick: Yardstick) -> dict[str, Any]:
        """Return one start of each; "error" where one failed in a way that may pass, "cut" by the deadline."""
        told: dict[str, dict[str, Any]] = {}
        turns: dict[str, StartTurns] = {}
        sights = {e.candidate.configuration.identity: e.sight for e in self.entrants.values() if e.sight is not None}

        def fail(key: str, error: LoadError) -> None:
            told[key] = {"error": asdict(error.failed), "model": error.model}
            turns.pop(key, None)

        with contextlib.ExitStack() as stack:
            for entrant in there if number % 2 else list(reversed(there)):
                key = _start_key(entrant)
                try:
                    seats = stack.enter_context(self.bench.seat(entrant.candidate.configuration, fresh=False))
                    sight = sights[entrant.candidate.configuration.identity]
                    guess = min(MOST_MULTIPLE, max(LEAST_MULTIPLE, math.exp(sight.goodness)))
                    turns[key] = StartTurns(yardstick, seats, 100 * number, guess)
                except LoadError as error:
                    fail(key, error)
            order = list(turns)
            while any(not turns[key].over for key in order if key in turns) and not yardstick.deadline.passed:
                for key in order:
                    try:
                        if key in turns and not turns[key].over and not yardstick.deadline.passed:
                            turns[key].turn()
                    except LoadError as error:
                        fail(key, error)
                order.reverse()
        for entrant in there:
            key = _start_key(entrant)
            if key in turns and turns[key].ended:  # what the deadline cut short says nothing
                told[key] = _start_document(entrant.candidate.configuration, turns[key].measured())
        errors = [start["error"] for start in told.values() if "error" in start]
        passing = [error for error in errors if MeasurementFailed(**error).transient]
        cut = any(not each.ended for each in turns.values())
        return {"starts": told, "cut": cut} | ({"error": passing[0]} if passing else {})

    # --- the final

    def _final(self, control: ContendingConfiguration) -> tuple[ContendingConfiguration, Judgement | None, float]:
        """Return the best baseline, what starts in new processes say beside it, and the seconds that were missing."""
        least = self.settings.least_starts
        best = max(e.standing for e in self.entrants.values() if e.candidate.kind in BASELINES)
        baselines = [
            e
            for e in self.entrants.values()
            if e.candidate.kind in BASELINES
            and e is not control
            and e.failed is None
            and e.sight is not None
            and (
                e.candidate.kind == "defaults" or e.standing > best - (NEAR_HINT if e.candidate.kind in HINTS else NEAR)
            )
        ]
        ranked = sorted(self._searched(), key=lambda e: -e.standing)
        several = self.deadline.left_s > 2 * self._least_final_s
        contenders = self._right_ones(ranked, MOST_CONTENDERS if several else 1)
        same = replace(control.candidate.configuration, name=TWIN)
        twin = self.entrants[TWIN] = ContendingConfiguration(CandidateConfiguration(same, "twin"))
        until = self.deadline.later(-self._check_s(self.deadline.left_s))
        entrants = {n: (control if e is twin else e) for n, e in self.entrants.items()}
        there = [control.candidate.name, *(e.candidate.name for e in contenders[:1]), TWIN]
        times, takes_s = self._start_times(entrants, there, until.left_s)
        start_s, yardstick = sum(takes_s[n] for n in there), replace(self.yardstick, start_times=times)
        if least * start_s > NEARLY * until.left_s:  # what a start tells is kept for a later run, if one fits
            if NEARLY * start_s > until.left_s:
                return control, None, least * start_s - until.left_s
            yardstick = replace(yardstick, deadline=until)
        # Who is there in any case, then who leaves last where time is short.
        present = [control, *contenders[:1], twin]
        hints = [b for b in baselines if b.candidate.kind in HINTS]
        copy_bytes = control.sight.peak_bytes if control.sight is not None else 0
        for entrant in [*hints, *contenders[1:2], *(b for b in baselines if b not in hints), *contenders[2:]]:
            if (len(present) + 1) * copy_bytes > ROOM * psutil.virtual_memory().available:
                entrant.left = "no memory beside those compared"
            elif NEARLY * least * (start_s + takes_s[entrant.candidate.name]) <= until.left_s:
                present.append(entrant)
                start_s += takes_s[entrant.candidate.name]
            else:
                entrant.left = "no time for further starts"
        rates = [f.rate for f in control.sight.figures] if control.sight is not None else []
        turn_s = min(yardstick.closed_s, TURN_REQUESTS / max(min(rates, default=0.0), 1e-9))
        yardstick = replace(yardstick, turn_s=max(yardstick.turn_s, turn_s))
        judgement: Judgement | None = None
        took_s = start_s
        for number in range(1, self.settings.starts + 1):
            begun = self.deadline.clock()
            self.say(f"comparing {len(contenders)} with {control.candidate.name}, start {number}")
            self._side_by_side(present, number, yardstick)
            took_s = self.deadline.clock() - begun
            judgement = self._judge(control, baselines, contenders)
            if number >= least and judgement.claimed and (not judgement.open or number >= Rules().look):
                break
            rounds = max(1, least - number)
            while len(present) > 3 and until.left_s < rounds * took_s:
                took_s *= (len(present) - 1) / len(present)
                present.pop().left = "no time for further starts"
            left_s = self.deadline.left_s - self._shortest_s
            if until.left_s < took_s and (number >= least or left_s < (least - number) * took_s):
                break
        missing_s = max(0.0, (least - len(control.starts)) * took_s)
        if not contenders and any(e.left == UNTRIED for e in self.entrants.values()):
            missing_s = max(missing_s, least * start_s)
        best_baseline = self._best_baseline([control, *baselines])
        if best_baseline is not control:
            others = [control, *(b for b in baselines if b is not best_baseline)]
            judgement = self._judge(best_baseline, others, contenders, doubled=control)
        return best_baseline, judgement, missing_s

    def _start_times(
        self, entrants: Mapping[str, ContendingConfiguration], there: Sequence[str], left_s: float
    ) -> tuple[float, dict[str, float]]:
        """Return how many times the requests of a percentile windows of the final can see, the most that fits.

        With it, the seconds that a start of each takes, by name. there: those that are compared in any case.
        """
        for times in START_TIMES:
            takes_s = {name: self._start_s(entrant.standing, times) for name, entrant in entrants.items()}
            if NEARLY * self.settings.least_starts * sum(takes_s[name] for name in there) <= left_s:
                break
        return times, takes_s

    def _best_baseline(self, baselines: Sequence[ContendingConfiguration]) -> ContendingConfiguration:
        """Return the best by the starts of the final; the first, unless another is better by what counts.

        Where the final was cut short, first sights count beside what starts there are: one bad start says little.
        """
        first = baselines[0]
        if len(first.starts) < self.settings.least_starts:
            return max((b for b in baselines if b.failed is None), key=lambda b: b.standing_at_all, default=first)
        there = [b for b in baselines if b.failed is None and len(b.starts) == len(first.starts)]
        best = max(there, key=lambda b: b.standing, default=first)
        return best if best.standing > first.standing + math.log1p(self.settings.least) else first

    def _right_ones(self, ranked: Sequence[ContendingConfiguration], most: int) -> list[ContendingConfiguration]:
        """Return the best whose models give the outputs that they should; the others are out."""
        right: list[ContendingConfiguration] = []
        for entrant in ranked:
            if len(right) == most:
                entrant.left = entrant.left or "no better than those compared"
                continue
            self.say(f"comparing the outputs of {entrant.candidate.name}")
            for name, variant in self.space.compiled(entrant.candidate.configuration):
                entrant.failed = self.check_outputs(name, variant)
                if entrant.failed is not None:
                    entrant.failed_model = name
                    break
            else:
                right.append(entrant)
        return right

    def _judge(
        self,
        control: ContendingConfiguration,
        baselines: Sequence[ContendingConfiguration],
        contenders: Sequence[ContendingConfiguration],
        doubled: ContendingConfiguration | None = None,
    ) -> Judgement:
        """Return what the starts say. doubled: whose double the twin is, if it is not the control."""
        rules = Rules(self.settings.level, self.settings.least, self.settings.least_starts)
        there = [e for e in self.entrants.values() if e.starts and not (e.left and e in baselines)]

        def beside(other: ContendingConfiguration) -> dict[str, list[float]]:
            of = {e.candidate.name: (e, (doubled or control) if e.candidate.kind == "twin" else other) for e in there}
            return {
                name: [
                    m.log_ratio(over.starts[n])
                    for n, m in e.starts.items()
                    if n in over.starts and math.isfinite(m.goodness) and math.isfinite(over.starts[n].goodness)
                ]
                for name, (e, over) in of.items()
                if e is not other
            }

        over = {b.candidate.name: beside(b) for b in baselines if b in there and not b.left}
        return judge_starts(beside(control), rules, contenders=max(1, len(contenders)), over=over)

    def _answer(self, control: ContendingConfiguration, judgement: Judgement | None) -> ContendingConfiguration:
        """Return the best that is claimed and keeps the limits; else the best baseline that does."""
        for name in judgement.claimed if judgement is not None else ():
            entrant = self.entrants[name]
            if (
                entrant.failed is None
                and entrant.candidate.kind == "searched"
                and not any(m.limit for m in entrant.starts.values())
            ):
                return entrant
        limited = any(m.limit for m in [*control.starts.values(), *filter(None, [control.sight])])
        if not limited:
            return control
        kept = [e for e in self.entrants.values() if e.failed is None and e.sight and not e.sight.limit]
        return max(kept, key=lambda e: e.standing, default=control)

    # --- the check

    def _check(self, best: ContendingConfiguration) -> CheckRecord | None:
        """Return what the answer does in new processes, with more requests; None without time, or where it fails."""
        load = self.scenario.objective == "load"
        multiple = math.exp(best.standing) if math.isfinite(best.standing) else 1.0
        self.say(f"checking {best.candidate.name}")
        longest_s = self.yardstick.longest_s

        def within(times: float = 1.0, part: float = 0.5) -> Yardstick:
            """Return what measures a window of so many requests, of a part of the time that is left at most."""
            shortest_s, left_s = self._shortest_s / times, part * self.deadline.left_s / times
            return replace(self.yardstick, longest_s=max(shortest_s, min(longest_s, left_s)))

        try:
            with self.bench.seat(best.candidate.configuration) as seats:
                if not load:
                    window, stated = within(CHECK_TIMES).look(seats, 9_000, least=CHECK_TIMES)
                    told = [f.holds for f in stated]
                    holds_all = False if False in told else True if all(told) else None
                    return CheckRecord(0.0, stated, [], holds_all, one_second(window))
                multiple, window, greatest = self._greatest(seats, FIRST_LOWER * multiple, within)
                holds = self.yardstick.slack(window) <= 0
                stated = list[ServedFigures]()  # a greater load tells of it, if time is up
                stated_s = self.yardstick.times().due_s
                if not (holds and multiple >= 1 and LAST * self.deadline.left_s < stated_s):
                    _, stated = within(part=LAST).look(seats, 9_000)
                untold = any(
                    f.latency_s is None and f.holds is None
                    for f in greatest
                    if math.isfinite(self.scenario.model(f.name).deadline_s)
                )
                return CheckRecord(multiple, stated, greatest, None if untold else holds, one_second(window))
        except LoadError as error:
            self.say(f"the check failed: {error.cause}")
            return None

    def _greatest(
        self, seats: SeatedModels, multiple: float, within: Callable[[float], Yardstick]
    ) -> tuple[float, Window, list[ServedFigures]]:
        """Return the greatest load multiple that a check has seen to hold, or the least it tried, and its window."""
        found, held = LoadMultiples(), None
        for i in range(MOST_CHECKS):
            window, figures = within(CHECK_TIMES).look(
                seats, 9_001 + i, multiple=multiple, least=CHECK_TIMES, until_late=HOPELESS
            )
            slack, last = self.yardstick.slack(window), (multiple, window, figures)
            found.add(multiple, slack)
            if slack <= 0:
                held = last
            multiple = LOWER * (found.greatest if held is not None else min(multiple, found.greatest))
            if held is not None and multiple <= RAISE * held[0]:
                break
            if self.deadline.left_s < self.yardstick.times(multiple, CHECK_TIMES).due_s:
                break
        return held or last


def _start_key(entrant: ContendingConfiguration) -> str:
    return entrant.candidate.configuration.identity + " twin" * (entrant.candidate.kind == "twin")


def _start_document(configuration: LoadConfiguration, measured: Measured) -> dict[str, Any]:
    """Return a start as the journal has it, or which model failed."""
    named = {f.name for f in measured.figures}
    for name, _ in configuration.models:
        if name not in named:
            return {"error": asdict(measured.failed[name]), "model": name}
    return {**asdict(measured), "goodness": measured.goodness if math.isfinite(measured.goodness) else None}


def _take_start(entrant: ContendingConfiguration, told: Mapping[str, Any]) -> Measured | None:
    """Return a start from its document, None where the entrant failed in it and so is out."""
    if "error" in told:
        entrant.failed, entrant.failed_model = MeasurementFailed(**told["error"]), told["model"]
        return None
    return from_json(Measured, {**told, "goodness": -math.inf if told["goodness"] is None else told["goodness"]})
