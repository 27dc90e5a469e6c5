"""Builds the graphs of networks that are known on paper only: shapes and FLOPs, no numbers inside.

    b = Builder("tf")
    with b.at("enc0/t3", layer=0, step=3):
        y = b.elementwise("Tanh", b.matmul(x, w))

Every method that adds an operation returns the number of the tensor it produces, and takes such numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.workloads import gradients as reverse
from runtime.zoo.workloads.record import Record, Shape

Fidelity = Literal["core", "tf", "fused"]
Optimizer = Literal["sgd", "adam"]
Gradients = Literal["accumulate", "addn"]

# Auxiliary operations that TensorFlow 1 adds to a kernel of each type.
GLUE: Mapping[str, int] = {
    "MatMul": 1,
    "BatchMatMul": 1,
    "Conv": 1,
    "Add": 1,
    "AddGrad": 2,
    "Mul": 1,
    "MulGrad": 3,
    "Concat": 1,
    "Slice": 2,
    "Split": 1,
    "Gather": 2,
    "Variable": 3,
    "ApplySGD": 1,
    "ApplyAdam": 1,
}

FLOPS_PER_ELEMENT: Mapping[str, int] = {"Softmax": 3, "BatchNorm": 4, "LayerNorm": 6}


class Builder:
    """Adds typed operations, differentiates what they compute, and makes the graph of it.

    fidelity: "core": kernels only; "tf": with the auxiliary operations of a framework around them; "fused": a
    generator may make one operation of a whole cell, see `fused`.
    element_bytes: of a number. glue: auxiliary operations per operation of a type, for fidelity "tf".

    >>> b = Builder()
    >>> x, w = b.placeholder((64, 8)), b.variable((8, 2), name="w")
    >>> b.training(b.reduce("Mean", b.matmul(x, w)))
    >>> b.workload().graph.names
    ('Placeholder', 'w', 'MatMul', 'Mean', 'grad/Fill', 'grad/Mean/d0', 'grad/MatMul/dW', 'w/Apply')
    """

    def __init__(
        self, fidelity: Fidelity = "core", *, element_bytes: int = 4, glue: Mapping[str, int] | None = None
    ) -> None:
        self.fidelity = fidelity
        self.record = Record((GLUE if glue is None else glue) if fidelity == "tf" else {}, element_bytes)

    @contextmanager
    def at(self, scope: str = "", *, layer: int | None = None, step: int | None = None) -> Iterator[None]:
        """Put operations into a scope of names within the current one, and give them a layer and a time step."""
        record = self.record
        before = record.scope, record.layer, record.step
        record.scope = "/".join(part for part in (record.scope, scope) if part)
        record.layer = record.layer if layer is None else layer
        record.step = record.step if step is None else step
        try:
            yield
        finally:
            record.scope, record.layer, record.step = before

    def shape(self, tensor: int) -> Shape:
        """Return the shape of a tensor."""
        return self.record.shapes[tensor]

    def op(
        self,
        type: str,
        inputs: Sequence[int],
        shape: Shape,
        *,
        flops: float = 0.0,
        name: str | None = None,
        colocate: int | None = None,
        reads: Sequence[int] | None = None,
    ) -> int:
        """Return the output of an operation of any type; its gradients, one per input, cost as much as itself each.

        colocate: a tensor whose operation must share a device with this one. reads: bytes read of each input, -1 for
        all of it.
        """
        owner = -1 if colocate is None else self.record.producer[colocate]
        return self.record.add(type, tuple(inputs), (shape,), flops=flops, name=name, owner=owner, reads=reads)[0]

    def fused(self, type: str, inputs: Sequence[int], shapes: Sequence[Shape], *, flops: float) -> range:
        """Return the outputs of one operation that does the work of many; one operation computes all its gradients."""
        return self.record.add(f"Fused{type}", tuple(inputs), shapes, flops=flops)

    def placeholder(self, shape: Shape, *, name: str | None = None) -> int:
        """Return data fed from outside, to which no gradient flows."""
        return self.record.add("Placeholder", (), (_check_positive(shape),), name=name)[0]

    def variable(self, shape: Shape, *, name: str | None = None, trained: bool = True) -> int:
        """Return a variable: its bytes are resident where it lives, and readers elsewhere get a copy."""
        tensor = self.record.add("Variable", (), (_check_positive(shape),), name=name)[0]
        self.record.weight_bytes[self.record.producer[tensor]] = self.record.sizes[tensor]
        self.record.trained[tensor] = trained
        return tensor

    def reshape(self, x: int, shape: Shape) -> int:
        """Return another view of x; takes no operation."""
        if math.prod(shape) != math.prod(self.shape(x)):
            raise ValueError(f"{self.shape(x)} cannot be seen as {shape}")
        return self.record.view(x, shape)

    def stop_gradient(self, x: int) -> int:
        """Return a view of x that lets no gradient through; takes no operation."""
        return self.record.view(x, self.shape(x), barrier=True)

    def matmul(self, x: int, w: int, *, transpose: bool = False) -> int:
        """Return x [..., m, k] times w [k, n] or [..., k, n]; with `transpose`, w is given as [..., n, k]."""
        a, b = self.shape(x), self.shape(w)
        inner, columns = (b[-1], b[-2]) if transpose else (b[-2], b[-1])
        if a[-1] != inner or (len(b) > 2 and a[:-2] != b[:-2]):
            raise ValueError(f"{a} cannot be multiplied by {b}")
        shape = (*a[:-1], columns)
        kind = "MatMul" if len(b) == 2 else "BatchMatMul"
        return self.record.add(kind, (x, w), (shape,), flops=2.0 * math.prod(shape) * inner)[0]

    def bias(self, x: int, bias: int) -> int:
        """Return x [..., c] plus bias [c]."""
        return self._same("BiasAdd", (x, bias))

    def dense(self, x: int, units: int, *, bias: bool = True) -> int:
        """Return x [..., k] times a new variable [k, units], plus a bias."""
        y = self.matmul(x, self.variable((self.shape(x)[-1], units), name="weights"))
        return self.bias(y, self.variable((units,), name="bias")) if bias else y

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        *,
        dilation: int = 1,
        padding: Literal["same", "valid", "causal"] = "same",
        groups: int = 1,
    ) -> int:
        """Return x [b, spatial..., c] convolved with a new variable [kernel..., c / groups, filters], without bias."""
        b, *spatial, c = self.shape(x)
        size, steps = _per_axis(kernel, len(spatial)), _per_axis(stride, len(spatial))
        if c % groups or filters % groups:
            raise ValueError(f"{groups} groups cannot share {c} channels and {filters} filters")
        w = self.variable((*size, c // groups, filters), name="weights")
        wide = [dilation * (k - 1) + 1 for k in size]
        shape = (b, *_windows(spatial, wide, steps, padding), filters)
        flops = 2.0 * math.prod(shape) * math.prod(size) * (c // groups)
        return self.record.add("Conv" if groups == 1 else "GroupConv", (x, w), (shape,), flops=flops)[0]

    def pool(
        self,
        type: Literal["MaxPool", "AvgPool"],
        x: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        *,
        padding: Literal["same", "valid"] = "same",
    ) -> int:
        """Return the maximum or mean of each window of x [b, spatial..., c]."""
        b, *spatial, c = self.shape(x)
        size, steps = _per_axis(kernel, len(spatial)), _per_axis(stride, len(spatial))
        shape = (b, *_windows(spatial, size, steps, padding), c)
        return self.record.add(type, (x,), (shape,), flops=float(math.prod(shape) * math.prod(size)))[0]

    def batch_norm(self, x: int) -> int:
        """Return x [..., c] normalised, scaled by a new variable [c] and shifted by another."""
        c = self.shape(x)[-1]
        return self._same("BatchNorm", (x, self.variable((c,), name="gamma"), self.variable((c,), name="beta")))

    def layer_norm(self, x: int, gamma: int, beta: int) -> int:
        """Return x [..., c] normalised over its last axis, scaled by gamma [c] and shifted by beta [c]."""
        return self._same("LayerNorm", (x, gamma, beta))

    def elementwise(self, type: str, *inputs: int) -> int:
        """Return an operation on each element; inputs of different shapes are broadcast."""
        shapes = [self.shape(t) for t in inputs]
        shape = shapes[0] if all(s == shapes[0] for s in shapes) else np.broadcast_shapes(*shapes)
        flops = float(math.prod(shape) * max(1, len(inputs) - 1) * FLOPS_PER_ELEMENT.get(type, 1))
        return self.record.add(type, inputs, (shape,), flops=flops)[0]

    def softmax(self, x: int) -> int:
        """Return the softmax over the last axis."""
        return self.elementwise("Softmax", x)

    def concat(self, inputs: Sequence[int], axis: int = -1) -> int:
        """Return tensors joined along an axis."""
        shape = list(self.shape(inputs[0]))
        shape[axis] = sum(self.shape(t)[axis] for t in inputs)
        return self.record.add("Concat", tuple(inputs), (tuple(shape),))[0]

    def stack(self, inputs: Sequence[int], axis: int = 0) -> int:
        """Return tensors of one shape joined along a new axis, which must not be counted from the end."""
        shape = list(self.shape(inputs[0]))
        shape.insert(axis, len(inputs))
        return self.record.add("Pack", tuple(inputs), (tuple(shape),))[0]

    def split(self, x: int, parts: int | Sequence[int], axis: int = -1) -> list[int]:
        """Return x cut into equal parts, or parts of the given sizes, along an axis: one operation, several tensors."""
        shape = list(self.shape(x))
        sizes = [shape[axis] // parts] * parts if isinstance(parts, int) else list(parts)
        if sum(sizes) != shape[axis]:
            raise ValueError(f"{shape[axis]} cannot be cut into {sizes}")
        shapes = []
        for size in sizes:
            shape[axis] = size
            shapes.append(tuple(shape))
        return list(self.record.add("Split", (x,), shapes))

    def slice(self, x: int, shape: Shape) -> int:
        """Return a part of x of the given shape."""
        return self.record.add("Slice", (x,), (shape,))[0]

    def transpose(self, x: int, order: Sequence[int]) -> int:
        """Return x with its axes in another order."""
        shape = self.shape(x)
        return self.record.add("Transpose", (x,), (tuple(shape[i] for i in order),))[0]

    def reduce(self, type: Literal["Sum", "Mean", "Max"], x: int, axes: Sequence[int] | None = None) -> int:
        """Return x reduced over the given axes, which vanish; over all by default."""
        shape = self.shape(x)
        gone = range(len(shape)) if axes is None else [a % len(shape) for a in axes]
        kept = tuple(s for i, s in enumerate(shape) if i not in gone)
        return self.record.add(type, (x,), (kept,), flops=float(math.prod(shape)))[0]

    def gather(self, table: int, rows: int) -> int:
        """Return the rows [...] of a variable [v, c]: [..., c], computed where the variable lives."""
        shape = (*self.shape(rows), self.shape(table)[-1])
        size = math.prod(shape) * self.record.element_bytes
        return self.op("Gather", (table, rows), shape, colocate=table, reads=(size, -1))

    def cross_entropy(self, logits: int) -> int:
        """Return the loss [...] of logits [..., v]; the operation computes the gradient of its softmax as well."""
        shape = self.shape(logits)
        flops = 4.0 * math.prod(shape)
        return self.record.add("SoftmaxCrossEntropy", (logits,), (shape[:-1], shape), flops=flops)[0]

    def training(self, loss: int, *, optimizer: Optimizer = "sgd", gradients: Gradients = "accumulate") -> None:
        """Add what one training step needs beyond the loss: gradients, their sums, an update per trained variable.

        optimizer: with SGD a parameter takes 3 times its bytes in all, with Adam 7 times.
        gradients: of a variable with several readers: "accumulate" adds each to a running sum as it is known; "addn"
        keeps all of them until one operation adds them up.
        """
        reverse.differentiate(self.record, loss, optimizer=optimizer, accumulate=gradients == "accumulate")

    def workload(self) -> Workload:
        """Return the graph built so far, with the tags of its operations; it knows no times."""
        return self.record.workload()

    def _same(self, kind: str, inputs: tuple[int, ...]) -> int:
        """Return an operation whose output has the shape of its first input."""
        shape = self.shape(inputs[0])
        flops = float(math.prod(shape) * FLOPS_PER_ELEMENT.get(kind, 1))
        return self.record.add(kind, inputs, (shape,), flops=flops)[0]


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The options that all networks share.

    training: whether gradients and updates belong to the graph; for the others see `Builder`.
    """

    fidelity: Fidelity = "tf"
    training: bool = True
    optimizer: Optimizer = "sgd"
    gradients: Gradients = "accumulate"

    def builder(self, glue: Mapping[str, int] | None = None) -> Builder:
        """Return an empty builder."""
        return Builder(self.fidelity, glue=glue)

    def finish(self, builder: Builder, loss: int) -> Workload:
        """Return the network that ends in `loss`, made trainable if the recipe says so."""
        if self.training:
            builder.training(loss, optimizer=self.optimizer, gradients=self.gradients)
        return builder.workload()


USUAL = NetworkOptions()


def require(least: int, **sizes: int) -> None:
    """Do nothing if all sizes are at least `least`.

    Raises:
        UsageError: a size is less.
    """
    for name, size in sizes.items():
        if size < least:
            raise UsageError(f"{name} is {size}.", f"Give at least {least}.")


def _check_positive(shape: Shape) -> Shape:
    """Return the shape.

    Raises:
        UsageError: a dimension is less than 1.
    """
    if min(shape, default=1) < 1:
        raise UsageError(f"A tensor would have the shape {shape}.", "Give sizes, layers and steps of at least 1.")
    return shape


def _per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Return one number per axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _windows(spatial: Sequence[int], size: Sequence[int], stride: Sequence[int], padding: str) -> tuple[int, ...]:
    """Return how many windows fit along each axis."""
    lost = [k - 1 if padding == "valid" else 0 for k in size]
    return tuple(-(-(n - gone) // step) for n, gone, step in zip(spatial, lost, stride, strict=True))
