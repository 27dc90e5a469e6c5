"""How long tuning takes beside its budget, on a model of which one inference takes about a second.

python -m benchmarks.deadlines [budget in seconds ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

from benchmarks.common import Figure, figure, say, timed
from benchmarks.usual_settings import tuned
from coarsen.reading.model.read import save_model
from pipeline.core.errors import UsageError

BUDGETS_S = (10.0, 30.0, 90.0)
SIZE = 2048
LAYERS = 3
ALLOWED = 1.1  # times the budget, and so many seconds more:
BEYOND_S = 5.0


def figures(*budgets_s: float) -> Iterator[Figure]:
    """Yield the seconds of tuning a slow model within each budget, from an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slow.xml"
        save_model(slow_model(), path)
        for budget_s in budgets_s or BUDGETS_S:
            place = Path(folder) / f"{budget_s:g}"
            place.mkdir()
            spent_s, told = timed(lambda place=place, budget_s=budget_s: answer(path, place, budget_s))  # type: ignore[misc]
            how = f"--budget {budget_s:g}s; {told}"
            target = ALLOWED * budget_s + BEYOND_S
            yield figure(f"deadlines.slow.{budget_s:g}", spent_s, "s", how, target=target)


def answer(path: Path, place: Path, budget_s: float) -> str:
    """Return the verdict of tuning, or what is said of a budget that is too small."""
    try:
        return tuned(path, place, "latency", budget_s).verdict
    except UsageError as error:
        return f"{error}"


def slow_model() -> ov.Model:
    """Return a chain of large matrix products, with weights that make up little of the time."""
    rng = np.random.default_rng(0)
    x = op.parameter([2 * SIZE, SIZE], np.float32, name="x")
    y = x
    for i in range(LAYERS):
        weights = op.constant(rng.normal(scale=SIZE**-0.5, size=(SIZE, SIZE)).astype(np.float32))
        y = op.relu(op.matmul(y, weights, transpose_a=False, transpose_b=False, name=f"product {i}"))
    return ov.Model([op.result(y)], [x], "slow")


if __name__ == "__main__":
    say(figures(*map(float, sys.argv[1:])))
