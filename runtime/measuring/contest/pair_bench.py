"""Measures a variant beside a control: two resident processes that take turns.

A start of the final compiles the variant again, and the control once for all variants of that number. They take turns
of a hundredth of a second in the order control, variant, variant, control and so on, so that what disturbs the machine
disturbs both: its speed changes within tenths of a second, and longer turns were seen to scatter five times as far. The
processes change roles from start to start: what one of them has more of than the other, an early place in memory, say,
then goes to neither side. While variants are screened, the control stays as it is.

Where one answer is to serve several sizes of inputs, the processes hold the model with its dimensions open, as it is
deployed, and take the inputs of each size in turn. A pair is then turns of either at every size, side by side, and its
seconds are their weighted geometric mean: the log ratio of a start is the weighted mean of those at the sizes, and a
contest decides as it does at one. The first inference after a change of size is not timed.

Source: the protocol and the noise behind it are in docs/measuring.md.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np

from pipeline.core.accuracy import Accuracy
from pipeline.core.arrays import Float64
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.measured_sizes import MeasuredSize
from pipeline.shared.model_inputs import TIMED
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.variant import (
    Variant,
    check_outputs,
    computed_in,
    load_variant,
    outputs_by_kind,
    reference_of,
    warm_up,
)
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.outputs.quality import affordable_kinds, compared_kinds
from runtime.measuring.process.answers import CheckedLoad, LoadAnswer, RunAnswer
from runtime.measuring.process.child import Child, ChildError
from runtime.measuring.process.disturbance import waiting_share

SCREEN_PAIRS = 3  # of turns in a start that is to give a first sight, at least
MEDIAN = 1.2533  # how much further a median of normal values scatters than their mean: sqrt(pi / 2)
REALTIME_HARM = 1.2
REALTIME_NEEDED = 0.03
MOST_CACHED_BYTES = 128 << 20  # of weights; every variant's compiled model holds them
MOST_KEPT = 500  # latencies of one turn; a turn of a tiny model has thousands
REST_AFTER_REALTIME = 1.5  # times the turn, so that other processes keep most of the machine


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of a variant beside the control gave.

    variant_s, control_s: one value per turn, equal positions being neighbours in time: the percentile of the turn's
    latencies that the objective asks for, or its seconds per inference. samples_s: the variant's latencies, of long
    turns some. loaded: what its process says of it. turns_s: seconds that all turns of the variant took, and of the
    control. warm_up: inferences before. run: what measured it, later ones greater; "" where one alone does. sizes_s: at
    each of several sizes, the median over the variant's turns, and size_log_ratios as `log_ratio`; of one size empty.
    """

    variant_s: tuple[float, ...]
    control_s: tuple[float, ...]
    samples_s: tuple[float, ...]
    loaded: CheckedLoad
    turns_s: tuple[float, float] = (0.0, 0.0)
    warm_up: int = 0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    waited_share: float = 0.0
    run: str = ""
    sizes_s: tuple[float, ...] = ()
    size_log_ratios: tuple[float, ...] = ()

    @property
    def log_ratio(self) -> float:
        """Return log(control's time / variant's time), the median over neighbouring turns: above 0 is faster."""
        return float(np.median(self._of_pairs))

    @property
    def error(self) -> float:
        """Return the standard error of the log ratio by how far neighbouring turns scatter; 0 of a single pair."""
        each = self._of_pairs
        return MEDIAN * float(np.std(each, ddof=1)) / math.sqrt(each.size) if each.size > 1 else 0.0

    @property
    def _of_pairs(self) -> Float64:
        return np.log(self.control_s) - np.log(self.variant_s)

    @property
    def value_s(self) -> float:
        """Return the median over the variant's turns."""
        return float(np.median(self.variant_s))


Part = Literal["screening", "final"]


class Bench(Protocol):
    """Where variants are measured."""

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return one start of a variant beside the control, the processes' roles by its number.

        pairs: of turns, at least; others follow until they have taken so many seconds.
        """


@dataclass(slots=True)
class Seat:
    """A resident process, and the identity of the variant that is loaded in it."""

    settings: MeasureSettings
    child: Child | None = None
    holds: str = ""

    def begin(self) -> None:
        """Start the process, if there is none; it gets ready meanwhile."""
        if self.child is None:
            self.child = Child(timeout_s=self.settings.timeout_s, memory_bytes=self.settings.memory_bytes)

    def load(self, variant: Variant, model: Path, *, seed: int, cache: str) -> LoadAnswer:
        """Compile a variant again, or take it from a folder of compiled models, "" for none.

        A process that has died is replaced.

        Raises:
            ChildError: it cannot be compiled.
        """
        self.begin()
        self.holds = ""
        with self.asked() as child:
            own = str(Path(cache) / variant.identity) if cache else ""  # so that all first starts are compiled whole
            told = load_variant(child, variant, model, self.settings, seed=seed, cache=own)
        self.holds = variant.identity
        return told

    def feed(self, kind: str) -> None:
        """Let inferences to come take inputs of a kind.

        Raises:
            ChildError: it does not run with them.
        """
        with self.asked() as child:
            child.ask("feed", kind=kind)

    @contextlib.contextmanager
    def asked(self) -> Iterator[Child]:
        """Give the process; it is ended if it fails otherwise than by saying no."""
        if self.child is None:
            raise RuntimeError("a seat is used before it is loaded")
        try:
            yield self.child
        except ChildError as error:
            if error.failed.kind != "refused":
                self.close()
            raise

    def close(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.close()
        self.child, self.holds = None, ""


@dataclass(slots=True)
class PairBench:
    """Two seats on this machine. Use it as a context manager; leaving it ends the processes.

    expected: what the reference gives; None to run it at the first start. realtime: whether turns run under real-time
    scheduling; None until it is decided, at the first start. checks_s: seconds that comparing outputs may take; the
    first kind of inputs, and each of the sizes, is compared in any case. checked_s: that it has taken. sizes: that one
    answer is to serve; none where inputs have one size, which lies beside the model.
    """

    model: Path
    settings: MeasureSettings
    seed: int
    expected: Reference | None = None
    realtime: bool | None = None
    checks_s: float = math.inf
    checked_s: float = 0.0
    sizes: Sequence[MeasuredSize] = ()
    checked: dict[str, Accuracy | MeasurementFailed] = field(default_factory=dict)
    _seats: tuple[Seat, Seat] = field(init=False)
    _controlled: int = 0
    _kind_s: float = 0.0
    _whole_s: dict[str, float] = field(default_factory=dict)
    _cache: tempfile.TemporaryDirectory[str] | None = None

    def __post_init__(self) -> None:
        self._seats = Seat(self.settings), Seat(self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and forget what was compiled."""
        for seat in self._seats:
            seat.close()
        if self._cache is not None:
            self._cache.cleanup()
        self._cache = None

    @property
    def _compiled(self) -> str:
        """Return the folder of compiled models, which lasts as long as the processes; "" for a model of many weights.

        What is compiled holds the weights, and writing those takes longer than compiling: 3.7 s of 500 MB, not 0.4 s.
        """
        weights = self.model.with_suffix(".bin")
        if weights.is_file() and weights.stat().st_size > MOST_CACHED_BYTES:
            return ""
        if self._cache is None:
            self._cache = tempfile.TemporaryDirectory(prefix="placewright-compiled-", ignore_cleanup_errors=True)
        return self._cache.name

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return one start of a variant beside the control, or why there is none; see `Bench`.

        Raises:
            ChildError: the control, which has run before, does not run, or the reference on the CPU.
        """
        expected = self._reference()
        ours, theirs = self._seats if number % 2 or part == "screening" else reversed(self._seats)
        if theirs.holds != control.identity or (part == "final" and self._controlled != number):
            self._load_control(theirs, control)
            self._controlled = number if part == "final" else 0
        try:
            loaded = self._load(ours, variant)
            accuracy = self._check(variant, loaded, ours, expected, every=variant.baseline or part == "final")
            if isinstance(accuracy, MeasurementFailed):
                return accuracy
            warm = self._warm_up(ours)
        except ChildError as error:
            return error.failed
        if self.realtime is None:
            wanted = self.settings.realtime and not self.settings.condition
            self.realtime = wanted and realtime_helps(self._alive, self.settings)
        told: CheckedLoad = {**loaded, "accuracy": accuracy.to_json(), "realtime": self.realtime}
        turns = self._turns(ours, theirs, told, pairs, seconds)
        return turns if isinstance(turns, MeasurementFailed) else replace(turns, warm_up=warm)

    def _load(self, seat: Seat, variant: Variant) -> LoadAnswer:
        """Return what a loaded variant says of itself; compile_s: of compiling it whole, whatever was in the cache."""
        told = seat.load(variant, self.model, seed=self.seed, cache=self._compiled)
        if not told["cached"]:
            self._whole_s[variant.identity] = told["compile_s"]
        told["compile_s"] = self._whole_s.get(variant.identity, told["compile_s"])
        return told

    def _load_control(self, seat: Seat, control: Variant) -> LoadAnswer:
        try:
            told = self._load(seat, control)
        except ChildError:  # it has run before; perhaps something else has ended its process
            told = self._load(seat, control)
        self._warm_up(seat)
        return told

    @property
    def _kinds(self) -> list[str]:
        """Return the kinds of inputs that are timed: one of every size."""
        return [size.kind for size in self.sizes] or [TIMED]

    @property
    def _alive(self) -> list[Child]:
        return [seat.child for seat in self._seats if seat.child is not None]

    def _reference(self) -> Reference:
        """Return the outputs of the reference; the processes begin side by side, and its own keeps it loaded."""
        for seat in self._seats:
            seat.begin()
        if self.expected is None:
            loaded = self._load_control(self._seats[1], reference_variant())
            with self._seats[1].asked() as child:
                begun = time.monotonic()
                timed = outputs_by_kind(child, self._kinds)
                self._kind_s = (time.monotonic() - begun) / len(self._kinds)
            self.expected = reference_of(self.model, timed, int8_kernels=loaded["int8_kernels"])
        return self.expected

    def _check(
        self, variant: Variant, loaded: LoadAnswer, seat: Seat, expected: Reference, *, every: bool
    ) -> Accuracy | MeasurementFailed:
        """Return how far a variant's outputs are from the reference's, or why it must not count.

        every: on as many kinds of inputs as there is time for; else on the first of every size, which is cheap.
        """
        left_s = self.checks_s - self.checked_s if every else 0.0
        every_kind = compared_kinds(expected, computed_in(variant, loaded))
        kinds = affordable_kinds(every_kind, self._kind_s or expected.seconds, left_s, len(self._kinds))
        key = f"{variant.identity} {loaded['cached']}"
        known = self.checked.get(key)
        if known is None or (isinstance(known, Accuracy) and len(known.kinds) < len(kinds)):
            begun = time.monotonic()
            with seat.asked() as child:
                self.checked[key] = check_outputs(variant, loaded, child, expected, self.settings, kinds=kinds)
            took_s = time.monotonic() - begun
            self.checked_s += took_s
            self._kind_s = took_s / len(kinds)
        return self.checked[key]

    def _feed(self, seat: Seat, kind: str) -> None:
        """Let inferences take inputs of one of several sizes, also of the one that they take: all turns begin alike.

        Raises:
            ChildError: it does not run with them.
        """
        if self.sizes:
            seat.feed(kind)

    def _warm_up(self, seat: Seat) -> int:
        """Run inferences of every size; return how many.

        Raises:
            ChildError: it does not run with one of them, which is told.
        """
        count = 0
        for place, kind in enumerate(self._kinds):
            try:
                self._feed(seat, kind)
                with seat.asked() as child:
                    count += warm_up(child, self.settings.turn_s, 1)
            except ChildError as error:
                raise ChildError(self._with_size(place, error.failed)) from error
        return count

    def _with_size(self, place: int, failed: MeasurementFailed) -> MeasurementFailed:
        """Return a failure with the size of inputs at which it happened, if there are several."""
        return replace(failed, message=f"with {self.sizes[place]}: {failed.message}") if self.sizes else failed

    def _turns(
        self, ours: Seat, theirs: Seat, loaded: CheckedLoad, pairs: int, seconds: float
    ) -> Start | MeasurementFailed:
        values: dict[bool, list[list[float]]] = {own: [[] for _ in self._kinds] for own in (True, False)}
        samples: list[float] = []
        delay_s = runnable_s = others_s = 0.0
        cpu_s: list[float] = []
        spent = {True: 0.0, False: 0.0}
        wants_more = lambda i: i < pairs or sum(spent.values()) < seconds  # noqa: E731
        for place, own in order_of_turns(wants_more, len(self._kinds)):
            begun = time.monotonic()
            try:
                seat = ours if own else theirs
                self._feed(seat, self._kinds[place])
                with seat.asked() as child:
                    turn: RunAnswer = child.ask(
                        "run",
                        seconds=self.settings.turn_s,
                        minimum=samples_of_turn(self.settings),
                        realtime=bool(self.realtime),
                    )
            except ChildError as error:
                if own:
                    return self._with_size(place, error.failed)
                raise
            spent[own] += time.monotonic() - begun
            values[own][place].append(value_of(turn, self.settings))
            if own:
                samples += thin_samples(turn["samples_s"])
                cpu_s.append(turn["cpu_s"])
                delay_s, runnable_s = delay_s + turn["run_delay_s"], runnable_s + turn["runnable_s"]
                others_s += turn["others_s"]
            if self.realtime:
                time.sleep(REST_AFTER_REALTIME * self.settings.turn_s)
        try:
            with ours.asked() as child:
                peak_bytes = int(child.ask("memory")["peak_bytes"])
        except ChildError as error:
            return error.failed
        weights = [size.weight for size in self.sizes] or [1.0]
        logs = {own: np.log(each) for own, each in values.items()}  # [sizes, pairs]
        several = len(self._kinds) > 1
        return Start(
            tuple(np.exp(weights @ logs[True]).tolist() if several else values[True][0]),
            tuple(np.exp(weights @ logs[False]).tolist() if several else values[False][0]),
            tuple(samples),
            loaded,
            turns_s=(spent[True], spent[False]),
            cpu_s=float(np.median(cpu_s)),
            peak_bytes=peak_bytes,
            waited_share=waiting_share(delay_s, runnable_s, others_s),
            sizes_s=tuple(np.exp(np.median(logs[True], axis=1)).tolist()) if several else (),
            size_log_ratios=tuple(np.median(logs[False] - logs[True], axis=1).tolist()) if several else (),
        )

    def alone(self, variant: Variant, seconds: float) -> Sequence[float]:
        """Return the latencies of a variant that runs on its own, under the load that is set, at every size as long.

        Inferences come back to back, at random at a mean rate, or several at once, which count till the last has ended.

        Raises:
            ChildError: it does not run.
        """
        seat, rate, together = self._seats[0], self.settings.rate, self.settings.samples_per_query
        variant = replace(variant, requests=together) if together > 1 else variant
        self._load(seat, variant)
        self._warm_up(seat)
        if together > 1:
            command: dict[str, Any] = {"do": "burst"}
        elif rate:
            command = {"do": "arrive", "rate": rate, "seed": self.seed}
        else:
            command = {"do": "run", "minimum": 1, "realtime": False}
        samples: list[float] = []
        for kind in self._kinds:
            self._feed(seat, kind)
            with seat.asked() as child:
                samples += child.ask(**command, seconds=seconds / len(self._kinds))["samples_s"]
        return samples


def order_of_turns(goes_on: Callable[[int], bool], sizes: int = 1) -> Iterator[tuple[int, bool]]:
    """Yield at which size, and whose turn it is, the variant's or not: control and variant alternate in who begins.

    goes_on: whether there is another pair after so many; each goes through all sizes, the other way every other time.

    >>> [own for _, own in order_of_turns(lambda i: i < 2)]
    [False, True, True, False]
    >>> list(order_of_turns(lambda i: i < 2, sizes=2))[:5]
    [(0, False), (0, True), (1, True), (1, False), (1, False)]
    """
    for i in itertools.takewhile(goes_on, itertools.count()):
        for place in range(sizes) if i % 2 == 0 else reversed(range(sizes)):
            first = (i + place) % 2 == 1
            yield from ((place, first), (place, not first))


def thin_samples(samples: Sequence[float], most: int = MOST_KEPT) -> Sequence[float]:
    """Return as many samples, evenly over their order, as are kept of one turn.

    >>> thin_samples([0.0, 1.0, 2.0, 3.0, 4.0], 2)
    [0.0, 3.0]
    """
    return samples[:: -(-len(samples) // most)]


def samples_of_turn(settings: MeasureSettings) -> int:
    """Return how many latencies a turn has at least: so many that the percentile asked for is not simply the median."""
    if settings.objective == "throughput" or settings.percentile == 50:
        return 1
    tail = min(settings.percentile, 100 - settings.percentile) / 100
    return math.ceil(1 / max(tail, 0.01))


def value_of(turn: RunAnswer, settings: MeasureSettings) -> float:
    """Return what the objective makes of one turn, in seconds."""
    if settings.objective == "throughput":
        return float(turn["period_s"])
    return float(np.percentile(turn["samples_s"], settings.percentile))


def realtime_helps(children: Sequence[Child], settings: MeasureSettings) -> bool:
    """Return whether turns should run under real-time scheduling: it is allowed, needed, and does no harm.

    Needed: in a turn of plain scheduling some variant's threads waited for a processor for more than REALTIME_NEEDED of
    the time that they wanted one. On a quiet machine plain turns scatter less. Harmless: the fastest inference of a
    turn, which others disturb least, is not slower by REALTIME_HARM under it.
    """
    needed = False
    for child in children:
        try:
            if not child.ask("realtime")["allowed"]:
                return False
            plain, realtime = (
                child.ask("run", seconds=settings.turn_s, minimum=1, realtime=mode) for mode in (False, True)
            )
        except ChildError:
            continue  # its own turn will tell what is wrong with it
        if min(realtime["samples_s"]) > REALTIME_HARM * min(plain["samples_s"]):
            return False
        needed = needed or plain["run_delay_s"] > REALTIME_NEEDED * plain["runnable_s"]
    return needed
