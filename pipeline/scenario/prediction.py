"""What a configuration of several models would do that was never measured: from short probes, by simulation.

A probe runs one model alone, or two together, in the settings that a configuration may give them. From probes a
`ServiceModel` is fitted for any configuration, and the simulator of requests says what that serves. Requests under load
come with pauses between them, after which the same inference takes up to three times as long, and beside another model
now and then many times as long: both is probed at a low rate of requests, as closed loops show neither. How much a
model slows another is measured where the two were probed together; elsewhere it is taken to be how sensitive the one is
times how hard the other presses, which the pairs that were probed tell of both.

Whatever is said here is predicted, and called so; how far that is off, `held_out_error` says from configurations that
were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.scenario import LoadScenario, RequestLog
from runtime.simulators.requests.requests import IDLE_S, ServiceModel, simulate_requests

Setting = tuple[str, str]  # a model, and the name of a setting of it
Configuration = Mapping[str, str]  # model -> the name of its setting

LEAST_SLOWDOWN = 1e-3  # below it is noise; so that logarithms exist
LEAST_SEEN = 3  # requests after pauses of a length, for what they took to count
PLACES = 32  # of the stretch of requests beside another model, from the least to the most
RIDGE = 0.1  # pairs that a model's own mean counts for, against how its pairs depart from the mean of all
RAREST = 20_000  # requests of the model that has the fewest, so that 200 of them are beyond the 99th percentile
MOST = 20  # times as many requests of all models in one simulation
STEP = 1.01  # ratio of two load multiples that are not told apart
LARGEST = 2.0**20  # load multiple that is as good as no limit


class IdleProbe(NamedTuple):
    """Seconds of requests of one model that runs alone, and those for which it had been idle before each."""

    seconds: Float64
    idle_s: Float64


class PairProbe(NamedTuple):
    """Seconds of requests of one model while `others` of the second are always in flight.

    idle_s: for how long the model had been idle before each; 0 where they ran one after another.
    """

    seconds: Float64
    others: int
    idle_s: Float64 | float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """What short runs found of models in settings.

    alone_s: float64, seconds of requests one after another, nothing else running; of a model with phases as many of
    each as its share says. together: of the first setting beside the second; the same twice for several requests of one
    model. servers: requests that the setting has in flight. sparse: at a low rate, nothing else running.
    """

    alone_s: Mapping[Setting, Float64]
    together: Mapping[tuple[Setting, Setting], PairProbe]
    servers: Mapping[Setting, int]
    sparse: Mapping[Setting, IdleProbe] = field(default_factory=dict)

    def after_idle(self, setting: Setting) -> Float64:
        """Return float64 [k], times as long as one after another that requests take after `IDLE_S` without any.

        They are medians of those whose pauses are nearest to each, and never fall: what was not seen counts as less.
        """
        factors = np.ones(IDLE_S.size)
        probe = self.sparse.get(setting)
        if probe is not None:
            nearest = np.searchsorted(np.sqrt(IDLE_S[1:-1] * IDLE_S[2:]), probe.idle_s) + 1
            nearest[probe.idle_s < IDLE_S[1] / 2] = 0
            usual_s = float(np.median(self.alone_s[setting]))
            for k in range(1, IDLE_S.size):
                seen_s = probe.seconds[nearest == k]
                factors[k] = max(factors[k - 1], np.median(seen_s) / usual_s if seen_s.size >= LEAST_SEEN else 1.0)
        return factors

    def stretch(self, first: Setting, second: Setting) -> Float64:
        """Return times as long as alone that requests of the first took where both were probed together."""
        probe = self.together[first, second]
        expected_s = self.alone_s[first].mean() * np.interp(probe.idle_s, IDLE_S, self.after_idle(first))
        stretch: Float64 = probe.seconds / expected_s
        return stretch

    def slowdown(self, first: Setting, second: Setting) -> float:
        """Return the share by which one request of the second slowed the first where they were probed together."""
        return max(0.0, float(self.stretch(first, second).mean()) - 1.0) / self.together[first, second].others

    def spread(self, first: Setting, second: Setting) -> Float64:
        """Return float64 [PLACES], how the stretch of single requests departs from its mean, rising, 1 on average.

        As far as requests that run alone depart from theirs, it is left out.
        """
        alone_s, logs = self.alone_s[first], np.log(np.maximum(self.stretch(first, second), LEAST_SLOWDOWN))
        both, alone = float(np.var(logs)), float(np.var(np.log(np.maximum(alone_s, LEAST_SLOWDOWN * alone_s.mean()))))
        power = math.sqrt(max(0.0, 1.0 - alone / both)) if both > 0 else 0.0
        spread = np.exp(power * np.quantile(logs, (np.arange(PLACES) + 0.5) / PLACES))
        return np.asarray(spread / spread.mean(), np.float64)

    def without_pairs_of(self, configuration: Configuration) -> Probes:
        """Return the probes but for those of two models in the settings of a configuration."""
        chosen = set(configuration.items())
        kept = {
            (first, second): probe
            for (first, second), probe in self.together.items()
            if first == second or not {first, second} <= chosen
        }
        return replace(self, together=kept)


def fit_service(probes: Probes, configuration: Configuration) -> ServiceModel:
    """Return how models serve requests beside one another in the settings of a configuration.

    Raises:
        KeyError: a setting was not probed alone.
        ValueError: several requests can be in flight together, and no pair at all was probed.
    """
    settings = list(configuration.items())
    known = {pair: probes.slowdown(*pair) for pair in probes.together}
    n = len(settings)
    alone = n == 1 and probes.servers[settings[0]] == 1
    if not alone and not known:
        raise ValueError(f"no two of {', '.join(configuration)} were probed together")
    expected = _expected_slowdown(known) if known else None
    slowdown, beside = np.zeros((n, n)), np.ones((n, n, PLACES))
    spread = {pair: probes.spread(*pair) for pair in known}
    usual = np.mean([*spread.values()], axis=0) if spread else np.ones(PLACES)
    for i, first in enumerate(settings):
        for j, second in enumerate(settings):
            if i != j or probes.servers[first] > 1:
                beside[i, j] = spread.get((first, second), usual)
            if (first, second) in known:
                slowdown[i, j] = known[first, second]
            elif expected is not None and (i != j or probes.servers[first] > 1):
                slowdown[i, j] = expected(first, second)
    return ServiceModel(
        tuple(configuration),
        tuple(probes.alone_s[setting] for setting in settings),
        np.array([probes.servers[setting] for setting in settings]),
        slowdown,
        np.array([probes.after_idle(setting) for setting in settings]),
        beside,
    )


def _expected_slowdown(known: Mapping[tuple[Setting, Setting], float]) -> Callable[[Setting, Setting], float]:
    """Return what says how much a setting slows another: sensitivity times pressure, least squares of logarithms.

    Of a setting that was in no pair, what all pairs have on average stands for it.
    """
    firsts = {setting: i for i, setting in enumerate(dict.fromkeys(first for first, _ in known))}
    seconds = {setting: i for i, setting in enumerate(dict.fromkeys(second for _, second in known), len(firsts))}
    logs = np.log(np.maximum(LEAST_SLOWDOWN, list(known.values())))
    rows = np.zeros((len(known), len(firsts) + len(seconds)))
    for row, (first, second) in zip(rows, known, strict=True):
        row[[firsts[first], seconds[second]]] = 1.0
    size = rows.shape[1]
    apart = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(size), rows.T @ (logs - logs.mean()))

    def expected(first: Setting, second: Setting) -> float:
        parts = [apart[at[setting]] for at, setting in ((firsts, first), (seconds, second)) if setting in at]
        return math.exp(logs.mean() + sum(parts))

    return expected


@dataclass(frozen=True, slots=True)
class ScenarioPrediction:
    """What a configuration is predicted to do, by model: nothing of it is measured.

    latency_s: at the model's percentile and the stated rates; inf where that many are dropped, nan without requests.
    rate: requests that end, per second. multiple: of all rates, the greatest at which every deadline holds; inf where
    nothing has a deadline, 0 where even single requests are too slow.
    """

    latency_s: Mapping[str, float]
    rate: Mapping[str, float]
    multiple: float


def predict_scenario(scenario: LoadScenario, service: ServiceModel, *, seed: int = 0) -> ScenarioPrediction:
    """Return what models that serve so are predicted to do in a scenario."""
    logs, seconds = _simulate(scenario, service, seed)
    return ScenarioPrediction(
        _percentiles_s(scenario, logs),
        {name: (int(log.measured.sum()) - log.dropped) / seconds for name, log in logs.items()},
        predict_multiple(scenario, service, seed=seed),
    )


def predict_multiple(scenario: LoadScenario, service: ServiceModel, *, seed: int = 0, rarest: int = RAREST) -> float:
    """Return the greatest multiple of all rates at which every deadline is predicted to hold.

    rarest: requests that are simulated of the model that has the fewest.
    """
    if not any(load.rate > 0 for load in scenario.models):
        return math.inf if _holds(scenario, service, seed, rarest) else 0.0
    return _greatest(lambda multiple: _holds(scenario.scaled(multiple), service, seed, rarest))


def predict_latencies(
    scenario: LoadScenario, service: ServiceModel, *, seed: int = 0, rarest: int = RAREST
) -> dict[str, float]:
    """Return the latencies of `predict_scenario` alone."""
    return _percentiles_s(scenario, _simulate(scenario, service, seed, rarest)[0])


def predict_window(
    scenario: LoadScenario, service: ServiceModel, *, seconds: float, warm_up_s: float, seed: int
) -> dict[str, float]:
    """Return the latencies at the percentiles that a window of load would show: its seed gives the same arrivals."""
    return _percentiles_s(
        scenario, simulate_requests(scenario, service, seconds=seconds, seed=seed, warm_up_s=warm_up_s)
    )


def _percentiles_s(scenario: LoadScenario, logs: Mapping[str, RequestLog]) -> dict[str, float]:
    return {load.name: logs[load.name].percentile_s(load.percentile) for load in scenario.models}


def deadlines_hold(scenario: LoadScenario, logs: Mapping[str, RequestLog]) -> bool:
    """Return whether no model's percentile exceeds its deadline; one without requests keeps it."""
    return not any(logs[load.name].percentile_s(load.percentile) > load.deadline_s for load in scenario.models)


def _holds(scenario: LoadScenario, service: ServiceModel, seed: int, rarest: int) -> bool:
    return deadlines_hold(scenario, _simulate(scenario, service, seed, rarest)[0])


def _greatest(holds: Callable[[float], bool]) -> float:
    """Return the greatest number at which something holds that holds below it as well: 0 for nowhere, or inf."""
    low, high = (1.0, 2.0) if holds(1.0) else (0.5, 1.0)
    while high < LARGEST and low >= 1.0 and holds(high):
        low, high = high, 2 * high
    while low < 1.0 and not holds(low):
        low, high = low / 2, low
        if low < 1 / LARGEST:
            return 0.0
    if high >= LARGEST:
        return math.inf
    while high / low > STEP:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _simulate(
    scenario: LoadScenario, service: ServiceModel, seed: int, rarest: int = RAREST
) -> tuple[dict[str, RequestLog], float]:
    """Return what is simulated, long enough for the rarest requests as far as those of all are not too many."""
    root_rates = {
        m.name: m.concurrency / max(1e-9, float(service.alone_s[service.names.index(m.name)].mean()))
        if m.closed
        else m.rate
        for m in scenario.models
        if not m.after
    }
    rates = [rate for rate in scenario.rates(root_rates).values() if rate > 0]
    seconds = min(rarest / min(rates), MOST * rarest / sum(rates)) if rates else 1.0
    logs = simulate_requests(scenario, service, seconds=seconds, seed=seed, warm_up_s=seconds / 10)
    return logs, seconds


@dataclass(frozen=True, slots=True)
class Remedy:
    """What is predicted to make a scenario fit that does not.

    kind: "rate", if the model had so much less to do: value is the share of its requests at which every deadline holds.
    "core", if it had a core of its own, on which no other model slows it nor is slowed: value is the multiple of the
    stated load that then fits. Memory that both use would still slow them, so that this is at best.
    """

    kind: Literal["rate", "core"]
    model: str
    value: float

    def describe(self) -> str:
        """Return it in one sentence."""
        if self.kind == "rate":
            return f"predicted to fit if {self.model} had {self.value:.0%} of its requests"
        return f"predicted to hold {self.value:.2g} times the stated load if {self.model} had one more core for itself"


def find_remedies(
    scenario: LoadScenario, service: ServiceModel, *, seed: int = 0, rarest: int = RAREST
) -> list[Remedy]:
    """Return what would make a scenario fit: models that alone would have to do less, then cores, most effect first.

    Empty where the stated load is predicted to hold. rarest: as in `predict_multiple`.
    """
    if _holds(scenario, service, seed, rarest):
        return []
    rates, cores = [], []
    stated = predict_multiple(scenario, service, seed=seed, rarest=rarest)
    for i, load in enumerate(scenario.models):
        if load.rate > 0 or load.after:
            share = _greatest_share(scenario, i, service, seed, rarest)
            rates += [Remedy("rate", load.name, share)] if share > 0 else []
        at = service.names.index(load.name)
        slowdown = service.slowdown.copy()
        others = np.arange(len(slowdown)) != at
        slowdown[at, others] = slowdown[others, at] = 0.0
        beside = service.beside.copy()
        beside[at, others] = beside[others, at] = 1.0
        apart = replace(service, slowdown=slowdown, beside=beside)
        multiple = predict_multiple(scenario, apart, seed=seed, rarest=rarest)
        cores += [Remedy("core", load.name, multiple)] if multiple > STEP**2 * stated else []
    return sorted(rates, key=lambda r: -r.value) + sorted(cores, key=lambda r: -r.value)


def _with_less(scenario: LoadScenario, i: int, part: float) -> LoadScenario:
    """Return the scenario with a part of the requests of its i-th model."""
    models = list(scenario.models)
    models[i] = replace(models[i], rate=models[i].rate * part, calls=models[i].calls * (part if models[i].after else 1))
    return replace(scenario, models=tuple(models))


def _greatest_share(scenario: LoadScenario, i: int, service: ServiceModel, seed: int, rarest: int) -> float:
    """Return the greatest share of its i-th model's requests, in whole percents, at which a scenario holds; 0 for none.

    It does not hold with all of them.
    """
    low, high = 0, 100
    if not _holds(_with_less(scenario, i, 0.0), service, seed, rarest):
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        fits = _holds(_with_less(scenario, i, middle / 100), service, seed, rarest)
        low, high = (middle, high) if fits else (low, middle)
    return low / 100


@dataclass(frozen=True, slots=True)
class HeldOutAccuracy:
    """How far predictions are off on configurations that were measured: latencies of all models, or load multiples.

    median: of |predicted / measured - 1|; nan without any. rank_correlation: of Spearman, between what was predicted
    and measured of one model, averaged over the models; nan where none has two that differ. count: how many of both.
    """

    median: float
    rank_correlation: float
    count: int


def held_out_error(
    scenario: LoadScenario,
    probes: Probes,
    measured: Sequence[tuple[Configuration, Mapping[str, float]]],
    *,
    without_pairs: bool = False,
    seed: int = 0,
) -> HeldOutAccuracy:
    """Return how far off predictions are for configurations, each with the latencies measured at the percentiles.

    No measurement of a configuration is used to predict any. without_pairs: nor what its pairs of different models did
    when they were probed together, so that it says how far off configurations are of which no pair was probed.
    """
    pairs: dict[str, list[tuple[float, float]]] = {load.name: [] for load in scenario.models}
    for configuration, latency_s in measured:
        kept = probes.without_pairs_of(configuration) if without_pairs else probes
        predicted = _percentiles_s(scenario, _simulate(scenario, fit_service(kept, configuration), seed)[0])
        for name, seconds in latency_s.items():
            if not math.isnan(predicted[name]) and not math.isnan(seconds):
                pairs[name].append((predicted[name], seconds))
    return compare_predictions(pairs)


def compare_predictions(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> HeldOutAccuracy:
    """Return how far what was predicted, the first of each two, is from what was measured; by model, or as one."""
    compared = [pair for alike in pairs.values() for pair in alike]
    apart = [abs(a / b - 1.0) for a, b in compared if math.isfinite(a) and math.isfinite(b)]
    correlations = [c for c in map(rank_correlation, pairs.values()) if not math.isnan(c)]
    return HeldOutAccuracy(
        float(np.median(apart)) if apart else math.nan,
        float(np.mean(correlations)) if correlations else math.nan,
        len(compared),
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation, equal values sharing their mean rank; nan where one side is all equal."""
    if not pairs:
        return math.nan
    ranks: list[Float64] = []
    for values in zip(*pairs, strict=True):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - counts / 2)[place]
        ranks.append(rank - rank.mean())
    if not all(rank.any() for rank in ranks):
        return math.nan
    a, b = ranks
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
