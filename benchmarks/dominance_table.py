"""What the rows of the benchmark `dominance` say: ratios, summaries and tables."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.common import Figure, figure
from benchmarks.dominance_cells import size_stratum, strata
from benchmarks.dominance_runs import FRESH, PORTFOLIO, Row, Run, allowed_s

WORSE = 0.02  # share by which a member may be ahead before it counts
TARGET_PERCENT, WORST_PERCENT = 2.0, 10.0
SAME = 1e-9  # share within which two values are equal
NOTED = 60  # letters of a method's words that a table shows


class Outcome(NamedTuple):
    """What a method came to on a cell: its run with the first seed, and the mean value of all seeds, in seconds.

    The mean is inf where one of them found nothing, or its answer is at fault.
    """

    first: Run
    value_s: float
    seeds: int


class Comparison(NamedTuple):
    """The portfolio beside its members on one cell, each by the mean of its seeds.

    ratio: of its value over the best of theirs; inf where it has none and one of them does, 0 the other way round.
    """

    row: Row
    portfolio: Outcome
    best: Outcome | None
    ratio: float

    @property
    def infeasible(self) -> bool:
        """Return whether nobody found anything feasible."""
        return self.best is None and math.isinf(self.portfolio.value_s)


def outcomes(row: Row) -> dict[str, Outcome]:
    """Return {method: what it came to} of a row: by the fresh seeds alone, if the cell was run again."""
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in _fresh(row) or row.runs:
        by_name[run.method].append(run)
    return {
        name: Outcome(runs[0], statistics.fmean(run.counted_s for run in runs), len(runs))
        for name, runs in by_name.items()
    }


def _fresh(row: Row) -> list[Run]:
    return [run for run in row.runs if run.repeat >= FRESH]


def compared(row: Row) -> Comparison:
    """Return how the portfolio stands on a cell; a run that is at fault counts as none."""
    by_name = outcomes(row)
    portfolio = by_name.pop(PORTFOLIO)
    members = [outcome for outcome in by_name.values() if math.isfinite(outcome.value_s)]
    best = min(members, key=lambda outcome: outcome.value_s, default=None)
    return Comparison(row, portfolio, best, _ratio(portfolio.value_s, math.inf if best is None else best.value_s))


def _ratio(ours_s: float, theirs_s: float) -> float:
    if ours_s == theirs_s:
        return 1.0
    if math.isinf(ours_s) or theirs_s == 0:
        return math.inf
    return 0.0 if math.isinf(theirs_s) else ours_s / theirs_s


def wins(comparison: Comparison) -> tuple[str, ...]:
    """Return the members that reach the best member's value and beat the portfolio by more than 2 %."""
    if comparison.best is None or comparison.ratio <= 1 + WORSE:
        return ()
    limit_s = comparison.best.value_s * (1 + SAME)
    members = outcomes(comparison.row)
    return tuple(name for name, found in members.items() if name != PORTFOLIO and found.value_s <= limit_s)


def figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """Yield the share of cells on which the portfolio is worse, by how much at most, and how often it is late."""
    all_of_them = [compared(row) for row in rows]
    if not all_of_them:
        yield figure("dominance.worse_2pct", None, "%", "no cell was run", target=TARGET_PERCENT)
        return
    worse = [c for c in all_of_them if c.ratio > 1 + WORSE]
    infeasible = sum(c.infeasible for c in all_of_them)
    seemed = sum(1 for row in rows if _fresh(row))
    how = (
        f"{len(worse)} of {len(rows)} cells; {seemed} seemed so, and were run again with fresh seeds, which alone "
        f"count there; on {infeasible} nobody found anything feasible"
    )
    yield figure("dominance.worse_2pct", 100 * len(worse) / len(rows), "%", how, target=TARGET_PERCENT)
    worst = max(all_of_them, key=lambda c: c.ratio)
    excess = 100 * (worst.ratio - 1)
    by = "nobody" if worst.best is None else worst.best.first.method
    words = f"against {by} on {worst.row.cell.key}: {worst.row.cell.title}"
    if math.isinf(excess):
        words = (
            f"it had nothing feasible in time {words}" if math.isinf(worst.portfolio.value_s) else f"over 0 s {words}"
        )
    found = excess if math.isfinite(excess) else None
    yield figure("dominance.worst", found, "%", words, target=WORST_PERCENT)
    often = Counter(run.method for row in rows for run in row.runs if _late(row, run))
    how = "; ".join(f"{name}: {times}" for name, times in often.most_common()) or "no method was late"
    portfolios = sum(run.method == PORTFOLIO for row in rows for run in row.runs)
    share = 100 * often[PORTFOLIO] / portfolios
    yield figure("dominance.overran", share, "%", f"of the portfolio's runs are late; all methods: {how}")


def _late(row: Row, run: Run) -> bool:
    return run.late(row.cell.seconds)


def table(rows: Sequence[Row]) -> str:
    """Return everything that is known, as text: cells by ratio, strata, members, refusals and late methods."""
    comparisons = sorted(map(compared, rows), key=lambda c: -c.ratio)
    blocks = {
        "Cells, the worst first": _cells(comparisons),
        "By stratum": _strata(comparisons),
        "By member": _members(comparisons),
        "Cells on which nobody found anything feasible": [
            [c.row.cell.key, c.row.cell.title] for c in comparisons if c.infeasible
        ],
        "Methods that refused or failed": _refusals(rows),
        "Late: more than 10 % or 0.25 s over the limit": _overran(rows),
    }
    return "\n".join(f"## {title}\n\n{_lines(cells)}\n" for title, cells in blocks.items())


def _cells(comparisons: Sequence[Comparison]) -> list[list[str]]:
    head = [
        "cell",
        "n",
        "p",
        "limit",
        "portfolio",
        "by",
        "best member",
        "",
        "ratio",
        "seeds",
        "s",
        "s of it",
        "instance",
    ]
    lines = [head]
    for c in comparisons:
        row, best, first = c.row, c.best, c.portfolio.first
        lines.append(
            [
                row.cell.key,
                str(row.instance.n),
                str(row.instance.p),
                f"{row.cell.seconds:g}",
                _ms(c.portfolio.value_s),
                first.found_by + ("!" if first.failed and first.value_s is not None else ""),
                "-" if best is None else best.first.method,
                "-" if best is None else _ms(best.value_s),
                f"{c.ratio:.4f}",
                str(c.portfolio.seeds),
                f"{first.seconds:.2f}",
                "-" if best is None else f"{best.first.seconds:.2f}",
                row.cell.title,
            ]
        )
    return lines


def _strata(comparisons: Sequence[Comparison]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for c in comparisons:
        here = {**strata(c.row.cell), "operations": size_stratum(c.row.instance.n), "devices": str(c.row.instance.p)}
        for key, value in here.items():
            groups[key, value].append(c.ratio)
    lines = [["property", "value", "cells", "worse by 2 %", "worst ratio", "median ratio"]]
    for (key, value), ratios in sorted(groups.items()):
        worse = sum(ratio > 1 + WORSE for ratio in ratios)
        summary = [str(len(ratios)), str(worse), f"{max(ratios):.4f}", f"{statistics.median(ratios):.4f}"]
        lines.append([key, value, *summary])
    return lines


def _members(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Return how often each member ran, was the best of them, and was ahead of the portfolio by more than 2 %."""
    ran = Counter(name for c in comparisons for name in {run.method for run in c.row.runs} - {PORTFOLIO})
    best = Counter(c.best.first.method for c in comparisons if c.best is not None)
    ahead = Counter(name for c in comparisons for name in wins(c))
    order = sorted(ran, key=lambda name: (-ahead[name], -best[name], name))
    head = ["member", "cells", "best member", "ahead of the portfolio by 2 %"]
    return [head, *([name, str(ran[name]), str(best[name]), str(ahead[name])] for name in order)]


def _refusals(rows: Sequence[Row]) -> list[list[str]]:
    said: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        for run in row.runs:
            if run.failed:
                said[run.method, run.failed].append(row.cell.key)
    lines = [[name, str(len(keys)), " ".join(keys[:4]), words[:NOTED]] for (name, words), keys in sorted(said.items())]
    return [["method", "cells", "such as", "what it said"], *lines] if lines else []


def _overran(rows: Sequence[Row]) -> list[list[str]]:
    late = [(row, run) for row in rows for run in row.runs if _late(row, run)]
    late.sort(key=lambda pair: (pair[1].method != PORTFOLIO, -pair[1].seconds / pair[0].cell.seconds))
    lines = [
        [
            run.method + (" (stopped)" if run.stopped else ""),
            row.cell.key,
            str(row.instance.n),
            str(row.instance.p),
            row.cell.model,
            f"{row.cell.seconds:g}",
            f"{run.seconds:.2f}",
            f"{allowed_s(row.cell.seconds):g}",
        ]
        for row, run in late
    ]
    return [["method", "cell", "n", "p", "model", "limit", "took", "allowed"], *lines] if lines else []


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.6g} ms" if math.isfinite(seconds) else "-"


def _lines(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of cells with columns of equal width."""
    if not cells:
        return "none"
    width = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(f"{cell:{w}}" for cell, w in zip(row, width, strict=True)).rstrip() for row in cells)
