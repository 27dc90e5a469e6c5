"""Outputs whose rows are chosen by computed numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

from coarsen.reading.reference.chosen_rows import chosen_outputs


def constant(*values: int) -> Any:
    return opset.constant(np.array(values, np.int64))


def dense(rows: Any) -> Any:
    return opset.matmul(rows, opset.constant(np.ones((4, 4), np.float32)), False, False)


def best(rows: Any) -> Any:
    """Return two rows of the largest first numbers."""
    first = opset.squeeze(opset.slice(rows, constant(0), constant(1), constant(1), constant(1)), constant(1))
    return opset.topk(first, opset.constant(np.int64(2)), 0, "max", "value").output(1)


def sure(rows: Any) -> Any:
    """Return the numbers of the rows with a large sum."""
    return opset.squeeze(
        opset.non_zero(opset.greater(opset.reduce_sum(rows, constant(1)), np.float32(1)), "i64"), constant(0)
    )


def suppressed(rows: Any) -> Any:
    boxes, scores = opset.unsqueeze(rows, constant(0)), opset.reshape(best(rows), constant(1, 1, 2), False)
    two = opset.gather(boxes, best(rows), constant(1))
    kept = opset.non_max_suppression(
        two, opset.convert(scores, "f32"), opset.constant(np.int64(2)), np.float32(0.5), np.float32(0.1)
    )
    return opset.multiply(opset.convert(kept.output(0), "f32"), np.float32(2))


def gathered(rows: Any, which: Any) -> Any:
    return opset.gather(rows, which, constant(0))


def in_a_branch(rows: Any) -> Any:
    each = [opset.parameter([8, 4], np.float32) for _ in range(2)]
    ends = [gathered(each[0], sure(each[0])), opset.relu(each[1])]
    then, other = (ov.Model([opset.result(end)], [x]) for end, x in zip(ends, each, strict=True))
    branch = opset.if_op(opset.constant(np.array(True)).output(0))
    branch.set_then_body(then)
    branch.set_else_body(other)
    branch.set_input(rows.output(0), then.get_parameters()[0], other.get_parameters()[0])
    return branch.set_output(then.get_results()[0], other.get_results()[0])


@pytest.mark.parametrize(
    ("made", "chosen"),
    [
        (lambda rows: gathered(rows, sure(rows)), True),
        (lambda rows: gathered(rows, best(rows)), True),
        (suppressed, True),
        (in_a_branch, True),
        (lambda rows: rows, False),
        (best, False),  # indices, whose share that differs is told
        (lambda rows: opset.topk(rows, opset.constant(np.int64(2)), 0, "max", "value").output(0), False),
        (lambda rows: dense(gathered(rows, best(rows))), False),  # numbers that every row has a part in
    ],
)
def test_rows_are_chosen_where_computed_numbers_say_which(made: Callable[[Any], Any], chosen: bool) -> None:
    x = opset.parameter([8, 4], np.float32)
    model = ov.Model([opset.result(dense(x)), opset.result(made(dense(x)))], [x])
    assert chosen_outputs(model) == ["output_1"] * chosen


def test_rows_that_inputs_alone_choose_are_the_same_in_every_precision() -> None:
    x, mask = opset.parameter([8, 4], np.float32), opset.parameter([8], np.int64)
    which = opset.squeeze(opset.non_zero(opset.not_equal(mask, opset.constant(np.int64(0))), "i64"), constant(0))
    assert chosen_outputs(ov.Model([opset.result(gathered(dense(x), which))], [x, mask])) == []
