"""What `placewright gate` says on this machine: of two versions, of one version twice, and of a built-in slowdown.

python -m benchmarks.gate_versions table OUT --before OLD --after NEW MODEL...    two gates of every model, as Markdown
python -m benchmarks.gate_versions equal OUT --gates 100 MODEL...    the share of equal sides that claim a difference
python -m benchmarks.gate_versions slowed OUT --gates 20 MODEL...    the share of slowdowns of 5 % that are not found

Every gate is of one model, and models take turns. A gate that has ended is a line of OUT/WHAT.jsonl; the same command
goes on after it, in at most `--minutes`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Figure, figure, say, silent
from pipeline.gate.gate import run_gate
from pipeline.gate.gate_file import GateOptions, read_gate
from pipeline.gate.gate_text import VERDICTS
from pipeline.system.json_lines import append_line, load_lines

SHOWN = ("latency", "throughput", "load", "memory of running")
PERCENT = 5.0  # of the built-in slowdown
FAIR = 1.5  # times its budget that a gate may take: reading the model and comparing outputs come first


def run_one_gate(model: str, before: str, after: str, seconds: float) -> dict[str, Any]:
    """Return what a gate of one model says, as a line of a journal."""
    options = GateOptions((model,), (before,), (after,), budget=f"{seconds:g}s")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        record = run_gate(read_gate(options), Path(folder), today=datetime.now(UTC).date(), say=silent)
    (row,) = record.models
    ratios = {f.figure: [f.ratio.ratio, f.ratio.low, f.ratio.high] for f in row.figures if f.ratio}
    return {
        "model": row.model,
        "verdict": row.verdict,
        "text": row.text,
        "ratios": ratios,
        "starts": row.starts,
        "seconds": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[0], 1),
        "versions": [record.before.version, record.after.version],
    }


def run_gates(
    journal: Path,
    sides: tuple[str, str],
    models: Sequence[str],
    *,
    asked: Sequence[str],
    gates: int,
    seconds: float,
    minutes: float,
) -> list[dict[str, Any]]:
    """Return the lines of a journal after gates were added to it until there are so many, or the time is up.

    asked: what sides these are; gates of others, or of another budget or models, do not count.
    """
    known = {"asked": [*asked, f"{seconds:g} s", *models]}
    lines = [dict(line) for line in load_lines(journal) if line.get("asked") == known["asked"]]
    end = time.monotonic() + 60 * minutes
    while len(lines) < gates and time.monotonic() + FAIR * seconds < end:
        lines.append({**known, **run_one_gate(models[len(lines) % len(models)], *sides, seconds)})
        append_line(journal, lines[-1])
        told = lines[-1]
        print(f"{len(lines)} of {gates}: {told['model']}: {told['text']}", file=sys.stderr, flush=True)
    return lines


def table_rows(lines: Sequence[dict[str, Any]], count: int) -> Iterator[str]:
    """Yield the table of two versions as Markdown: of so many models the first gate, and the verdict of the second."""
    yield f"| model | {' | '.join(SHOWN)} | verdict | again |"
    yield "|---" * (len(SHOWN) + 3) + "|"
    for i, line in enumerate(lines[:count]):
        ratios = [line["ratios"].get(name) for name in SHOWN]
        cells = [f"{r[0]:.3f} ({r[1]:.3f} to {r[2]:.3f})" if r else "" for r in ratios]
        both = [VERDICTS.get(each["verdict"], each["verdict"]) for each in lines[i : i + count + 1 : count]]
        yield f"| {line['model']} | {' | '.join([*cells, *both, *[''] * (2 - len(both))])} |"


def share(lines: Sequence[dict[str, Any]], *verdicts: str) -> float:
    """Return the share of gates with one of these verdicts, in percent."""
    return 100 * sum(line["verdict"] in verdicts for line in lines) / len(lines)


def figures(what: str, lines: Sequence[dict[str, Any]], how: str) -> Iterator[Figure]:
    """Yield the shares that count."""
    how = f"{len(lines)} gates {how}; {sum(line['starts'] for line in lines)} starts"
    if what == "equal":
        yield figure("gate_versions.false", share(lines, "slower", "faster", "differs"), "%", how, target=5.0)
        yield figure("gate_versions.same", share(lines, "same"), "%", how)
    else:
        yield figure("gate_versions.missed", 100 - share(lines, "slower"), "%", how, target=10.0)


def slowed_environment(folder: Path, percent: float) -> Path:
    """Return a folder whose interpreter runs the measuring child with a slowdown built in."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    words = shlex.join([sys.executable, str(Path(__file__).with_name("slowed_child.py")), f"{percent:g}"])
    python.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {words}\n", encoding="utf-8")
    python.chmod(0o755)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_versions", description=__doc__)
    parser.add_argument("what", choices=("table", "equal", "slowed"))
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--before", default=sys.prefix, help="environment; this one unless given")
    parser.add_argument("--after", default=sys.prefix, help="environment of table; this one unless given")
    parser.add_argument("--gates", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of a gate")
    parser.add_argument("--minutes", type=float, default=10.0, help="limit of this call")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    gates = 2 * len(chosen.models) if chosen.what == "table" else chosen.gates
    with tempfile.TemporaryDirectory() as folder:
        after = chosen.after if chosen.what == "table" else chosen.before
        asked = (chosen.what, chosen.before, after)
        if chosen.what == "slowed":
            after = str(slowed_environment(Path(folder), PERCENT))
        lines = run_gates(
            chosen.out / f"{chosen.what}.jsonl",
            (chosen.before, after),
            chosen.models,
            asked=asked,
            gates=gates,
            seconds=chosen.seconds,
            minutes=chosen.minutes,
        )
    if chosen.what == "table":
        print("\n".join(table_rows(lines, len(chosen.models))))
    elif lines:
        what = "of one version against itself" if chosen.what == "equal" else f"with {PERCENT:g} % built in"
        say(figures(chosen.what, lines, f"{what}, {chosen.seconds:g} s each, {len(chosen.models)} models"))


if __name__ == "__main__":
    main()
