"""Watching searches: the line about one that goes on, and what is left on disk of how it went."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pipeline.core.figures import gap_of, gap_text, times_as_fast
from pipeline.core.problem import Progress
from pipeline.core.stages import is_proven
from pipeline.progress.curve import LINES, Curve, check_curve_path, read_rows, write_curve
from pipeline.progress.events import EventFiles
from pipeline.store.checkpoint import POLICY, replace_file
from pipeline.store.store import Entry
from pipeline.store.task import Outcome, Task

Watcher = Callable[[str, Progress], None]
"""Told the name of a placer and how far it has come."""

CURVE = f"curve{LINES}"
FIGURE = "curve.svg"
TENSORBOARD = "tensorboard"  # in the context of the place stage's task: the folder of its event files


def ignore_progress(placer: str, progress: Progress) -> None:
    """Look away."""


def with_progress_line(say: Callable[[str], None], watch: Watcher = ignore_progress) -> Watcher:
    """Return a function that tells progress to `watch`, and to people by `say`."""

    def tell(placer: str, progress: Progress) -> None:
        watch(placer, progress)
        say(progress_text(placer, progress))

    return tell


def progress_text(placer: str, p: Progress) -> str:
    """Return a line about a search that goes on; what is not known is left out.

    >>> progress_text("hsdag", Progress(120, 5000, 0.012, single_s=0.015, bound_s=0.009, left_s=35.2))
    'hsdag: best 12 ms, 1.250x the best single device, gap 25.00 %; 120 of 5000 evaluations; 35 s left'
    """
    best = [f"best {p.value_s * 1e3:.6g} ms" if p.value_s < math.inf else "no feasible placement yet"]
    if 0 < p.value_s < math.inf:
        if p.single_s > 0:
            best.append(f"{times_as_fast(p.value_s, p.single_s):.3f}x the best single device")
        if is_proven(p.value_s, p.bound_s):
            best.append("proven optimal")
        elif p.bound_s > 0:
            best.append(f"gap {gap_text(gap_of(p.value_s, p.bound_s))}")
    done = f"{p.done} evaluation{'' if p.done == 1 else 's'}"
    parts = [", ".join(best), done if p.total is None else f"{p.done} of {p.total} evaluations"]
    return f"{placer}: {'; '.join([*parts, *_describe_details(p), *_describe_time_left(p.left_s)])}"


def _describe_details(p: Progress) -> list[str]:
    told = []
    if "entropy" in p.details:
        told.append(f"entropy {p.details['entropy']:.3g}")
    if "groups" in p.details:
        told.append(f"{p.details['groups']:.0f} groups")
    return [", ".join(told)] if told else []


def _describe_time_left(left_s: float) -> list[str]:
    if left_s == math.inf:
        return []
    left = max(round(left_s), 0)
    return [f"{left} s left" if left < 120 else f"{left // 60} min {left % 60:02d} s left"]


@contextmanager
def open_watcher(curve: Path | None = None, tensorboard: str | Path | None = None) -> Iterator[Watcher]:
    """Give a function to tell progress to; at the end, or when it breaks off, what it was told is on disk.

    curve: where to write the curve, by its ending as JSON lines or as a figure. tensorboard: a folder for event files,
    which are written all along.

    Raises:
        UsageError: the format is not known, a path cannot be written, or tensorboardX is not installed.
        StoreError: the curve cannot be written in the end.
    """
    if curve is not None:
        check_curve_path(curve)
    collected = Curve()
    files = None if tensorboard is None else EventFiles(Path(tensorboard))

    def watch(placer: str, progress: Progress) -> None:
        row = collected(placer, progress)
        if files is not None:
            files.note(row)

    try:
        yield watch
    finally:
        if files is not None:
            files.close()
        if curve is not None and collected.rows:
            write_curve(curve, collected.rows)


def with_event_files(tasks: Sequence[Task], tensorboard: Path | None) -> list[Task]:
    """Return the tasks, the place stage among them told where to write event files for TensorBoard, if anywhere.

    Raises:
        UsageError: tensorboardX is not installed, or the folder cannot be written.
    """
    if tensorboard is None:
        return list(tasks)
    EventFiles(tensorboard).close()  # what is wrong is said before the first stage begins
    context = {TENSORBOARD: str(tensorboard.resolve())}
    return [replace(t, context={**t.context, **context}) if t.stage == "place" else t for t in tasks]


def replay_searches(place: Outcome | None, tensorboard: Path | None) -> None:
    """Write event files of searches that did not run because their artifact was in the store.

    Raises:
        UsageError: tensorboardX is not installed, or the folder cannot be written.
    """
    if place is None or place.ran or tensorboard is None or CURVE not in place.entry.files:
        return
    files = EventFiles(tensorboard)
    try:
        files.replay(read_rows(place.entry.path(CURVE)))
    finally:
        files.close()


def write_training(folder: Path, place: Entry, *, drawn: bool = False) -> dict[str, str]:
    """Write the learning curve and the policies of a place artifact into a run directory; return file names by role.

    drawn: whether the curve that lies there is this artifact's already; drawing takes longer than all the rest.

    Raises:
        StoreError: a file cannot be written.
    """
    written: dict[str, str] = {}
    rows = read_rows(place.path(CURVE)) if CURVE in place.files else []
    if rows:
        written["curve"] = FIGURE
        if not (drawn and (folder / FIGURE).is_file()):
            write_curve(folder / FIGURE, rows)
    for name in place.files:
        stem, _, ending = name.partition(".")
        if stem.split("-")[0] == POLICY:
            replace_file(folder / name, place.path(name).read_bytes())
            written[stem if ending != "json" else f"{stem}_facts"] = name
    return written
