"""What one operation costs: floating point operations from its type, its shapes and a few attributes.

A multiply-add counts 2. A dimension that is not known (-1) counts 1. Everything else is a convention, chosen so that
equal figures mean about equal arithmetic:

- an elementwise operation costs 1 per output element, exp, tanh or erf no more than an addition: on today's devices
  both wait for memory;
- a reduction costs 1 per input element, pooling 1 per element of the window;
- an operation that only moves data costs 0;
- a type that is not named here counts as elementwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]
Formula = Callable[[Sequence[Shape], Sequence[Shape], Attributes], float]


def count_elements(shape: Sequence[int]) -> float:
    """Return the number of elements of a tensor; an unknown dimension (-1) counts 1.

    >>> count_elements((2, -1, 3))
    6.0
    """
    return float(math.prod(d for d in shape if d >= 0))


def operation_flops(
    op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes | None = None
) -> float:
    """Return the floating point operations of one execution.

    op_type: the operation's type in OpenVINO's operation sets, of any version.
    inputs, outputs: shapes of its tensors, () also where not even the rank is known.
    attributes: needed for the types in ATTRIBUTED only.

    >>> operation_flops("MatMul", [(2, 3), (3, 5)], [(2, 5)], {"transpose_a": False, "transpose_b": False})
    60.0
    """
    if op_type in DATA_MOVEMENT or not outputs:
        return 0.0
    if op_type in PER_OUTPUT_ELEMENT:
        return PER_OUTPUT_ELEMENT[op_type] * count_elements(outputs[0])
    if op_type in PER_INPUT_ELEMENT or op_type.startswith("Reduce"):
        return count_elements(inputs[0])
    formula = FORMULAS.get(op_type)
    return count_elements(outputs[0]) if formula is None else formula(inputs, outputs, attributes or {})


def _convolution_flops(inputs: Sequence[Shape], outputs: Sequence[Shape], _: Attributes) -> float:
    """Count 2 per weight that meets an output element; weights [out channels, in channels, kernel ...]."""
    return 2 * count_elements(outputs[0]) * count_elements(inputs[1][1:])


def _group_convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], _: Attributes) -> float:
    """Count the same with weights [groups, out channels per group, in channels per group, kernel ...]."""
    return 2 * count_elements(outputs[0]) * count_elements(inputs[1][2:])


def _deformable_convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], _: Attributes) -> float:
    """Count a convolution whose weights are the third input; the offsets' interpolation is left out."""
    return 2 * count_elements(outputs[0]) * count_elements(inputs[2][1:])


def _transposed_convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], _: Attributes) -> float:
    """Count 2 per weight that meets an input element; weights [in channels, out channels, kernel ...]."""
    return 2 * count_elements(inputs[0]) * count_elements(inputs[1][1:])


def _transposed_group_convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], _: Attributes) -> float:
    """Count the same with weights [groups, in channels per group, out channels per group, kernel ...]."""
    return 2 * count_elements(inputs[0]) * count_elements(inputs[1][2:])


def _matmul_flops(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count 2 per output element and element of the dimension summed over."""
    a, b = inputs[0], inputs[1]
    inner_a = a[-2:][0 if attributes.get("transpose_a") else -1] if a else -1
    inner_b = b[-2:][-1 if attributes.get("transpose_b") else 0] if b else -1
    inner = inner_a if inner_a >= 0 else inner_b  # one of both may be dynamic
    return 2 * count_elements(outputs[0]) * count_elements((inner,))


def _recurrent_formula(gates: int, pointwise: int, weights: int) -> Formula:
    """Return the formula of a recurrent cell or sequence.

    Per step, direction and batch element: both matrix products, their sum and the bias, 2 (|W| + |R|) + 2 gates h,
    and `pointwise` operations for each of the h states: activations, products and sums between the gates.

    weights: index of the input W [(directions,) gates h, input]; R [(directions,) gates h, h] follows it.
    """

    def formula(inputs: Sequence[Shape], _: Sequence[Shape], __: Attributes) -> float:
        w, r = inputs[weights], inputs[weights + 1]
        rows = count_elements(w[:-1])
        steps = count_elements(inputs[0][:-1])
        return steps * (2 * (count_elements(w) + count_elements(r)) + 2 * rows + pointwise * rows / gates)

    return formula


def _attention_flops(inputs: Sequence[Shape], _: Sequence[Shape], __: Attributes) -> float:
    """Count Q K^T, scale, mask, softmax (5 per score) and the product with V; causal attention is not halved.

    Q [..., queries, width], K [..., keys, width], V [..., keys, value width], then an optional mask.
    """
    q, k, v = inputs[0], inputs[1], inputs[2]
    scores = count_elements(q[:-1]) * count_elements(k[-2:-1])
    per_score = (
        2 * count_elements(q[-1:]) + 1 + 5 + (1 if len(inputs) > 3 and inputs[3] else 0) + 2 * count_elements(v[-1:])
    )
    return scores * per_score


def _pooling_flops(_: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count 1 per output element and element of the window."""
    return count_elements(outputs[0]) * count_elements(attributes.get("kernel", ()))


def _mean_variance(_: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count mean and difference, 2 per element; with the variance also square, sum and division, 5."""
    return count_elements(outputs[0]) * (5 if attributes.get("normalize_variance", True) else 2)


def _local_response(_: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count square, sum over the window, scale, bias, power and division."""
    return count_elements(outputs[0]) * (5 + float(attributes.get("size", 1)))


def _interpolate_flops(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count 2 per tap: 2 taps (linear) or 4 (cubic) along every dimension that changes; nearest only moves data."""
    mode = str(attributes.get("mode", "linear")).lower()
    if mode == "nearest":
        return 0.0
    changed = sum(before != after for before, after in zip(inputs[0], outputs[0], strict=False))
    return 2 * count_elements(outputs[0]) * (4.0 if "cubic" in mode else 2.0) ** changed


def _einsum_flops(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> float:
    """Count 2 per combination of all indices of the equation, as a nest of loops without any reordering does."""
    terms = str(attributes.get("equation", "")).split("->")[0].split(",")
    size: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        labels = re.findall(r"[A-Za-z]|\.{3}", term)
        hidden = len(shape) - sum(label != "..." for label in labels)
        names = [
            x for label in labels for x in ([f"...{hidden - i}" for i in range(hidden)] if label == "..." else label)
        ]
        for name, dimension in zip(names, shape, strict=False):
            size[name] = max(size.get(name, 1), dimension)
    return 2 * count_elements(tuple(size.values())) if size else count_elements(outputs[0])


FORMULAS: Mapping[str, Formula] = {
    "AvgPool": _pooling_flops,
    "BinaryConvolution": _convolution_flops,
    "Convolution": _convolution_flops,
    "ConvolutionBackpropData": _transposed_convolution,
    "DeformableConvolution": _deformable_convolution,
    "Einsum": _einsum_flops,
    "GroupConvolution": _group_convolution,
    "GroupConvolutionBackpropData": _transposed_group_convolution,
    "Interpolate": _interpolate_flops,
    "LRN": _local_response,
    "MVN": _mean_variance,
    "MatMul": _matmul_flops,
    "MaxPool": _pooling_flops,
    "ScaledDotProductAttention": _attention_flops,
    # LSTM: 5 activations, 4 products and sums. GRU: 3 activations, 5 products and sums. RNN: 1 activation.
    "LSTMSequence": _recurrent_formula(4, 9, weights=4),
    "GRUSequence": _recurrent_formula(3, 8, weights=3),
    "RNNSequence": _recurrent_formula(1, 1, weights=3),
    "LSTMCell": _recurrent_formula(4, 9, weights=3),
    "GRUCell": _recurrent_formula(3, 8, weights=2),
    "RNNCell": _recurrent_formula(1, 1, weights=2),
}

ATTRIBUTED = frozenset({"AvgPool", "Einsum", "Interpolate", "LRN", "MVN", "MatMul", "MaxPool"})
"""Types whose formula looks at attributes: a reader need not ask for those of any other."""

PER_OUTPUT_ELEMENT: Mapping[str, float] = {
    "BatchNormInference": 2,  # scale and shift, the statistics folded into them
    "FakeQuantize": 7,  # two clamps, subtract, scale, round, scale, add
    "GroupNormalization": 7,  # mean and variance as MVN, scale, shift
    "LogSoftmax": 5,  # maximum, subtract, exp, sum, subtract
    "NormalizeL2": 3,  # square, sum, divide
    "Softmax": 5,  # maximum, subtract, exp, sum, divide
}

PER_INPUT_ELEMENT = frozenset({"AdaptiveAvgPool", "AdaptiveMaxPool", "CumSum", "NonMaxSuppression", "TopK"})

DATA_MOVEMENT = frozenset(
    {
        *("Parameter", "Constant", "Result", "ReadValue", "Assign"),
        *("Convert", "ConvertLike", "ConvertPromoteTypes", "Reshape", "Squeeze", "Unsqueeze", "Transpose"),
        *("Concat", "Split", "VariadicSplit", "Slice", "SliceScatter", "StridedSlice", "Pad", "Tile", "Broadcast"),
        *("Gather", "GatherElements", "GatherND", "GatherTree", "ScatterUpdate", "ScatterElementsUpdate"),
        *("ScatterNDUpdate", "ShapeOf", "Range", "Eye", "OneHot", "NonZero", "Unique", "Reverse", "ReverseSequence"),
        *("Roll", "ShuffleChannels", "DepthToSpace", "SpaceToDepth", "BatchToSpace", "SpaceToBatch"),
        *("ExtractImagePatches", "Col2Im", "ReorgYolo", "StringTensorPack", "StringTensorUnpack"),
    }
)
