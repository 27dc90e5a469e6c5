"""Pages of tables and charts: two runs side by side, all runs of a folder, and a search without hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pipeline.report.page import render_page

NO_GRAPH: Mapping[str, Any] = {"graph": None, "legend": [], "cuts": [], "cut_caption": "", "ungraphed": ""}
NO_TIMELINE: Mapping[str, Any] = {"timeline": None, "timeline_words": ""}


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table: its words, the value that rows are sorted by, and the path that a link leads to."""

    words: str
    sort: str
    link: str = ""


def number_cell(words: str, value: float | None) -> TableCell:
    """Return the cell of a number in words, such as "1.2 ms": sorted by its value, None where there is none."""
    return TableCell(words, "" if value is None else repr(value))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, and of words, chart, table and text to copy what there is.

    numbers: the columns whose cells are numbers. filtered: whether rows can be sorted and filtered.
    """

    title: str
    words: str = ""
    chart: Markup | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | TableCell]] = ()
    numbers: Sequence[int] = ()
    filtered: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class PlainPage:
    """A page: what is said first, a command to copy (`now`), notes, sections, and those after graph and timeline.

    more: the context of graph and timeline.
    """

    title: str
    verdict: str = ""
    glance: Sequence[tuple[str, str]] = ()
    now: str = ""
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    after: Sequence[Section] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the page as HTML."""
        context = {**NO_GRAPH, **NO_TIMELINE, **self.more}
        told = {name: getattr(self, name) for name in ("title", "verdict", "glance", "now", "notes")}
        context |= told | {"sections": _non_empty(self.sections), "after": _non_empty(self.after)}
        return render_page("plain.html.j2", context, graph=bool(context["graph"]))


def _non_empty(sections: Sequence[Section]) -> list[Section]:
    """Return the sections that hold anything."""
    return [section for section in sections if section.rows or section.chart or section.words or section.text]
