"""What is known of configurations before they are measured under load: short probes, and what these predict.

A probe loads a configuration in the process that is kept, and runs each model alone, then two at a time, in closed
loops. Probes take a bounded share of the budget. What they predict decides who is measured first, never who is best; no
measurement under load is fitted to, so that every configuration that is measured tells how far predictions are off.

In the objective `throughput` a first sight is a closed loop itself, and no longer than a probe: nothing is predicted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.deadline import Deadline
from pipeline.core.figures import finite_or_none
from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.scenario.configurations import MODE_KEYS, CandidateConfiguration
from pipeline.scenario.figures import HOPELESS, MOST_WINDOWS, LoadMultiples, Measured, Yardstick
from pipeline.scenario.prediction import (
    IdleProbe,
    PairProbe,
    Probes,
    Setting,
    compare_predictions,
    find_remedies,
    fit_service,
    predict_latencies,
    predict_multiple,
    predict_window,
    rank_correlation,
)
from pipeline.scenario.records import AloneRecord, PairRecord, PredictedConfiguration, ScenarioForecast
from runtime.measuring.contest.variant import Variant
from runtime.measuring.load.bench import LoadConfiguration, LoadError, ScenarioBench, SeatedModels, Window
from runtime.measuring.load.drive import LoadTimes
from runtime.simulators.requests.requests import ServiceModel

PROBES_SHARE = 0.15  # of the budget, for probes and predictions
FIRST_SHARE = 2 / 3  # of it, for the configurations that are tried first; the rest is for neighbours of the best
FILL_S, LEAST_S, MOST_S = 0.05, 0.2, 0.6  # of a window of a probe
INFERENCES, MOST_KEPT = 20, 200  # that a window of a probe should see, and that are kept of it
SPARSE, LEAST_SPARSE = 0.25, 8  # share of the time that requests at a low rate take, and how many should be seen
MOST_PAIRS = 6  # of one configuration that are probed
SIGHT_SEED = 0  # of first sights, whose arrivals are simulated
RAREST = 2_000  # requests simulated of the model that has the fewest: twenty are beyond the 99th percentile
MOST_ERROR, LEAST_CORRELATION = 0.5, 0.3  # of what was predicted and measured, for predictions to decide an order
LEAST_RANKED = 5  # configurations whose order says anything: p99 of few requests is off by a fifth

Served = tuple[list[float], list[float]]  # seconds of requests, and for how long their model had been idle
Ask = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]  # of a journal


@dataclass(slots=True)
class ConfigurationPredictor:
    """Probes of one search, and what they predict. ask: what is known by a key, or made now.

    modeless: what remains of a setting without how its threads are kept apart; sparse: by that. trusted: whether what
    was measured so far is near enough to what was predicted.
    """

    scenario: LoadScenario
    bench: ScenarioBench
    yardstick: Yardstick
    ask: Ask
    deadline: Deadline
    allowed_s: float = 0.0
    spent_s: float = 0.0
    alone_s: dict[Setting, Float64] = field(default_factory=dict)
    sparse: dict[tuple[str, str], IdleProbe] = field(default_factory=dict)
    together: dict[tuple[Setting, Setting], PairProbe] = field(default_factory=dict)
    servers: dict[Setting, int] = field(default_factory=dict)
    modeless: dict[Setting, tuple[str, str]] = field(default_factory=dict)
    pairs: list[PairRecord] = field(default_factory=list)
    probed: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    trusted: bool = True

    @classmethod
    def of(
        cls, scenario: LoadScenario, bench: ScenarioBench, yardstick: Yardstick, ask: Ask, deadline: Deadline
    ) -> ConfigurationPredictor:
        """Return one that may spend its share of the time that is left."""
        allowed_s = 0.0 if scenario.objective == "throughput" else PROBES_SHARE * deadline.left_s
        return cls(scenario, bench, yardstick, ask, deadline, allowed_s)

    def know_alone(self, record: AloneRecord, variant: Variant) -> None:
        """Take over what a model does alone, one request after another."""
        if record.requests == 1:
            self._know_alone(record.model, variant, record.seconds, 1)

    def rank(
        self, candidates: Sequence[CandidateConfiguration], part: float, most_s: float
    ) -> list[CandidateConfiguration]:
        """Return configurations in the order in which they are predicted to be good; the others as they were, behind.

        part: of what may be spent in all, until which more is probed. most_s: until the last first sight, of which half
        is spent. Where predictions were too far off what has been measured, nothing is, and the order stays.
        """
        if not self.trusted or any(c.configuration.shared for c in candidates):
            return list(candidates)  # what phases do to one another in one copy is not probed
        begun_s, before_s = self.deadline.clock(), self.spent_s
        allowed_s = min(self.allowed_s, before_s + most_s / 2)
        for candidate in candidates:
            if self.spent_s < min(part * self.allowed_s, allowed_s):
                self._probe(candidate.configuration)
            self.spent_s = before_s + self.deadline.clock() - begun_s
        for candidate in candidates:
            if self.spent_s < self.allowed_s:
                self._predict(candidate.configuration)
            self.spent_s = before_s + self.deadline.clock() - begun_s
        return sorted(candidates, key=lambda c: -self.values.get(c.configuration.identity, -math.inf))

    def review(self, measured: Mapping[str, tuple[LoadConfiguration, Measured]]) -> ScenarioForecast:
        """Return how what was predicted compares with first sights, by the name of the configuration.

        Under a load that should grow, load multiples are compared, with what windows of the same few requests are
        predicted to come to; else latencies.
        """
        rows: list[PredictedConfiguration] = []
        compared: dict[str, list[tuple[float, float]]] = {load.name: [] for load in self.scenario.models}
        greatest: list[tuple[float, float, bool]] = []
        for name, (configuration, sight) in measured.items():
            service = self.service(configuration)
            if service is None:
                continue
            predicted_s = self._window(service, sight.multiple)
            if self.scenario.objective == "load":
                greatest.append((self._greatest(service, sight.multiple), math.exp(sight.goodness), sight.held))
            for model, seconds in sight.seen_s.items():
                if math.isfinite(predicted_s[model]):
                    compared[model].append((predicted_s[model], seconds))
            value = self.values.get(configuration.identity, math.nan)
            finite = {model: seconds for model, seconds in predicted_s.items() if math.isfinite(seconds)}
            sign = -1.0 if self.scenario.objective == "latency" else 1.0
            said = finite_or_none(math.exp(sign * value)) if math.isfinite(value) else None
            rows.append(PredictedConfiguration(name, said, finite, True, sight.multiple, dict(sight.seen_s)))
        accuracy = all_known = compare_predictions(compared)
        if self.scenario.objective == "load":  # of what held at none that was tried, a guess is known
            both = [(self.values.get(c.identity, math.nan), s.goodness) for c, s in measured.values()]
            both = [(math.exp(a), math.exp(b)) for a, b in both if math.isfinite(a - b)]
            all_known = compare_predictions({"multiple": [(a, b) for a, b, _ in greatest]})
            of_held = compare_predictions({"multiple": [(a, b) for a, b, held in greatest if held]})
            accuracy = replace(of_held if of_held.count else all_known, rank_correlation=rank_correlation(both))
        error = accuracy.median
        correlation = accuracy.rank_correlation if len(rows) >= LEAST_RANKED else math.nan
        self.trusted = not (all_known.median > MOST_ERROR or correlation < LEAST_CORRELATION)
        return ScenarioForecast(
            list(self.pairs),
            rows,
            finite_or_none(error),
            finite_or_none(correlation),
            accuracy.count,
            self.trusted,
        )

    def _window(self, service: ServiceModel, multiple: float) -> dict[str, float]:
        """Return the percentiles that a first sight would see at a multiple of all rates."""
        times = self.yardstick.times(multiple, self.yardstick.sight_times)
        scenario, seconds = self.scenario.scaled(multiple), times.measured_s
        return predict_window(scenario, service, seconds=seconds, warm_up_s=times.fill_s, seed=SIGHT_SEED)

    def _greatest(self, service: ServiceModel, multiple: float) -> float:
        """Return the greatest multiple of all rates that a first sight would find, which begins at one."""
        found = LoadMultiples()
        while not found.looks or not (found.near or len(found.looks) == MOST_WINDOWS):
            slack = self.yardstick.slack_of(self._window(service, multiple))
            found.add(multiple, min(slack, math.log(HOPELESS)))  # longer ones have ended early
            multiple = found.greatest
        return found.greatest

    def remedies(self, held: Sequence[tuple[LoadConfiguration, float]]) -> list[str]:
        """Return what is predicted to make the stated load fit, where only multiples below 1 of it were seen to hold.

        held: configurations, the best first, and the multiple that each was seen to hold, 0 where it was not tried.
        What is said is of the first of which it can be told, at rates at which the simulator holds as much as was seen.
        """
        if held and all(self.service(c) is None for c, _ in held):
            self._probe(held[0][0])  # there was no time for more
        known = ((service, multiple) for c, multiple in held if (service := self.service(c)) is not None)
        service, multiple = next(known, (None, 0.0))
        if service is None:
            return []
        predicted = predict_multiple(self.scenario, service, rarest=RAREST)
        off = predicted / multiple if 0 < predicted < math.inf and multiple > 0 else 1.0
        found = find_remedies(self.scenario.scaled(off), service, rarest=RAREST)
        best = [next((r for r in found if r.kind == kind), None) for kind in ("rate", "core")]
        return [remedy.describe() for remedy in best if remedy is not None]

    def service(self, configuration: LoadConfiguration) -> ServiceModel | None:
        """Return how the models of a configuration serve; None where too little was probed to say.

        That is where a setting was in no pair. Alone it takes what it takes with threads kept apart in another way.
        """
        if configuration.shared:
            return None
        if not self._knows_alone(configuration):
            return None
        own = {model: (model, variant.identity) for model, variant in configuration.models}
        paired = {setting for pair in self.together for setting in pair}
        if any(setting not in paired for setting in own.values() if len(own) > 1 or self.servers[setting] > 1):
            return None
        sparse = {setting: self.sparse[key] for setting, key in self.modeless.items() if key in self.sparse}
        probes = Probes(self.alone_s, self.together, self.servers, sparse)
        return fit_service(probes, {model: setting for model, (_, setting) in own.items()})

    def _knows_alone(self, configuration: LoadConfiguration) -> bool:
        """Return whether it is known of all models what they do alone."""
        known = [self._take_alike(model, variant) for model, variant in configuration.models]
        return all(known)

    def _take_alike(self, model: str, variant: Variant) -> bool:
        """Let a setting that was not probed alone take what is known of it with threads kept apart in another way.

        Return whether it is known now what the model does alone.
        """
        own, key = (model, variant.identity), (model, _without_mode(variant))
        if own not in self.alone_s:
            alike = next((setting for setting, of in self.modeless.items() if of == key), None)
            if alike is not None:
                self._know_alone(model, variant, self.alone_s[alike], self.servers[alike])
        return own in self.alone_s

    def _predict(self, configuration: LoadConfiguration) -> None:
        """Note the logarithm that the objective makes of a configuration, the more the better, if it can be told."""
        service = self.service(configuration)
        if service is None or configuration.identity in self.values:
            return
        if self.scenario.objective == "load":
            multiple = predict_multiple(self.scenario, service, rarest=RAREST)
            self.values[configuration.identity] = math.log(multiple) if multiple > 0 else -math.inf
        else:
            seconds = predict_latencies(self.scenario, service, rarest=RAREST)
            weighted = sum(m.weight * seconds[m.name] for m in self.scenario.models)
            self.values[configuration.identity] = -math.log(weighted) if 0 < weighted < math.inf else -math.inf

    # --- probes

    def _probe(self, configuration: LoadConfiguration) -> None:
        """Probe a configuration, unless it was, and take over what that tells; one that fails tells nothing."""
        if configuration.identity in self.probed:
            return
        self.probed.add(configuration.identity)
        told = self.ask(f"probe {configuration.identity}", lambda: self._probed(configuration))
        if "error" in told:
            return
        variants = dict(configuration.models)
        setting = {model: (model, variant.identity) for model, variant in variants.items()}
        for model, seconds in told["alone_s"].items():
            self._know_alone(model, variants[model], seconds, told["servers"][model])
        if not self._knows_alone(configuration):
            return
        for model, sparse in told["sparse"].items():
            self.sparse[self.modeless[setting[model]]] = IdleProbe(*map(np.array, sparse))
        there = {(first, second): (others, *served) for first, second, others, served in told["together"] if served[0]}
        for (first, second), (others, seconds, idle_s) in there.items():
            self.together[setting[first], setting[second]] = PairProbe(np.array(seconds), others, np.array(idle_s))
        service = self.service(configuration)
        for first, second in combinations(variants, 2):
            if service is not None and (first, second) in there and (second, first) in there:
                i, j = service.names.index(first), service.names.index(second)
                over = 1 / (1 + float(service.slowdown[i, j])), 1 / (1 + float(service.slowdown[j, i]))
                self.pairs.append(PairRecord((first, second), configuration.name, over))

    def _know_alone(self, model: str, variant: Variant, seconds: Sequence[float] | Float64, servers: int) -> None:
        setting = (model, variant.identity)
        self.alone_s[setting], self.servers[setting] = np.array(seconds), servers
        self.modeless[setting] = (model, _without_mode(variant))

    def _probed(self, configuration: LoadConfiguration) -> dict[str, Any]:
        """Return what windows tell that is not known yet."""
        alone_s: dict[str, list[float]] = {}
        sparse: dict[str, Served] = {}
        together: list[tuple[str, str, int, Served]] = []
        setting = {model: (model, variant.identity) for model, variant in configuration.models}
        try:
            with self.bench.seat(configuration, fresh=False) as seats:
                servers = {model: seats.loaded[model]["requests"] for model in setting}
                usual_s = dict[str, float]()
                for model, variant in configuration.models:
                    if not self._take_alike(model, variant):
                        alone_s |= request_seconds(seats, {model: 1}, self._alone_window_s(model), MOST_KEPT)
                    known_s = alone_s[model] if model in alone_s else self.alone_s[setting[model]]
                    usual_s[model] = float(np.mean(known_s))
                    if (model, _without_mode(variant)) not in self.sparse:
                        sparse[model] = self._served(seats, usual_s, model)
                    if servers[model] > 1 and (setting[model], setting[model]) not in self.together:
                        seconds = _window_s(INFERENCES * usual_s[model])
                        more = request_seconds(seats, {model: servers[model]}, seconds, MOST_KEPT)
                        together.append((model, model, servers[model] - 1, (more[model], [0.0] * len(more[model]))))
                pairs = [(a, b) for a, b in combinations(setting, 2) if (setting[a], setting[b]) not in self.together]
                for first, second in [both for a, b in pairs[:MOST_PAIRS] for both in ((a, b), (b, a))]:
                    together.append((first, second, 1, self._served(seats, usual_s, first, second)))
        except LoadError as error:
            return {"error": asdict(error.failed)}
        return {"alone_s": alone_s, "sparse": sparse, "together": together, "servers": servers}

    def _alone_window_s(self, model: str) -> float:
        known = [float(np.median(seconds)) for (of, _), seconds in self.alone_s.items() if of == model]
        return _window_s(INFERENCES * max(known, default=0.0))

    @staticmethod
    def _served(seats: SeatedModels, usual_s: Mapping[str, float], model: str, *beside: str) -> Served:
        """Return seconds of requests of a model at a low rate, and for how long it had been idle before each.

        beside: models that have one request in flight all the time. Where too few requests would be seen, they come one
        after another; nothing is run then of a model that is alone.
        """
        rate = SPARSE / usual_s[model]
        seconds = _window_s(max(INFERENCES / rate, INFERENCES * max((usual_s[m] for m in beside), default=0.0)))
        if rate * seconds < LEAST_SPARSE:
            if not beside:
                return [], []
            told = request_seconds(seats, dict.fromkeys((model, *beside), 1), seconds, MOST_KEPT)[model]
            return told, [0.0] * len(told)
        loads = [ModelLoad(model, rate=rate), *(ModelLoad(m, concurrency=1) for m in beside)]
        times = service_times(_window(seats, loads, seconds).logs[model], seats.loaded[model]["requests"])
        return times.seconds[-MOST_KEPT:].tolist(), times.idle_s[-MOST_KEPT:].tolist()


def _window_s(wanted_s: float) -> float:
    return min(MOST_S, max(LEAST_S, wanted_s))


def _window(seats: SeatedModels, loads: Sequence[ModelLoad], seconds: float) -> Window:
    """Return a window of a probe.

    Raises:
        LoadError: one of the models fails.
    """
    window = seats.window(LoadScenario(tuple(loads), "throughput"), LoadTimes(FILL_S, seconds, 0.0, 1.0), seed=0)
    for model, failed in window.failed.items():
        raise LoadError(model, failed)
    return window


def service_times(log: RequestLog, servers: int) -> IdleProbe:
    """Return what requests took that were served, from when one of so many servers took them on.

    With each, for how long none had been in flight; of the first nobody can tell, so that it is left out.
    """
    ended = ~np.isnan(log.end_s)
    free_s = [-math.inf] * servers
    rows, last_s = list[tuple[float, float]](), -math.inf
    for due_s, end_s in zip(log.due_s[ended].tolist(), log.end_s[ended].tolist(), strict=True):
        begin_s = max(due_s, heapq.heapreplace(free_s, end_s))
        rows.append((end_s - begin_s, max(0.0, begin_s - last_s)))
        last_s = max(last_s, end_s)
    return IdleProbe(*np.array(rows[1:], np.float64).reshape(-1, 2).T)


def request_seconds(
    seats: SeatedModels, requests: Mapping[str, int], seconds: float, most: int
) -> dict[str, list[float]]:
    """Return seconds of requests, at most so many, of models kept busy with so many at a time: 0 for all there are.

    Raises:
        LoadError: one of the models fails.
    """
    window = _window(seats, [ModelLoad(m, concurrency=n) for m, n in requests.items()], seconds)
    told = {}
    for model in requests:
        log = window.logs[model]
        ended = ~np.isnan(log.end_s)
        counted = ended & log.measured if (ended & log.measured).any() else ended
        told[model] = (log.end_s - log.due_s)[counted][-most:].tolist()
    return told


def _without_mode(variant: Variant) -> str:
    """Return what tells settings apart that differ in more than how threads are kept apart."""
    devices = tuple(
        replace(d, properties={k: v for k, v in d.properties.items() if k not in MODE_KEYS}) for d in variant.devices
    )
    return replace(variant, devices=devices).identity
