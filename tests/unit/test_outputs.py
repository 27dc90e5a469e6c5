"""How far outputs are from the reference's: numbers, indices, and rows that come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.core.measurement import MeasurementFailed
from runtime.measuring.outputs import (
    INDEX_WEIGHT,
    OutputDifference,
    Reference,
    compare_outputs,
    difference_of,
    differences,
    lost_int8,
    matched_rows,
    relative_l2,
)

SCORES = np.array([0.9, 0.5, 0.4, 0.1])
CLASSES = np.array([7, 3, 9, 1], np.int64)


def one(found: Any, expected: Any) -> OutputDifference:
    """Return the difference of one output."""
    each = differences({"y": np.asarray(found)}, {"y": np.asarray(expected)})
    assert not isinstance(each, MeasurementFailed)
    return each[0]


def test_relative_l2_by_hand() -> None:
    assert relative_l2(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == 0.1
    assert relative_l2(np.array([0.5]), np.array([0.0])) == 0.5
    assert relative_l2(np.array([np.nan]), np.array([1.0])) == np.inf
    assert relative_l2(np.array([np.inf, 2.0]), np.array([np.inf, 2.0])) == 0.0
    assert relative_l2(np.array([-np.inf, 2.0]), np.array([np.inf, 2.0])) == np.inf
    assert relative_l2(np.array([np.nan, 2.0]), np.array([np.inf, 2.0])) == np.inf


def test_outputs_that_are_not_comparable_are_wrong() -> None:
    expected = {"output_0": np.ones(2), "output_1": np.ones((3, 2))}
    assert compare_outputs(expected, expected, 0.0) == 0.0
    for found, words in (
        ({"output_0": np.ones(2)}, "1 outputs instead of 2"),
        (expected | {"output_1": np.ones((3, 1))}, r"output_1 has shape (3, 1), not (3, 2)"),
        (expected | {"output_1": np.ones(3)}, r"output_1 has shape (3,), not (3, 2)"),
        (expected | {"output_1": np.array([[1.0, np.nan]] * 3)}, "outputs differ by infinitely many %"),
    ):
        failed = compare_outputs(found, expected, 0.1)
        assert isinstance(failed, MeasurementFailed)
        assert failed.kind == "wrong_output"
        assert words in failed.message


def test_indices_are_compared_by_the_share_that_differs() -> None:
    swapped = CLASSES[[1, 0, 2, 3]]
    assert one(swapped, CLASSES) == OutputDifference("y", "indices", 0.5)
    assert one(CLASSES + 100, CLASSES).difference == 1.0  # and not by how far the numbers lie apart
    assert one([True, False], [True, True]) == OutputDifference("y", "indices", 0.5)
    assert one(np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64)).difference == 0.0


def test_numbers_and_small_integers_are_compared_by_how_far_they_are() -> None:
    assert one(SCORES * 1.1, SCORES) == OutputDifference("y", "values", pytest.approx(0.1))
    pixels = np.array([100, 200], np.uint8)
    assert one(pixels + 1, pixels).kind == "values"
    assert one(pixels + 1, pixels).difference < 0.01


def test_rounding_may_swap_a_few_indices_but_f32_may_not() -> None:
    expected = {"y": np.arange(20)}
    swapped = {"y": np.array([1, 0, *range(2, 20)])}  # 10 % of the entries
    assert isinstance(compare_outputs(swapped, expected, 5e-2), float)
    failed = compare_outputs(swapped, expected, 1e-3)
    assert failed == MeasurementFailed(
        "wrong_output", "outputs differ from f32 in y: 10 % of its entries (0.4 % allowed)"
    )
    assert isinstance(compare_outputs({"y": np.arange(20)[::-1]}, expected, 5e-2), MeasurementFailed)


def test_rows_that_come_and_go_are_compared_where_they_match() -> None:
    boxes = np.arange(80.0).reshape(20, 4)
    found = one(np.delete(boxes, 5, axis=0), boxes)
    assert (found.difference, found.unmatched) == (0.0, 0.05)
    assert one(boxes, np.delete(boxes, 5, axis=0)) == found
    assert isinstance(compare_outputs({"y": np.delete(boxes, 5, axis=0)}, {"y": boxes}, 5e-2), float)
    failed = compare_outputs({"y": np.delete(boxes, 5, axis=0)}, {"y": boxes}, 1e-3)
    assert isinstance(failed, MeasurementFailed)
    assert "5 % of its rows have no match" in failed.message
    selected = np.array([[0, 1, i] for i in range(20)])
    assert one(selected[1:], selected) == OutputDifference("y", "indices", 0.0, 0.05)
    assert one(np.zeros((0, 4)), boxes).weighed == INDEX_WEIGHT
    assert one(boxes[1:] + 1000, boxes).difference > 1


def test_rows_are_matched_to_the_nearest_that_is_left() -> None:
    short, long = np.array([[1.0], [1.05]]), np.array([[5.0], [1.2], [1.0]])  # both are nearest to the last
    few, many = matched_rows(short, long)
    assert (few.ravel().tolist(), many.ravel().tolist()) == ([1.0, 1.05], [1.0, 1.2])
    many, few = matched_rows(long, short)
    assert (few.ravel().tolist(), many.ravel().tolist()) == ([1.0, 1.05], [1.0, 1.2])


def test_the_worst_output_counts_by_what_it_weighs() -> None:
    expected = {"scores": SCORES, "classes": CLASSES}
    found = {"scores": SCORES * 1.1, "classes": CLASSES[[1, 0, 2, 3]]}
    assert difference_of(found, expected) == pytest.approx(0.5 * INDEX_WEIGHT)
    assert difference_of({"scores": SCORES * 1.2, "classes": CLASSES}, expected) == pytest.approx(0.2)
    assert difference_of({}, {}) == 0.0
    assert isinstance(difference_of({}, expected), MeasurementFailed)


def test_kernels_lost_to_int8_are_named() -> None:
    whole = Reference({}, ("a", "b", "c", "d", "e"))
    failed = lost_int8(("e",), whole)
    assert failed == MeasurementFailed("refused", "4 of 5 kernels no longer run in int8: a, b, c ...")
    assert lost_int8(("other", "b", "c", "d", "e"), whole) is None  # one that is called otherwise is not lost
    assert lost_int8(None, whole) is None
    assert lost_int8((), Reference({})) is None


def test_strings_are_answers_whatever_the_numbers_in_them() -> None:
    expected = {"y": np.array([[b"a", b"10"], [b"b", b"1"]])}
    assert differences(expected, expected) == [OutputDifference("y", "indices", 0.0)]
    other = {"y": np.array([[b"a", b"10"], [b"b", b"2"]])}
    assert differences(other, expected) == [OutputDifference("y", "indices", 0.25)]
    assert differences({"y": other["y"][:1]}, expected) == [OutputDifference("y", "indices", 0.0, 0.5)]
