"""Comparisons as intervals of ratios: what a batch or a benchmark leaves beside its table, as a record and as pictures.

The record is read again by `report FOLDER`, whose page draws the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from markupsafe import Markup

from pipeline.core.errors import StoreError
from pipeline.report.charts import ForestRow, draw_forest
from pipeline.report.page import svg_file
from pipeline.report.plain_page import Section, TableCell, number_cell
from pipeline.shared.payload import from_json, read_json
from pipeline.store.store import write_json, write_text

SCHEMA = "placewright.intervals/2"
RECORD = "intervals.json"
DRAWN = 60  # rows of a picture; the others are in the table alone
FEW = 12  # rows that need neither sorting nor a filter


@dataclass(frozen=True, slots=True)
class DrawnComparison:
    """Ratios to a reference, with intervals where there are any.

    file: name of the picture. about: what is divided by what, and what the intervals are of. better: what ratios count.
    """

    file: str
    title: str
    about: str
    yardstick: str
    rows: tuple[ForestRow, ...]
    better: str = "as fast"

    @property
    def drawn(self) -> list[ForestRow]:
        """Return the rows of the picture: those that may differ from the reference."""
        return [row for row in self.rows if row.interval is not None or row.middle != 1]

    def drawing(self) -> Markup:
        """Return the picture."""
        return draw_forest(self.drawn[:DRAWN], label=self.title, reference=self.yardstick, better=self.better)

    def section(self, place: str = "") -> Section:
        """Return the part of a page about it; place: the folder in which it lies, if that is to be said."""
        shown = min(DRAWN, len(self.drawn))
        more = f" The picture holds {shown} of {len(self.rows)} rows." if shown < len(self.rows) else ""
        cells: list[list[str | TableCell]] = [
            [r.name, number_cell(f"{r.middle:.4g}", r.middle), *_interval_cells(r)] for r in self.rows
        ]
        return Section(
            f"{place}: {self.title}" if place else self.title,
            words=self.about + more,
            chart=self.drawing() if shown else None,
            columns=("", f"times {self.better} as {self.yardstick}", "from", "to"),
            rows=cells,
            numbers=(1, 2, 3),
            filtered=len(self.rows) > FEW,
        )


def _interval_cells(row: ForestRow) -> list[TableCell]:
    return [number_cell("" if end is None else f"{end:.4g}", end) for end in row.interval or (None, None)]


def interval_row(name: str, ratio: tuple[float, float, float], kind: str = "other", words: str = "") -> ForestRow:
    """Return the row of a ratio, its lower and its upper end; one without width has no interval.

    >>> interval_row("a", (1.5, 1.25, 2.0)).words, interval_row("b", (1.5, 1.5, 1.5)).interval
    ('1.500 [1.250, 2.000]', None)
    """
    middle, low, high = ratio
    if high - low < 1e-9:
        return ForestRow(name, middle, None, words or f"{middle:.3f}", kind)
    return ForestRow(name, middle, (low, high), words or f"{middle:.3f} [{low:.3f}, {high:.3f}]", kind)


def write_record(folder: Path, comparisons: Sequence[DrawnComparison]) -> None:
    """Write what comparisons say, for the page of the folder.

    Raises:
        StoreError: it cannot be written.
    """
    write_json(folder / RECORD, {"schema": SCHEMA, "comparisons": [asdict(c) for c in comparisons]})


def write_comparisons(folder: Path, comparisons: Sequence[DrawnComparison]) -> None:
    """Write a picture per comparison, and the record of all.

    Raises:
        StoreError: they cannot be written.
    """
    for each in comparisons:
        write_text(folder / each.file, svg_file(each.drawing()))
    write_record(folder, comparisons)


def read_comparisons(path: Path) -> list[DrawnComparison]:
    """Return the comparisons of a record.

    Raises:
        StoreError: it is no such record, or damaged.
    """
    try:
        document = read_json(path)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']}")
        drawn = [from_json(DrawnComparison, each) for each in document["comparisons"]]
        ratios = [v for each in drawn for r in each.rows for v in (r.middle, *(r.interval or ()))]
        if not all(0 < v < math.inf for v in ratios):
            raise ValueError("a ratio is not a positive number")
        return drawn
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged.", "Run what made it once more.") from error
