"""Floating weights rounded to 8 bits, symmetric and with a scale for each row: only if a user allows it.

Products and embeddings read fewer bytes; the CPU plug-in also quantises what such products are multiplied with
(DYNAMIC_QUANTIZATION_GROUP_SIZE). Recurrent weights stay as they are: the plug-in would unpack them when it compiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from coarsen.reading.rewriting.integer_products import QuantisedWeights, constant_value, unpack_weights
from coarsen.reading.rewriting.slices import set_name
from pipeline.core.arrays import Float32

LEAST_WEIGHTS = 1 << 12  # of a matrix; smaller ones stay in the caches as they are
MOST = 127


def compress_weights(model: ov.Model) -> list[str]:
    """Round the constant matrices of a model's products and embeddings to 8 bits; return the names of these operations.

    The model is changed. A product with a constant that is transposed or reshaped before is rewritten as well. Nothing
    is done where values are quantised to fixed scales.
    """
    operations = model.get_ordered_ops()
    if any(op.get_type_name() == "FakeQuantize" for op in operations):
        return []
    taken = {op.get_friendly_name() for op in operations}
    rewritten = []
    for op in operations:
        port = {"MatMul": 1, "Gather": 0}.get(op.get_type_name())
        matrix = None if port is None else _constant_matrix(op.input_value(port))
        if port is None or matrix is None or (op.get_type_name() == "Gather" and not _takes_rows(op)):
            continue
        name = op.get_friendly_name()
        if op.get_type_name() == "MatMul" and not op.get_attributes()["transpose_b"]:
            _transpose_product(op, unpack_weights(quantise_rows(np.ascontiguousarray(matrix.T)), name, taken), taken)
        else:
            op.input(port).replace_source_output(unpack_weights(quantise_rows(matrix), name, taken).output(0))
        rewritten.append(name)
    model.validate_nodes_and_infer_types()
    return rewritten


def quantise_rows(matrix: Float32) -> QuantisedWeights:
    """Return weights float32 [n, k] as int8 of -127 .. 127 with a scale for each row.

    >>> weights = quantise_rows(np.array([[127.0, -63.6], [0.0, 0.0]], np.float32))
    >>> weights.values.tolist(), weights.scale.tolist()
    ([[127, -64], [0, 0]], [[1.0], [1.0]])
    """
    greatest = np.abs(matrix).max(axis=1, keepdims=True)
    scale = np.where(greatest > 0, greatest / MOST, 1.0).astype(np.float32)
    return QuantisedWeights(np.rint(matrix / scale).astype(np.int32), scale)


def _constant_matrix(value: Any) -> Float32 | None:
    """Return a value that is always the same matrix of enough finite floating numbers, None where it is not."""
    if not value.get_element_type().is_real() or value.get_partial_shape().is_dynamic:
        return None
    shape = list(value.get_shape())
    if len(shape) != 2 or np.prod(shape) < LEAST_WEIGHTS:
        return None
    array = constant_value(value)
    return array.astype(np.float32) if array is not None and np.isfinite(array).all() else None


def _takes_rows(gather: Any) -> bool:
    """Return whether a Gather takes rows of a table."""
    axis = constant_value(gather.input_value(2))
    return axis is not None and axis.size == 1 and int(axis.ravel()[0]) == 0


def _transpose_product(op: Any, rows: Any, taken: set[str]) -> None:
    """Put a product with weights [n, k] in the place of one with weights [k, n], under its name."""
    name = op.get_friendly_name()
    taken.discard(name)
    product = set_name(opset.matmul(op.input_value(0), rows, op.get_attributes()["transpose_a"], True), name, taken)
    product.output(0).set_names(op.output(0).get_names())
    for reader in op.output(0).get_target_inputs():
        reader.replace_source_output(product.output(0))
