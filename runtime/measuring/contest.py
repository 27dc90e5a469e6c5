"""Which of many variants is the fastest, and by how much: screened, raced, and compared start by start.

    screening   every variant, the most promising first: a short start beside the first baseline that runs. Then those
                that are close to the leader have another start each, fewer every time, until few are left
    final       the best baseline of one device is the control. It meets its twin, the plug-in's default, the best hint
                and the contenders, one fresh start each, again and again; whoever can no longer win leaves

What is claimed rests on the starts of the final alone: the control and the contenders were chosen by others.

Source: Karnin, Koren, Somekh, Almost optimal exploration in multi-armed bandits (2013), for halving by rounds.
Different: who leaves is decided by the distance to the leader, so that the clearly slower leave at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.core.deadline import Clock, Deadline
from pipeline.core.measurement import MeasurementFailed, is_transient
from pipeline.core.settings import MeasureSettings
from runtime.measuring.child import ChildError
from runtime.measuring.claims import TWIN, Judgement, Rules, Spread, judge
from runtime.measuring.pairs import SCREEN_PAIRS, Bench, Part, Start, mean_log_ratio
from runtime.measuring.variant import Variant

SCREENING = 0.4  # of the time, at most
SCREEN_S = 0.36  # seconds of turns in it, where so many pairs take no longer
NEAR = 4.0  # standard deviations from the leader within which a variant stays
UNSEEN = 0.02  # standard deviation between starts before any variant has had two
QUIETEST = 0.005  # standard deviation of a start's log ratio that is reckoned with at least
GRACE_S = 2.0  # seconds that a start of the final may take for the least number of starts to be completed, though late
LEAST_PAIRS = 4  # of turns in a start of the final, at least
LEAST_START_S = 0.5  # seconds of turns in it
DISTANT = 0.1  # log ratio of a yardstick that is told by few starts

STEPS = 2  # from the best settings to their neighbours
ROUNDS = 4  # of the screening

Say = Callable[[str], None]
Explore = Callable[[Variant], Sequence[Variant]]


@dataclass(slots=True)
class Entrant:
    """A variant in the contest: its starts so far, and why it has gone.

    screened, final: the starts of either part, by their number. left: why it takes no further part; "" while it does.
    pair_s: what a pair of turns takes. ready_s: what its last start took beside them, for compiling above all.
    """

    variant: Variant
    screened: dict[int, Start] = field(default_factory=dict)
    final: dict[int, Start] = field(default_factory=dict)
    failed: MeasurementFailed | None = None
    left: str = ""
    pair_s: float = 0.0
    ready_s: float = 0.0

    @property
    def advance(self) -> float:
        """Return the mean log ratio of the screening; -inf where there is none."""
        return mean_log_ratio(list(self.screened.values()))

    @property
    def log_ratios(self) -> list[float]:
        """Return the log ratios of the final's starts, in their order."""
        return [self.final[number].log_ratio for number in sorted(self.final)]

    @property
    def starts(self) -> list[Start]:
        """Return all starts, the final's if it has any."""
        return list((self.final or self.screened).values())


@dataclass(frozen=True, slots=True)
class Contest:
    """What a contest has come to.

    entries: of every variant, by its name. control, default, hint: names of the best baseline, of the plug-in's
    default and of the best hint; "" where there is none. judgement: of the final, None where there was no time for one.
    missing_s: seconds more that screening the untried and a final would have taken, roughly.
    """

    entries: Mapping[str, Entrant]
    control: str
    default: str
    hint: str
    judgement: Judgement | None
    rules: Rules
    missing_s: float = 0.0

    def standing(self, name: str) -> float:
        """Return the log of how many times as fast as the control a variant seems to be; -inf where that is unknown.

        Of the screening it is a first sight alone, and no interval goes with it.
        """
        entry = self.entries[name]
        if entry.final and name != self.control:
            return float(np.mean(entry.log_ratios))
        return entry.advance - self.entries[self.control].advance if entry.screened else -math.inf

    def between(self, name: str, other: str) -> list[float]:
        """Return log(time of the other / time of `name`) of every start of the final that both have had."""
        ours, theirs = self._log_ratios(name), self._log_ratios(other)
        return [ours[i] - theirs[i] for i in sorted(ours.keys() & theirs.keys())]

    def _log_ratios(self, name: str) -> dict[int, float]:
        if name == self.control:  # one with itself in every start
            numbers = {i for e in self.entries.values() for i in e.final}
            return dict.fromkeys(numbers, 0.0)
        return {i: s.log_ratio for i, s in self.entries[name].final.items()}


def contest(
    variants: Sequence[Variant],
    explore: Explore,
    bench: Bench,
    settings: MeasureSettings,
    deadline: Deadline,
    *,
    say: Say,
    everyone: bool = False,
) -> Contest:
    """Return how the variants compare, found out before the deadline; the control is "" if none of them runs.

    variants: baselines first, then what is searched, in the order in which they are worth trying; with distinct names.
    explore: gives the neighbours of settings, which are tried around the best. everyone: all that is searched goes on
    to the final and stays until its end.
    """
    names = [v.name for v in variants]
    if len({*names, TWIN}) != len(names) + 1:
        raise ValueError("variants must have different names")
    rules = Rules(settings.level, settings.least, settings.least_starts)
    entries = {v.name: Entrant(v) for v in variants}
    most = len(variants) if everyone else settings.finalists
    screening = _Screening(entries, explore, bench, deadline.share(SCREENING), most, say)
    first = screening.first()
    if first is not None:
        needed_s = _needed_s(entries, most, rules)
        if needed_s > deadline.left_s:
            say(f"comparing all would take about {needed_s:.0f} s, {deadline.left_s:.0f} s are left for it")
        screening.run(first.variant)
    chosen = _chosen(entries)
    if not chosen.control:
        return Contest(entries, "", "", "", None, rules)
    final = _Final(entries, chosen, bench, replace(settings, finalists=most), rules, deadline, say, everyone)
    judgement = final.run()
    twin = {name: entry for name, entry in final.twin.items() if entry.final}
    missing_s = 0.0 if judgement is not None else max(0.0, _needed_s(entries, most, rules) - deadline.left_s)
    return Contest(entries | twin, chosen.control, chosen.default, chosen.hint, judgement, rules, missing_s)


def _needed_s(entries: Mapping[str, Entrant], most: int, rules: Rules) -> float:
    """Return what the starts that were left out would take, those of the final among them, roughly."""
    ran = [e for e in entries.values() if e.screened]
    ready_s, pair_s = (float(np.median([getattr(e, name) for e in ran])) for name in ("ready_s", "pair_s"))
    untried = sum(not e.screened and e.failed is None for e in entries.values())
    final = rules.look * (most + 1) * (2 * ready_s + max(LEAST_PAIRS * pair_s, LEAST_START_S))
    return untried * (ready_s + max(SCREEN_PAIRS * pair_s, SCREEN_S)) + final


@dataclass(slots=True)
class _Screening:
    """A short start of every variant, of the neighbours of the best, and further ones of those near the leader."""

    entries: dict[str, Entrant]
    explore: Explore
    bench: Bench
    deadline: Deadline
    most: int
    say: Say
    longest_s: float = 0.0

    def first(self) -> Entrant | None:
        """Return the first variant that runs, after a start beside itself; None if there is none."""
        return _first_that_runs(list(self.entries.values()), self.bench, self.deadline.clock, self.say)

    def run(self, control: Variant) -> None:
        """Screen the others beside the control until few are left, or the time is used up."""
        self._screen([e for e in self.entries.values() if e.variant is not control], control, 1)
        for _ in range(STEPS):
            self._screen(self._neighbours(), control, 1)
        if len(self.entries) <= self.most:
            return
        for number in range(2, ROUNDS + 1):
            again = [e for e in _near(list(self.entries.values()), number - 1) if not e.variant.baseline]
            if len(again) <= self.most or self.deadline.left_s < self.longest_s * len(again):
                return
            self._screen(again, control, number)

    def _screen(self, entries: Sequence[Entrant], control: Variant, number: int) -> None:
        for entry in entries:
            if self.deadline.left_s < self.longest_s:
                entry.left = entry.left or ("" if entry.screened else "not tried for want of time")
                continue
            begun = self.deadline.clock()
            self.say(f"screening {entry.variant.name}" + (f", start {number}" if number > 1 else ""))
            _begin(entry, control, self.bench, self.deadline.clock, "screening", number)
            self.longest_s = max(self.longest_s, self.deadline.clock() - begun)

    def _neighbours(self) -> list[Entrant]:
        """Return new entries of the settings one step from the best of them so far."""
        ran = [e for e in self.entries.values() if e.screened and not e.failed and e.variant.kind == "settings"]
        if not ran:
            return []
        best = max(ran, key=lambda e: e.advance).variant
        found = [Entrant(v) for v in self.explore(best) if v.name not in self.entries]
        self.entries |= {e.variant.name: e for e in found}
        return found


def _first_that_runs(entries: Sequence[Entrant], bench: Bench, clock: Clock, say: Say) -> Entrant | None:
    """Return the first variant that runs, after a start beside itself; baselines come first."""
    for entry in entries:
        say(f"screening {entry.variant.name}")
        try:
            _begin(entry, entry.variant, bench, clock, "screening", 1)
        except ChildError as error:
            entry.failed, entry.left = error.failed, "failed"
        if entry.failed is None:
            start = entry.screened[1]
            entry.screened[1] = replace(start, variant_s=start.control_s)  # as fast as itself
            return entry
    return None


def _begin(
    entry: Entrant, control: Variant, bench: Bench, clock: Clock, part: Part, number: int, seconds: float = SCREEN_S
) -> None:
    """Give a variant one start; one that is disturbed has a second chance."""
    begun, least = clock(), SCREEN_PAIRS if part == "screening" else LEAST_PAIRS
    found = bench.start(entry.variant, control, part=part, number=number, pairs=least, seconds=seconds)
    if is_transient(found):
        found = bench.start(entry.variant, control, part=part, number=number, pairs=least, seconds=seconds)
    took_s = clock() - begun
    if isinstance(found, MeasurementFailed):
        entry.failed, entry.left = found, "failed"
    else:
        pairs = len(found.variant_s)
        entry.pair_s = min(sum(found.turns_s) / pairs, took_s / pairs)
        entry.ready_s = took_s - pairs * entry.pair_s
        (entry.screened if part == "screening" else entry.final)[number] = found


def _near(entries: Sequence[Entrant], starts: int) -> list[Entrant]:
    """Return the variants near the leader, the fastest first; the others leave."""
    ran = sorted((e for e in entries if e.failed is None and e.screened), key=lambda e: -e.advance)
    if not ran:
        return []
    spread = NEAR * noise_of(entries) * np.sqrt(1.0 + 1.0 / starts)
    leader = ran[0].advance
    for entry in ran:
        if entry.advance < leader - spread and not entry.left and not entry.variant.baseline:
            entry.left = "clearly slower"
    return [e for e in ran if not e.left]


def noise_of(entries: Sequence[Entrant]) -> float:
    """Return the standard deviation of the log ratio of a screening's start, by what the starts show.

    Turns of a start scatter, and so do starts of a variant: they are reckoned as UNSEEN until some variant has two.
    """
    starts = [[s.log_ratio for s in e.screened.values()] for e in entries if e.failed is None and e.screened]
    within = [s.error for e in entries if e.failed is None for s in e.screened.values()]
    between = Spread.of(starts)
    seen = between.sd if between.freedom else math.hypot(UNSEEN, math.sqrt(float(np.mean(np.square(within or [0.0])))))
    return max(seen, QUIETEST)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Who meets in the final, by name: the control, the yardsticks beside it, and the contenders."""

    control: str
    default: str
    hint: str


def _chosen(entries: Mapping[str, Entrant]) -> _Chosen:
    """Return the fastest baseline of one device, the fastest default and the fastest hint of the screening."""
    ran = sorted((e for e in entries.values() if e.failed is None and e.screened), key=lambda e: -e.advance)

    def first(*kinds: str, single: bool = False) -> str:
        found = (e.variant for e in ran if (not kinds or e.variant.kind in kinds) and (e.variant.single or not single))
        return next((v.name for v in found), "")

    control = first("default", "hint", "device", single=True) or first(single=True) or first()
    return _Chosen(control, first("default"), first("hint"))


@dataclass(slots=True)
class _Final:
    """The final: start after start until it is decided, or the time or the starts are used up."""

    entries: Mapping[str, Entrant]
    chosen: _Chosen
    bench: Bench
    settings: MeasureSettings
    rules: Rules
    deadline: Deadline
    say: Say
    everyone: bool = False
    twin: dict[str, Entrant] = field(default_factory=dict)

    def run(self) -> Judgement | None:
        """Return what the starts have come to; None where there was no time for a single one."""
        first = self.entries[self.chosen.control]
        control = first.variant
        ready_s = float(np.median([e.ready_s for e in self.entries.values() if e.screened]))
        twin = self.twin[TWIN] = Entrant(replace(control, name=TWIN), pair_s=first.pair_s, ready_s=2 * ready_s)
        yardsticks = [
            self.entries[n]
            for n in dict.fromkeys((self.chosen.default, self.chosen.hint))
            if n not in ("", self.chosen.control)
        ]
        seconds, contenders, yardsticks = self._that_fit(twin, self._contenders(), yardsticks)
        if not contenders:
            return None
        judgement: Judgement | None = None
        took_s = 0.0
        for number in range(1, self.settings.starts + 1):
            late = self.deadline.left_s < took_s
            if number > 1 and late and (number > self.settings.least_starts or took_s > GRACE_S):
                break
            begun = self.deadline.clock()
            self.say(f"comparing {len(contenders)} with {control.name}, start {number} of up to {self.settings.starts}")
            present = [twin, *yardsticks, *contenders]
            for entry in present if number % 2 else reversed(present):
                if not entry.left:
                    _begin(entry, control, self.bench, self.deadline.clock, "final", number, seconds)
            took_s = self.deadline.clock() - begun
            judgement = self._judge(len(contenders))
            if self._decided(judgement, contenders, yardsticks, number):
                break
        return judgement

    def _contenders(self) -> list[Entrant]:
        """Return the fastest of what is searched, and an own choice of the runtime's that is close.

        Of settings and splits that noise cannot tell apart, settings go first: the last has the first to leave where
        time is short, and settings are the simpler answer.
        """
        ran = [e for e in self.entries.values() if e.failed is None and e.screened and e.variant.name != TWIN]
        noise = noise_of(ran)
        ran.sort(key=lambda e: -(e.advance + noise * e.variant.single))
        searched = [e for e in ran if not e.variant.baseline]
        found = [e for e in searched if not e.left][: self.settings.finalists]
        own = [e for e in ran if e.variant.baseline and not e.variant.single]
        leader = max([e.advance for e in found], default=0.0)
        found += [e for e in own if e.advance > leader - NEAR * noise][:1]
        for entry in searched:
            if entry not in found and not entry.left:
                entry.left = "slower than those compared"
        return found

    def _that_fit(
        self, twin: Entrant, contenders: list[Entrant], yardsticks: list[Entrant]
    ) -> tuple[float, list[Entrant], list[Entrant]]:
        """Return the seconds of turns in a start, and who can have the least number of starts in the time that is left.

        Everybody has as many starts as a decision wants, or fewer where their turns would be too short to tell much.
        Where even the least number is too many, yardsticks go first, then contenders, the slowest first.
        """
        while contenders:
            present = (twin, *contenders, *yardsticks)
            ready_s = sum(e.ready_s for e in present)
            least_s = sum(max(LEAST_PAIRS * e.pair_s, LEAST_START_S) for e in present)
            for starts in range(self.rules.look, self.settings.least_starts - 1, -1):
                turns_s = self.deadline.left_s / starts - ready_s
                if turns_s >= least_s:
                    return min(self.settings.start_s, turns_s / len(present)), contenders, yardsticks
            leaver = (yardsticks or contenders).pop()
            leaver.left = leaver.left or "no time to compare it"
        return 0.0, [], []

    def _judge(self, contenders: int) -> Judgement:
        ratios = {n: e.log_ratios for n, e in {**self.entries, **self.twin}.items() if e.final and e.failed is None}
        return judge(ratios, self.rules, contenders=contenders)

    def _decided(
        self, judgement: Judgement, contenders: Sequence[Entrant], yardsticks: Sequence[Entrant], number: int
    ) -> bool:
        """Let those leave that cannot win any more; return whether more starts would change nothing."""
        if self.everyone:
            return False
        if number >= self.settings.least_starts:
            for entry in yardsticks:
                ratio = judgement.ratios.get(entry.variant.name)
                if ratio is not None and not entry.left and np.log(ratio.high) < -DISTANT:
                    entry.left = "clearly slower"
        if number < self.rules.look:
            self._race(contenders, number)
            return not any(not e.left for e in contenders) and number >= self.settings.least_starts
        for entry in contenders:
            name = entry.variant.name
            if not entry.left and name not in judgement.claimed and name not in judgement.open:
                entry.left = "no faster than the best baseline"
        alive = [e for e in contenders if not e.left]
        if number > self.rules.look or not judgement.claimed:
            return not alive
        best = judgement.ratios[judgement.claimed[0]]
        return all(
            judgement.ratios[e.variant.name].high < best.low for e in alive if e.variant.name != judgement.claimed[0]
        )

    def _race(self, contenders: Sequence[Entrant], number: int) -> None:
        """Let those leave that lie far behind the leader after two starts or more."""
        alive = [e for e in contenders if not e.left and len(e.final) == number]
        if number < 2 or not alive:
            return
        means = {e.variant.name: float(np.mean(e.log_ratios)) for e in alive}
        noise = max(Spread.of([e.log_ratios for e in (*self.twin.values(), *contenders)]).sd, QUIETEST)
        leader = max(means.values())
        for entry in alive:
            if means[entry.variant.name] < leader - NEAR * noise * np.sqrt(2 / number):
                entry.left = "clearly slower"
