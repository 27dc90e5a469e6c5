"""What windows of load say of a configuration: percentiles, deadlines, and what the objective makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.figures import bytes_text, finite_or_none
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.scenario.records import ServedFigures, ServedRequest
from runtime.measuring.load.bench import SeatedModels, Window
from runtime.measuring.load.drive import LoadTimes

TOLD = (50.0, 90.0, 99.0, 99.9)  # percentiles that are told where there are requests enough
FILL_S, TAIL_S = 0.2, 0.1
LEAST_S = 0.4  # of a window that counts
# Deadlines that a window lasts, but for a part of the longest at most: what is overloaded a little is late by then.
SPAN, MOST_SPAN = 6.0, 0.25
# Of log(latency / deadline) over log(load multiple): where two windows do not tell it, and within which they do.
SLOPE, LEAST_SLOPE, MOST_SLOPE = 2.0, 1.5, 6.0
MOST_STEP = math.log(2.25)  # of log(load multiple), from one window to the next
NEAR, EXACT = math.log(1.2), 0.2  # of log(load multiple) and of log(latency / deadline): where a search for it ends
HOPELESS = 2.0  # deadlines, by which a window of such a search ends where a percentile takes longer
MOST_WINDOWS = 12  # of one search for the greatest load multiple
TURNS = {"throughput": 4, "latency": 2}  # windows of one start; under a load that should grow until that is told
CLOSED_FILL_S, LEAST_TURN_S = 0.1, 0.3  # of windows in closed loops
LEAST_MULTIPLE, MOST_MULTIPLE = 1 / 64, 4096.0
UNSERVED = 3.0  # log(latency / deadline) where requests were not served
DRAINS = 2.0  # times the longest deadline that requests have to be served once none is due any more
SIGHT_TIMES = 0.4  # as many requests as a percentile takes, in a first sight that has percentiles
SHOWN_S, MOST_SHOWN = 1.0, 400  # of a timeline, and requests of one model in it
CHECK_TIMES = 3.0  # as many requests as a percentile takes at least, where a deadline is said to hold


@dataclass(frozen=True, slots=True)
class Measured:
    """What one start of a configuration came to.

    goodness: a logarithm, the more the better: of the load multiple, of the weighted geometric mean of the rates, or
    the negative of that of the weighted sum of percentiles, -inf where one cannot be told. figures: at the stated load,
    or in closed loops. windows: how many it took. precisions, requests: of each model, as it runs. limit: which limit
    it does not keep. failed: models that failed; figures are of the others. multiple: of the stated rates in the
    greatest window in which deadlines held or were just missed, or else in the least. seen_s: model -> its percentile
    of the requests of that window, however few they were. turns: goodness of each window in closed loops. held:
    whether deadlines held or were just missed at any load multiple; else goodness is a guess below all that were tried.
    others: share of the processors that other processes took.
    """

    goodness: float
    figures: Sequence[ServedFigures]
    load_s: float = 0.0
    processor_s: float = 0.0
    peak_bytes: int = 0
    windows: int = 1
    precisions: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    limit: str = ""
    failed: Mapping[str, MeasurementFailed] = field(default_factory=dict)
    multiple: float = 1.0
    seen_s: Mapping[str, float] = field(default_factory=dict)
    turns: Sequence[float] = ()
    held: bool = True
    others: float = 0.0

    def log_ratio(self, other: Measured) -> float:
        """Return the log of how many times as good it is as another of the same start: the median over their turns."""
        if self.turns and other.turns:
            return float(np.median([a - b for a, b in zip(self.turns, other.turns, strict=False)]))
        return self.goodness - other.goodness


def least_requests(percentile: float, times: float = 1.0) -> int:
    """Return how many requests a percentile takes at least.

    >>> least_requests(99.0), least_requests(50.0)
    (100, 10)
    """
    return max(10, math.ceil(round(times * 100 / (100 - percentile), 6)))


def served_figures(load: ModelLoad, log: RequestLog, window: Window, multiple: float) -> ServedFigures:
    """Return what became of the requests of one model."""
    seconds, n = log.latencies_s(), int(log.measured.sum())
    told = [p for p in TOLD if n >= least_requests(p)]
    wanted = log.percentile_s(load.percentile) if n >= least_requests(load.percentile) else None
    late = float(np.mean(seconds > load.deadline_s)) if n else 0.0
    holds: bool | None = None
    if math.isfinite(load.deadline_s):
        if wanted is not None:
            holds = wanted <= load.deadline_s
        elif late * n > least_requests(load.percentile) * (1 - load.percentile / 100):
            holds = False  # more are late than may be of as many as are wanted
    return ServedFigures(
        load.name,
        multiple if load.rate or load.after else 0.0,
        n / window.measured_s,
        ended_rate(log, window.measured_s),
        n,
        log.dropped,
        finite_or_none(wanted),
        {f"{p:g}": s for p in told if math.isfinite(s := log.percentile_s(p))},
        late,
        holds,
    )


def one_second(window: Window) -> list[ServedRequest]:
    """Return the requests of a second in the middle of a window, at most so many of each model as can be drawn."""
    rows: list[ServedRequest] = []
    for name, log in window.logs.items():
        counted = np.flatnonzero(log.measured)
        if not counted.size:
            continue
        begin_s = (log.due_s[counted[0]] + log.due_s[counted[-1]] - SHOWN_S) / 2
        shown = counted[(log.due_s[counted] >= begin_s) & (log.due_s[counted] < begin_s + SHOWN_S)][:MOST_SHOWN]
        for due_s, end_s in zip(log.due_s[shown] - begin_s, log.end_s[shown] - begin_s, strict=True):
            rows.append(ServedRequest(name, float(due_s), finite_or_none(float(end_s))))
    return rows


def ended_rate(log: RequestLog, measured_s: float) -> float:
    """Return how many of the measured requests ended per second: of few, by the time between the first and the last."""
    ends = np.sort(log.end_s[log.measured & ~np.isnan(log.end_s)])
    if ends.size > 1 and ends[-1] > ends[0] + 0.5 * measured_s:
        return float((ends.size - 1) / (ends[-1] - ends[0]))
    return float(ends.size / measured_s)


@dataclass(slots=True)
class LoadMultiples:
    """Windows of load at several multiples of all rates, and what they say of the greatest at which deadlines hold.

    looks: (log multiple, log(latency / deadline)) of each; deadlines hold up to 0.

    The greatest is where a line through two windows crosses 0, drawn over logarithms: between the nearest on both
    sides where there are some, else beyond the last. It takes half as many windows as halving intervals, and values
    are not of a grid.
    """

    looks: list[tuple[float, float]] = field(default_factory=list)

    def add(self, multiple: float, slack: float) -> None:
        """Note a window."""
        self.looks.append((math.log(multiple), slack))

    @property
    def missed(self) -> bool:
        """Return whether deadlines were missed at any."""
        return any(slack > 0 for _, slack in self.looks)

    @property
    def greatest(self) -> float:
        """Return the greatest multiple at which deadlines seem to hold."""
        return math.exp(self._crossing())

    @property
    def least(self) -> float:
        """Return the least multiple that was tried."""
        return math.exp(min(x for x, _ in self.looks))

    @property
    def near(self) -> bool:
        """Return whether deadlines held in a window near the greatest multiple, or were just missed in the last."""
        crossing = self._crossing()
        return self.exact or any(slack <= 0 and abs(x - crossing) <= NEAR for x, slack in self.looks)

    @property
    def held(self) -> bool:
        """Return whether deadlines held or were just missed at any; else the greatest is below all that were tried."""
        return any(slack <= EXACT for _, slack in self.looks)

    @property
    def exact(self) -> bool:
        """Return whether deadlines were just held or just missed in the last window."""
        return abs(self.looks[-1][1]) <= EXACT

    @property
    def best(self) -> int:
        """Return which window had the greatest multiple at which deadlines held or were just missed, or the least."""
        held = [(x, i) for i, (x, slack) in enumerate(self.looks) if slack <= EXACT]
        return max(held)[1] if held else min((x, i) for i, (x, _) in enumerate(self.looks))[1]

    def _crossing(self) -> float:
        held = sorted(look for look in self.looks if look[1] <= 0)
        missed = sorted(look for look in self.looks if look[1] > 0)
        if held and missed:
            (low, under), (high, over) = held[-1], missed[0]
            over = min(over, math.log(HOPELESS))  # longer ones have ended early
            part = -under / (over - under) if high > low else 0.5
            return low + min(0.9, max(0.1, part)) * (high - low)
        (x, slack), *others = held[::-1] or missed
        slope = SLOPE
        if others and others[0][0] != x:
            slope = min(MOST_SLOPE, max(LEAST_SLOPE, (slack - others[0][1]) / (x - others[0][0])))
        return x + max(-MOST_STEP, min(MOST_STEP, -slack / slope))


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Measures what the objective of a scenario makes of a configuration that is loaded.

    longest_s: of a window; where a percentile takes longer, it cannot be told. closed_s: of a window in closed loops,
    turn_s: of one that is a turn of several. start_times: times the requests that a percentile takes, in a start, or
    in each of its windows under a load that should grow.
    deadline: after which no window begins, but the first.
    """

    scenario: LoadScenario
    longest_s: float = 10.0
    closed_s: float = 0.8
    turn_s: float = LEAST_TURN_S
    start_times: float = 1.0
    deadline: Deadline = NEVER

    @property
    def sight_times(self) -> float:
        """Return how many times as many requests as a percentile takes a first sight should see."""
        return 1.0 if self.scenario.objective == "throughput" else SIGHT_TIMES

    def times(self, multiple: float = 1.0, least: float = 1.0) -> LoadTimes:
        """Return how long a window is, in which every percentile that matters can be told, unless that is too long.

        least: times the requests that a percentile takes at least.
        """
        rates = self.scenario.scaled(multiple).rates()
        wanted = [
            least_requests(m.percentile, least) / rates[m.name]
            for m in self.scenario.models
            if rates[m.name] and (math.isfinite(m.deadline_s) or self.scenario.objective == "latency")
        ]
        deadlines = [m.deadline_s for m in self.scenario.models if math.isfinite(m.deadline_s)]
        span_s = min(MOST_SPAN * self.longest_s, SPAN * max(deadlines, default=0.0))
        # A tenth more, as arrivals are random.
        measured_s = (
            min(self.longest_s * max(1.0, least), max([LEAST_S, span_s, *(1.1 * s for s in wanted)]))
            if wanted
            else self.closed_s
        )
        if self.scenario.objective == "throughput":
            return LoadTimes(CLOSED_FILL_S, self.turn_s if least < 1 else self.closed_s, 0.0, DRAINS)
        slowest_s = max(deadlines, default=0.5)
        return LoadTimes(FILL_S + min(slowest_s, 1.0), measured_s, TAIL_S, DRAINS * slowest_s)

    def look(
        self, seats: SeatedModels, seed: int, *, multiple: float = 1.0, least: float = 1.0, until_late: float = math.inf
    ) -> tuple[Window, list[ServedFigures]]:
        """Return one window of load at a multiple of all rates, and its figures.

        until_late: deadlines, by which it ends where a percentile takes longer.
        """
        scenario = self.scenario.scaled(multiple)
        times = replace(self.times(multiple, least), until_late=until_late)
        window = seats.window(scenario, times, seed=seed)
        known = [m for m in scenario.models if m.name not in window.failed]
        return window, [served_figures(m, window.logs[m.name], window, multiple) for m in known]

    def slack(self, window: Window) -> float:
        """Return log(latency / deadline) of the model for which that is the largest; at most 0 all deadlines hold.

        Where so few requests do not tell the percentile, the slowest of them stands for it.
        """
        return self.slack_of(
            {
                m.name: window.logs[m.name].percentile_s(m.percentile)
                for m in self.scenario.models
                if m.name in window.logs
            }
        )

    def slack_of(self, seconds: Mapping[str, float]) -> float:
        """Return the same of the percentiles of models by name, nan for one without a request."""
        worst = -UNSERVED
        for load in self.scenario.models:
            took_s = seconds.get(load.name, math.nan)
            if math.isfinite(load.deadline_s) and not math.isnan(took_s):
                worst = max(worst, min(math.log(max(took_s, 1e-9) / load.deadline_s), UNSERVED))
        return worst

    def goodness(self, figures: Sequence[ServedFigures]) -> float:
        """Return what the objective `throughput` makes of figures."""
        weights = {m.name: m.weight for m in self.scenario.models}
        whole = sum(weights[f.name] for f in figures)
        return sum(weights[f.name] * math.log(max(f.rate, 1e-9)) for f in figures) / whole

    def seen_goodness(self, window: Window) -> float:
        """Return what the objective `latency` makes of a window of however few requests."""
        seen_s = [m.weight * window.logs[m.name].percentile_s(m.percentile) for m in self.known(window)]
        return -math.log(sum(seen_s)) if math.isfinite(sum(seen_s)) else -math.inf

    def known(self, window: Window) -> list[ModelLoad]:
        """Return the models that did not fail in a window."""
        return [m for m in self.scenario.models if m.name not in window.failed]

    def sight(self, seats: SeatedModels, seed: int, bar: float) -> Measured:
        """Return a first sight: one window; under a load that should grow, more while every deadline holds.

        bar: the multiple to begin with, the greatest that another holds.
        """
        if self.scenario.objective != "load":
            window, figures = self.look(seats, seed, least=self.sight_times)
            closed = self.scenario.objective == "throughput"
            goodness = self.goodness(figures) if closed else self.seen_goodness(window)
            return self.measured(seats, window, figures, goodness, 1)
        found, seen, multiple = LoadMultiples(), list[tuple[Window, list[ServedFigures]]](), bar
        while True:
            seen.append(self.look(seats, seed, multiple=multiple, least=self.sight_times, until_late=HOPELESS))
            found.add(multiple, self.slack(seen[-1][0]))
            near = abs(math.log(found.greatest / multiple)) < MOST_STEP / 2  # the final looks nearer
            enough = found.missed or near or len(found.looks) == MOST_WINDOWS or multiple >= MOST_MULTIPLE
            if enough or self.deadline.passed:
                break
            multiple = found.greatest
        said = self.measured(seats, *seen[found.best], math.log(found.greatest), len(found.looks))
        return replace(said, held=found.held and bool(said.seen_s))

    def measured(
        self, seats: SeatedModels, window: Window, figures: Sequence[ServedFigures], goodness: float, windows: int
    ) -> Measured:
        """Return what windows of a configuration came to, the last of them or all pooled in one."""
        precisions = {name: "+".join(sorted(set(told["precisions"].values()))) for name, told in seats.loaded.items()}
        limits, broken = self.scenario, ""
        if limits.memory_bytes and window.peak_bytes > limits.memory_bytes:
            broken = f"{bytes_text(window.peak_bytes, 3)} of memory, {bytes_text(limits.memory_bytes, 3)} allowed"
        elif limits.load_s and seats.load_s > limits.load_s:
            broken = f"loads in {seats.load_s:.2f} s, {limits.load_s:g} s allowed"
        elif limits.processor_s and window.processor_s > limits.processor_s:
            broken = f"{window.processor_s:.2f} processors, {limits.processor_s:g} allowed"
        taken = seats.load_s, window.processor_s, window.peak_bytes, windows
        requests = {name: told["requests"] for name, told in seats.loaded.items()}
        seen_s = {
            m.name: window.logs[m.name].percentile_s(m.percentile) for m in limits.models if m.name in window.logs
        }
        finite_s = {name: seconds for name, seconds in seen_s.items() if math.isfinite(seconds)}
        multiple = max((f.multiple for f in figures), default=0.0) or 1.0
        return Measured(
            goodness,
            figures,
            *taken,
            precisions,
            requests,
            broken,
            window.failed,
            multiple,
            finite_s,
            others=window.others,
        )


@dataclass(slots=True)
class StartTurns:
    """One start of a configuration: a window a turn, so that other configurations can have theirs between.

    guess: the load multiple of the next window, near the greatest as far as that is known. Arrivals come in one
    pattern. ended: whether the start came to its end, and was not cut short by the deadline.
    """

    yardstick: Yardstick
    seats: SeatedModels
    seed: int
    guess: float
    over: bool = False
    ended: bool = False
    seen: list[tuple[Window, list[ServedFigures]]] = field(default_factory=list)
    found: LoadMultiples = field(default_factory=LoadMultiples)

    def turn(self) -> None:
        """Run one window."""
        objective, passed = self.yardstick.scenario.objective, self.yardstick.deadline.passed
        if objective != "load":
            count = TURNS[objective]
            least = self.yardstick.start_times / count
            self.seen.append(self.yardstick.look(self.seats, self.seed + len(self.seen), least=least))
            self.over = self.ended = len(self.seen) == count or passed
            return
        least, found = self.yardstick.start_times, self.found
        self.seen.append(
            self.yardstick.look(self.seats, self.seed, multiple=self.guess, least=least, until_late=HOPELESS)
        )
        found.add(self.guess, self.yardstick.slack(self.seen[-1][0]))
        self.guess = found.greatest
        within = LEAST_MULTIPLE <= self.guess <= MOST_MULTIPLE
        told = found.exact or (found.near and len(found.looks) > 1)
        self.ended = told or len(found.looks) == MOST_WINDOWS or not within
        self.over = self.ended or passed

    def measured(self) -> Measured:
        """Return what all turns came to."""
        yardstick, count = self.yardstick, len(self.seen)
        if yardstick.scenario.objective == "load":
            said = yardstick.measured(self.seats, *self.seen[self.found.best], math.log(self.found.greatest), count)
            if self.found.held and said.seen_s:  # a window without a request tells nothing
                return said
            least = self.found.least
            return replace(said, held=False, limit=f"its deadlines do not hold at {least:.2g} times the load")
        window = pooled_window([w for w, _ in self.seen])
        figures = [served_figures(m, window.logs[m.name], window, 1.0) for m in yardstick.known(window)]
        rates = {f.name: [g.rate for _, told in self.seen for g in told if g.name == f.name] for f in figures}
        figures = [replace(f, rate=float(np.mean(rates[f.name]))) for f in figures]
        closed = yardstick.scenario.objective == "throughput"
        goodness = yardstick.goodness(figures) if closed else yardstick.seen_goodness(window)
        said = yardstick.measured(self.seats, window, figures, goodness, count)
        closed = closed and not window.failed
        return replace(said, turns=[yardstick.goodness(told) for _, told in self.seen]) if closed else said


def pooled_window(windows: Sequence[Window]) -> Window:
    """Return several windows of one configuration as one: the requests of all of them."""
    logs = {
        name: RequestLog(
            *(np.concatenate([getattr(w.logs[name], f.name) for w in windows]) for f in fields(RequestLog))
        )
        for name in windows[0].logs
        if all(name in w.logs for w in windows)
    }
    failed = {name: why for w in windows for name, why in w.failed.items()}
    return Window(
        logs,
        sum(w.measured_s for w in windows),
        float(np.mean([w.processor_s for w in windows])),
        max(w.peak_bytes for w in windows),
        failed,
        float(np.mean([w.others for w in windows])),
    )
