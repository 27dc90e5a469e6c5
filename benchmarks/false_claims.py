"""How often a gain is claimed where there is none, and how often a true one is found.

Comparisons of identical variants: first real ones, while other processes load the machine now and then; then drawn from
the starts that those recorded, with and without a true gain of 5 % of one contender. A drawn comparison has the time of
the real one, in which nobody leaves: what those who leave early would have taken is there for the others.

Then contests on simulated machines whose truth is known: several baselines, copies of them under other names, single
bad starts, machines of two states, on which whole starts are 1.5 or 2 times slower at random, and a neighbour that
takes a share of one of two processors during the final: what has two threads then waits, what has one does not.

python -m benchmarks.false_claims [real comparisons, 0 for simulated ones alone] [seconds of each]
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, layered_model, say, silent, zoo_model
from coarsen.reading.model.read import save_model
from pipeline.core.accuracy import Accuracy, AccuracyLimits
from pipeline.core.deadline import Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.measuring.contest.contest import Contest, run_contest
from runtime.measuring.contest.pair_bench import PairBench, Part, Start
from runtime.measuring.contest.statistics import TWIN
from runtime.measuring.contest.variant import Variant
from runtime.measuring.process.answers import CheckedLoad

NETWORK = "inception-v3"
OPERATIONS = 1000  # of the small model
CONTENDERS = 4
REAL = 20
SECONDS = 45.0  # what the default budget leaves for comparing
DRAWN = 180
GAIN = 0.05
SIMULATED = 200  # contests of a kind
QUIET, BAD, TWO_STATES, NEIGHBOUR = "quiet", "bad starts", "two states", "neighbour"
KINDS = (QUIET, BAD, TWO_STATES, NEIGHBOUR)
SCATTER = 0.02  # standard deviation of a start's log ratio
TURNS = 0.03  # the same of a turn's log seconds
TURN_PAIR_S = 0.02  # what a pair of turns takes
READY_S = 0.4  # what loading and checking takes of a start
BUSY = """
import random, time
while True:
    end = time.time() + 2 * random.random()
    while time.time() < end:
        pass
    time.sleep(2 * random.random())
"""
Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def figures(real: int = REAL, seconds: float = SECONDS) -> Iterator[Figure]:
    """Yield the share of false claims and of true gains not found; real ones and those drawn from them, unless 0."""
    if real:
        yield from on_this_machine(real, seconds)
    yield from simulated()


def on_this_machine(real: int, seconds: float) -> Iterator[Figure]:
    """Yield the share of false claims, real and drawn, and of true gains that are not found; alone and with company."""
    found = list(measured(real, seconds))
    how = f"{CONTENDERS} identical contenders on the CPU, {seconds:g} s a comparison, two of three with company"
    claims = sum(bool(c.judgement and c.judgement.claimed) for c in found)
    yield figure("false_claims.real", 100 * claims / len(found), "%", f"{len(found)} comparisons; {how}", target=5.0)
    records = [r for r in map(starts_of, found) if r.shape[0] >= 3]
    alone = [r for i, r in enumerate(map(starts_of, found)) if r.shape[0] >= 3 and not company(i)]
    counts = [r.shape[0] for r in records]
    drawn_from = f"drawn from {len(records)} recorded ones"
    how = f"{DRAWN} comparisons in the time of {min(counts)} to {max(counts)} starts of all, {drawn_from}"
    false = [bool(drawn(records, seed, 0.0)) for seed in range(DRAWN)]
    yield figure("false_claims.drawn", 100 * float(np.mean(false)), "%", how, target=5.0)
    total = (claims + sum(false)) / (len(found) + DRAWN)
    yield figure("false_claims.all", 100 * total, "%", f"of {len(found) + DRAWN}", target=5.0)
    for word, some, target in (("alone", alone, 10.0), ("all", records, None)):
        if not some:
            continue
        spread = np.concatenate([r.ravel() for r in some])
        how = f"log ratios of {spread.size} starts, {word}"
        yield figure(f"false_claims.noise.{word}", 100 * float(spread.std()), "%", f"standard deviation of {how}")
        missed = [NAMES[0] not in drawn(some, seed, math.log1p(GAIN)) for seed in range(DRAWN)]
        how = f"gains of {GAIN:.0%} not found, {DRAWN} comparisons drawn from {len(some)} recorded ones, {word}"
        yield figure(f"false_claims.missed.{word}", 100 * float(np.mean(missed)), "%", how, target=target)


def simulated(contests: int = SIMULATED, seconds: float = SECONDS) -> Iterator[Figure]:
    """Yield the share of false claims of each kind of simulated machine, and of true gains that are not found."""
    every: list[bool] = []
    for kind in KINDS:
        wrong = [bool(false_claims(Machine.drawn(kind, seed, gain=0.0), seconds)) for seed in range(contests)]
        every += wrong
        how = f"{contests} simulated contests of {seconds:g} s with several baselines; {kind}"
        yield figure(
            f"false_claims.simulated.{kind.replace(' ', '_')}", 100 * float(np.mean(wrong)), "%", how, target=5.0
        )
    yield figure("false_claims.simulated.all", 100 * float(np.mean(every)), "%", f"of {len(every)}", target=5.0)
    for budget_s in (seconds / 3, seconds):
        drawn_machines = (Machine.drawn(QUIET, seed, gain=GAIN) for seed in range(contests))
        missed = [NAMES[0] not in claims_on(machine, budget_s) for machine in drawn_machines]
        how = f"gains of {GAIN:.0%} not found, {contests} simulated contests of {budget_s:g} s, starts scatter by 2 %"
        name = f"false_claims.simulated.missed.{budget_s:g}s"
        yield figure(name, 100 * float(np.mean(missed)), "%", how, target=10.0 if budget_s == seconds else None)


def company(i: int) -> int:
    """Return how many processes load the machine during comparison i; both models meet every number."""
    return i // 2 % 3


EXACT = Accuracy(
    output="",
    kind="",
    difference=0.0,
    mean=0.0,
    channel="",
    channel_difference=0.0,
    indices=0.0,
    rows=0.0,
    flips=0,
    decisions=0,
    flip_share=0.0,
    exact=True,
    kinds=(),
    limits=AccuracyLimits.of(0.0),
)
LOADED = CheckedLoad(  # what a variant that nobody loads says of itself
    executed_on=[],
    subgraphs=1,
    precisions={},
    int8_kernels=None,
    threads={},
    compile_s=0.0,
    requests=1,
    accuracy=EXACT.to_json(),
    realtime=False,
)
NAMES = tuple(f"copy {i + 1}" for i in range(CONTENDERS))


def copies() -> list[Variant]:
    """Return a baseline and its copies."""
    device = DeviceSpec("CPU", "CPU", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}, "cpu")
    baseline = Variant("baseline", "baseline", "CPU", (device,), single=True, kind="default")
    return [baseline, *(replace(baseline, name=name, placer="settings", kind="settings") for name in NAMES)]


def measured(real: int, seconds: float) -> Iterator[Contest]:
    """Yield comparisons on this machine, two of three beside processes that load it."""
    settings = MeasureSettings()
    with tempfile.TemporaryDirectory() as folder:
        large, _ = zoo_model(NETWORK, Path(folder))
        small = Path(folder) / "small.xml"
        save_model(layered_model(OPERATIONS, seed=0), small)
        for i in range(real):
            model = small if i % 2 else large
            busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(company(i))]
            try:
                with PairBench(model, settings, 0) as bench:
                    yield run_contest(
                        copies(), lambda _: [], bench, settings, Deadline.after(seconds), say=silent, everyone=True
                    )
            finally:
                for process in busy:
                    process.kill()
                    process.wait()


def starts_of(found: Contest) -> Table:
    """Return float64 [starts, contenders + 1], the log ratios of the contenders and the twin in every full start."""
    rows = [found.entries[name].final if name in found.entries else {} for name in (*NAMES, TWIN)]
    numbers = sorted(set.intersection(*(set(r) for r in rows)))
    return np.array([[r[i].log_ratio for r in rows] for i in numbers]).reshape(len(numbers), len(rows))


@dataclass(slots=True)
class DrawnBench:
    """Gives starts that were recorded: those of one comparison, drawn with replacement, in any order of contenders.

    now_s: a clock of its own, on which a start of the final takes a second, and all else no time.
    """

    table: Table
    gain: float
    order: Sequence[int] = field(default_factory=list)
    now_s: float = 0.0

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return the start of a variant that takes a second beside the control."""
        column = {name: i for i, name in enumerate((*NAMES, TWIN))}.get(variant.name)
        log_ratio = 0.0
        self.now_s += part == "final"
        if column is not None and part == "final":
            log_ratio = float(self.table[number - 1, self.order[column]]) + (self.gain if column == 0 else 0.0)
        return Start((1.0,), (math.exp(log_ratio),), (1.0,), LOADED)


def drawn(records: Sequence[Table], seed: int, gain: float) -> tuple[str, ...]:
    """Return what is claimed of a comparison drawn from a recorded one; the first contender may have a true gain.

    Starts of identical variants may as well have come out the other way round: every one has its sign drawn, too.
    """
    rng = np.random.default_rng(seed)
    record = records[int(rng.integers(len(records)))]
    settings = MeasureSettings()
    rows = rng.integers(record.shape[0], size=settings.starts)
    bench = DrawnBench(
        record[rows] * rng.choice([-1, 1], size=(rows.size, 1)), gain, rng.permutation(record.shape[1]).tolist()
    )
    deadline = Deadline.after(record.size, lambda: bench.now_s)
    found = run_contest(copies(), lambda _: [], bench, settings, deadline, say=silent)
    return found.judgement.claimed if found.judgement else ()


BASELINES = ("default", "hint", "half")


@dataclass(slots=True)
class Machine:
    """Gives starts of variants whose true seconds are known.

    seconds: of an inference, by variant. settings: what the plug-in reports of it. scatter: standard deviation of a
    start's log ratio. slow: the share of starts that are slow, and how many times as long they take. in_final: whether
    those of the final are. bad: the same for single starts of the screening, by variant and how many starts of it
    there were before; the control's own process is the variant "control". one_thread: the variants of one thread; all
    others have two. neighbour: the share of the final in which another process has one of two processors. Of two
    threads that share their work, the other waits for the one that shares its processor. now_s: a clock of its own.
    """

    seconds: Mapping[str, float]
    settings: Mapping[str, str]
    rng: np.random.Generator
    scatter: float = SCATTER
    slow: tuple[float, float] = (0.0, 1.0)
    in_final: bool = True
    bad: Mapping[tuple[str, int], float] = field(default_factory=dict)
    one_thread: frozenset[str] = frozenset()
    neighbour: float = 0.0
    now_s: float = 0.0
    _begun: dict[str, int] = field(default_factory=dict)
    _controls: dict[tuple[str, Part, int], float] = field(default_factory=dict)

    @classmethod
    def drawn(cls, kind: str, seed: int, gain: float) -> Machine:
        """Return a machine of a kind; the first contender is faster by this share than all baselines, none other is."""
        rng = np.random.default_rng(seed)
        seconds = {name: 1e-3 * float(rng.choice([1.0, 1.1, 1.3, 1.6])) for name in BASELINES}
        settings = {name: name for name in BASELINES}
        for name in NAMES:
            copied = str(rng.choice(BASELINES))
            seconds[name] = seconds[copied] * float(rng.choice([1.0, 1.0, 1.05]))
            alike = seconds[name] == seconds[copied] and rng.random() < 0.5  # else a copy that nothing betrays
            settings[name] = copied if alike else name
        if gain:
            seconds[NAMES[0]] = min(seconds[name] for name in BASELINES) / (1 + gain)
            settings[NAMES[0]] = NAMES[0]
        share = 0.0 if kind in (QUIET, NEIGHBOUR) else float(rng.choice([0.1, 0.2, 0.4]))
        return cls(
            seconds,
            settings,
            rng,
            scatter=float(rng.choice([SCATTER / 4, SCATTER])) if not gain else SCATTER,
            slow=(share, float(rng.choice([1.5, 2.0]))),
            in_final=kind == TWO_STATES,
            one_thread=frozenset(name for name in NAMES if kind == NEIGHBOUR and rng.random() < 0.5),
            neighbour=float(rng.uniform(0.05, 1.0)) if kind == NEIGHBOUR else 0.0,
        )

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return a start of a variant beside the control, which is loaded once for a screening or a round of starts."""
        self.now_s += READY_S + seconds
        key = control.name, part, number if part == "final" else 0
        if key not in self._controls:
            self._controls[key] = self._taken("control", part) * self.seconds[control.name]
        name = control.name if variant.name == TWIN else variant.name
        held_up = {
            n: 0.0 if part == "screening" or n in self.one_thread else self.neighbour for n in (name, control.name)
        }
        taken = (
            self._taken(name, part) * self.seconds[name] * (1 + held_up[name]),
            self._controls[key] * (1 + held_up[control.name]),
        )
        ours, theirs = (t * np.exp(self.rng.normal(0, TURNS, max(pairs, round(seconds / TURN_PAIR_S)))) for t in taken)
        threads = 1 if name in self.one_thread else 2
        loaded: CheckedLoad = {**LOADED, "reported": {"SETTINGS": self.settings[name]}, "threads": {"CPU": threads}}
        return Start(
            tuple(ours),
            tuple(theirs),
            tuple(ours),
            loaded,
            (seconds / 2, seconds / 2),
            waited_share=held_up[name] / (1 + held_up[name]) / threads,
        )

    def _taken(self, name: str, part: Part) -> float:
        """Return how many times as long as usual one start takes."""
        number = self._begun[name] = self._begun.get(name, 0) + 1
        share, times = self.slow if part == "screening" or self.in_final else (0.0, 1.0)
        slow = times if self.rng.random() < share else 1.0
        bad = self.bad.get((name, number), 1.0) if part == "screening" else 1.0
        return float(np.exp(self.rng.normal(0, self.scatter / math.sqrt(2)))) * slow * bad


def contest_on(machine: Machine, seconds: float, names: Sequence[str] = NAMES) -> Contest:
    """Return a contest of three baselines and contenders of these names on a simulated machine, in so many seconds."""
    device = DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")
    default = Variant("default", "baseline", "CPU", (device,), single=True, kind="default")
    hint, half = replace(default, name="hint", kind="hint"), replace(default, name="half", kind="device")
    searched = [replace(default, name=name, placer="settings", kind="settings") for name in names]
    deadline = Deadline.after(seconds, lambda: machine.now_s)
    everyone = [default, hint, *searched, half]
    return run_contest(everyone, lambda _: [], machine, MeasureSettings(), deadline, say=silent)


def claims_on(machine: Machine, seconds: float) -> tuple[str, ...]:
    """Return what is claimed of a contest on a simulated machine."""
    found = contest_on(machine, seconds)
    return found.judgement.claimed if found.judgement else ()


def false_claims(machine: Machine, seconds: float) -> list[str]:
    """Return what is claimed to be faster than the best baseline and is not."""
    best_s = min(machine.seconds[name] for name in BASELINES)
    return [name for name in claims_on(machine, seconds) if machine.seconds[name] >= best_s]


if __name__ == "__main__":
    say(figures(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False))))
