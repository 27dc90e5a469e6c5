"""What starts of a gate say, where the truth is known."""

from __future__ import annotations

import math

import pytest

from benchmarks.gate_claims import BAD, BUSY, QUIET, TWO_STATES, found_by
from pipeline.gate.gate_file import LEAST
from pipeline.gate.judge import Found, judge_figure
from pipeline.gate.starts import GateStart

VALUES = ({"latency": 1.0}, {"latency": 1.1})


def starts_of(after: list[float], twin: list[float]) -> list[GateStart]:
    """Return starts whose side after takes, and whose twin takes, so many times as long as the side before."""
    pairs = zip(after, twin, strict=True)
    return [GateStart({"latency": -math.log(a)}, {"latency": -math.log(t)}, VALUES, 1.0) for a, t in pairs]


@pytest.mark.parametrize(
    ("after", "twin", "limit", "found"),
    [
        ([1.10, 1.11, 1.09, 1.10], [1.0, 1.001, 0.999, 1.0], LEAST, "slower"),
        ([1.10, 1.11, 1.09, 1.10], [1.0, 1.001, 0.999, 1.0], 0.2, "same"),  # within what it may lose
        ([0.90, 0.91, 0.89, 0.90], [1.0, 1.001, 0.999, 1.0], LEAST, "faster"),
        ([1.001, 0.999, 1.0, 1.0], [1.0, 1.001, 0.999, 1.0], LEAST, "same"),
        ([1.010, 1.011, 1.009, 1.010], [1.0, 1.001, 0.999, 1.0], LEAST, "same"),
        ([1.10, 1.11], [1.0, 1.0], LEAST, "undecided"),  # two starts are no evidence
        ([1.04, 1.05, 1.06, 1.05], [1.07, 1.08, 0.93, 0.92], LEAST, "undecided"),  # the twin seems to differ by more
    ],
)
def test_a_claim_takes_starts_an_interval_an_effect_and_a_quiet_twin(
    after: list[float], twin: list[float], limit: float, found: Found
) -> None:
    record = judge_figure(starts_of(after, twin), "latency", limit, claims=1, looks=2)
    assert record is not None
    assert record.found == found
    assert record.ratio is not None
    assert record.ratio.ratio == pytest.approx(math.prod(after) ** (1 / len(after)))
    assert record.ratio.low < record.ratio.ratio < record.ratio.high


@pytest.mark.parametrize(
    ("after", "times"),
    [
        ([1.045, 1.055, 1.025, 1.075, 1.05, 1.05, 1.0, 1.1], None),  # told already
        ([1.02, 1.08, 0.96, 1.14], (2, 8)),
        ([1.03, 0.98, 1.03, 0.97], (4, 20)),  # 1 of which is within the limits
        ([1.02, 1.06, 0.98, 1.02], None),  # at the limit: no number of starts
    ],
)
def test_how_many_starts_would_tell(after: list[float], times: tuple[float, float] | None) -> None:
    starts = starts_of(after, [1.0] * len(after))
    figure = judge_figure(starts, "latency", LEAST, claims=1, looks=1)
    assert figure is not None
    if times is None:
        assert figure.times_to_tell is None
        return
    assert figure.times_to_tell is not None
    assert times[0] < figure.times_to_tell < times[1]
    assert figure.found == "undecided"
    more = judge_figure(starts * math.ceil(figure.times_to_tell), "latency", LEAST, claims=1, looks=1)
    assert more is not None
    assert more.found != "undecided"


def test_more_claims_widen_the_interval() -> None:
    starts = starts_of([1.10, 1.11, 1.09, 1.10], [1.0, 1.001, 0.999, 1.0])
    one, many = (judge_figure(starts, "latency", LEAST, claims=n, looks=2) for n in (1, 20))
    assert one is not None
    assert one.ratio is not None
    assert many is not None
    assert many.ratio is not None
    assert many.ratio.low < one.ratio.low < one.ratio.high < many.ratio.high


def test_a_figure_that_no_start_has_is_not_told() -> None:
    assert judge_figure(starts_of([1.0], [1.0]), "p99", None, claims=1, looks=2) is None


@pytest.mark.parametrize("kind", [QUIET, BUSY, BAD, TWO_STATES])
def test_equal_sides_are_seldom_said_to_differ(kind: str) -> None:
    said = [found_by(kind, seed, 0.0, models=1, seconds=60.0) for seed in range(40)]
    assert sum(found in ("slower", "faster") for found in said) <= 2  # 5 % of 40


def test_a_true_slowdown_is_found_within_a_minute() -> None:
    said = [found_by(QUIET, seed, 0.05, models=10, seconds=60.0) for seed in range(20)]
    assert said.count("slower") >= 18
