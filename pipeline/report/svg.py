"""Drawings as SVG text: elements that escape what they are given, scales, and axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.report.text import make_visible

Attribute = str | float | int
WIDTH = 920.0
DECADES = 9


def make_element(tag: str, *children: str | Markup, **attributes: Attribute) -> Markup:
    """Return an element; text children and attributes are escaped, "_" in a name stands for "-", and one behind goes.

    >>> make_element("text", "<b>", class_="name", x=1.25)
    Markup('<text class="name" x="1.25">&lt;b&gt;</text>')
    """
    told = "".join(f' {name.rstrip("_").replace("_", "-")}="{_attribute_value(v)}"' for name, v in attributes.items())
    inner = "".join(c if isinstance(c, Markup) else escape(make_visible(c)) for c in children)
    return Markup(f"<{tag}{told}>{inner}</{tag}>")


def _attribute_value(value: Attribute) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(escape(make_visible(str(value))))


def make_drawing(label: str, height: float, parts: Iterable[Markup], *, width: float = WIDTH) -> Markup:
    """Return a whole drawing that scales with the page; label: what it shows, for who cannot see it."""
    return make_element(
        "svg",
        make_element("title", label),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        class_="chart",
        style=f"max-width:{width:g}px",
    )


def make_text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> Markup:
    """Return text at a place."""
    return make_element("text", words, x=x, y=y, text_anchor=anchor, class_=kind or "label")


def make_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a line of a kind that the style sheet knows."""
    return make_element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def make_path(points: Sequence[tuple[float, float]], **attributes: Attribute) -> Markup:
    """Return the line through points."""
    return make_element("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), **attributes)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values stand between two places, in proportion or by their logarithms."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; one beyond an end stands just outside of it.

        What a chart marks and names (a level, a percentile, a candidate) is among the values its scale was made over,
        so that it stands where its words say; an outlier of a line or a histogram may not be.
        """
        low, high, at = (self._spread(v) for v in (self.low, self.high, value))
        share = 0.5 if high <= low else (at - low) / (high - low)
        return self.begin + (self.end - self.begin) * min(max(share, -0.02), 1.02)

    def _spread(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def ticks(self, most: int = 7) -> list[float]:
        """Return round values between the ends."""
        return _log_ticks(self.low, self.high, most) if self.log else _even_ticks(self.low, self.high, most)


def scale_over(values: Iterable[float], begin: float, end: float, *, log: bool = False, margin: float = 0.04) -> Scale:
    """Return the scale on which all values have a place, with a margin on both sides.

    log: of those above 0, and of these no further than DECADES below the highest; others stand at the end.
    """
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(known), max(known)
    if log:
        low = max(low, high * 10.0**-DECADES)
        factor = max((high / low) ** margin, 1.02)
        return Scale(low / factor, high * factor, begin, end, log=True)
    extra = margin * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - extra, high + extra, begin, end)


def _even_ticks(low: float, high: float, most: int) -> list[float]:
    step = _round_step((high - low) / max(most, 1))
    if step <= 0:
        return [low]
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    if high / low < 4:
        return _even_ticks(low, high, most)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(ticks) <= most + 2:
            return ticks
    return ticks[:: max(1, len(ticks) // most)]


def _round_step(step: float) -> float:
    if not step > 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(step))
    return next(unit * m for m in (1, 2, 5, 10) if unit * m >= step * (1 - 1e-9))
