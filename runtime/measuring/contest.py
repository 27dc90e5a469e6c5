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
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.deadline import Clock, Deadline
from pipeline.core.settings import MeasureSettings
from runtime.measuring.child import ChildError
from runtime.measuring.claims import TWIN, Judgement, Rules
from runtime.measuring.entrants import LEAST_PAIRS, NEAR, SCREEN_S, Entrant, Say, begin, noise_of
from runtime.measuring.final import LEAST_START_S, Chosen, Final
from runtime.measuring.pairs import SCREEN_PAIRS, Bench
from runtime.measuring.variant import Variant

SCREENING = 0.4  # of the time, at most
STEPS = 2  # from the best settings to their neighbours
ROUNDS = 4  # of the screening
REUSED = 0.5  # what loading takes of a model that was compiled before, over compiling it: 0.38 s of 0.8 s were measured

Explore = Callable[[Variant], Sequence[Variant]]


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
    final = Final(entries, chosen, bench, replace(settings, finalists=most), rules, deadline, say, everyone)
    judgement = final.run()
    twin = {name: entry for name, entry in final.twin.items() if entry.final}
    missing_s = 0.0 if judgement is not None else max(0.0, _needed_s(entries, most, rules) - deadline.left_s)
    return Contest(entries | twin, chosen.control, chosen.default, chosen.hint, judgement, rules, missing_s)


def _needed_s(entries: Mapping[str, Entrant], most: int, rules: Rules) -> float:
    """Return what the starts that were left out would take, those of the final among them, roughly."""
    ran = [e for e in entries.values() if e.screened]
    ready_s, pair_s = (float(np.median([getattr(e, name) for e in ran])) for name in ("ready_s", "pair_s"))
    untried = sum(not e.screened and e.failed is None for e in entries.values())
    present = most + 1  # the twin; the control is loaded beside all of them
    final = rules.look * ((present + 1) * REUSED * ready_s + present * max(LEAST_PAIRS * pair_s, LEAST_START_S))
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
            begin(entry, control, self.bench, self.deadline.clock, "screening", number)
            self.longest_s = max(self.longest_s, self.deadline.clock() - begun)

    def _neighbours(self) -> list[Entrant]:
        """Return new entries of the settings one step from the best of them so far."""
        ran = [e for e in self.entries.values() if e.screened and not e.failed and e.variant.kind == "settings"]
        if not ran:
            return []
        best = max(ran, key=lambda e: e.advance).variant
        entrants = [Entrant(v) for v in self.explore(best) if v.name not in self.entries]
        self.entries |= {e.variant.name: e for e in entrants}
        return entrants


def _first_that_runs(entries: Sequence[Entrant], bench: Bench, clock: Clock, say: Say) -> Entrant | None:
    """Return the first variant that runs, after a start beside itself; baselines come first."""
    for entry in entries:
        say(f"screening {entry.variant.name}")
        try:
            begin(entry, entry.variant, bench, clock, "screening", 1)
        except ChildError as error:
            entry.failed, entry.left = error.failed, "failed"
        if entry.failed is None:
            start = entry.screened[1]
            entry.screened[1] = replace(start, variant_s=start.control_s)  # as fast as itself
            return entry
    return None


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


def _chosen(entries: Mapping[str, Entrant]) -> Chosen:
    """Return the fastest baseline of one device, the fastest default and the fastest hint of the screening."""
    ran = sorted((e for e in entries.values() if e.failed is None and e.screened), key=lambda e: -e.advance)

    def first(*kinds: str, single: bool = False) -> str:
        variants = (
            e.variant for e in ran if (not kinds or e.variant.kind in kinds) and (e.variant.single or not single)
        )
        return next((v.name for v in variants), "")

    control = first("default", "hint", "device", single=True) or first(single=True) or first()
    return Chosen(control, first("default"), first("hint"))
