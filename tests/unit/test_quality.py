"""A user's own measure of what outputs are worth."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.measuring.inputs import TIMED
from runtime.measuring.quality import accepted, load_metric, loss, most_allowed

TOP = "def right(outputs): return float((outputs['output_0'].argmax(axis=1) == [0, 1]).mean())\n"
EXPECTED = {TIMED: {"output_0": np.array([[2.0, 1.0], [1.0, 2.0]])}}
OTHER = {TIMED: {"output_0": np.array([[9.0, 1.0], [3.0, 9.0]])}}  # far off as numbers, and the same answers
WRONG = {TIMED: {"output_0": np.array([[2.0, 1.0], [2.1, 2.0]])}}  # near, and one answer differs


@pytest.fixture
def settings(tmp_path: Path) -> MeasureSettings:
    (tmp_path / "quality.py").write_text(TOP)
    return MeasureSettings(metric=f"{tmp_path / 'quality.py'}:right")


def test_with_a_metric_quality_counts_and_not_the_distance(settings: MeasureSettings) -> None:
    assert accepted(OTHER, EXPECTED, {"CPU": "bf16"}, settings) == 0.0
    wrong = accepted(WRONG, EXPECTED, {"CPU": "f32"}, settings)
    assert wrong == MeasurementFailed("wrong_output", "right falls by 50 % from f32 (1 % allowed)")
    assert accepted(WRONG, EXPECTED, {"CPU": "f32"}, replace(settings, metric_drop=0.5)) == 0.5
    assert loss(EXPECTED, WRONG, settings) == 0.0  # better than the reference is no loss


def test_without_one_the_distance_counts() -> None:
    assert isinstance(accepted(OTHER, EXPECTED, {"CPU": "f32"}, MeasureSettings()), MeasurementFailed)
    assert accepted(WRONG, EXPECTED, {"CPU": "bf16"}, MeasureSettings(low_tolerance=0.5)) == pytest.approx(0.348, 0.01)


def test_what_a_negative_quality_loses_is_a_share_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def m(outputs): return -float(outputs['output_0'][0, 0])\n")
    settings = MeasureSettings(metric=f"{tmp_path / 'm.py'}:m")
    worse, better = ({TIMED: {"output_0": np.array([[value, 1.0], [1.0, 2.0]])}} for value in (3.0, 1.0))
    assert (loss(worse, EXPECTED, settings), loss(better, EXPECTED, settings)) == (0.5, 0.0)  # of -2


def test_one_device_of_low_precision_makes_the_tolerance_that_of_low_precisions() -> None:
    settings = MeasureSettings(tolerance=0.1, low_tolerance=0.5)
    found = [accepted(WRONG, EXPECTED, {"A": "f32", "B": other}, settings) for other in ("f32", "bf16")]
    assert [isinstance(each, MeasurementFailed) for each in found] == [True, False]


def test_what_is_allowed_in_a_low_precision(settings: MeasureSettings) -> None:
    assert (most_allowed(settings), most_allowed(MeasureSettings())) == (0.01, 0.05)


def test_outputs_that_cannot_be_compared_have_no_quality(settings: MeasureSettings) -> None:
    found = loss({TIMED: {"output_0": np.zeros((2, 3))}}, EXPECTED, settings)
    assert isinstance(found, MeasurementFailed)
    assert "shape" in found.message


def test_a_metric_that_is_no_number_loses_everything(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def m(outputs): return outputs['output_0'][0, 0]\n")
    settings = MeasureSettings(metric=f"{tmp_path / 'm.py'}:m")
    assert loss({TIMED: {"output_0": np.array([[math.nan, 1.0], [1.0, 2.0]])}}, EXPECTED, settings) == math.inf


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
        loss(EXPECTED, EXPECTED, MeasureSettings(metric=f"{tmp_path / 'm.py'}:m"))
    assert "output_0" in raised.value.remedy
