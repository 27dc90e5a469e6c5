"""Decisions that outputs stand for: which entry of a row is the largest, and which scores are above a half.

What looks like scores is told by the reference's values, the first rule that fits:

| values | decisions |
|---|---|
| rows of two or more that sum to 1, along the last or the second dimension, none negative | the largest of each row |
| the same of their exponentials (logarithms of probabilities) | the largest of each row |
| of a last dimension of `VOCABULARY` or more, or of rank 2, neither all within [0, 1] nor a column of `ROWS` or more, \
nor of `WIDE` or more and unit norm as embeddings are (logits) | the largest of each row |
| a channel within [0, 1] | entries above 0.5, by either of the two; they are few, and most entries decide nothing |
"""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Float64

HALF = 0.5
VOCABULARY = 4096  # classes of a language; no hidden layer of a usual model is as wide
ROWS = 8  # that make a column of a table of its own, as the scores beside boxes
WIDE = 32  # entries of a row that are no logits where its norm is 1
SUM = 1e-2  # that a row of probabilities may be off 1 by: some are of bytes


def count_flips(actual: Float64, expected: Float64, axis: int | None, *, scores: Bool) -> tuple[int, int]:
    """Return how many decisions differ, and of how many.

    actual, expected: float64 of one shape. axis: that of classes, None where there is none. scores: whether entries
    are within [0, 1], as far as is known of their channel; broadcasts to the shape.
    """
    if not expected.size or np.isnan(expected).any() or np.isnan(actual).any():
        return 0, 0
    if axis is not None:
        ours, theirs = actual.argmax(axis), expected.argmax(axis)
        return int(np.sum(ours != theirs)), int(theirs.size)
    ours, theirs = (actual > HALF) & scores, (expected > HALF) & scores
    return int(np.sum(ours != theirs)), int(np.sum(ours | theirs))


def class_axis(expected: Float64) -> int | None:
    """Return the dimension along which classes lie, of which the largest counts; None where there is none.

    >>> class_axis(np.array([[0.2, 0.8]])), class_axis(np.array([[0.2, 0.9]])), class_axis(np.array([[-3.0, 7.0]]))
    (1, None, 1)
    """
    last = expected.ndim - 1
    if last < 1 or not expected.size or not np.isfinite(expected).all():
        return None
    for axis in dict.fromkeys((last, 1)):
        if expected.shape[axis] > 1 and (adds_up(expected, axis) or _adds_up_in_logarithms(expected, axis)):
            return axis
    if expected.shape[last] >= VOCABULARY:
        return last
    within = (expected >= 0) & (expected <= 1)
    of_scores = within.all(axis=0).any() if len(expected) >= ROWS else within.all()
    embeds = expected.shape[last] >= WIDE and np.allclose(np.linalg.norm(expected, axis=last), 1.0, atol=SUM)
    return last if last == 1 and expected.shape[1] > 1 and not (of_scores or embeds) else None


def adds_up(expected: Float64, axis: int) -> bool:
    """Return whether all rows along a dimension are probabilities of classes."""
    return bool(expected.min() >= 0 and np.allclose(expected.sum(axis), 1.0, atol=SUM, rtol=0))


def _adds_up_in_logarithms(expected: Float64, axis: int) -> bool:
    return bool(expected.max() <= SUM and np.allclose(np.exp(expected).sum(axis), 1.0, atol=SUM, rtol=0))
