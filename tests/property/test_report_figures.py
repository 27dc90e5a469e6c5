"""Whatever figures a run has, zero, endless or missing, its page is whole."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.report.charts import draw_curves
from pipeline.report.run import RunRecords
from pipeline.report.run_page import page_of
from pipeline.report.svg import scale_over
from pipeline.result.records import CandidateRecord, FailureRecord
from tests.reports import Page, finished

figure = st.one_of(st.sampled_from((0.0, 1e-12, 1.0, 1e9)), st.floats(1e-9, 1e6))
maybe = st.none() | figure
latency = st.builds(LatencyEstimate, figure, maybe, maybe)
NAMES = ("CPU default", "greedy 1", "A", "twin of the baseline", "<b>")


@cache
def example() -> RunRecords:
    with TemporaryDirectory() as folder:
        return RunRecords.load(finished(Path(folder) / "run"))


@st.composite
def candidates(draw: st.DrawFn) -> list[CandidateRecord]:
    """Draw candidates; the first is the answer."""
    rows = []
    for name in draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]:
        told: dict[str, Any] = {
            "latency_s": draw(st.none() | latency),
            "times_as_fast": draw(maybe),
            "rate": draw(maybe),
            "percentiles": draw(st.dictionaries(st.sampled_from(("50", "90", "99")), figure)),
            "peak_bytes": draw(st.none() | st.integers(0, 1 << 40)),
            "compile_s": draw(maybe),
            "difference": draw(maybe),
            "cpu_s": draw(maybe),
            "shares": draw(st.dictionaries(st.sampled_from("AB"), st.floats(0, 1))),
            "failed": draw(st.none() | st.just(FailureRecord("timeout", "no answer"))),
        }
        rows.append(CandidateRecord(name, "greedy", draw(st.booleans()), draw(st.booleans()), [], None, **told))
    return rows


@st.composite
def runs(draw: st.DrawFn) -> RunRecords:
    """Draw a run of these candidates, with samples of some."""
    run, rows = example(), draw(candidates())
    ends = st.sampled_from((0.0, 1e-300, 0.5, 1.0, 2.0, float("inf")))
    ratios = {r.name: RatioEstimate(draw(figure), draw(ends), draw(ends), 3) for r in rows if draw(st.booleans())}
    contest = None
    if draw(st.booleans()) and run.result.contest is not None:
        contest = replace(run.result.contest, control=rows[-1].name, ratios=ratios, noise=draw(maybe))
    result = replace(run.result, candidates=rows, best=rows[0].name, contest=contest)
    samples = {r.name: np.full(30, draw(figure)) for r in rows if draw(st.booleans())}
    return replace(run, result=result, samples=samples)


@settings(max_examples=10, phases=(Phase.generate,))
@given(runs())
def test_a_page_is_whole_whatever_the_figures_are(run: RunRecords) -> None:
    found = Page(page_of(run))
    assert found.inside == []
    assert run.best.name in found.text
    numbers = [v for tag, a in found.tags if tag in ("line", "circle", "rect", "text") for v in a.values()]
    assert not {"nan", "inf", "-inf"} & set(numbers)


@given(st.lists(figure, max_size=6), st.booleans())
def test_every_value_has_a_place_between_the_ends_and_ticks_too(values: list[float], log: bool) -> None:
    scale = scale_over(values, 10.0, 90.0, log=log)
    known = [v for v in values if v > 0 or not log]
    assert all(8.0 <= scale(v) <= 92.0 for v in known)  # what is too small to be seen stands at the end
    assert all(9.99 <= scale(t) <= 90.01 for t in scale.ticks())  # a hundredth of a pixel is nothing
    assert len(scale.ticks()) <= 12


rows = st.fixed_dictionaries(
    {"placer": st.sampled_from("ab"), "done": st.integers(0, 10), "value_s": maybe, "single_s": maybe, "bound_s": maybe}
)


@given(st.lists(rows, max_size=8))
def test_curves_are_drawn_whatever_placers_told(told: list[dict[str, Any]]) -> None:
    drawn = draw_curves(told)
    assert (drawn is None) == all(row["value_s"] is None for row in told)
    assert "nan" not in str(drawn)
