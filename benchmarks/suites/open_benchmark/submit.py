"""Checking, scoring and ranking submissions to the open benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.suites.open_benchmark.known import (
    SAME,
    SUBMISSIONS,
    SubmissionDocument,
    check_submission,
    read_index,
    read_submission,
    scores,
    standings,
    submission_files,
)
from pipeline.bench.suites import BenchRequest, TextTable
from pipeline.core.errors import UsageError

READS = frozenset({"files"})
SHOWN = 5  # faults that a message lists
COLUMNS = ["submission", "instances", "points", "over best known", "best known", "alone"]


def run(asked: BenchRequest) -> dict[str, Any]:
    """Return how the submissions in files stand among those of the repository; see `Suite`.

    Raises:
        UsageError: no file is given, one cannot be read, or something in one does not hold; the faults are named.
    """
    files: tuple[Path, ...] = asked.options["files"]
    if not files:
        raise UsageError("No submission is given.", "Give placewright bench submit FILE ...")
    index = read_index()
    new = [checked_submission(file) for file in files]
    given = {file.resolve() for file in files}
    old = [read_submission(file) for file in submission_files(SUBMISSIONS) if file.resolve() not in given]
    names = [document["by"] for document in (*old, *new)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"Several submissions are by {', '.join(twice)}.", "Give each a name of its own in `by`.")
    before, after = standings(index, old), standings(index, (*old, *new))
    refuted = [
        name
        for name, each in after.items()
        if each.lower_bound_s > each.value_s * (1 + SAME)  # somebody's bound is above somebody's value
    ]
    if refuted:
        raise UsageError(
            f"The bounds of {len(refuted)} instances are above values that are known: {', '.join(refuted[:SHOWN])}.",
            "Remove these bounds, or say in the pull request why the value is wrong.",
        )
    ranked = scores(after, (*old, *new))
    return {
        "schema": "placewright.bench-submit/1",
        "ranking": [{name: getattr(score, name) for name in score.__slots__} for score in ranked],
        "submitted": [document["by"] for document in new],
        "improved": sorted(name for name in after if after[name].value_s < before[name].value_s * (1 - SAME)),
        "bounds_raised": sorted(name for name in after if after[name].lower_bound_s > before[name].lower_bound_s),
    }


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str | TextTable]:
    """Yield the ranking, and what is new; see `Suite`."""
    rows = [
        [
            ("*" if row["by"] in document["submitted"] else "") + row["by"],
            str(row["answered"]),
            f"{row['points']:.4f}",
            f"{row['ratio']:.4f}",
            str(row["best"]),
            str(row["alone"]),
        ]
        for row in document["ranking"]
    ]
    yield TextTable("", COLUMNS, rows)
    raised = len(document["bounds_raised"])
    yield f"All placements hold. Better than known: {len(document['improved'])}. Higher bounds: {raised}."
    yield "To submit, put the file into benchmarks/instances/submissions/ and open a pull request."


def checked_submission(file: Path) -> SubmissionDocument:
    """Return a submission all of whose placements hold, by the independent verifier.

    Raises:
        UsageError: it cannot be read, or something in it does not hold; the faults are named.
    """
    document = read_submission(file)
    _, faults = check_submission(document, read_index())
    if faults:
        shown = "; ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:SHOWN])
        raise UsageError(
            f"{file}: {len(faults)} of {len(document['answers'])} answers do not hold: {shown}.",
            f"Correct them; python benchmarks/instances/verify.py {file} names all.",
        )
    return document
