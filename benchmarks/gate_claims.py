"""How often a gate claims a difference between equal sides, and how often it finds a true slowdown of 5 %.

Gates on simulated machines whose truth is known: starts scatter, some are bad, and on machines of two states whole
processes are slower at random. Everything after the measuring of a start is what `placewright gate` runs.

python -m benchmarks.gate_claims [gates of each kind] [seconds per model]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, say, silent
from pipeline.gate.gate import GateJournal, judge_journal, measure_starts
from pipeline.gate.gate_file import LEAST, TIMED, GatedModel
from pipeline.gate.judge import Found, judge_all_figures
from pipeline.gate.starts import GateStart

GATES = 400
SECONDS = 60.0
MODELS = (1, 10)  # of a gate, whose claims are made together
SLOWDOWN = 0.05
QUIET, BUSY, BAD, TWO_STATES = "quiet", "busy", "bad starts", "two states"
KINDS = (QUIET, BUSY, BAD, TWO_STATES)
SCATTER = {QUIET: 0.01, BUSY: 0.04, BAD: 0.01, TWO_STATES: 0.01}  # standard deviation of a process's log seconds
START_S = 3.0  # what a start takes of a model that loads within 0.2 s


@dataclass(slots=True)
class SimulatedStarts:
    """Starts of two sides on a machine whose truth is known; slowdown: by which the side after is slower."""

    kind: str
    rng: np.random.Generator
    slowdown: float = 0.0

    def start(self, number: int) -> GateStart:
        """Return a start; what a process is slower by, it is in all its turns."""
        after, twin, values = {}, {}, {}
        for name in TIMED:
            logs = self.rng.normal(0.0, SCATTER[self.kind], 3)
            if self.kind == BAD:
                logs += np.where(self.rng.random(3) < 0.05, np.log(self.rng.choice([1.1, 1.3])), 0.0)
            elif self.kind == TWO_STATES:
                logs += np.where(self.rng.random(3) < 0.3, np.log(1.15), 0.0)
            before, twins, changed = logs + np.array([0.0, 0.0, np.log1p(self.slowdown)])
            after[name], twin[name], values[name] = before - changed, before - twins, 1e-3
        return GateStart(after, twin, (values, values), START_S)


def found_by(kind: str, seed: int, slowdown: float, *, models: int, seconds: float) -> Found:
    """Return what is said of one model of a gate of so many."""
    model = GatedModel("model", Path(), Path(), dict.fromkeys(TIMED, LEAST))
    claims = models * len(model.limits)
    with tempfile.TemporaryDirectory() as folder:
        journal = GateJournal(Path(folder) / "starts.jsonl", "")
        source = SimulatedStarts(kind, np.random.default_rng(seed), slowdown)
        measure_starts(model, journal, source, seconds, claims, silent)
        return judge_all_figures(judge_journal(model, journal, claims))


def figures(gates: int = GATES, seconds: float = SECONDS) -> Iterator[Figure]:
    """Yield the share of differences claimed between equal sides, and of true slowdowns that are found."""
    for models in MODELS:
        for kind in KINDS:
            said = [found_by(kind, seed, 0.0, models=models, seconds=seconds) for seed in range(gates)]
            how = f"{gates} models of gates of {models}, both sides equal, {seconds:g} s each; {kind}"
            name = f"gate_claims.false.{models}.{kind.replace(' ', '_')}"
            yield figure(name, 100 * float(np.mean([s in ("slower", "faster") for s in said])), "%", how, target=5.0)
            yield figure(name.replace("false", "same"), 100 * float(np.mean([s == "same" for s in said])), "%", how)
        for kind, target in ((QUIET, 10.0), (BUSY, None)):
            said = [found_by(kind, seed, SLOWDOWN, models=models, seconds=seconds) for seed in range(gates)]
            missed = 100 * float(np.mean([s != "slower" for s in said]))
            how = f"{SLOWDOWN:.0%} slower, not found, {gates} models of gates of {models}, {seconds:g} s each; {kind}"
            yield figure(f"gate_claims.missed.{models}.{kind}", missed, "%", how, target=target)


if __name__ == "__main__":
    say(figures(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False))))
