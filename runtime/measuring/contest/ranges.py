"""Variants measured at several sizes of the inputs, for one answer that serves them all.

A start at several sizes is one start: the turns of each size, one after another, whose seconds are put together as
their weighted geometric mean. So the log ratio of a start is the weighted mean of the log ratios at the sizes, and
a contest decides as it does at one size. A variant must run and give right outputs at every size.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.core.accuracy import Accuracy
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.measured_sizes import SIZES, MeasuredSize, load_sizes
from pipeline.shared.model_inputs import GIVEN, SEQUENCE
from runtime.measuring.contest.pairs import PairBench, Part, Start
from runtime.measuring.contest.variant import Variant
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.answers import CheckedLoad


def bench_of(
    model: Path,
    settings: MeasureSettings,
    seed: int,
    *,
    checks_s: float = math.inf,
    reference: Reference | None = None,
) -> PairBench | RangeBench:
    """Return where the variants of a normalised model are measured: at the sizes beside it, if there are several.

    checks_s: seconds that comparing outputs may take in all. reference: what they are compared with at one size, if
    that is known.
    """
    beside = model.with_name(SIZES)
    if not beside.is_file():
        return PairBench(model, settings, seed, reference, checks_s=checks_s)
    return RangeBench(model, load_sizes(beside), settings, seed, checks_s)


@dataclass(slots=True)
class RangeBench:
    """A pair of seats for every size. Use it as a context manager; leaving it ends the processes.

    model: normalised, its dimensions open within the ranges; the arrays of the sizes lie beside it.
    """

    model: Path
    sizes: Sequence[MeasuredSize]
    settings: MeasureSettings
    seed: int
    checks_s: float = math.inf
    _benches: list[PairBench] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="placewright-sizes-")))
        share_s = self.checks_s / len(self.sizes)
        for number, size in enumerate(self.sizes):
            path = _beside_arrays(self.model, size, folder / str(number))
            self._benches.append(self._stack.enter_context(PairBench(path, self.settings, self.seed, checks_s=share_s)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._benches.clear()
        self._stack.close()

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        """Return one start of a variant beside the control at all sizes; see `Bench`.

        Raises:
            ChildError: the control, which has run before, does not run, or the reference on the CPU.
        """
        starts = []
        share_s = seconds / len(self._benches)
        for bench, size in zip(self._benches, self.sizes, strict=True):
            found = bench.start(variant, control, part=part, number=number, pairs=pairs, seconds=share_s)
            if isinstance(found, MeasurementFailed):
                return replace(found, message=f"with {size}: {found.message}")
            starts.append(found)
        return together(starts, [size.weight for size in self.sizes])

    @property
    def checked_s(self) -> float:
        """Return the seconds that comparing outputs has taken."""
        return sum(bench.checked_s for bench in self._benches)

    def alone(self, variant: Variant, seconds: float) -> Sequence[float]:
        """Return the latencies of a variant that runs on its own, at every size for an equal time.

        Raises:
            ChildError: it does not run.
        """
        return [s for bench in self._benches for s in bench.alone(variant, seconds / len(self._benches))]


def together(starts: Sequence[Start], weights: Sequence[float]) -> Start:
    """Return starts at several sizes as one, the seconds of whose turns are weighted geometric means.

    weights: of the sizes; they sum to 1. Of starts with different numbers of turns the first of each count.
    """
    turns = min(len(start.variant_s) for start in starts)

    def mean(name: str) -> tuple[float, ...]:
        logs = [weight * np.log(getattr(start, name)[:turns]) for start, weight in zip(starts, weights, strict=True)]
        return tuple(np.exp(np.sum(logs, axis=0)).tolist())

    worst = max(starts, key=lambda start: _worst(start.loaded)).loaded
    loaded: CheckedLoad = {**starts[-1].loaded, "accuracy": worst["accuracy"]}
    return Start(
        mean("variant_s"),
        mean("control_s"),
        tuple(s for start in starts for s in start.samples_s),
        loaded,
        turns_s=(sum(start.turns_s[0] for start in starts), sum(start.turns_s[1] for start in starts)),
        warm_up=sum(start.warm_up for start in starts),
        cpu_s=float(np.dot([start.cpu_s for start in starts], weights)),
        peak_bytes=max(start.peak_bytes for start in starts),
        waited_share=float(np.mean([start.waited_share for start in starts])),
    )


def _worst(loaded: CheckedLoad) -> float:
    worst = Accuracy.from_json(loaded["accuracy"]).worst
    return math.inf if worst is None else worst


def _beside_arrays(model: Path, size: MeasuredSize, folder: Path) -> Path:
    """Return the model in a folder of its own, where the arrays of one size are those that it is measured with."""
    folder.mkdir()
    for name in (model.name, f"{model.stem}.bin", SEQUENCE):
        if (source := model.with_name(name)).is_file():
            _link(source, folder / name)
    _link(model.with_name(size.arrays), folder / GIVEN)
    return folder / model.name


def _link(source: Path, target: Path) -> None:
    """Let a file appear in another place, as a copy where the system links none."""
    try:
        target.symlink_to(source.absolute())
    except OSError:
        shutil.copyfile(source, target)
