"""What is known of configurations before they are measured under load: short probes, and what these predict.

A probe loads a configuration in the process that is kept, and runs each model alone, then two at a time, in closed
loops. Probes take a bounded share of the budget. What they predict decides who is measured first, never who is best; no
measurement under load is fitted to, so that every configuration that is measured tells how far predictions are off.

In the objective `throughput` a first sight is a closed loop itself, and no longer than a probe: nothing is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from pipeline.core.deadline import Deadline
from pipeline.core.figures import finite_or_none
from pipeline.core.scenario import LoadScenario, ModelLoad
from pipeline.scenario.configurations import MODE_KEYS, CandidateConfiguration
from pipeline.scenario.figures import Measured, Yardstick
from pipeline.scenario.prediction import (
    PairProbe,
    Probes,
    Setting,
    compare_latencies,
    find_remedies,
    fit_service,
    predict_latencies,
    predict_multiple,
    predict_window,
    rank_correlation,
)
from pipeline.scenario.records import AloneRecord, PairRecord, PredictedConfiguration, ScenarioForecast
from runtime.measuring.contest.variant import Variant
from runtime.measuring.load.bench import LoadConfiguration, LoadError, ScenarioBench, SeatedModels
from runtime.measuring.load.drive import LoadTimes
from runtime.simulators.requests.requests import ServiceModel

PROBES_SHARE = 0.15  # of the budget, for probes and predictions
FIRST_SHARE = 2 / 3  # of it, for the configurations that are tried first; the rest is for neighbours of the best
FILL_S, LEAST_S, MOST_S = 0.05, 0.2, 0.6  # of a window of a probe
INFERENCES, MOST_KEPT = 20, 200  # that a window of a probe should see, and that are kept of it
MOST_PAIRS = 6  # of one configuration that are probed
SIGHT_SEED = 0  # of first sights, whose arrivals are simulated
RAREST = 2_000  # requests simulated of the model that has the fewest: twenty are beyond the 99th percentile
MOST_ERROR, LEAST_CORRELATION = 0.5, 0.3  # of what was predicted and measured, for predictions to decide an order

Ask = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]  # of a journal


@dataclass(slots=True)
class ConfigurationPredictor:
    """Probes of one search, and what they predict. ask: what is known by a key, or made now.

    trusted: whether what was measured so far is near enough to what was predicted.
    """

    scenario: LoadScenario
    bench: ScenarioBench
    yardstick: Yardstick
    ask: Ask
    deadline: Deadline
    allowed_s: float = 0.0
    spent_s: float = 0.0
    alone_s: dict[Setting, list[float]] = field(default_factory=dict)
    together: dict[tuple[Setting, Setting], PairProbe] = field(default_factory=dict)
    servers: dict[Setting, int] = field(default_factory=dict)
    alike: dict[tuple[str, str], Setting] = field(default_factory=dict)
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

        part: of what may be spent in all, until which more is probed. most_s: until the last first sight; where it is
        short, a third of the share is spent all the same, as without any probe nothing can be said of what would fit.
        Where predictions were too far off what has been measured, nothing is spent, and the order stays.
        """
        if not self.trusted or any(c.configuration.shared for c in candidates):
            return list(candidates)  # what phases do to one another in one copy is not probed
        begun_s, before_s = self.deadline.clock(), self.spent_s
        allowed_s = min(self.allowed_s, max(self.allowed_s / 3, before_s + most_s / 2))
        for candidate in candidates:
            if self.spent_s < min(part * self.allowed_s, allowed_s):
                self._probe(candidate.configuration)
            self.spent_s = before_s + self.deadline.clock() - begun_s
        for candidate in candidates:
            if self.spent_s < allowed_s:
                self._predict(candidate.configuration)
            self.spent_s = before_s + self.deadline.clock() - begun_s
        return sorted(candidates, key=lambda c: -self.values.get(c.configuration.identity, -math.inf))

    def review(self, measured: Mapping[str, tuple[LoadConfiguration, Measured]]) -> ScenarioForecast:
        """Return how what was predicted compares with first sights, by the name of the configuration.

        Under a load that should grow, ranks are those of the load multiples, by which configurations are ordered.
        """
        rows: list[PredictedConfiguration] = []
        compared: dict[str, list[tuple[float, float]]] = {load.name: [] for load in self.scenario.models}
        for name, (configuration, sight) in measured.items():
            service = self.service(configuration)
            if service is None:
                continue
            times = self.yardstick.times(sight.multiple, self.yardstick.sight_times)
            predicted_s = predict_window(
                self.scenario.scaled(sight.multiple),
                service,
                seconds=times.measured_s,
                warm_up_s=times.fill_s,
                seed=SIGHT_SEED,
            )
            for model, seconds in sight.seen_s.items():
                if math.isfinite(predicted_s[model]):
                    compared[model].append((predicted_s[model], seconds))
            value = self.values.get(configuration.identity, math.nan)
            finite = {model: seconds for model, seconds in predicted_s.items() if math.isfinite(seconds)}
            sign = -1.0 if self.scenario.objective == "latency" else 1.0
            said = finite_or_none(math.exp(sign * value)) if math.isfinite(value) else None
            rows.append(PredictedConfiguration(name, said, finite, True, sight.multiple, dict(sight.seen_s)))
        accuracy = compare_latencies(compared)
        error, correlation = accuracy.median, accuracy.rank_correlation
        if self.scenario.objective == "load":
            ordered = [(self.values.get(c.identity, math.nan), sight.goodness) for c, sight in measured.values()]
            correlation = rank_correlation([pair for pair in ordered if all(map(math.isfinite, pair))])
        self.trusted = not (error > MOST_ERROR or correlation < LEAST_CORRELATION)
        return ScenarioForecast(
            list(self.pairs), rows, finite_or_none(error), finite_or_none(correlation), accuracy.count, self.trusted
        )

    def remedies(self, held: Sequence[tuple[LoadConfiguration, float]]) -> list[str]:
        """Return what is predicted to make the stated load fit, where only multiples below 1 of it were seen to hold.

        held: configurations, the best first, and the multiple that each was seen to hold, 0 where it was not tried.
        What is said is of the first of which it can be told, at rates at which the simulator holds as much as was seen.
        """
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

        A model that was not probed alone in its setting takes what it takes with its threads kept apart in another way.
        """
        if configuration.shared:
            return None
        settings: dict[str, Setting] = {}
        alone_s, servers = dict(self.alone_s), dict(self.servers)
        for model, variant in configuration.models:
            own = settings[model] = (model, variant.identity)
            known = own if own in alone_s else self.alike.get((model, _without_mode(variant)))
            if known is None:
                return None
            alone_s[own], servers[own] = alone_s[known], servers[known]
        if not self.together and (len(settings) > 1 or any(servers[s] > 1 for s in settings.values())):
            return None
        probes = Probes({s: np.array(seconds) for s, seconds in alone_s.items()}, self.together, servers)
        return fit_service(probes, {model: setting for model, (_, setting) in settings.items()})

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
        for model, seconds in told["alone_s"].items():
            self._know_alone(model, variants[model], seconds, told["servers"][model])
        for first, second, others, seconds in told["together"]:
            pair = (first, variants[first].identity), (second, variants[second].identity)
            self.together[pair] = PairProbe(np.array(seconds), others)
        for first, second in combinations(variants, 2):
            a, b = ((model, variants[model].identity) for model in (first, second))
            if (a, b) in self.together and (first, second) in {(x, y) for x, y, _, _ in told["together"]}:
                over = [
                    float(np.mean(self.alone_s[x]) / self.together[x, y].seconds.mean()) for x, y in ((a, b), (b, a))
                ]
                self.pairs.append(PairRecord((first, second), configuration.name, (over[0], over[1])))

    def _know_alone(self, model: str, variant: Variant, seconds: list[float], servers: int) -> None:
        setting = (model, variant.identity)
        self.alone_s[setting], self.servers[setting] = seconds, servers
        self.alike[model, _without_mode(variant)] = setting

    def _probed(self, configuration: LoadConfiguration) -> dict[str, Any]:
        """Return what windows in closed loops tell that is not known yet."""
        alone_s: dict[str, list[float]] = {}
        together: list[tuple[str, str, int, list[float]]] = []
        setting = {model: (model, variant.identity) for model, variant in configuration.models}
        try:
            with self.bench.seat(configuration, fresh=False) as seats:
                servers = {model: seats.loaded[model]["requests"] for model in setting}
                for model, known in setting.items():
                    if known not in self.alone_s:
                        alone_s |= self._window(seats, {model: 1})
                    if servers[model] > 1 and (known, known) not in self.together:
                        more = self._window(seats, {model: servers[model]})
                        together.append((model, model, servers[model] - 1, more[model]))
                pairs = [(a, b) for a, b in combinations(setting, 2) if (setting[a], setting[b]) not in self.together]
                for a, b in pairs[:MOST_PAIRS]:
                    both = self._window(seats, {a: 1, b: 1})
                    together += [(a, b, 1, both[a]), (b, a, 1, both[b])]
        except LoadError as error:
            return {"error": asdict(error.failed)}
        return {"alone_s": alone_s, "together": together, "servers": servers}

    def _window(self, seats: SeatedModels, requests: Mapping[str, int]) -> dict[str, list[float]]:
        """Return seconds of requests of models that are kept busy with so many at a time."""
        slowest_s = max(
            (float(np.median(s)) for (model, _), s in self.alone_s.items() if model in requests), default=0.0
        )
        return request_seconds(seats, requests, min(MOST_S, max(LEAST_S, INFERENCES * slowest_s)), MOST_KEPT)


def request_seconds(
    seats: SeatedModels, requests: Mapping[str, int], seconds: float, most: int
) -> dict[str, list[float]]:
    """Return seconds of requests, at most so many, of models kept busy with so many at a time: 0 for all there are.

    Raises:
        LoadError: one of the models fails.
    """
    scenario = LoadScenario(tuple(ModelLoad(m, concurrency=n) for m, n in requests.items()), "throughput")
    window = seats.window(scenario, LoadTimes(FILL_S, seconds, 0.0, 1.0), seed=0)
    for model, failed in window.failed.items():
        raise LoadError(model, failed)
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
