"""Which of many variants is the fastest, and by how much: screened, raced, and compared start by start.

    screening   every variant, the most promising first: a short start beside the first baseline that runs. Baselines
                that may be the best have further starts, as one can be bad. Then those that are close to the leader
                have another start each, fewer every time, until few are left
    final       the plug-in's default is the control, or a baseline of one device that was faster in several starts. It
                meets its twin, the default, the baselines near it and the contenders, one fresh start each, again and
                again; whoever can no longer win leaves, but never the default

What is claimed rests on the starts of the final alone: the control and the contenders were chosen by others. It is a
gain over every baseline that stayed; where one of these turns out to be better than the control, ratios are to that.
Variants that a plug-in reports to run alike are one. A runtime that nobody asked for has one row: it is screened once,
meets the control if it is ahead of all others, and decides nothing.

Source: Karnin, Koren, Somekh, Almost optimal exploration in multi-armed bandits (2013), for halving by rounds.
Different: who leaves is decided by the distance to the leader, so that the clearly slower leave at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from pipeline.core.deadline import Clock, Deadline
from pipeline.core.settings import MeasureSettings
from runtime.machines.devices import PRECISION
from runtime.measuring.contest.contenders import (
    LEAST_PAIRS,
    NEAR,
    REUSED,
    SCREEN_S,
    Contender,
    Say,
    log_ratios_to,
    noise_of,
    run_start,
)
from runtime.measuring.contest.final import FEW, LEAST_START_S, SHORT_START_S, Chosen, Final
from runtime.measuring.contest.pair_bench import SCREEN_PAIRS, Bench
from runtime.measuring.contest.statistics import TWIN, Judgement, Rules
from runtime.measuring.contest.variant import Variant, VariantKind
from runtime.measuring.contest.variant_likeness import variant_likeness
from runtime.measuring.process.child import ChildError

SCREENING = 0.4  # of the time, at most
STEPS = 2  # from the best settings to their neighbours
ROUNDS = 4  # of the screening
REACH = math.log(2.5)  # behind the best baseline, within which another may be as good: bad starts take twice as long
UNLIKE = math.log(1.2)  # between two starts of a baseline, beyond which a third tells which is the bad one
SEVERAL = 2  # starts of the screening without which no baseline takes the place of the default as control

KINDS: tuple[VariantKind, ...] = get_args(VariantKind)  # baselines first, the plainest before the others

Explore = Callable[[Variant], Sequence[Variant]]


@dataclass(frozen=True, slots=True)
class Contest:
    """What a contest has come to.

    entries: of every variant, by its name. control, default, hint: names of the best baseline, of the plug-in's
    default and of the best hint; "" where there is none. judgement: of the final, None where there was no time for one.
    missing_s: seconds more that screening the untried and a final would have taken, roughly, where nothing that is
    searched was compared. beside: the name of the
    variant that all took turns with, the control unless the final showed another baseline to be better.
    """

    entries: Mapping[str, Contender]
    control: str
    default: str
    hint: str
    judgement: Judgement | None
    rules: Rules
    missing_s: float = 0.0
    beside: str = ""

    def standing(self, name: str) -> float:
        """Return the log of how many times as fast as the control a variant seems to be; -inf where that is unknown.

        Of the screening it is a first sight alone, and no interval goes with it.
        """
        entry = self.entries[name]
        between = [] if name == self.control else list(self.between(name, self.control).values())
        if between:
            return float(np.mean(between))
        return entry.advance - self.entries[self.control].advance if entry.screened else -math.inf

    def between(self, name: str, other: str) -> dict[int, float]:
        """Return, by its number, log(time of the other / time of `name`) of each start of the final both have had."""
        beside = self.beside or self.control
        present = self.entries[other].failed is None and (other == beside or bool(self.entries[other].final))
        return log_ratios_to(other, self.entries, beside).get(name, {}) if present else {}


def run_contest(
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
    entries = {v.name: Contender(v) for v in variants}
    most = len(variants) if everyone else settings.finalists
    own = [e for e in entries.values() if not e.variant.reported_only]
    begun = deadline.clock()
    first = _first_that_runs(own, bench, deadline.clock, say)
    if first is not None:
        first_s = deadline.clock() - begun
        screening = _Screening(entries, explore, bench, deadline, settings.least_starts, most, say, everyone, first_s)
        needed_s = _needed_s(entries, most, rules)
        if needed_s > deadline.left_s:
            say(f"comparing all would take about {needed_s:.0f} s, {deadline.left_s:.0f} s are left for it")
        screening.run(first)
    chosen = _choose_control(entries)
    if everyone:
        chosen = replace(chosen, rival="")  # all that is searched meets the best of the devices, and nobody else
    if not chosen.control:
        return Contest(entries, "", "", "", None, rules)
    final = Final(entries, chosen, bench, replace(settings, finalists=most), rules, deadline, say, everyone)
    control, judgement = final.run()
    twin = {name: entry for name, entry in final.twin.items() if entry.final}
    compared = judgement is not None and any(not entries[n].variant.baseline for n in judgement.ratios)
    missing_s = 0.0 if compared else max(0.0, _needed_s(entries, most, rules) - deadline.left_s)
    return Contest(entries | twin, control, chosen.default, chosen.hint, judgement, rules, missing_s, chosen.control)


def _needed_s(entries: Mapping[str, Contender], most: int, rules: Rules) -> float:
    """Return what the starts that were left out would take, those of the final among them, roughly."""
    ran = [e for e in entries.values() if e.screened]
    ready_s, pair_s = (float(np.median([getattr(e, name) for e in ran])) for name in ("ready_s", "pair_s"))
    untried = sum(not e.screened and e.failed is None for e in entries.values())
    present = most + 1  # the twin; the control is loaded beside all of them
    final = rules.look * ((present + 1) * REUSED * ready_s + present * max(LEAST_PAIRS * pair_s, LEAST_START_S))
    return untried * (ready_s + max(SCREEN_PAIRS * pair_s, SCREEN_S)) + final


@dataclass(slots=True)
class _Screening:
    """A short start of every variant, of the neighbours of the best, and further ones of those near the leader.

    deadline: of the contest. least_starts: of the final, for which time is left. everyone: variants that are alike are
    compared nevertheless.
    """

    entries: dict[str, Contender]
    explore: Explore
    bench: Bench
    deadline: Deadline
    least_starts: int
    most: int
    say: Say
    everyone: bool = False
    first_s: float = 0.0
    longest_s: float = 0.0
    known: dict[str, Contender] = field(default_factory=dict)
    share: Deadline = field(init=False)

    def __post_init__(self) -> None:
        self.share = self.deadline.share(SCREENING)

    @property
    def left_s(self) -> float:
        """Return the seconds left: of its share, and of all but what a final takes that compares a few."""
        ran = [e for e in self.entries.values() if e.screened and e.failed is None][1:]  # the first began processes
        if not ran:
            return self.share.left_s
        ready_s, pair_s = (float(np.median([getattr(e, name) for e in ran])) for name in ("ready_s", "pair_s"))
        loads, present = FEW + 2, FEW + 1  # those few, the twin, and the control, which is loaded once for all
        start_s = REUSED * loads * ready_s + present * max(LEAST_PAIRS * pair_s, SHORT_START_S)
        return max(0.0, min(self.share.left_s, self.deadline.left_s - self.least_starts * start_s))

    def run(self, first: Contender) -> None:
        """Screen the others beside the first that runs until few are left, or the time is used up."""
        control = first.variant
        self._merge(first)
        if not self.everyone:
            self._merge_equal_devices()
        others = [e for e in self.entries.values() if e is not first]
        last = max((i for i, e in enumerate(others) if e.variant.kind == "settings"), default=-1) + 1
        if any(e.variant.kind == "split" for e in others[:last]):  # it is as promising as settings, and so is the rest
            last = len(others)
        self._screen(others[:last], control, 1)
        for _ in range(STEPS):
            self._screen(self._neighbours(), control, 1)
        self._screen(others[last:], control, 1)
        ready_s = [e.ready_s for e in self.entries.values() if e.screened and e is not first]
        first.ready_s = float(np.median(ready_s or first.ready_s))
        self._baselines_again(control)
        if len(self.entries) <= self.most:
            return
        for number in range(2, ROUNDS + 1):
            again = [e for e in _near_leader(list(self.entries.values()), number - 1) if not e.variant.baseline]
            if len(again) <= self.most or self.left_s < self.longest_s * len(again):
                return
            self._screen(again, control, number)

    def _screen(self, entries: Sequence[Contender], control: Variant, number: int) -> None:
        for entry in entries:
            needed_s = self.longest_s * (1 + self._owed(entry))
            if entry.left or self.left_s < (max(needed_s, self.first_s) if entry.variant.reported_only else needed_s):
                entry.left = entry.left or ("" if entry.screened else "not tried within the budget")
                continue
            begun = self.deadline.clock()
            self.say(f"screening {entry.variant.name}" + (f", start {number}" if number > 1 else ""))
            run_start(entry, control, self.bench, self.deadline.clock, "screening", number)
            self.longest_s = max(self.longest_s, self.deadline.clock() - begun)
            if number == 1 and entry.failed is None:
                self._merge(entry)

    def _owed(self, entry: Contender) -> int:
        """Return how many starts of baselines go before the first of a variant.

        A few settings come before all. Then those are the first ones of all of one device, since a gain over the best
        of them is claimed; once more variants had theirs also the second ones of those in reach.
        """
        tried = sum(bool(e.screened) and not e.variant.baseline for e in self.entries.values())
        if entry.variant.baseline or entry.screened or tried < FEW:
            return 0
        baselines = [e for e in self.entries.values() if e.variant.baseline and e.variant.single and not e.failed]
        untried = sum(not e.screened and not e.left for e in baselines)
        again = sum(len(e.screened) < SEVERAL for e in self._in_reach()) if tried >= self.most else 0
        return untried + again

    def _merge(self, entry: Contender) -> None:
        """Let a variant leave that is one with another; its start is one more of that. Baselines go before others."""
        key = "" if self.everyone else variant_likeness(entry.variant, entry.screened[1].loaded)
        other = self.known.setdefault(key, entry) if key else entry
        if other is entry:
            return
        before = KINDS.index(entry.variant.kind) < KINDS.index(other.variant.kind)
        kept, gone = (entry, other) if before else (other, entry)
        self.known[key] = kept
        for same in self.entries.values():
            if same is gone or same.same_as == gone.variant.name:
                same.left, same.same_as = f"duplicate of {kept.variant.name}", kept.variant.name
        for start in gone.screened.values():
            kept.screened[max(kept.screened) + 1] = start

    def _merge_equal_devices(self) -> None:
        """Let devices of one plug-in with equal properties, such as the halves of a CPU, or its own, be one variant."""
        devices = [e for e in self.entries.values() if e.variant.kind == "device" and not e.variant.affinity]
        defaults = [e for e in self.entries.values() if e.variant.kind == "default" and e.screened]
        for i, entry in enumerate(devices):
            (device,) = entry.variant.devices
            same = [o for o in devices[:i] if o.variant.devices[0].fingerprint == device.fingerprint != ""]
            if device.properties.keys() == {PRECISION} and not entry.screened:
                precision = {entry.variant.target: device.properties[PRECISION]}
                same += [o for o in defaults if o.screened[1].loaded["precisions"] == precision]
            if same and not same[0].left:
                entry.same_as = same[0].variant.name
                entry.left = f"the same as {entry.same_as}"

    def _in_reach(self) -> list[Contender]:
        """Return the baselines of one device that may be the best; none where there is but one."""
        ran = [e for e in _single_baselines(self.entries) if e.variant.kind != "own choice"]
        best = max([e.advance for e in ran], default=0.0)
        near = [e for e in ran if e.advance > best - REACH]
        return near if len(near) > 1 else []

    def _baselines_again(self, control: Variant) -> None:
        """Give the baselines that may be the best a second start, and a third where two are too unlike."""
        self._screen([e for e in self._in_reach() if len(e.screened) < SEVERAL], control, 2)
        unlike = [e for e in self._in_reach() if len(e.screened) == SEVERAL and e.screening_range > UNLIKE]
        self._screen(unlike, control, 3)

    def _neighbours(self) -> list[Contender]:
        """Return new entries of the settings one step from the best of them so far."""
        ran = [e for e in self.entries.values() if e.screened and not e.failed and e.variant.kind == "settings"]
        if not ran:
            return []
        best = max(ran, key=lambda e: e.advance).variant
        entrants = [Contender(v) for v in self.explore(best) if v.name not in self.entries]
        self.entries |= {e.variant.name: e for e in entrants}
        return entrants


def _first_that_runs(entries: Sequence[Contender], bench: Bench, clock: Clock, say: Say) -> Contender | None:
    """Return the first variant that runs, after a start beside itself; baselines come first."""
    for entry in entries:
        say(f"screening {entry.variant.name}")
        try:
            run_start(entry, entry.variant, bench, clock, "screening", 1)
        except ChildError as error:
            entry.failed, entry.left = error.failed, "failed"
        if entry.failed is None:
            return entry
    return None


def _near_leader(entries: Sequence[Contender], starts: int) -> list[Contender]:
    """Return the variants near the leader, the fastest first, and the few best of what is searched; the others leave.

    A few are compared in any case, since a start of the screening can be bad.
    """
    ran = [e for e in entries if e.failed is None and e.screened and not e.variant.reported_only]
    ran.sort(key=lambda e: -e.advance)
    if not ran:
        return []
    spread = NEAR * noise_of(entries) * np.sqrt(1.0 + 1.0 / starts)
    leader = ran[0].advance
    for entry in [e for e in ran if not e.variant.baseline and not e.left][FEW:]:
        if entry.advance < leader - spread:
            entry.left = "clearly slower"
    return [e for e in ran if not e.left]


def _single_baselines(entries: Mapping[str, Contender]) -> list[Contender]:
    """Return the baselines of one device that have run, the fastest of the screening first; of equal ones one."""
    ran = (
        e for e in entries.values() if e.failed is None and e.screened and not (e.same_as or e.variant.reported_only)
    )
    return sorted((e for e in ran if e.variant.baseline and e.variant.single), key=lambda e: -e.advance)


def _choose_control(entries: Mapping[str, Contender]) -> Chosen:
    """Return the control and the baselines that meet it, by the starts of the screening.

    The control is the plug-in's default, the fastest of several, unless another baseline of one device was faster in
    several starts.
    """
    all_ran = sorted((e for e in entries.values() if e.failed is None and e.screened), key=lambda e: -e.advance)
    ran = [e for e in all_ran if not e.variant.reported_only]
    baselines = _single_baselines(entries)

    def first(*kinds: str) -> str:
        return next((e.variant.name for e in ran if e.variant.kind in kinds and not e.same_as), "")

    default, hint = first("default"), first("hint")
    fastest = baselines[0] if baselines else next((e for e in ran if e.variant.single), ran[0] if ran else None)
    if fastest is None:
        return Chosen("", "", "", "")
    told = next((e.variant.name for e in all_ran[:1] if e.variant.reported_only), "")
    control = fastest
    if default and min(len(fastest.screened), len(entries[default].screened)) < SEVERAL:
        control = entries[default]
    near = control.advance - NEAR * noise_of([*entries.values()])
    rivals = [e.variant.name for e in baselines if e.variant.name not in (control.variant.name, default)]
    rival = next((n for n in rivals if entries[n].advance > near), "")
    return Chosen(control.variant.name, default, hint, rival, told)
