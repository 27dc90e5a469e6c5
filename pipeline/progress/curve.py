"""How searches went: their progress as rows, in JSON lines, and as a figure."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UNPARSABLE, StoreError, UsageError
from pipeline.core.problem import Progress
from pipeline.store.checkpoint import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAIN_ROWS = 2000  # per placer, besides those at which something got better
FIGURES = (".svg", ".png")
LINES = ".jsonl"
PANELS = ("entropy", "groups")  # details that have a panel of the figure
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by everyone
MS = 1e3

Row = Mapping[str, Any]


@dataclass(slots=True)
class _Track:
    """The events of one placer that are kept: those at which something got better, and every `stride`-th.

    before: evaluations of searches that are over, where a placer searches several times.
    """

    begun_s: float
    before: int = 0
    done: int = 0
    stride: int = 1
    count: int = 0
    best_s: float = math.inf
    bound_s: float = 0.0
    better: list[tuple[int, Row]] = field(default_factory=list)
    plain: list[tuple[int, Row]] = field(default_factory=list)
    last: tuple[int, Row] | None = None

    def add(self, placer: str, now_s: float, progress: Progress) -> Row:
        """Note an event, and return its row."""
        if progress.done < self.done:  # a new search, in which the same placement may have another value
            self.before, self.best_s, self.bound_s = self.before + self.done, math.inf, 0.0
        self.done = progress.done
        row = row_of(placer, now_s - self.begun_s, replace(progress, done=self.before + progress.done))
        entry = (self.count, row)
        if progress.value_s < self.best_s or progress.bound_s > self.bound_s:
            self.best_s, self.bound_s = min(self.best_s, progress.value_s), max(self.bound_s, progress.bound_s)
            self.better.append(entry)
        elif self.count % self.stride == 0:
            self.plain.append(entry)
        self.last = entry
        self.count += 1
        if len(self.plain) > PLAIN_ROWS:
            self.stride *= 2
            self.plain = [(i, kept) for i, kept in self.plain if i % self.stride == 0]
        return row

    def rows(self) -> list[Row]:
        """Return the rows that are kept, in order, the last event among them."""
        entries = dict([*self.better, *self.plain, *([] if self.last is None else [self.last])])
        return [entries[i] for i in sorted(entries)]


class Curve:
    """Collects what placers tell of their progress.

    A row: {placer, seconds since its search began, done, value_s, single_s, bound_s} and the placer's details, such as
    entropy; null where a number is not known. The evaluations of a placer that searches several times run on. Of very
    long searches rows are left out, but none at which the best
    placement or the bound got better, and never the last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_s = clock()  # a placer begins where the one before it ended
        self._tracks: dict[str, _Track] = {}

    def __call__(self, placer: str, progress: Progress) -> Row:
        """Note an event, and return its row."""
        track = self._tracks.setdefault(placer, _Track(self._told_s))
        self._told_s = self._clock()
        return track.add(placer, self._told_s, progress)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all placers, one after the other."""
        return [row for track in self._tracks.values() for row in track.rows()]


def row_of(placer: str, seconds: float, progress: Progress) -> Row:
    """Return the row of an event, `seconds` after the placer began."""
    numbers = {
        **progress.details,
        "seconds": seconds,
        "done": progress.done,
        "value_s": progress.value_s,
        "single_s": progress.single_s,
        "bound_s": progress.bound_s if progress.bound_s > 0 else math.nan,
    }
    return {"placer": placer, **{name: x if math.isfinite(x) else None for name, x in numbers.items()}}


def check_curve_path(path: Path) -> None:
    """Check, before a long search, that a curve can be written to a path.

    Raises:
        UsageError: it cannot, or its name says no known format.
    """
    from pipeline.progress.perfetto import check_writable

    if path.suffix.lower() not in (*FIGURES, LINES):
        raise UsageError(f"{path} names no known format of a curve.", "End it in .svg, .png or .jsonl.")
    check_writable(path)


def write_curve(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON lines, or as a figure if the name ends in .svg or .png.

    Raises:
        StoreError: the file cannot be written.
    """
    if path.suffix.lower() in FIGURES:
        plot_curve(rows, path)
    else:
        replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_rows(path: Path) -> list[Row]:
    """Return the rows in a file of JSON lines.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, *UNPARSABLE) as error:
        raise StoreError(f"{path} holds no curve: {error}.", "Run the search again.") from error
    if not all(isinstance(row, dict) for row in rows):
        raise StoreError(f"{path} holds no curve: a line is no JSON object.", "Run the search again.")
    return rows


def plot_curve(rows: Sequence[Row], path: Path) -> None:
    """Write the figure of a curve as .svg or .png: the best so far over evaluations, and below it what policies tell.

    Raises:
        StoreError: the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    told = [name for name in PANELS if any(row.get(name) is not None for row in rows)]
    heights = [3.0, *(1.0 for _ in told)]
    # Text stays text, and equal rows give equal files; neither can be asked of one figure alone.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "placewright"}):
        figure = Figure(figsize=(8.0, 4.0 + 1.3 * len(told)), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_times(axes[0], rows)
        for axis, name in zip(axes[1:], told, strict=True):
            _draw_detail(axis, rows, name)
        axes[-1].set_xlabel("evaluations")
        if axes[0].get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=3, frameon=False)
        content = io.BytesIO()
        form = path.suffix.lower().removeprefix(".")
        figure.savefig(content, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    replace_file(path, content.getvalue())


def _draw_times(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the best of every placer, and across them the best single device and the bound."""
    for i, (placer, mine) in enumerate(rows_by_placer(rows).items()):
        done, value_s = curve_points(mine, "value_s")
        if done:
            axis.step(
                *(done, [v * MS for v in value_s]),
                where="post",
                color=COLOURS[i % len(COLOURS)],
                label=f"{placer}: {value_s[-1] * MS:.4g} ms",
                gid=f"best-{placer}",
            )
    for name, pick, label, style in (
        ("single_s", min, "best single device", "--"),
        ("bound_s", max, "bound", ":"),
    ):
        values = curve_points(rows, name)[1]
        if values:
            level = pick(values) * MS
            axis.axhline(level, color="#555555", linestyle=style, label=f"{label}: {level:.4g} ms", gid=name)
    axis.set_ylabel("best so far, ms")
    axis.grid(alpha=0.3)


def _draw_detail(axis: Axes, rows: Sequence[Row], name: str) -> None:
    for i, (placer, mine) in enumerate(rows_by_placer(rows).items()):
        done, values = curve_points(mine, name)
        if done:
            axis.plot(done, values, color=COLOURS[i % len(COLOURS)], gid=f"{name}-{placer}")
    axis.set_ylabel(name)
    axis.grid(alpha=0.3)


def rows_by_placer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each placer, in order."""
    by_placer: dict[str, list[Row]] = {}
    for row in rows:
        by_placer.setdefault(row["placer"], []).append(row)
    return by_placer


def curve_points(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Return evaluations, and the values of the rows that have one."""
    known = [row for row in rows if row.get(name) is not None]
    return [row["done"] for row in known], [row[name] for row in known]
