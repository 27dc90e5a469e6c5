"""Runs configurations of several models under load, in processes begun for it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import Isolation, LoadScenario, ModelLoad, RequestLog, chain_to
from pipeline.core.settings import MeasureSettings
from pipeline.system.process import cpu_count
from pipeline.system.processors import busy_seconds
from runtime.measuring.contest.variant import Variant, describe_variant
from runtime.measuring.load.drive import LoadTimes
from runtime.measuring.load.worker import load_logs
from runtime.measuring.process.answers import LoadAnswer
from runtime.measuring.process.child import Child, ChildError

SEVERAL_MODELS = "runtime.measuring.load.child_main"
BEGIN_S = 0.1  # until a load begins in several processes at once
CULPRIT_S = 0.5  # that each model of a process that ended runs alone, to find out which of them it was


@dataclass(frozen=True, slots=True)
class LoadConfiguration:
    """One way to run several models at once.

    models: (name, how it runs), in the order in which they are compiled, which decides who reserves processors first.
    shared: models of which all phases run in one copy, each with requests of its own.
    """

    name: str
    models: tuple[tuple[str, Variant], ...]
    isolation: Isolation = "process"
    shared: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Return a digest of all that decides how the models run, names of the configuration and variants left out."""
        said: list[Any] = [self.isolation, *([name, variant.identity] for name, variant in self.models)]
        said += [["shared", *self.shared]] if self.shared else []
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    def variant(self, model: str) -> Variant:
        """Return how one model runs."""
        return dict(self.models)[model]

    def only(self, *names: str) -> LoadConfiguration:
        """Return the same of some of the models."""
        return replace(self, models=tuple((name, variant) for name, variant in self.models if name in names))


@dataclass(frozen=True, slots=True)
class SharedCopy:
    """A model whose phases can run in one copy: its file with open sizes, and the kind of inputs of each phase."""

    path: Path
    kinds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Window:
    """What became of the requests of every model under load.

    measured_s: of the part that counts. processor_s: per second of load; peak_bytes: both of all processes. failed:
    models that failed; the requests of the others are what they are. others: share of the processors that processes
    of somebody else took meanwhile.
    """

    logs: Mapping[str, RequestLog]
    measured_s: float
    processor_s: float = 0.0
    peak_bytes: int = 0
    failed: Mapping[str, MeasurementFailed] = field(default_factory=dict)
    others: float = 0.0


class LoadError(ChildError):
    """A model could not be loaded, or ended the process; model: its name, "" where each runs alone."""

    def __init__(self, model: str, failed: MeasurementFailed) -> None:
        super().__init__(failed)
        self.model = model
        self.cause = f"{model or 'The models together'} failed ({failed.kind}): {failed.message}."


class SeatedModels(Protocol):
    """The models of one configuration, loaded."""

    loaded: Mapping[str, LoadAnswer]
    load_s: float

    def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
        """Put the models under load; closed loops without a concurrency have as many requests as may be in flight."""


class ScenarioBench(Protocol):
    """Where configurations are measured."""

    def seat(
        self, configuration: LoadConfiguration, *, fresh: bool = True
    ) -> contextlib.AbstractContextManager[SeatedModels]:
        """Give the models of a configuration, loaded in new processes, which end with the context.

        fresh: False where processes may have run others before. Several configurations can be seated at a time: those
        that are not under load stand still.
        """


@dataclass(slots=True)
class LoadBench:
    """Processes of this machine.

    models: their normalised files, by name; loads: what is asked of them. copies: of models with phases, by name.
    """

    models: Mapping[str, Path]
    loads: Mapping[str, ModelLoad]
    settings: MeasureSettings
    seed: int
    copies: Mapping[str, SharedCopy] = field(default_factory=dict)
    _idle: list[Child] = field(default_factory=list)
    _draws: random.Random = field(default_factory=lambda: random.Random(0))

    def close(self) -> None:
        """End the processes that are kept for what needs no new ones."""
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def seat(self, configuration: LoadConfiguration, *, fresh: bool = True) -> Iterator[Seats]:
        """Give the models of a configuration, loaded; see `ScenarioBench`.

        Raises:
            LoadError: one cannot be loaded.
        """
        if fresh:
            self.close()  # what is idle beside new processes may still disturb them
        children: dict[tuple[str, ...], Child] = {}
        try:
            for group in self._groups(configuration):
                children[group] = self._take_idle() if self._idle else self._new_child()
            for child in children.values():
                child.ask("dismiss")  # of a new process: it is ready
            begun = time.monotonic()
            loaded: dict[str, LoadAnswer] = {}
            for name, variant in configuration.models:
                child = next(c for group, c in children.items() if name in group)
                copy = next((self.copies[f] for f in configuration.shared if name in self.copies[f].kinds), None)
                path = self.models[name] if copy is None else copy.path
                how = describe_variant(variant, path, self.settings, seed=self.seed)
                how |= {"requests": variant.requests, "batch": variant.batch, "name": name, "cache": ""}
                how["beside"] = next((n for n in loaded if copy is not None and n in copy.kinds), "")
                how["kind"] = "" if copy is None else copy.kinds[name]
                try:
                    loaded[name] = child.ask("admit", **how)
                except ChildError as error:
                    fresh = fresh or error.failed.kind != "refused"
                    raise LoadError(name, error.failed) from error
            yield Seats(self, configuration, children, loaded, time.monotonic() - begun)
        finally:
            for child in children.values():
                self._let_go(child, end=fresh)

    def _take_idle(self) -> Child:
        """Return a process that is kept, any of them: no configuration has the same one in all of its starts."""
        return self._idle.pop(self._draws.randrange(len(self._idle)))

    def _new_child(self) -> Child:
        timeout_s, memory_bytes = self.settings.timeout_s, self.settings.memory_bytes
        child = Child(timeout_s=timeout_s, memory_bytes=memory_bytes, run=SEVERAL_MODELS)
        child.rests = True
        return child

    def _let_go(self, child: Child, *, end: bool) -> None:
        """Let a process let go its models, and keep it; one that cannot is ended."""
        try:
            if not end:
                child.ask("dismiss")
                self._idle.append(child)
        except ChildError:
            end = True
        if end:
            child.close()

    def _groups(self, configuration: LoadConfiguration) -> list[tuple[str, ...]]:
        """Return which models share a process: all, or those of one chain, as its requests pass between them.

        Phases in one copy share a process, too.
        """
        names = [name for name, _ in configuration.models]
        if configuration.isolation == "process":
            return [tuple(names)]
        chains: dict[str, list[str]] = {}
        for name in names:
            root = chain_to(name, {n: self.loads[n] for n in names})[0]
            copy = next((f for f in configuration.shared if root in self.copies[f].kinds), "")
            chains.setdefault(f"copy of {copy}" if copy else root, []).append(name)
        return [tuple(chain) for chain in chains.values()]

    def culprit(self, configuration: LoadConfiguration) -> tuple[str, MeasurementFailed] | None:
        """Return which model fails on its own, closed loop, for a moment; None if none does."""
        for name, _ in configuration.models:
            try:
                with self.seat(configuration.only(name)) as seats:
                    window = seats.window(closed_loop([name]), LoadTimes(0.0, CULPRIT_S, 0.0, CULPRIT_S), seed=0)
            except LoadError as error:
                return name, error.failed
            if window.failed:
                return name, window.failed[name]
        return None


@dataclass(slots=True)
class Seats:
    """The models of one configuration in processes of this machine; see `SeatedModels`."""

    bench: LoadBench
    configuration: LoadConfiguration
    children: Mapping[tuple[str, ...], Child]
    loaded: Mapping[str, LoadAnswer]
    load_s: float

    def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
        """Return what became of the requests; a process that ends takes the models in it along, not the others.

        Raises:
            LoadError: the only process ended.
        """
        scenario = replace(scenario, models=tuple(self._driven(load) for load in scenario.models))
        begun, busy_s, own_s = time.perf_counter(), busy_seconds(), time.process_time()
        begin_s = begun + BEGIN_S * (len(self.children) > 1)
        asked = [(group, child) for group, child in self.children.items() if self._of(scenario, group).models]
        with ThreadPoolExecutor(len(asked)) as pool:
            parts = [
                pool.submit(self._drive, child, self._of(scenario, group), times, seed, begin_s)
                for group, child in asked
            ]
        took_s, busy_s, own_s = time.perf_counter() - begun, busy_seconds() - busy_s, time.process_time() - own_s
        logs: dict[str, RequestLog] = {}
        failed: dict[str, MeasurementFailed] = {}
        processor_s, peak_bytes, measured_s = 0.0, 0, 0.0
        for (group, child), part in zip(asked, parts, strict=True):
            try:
                answer, told = part.result()
                peak_bytes += int(child.ask("memory")["peak_bytes"])
            except ChildError as error:
                found = (
                    self.bench.culprit(self.configuration.only(*group)) if len(group) > 1 else (group[0], error.failed)
                )
                if len(asked) == 1:
                    raise LoadError(*(found or ("", error.failed))) from error
                failed |= dict.fromkeys(group, error.failed) | ({found[0]: error.failed} if found else {})
                continue
            logs |= told
            failed |= {name: MeasurementFailed(**why) for name, why in answer["failed"].items()}
            processor_s += answer["processor_s"]
            measured_s = max(measured_s, answer["measured_s"])
        others = max(0.0, (busy_s - own_s) / took_s - processor_s) / cpu_count()
        return Window(logs, measured_s or times.measured_s, processor_s, peak_bytes, failed, others)

    def _driven(self, load: ModelLoad) -> ModelLoad:
        idle = not (load.rate or load.concurrency or load.after)
        return replace(load, concurrency=self.loaded[load.name]["requests"]) if idle else load

    @staticmethod
    def _of(scenario: LoadScenario, group: Sequence[str]) -> LoadScenario:
        return replace(scenario, models=tuple(m for m in scenario.models if m.name in group))

    @staticmethod
    def _drive(
        child: Child, scenario: LoadScenario, times: LoadTimes, seed: int, begin_s: float
    ) -> tuple[dict[str, Any], dict[str, RequestLog]]:
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            path = Path(folder) / "requests.npz"
            limit_s = child.timeout_s + BEGIN_S + times.due_s + times.drain_s + times.hang_s
            told = {"scenario": asdict(scenario), "times": asdict(times), "seed": seed, "begin_s": begin_s}
            answer: dict[str, Any] = child.ask("drive", path=str(path), timeout_s=limit_s, **told)
            return answer, load_logs(path, [load.name for load in scenario.models])


def closed_loop(names: Sequence[str]) -> LoadScenario:
    """Return the scenario in which these models are kept busy with as many requests as may be in flight."""
    return LoadScenario(tuple(ModelLoad(name) for name in names), "throughput")
