"""What `placewright gate` says on this machine: of two versions, of one version twice, and of a built-in slowdown.

python -m benchmarks.gate_versions table BEFORE AFTER SECONDS MODEL...    a row per model, and a second gate of it
python -m benchmarks.gate_versions equal ENVIRONMENT GATES SECONDS MODEL...    the share that claims a difference
python -m benchmarks.gate_versions slowed PERCENT GATES SECONDS MODEL...    the share of slowdowns that is not found

Models take turns in the last two, and every gate is of one model.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common import ROOT, Figure, figure, say, silent
from pipeline.gate.gate import GateRecord, run_gate
from pipeline.gate.gate_file import GateOptions, read_gate
from pipeline.gate.gate_text import verdict_words


def gated(models: Sequence[str], before: str, after: str, seconds: float, out: Path) -> GateRecord:
    """Return what a gate of so many seconds per model says."""
    budget = f"{seconds * len(models):g}s"
    options = GateOptions(tuple(models), (before,) if before else (), (after,) if after else (), budget=budget)
    return run_gate(read_gate(options), out, today=datetime.now(UTC).date(), say=silent)


def print_versions(before: str, after: str, seconds: float, models: Sequence[str]) -> None:
    """Print the table of two versions as Markdown, as it is found."""
    print("| model | latency | throughput | load | memory of running | verdict | again |")
    print("|---|---|---|---|---|---|---|")
    agreed = 0
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            first, second = (gated([model], before, after, seconds, Path(folder) / name) for name in "ab")
        (row,), (again,) = first.models, second.models
        ratios = {f.figure: f.ratio for f in row.figures}
        cells = [
            f"{r.ratio:.3f} ({r.low:.3f} to {r.high:.3f})" if (r := ratios.get(name)) else ""
            for name in ("latency", "throughput", "load", "memory of running")
        ]
        agreed += row.verdict == again.verdict
        words = [verdict_words(each) for each in (row, again)]
        print(f"| {row.model} | {' | '.join([*cells, *words])} |", flush=True)
    print(f"\n{agreed} of {len(models)} verdicts are those of the second gate.")


def equal(environment: str, gates: int, seconds: float, models: Sequence[str]) -> Iterator[Figure]:
    """Yield the share of gates of one version against itself that claim a difference."""
    said = list(each_gate(environment, environment, gates, seconds, models))
    how = f"{gates} gates of one environment against itself, {seconds:g} s each, {len(models)} models"
    claims = 100 * sum(verdict in ("slower", "faster", "differs") for verdict in said) / gates
    yield figure("gate_versions.false", claims, "%", how, target=5.0)
    yield figure("gate_versions.undecided", 100 * said.count("undecided") / gates, "%", how)


def slowed(percent: float, gates: int, seconds: float, models: Sequence[str]) -> Iterator[Figure]:
    """Yield the share of built-in slowdowns that are not found."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        python.parent.mkdir()
        words = shlex.join([sys.executable, str(Path(__file__).with_name("slowed_child.py")), f"{percent:g}"])
        python.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {words}\n", encoding="utf-8")
        python.chmod(0o755)
        said = list(each_gate("", folder, gates, seconds, models))
    how = f"slowdowns of {percent:g} % in {gates} gates of {seconds:g} s, {len(models)} models; found: {said}"
    yield figure("gate_versions.missed", 100 * sum(v != "slower" for v in said) / gates, "%", how, target=10.0)


def each_gate(before: str, after: str, gates: int, seconds: float, models: Sequence[str]) -> Iterator[str]:
    """Yield the verdicts of gates of one model each, which take turns."""
    for i in range(gates):
        with tempfile.TemporaryDirectory() as folder:
            record = gated([models[i % len(models)]], before, after, seconds, Path(folder))
        print(f"{i + 1} of {gates}: {record.models[0].model}: {record.models[0].text}", file=sys.stderr, flush=True)
        yield record.models[0].verdict


def main(what: str, *words: str) -> None:
    """Run one of the three."""
    if what == "table":
        print_versions(words[0], words[1], float(words[2]), words[3:])
    elif what == "equal":
        say(equal(words[0], int(words[1]), float(words[2]), words[3:]))
    else:
        say(slowed(float(words[0]), int(words[1]), float(words[2]), words[3:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
