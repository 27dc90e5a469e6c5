"""Charts of a run: intervals, distributions, the front of rate and latency, learning curves, predictions, stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup

from pipeline.core.arrays import Float64
from pipeline.core.figures import share_text
from pipeline.placing.comparison import PERCENTILES
from pipeline.progress.curve import curve_points, rows_by_placer
from pipeline.report import svg
from pipeline.report.text import seconds_text, shorten

LEFT, RIGHT = 310.0, 190.0
ROW = 24.0
NAMED = 38  # characters of a name that have room
BINS = 60
FURTHEST = 100.0  # times as fast, or as slow, that a forest plot has room for; beyond, an interval ends at the edge
PLOT = 300.0  # height of a chart with two axes
LANE, LANES = 7.0, 4  # of requests of one model that are in flight side by side
MOST_POINTS = 600  # of a line; a screen has no more


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A row of a forest plot: a figure, and its interval where there is one; kind: how it is marked."""

    name: str
    middle: float
    interval: tuple[float, float] | None
    words: str
    kind: str = "other"


class RequestBar(Protocol):
    """A request of a timeline: when it was due and ended, in seconds; None where it was dropped."""

    @property
    def model(self) -> str: ...
    @property
    def due_s(self) -> float: ...
    @property
    def end_s(self) -> float | None: ...


def draw_forest(rows: Sequence[ForestRow], *, label: str, reference: str, better: str = "as fast") -> Markup:
    """Return intervals of ratios on one axis, with a line at 1, the reference; better: what they count."""
    values = [v for r in rows for v in (r.middle, *(r.interval or ()), 1.0) if v and 1 / FURTHEST <= v <= FURTHEST]
    scale = svg.scale_over(values, LEFT, svg.WIDTH - RIGHT, log=True)
    height = ROW * len(rows) + 66
    parts = [*_bottom_axis(scale, height - 42, lambda v: f"{v:.3g}x", top=18.0)]
    parts.append(svg.make_line(scale(1.0), 18, scale(1.0), height - 42, "reference"))
    parts.append(svg.make_text(scale(1.0), 12, shorten(reference, 40), anchor="middle"))
    for i, r in enumerate(rows):
        y = 32 + ROW * i
        parts.append(svg.make_text(LEFT - 12, y + 4, shorten(r.name, NAMED), anchor="end", kind=f"label {r.kind}"))
        if r.interval is not None:
            low, high = map(scale, r.interval)
            parts.append(svg.make_line(low, y, high, y, f"interval {r.kind}"))
            parts += [svg.make_line(x, y - 4, x, y + 4, f"interval {r.kind}") for x in (low, high)]
        mark = "point" if r.interval is not None else "point open"
        parts.append(_draw_point(scale(r.middle), y, f"{mark} {r.kind}", f"{r.name}: {r.words}"))
        parts.append(svg.make_text(svg.WIDTH - RIGHT + 10, y + 4, r.words))
    parts.append(
        svg.make_text(
            (LEFT + svg.WIDTH - RIGHT) / 2, height - 6, f"times {better}; further right is better", anchor="middle"
        )
    )
    return svg.make_drawing(label, height, parts)


def draw_ranks(ranks: Mapping[str, float], difference: float, *, label: str) -> Markup:
    """Return mean ranks, the least first, each with the critical difference around it: bars apart are told apart."""
    half = difference / 2
    scale = svg.scale_over([min(ranks.values()) - half, max(ranks.values()) + half], LEFT, svg.WIDTH - RIGHT)
    height = ROW * len(ranks) + 66
    parts = [*_bottom_axis(scale, height - 42, lambda v: f"{v:.3g}", top=18.0)]
    for i, (name, rank) in enumerate(ranks.items()):
        y, kind = 32 + ROW * i, "other" if i else "best"
        parts.append(svg.make_text(LEFT - 12, y + 4, shorten(name, NAMED), anchor="end", kind=f"label {kind}"))
        parts.append(svg.make_line(scale(rank - half), y, scale(rank + half), y, f"interval {kind}"))
        parts.append(_draw_point(scale(rank), y, f"point {kind}", f"{name}: {rank:.2f}"))
        parts.append(svg.make_text(svg.WIDTH - RIGHT + 10, y + 4, f"{rank:.2f}"))
    words = f"mean rank; bars of the critical difference, {difference:.2f}, that overlap are not told apart"
    parts.append(svg.make_text((LEFT + svg.WIDTH - RIGHT) / 2, height - 6, words, anchor="middle"))
    return svg.make_drawing(label, height, parts)


def draw_distributions(samples: Mapping[str, Float64], best: str) -> Markup:
    """Return how often each latency came, a row per candidate, with percentiles; samples: float64 [r], seconds."""
    every = np.concatenate(list(samples.values()))
    marked = {name: _supported_percentiles(values) for name, values in samples.items()}
    ends = [*np.quantile(every, [0.001, 0.999]).tolist(), *(at for each in marked.values() for at in each.values())]
    scale = svg.scale_over(ends, LEFT, svg.WIDTH - 20, log=True)
    row, height = 56.0, 56.0 * len(samples) + 44
    parts = [*_bottom_axis(scale, height - 30, seconds_text, top=4.0)]
    edges = np.geomspace(scale.low, scale.high, BINS + 1)
    for i, (name, values) in enumerate(samples.items()):
        base = row * (i + 1) - 6
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        tall = counts / max(counts.max(), 1) * (row - 18)
        outline = [(scale(float(edges[0])), base)]
        for a, b, h in zip(edges[:-1].tolist(), edges[1:].tolist(), tall.tolist(), strict=True):
            outline += [(scale(a), base - h), (scale(b), base - h)]
        outline.append((scale(float(edges[-1])), base))
        kind = "best" if name == best else "other"
        parts.append(svg.make_path(outline, class_=f"density {kind}"))
        parts.append(svg.make_text(LEFT - 12, base - 14, shorten(name, NAMED), anchor="end", kind=f"label {kind}"))
        parts.append(svg.make_text(LEFT - 12, base, f"{values.size:,} inferences", anchor="end", kind="small"))
        free = 0.0
        for share, value_s in marked[name].items():
            at = scale(value_s)
            parts.append(svg.make_line(at, base - row + 16, at, base, "percentile"))
            if at >= free:  # a label that would cover the one before is left to the table
                parts.append(svg.make_text(at + 2, base - row + 22, f"p{share}", kind="small"))
                free = at + 30
    return svg.make_drawing("Latencies of candidates", height, parts)


def _supported_percentiles(values: Float64) -> dict[str, float]:
    """Return the percentiles that there are inferences enough for."""
    return {
        share: float(np.percentile(values, float(share)))
        for share, least in PERCENTILES.items()
        if values.size >= least
    }


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate by latency, seconds, and rate, inferences per second; front: none is better in both."""

    name: str
    latency_s: float
    rate: float
    front: bool
    kind: str = "other"


def front_of(rows: Sequence[tuple[str, float, float]]) -> set[str]:
    """Return the names of those that none beats in latency and rate; rows: name, seconds, per second.

    >>> sorted(front_of([("a", 1.0, 1.0), ("b", 2.0, 3.0), ("c", 3.0, 2.0)]))
    ['a', 'b']
    """
    front, most = set(), -math.inf
    for name, _, rate in sorted(rows, key=lambda r: (r[1], -r[2])):
        if rate > most:
            front.add(name)
            most = rate
    return front


def draw_pareto(points: Sequence[Point]) -> Markup:
    """Return rate over latency, the front as a line."""
    x = svg.scale_over([p.latency_s for p in points], 80, svg.WIDTH - 130, log=True, margin=0.08)
    y = svg.scale_over([p.rate for p in points], PLOT - 44, 14, log=True, margin=0.08)
    parts = [
        *_bottom_axis(x, PLOT - 44, seconds_text, top=14.0),
        *_left_axis(y, 80, svg.WIDTH - 130, lambda v: f"{v:.4g}"),
    ]
    front = sorted((p for p in points if p.front), key=lambda p: p.latency_s)
    parts.append(svg.make_path([(x(p.latency_s), y(p.rate)) for p in front], class_="front"))
    for p in points:
        words = f"{p.name}: {seconds_text(p.latency_s)}, {p.rate:.4g} per second"
        parts.append(_draw_point(x(p.latency_s), y(p.rate), f"point {p.kind} {'' if p.front else 'open'}", words))
        if p.front or p.kind == "best":
            parts.append(svg.make_text(x(p.latency_s) + 7, y(p.rate) - 6, shorten(p.name, 28), kind=f"small {p.kind}"))
    parts.append(svg.make_text(svg.WIDTH / 2, PLOT - 4, "latency; further left is better", anchor="middle"))
    parts.append(svg.make_text(4, 10, "inferences per second"))
    return svg.make_drawing("Throughput against latency", PLOT, parts)


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Return each placer's best over evaluations, with the best single device and the bound; None where nothing is."""
    lines = {name: curve_points(mine, "value_s") for name, mine in rows_by_placer(rows).items()}
    lines = {name: drawn for name, drawn in lines.items() if drawn[0]}
    if not lines:
        return None
    levels = {
        "best single device": (curve_points(rows, "single_s")[1], min),
        "bound": (curve_points(rows, "bound_s")[1], max),
    }
    level = {name: pick(drawn) for name, (drawn, pick) in levels.items() if drawn}
    values = [v for _, drawn in lines.values() for v in drawn] + list(level.values())
    end = max(done[-1] for done, _ in lines.values())
    top = 16.0 * len(lines) + 14
    base, right = PLOT - 60 + top, svg.WIDTH - RIGHT
    x = svg.Scale(0.0, float(max(end, 1)), 90, right)
    marked = [*level.values(), *(drawn[-1] for _, drawn in lines.values())]
    y = svg.scale_over([min(values), float(np.quantile(values, 0.98)), *marked], base, top, log=True)
    parts = [*_bottom_axis(x, base, lambda v: f"{v:g}", top=top), *_left_axis(y, 90, right, seconds_text)]
    for value, at, name in _spread_labels([(v, y(v), name) for name, v in level.items()]):
        parts.append(svg.make_line(90, y(value), right, y(value), "bound" if name == "bound" else "reference"))
        parts.append(svg.make_text(right + 6, at + 4, f"{name} {seconds_text(value)}", kind="small"))
    for i, (name, (done, drawn)) in enumerate(lines.items()):
        stairs = _stair_corners(done, drawn, end)
        parts.append(svg.make_path([(x(d), y(v)) for d, v in stairs], class_=f"curve line{i % 7}"))
        parts += _draw_key(i, f"{name}: {seconds_text(drawn[-1])} in the end")
    parts.append(svg.make_text((90 + right) / 2, base + 38, "evaluations", anchor="middle"))
    return svg.make_drawing("Best placement so far, by placer", base + 44, parts)


def ratio_curves(
    lines: Mapping[str, Sequence[tuple[float, float]]], *, label: str, along: str, reference: str
) -> Markup | None:
    """Return ratios over what was spent, both by their logarithms, with a line at 1; None where there are none.

    lines: name -> (spent, ratio), in order. along: what is spent.
    """
    known = {name: points for name, points in lines.items() if points}
    if not known:
        return None
    top = 16.0 * len(known) + 14
    base, right = PLOT - 60 + top, svg.WIDTH - RIGHT
    x = svg.scale_over([spent for points in known.values() for spent, _ in points], 90, right, log=True)
    y = svg.scale_over([1.0, *(r for points in known.values() for _, r in points)], base, top, log=True)
    parts = [*_bottom_axis(x, base, lambda v: f"{v:g}", top=top), *_left_axis(y, 90, right, lambda v: f"{v:.3g}")]
    parts.append(svg.make_line(90, y(1.0), right, y(1.0), "reference"))
    parts.append(svg.make_text(right + 6, y(1.0) + 4, reference, kind="small"))
    for i, (name, points) in enumerate(known.items()):
        parts.append(svg.make_path([(x(spent), y(ratio)) for spent, ratio in points], class_=f"curve line{i % 7}"))
        parts += [_draw_point(x(spent), y(ratio), f"fill{i % 7}", f"{name}: {ratio:.4g}") for spent, ratio in points]
        parts += _draw_key(i, f"{name}: {points[-1][1]:.4g} in the end")
    parts.append(svg.make_text((90 + right) / 2, base + 38, f"{along}; further down is better", anchor="middle"))
    return svg.make_drawing(label, base + 44, parts)


def draw_cumulative(samples: Mapping[str, Float64], *, label: str, along: str) -> Markup:
    """Return cumulative distributions of ratios, float64 [r] each: the share of r that is as low, by its logarithm.

    along: what the ratios are.
    """
    top = 16.0 * len(samples) + 14
    base, right = PLOT - 60 + top, svg.WIDTH - RIGHT
    x = svg.scale_over([1.0, *np.concatenate(list(samples.values())).tolist()], 90, right, log=True)
    y = svg.Scale(0.0, 1.0, base, top)
    parts = [*_bottom_axis(x, base, lambda v: f"{v:.3g}", top=top), *_left_axis(y, 90, right, lambda v: f"{v:.0%}")]
    parts.append(svg.make_line(x(1.0), base, x(1.0), top, "reference"))
    for i, (name, values) in enumerate(samples.items()):
        corners = [(x(x.low), base)]
        for rank, value in enumerate(np.sort(values).tolist()):
            corners += [(x(value), y(rank / values.size)), (x(value), y((rank + 1) / values.size))]
        parts.append(svg.make_path([*corners, (right, top)], class_=f"curve line{i % 7}"))
        parts += _draw_key(i, f"{name}: median {np.median(values):.3g}")
    parts.append(svg.make_text((90 + right) / 2, base + 38, f"{along}; further left is better", anchor="middle"))
    return svg.make_drawing(label, base + 44, parts)


def _spread_labels(labels: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return labels of (value, place, words), those that would overlap moved down."""
    placed: list[tuple[float, float, str]] = []
    for value, at, words in sorted(labels, key=lambda label: label[1]):
        placed.append((value, max(at, placed[-1][1] + 13) if placed else at, words))
    return placed


def _stair_corners(done: Sequence[int], value_s: Sequence[float], end: int) -> list[tuple[int, float]]:
    """Return the corners of a line that keeps each value until the next; what no screen shows is left out."""
    step = max(1, len(done) // MOST_POINTS)
    kept = [i for i in range(len(done)) if i % step == 0 or i == len(done) - 1 or value_s[i] < value_s[i - 1]]
    corners: list[tuple[int, float]] = []
    for i in kept:
        if corners:
            corners.append((done[i], corners[-1][1]))
        corners.append((done[i], value_s[i]))
    return [*corners, (end, corners[-1][1])]


def draw_predictions(rows: Sequence[tuple[str, float, float]]) -> Markup:
    """Return measured over predicted seconds, rows of name, predicted and measured, beside the line of no error."""
    scale = [v for _, predicted, measured in rows for v in (predicted, measured)]
    x = svg.scale_over(scale, 90, 470, log=True, margin=0.08)
    y = svg.Scale(x.low, x.high, PLOT - 44, 14, log=True)
    parts = [*_bottom_axis(x, PLOT - 44, seconds_text, top=14.0), *_left_axis(y, 90, 470, seconds_text)]
    parts.append(svg.make_line(x(x.low), y(x.low), x(x.high), y(x.high), "reference"))
    for name, predicted, measured in rows:
        words = f"{name}: predicted {seconds_text(predicted)}, measured {seconds_text(measured)}"
        parts.append(_draw_point(x(predicted), y(measured), "point other", words))
        parts.append(svg.make_text(x(predicted) + 7, y(measured) + 4, shorten(name, 30), kind="small"))
    parts.append(svg.make_text(280, PLOT - 4, "predicted", anchor="middle"))
    parts.append(svg.make_text(4, 10, "measured"))
    return svg.make_drawing("Predicted against measured latency", PLOT, parts)


def draw_requests(rows: Sequence[RequestBar], deadlines: Mapping[str, float]) -> Markup:
    """Return a lane for each model with its requests from due to end, side by side as far as they overlap.

    deadlines: model -> seconds; what takes longer is marked, and so is what was dropped.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    x = svg.Scale(0.0, max([1.0, *(row.end_s for row in rows if row.end_s is not None)]), 130.0, svg.WIDTH - 10)
    parts: list[Markup] = []
    y = 8.0
    for i, model in enumerate(models):
        free = [-math.inf] * LANES
        parts.append(svg.make_text(124, y + LANE * LANES / 2 + 4, shorten(model, 18), anchor="end"))
        for row in sorted((r for r in rows if r.model == model), key=lambda r: r.due_s):
            end_s = row.due_s if row.end_s is None else row.end_s
            lane = next((k for k, until in enumerate(free) if until <= row.due_s), LANES - 1)
            free[lane] = max(free[lane], end_s)
            late = row.end_s is None or end_s - row.due_s > deadlines.get(model, math.inf)
            took = "dropped" if row.end_s is None else f"took {seconds_text(end_s - row.due_s)}{' (late)' * late}"
            title = svg.make_element("title", f"{model}: due at {seconds_text(row.due_s)}, {took}")
            box = {
                "x": x(row.due_s),
                "y": y + LANE * lane,
                "width": max(1.5, x(end_s) - x(row.due_s)),
                "height": LANE - 1,
            }
            parts.append(svg.make_element("rect", title, class_="critical" if late else f"stage fill{i % 7}", **box))
        y += LANE * LANES + 8
    parts += _bottom_axis(x, y, seconds_text, top=8.0)
    return svg.make_drawing("A second under load", y + 24, parts)


def draw_stages(rows: Sequence[tuple[str, float]]) -> Markup:
    """Return one bar of all stages, rows of name and seconds, by their share of the time."""
    whole = sum(seconds for _, seconds in rows) or 1.0
    parts: list[Markup] = []
    x = 0.0
    for i, (name, seconds) in enumerate(rows):
        width = svg.WIDTH * seconds / whole
        words = f"{name}: {seconds_text(seconds)}, {share_text(seconds / whole)}"
        shape = svg.make_element(
            "rect", svg.make_element("title", words), x=x, y=2.0, width=width, height=26.0, class_=f"stage fill{i % 7}"
        )
        parts.append(shape)
        if width > 8 * len(name):
            parts.append(svg.make_text(x + width / 2, 46, name, anchor="middle", kind="small"))
        x += width
    return svg.make_drawing("Time by stage", 52, parts)


def _draw_point(x: float, y: float, kind: str, words: str) -> Markup:
    return svg.make_element("circle", svg.make_element("title", words), cx=x, cy=y, r=4.5, class_=kind)


def _draw_key(i: int, words: str) -> list[Markup]:
    """Return the line of a curve, the i-th from above, beside what it shows."""
    at = 10.0 + 16 * i
    return [
        svg.make_line(90, at, 112, at, f"curve line{i % 7}"),
        svg.make_text(118, at + 4, words, kind="small"),
    ]


def _bottom_axis(scale: svg.Scale, y: float, write: Any, *, top: float) -> list[Markup]:
    parts = [svg.make_line(scale.begin, y, scale.end, y, "axis")]
    for tick in scale.ticks():
        parts.append(svg.make_line(scale(tick), top, scale(tick), y, "grid"))
        parts.append(svg.make_text(scale(tick), y + 15, write(tick), anchor="middle", kind="small"))
    return parts


def _left_axis(scale: svg.Scale, x: float, right: float, write: Any) -> list[Markup]:
    parts = [svg.make_line(x, scale.begin, x, scale.end, "axis")]
    for tick in scale.ticks(5):
        parts.append(svg.make_line(x, scale(tick), right, scale(tick), "grid"))
        parts.append(svg.make_text(x - 6, scale(tick) + 4, write(tick), anchor="end", kind="small"))
    return parts
