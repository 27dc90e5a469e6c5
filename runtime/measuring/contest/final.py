"""The final of a contest: start after start beside the control, until it is decided or the time is used up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.core.deadline import Deadline
from pipeline.core.settings import MeasureSettings
from pipeline.system.process import cpu_count
from runtime.measuring.contest.contenders import (
    LEAST_PAIRS,
    NEAR,
    QUIETEST,
    Contender,
    Say,
    log_ratios_to,
    noise_of,
    run_start,
)
from runtime.measuring.contest.pair_bench import Bench
from runtime.measuring.contest.statistics import TWIN, Judgement, Rules, Spread, judge_starts

GRACE_S = 2.0  # seconds that a start of the final may take for the least number of starts to be completed, though late
LEAST_START_S = 0.5  # seconds of turns in it
FEW = 2  # contenders that may have the least number of starts
SHORT_START_S = 0.2  # the same where a few could not be compared otherwise
SHORTEST_START_S = 0.1  # the same where nothing could be compared otherwise
MOST_WAITING = 0.99  # share of a control's time that waiting for processors explains at most
DISTANT = 0.1  # log ratio of a baseline that is told by few starts


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who meets in the final, by name, "" for nobody: the control, and the baselines beside it.

    rival: another baseline of one device that is near the control. default and rival stay to the end. told: a runtime
    that nobody asked for and that is ahead of all others; it has the first place to go where time is short.
    """

    control: str
    default: str
    hint: str
    rival: str
    told: str = ""


@dataclass(slots=True)
class Final:
    """The final: start after start until it is decided, or the time or the starts are used up."""

    entries: Mapping[str, Contender]
    chosen: Chosen
    bench: Bench
    settings: MeasureSettings
    rules: Rules
    deadline: Deadline
    say: Say
    everyone: bool = False
    twin: dict[str, Contender] = field(default_factory=dict)

    def run(self) -> tuple[str, Judgement | None]:
        """Return the best baseline, and what the starts have come to beside it; None where there was no time for one.

        That is the control, unless another turned out to be better.
        """
        first = self.entries[self.chosen.control]
        control = first.variant
        ready_s = float(np.median([e.ready_s for e in self.entries.values() if e.screened]))
        twin = self.twin[TWIN] = Contender(replace(control, name=TWIN), pair_s=first.pair_s, ready_s=2 * ready_s)
        kept, hints = (
            [self.entries[n] for n in dict.fromkeys(names) if n not in ("", self.chosen.control)]
            for names in ((self.chosen.default, self.chosen.rival), (self.chosen.hint, self.chosen.told))
        )
        hints = [e for e in hints if e not in kept]
        seconds, contenders, hints = self._that_fit([twin, *kept], self._contenders(), hints)
        if seconds is None:
            return self.chosen.control, None
        baselines = [*kept, *(e for e in hints if not e.variant.reported_only)]
        judgement: Judgement | None = None
        took_s = 0.0
        for number in range(1, self.settings.starts + 1):
            rounds = max(1, self.settings.least_starts - number + 1)
            if number > 1 and self.deadline.left_s < rounds * took_s:
                fits_s = self._rounds_that_fit([twin, *kept, *hints], contenders, rounds)
                if fits_s is None and (number > self.settings.least_starts or took_s > GRACE_S):
                    break
                seconds = seconds if fits_s is None else min(seconds, fits_s)
            begun = self.deadline.clock()
            self.say(f"comparing {len(contenders)} with {control.name}, start {number} of up to {self.settings.starts}")
            present = [twin, *kept, *hints, *contenders]
            for entry in present if number % 2 else reversed(present):
                if not entry.left:
                    run_start(entry, control, self.bench, self.deadline.clock, "final", number, seconds)
            took_s = self.deadline.clock() - begun
            judgement = self._judge(control.name, baselines, len(contenders))
            if self._decided(judgement, contenders, hints, number):
                break
        best = self.chosen.control if judgement is None or self.everyone else self._best(baselines)
        return best, self._judge(best, [*baselines, first], len(contenders))

    def _best(self, baselines: Sequence[Contender]) -> str:
        """Return the best baseline by the starts of the final; of those that are equal by what counts the plainest.

        That is the default, then the control. The median decides, since one start can be bad, and of those that have
        two starts or more.
        """
        control, default = self.chosen.control, self.chosen.default
        there = {e.variant.name for e in baselines if e.failed is None and e.variant.single and len(e.final) > 1}
        order = [n for n in dict.fromkeys((default, control, *sorted(there))) if n in there or n == control]
        gains = self._log_ratios_to(control)
        middle = {n: 0.0 if n == control else float(np.median(list(gains[n].values()))) for n in order}
        most = max(middle.values())
        return next(n for n in order if middle[n] > most - math.log1p(self.rules.least))

    def _contenders(self) -> list[Contender]:
        """Return the fastest of what is searched, and an own choice of the runtime's that is close.

        Of settings and splits that noise cannot tell apart, settings go first: the last has the first to leave where
        time is short, and settings are the simpler answer.
        """
        ran = [e for e in self.entries.values() if e.failed is None and e.screened and e.variant.name != TWIN]
        noise = noise_of(ran)
        ran.sort(key=lambda e: -(e.advance + noise * e.variant.single))
        searched = [e for e in ran if not e.variant.baseline]
        contenders = [e for e in searched if not e.left][: self.settings.finalists]
        own = [e for e in ran if e.variant.baseline and not e.variant.single]
        leader = max([e.advance for e in contenders], default=0.0)
        contenders += [e for e in own if e.advance > leader - NEAR * noise][:1]
        for entry in searched:
            if entry not in contenders and not entry.left:
                entry.left = "slower than those compared"
        return contenders

    def _that_fit(
        self, kept: list[Contender], contenders: list[Contender], hints: list[Contender]
    ) -> tuple[float | None, list[Contender], list[Contender]]:
        """Return the seconds of turns in a start, and who can have the least number of starts in the time that is left.

        Starts tell more than longer turns in fewer of them. Where not all can have as many as a decision wants, hints
        go first, then contenders, the slowest first, down to a few; these may have the least number of starts. Where
        nobody is left but those who are kept in any case, starts may be shorter; at last these alone remain, so that
        what the control takes is known.
        """
        ordered = [*contenders, *hints]
        kept_few = min(FEW, len(contenders))
        wanted = [(count, self.rules.look, LEAST_START_S) for count in range(len(ordered), kept_few, -1)]
        few = range(kept_few, 0, -1)
        wanted += [(n, self.settings.least_starts, s) for n in few for s in (LEAST_START_S, SHORT_START_S)]
        wanted += [(n, self.settings.least_starts, SHORTEST_START_S) for n in few]
        for count, fewest, shortest_s in wanted:
            seconds = self._seconds_of_starts((*kept, *ordered[:count]), shortest_s, fewest)
            if seconds is not None:
                _mark_left(ordered[count:])
                return seconds, contenders[:count], hints[: max(0, count - len(contenders))]
        _mark_left(ordered)
        return self._seconds_of_starts(kept, SHORTEST_START_S, self.settings.least_starts), [], []

    def _rounds_that_fit(self, kept: Sequence[Contender], contenders: Sequence[Contender], rounds: int) -> float | None:
        """Return the seconds of turns with which so many more rounds fit in the time left; None if not even one does.

        The slowest contenders leave until they do; one at least stays. If not all fit even so, fewer rounds do.
        """
        staying = [e for e in kept if not e.left]
        alive = sorted((e for e in contenders if not e.left), key=lambda e: -float(np.mean(e.log_ratios)))
        for wanted, count in itertools.product(range(rounds, 0, -1), range(len(alive), 0, -1)):
            present = [*staying, *alive[:count]]
            turns_s = (self.deadline.left_s / wanted - sum(e.again_s for e in present)) / len(present)
            if turns_s >= max(SHORTEST_START_S, *(LEAST_PAIRS * e.pair_s for e in present)):
                for entry in alive[count:]:
                    entry.left = "no time for further starts"
                return turns_s
        return None

    def _seconds_of_starts(self, present: Sequence[Contender], shortest_s: float, fewest: int) -> float | None:
        """Return the seconds of turns in a start if all have so many starts at least; None if they cannot."""
        ready_s = sum(e.again_s for e in present)
        least_s = sum(max(LEAST_PAIRS * e.pair_s, shortest_s) for e in present)
        for starts in range(self.settings.starts, fewest - 1, -1):
            turns_s = self.deadline.left_s / starts - ready_s
            if turns_s >= least_s:
                return min(self.settings.start_s, turns_s / len(present))
        return None

    @property
    def _all(self) -> dict[str, Contender]:
        return {**self.entries, **self.twin}

    def _judge(self, control: str, baselines: Sequence[Contender], contenders: int) -> Judgement:
        """Return what the starts say beside one baseline; a gain must be one over all that are still there."""
        there = [e.variant.name for e in baselines if e.failed is None and not e.left]
        present = [n for n in there if n == self.chosen.control or self.entries[n].final]
        tables = {
            name: {n: list(ratios.values()) for n, ratios in self._log_ratios_to(name).items()}
            for name in (control, *present)
        }
        over = {name: tables[name] for name in present if name != control}
        judgement = judge_starts(tables[control], self.rules, contenders=contenders, over=over)
        held_up = [n for n in judgement.claimed if judgement.ratios[n].low * (1 - self._waiting_of_control(n)) <= 1]
        claimed, undecided = (
            tuple(name for name in names if name != self.chosen.told)
            for names in ([n for n in judgement.claimed if n not in held_up], [*judgement.open, *held_up])
        )
        return replace(judgement, claimed=claimed, open=undecided)

    def _waiting_of_control(self, name: str) -> float:
        """Return the share of the control's time that it may have lost to other processes, and a variant not.

        A variant of fewer threads waits less for processors that others use, and seems faster while they do. Threads
        share the work of an operation: where one of them waits, all do, so that each one's waiting counts in full. 0
        where others are wanted: a machine that is shared.
        """
        if self.settings.condition == "shared":
            return 0.0
        twin = self.twin[TWIN].final
        control, ours = (
            float(np.mean([start.waited_share for start in starts.values()]))
            for starts in (twin, self.entries[name].final)
        )
        threads = sum(next(iter(twin.values())).loaded.get("threads", {}).values()) or cpu_count()
        return min(MOST_WAITING, max(0.0, threads * (control - ours)))

    def _log_ratios_to(self, name: str) -> dict[str, dict[int, float]]:
        return log_ratios_to(name, self._all, self.chosen.control)

    def _decided(
        self, judgement: Judgement, contenders: Sequence[Contender], hints: Sequence[Contender], number: int
    ) -> bool:
        """Let those leave that cannot win any more; return whether more starts would change nothing."""
        if self.everyone:
            return False
        if number >= self.settings.least_starts:
            for entry in hints:
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

    def _race(self, contenders: Sequence[Contender], number: int) -> None:
        """Let those leave that lie far behind the leader after two starts or more; a few have the least number."""
        alive = [e for e in contenders if not e.left]
        if number < 2 or not alive:
            return
        means = {e.variant.name: float(np.mean(e.log_ratios)) for e in alive}
        noise = max(Spread.of([e.log_ratios for e in (*self.twin.values(), *contenders)]).sd, QUIETEST)
        leader = max(means.values())
        ranked = sorted(alive, key=lambda e: -means[e.variant.name])
        for entry in ranked[FEW if number < self.settings.least_starts else 0 :]:
            if means[entry.variant.name] < leader - NEAR * noise * np.sqrt(2 / number):
                entry.left = "clearly slower"


def _mark_left(entries: Sequence[Contender]) -> None:
    for entry in entries:
        entry.left = entry.left or "not compared within the budget"
