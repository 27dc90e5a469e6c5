"""What all campaigns share: a case is a number, and every case leaves one JSON line, so that a campaign goes on.

    <out>/<campaign>.jsonl   {"seed", "kind": what became of the case, "failed": why it is wrong, or "", "seconds"}

A seed may have several lines: what failed is tried again first, and the last line counts.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LINES, LETTERS = 12, 1000  # of a traceback that are kept, and of a line


class WrongError(AssertionError):
    """What an oracle says of a case that ended wrong."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its number, a generator that it alone uses, and an empty folder."""

    seed: int
    rng: np.random.Generator
    folder: Path


Judge = Callable[[Case], str]  # runs a case and returns what became of it in a word; raises WrongError


@dataclass(frozen=True, slots=True)
class Campaign:
    """Cases of one sort. begin: gives what runs and judges them; share: of the time of all campaigns.

    conclude: what all of them together say, of how many cases became what; raises WrongError if that is wrong.
    """

    name: str
    share: float
    begin: Callable[[Path], AbstractContextManager[Judge]]
    conclude: Callable[[Mapping[str, int]], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Line:
    """What is written down of a case."""

    seed: int
    kind: str
    failed: str
    seconds: float


def require(true: object, words: str) -> None:
    """Raise WrongError unless something is true."""
    if not true:
        raise WrongError(words)


def load_campaigns(names: Sequence[str]) -> list[Campaign]:
    """Return the campaigns of these modules."""
    return [importlib.import_module(f"tests.campaigns.{name}").CAMPAIGN for name in names]


def read_lines(path: Path) -> list[Line]:
    """Return the whole lines of a campaign; what a killed one left of its last line is no line."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [Line(**json.loads(line)) for line in text.split("\n")[:-1]]


def seeds_to_run(lines: Sequence[Line], first: int) -> Iterator[int]:
    """Yield the seeds that failed last, then those that nobody has tried, from `first`."""
    last = {line.seed: line for line in lines}
    yield from (seed for seed, line in last.items() if line.failed)
    seed = first
    while True:
        if seed not in last:
            yield seed
        seed += 1


def run_case(judge: Judge, seed: int) -> Line:
    """Return what became of one case; anything that it raises is a failure."""
    begun, kind, failed = time.monotonic(), "failed", ""
    with tempfile.TemporaryDirectory(prefix="placewright-campaign-", ignore_cleanup_errors=True) as folder:
        try:
            kind = judge(Case(seed, np.random.default_rng([36, seed]), Path(folder).resolve()))
        except WrongError as error:
            failed = str(error)
        except Exception:  # noqa: BLE001  whatever a case raises is what was looked for
            failed = "\n".join(line[:LETTERS] for line in traceback.format_exc().splitlines()[-LINES:])
    return Line(seed, kind, failed, round(time.monotonic() - begun, 3))


def run_campaign(campaign: Campaign, out: Path, *, seconds: float, first: int, most: int | None = None) -> list[Line]:
    """Run cases until the time is up, or for `most` cases; return all lines there are by then."""
    out.mkdir(parents=True, exist_ok=True)
    path, end = out / f"{campaign.name}.jsonl", time.monotonic() + seconds
    lines = read_lines(path)
    path.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines), encoding="utf-8")
    with (
        tempfile.TemporaryDirectory(prefix="placewright-campaign-", ignore_cleanup_errors=True) as folder,
        campaign.begin(Path(folder).resolve()) as judge,
        path.open("a", encoding="utf-8") as journal,
    ):
        for done, seed in enumerate(seeds_to_run(lines, first)):
            if time.monotonic() >= end or done == most:
                break
            lines.append(run_case(judge, seed))
            journal.write(json.dumps(asdict(lines[-1])) + "\n")
            journal.flush()
    return lines


def count_kinds(lines: Sequence[Line]) -> Counter[str]:
    """Return how many cases that did not fail became what."""
    return Counter(line.kind for line in {line.seed: line for line in lines}.values() if not line.failed)


def summary_row(name: str, lines: Sequence[Line]) -> tuple[str, ...]:
    """Return a campaign's row: cases, seeds, failures found, failures left, and how many cases became what."""
    last = {line.seed: line for line in lines}
    found = {line.seed for line in lines if line.failed}
    left = [seed for seed, line in last.items() if line.failed]
    kinds = count_kinds(lines)
    seeds = f"{min(last)}-{max(last)}" if last else "-"
    became = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6))
    return (name, str(len(last)), seeds, str(len(found)), str(len(left)), became)


def print_summary(rows: Sequence[tuple[str, ...]]) -> None:
    """Print the table of all campaigns."""
    head = ("campaign", "cases", "seeds", "failures found", "failures left", "became")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
