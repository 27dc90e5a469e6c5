"""What benchmarks compare, as intervals to draw: methods on a case over seeds, in a final, or over many graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suites.hsdag.pages import final_of, rows_in
from pipeline.bench.summary import geometric_mean
from pipeline.report.charts import ForestRow
from pipeline.report.comparison import DrawnComparison, interval_row

Table = Mapping[str, Any]

OVER_SEEDS = (
    "Time of the best single device over that of the method's placement: geometric mean over seeds, with a 95 % "
    "bootstrap interval over seeds where they differ. A hollow point has no interval."
)
OVER_MODELS = "The same, geometric mean over all models."
OF_FINAL = (
    "The best placement of every method against the best single device, start by start; all intervals hold at 95 %."
)
OVER_GRAPHS = (
    "The least value that any of these methods found for a graph over the method's: geometric mean over graphs, with a "
    "95 % bootstrap interval over graphs. Nothing is further right than 1. Rules differ: stages that are ordered or "
    "convex have fewer placements to choose from than free ones."
)
SINGLE = "best single device"


def picture_of(evaluator: str, name: str) -> str:
    """Return the name of the picture of a model, by the name or the path of the model.

    >>> picture_of("sequential", "models/my net.onnx")
    'intervals-sequential-my_net.svg'
    """
    return f"intervals-{evaluator}-{re.sub('[^A-Za-z0-9_.-]', '_', Path(name).stem)}.svg"


def comparisons_of_cases(document: Table) -> list[DrawnComparison]:
    """Return a comparison per case of a benchmark's document, its final where there is one, and one over all models."""
    comparisons = []
    for evaluator in dict.fromkeys(case["evaluator"] for case in document["cases"]):
        cases = [case for case in document["cases"] if case["evaluator"] == evaluator]
        if len(cases) > 1:
            means = [mean for mean in document["all_models"] if mean["evaluator"] == evaluator]
            comparisons.append(
                (picture_of(evaluator, "all"), f"All models, {evaluator}", f"{OVER_SEEDS} {OVER_MODELS}", means)
            )
        for case in cases:
            rows, about, final = rows_in(document, case), OVER_SEEDS, final_of(document, case)
            if final is not None:  # single short measurements prove nothing
                about = OF_FINAL
                rows = [{"method": m, "ratio": {**r, "median": r["ratio"]}} for m, r in final["ratios"].items()]
            comparisons.append((picture_of(evaluator, case["model"]), f"{case['model']}, {evaluator}", about, rows))
    return [
        DrawnComparison(file, title, about, SINGLE, drawn)
        for file, title, about, rows in comparisons
        if (drawn := tuple(_drawn_rows(rows)))
    ]


def _drawn_rows(rows: Sequence[Table]) -> Iterator[ForestRow]:
    """Yield what is drawn of rows of a method and a ratio, the greatest first."""
    known = sorted((row for row in rows if row["ratio"] is not None), key=lambda row: -float(row["ratio"]["median"]))
    for row in known:
        kind = "best" if row is known[0] else "baseline" if row["method"].startswith("single ") else "other"
        yield interval_row(row["method"], tuple(row["ratio"][key] for key in ("median", "low", "high")), kind)


def comparison_over_graphs(values: Mapping[str, Mapping[str, float]], *, evaluator: str) -> DrawnComparison | None:
    """Return how methods compare over graphs; None where none has a value.

    values: method -> graph -> seconds, those without a value left out.
    """
    best: dict[str, float] = {}
    for mine in values.values():
        for graph, value_s in mine.items():
            best[graph] = min(value_s, best.get(graph, value_s))
    rows = []
    for method, mine in values.items():
        if mine:
            mean = geometric_mean([np.array([best[graph] / value_s for graph, value_s in mine.items()])])
            name = method if len(mine) == len(best) else f"{method}, on {len(mine)} of {len(best)}"
            rows.append({"method": name, "ratio": {"median": mean.median, "low": mean.low, "high": mean.high}})
    if not rows:
        return None
    title = f"All graphs, {evaluator}"
    return DrawnComparison(
        picture_of(evaluator, "all"), title, OVER_GRAPHS, "best of all methods", tuple(_drawn_rows(rows))
    )
