"""FLOPs of single operations, each figure computed by hand."""

from __future__ import annotations

import pytest

from coarsen.reading.model.flops import (
    ATTRIBUTED,
    DATA_MOVEMENT,
    FORMULAS,
    PER_INPUT_ELEMENT,
    PER_OUTPUT_ELEMENT,
    operation_flops,
)

HAND = {
    # 1 x 8 x 5 x 5 outputs, each the sum of 3 x 3 x 3 products: 200 * 27 * 2
    "convolution": ("Convolution", [(1, 3, 7, 7), (8, 3, 3, 3)], (1, 8, 5, 5), {}, 10800),
    # 4 groups of 2 output and 3 input channels, 1 x 1: 8 * 25 outputs, 3 products each
    "grouped convolution": ("GroupConvolution", [(1, 12, 5, 5), (4, 2, 3, 1, 1)], (1, 8, 5, 5), {}, 1200),
    # each of the 3 * 4 * 4 inputs is spread over 8 channels and 2 x 2 positions: 48 * 32 * 2
    "transposed convolution": ("ConvolutionBackpropData", [(1, 3, 4, 4), (3, 8, 2, 2)], (1, 8, 8, 8), {}, 3072),
    # 4 * 4 inputs in 6 channels, each spread over 2 channels of its group and 2 x 2 positions: 96 * 8 * 2
    "transposed grouped convolution": (
        "GroupConvolutionBackpropData",
        [(1, 6, 4, 4), (3, 2, 2, 2, 2)],
        (1, 6, 8, 8),
        {},
        1536,
    ),
    "deformable convolution": (
        "DeformableConvolution",
        [(1, 3, 7, 7), (1, 18, 5, 5), (8, 3, 3, 3)],
        (1, 8, 5, 5),
        {},
        10800,
    ),
    # 2 x 5 outputs of 3 products each
    "product": ("MatMul", [(2, 3), (3, 5)], (2, 5), {"transpose_a": False, "transpose_b": False}, 60),
    "transposed product": ("MatMul", [(3, 2), (5, 3)], (2, 5), {"transpose_a": True, "transpose_b": True}, 60),
    "batched product": ("MatMul", [(4, 2, 3), (3, 5)], (4, 2, 5), {}, 240),
    "vector product": ("MatMul", [(3,), (3, 5)], (5,), {}, 30),
    "vector times transposed": ("MatMul", [(3,), (5, 3)], (5,), {"transpose_b": True}, 30),
    # the inner dimension is known of b only
    "dynamic transposed product": ("MatMul", [(-1, -1), (5, 3)], (-1, 5), {"transpose_b": True}, 30),
    "wholly dynamic product": ("MatMul", [(-1, -1), (-1, -1)], (-1, -1), {}, 2),
    "dynamic product": ("MatMul", [(-1, -1), (3, 5)], (-1, 5), {}, 30),
    # hidden 5, input 4: |W| = 20 * 4, |R| = 20 * 5, so a step is 2 * 180 + 2 * 20 + 9 * 5 = 445; 2 * 3 steps
    "LSTM": ("LSTMSequence", [(2, 3, 4), (2, 1, 5), (2, 1, 5), (2,), (1, 20, 4), (1, 20, 5), (1, 20)], None, {}, 2670),
    "bidirectional LSTM": (
        "LSTMSequence",
        [(2, 3, 4), (2, 2, 5), (2, 2, 5), (2,), (2, 20, 4), (2, 20, 5), (2, 20)],
        None,
        {},
        5340,
    ),
    "LSTM cell": ("LSTMCell", [(2, 4), (2, 5), (2, 5), (20, 4), (20, 5), (20,)], None, {}, 890),
    # hidden 5, input 4: 2 * (60 + 75) + 2 * 15 + 8 * 5 = 340 a step
    "GRU": ("GRUSequence", [(2, 3, 4), (2, 1, 5), (2,), (1, 15, 4), (1, 15, 5), (1, 15)], None, {}, 2040),
    "GRU cell": ("GRUCell", [(2, 4), (2, 5), (15, 4), (15, 5), (15,)], None, {}, 680),
    # 2 * (20 + 25) + 2 * 5 + 5 = 105 a step
    "RNN": ("RNNSequence", [(2, 3, 4), (2, 1, 5), (2,), (1, 5, 4), (1, 5, 5), (1, 5)], None, {}, 630),
    "RNN cell": ("RNNCell", [(2, 4), (2, 5), (5, 4), (5, 5), (5,)], None, {}, 210),
    # 2 heads, 3 queries, 5 keys: 30 scores; each 2 * 4 for Q K, 1 scale, 5 softmax, 2 * 6 for the values
    "attention": ("ScaledDotProductAttention", [(2, 3, 4), (2, 5, 4), (2, 5, 6)], (2, 3, 6), {}, 780),
    "masked attention": ("ScaledDotProductAttention", [(2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)], (2, 3, 6), {}, 810),
    "pooling": ("MaxPool", [(1, 2, 8, 8)], (1, 2, 4, 4), {"kernel": [3, 2]}, 192),
    "global pooling": ("ReduceMean", [(1, 2, 8, 8), (2,)], (1, 2, 1, 1), {}, 128),
    "adaptive pooling": ("AdaptiveAvgPool", [(1, 2, 8, 8), (2,)], (1, 2, 2, 2), {}, 128),
    "normalisation": ("MVN", [(2, 6), (1,)], (2, 6), {"normalize_variance": True}, 60),
    "centring": ("MVN", [(2, 6), (1,)], (2, 6), {"normalize_variance": False}, 24),
    "batch normalisation": ("BatchNormInference", [(2, 6)], (2, 6), {}, 24),
    "local response": ("LRN", [(1, 4, 2, 2), (1,)], (1, 4, 2, 2), {"size": 3}, 128),
    "softmax": ("Softmax", [(2, 6)], (2, 6), {}, 60),
    "gelu": ("Gelu", [(2, 6)], (2, 6), {}, 12),
    "broadcast addition": ("Add", [(2, 1), (1, 6)], (2, 6), {}, 12),
    "unknown type": ("SomethingNew", [(2, 6)], (2, 6), {}, 12),
    "transposition": ("Transpose", [(2, 6), (2,)], (6, 2), {}, 0),
    "nearest": ("Interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "nearest"}, 0),
    # 16 outputs of 2 x 2 taps
    "bilinear": ("Interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "linear_onnx"}, 128),
    "bicubic": ("Interpolate", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "cubic"}, 512),
    # indices b i j k: 2 * 3 * 4 * 5 products
    "einsum": ("Einsum", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), {"equation": "bij,bjk->bik"}, 240),
    "einsum with ellipsis": ("Einsum", [(2, 3, 4), (4, 5)], (2, 3, 5), {"equation": "...ij,jk->...ik"}, 240),
    "quantisation": ("FakeQuantize", [(2, 6)], (2, 6), {}, 84),
    "dynamic batch counts one": ("Relu", [(-1, 6)], (-1, 6), {}, 6),
    "no rank counts one": ("Relu", [()], (), {}, 1),
}


@pytest.mark.parametrize("case", HAND, ids=str)
def test_flops_are_those_computed_by_hand(case: str) -> None:
    op_type, inputs, output, attributes, expected = HAND[case]
    assert operation_flops(op_type, inputs, [output or (1,)], attributes) == expected


def test_every_formula_is_checked_by_hand() -> None:
    checked = {op_type for op_type, *_ in HAND.values()}
    assert set(FORMULAS) - checked <= {"AvgPool", "BinaryConvolution"}  # the formulas of MaxPool and Convolution


@pytest.mark.parametrize("op_type", sorted(FORMULAS))
def test_no_formula_fails_where_no_shape_is_known(op_type: str) -> None:
    assert operation_flops(op_type, [()] * 7, [()], {}) >= 0


def test_an_operation_has_one_rule() -> None:
    rules = [set(DATA_MOVEMENT), set(PER_OUTPUT_ELEMENT), set(PER_INPUT_ELEMENT), set(FORMULAS)]
    assert sum(map(len, rules)) == len(set().union(*rules))
    assert set(FORMULAS) >= ATTRIBUTED


def test_an_operation_without_outputs_costs_nothing() -> None:
    assert operation_flops("SomethingNew", [(2, 6)], []) == 0
