"""A user's own measure of what outputs are worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.accuracy import Accuracy
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.checks import FACTS, REFERENCE, ReferenceFacts, save_by_kind
from pipeline.shared.model_inputs import GIVEN_KIND, TIMED
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.outputs.quality import (
    accept_outputs,
    compared_kinds,
    limits_for,
    load_metric,
    metric_loss,
    most_allowed,
    reference_beside,
    why_only_full,
)

TOP = "def right(outputs): return float((outputs['output_0'].argmax(axis=1) == [0, 1]).mean())\n"
EXPECTED = {TIMED: {"output_0": np.array([[2.0, 1.0], [1.0, 2.0]])}}
OTHER = {TIMED: {"output_0": np.array([[9.0, 1.0], [3.0, 9.0]])}}  # far off as numbers, and the same answers
WRONG = {TIMED: {"output_0": np.array([[2.0, 1.0], [2.1, 2.0]])}}  # near, and one answer differs
F32, BF16 = {"CPU": "f32"}, {"CPU": "bf16"}
USUAL = MeasureSettings()
RNG = np.random.default_rng(0)


@pytest.fixture
def settings(tmp_path: Path) -> MeasureSettings:
    (tmp_path / "quality.py").write_text(TOP)
    return MeasureSettings(metric=f"{tmp_path / 'quality.py'}:right")


def judged(
    actual: Any, expected: Any, precisions: Any = BF16, settings: MeasureSettings = USUAL, **more: Any
) -> Accuracy | MeasurementFailed:
    return accept_outputs(actual, Reference(expected, **more), precisions, settings)


def right(*args: Any, **more: Any) -> Accuracy:
    """Return the accuracy of outputs that are accepted."""
    found = judged(*args, **more)
    assert isinstance(found, Accuracy), found
    return found


def why_not(*args: Any, **more: Any) -> str:
    """Return why outputs are not accepted."""
    found = judged(*args, **more)
    assert isinstance(found, MeasurementFailed)
    assert found.kind == "wrong_output"
    return found.message


def test_with_a_metric_quality_counts_and_not_the_distance(settings: MeasureSettings) -> None:
    assert right(OTHER, EXPECTED, BF16, settings).worst == 0.0
    assert why_not(WRONG, EXPECTED, F32, settings) == "right falls by 50 % from the reference (1 % allowed)"
    assert right(WRONG, EXPECTED, F32, replace(settings, metric_drop=0.5)).worst == 0.5
    assert metric_loss(EXPECTED, WRONG, settings) == 0.0  # better than the reference is no loss


def test_without_one_the_distance_counts() -> None:
    assert why_not(OTHER, EXPECTED, F32).startswith("outputs differ by 319 % from the reference (0.1 % allowed")
    assert right(WRONG, EXPECTED, BF16, MeasureSettings(low_tolerance=0.5)).worst == pytest.approx(0.348, 0.01)


def test_what_a_negative_quality_loses_is_a_share_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def m(outputs): return -float(outputs['output_0'][0, 0])\n")
    settings = MeasureSettings(metric=f"{tmp_path / 'm.py'}:m")
    worse, better = ({TIMED: {"output_0": np.array([[value, 1.0], [1.0, 2.0]])}} for value in (3.0, 1.0))
    assert (metric_loss(worse, EXPECTED, settings), metric_loss(better, EXPECTED, settings)) == (0.5, 0.0)  # of -2


def test_one_device_of_low_precision_makes_the_tolerance_that_of_low_precisions() -> None:
    settings = MeasureSettings(tolerance=0.1, low_tolerance=0.5)
    found = [judged(WRONG, EXPECTED, {"A": "f32", "B": other}, settings) for other in ("f32", "bf16")]
    assert [isinstance(each, MeasurementFailed) for each in found] == [True, False]


def test_the_accuracy_asked_for_says_what_low_precisions_may_differ_by(settings: MeasureSettings) -> None:
    reference = Reference({GIVEN_KIND: EXPECTED[TIMED]})
    levels = [MeasureSettings(accuracy=level) for level in ("strict", "usual", "loose")]
    assert [limits_for(BF16, reference, each).output for each in levels] == [0.001, 0.05, 0.2]
    assert [limits_for(BF16, Reference(EXPECTED), each).output for each in levels] == pytest.approx([0.001, 0.04, 0.16])
    assert {limits_for(F32, reference, each).output for each in levels} == {0.001}
    assert limits_for(BF16, reference, MeasureSettings(accuracy="loose", low_tolerance=0.0)).output == 0.0
    assert [most_allowed(reference, each) for each in (settings, *levels)] == [0.01, 0.001, 0.05, 0.2]
    assert limits_for(F32, Reference(EXPECTED, ("conv",)), levels[0]).output == 0.01  # int8 is rounded by any runtime


def test_rows_that_are_chosen_are_as_f32_gives_them_until_a_user_says_otherwise(tmp_path: Path) -> None:
    save_by_kind(tmp_path / REFERENCE, EXPECTED)
    assert reference_beside(tmp_path).chosen == ()
    (tmp_path / FACTS).write_text(json.dumps(asdict(ReferenceFacts(chosen=["output_0"]))))
    reference = reference_beside(tmp_path)
    assert "the rows of output_0" in why_only_full(reference, USUAL)
    assert "give --input" in why_only_full(reference, MeasureSettings(accuracy="strict"))
    assert limits_for(BF16, reference, USUAL).output == 0.001
    others = [replace(USUAL, accuracy="loose"), replace(USUAL, low_tolerance=0.05), replace(USUAL, metric="m.py:m")]
    assert {why_only_full(reference, each) for each in others} == {""}
    given = replace(reference, outputs={GIVEN_KIND: EXPECTED[TIMED]})
    assert (why_only_full(given, USUAL), limits_for(BF16, given, USUAL).output) == ("", 0.05)


def test_outputs_that_cannot_be_compared_have_no_quality(settings: MeasureSettings) -> None:
    assert "shape" in why_not({TIMED: {"output_0": np.zeros((2, 3))}}, EXPECTED, F32, settings)


def test_a_metric_that_is_no_number_loses_everything(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def m(outputs): return outputs['output_0'][0, 0]\n")
    settings = MeasureSettings(metric=f"{tmp_path / 'm.py'}:m")
    assert metric_loss({TIMED: {"output_0": np.array([[math.nan, 1.0], [1.0, 2.0]])}}, EXPECTED, settings) == math.inf


def of(**kinds: Any) -> dict[str, dict[str, Any]]:
    """Return outputs by kind of inputs, of one output."""
    return {kind: {"output_0": np.asarray(array)} for kind, array in kinds.items()}


def test_a_transcription_that_is_near_on_noise_and_flips_decisions_on_a_chord_is_refused() -> None:
    noise = RNG.uniform(0.0, 0.3, (1, 172, 88))
    chord = np.where(RNG.uniform(size=noise.shape) < 0.04, 0.7, 0.02)
    expected = of(noise=noise, smooth=chord)
    blurred = chord.copy()
    sounding = np.argwhere(chord > 0.5)[:230]
    blurred[tuple(sounding.T)] = 0.42
    found = of(noise=noise * 1.036, smooth=blurred)
    assert right(of(noise=noise * 1.036), expected).difference == pytest.approx(0.036)  # all that noise tells
    message = why_not(found, expected)
    assert message.startswith("outputs differ by ")
    assert message.endswith("on smooth)")
    loose = replace(MeasureSettings(), low_tolerance=0.3)
    accuracy = right(found, expected, BF16, replace(loose, accuracy="loose"))
    assert (accuracy.flips, accuracy.kind, accuracy.kinds) == (230, "smooth", ("noise", "smooth"))
    assert 0.15 < (accuracy.difference or 0.0) < 0.3
    near_half = of(smooth=np.where(chord > 0.5, 0.501, 0.02))
    flipped = near_half["smooth"]["output_0"].copy()
    flipped[tuple(sounding.T)] = 0.499
    message = why_not(of(smooth=flipped), near_half)
    assert message.startswith("230 of ")
    assert message.endswith(" decisions flip (8 % allowed; output_0 on smooth)")


def test_scores_of_a_detector_count_beside_its_coordinates() -> None:
    boxes = np.concatenate([RNG.uniform(50, 600, (1, 100, 4)), RNG.uniform(0.0, 1.0, (1, 100, 1))], axis=2)
    found, expected = of(noise=boxes * np.array([1.0024] * 4 + [1.03])), of(noise=boxes)
    accuracy = right(found, expected)
    assert accuracy.difference == pytest.approx(0.03)
    assert accuracy.channel == "output_0[4]"
    boxes[..., 4] *= 0.4  # no detection
    message = why_not(of(noise=boxes * np.array([1.0024] * 4 + [1.03])), of(noise=boxes), F32)
    assert message == "outputs differ by 3 % from the reference (0.1 % allowed; output_0 on noise)"


def test_one_class_of_128_that_differs_is_told_as_it_is() -> None:
    classes = RNG.integers(0, 40, (1, 128))
    other = classes.copy()
    other[0, 5] += 1
    assert right(of(noise=other), of(noise=classes)).worst == 1 / 128
    message = why_not(of(noise=other), of(noise=classes), F32)
    assert message == "0.781 % of the entries differ (0.2 % allowed; output_0 on noise)"


def test_zeros_make_ties_so_that_indices_do_not_count_on_them() -> None:
    classes = np.arange(64)
    assert right(of(noise=classes, zeros=classes[::-1]), of(noise=classes, zeros=classes), F32).indices == 1.0
    values = of(noise=np.ones(8), zeros=np.ones(8))
    assert "on zeros" in why_not(of(noise=np.ones(8), zeros=2 * np.ones(8)), values)


def test_offsets_that_zeros_leave_are_measured_against_what_the_output_is_elsewhere() -> None:
    values = RNG.standard_normal((1, 4, 64))
    expected = of(noise=values, zeros=0.02 * values)
    assert right(of(noise=values, zeros=0.022 * values), expected).difference == pytest.approx(0.002, 0.1)


def test_a_kind_that_makes_the_reference_nan_tells_nothing() -> None:
    expected = of(noise=np.ones(4), zeros=np.full(4, np.nan))
    assert right(of(noise=np.ones(4), zeros=np.zeros(4)), expected).difference == 0.0
    first = of(noise=np.full(4, np.nan), zeros=np.ones(4))
    assert right(of(noise=np.zeros(4), zeros=np.ones(4)), first).difference == 0.0
    assert "on zeros" in why_not(of(noise=np.zeros(4), zeros=np.full(4, 2.0)), first)
    every = of(noise=np.full(4, np.nan), zeros=np.full(4, np.nan))
    assert "infinitely" in why_not(of(noise=np.zeros(4), zeros=np.full(4, np.nan)), every)
    assert "infinitely" in why_not(of(noise=np.zeros(4)), of(noise=np.full(4, np.nan)))


def test_few_decisions_do_not_count_and_are_told() -> None:
    logits = RNG.standard_normal((1, 1000))
    flipped = logits.copy()
    second = int(np.argsort(logits[0])[-2])
    flipped[0, second] = logits.max() + 1e-3
    accuracy = right(of(noise=flipped), of(noise=logits))
    assert (accuracy.flips, accuracy.decisions, accuracy.flip_share) == (1, 1, 0.0)


def test_rows_without_a_match_have_a_limit_of_their_own() -> None:
    boxes = RNG.uniform(0, 100, (20, 4))
    fewer = np.delete(boxes, 5, axis=0)
    assert right(of(noise=fewer), of(noise=boxes)).rows == 0.05
    assert (
        why_not(of(noise=fewer), of(noise=boxes), F32)
        == "5 % of the rows have no match (0.4 % allowed; output_0 on noise)"
    )


def test_nearer_to_the_float_model_than_its_quantised_self_is_right() -> None:
    floats = RNG.standard_normal((1, 4, 64))
    error = RNG.standard_normal(floats.shape)
    reference = {"expected": of(noise=floats + 0.08 * error), "exact": of(noise=floats)}
    nearer = of(noise=floats + 0.001 * error)
    accuracy = right(nearer, **reference)
    assert accuracy.difference == pytest.approx(0.08, 0.1)
    assert accuracy.from_float == pytest.approx(0.001, 0.1)
    assert accuracy.reference_from_float == pytest.approx(0.08, 0.1)
    assert "allowed" in why_not(nearer, of(noise=floats + 0.08 * error))  # which only the float outputs tell
    assert "allowed" in why_not(of(noise=floats - 0.3 * error), **reference)
    assert accuracy.rule.endswith("as rounding moves the reference")
    beyond = right(of(noise=floats - 0.05 * error), **reference)
    assert beyond.rule == "about as near to the model in float as the reference"
    assert not right(nearer, **reference, precisions=F32).exact


def test_what_a_tiny_change_of_the_inputs_does_is_allowed_besides() -> None:
    values = RNG.standard_normal((1, 4, 64))
    expected, shaken, found = (of(noise=values * (1 + by)) for by in (0.0, 0.004, 0.011))
    assert "1.1 %" in why_not(found, expected, F32)
    accuracy = right(found, expected, F32, shaken=shaken)  # 3 times 0.4 %, and 0.1 %
    assert (accuracy.exact, accuracy.rule) == (False, "output_0 1.3 %, as a tiny change of the inputs moves it")
    assert right(found, expected, F32, shaken=of(noise=np.zeros((1, 3))))  # of another shape
    nothing = of(noise=values * np.nan)
    assert right(nothing, expected, F32, shaken=nothing).difference is None  # chance alone decides
    ranks = np.arange(100)
    swapped = np.where(ranks < 4, 3 - ranks, ranks)
    assert right(of(noise=swapped), of(noise=ranks), F32, shaken=of(noise=swapped)).indices == 0.04


def test_in_a_low_precision_chance_allows_at_most_as_much_again() -> None:
    values = RNG.standard_normal((1, 4, 64))
    expected, shaken, near, far = (of(noise=values * (1 + by)) for by in (0.0, 0.05, 0.07, 0.09))
    assert right(near, expected, BF16, shaken=shaken).rule == "output_0 8 %, as a tiny change of the inputs moves it"
    assert "8 % allowed" in why_not(far, expected, BF16, shaken=shaken)
    assert "8 % allowed" in why_not(far, expected, BF16, shaken=of(noise=np.zeros((1, 3))))
    assert right(far, expected, F32, shaken=shaken)


def test_low_precisions_and_roundings_are_compared_on_all_samples() -> None:
    reference = Reference({kind: {"output_0": np.ones(3)} for kind in ("noise", "zeros", "noise #2")})
    assert compared_kinds(reference, F32) == ["noise", "zeros"]
    for precisions in (BF16, {"CPU": "f32", "CPU_B": "bf16"}, {"CPU": "f32", "rounded": "int8"}):
        assert compared_kinds(reference, precisions) == ["noise", "zeros", "noise #2"]


def test_what_f32_is_known_to_differ_by_is_allowed() -> None:
    ranks = np.arange(100)
    swapped, turned = np.where(ranks < 4, 3 - ranks, ranks), ranks[::-1]
    assert right(of(noise=swapped), of(noise=ranks), F32, normalised=of(noise=swapped)).indices == 0.04
    assert "6 % allowed" in why_not(of(noise=turned), of(noise=ranks), F32, normalised=of(noise=swapped))


def test_rounding_and_what_a_precision_may_do_are_not_added() -> None:
    floats = RNG.standard_normal((1, 4, 64))
    error, other = (RNG.standard_normal(floats.shape) for _ in range(2))
    reference = {"expected": of(noise=floats + 0.02 * error), "exact": of(noise=floats)}
    assert "4 % allowed" in why_not(of(noise=floats + 0.065 * other), **reference)
    known = of(noise=floats + 0.04 * error)
    assert right(of(noise=floats + 0.032 * other), **reference).rule == ""  # within 4 %
    accuracy = right(of(noise=floats + 0.025 * other), known, F32, exact=of(noise=floats))
    assert "as rounding moves the reference" in accuracy.rule
    assert not accuracy.exact


def test_what_is_exact_is_told_whatever_was_allowed() -> None:
    values = RNG.standard_normal((1, 4, 64))
    exact, near = (right(of(noise=values * (1 + by)), of(noise=values)) for by in (1e-5, 1e-2))
    assert (exact.exact, near.exact) == (True, False)


def test_accuracy_survives_json() -> None:
    accuracy = right(OTHER, OTHER)
    assert Accuracy.from_json(json.loads(json.dumps(accuracy.to_json()))) == accuracy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quality:right", "names no function"),
        ("quality.py", "names no function"),
        ("quality.py:", "names no function"),
        ("nowhere.py:right", "There is no file nowhere.py"),
        ("{folder}/broken.py:right", "cannot be loaded: SyntaxError"),
        ("{folder}/good.py:left", "has no function left"),
    ],
)
def test_a_metric_that_cannot_be_had_says_why(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def right(:\n")
    (tmp_path / "good.py").write_text(TOP)
    with pytest.raises(UsageError, match=words):
        load_metric(text.format(folder=tmp_path))


def test_a_metric_that_fails_says_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def m(outputs): return outputs['scores'].mean()\n")
    with pytest.raises(UsageError, match="m failed: KeyError 'scores'") as raised:
        metric_loss(EXPECTED, EXPECTED, MeasureSettings(metric=f"{tmp_path / 'm.py'}:m"))
    assert "output_0" in raised.value.remedy
