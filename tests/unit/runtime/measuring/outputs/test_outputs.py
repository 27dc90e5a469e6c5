"""How far outputs are from the reference's: numbers, indices, and rows that come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.core.measurement import MeasurementFailed
from pipeline.shared.checks import relative_l2
from runtime.measuring.outputs.outputs import (
    OutputDifference,
    Reference,
    channel_axis,
    channel_groups,
    channels_of,
    lost_int8,
    low_scores,
    matched_rows,
    output_differences,
)

SCORES = np.array([0.9, 0.5, 0.4, 0.1])
CLASSES = np.array([7, 3, 9, 1], np.int64)


def one(found: Any, expected: Any) -> OutputDifference:
    """Return the difference of one output."""
    each = output_differences({"y": np.asarray(found)}, {"y": np.asarray(expected)})
    assert not isinstance(each, MeasurementFailed)
    return each[0]


def test_relative_l2_by_hand() -> None:
    assert relative_l2(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == 0.1
    assert relative_l2(np.array([0.5]), np.array([0.0])) == 0.5
    assert relative_l2(np.array([np.nan]), np.array([1.0])) == np.inf
    assert relative_l2(np.array([np.inf, 2.0]), np.array([np.inf, 2.0])) == 0.0
    assert relative_l2(np.array([-np.inf, 2.0]), np.array([np.inf, 2.0])) == np.inf
    assert relative_l2(np.array([np.nan, 2.0]), np.array([np.inf, 2.0])) == np.inf


def test_outputs_that_are_not_comparable_are_told() -> None:
    expected = {"output_0": np.ones(2), "output_1": np.ones((3, 2))}
    for found, words in (
        ({"output_0": np.ones(2)}, "1 outputs instead of 2"),
        (expected | {"output_1": np.ones((3, 1))}, "output_1 has shape (3, 1), not (3, 2)"),
        (expected | {"output_1": np.ones(3)}, "output_1 has shape (3,), not (3, 2)"),
    ):
        assert output_differences(found, expected) == MeasurementFailed("wrong_output", words)
    assert output_differences({}, {}) == []


def test_what_is_not_finite_must_be_so_in_both() -> None:
    assert one([[1.0, np.nan]] * 3, np.ones((3, 2))).difference == np.inf
    assert one([1.0, np.nan], [1.0, np.nan]).difference == 0.0
    assert one([1.0, -np.inf], [1.0, -3.4e38]).difference == 0.0  # a mask's number in a low precision
    assert one([1.0, 3.4e38], [1.0, -3.4e38]).difference == np.inf
    assert one([1.1, -3.4e38], [1.0, -3.3e38]).difference == pytest.approx(0.1)  # which does not hide the rest


def test_indices_are_compared_by_the_share_that_differs() -> None:
    swapped = CLASSES[[1, 0, 2, 3]]
    assert one(swapped, CLASSES) == OutputDifference("y", "indices", 0.5)
    assert one(CLASSES + 100, CLASSES).difference == 1.0  # and not by how far the numbers lie apart
    assert one([True, False], [True, True]) == OutputDifference("y", "indices", 0.5)
    assert one(np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64)).difference == 0.0


def test_numbers_and_small_integers_are_compared_by_how_far_they_are() -> None:
    assert one(SCORES * 1.1, SCORES).difference == pytest.approx(0.1)
    pixels = np.array([100, 200], np.uint8)
    assert one(pixels + 1, pixels).kind == "values"
    assert one(pixels + 1, pixels).difference < 0.01


def test_rows_that_come_and_go_are_compared_where_they_match() -> None:
    boxes = np.arange(80.0).reshape(20, 4)
    found = one(np.delete(boxes, 5, axis=0), boxes)
    assert (found.difference, found.unmatched) == (0.0, 0.05)
    assert one(boxes, np.delete(boxes, 5, axis=0)) == found
    selected = np.array([[0, 1, i] for i in range(20)])
    assert one(selected[1:], selected) == OutputDifference("y", "indices", 0.0, 0.05)
    assert one(np.zeros((0, 4)), boxes).unmatched == 1.0
    assert one(boxes[1:] + 1000, boxes).difference > 1


def test_rows_are_matched_to_the_nearest_that_is_left() -> None:
    short, long = np.array([[1.0], [1.05]]), np.array([[5.0], [1.2], [1.0]])  # both are nearest to the last
    few, many = matched_rows(short, long)
    assert (few.ravel().tolist(), many.ravel().tolist()) == ([1.0, 1.05], [1.0, 1.2])
    many, few = matched_rows(long, short)
    assert (few.ravel().tolist(), many.ravel().tolist()) == ([1.0, 1.05], [1.0, 1.2])


def boxes_and_scores(rng: np.random.Generator, rows: int = 200) -> Any:
    """Return float64 [1, rows, 5]: coordinates of hundreds, and a score."""
    boxes, scores = rng.uniform(50, 600, (1, rows, 4)), rng.uniform(0, 1, (1, rows, 1))
    return np.concatenate([boxes, scores], axis=2)


def test_a_detectors_scores_are_not_hidden_by_its_coordinates() -> None:
    expected = boxes_and_scores(np.random.default_rng(0))
    found = expected * np.array([1.0024] * 4 + [1.03])
    assert relative_l2(found, expected) == pytest.approx(0.0024, 1e-3)  # all that a norm of the whole sees
    for axes in ((0, 1, 2), (0, 2, 1)):  # whatever the layout
        apart = one(found.transpose(axes), expected.transpose(axes))
        assert apart.difference == pytest.approx(0.03)
        assert (apart.channel, apart.channel_difference) == (4, pytest.approx(0.03))


def test_channels_are_those_along_which_sizes_differ_most() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([300.0, 300.0, 50.0, 0.5, 0.1])
    assert channel_axis(rng.standard_normal((1, 3, 20, 20, 5)) * sizes) == 4
    assert channel_axis(rng.standard_normal((1, 5, 13, 13)) * sizes[:, None, None]) == 1
    assert channel_axis(rng.standard_normal((30, 5)) * sizes) == 1
    assert channel_axis(rng.standard_normal((1, 1000))) is None  # one entry each is no sample
    assert channel_axis(np.zeros((0, 5))) is None
    assert channel_groups(sizes).tolist() == [0, 0, 0, 1, 1]


def test_channels_of_like_size_are_compared_together() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((1, 16, 64))
    found = expected + 0.02 * rng.standard_normal(expected.shape)
    apart = one(found, expected)
    assert apart.difference == pytest.approx(relative_l2(found, expected))
    assert apart.channel_difference > apart.difference


def test_what_is_next_to_nothing_is_not_measured_against_itself() -> None:
    rng = np.random.default_rng(0)
    loud, quiet = rng.standard_normal((1, 4, 32)), 1e-8 * rng.standard_normal((1, 4, 32))
    channels = channels_of([{"y": loud}, {"y": quiet}])
    (apart,) = output_differences({"y": 2 * quiet}, {"y": quiet}, channels)  # type: ignore[misc]
    assert apart.difference < 1e-4  # beside what the output is on other inputs
    silent = loud * np.array([1.0, 1.0, 1.0, 0.01])[:, None]  # one channel is quiet on these inputs alone
    channels = channels_of([{"y": loud}, {"y": silent}])
    (apart,) = output_differences({"y": silent + 0.002}, {"y": silent}, channels)  # type: ignore[misc]
    assert apart.difference < 0.01
    assert one(silent + 0.002, silent).difference > 0.1
    scores = np.full((1, 80, 100), 1e-5)
    assert one(3 * scores, scores).difference == pytest.approx(2e-3)  # of a hundredth
    few = np.concatenate([scores, np.full((1, 1, 100), 0.05)], axis=1)
    assert one(few * np.array([1.0] * 80 + [1.2])[:, None], few).difference == pytest.approx(0.2)  # one that lives
    rows = np.full((1, 10, 1000), 1e-3)
    assert one(rows * 1.5, rows).difference == pytest.approx(0.5)  # rows that add up to 1 have a size of their own


def test_decisions_that_flip_are_counted() -> None:
    notes = np.full((1, 100, 88), 0.01)
    notes[0, :50, 40] = 0.9
    silent = notes.copy()
    silent[0, :20, 40] = 0.4
    apart = one(silent, notes)
    assert (apart.flips, apart.decisions) == (20, 50)  # most entries decide nothing
    classes = np.random.default_rng(0).uniform(0.0, 1.0, (64, 10)) ** 8
    classes /= classes.sum(axis=1, keepdims=True)
    other = classes[:, ::-1].copy()
    changed = int(np.sum(other.argmax(1) != classes.argmax(1)))
    for found, expected in ((other, classes), (np.log(other), np.log(classes))):
        assert (one(found, expected).flips, one(found, expected).decisions) == (changed, 64)
    unit = np.random.default_rng(0).standard_normal((32, 384))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert one(unit, unit).decisions == 0  # embeddings decide nothing
    assert (one([[1.0, 3.0, 2.0]], [[1.0, 2.0, 3.0]]).flips, one([[-1.0, 3.0]], [[-1.0, 3.0]]).decisions) == (1, 1)
    boxes = boxes_and_scores(np.random.default_rng(0))[0]
    assert one(boxes, boxes).decisions == int(np.sum(boxes[:, 4] > 0.5))  # of the scores beside them
    assert one(boxes[:, :4] / 600, boxes[:, :4] / 600).kind == "values"
    assert one(np.ones(3), np.ones(3)).flips == 0


def test_kernels_lost_to_int8_are_named() -> None:
    whole = Reference({}, ("a", "b", "c", "d", "e"))
    failed = lost_int8(("e",), whole)
    assert failed == MeasurementFailed("refused", "4 of 5 kernels no longer run in int8: a, b, c ...")
    assert lost_int8(("other", "b", "c", "d", "e"), whole) is None  # one that is called otherwise is not lost
    assert lost_int8(None, whole) is None
    assert lost_int8((), Reference({})) is None


def test_strings_are_answers_whatever_the_numbers_in_them() -> None:
    expected = {"y": np.array([[b"a", b"10"], [b"b", b"1"]])}
    assert output_differences(expected, expected) == [OutputDifference("y", "indices", 0.0)]
    other = {"y": np.array([[b"a", b"10"], [b"b", b"2"]])}
    assert output_differences(other, expected) == [OutputDifference("y", "indices", 0.25)]
    assert output_differences({"y": other["y"][:1]}, expected) == [OutputDifference("y", "indices", 0.0, 0.5)]


def test_scores_that_no_kind_of_inputs_raises_are_told() -> None:
    rng = np.random.default_rng(0)
    faint, seen = 1e-3 * rng.random((1, 1, 8, 8)), rng.random((1, 1, 8, 8))
    assert low_scores({"noise": {"map": faint}, "smooth": {"map": faint}}) == ["map"]
    assert low_scores({"noise": {"map": faint}, "smooth": {"map": seen}}) == []
    # of a detector boxes are no scores, whatever their size, and hide none
    boxes = 300 * rng.random((1, 4, 50))
    low, high = (np.concatenate([boxes, scale * rng.random((1, 6, 50))], axis=1) for scale in (0.01, 0.9))
    assert low_scores({"noise": {"found": low}, "zeros": {"found": low / 2}}) == ["found"]
    assert low_scores({"noise": {"found": low}, "zeros": {"found": high}}) == []
    classes = rng.random((1, 200))
    told = {
        "classes": classes / classes.sum(),  # each below 0.05, and one the largest
        "logits": 0.01 * rng.standard_normal((1, 64)),
        "one": np.array([[0.01]]),
        "ids": np.zeros((1, 40), np.int64),
        "none": np.zeros((0, 6)),
    }
    assert low_scores({"noise": told, "zeros": told}) == []
    assert low_scores({"noise": {"map": faint}, "smooth": {"map": faint[:, :, :4]}}) == []
    assert low_scores({}) == []
