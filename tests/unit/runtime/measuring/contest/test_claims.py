"""What may be claimed of starts: exact intervals, levels that hold for many together, the twin's noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from runtime.measuring.contest.statistics import (
    TWIN,
    Rules,
    Spread,
    judge_starts,
    mean_interval,
    quantile_interval,
    unpaired_ratio,
)

RULES = Rules()


def drawn(means: dict[str, float], *, sd: float, starts: int, seed: int) -> dict[str, list[float]]:
    """Return log ratios of starts: half of their variance is the control's own, which all of a start share."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, sd / math.sqrt(2), starts)
    return {
        name: (mean + shared + rng.normal(0, sd / math.sqrt(2), starts)).tolist()
        for name, mean in {TWIN: 0.0, **means}.items()
    }


def test_students_interval_is_that_of_the_tables() -> None:
    values = [0.1, 0.3, 0.2, 0.6]
    expected = stats.t.interval(0.9, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values, 0.9) == pytest.approx((0.3, *expected))
    assert mean_interval([0.5], 0.95) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(("n", "ends"), [(5, None), (6, (1, 6)), (9, (2, 8)), (20, (6, 15)), (100, (40, 61))])
def test_the_interval_of_a_median_lies_between_the_order_statistics_of_the_tables(
    n: int, ends: tuple[int, int] | None
) -> None:
    assert quantile_interval(list(range(1, n + 1)), 0.5, 0.95) == ends


def test_the_interval_of_a_median_covers_it_at_its_level() -> None:
    rng = np.random.default_rng(0)
    intervals = [quantile_interval(rng.exponential(size=15).tolist(), 0.5, 0.9) for _ in range(2000)]
    covered = np.mean([i is not None and i[0] <= math.log(2) <= i[1] for i in intervals])
    assert 0.9 <= covered <= 0.97


def test_few_samples_tell_nothing_of_a_far_quantile() -> None:
    assert quantile_interval(list(range(100)), 0.99, 0.95) is None
    assert quantile_interval(list(range(1000)), 0.99, 0.95) is not None


def test_a_gain_well_beyond_the_noise_is_claimed_and_the_fastest_comes_first() -> None:
    found = judge_starts(drawn({"a": 0.1, "b": 0.3, "c": 0.0}, sd=0.01, starts=6, seed=0), RULES, contenders=3)
    assert found.claimed == ("b", "a")
    assert found.ratios["b"].ratio == pytest.approx(math.exp(0.3), rel=0.02)
    assert found.ratios["b"].low < found.ratios["b"].ratio < found.ratios["b"].high


def test_a_gain_below_the_least_effect_is_no_claim_however_certain() -> None:
    starts = {TWIN: [1e-5, -1e-5, 0.0, 2e-5], "a": [0.01, 0.0101, 0.0099, 0.01]}
    assert judge_starts(starts, RULES, contenders=1).claimed == ()
    assert judge_starts(starts, Rules(least=0.005), contenders=1).claimed == ("a",)


def test_a_gain_within_what_the_twin_shows_is_no_claim() -> None:
    gain = [0.03, 0.031, 0.029, 0.03, 0.03]
    assert judge_starts({TWIN: [0.0, 0.001, -0.001, 0.0, 0.0], "a": gain}, RULES, contenders=1).claimed == ("a",)
    noisy = judge_starts({TWIN: [0.05, -0.05, 0.04, -0.04, 0.0], "a": gain}, RULES, contenders=1)
    assert noisy.claimed == ()
    assert noisy.noise > 0.04


def test_a_twin_that_seems_slower_shows_as_much_noise_as_one_that_seems_faster() -> None:
    twin, gain = [0.05, 0.03, 0.06, 0.04], [0.05, 0.051, 0.049, 0.05]
    faster, slower = (judge_starts({TWIN: [s * x for x in twin], "a": gain}, RULES, contenders=1) for s in (1, -1))
    assert 0.05 < slower.noise == pytest.approx(faster.noise)
    assert slower.claimed == faster.claimed == ()


def test_a_twin_that_differs_from_itself_for_certain_disturbs() -> None:
    twin = [0.05, 0.051, 0.049, 0.05]
    small, large = [0.052, 0.053, 0.051, 0.052], [0.5, 0.51, 0.49, 0.5]
    found = judge_starts({TWIN: twin, "small": small, "large": large}, RULES, contenders=2)
    assert found.disturbed
    assert found.claimed == ("large",)
    unsure = [0.07, 0.06, 0.09, 0.08]  # its mean is beyond what the twin shows, its lower end is not
    found = judge_starts({TWIN: twin, "unsure": unsure}, RULES, contenders=1)
    assert 1 < found.ratios["unsure"].low < math.exp(found.noise) < found.ratios["unsure"].ratio
    assert (found.disturbed, found.claimed, found.open) == (True, (), ("unsure",))


def test_a_gain_over_the_control_alone_is_no_claim_where_another_baseline_is_as_fast() -> None:
    gain, none = [0.1, 0.101, 0.099, 0.1], [0.0, 0.001, -0.001, 0.0]
    starts = {TWIN: none, "a": gain, "b": gain, "default": gain}
    over = {"default": {TWIN: none, "a": none, "b": gain}}
    assert judge_starts(starts, RULES, contenders=2).claimed == ("a", "b", "default")
    found = judge_starts(starts, RULES, contenders=2, over=over)
    assert found.claimed == ("b", "default")  # of which the last is a baseline itself
    assert found.open == ()
    few = judge_starts(starts, RULES, contenders=2, over={"default": {**over["default"], "b": gain[:2]}})
    assert (few.claimed, few.open) == (("default",), ("b",))


def test_nothing_is_claimed_of_fewer_starts_than_are_asked_for() -> None:
    found = judge_starts({TWIN: [0.0, 0.0], "a": [0.5, 0.5]}, RULES, contenders=1)
    assert (found.claimed, found.open, found.noise) == ((), ("a",), math.inf)


def test_what_cannot_gain_enough_any_more_is_not_open() -> None:
    starts = {TWIN: [0.0] * 4, "same": [0.0, 0.001, -0.001, 0.0], "perhaps": [0.02, 0.021, 0.018, 0.019]}
    assert judge_starts(starts, RULES, contenders=2).open == ("perhaps",)


def test_a_claim_beside_many_others_needs_more_than_one_alone() -> None:
    starts = {TWIN: [0.0, 0.001, -0.001, 0.0], "a": [0.02, 0.06, 0.05, 0.04]}
    assert judge_starts(starts, RULES, contenders=1, looks=1).claimed == ("a",)
    assert judge_starts(starts, RULES, contenders=10).claimed == ()


@pytest.mark.parametrize("sd", [0.005, 0.015, 0.03])
def test_identical_variants_are_claimed_no_more_often_than_the_level_says(sd: float) -> None:
    means = dict.fromkeys("abcd", 0.0)
    claims = [
        bool(judge_starts(drawn(means, sd=sd, starts=6, seed=i), RULES, contenders=4).claimed) for i in range(1000)
    ]
    assert np.mean(claims) <= 0.05


def test_without_the_twin_and_the_least_effect_the_level_still_holds() -> None:
    bare = Rules(least=0.0)
    claims = 0
    for i in range(1500):
        starts = drawn(dict.fromkeys("abcd", 0.0), sd=0.02, starts=6, seed=i)
        starts[TWIN] = [1e-12, -1e-12] * 3
        claims += bool(judge_starts(starts, bare, contenders=4, looks=1).claimed)
    assert 0.005 < claims / 1500 <= 0.05  # one side of the interval counts: half of the level at most, and shared noise


def test_a_true_gain_of_five_percent_is_found() -> None:
    means = {"a": math.log(1.05), "b": 0.0, "c": 0.0, "d": -0.05}
    found = [
        "a" in judge_starts(drawn(means, sd=0.015, starts=8, seed=i), RULES, contenders=4).claimed for i in range(300)
    ]
    assert np.mean(found) >= 0.95


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"least": -0.1}, {"least_starts": 1}])
def test_rules_that_decide_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot be decided by"):
        Rules(**wrong)  # type: ignore[arg-type]


def test_the_ratio_of_two_runs_is_welchs() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = np.exp(rng.normal(0.2, 0.1, 8)), np.exp(rng.normal(0.0, 0.02, 5))
    expected = stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(0.95)
    found = unpaired_ratio(ours.tolist(), theirs.tolist(), 0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert (found.low < found.ratio < found.high, found.starts) == (True, 5)
    steady = unpaired_ratio([2.0, 2.0], [1.0, 1.0], 0.95)
    assert (steady.low, steady.ratio, steady.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_spread_is_pooled_over_variants_and_one_that_scatters_more_keeps_its_own() -> None:
    calm, wild = [0.01, -0.01, 0.0], [0.3, -0.3, 0.0]
    found = Spread.of([calm, calm, calm, wild])
    assert found.sd == pytest.approx(math.sqrt((3 * 1e-4 + 0.09) / 4))
    assert found.freedom == pytest.approx(8 / (1 + 3 * 0.25))
    _, low, high = found.interval(wild, 0.95)
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, found.freedom) * 0.3 / math.sqrt(3))
    _, low, high = found.interval(calm, 0.95)
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, found.freedom) * found.sd / math.sqrt(3))
    assert Spread.of([]).interval([0.1], 0.95) == (0.1, -math.inf, math.inf)


def test_a_few_starts_of_several_variants_claim_what_each_alone_could_not() -> None:
    ours = {TWIN: [0.0, 0.01, -0.01], "a": [0.028, 0.038, 0.018]}
    others = {"b": [-0.01, 0.0, 0.01], "c": [0.01, -0.01, 0.0], "d": [0.0, -0.01, 0.01]}
    assert judge_starts(ours | others, RULES, contenders=4).claimed == ("a",)
    assert judge_starts(ours, RULES, contenders=4).claimed == ()


def test_a_variant_that_scatters_more_than_the_others_makes_no_more_false_claims() -> None:
    claims = 0
    for i in range(600):
        starts = drawn(dict.fromkeys("abc", 0.0), sd=0.01, starts=5, seed=i)
        starts["wild"] = np.random.default_rng([i, 1]).normal(0, 0.06, 5).tolist()
        claims += bool(judge_starts(starts, RULES, contenders=4).claimed)
    assert claims <= 0.05 * 600
