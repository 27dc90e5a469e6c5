"""Reverse-mode differentiation of recorded operations, a rule per type of operation.

Forward activations are read by the backward operations that need them, which keeps them alive until then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runtime.zoo.workloads.record import Record, Shape

RESIDENT: Mapping[str, int] = {"sgd": 3, "adam": 7}  # bytes per byte of a parameter, itself included
UPDATE_FLOPS: Mapping[str, int] = {"sgd": 2, "adam": 10}  # per parameter
UPDATE_TYPE: Mapping[str, str] = {"sgd": "ApplySGD", "adam": "ApplyAdam"}

Needs = Literal["nothing", "itself", "others", "inputs", "output", "all"]

# What the gradient of an input reads beyond the gradient of the output; types that are not named read all inputs.
NEEDS: Mapping[str, Needs] = {
    "Add": "nothing",
    "AvgPool": "nothing",
    "Concat": "nothing",
    "Dropout": "output",
    "Exp": "output",
    "MaxPool": "all",
    "Max": "all",
    "Mean": "nothing",
    "Mul": "others",
    "Pack": "nothing",
    "Relu": "output",
    "Sigmoid": "output",
    "Slice": "nothing",
    "Softmax": "output",
    "Sub": "nothing",
    "Sum": "nothing",
    "Tanh": "output",
    "Transpose": "nothing",
}

# The type of the gradient, where it is not the type of the operation with "Grad" behind it.
GRADIENT_TYPE: Mapping[str, str] = {
    "Concat": "Slice",
    "Pack": "Slice",
    "Slice": "Pad",
    "Sum": "Tile",
    "Transpose": "Transpose",
}


@dataclass(slots=True)
class _Sums:
    """What is known so far of the gradients of tensors, per tensor; rows: of a few rows of a variable only."""

    dense: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


Rule = Callable[[Record, int, Sequence[int | None]], list[int | None]]


def differentiate(record: Record, loss: int, *, optimizer: str, accumulate: bool) -> None:
    """Add gradients of a scalar or summed loss, and one update per trained variable."""
    last = len(record.names)
    variables = [i for i in range(last) if record.kinds[i] == "Variable" and record.trained[record.outputs[i][0]]]
    place = record.scope, record.layer, record.step
    start = record.producer[loss]
    record.scope, record.layer, record.step = "grad", record.layers[start], record.steps[start]
    sums = _Sums()
    sums.dense[record.base[loss]].append(record.add("Fill", (), (record.shapes[loss],))[0])
    for op in range(start, -1, -1):
        if record.kinds[op] == "Variable" or not record.trained[record.outputs[op][0]]:
            continue
        record.layer, record.step = record.layers[op], record.steps[op]
        given = [_sum_of(record, sums.dense.pop(t, []), record.shapes[t], record.names[op]) for t in record.outputs[op]]
        if any(g is not None for g in given):
            # Hand the gradients of an operation's outputs on to its inputs
            kind = record.kinds[op]
            rule = RULES.get(kind) or (_all_at_once if kind.startswith("Fused") else _one_by_one)
            for tensor, gradient in zip(record.data(op), rule(record, op, given), strict=True):
                base = record.base[tensor]
                if gradient is None or base < 0:
                    continue
                of_variable = record.kinds[record.producer[base]] == "Variable"
                if kind == "Gather" and of_variable:
                    sums.rows[base].append(gradient)
                elif accumulate and of_variable and sums.dense[base]:
                    total = (sums.dense[base].pop(), gradient)
                    shape = record.shapes[base]
                    name = f"{record.names[op]}/Accum"
                    sums.dense[base].append(
                        record.add("Accum", total, (shape,), flops=float(math.prod(shape)), name=name)[0]
                    )
                else:
                    sums.dense[base].append(gradient)
    for op in variables:
        _add_update(record, op, sums, optimizer)
    record.scope, record.layer, record.step = place


def _sum_of(record: Record, parts: Sequence[int], shape: Shape, name: str) -> int | None:
    """Return the sum of gradients; None if there are none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    flops = float(math.prod(shape) * (len(parts) - 1))
    return record.add("AddN", tuple(parts), (shape,), flops=flops, name=f"{name}/AddN")[0]


def _add_update(record: Record, op: int, sums: _Sums, optimizer: str) -> None:
    """Add the update of a variable, where it lives and in place; a variable that nothing reads has none."""
    variable = record.outputs[op][0]
    name, shape = record.names[op], record.shapes[variable]
    dense, rows = sums.dense.pop(variable, []), sums.rows.pop(variable, [])
    record.scope, record.layer, record.step = "", record.layers[op], record.steps[op]
    if len(rows) > 1:
        count = sum(math.prod(record.shapes[t][:-1]) for t in rows)
        rows = [record.add("Concat", tuple(rows), ((count, shape[-1]),), name=f"{name}/rows")[0]]
    total = _sum_of(record, [*dense, *rows], shape, name)
    if total is None:
        return
    size = record.sizes[variable if dense else total]
    flops = float(UPDATE_FLOPS[optimizer] * size // record.element_bytes)
    kind, index = UPDATE_TYPE[optimizer], len(record.names)
    inputs, reads = (variable, total), (size, -1)
    updated = record.add(kind, inputs, (shape,), flops=flops, name=f"{name}/Apply", owner=op, reads=reads)[0]
    record.sizes[updated] = 0
    record.weight_bytes[index] = (RESIDENT[optimizer] - 1) * record.sizes[variable]


def _one_by_one(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return gradients from one operation per input."""
    kind, inputs, output = record.kinds[op], record.data(op), record.outputs[op][0]
    needs = NEEDS.get(kind, "inputs")
    flops = record.flops[op]
    gradients: list[int | None] = []
    for i, tensor in enumerate(inputs):
        if not record.trained[tensor]:
            gradients.append(None)
            continue
        reads = [t for t in given if t is not None]
        if needs == "others":
            reads += [t for j, t in enumerate(inputs) if j != i]
        elif needs in ("inputs", "all"):
            reads += inputs
        if needs in ("output", "all"):
            reads.append(output)
        gradient = GRADIENT_TYPE.get(kind, f"{kind}Grad")
        shape = (record.shapes[tensor],)
        gradients.append(record.add(gradient, reads, shape, flops=flops, name=f"{record.names[op]}/d{i}")[0])
    return gradients


def _product_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradients of a product or convolution: each a product with the other factor."""
    x, w = record.data(op)
    types = PRODUCTS[record.kinds[op]]
    gradients: list[int | None] = []
    for tensor, other, kind, name in ((x, w, types[0], "dX"), (w, x, types[1], "dW")):
        if not record.trained[tensor]:
            gradients.append(None)
            continue
        reads = (*(t for t in given if t is not None), other)
        shape, full = (record.shapes[tensor],), f"{record.names[op]}/{name}"
        gradients.append(record.add(kind, reads, shape, flops=record.flops[op], name=full)[0])
    return gradients


def _all_at_once(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return gradients from one operation for all inputs: twice the work, it reads all that was read or made."""
    inputs = record.data(op)
    wanted = list(dict.fromkeys(t for t in inputs if record.trained[t]))
    reads = (*(t for t in given if t is not None), *inputs, *record.outputs[op])
    shapes = [record.shapes[t] for t in wanted]
    flops, name = 2 * record.flops[op], f"{record.names[op]}/d"
    outputs = record.add(f"{record.kinds[op]}Grad", reads, shapes, flops=flops, name=name)
    gradients = dict(zip(wanted, outputs, strict=True))
    return [gradients.pop(t, None) for t in inputs]


def _bias_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradients of x + bias: that of the output itself, and its sum over all rows."""
    bias = record.data(op)[1]
    if not record.trained[bias]:
        return [given[0], None]
    flops, name = record.flops[op], f"{record.names[op]}/dBias"
    total = record.add("BiasAddGrad", (_first_gradient(given),), (record.shapes[bias],), flops=flops, name=name)[0]
    return [given[0], total]


def _sum_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradients of a sum: that of the output itself for each input."""
    return [given[0] if record.trained[t] else None for t in record.data(op)]


def _gather_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradient of rows taken from a table: for a variable that of the output, as it updates these alone."""
    table = record.data(op)[0]
    if record.kinds[record.producer[table]] == "Variable":
        return [given[0] if record.trained[table] else None, None]
    return _one_by_one(record, op, given)


def _split_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradient of a split: its parts joined; parts that nothing reads are zeros, made on the spot."""
    x = record.data(op)[0]
    parts = tuple(t for t in given if t is not None)
    return [record.add("Concat", parts, (record.shapes[x],), name=f"{record.names[op]}/d0")[0]]


def _cross_entropy_gradient(record: Record, op: int, given: Sequence[int | None]) -> list[int | None]:
    """Return the gradient of a cross entropy: what the operation left behind, scaled."""
    backprop = record.outputs[op][1]
    shape, flops = record.shapes[backprop], float(math.prod(record.shapes[backprop]))
    return [
        record.add("Mul", (_first_gradient(given), backprop), (shape,), flops=flops, name=f"{record.names[op]}/d0")[0]
    ]


def _first_gradient(given: Sequence[int | None]) -> int:
    """Return the gradient of the first output."""
    if given[0] is None:
        raise ValueError("the first output of an operation has no gradient")
    return given[0]


# A product and the types of its two gradients.
PRODUCTS: Mapping[str, tuple[str, str]] = {
    "MatMul": ("MatMul", "MatMul"),
    "BatchMatMul": ("BatchMatMul", "BatchMatMul"),
    "Conv": ("ConvBackpropInput", "ConvBackpropFilter"),
    "GroupConv": ("GroupConvBackpropInput", "GroupConvBackpropFilter"),
}

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(PRODUCTS, _product_gradient),
    "AddN": _sum_gradient,
    "BatchNorm": _all_at_once,
    "BiasAdd": _bias_gradient,
    "Gather": _gather_gradient,
    "LayerNorm": _all_at_once,
    "SoftmaxCrossEntropy": _cross_entropy_gradient,
    "Split": _split_gradient,
}
