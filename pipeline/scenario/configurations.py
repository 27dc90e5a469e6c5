"""Which configurations of several models are tried: baselines, a first grid, and the neighbours of the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pipeline.core.scenario import Isolation, LoadScenario
from pipeline.scenario.records import ConfigurationKind
from runtime.machines.devices import KINDS, PRECISION, Plugin
from runtime.measuring.contest.baselines import plain_variant
from runtime.measuring.contest.space import (
    PINNING,
    PRIORITIES,
    PRIORITY,
    RESERVATION,
    STREAMS,
    THREADS,
    auto_batch_of,
    auto_batched,
    fast_first,
    settings_variant,
    thread_counts,
)
from runtime.measuring.contest.variant import Variant
from runtime.measuring.load.bench import LoadConfiguration

BASELINES: Mapping[ConfigurationKind, str] = {  # how they are called
    "defaults": "plug-in defaults",
    "latency hint": "latency hint",
    "throughput hint": "throughput hint",
    "equal threads": "threads shared equally",
    "tuned alone": "each tuned alone",
}
HINTS: tuple[ConfigurationKind, ...] = ("defaults", "latency hint", "throughput hint")  # what nobody has to think of
MOST_SHARES = 8  # ways to divide the processors among the models that are tried at first
MOST_ASSIGNED = 64  # ways to give models to plug-ins that are tried at first
MOST_REQUESTS = 4
FIRST_BATCH, MOST_BATCH = 4, 32  # requests of a model that are computed together
USUAL = 3  # that are tried before all others: threads in proportion, reserved and not, and a stream per processor
# How models keep their threads apart: on processors reserved for each, wherever the system puts them, or pinned.
MODES: Mapping[str, Mapping[str, str]] = {
    "reserved": {RESERVATION: "YES"},
    "unpinned": {PINNING: "NO"},
    "pinned": {PINNING: "YES"},
}
MODE_KEYS = (RESERVATION, PINNING)


@dataclass(frozen=True, slots=True)
class CandidateConfiguration:
    """A configuration that may be measured, and what it is."""

    configuration: LoadConfiguration
    kind: ConfigurationKind = "searched"

    @property
    def name(self) -> str:
        """Return what the result calls it."""
        return self.configuration.name


@dataclass(frozen=True, slots=True)
class ConfigurationSpace:
    """What can be set of several models on this machine.

    plugins: model -> plug-ins that may run it, by name, each with the precisions that the model tolerates; the first is
    what the baselines use. processors: that may be used all the time. weights: model -> its share of the work.
    families: models whose phases can share one copy of the weights, by name, with the phases.
    """

    scenario: LoadScenario
    plugins: Mapping[str, Mapping[str, Plugin]]
    processors: int
    weights: Mapping[str, float] = field(default_factory=dict)
    families: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of the models, in the order in which they are compiled unless another is tried."""
        return [load.name for load in self.scenario.models]

    def baselines(self, alone: Mapping[str, Variant]) -> list[CandidateConfiguration]:
        """Return what a search must be compared with. alone: model -> the best setting while nothing else runs."""
        hints: dict[ConfigurationKind, str] = {
            "defaults": "",
            "latency hint": "LATENCY",
            "throughput hint": "THROUGHPUT",
        }
        made: dict[ConfigurationKind, dict[str, Variant]] = {
            kind: {
                name: plain_variant(next(iter(known.values())), "hint" if hint else "default", hint, 0)
                for name, known in self.plugins.items()
            }
            for kind, hint in hints.items()
        }
        equal = str(max(1, self.processors // len(self._units)))
        made["equal threads"] = {name: self.setting(name, {THREADS: equal}) for name in self.names}
        made["tuned alone"] = dict(alone)
        return [
            CandidateConfiguration(self._configured(variants, shared=kind != "tuned alone", name=BASELINES[kind]), kind)
            for kind, variants in made.items()
            if len(variants) == len(self.names)
        ]

    @property
    def _units(self) -> list[str]:
        """Return what is compiled where all phases share a copy: the first phase of each family, and the others."""
        later = {name for phases in self.families.values() for name in phases[1:]}
        return [name for name in self.names if name not in later]

    def _family(self, name: str) -> Sequence[str]:
        """Return the phases of which a model is one; itself where it has none."""
        return next((phases for phases in self.families.values() if name in phases), (name,))

    def compiled(self, configuration: LoadConfiguration) -> list[tuple[str, Variant]]:
        """Return what is compiled, by name, and how: models, and those whose phases share a copy."""
        compiled: dict[str, Variant] = {}
        for name, variant in configuration.models:
            shared = (f for f in configuration.shared if name in self.families[f])
            compiled.setdefault(next(shared, name), variant)
        return list(compiled.items())

    def _configured(self, variants: Mapping[str, Variant], *, shared: bool, name: str = "") -> LoadConfiguration:
        """Return a configuration; shared: phases run in one copy of their model, as the first of them does."""
        shared = shared and bool(self.families)
        if shared:
            variants = {n: variants[self._family(unit)[0]] for unit in variants for n in self._family(unit)}
        return configured(name, variants, self.scenario.isolation, self.families if shared else {})

    def settings_alone(self, model: str, objective: str) -> list[Variant]:
        """Return the settings that are tried of one model while nothing else runs."""
        most = self.processors
        if objective == "throughput":
            streams = dict.fromkeys((most, 1))
            return [self.setting(model, {THREADS: str(most), STREAMS: str(n)}, n) for n in streams]
        counts = thread_counts(most)
        return [self.setting(model, {THREADS: str(n)}) for n in dict.fromkeys((counts[-1], *counts[:2]))]

    def first(self) -> list[CandidateConfiguration]:
        """Return the coarse grid, what is most likely to be good first: see `USUAL`."""
        kept: dict[str, CandidateConfiguration] = {}
        ways = [(self._units, True), (self.names, False)] if self.families else [(self.names, False)]
        made = [[self._configured(v, shared=shared) for v in self._first_variants(names)] for names, shared in ways]
        for configuration in itertools.chain.from_iterable(itertools.zip_longest(*made)):
            if configuration is not None:
                kept.setdefault(configuration.identity, CandidateConfiguration(configuration))
        return list(kept.values())

    def _first_variants(self, names: Sequence[str]) -> Iterator[dict[str, Variant]]:
        shares, most = self._shares(names), str(self.processors)
        yield from self._divided(shares[:1])
        streams = {THREADS: most, STREAMS: most}
        for mode in ("unpinned", "pinned"):
            yield {n: self.setting(n, {**streams, **MODES[mode]}, self.processors) for n in names}
        yield from self._divided(shares[1:2])
        yield {n: self.setting(n, {THREADS: most, **MODES["unpinned"]}) for n in names}
        yield from self._divided(shares[2:])
        yield from self._assigned(names)

    def _divided(self, shares: Sequence[Mapping[str, int]]) -> Iterator[dict[str, Variant]]:
        """Yield so many threads for each model, on reserved processors where there are as many, and wherever."""
        for mode, share in itertools.product(("reserved", "unpinned"), shares):
            if mode == "unpinned" or sum(share.values()) <= self.processors:
                yield {name: self.setting(name, {THREADS: str(n), **MODES[mode]}) for name, n in share.items()}

    def _shares(self, names: Sequence[str]) -> list[dict[str, int]]:
        """Return threads for each model that fill the processors, or one each; nearest to the shares of work first."""
        n = self.processors
        if n <= len(names):
            one = dict.fromkeys(names, 1)
            return [one, *({**one, name: n} for name in names if n > 1)]
        parts = itertools.islice(compositions(n, len(names)), 1000)
        whole = sum(self.weights.get(name, 1.0) for name in names)
        wanted = [n * self.weights.get(name, 1.0) / whole for name in names]

        def distance(share: Sequence[int]) -> float:
            return sum(abs(math.log(k / max(0.5, w))) for k, w in zip(share, wanted, strict=True))

        return [dict(zip(names, share, strict=True)) for share in sorted(parts, key=distance)[:MOST_SHARES]]

    def _assigned(self, names: Sequence[str]) -> Iterator[dict[str, Variant]]:
        """Yield whole models given to plug-ins, in all ways of a small number; others are neighbours of the best."""
        known = [list(self.plugins[name]) for name in names]
        if all(len(choice) == 1 for choice in known) or math.prod(map(len, known)) > MOST_ASSIGNED:
            return
        for choice in itertools.product(*known):
            yield {name: self.setting(name, {}, plugin=plugin) for name, plugin in zip(names, choice, strict=True)}

    def setting(self, model: str, given: Mapping[str, str], requests: int = 1, plugin: str = "") -> Variant:
        """Return a model with these properties, in the fastest precision that it tolerates unless they give another."""
        known = self.plugins[model]
        plugin = plugin or next(iter(known))
        of = known[plugin]
        precision = fast_first(plugin, of.precisions)[0]
        properties = {PRECISION: precision, **given}
        return settings_variant(plugin, {k: v for k, v in properties.items() if k in of.settable}, requests)

    def around(self, candidate: CandidateConfiguration) -> list[CandidateConfiguration]:
        """Return the configurations one step from one of settings: one axis of one model, the mode, or the order."""
        variants, shared = dict(candidate.configuration.models), bool(candidate.configuration.shared)
        if shared:
            variants = {name: variants[name] for name in variants if self._family(name)[0] == name}
        if any(v.kind != "settings" for v in variants.values()):
            return []
        found = [{**variants, name: other} for name, v in variants.items() for other in self._steps(name, v)]
        threads = sum(int(v.devices[0].properties.get(THREADS, "0")) for v in variants.values())
        for name, mode in MODES.items():
            if name != "reserved" or threads <= self.processors:
                found.append({n: self._changed(n, v, mode, drop=MODE_KEYS) for n, v in variants.items()})
        if len(variants) > 1 and any(RESERVATION in v.devices[0].properties for v in variants.values()):
            found.append(dict(reversed(variants.items())))
        made = [CandidateConfiguration(self._configured(each, shared=shared)) for each in found]
        if self.families:  # another copy for each phase, or one for all
            spread = {n: variants[name] for name in variants for n in (self._family(name) if shared else [name])}
            made.append(CandidateConfiguration(self._configured(spread, shared=not shared)))
        own = candidate.configuration.identity
        return [c for c in {c.configuration.identity: c for c in made}.values() if c.configuration.identity != own]

    def _steps(self, name: str, variant: Variant) -> Iterator[Variant]:
        """Yield one model a step further: threads, requests and streams, batch, precision, priority, plug-in."""
        (device,) = variant.devices
        given, streams = device.properties, int(device.properties.get(STREAMS, "1"))
        if THREADS in given:
            counts = thread_counts(self.processors)
            at = min(range(len(counts)), key=lambda i: abs(counts[i] - int(given[THREADS])))
            for count in {counts[max(0, at - 1)], counts[min(len(counts) - 1, at + 1)]} - {int(given[THREADS])}:
                if count >= streams:
                    yield self._changed(name, variant, {THREADS: str(count)})
            for more in {min(MOST_REQUESTS, streams + 1, int(given[THREADS]) * 2), max(1, streams - 1)} - {streams}:
                new = {STREAMS: str(more), THREADS: str(max(more, int(given[THREADS])))}
                yield self._changed(name, variant, new, requests=more)
        if variant.requests == streams:
            yield self._changed(name, variant, {}, requests=streams + 1)
        batch = auto_batch_of(variant)
        for size in {batch // 2, min(MOST_BATCH, batch * 2)} - {0, batch} if batch > 1 else {FIRST_BATCH}:
            yield self._changed(name, variant, {}, requests=streams, batch=size)
        plugins = self.plugins[name]
        axes = {PRECISION: plugins[device.plugin].precisions}
        if len(self.names) > 1 and PRIORITY in plugins[device.plugin].settable:
            axes[PRIORITY] = PRIORITIES
        for key, value in ((key, value) for key, values in axes.items() for value in values):
            if given.get(key) != value:
                yield self._changed(name, variant, {key: value})
        for plugin in plugins:
            if plugin != device.plugin:
                yield self.setting(name, {}, plugin=plugin)

    def _changed(
        self,
        name: str,
        variant: Variant,
        new: Mapping[str, str],
        *,
        requests: int = 0,
        batch: int = 0,
        drop: Sequence[str] = (),
    ) -> Variant:
        (device,) = variant.devices
        kept = {key: value for key, value in device.properties.items() if key not in drop}
        cpu = KINDS.get(device.plugin.partition(".")[0]) == "cpu"
        told = {key: value for key, value in new.items() if cpu or key == PRIORITY}
        changed = self.setting(name, {**kept, **told}, requests or variant.requests, device.plugin)
        size = batch or auto_batch_of(variant)
        return auto_batched(changed, size) if size > 1 else changed


def compositions(n: int, k: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write n as a sum of k numbers of at least 1, in order.

    >>> list(compositions(4, 2))
    [(1, 3), (2, 2), (3, 1)]
    """
    for cuts in itertools.combinations(range(1, n), k - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, n)))


def configured(
    name: str,
    variants: Mapping[str, Variant],
    isolation: Isolation,
    shared: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> LoadConfiguration:
    """Return a configuration; without a name it is called by its settings, models of equal ones together.

    shared: models whose phases run in one copy, with the phases. Where models reserve processors, the order in which
    they are compiled is part of the name.
    """
    if not name:
        groups: dict[str, list[str]] = {}
        reserved = any(RESERVATION in v.devices[0].properties for v in variants.values() if v.devices)
        for model, variant in variants.items():
            family = next((f for f, phases in shared.items() if model in phases), "")
            called = f"one {family}" if family else model
            if called not in groups.setdefault(variant.name, []):
                groups[variant.name].append(called)
        parts = groups.items() if reserved else sorted(groups.items())
        name = "; ".join(f"{' and '.join(models)}: {setting}" for setting, models in parts)
    return LoadConfiguration(name, tuple(variants.items()), isolation, tuple(shared))
