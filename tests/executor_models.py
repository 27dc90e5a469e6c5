"""Random small models for the executor, placements of them, and what they give when they are not split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from coarsen.reading.model.read import to_graph
from pipeline.core.devices import DeviceSpec
from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from runtime.machines.devices import discover_plugins, parse_devices
from tests.models import constant

WIDTH = 8


@dataclass(slots=True)
class RandomModel:
    """Builds a model of values [rows, WIDTH]; rows: -1 for dynamic."""

    rng: np.random.Generator
    rows: int
    values: list[Any]
    sinks: list[Any]
    count: int = 0

    def any(self) -> Any:
        """Return a value that is there, rather a late one."""
        late = len(self.values) - 1 - min(len(self.values) - 1, int(self.rng.geometric(0.4)) - 1)
        return self.values[late]

    def name(self) -> str:
        """Return a name for the next operation; now and then one that another has already."""
        self.count += 1
        return f"op{self.count if self.rng.random() < 0.9 else self.rng.integers(self.count + 1)}"

    def weight(self) -> Any:
        """Return a weight [WIDTH, WIDTH]: as it is, or unpacked from int8."""
        name = self.name()
        if self.rng.random() < 0.6:
            return constant(self.rng.standard_normal((WIDTH, WIDTH)) / 3, f"{name}.w")
        stored = constant(self.rng.integers(-90, 90, (WIDTH, WIDTH)), f"{name}.i8", np.int8)
        unpacked = op.convert(stored, "f32", name=f"{name}.unpack")
        return op.multiply(unpacked, constant(0.005, f"{name}.scale"), name=f"{name}.scaled")

    def add(self) -> None:
        """Add an operation, or a few."""
        kinds = ["unary", "unary", "add", "add", "matmul", "matmul", "split", "quantised", "choice"]
        kind = kinds[int(self.rng.integers(len(kinds)))]
        self.values.append(getattr(self, f"_{kind}")(self.any()))

    def _unary(self, x: Any) -> Any:
        return (op.relu, op.tanh, op.sigmoid)[int(self.rng.integers(3))](x, name=self.name())

    def _add(self, x: Any) -> Any:
        return op.add(x, self.any(), name=self.name())

    def _matmul(self, x: Any) -> Any:
        return op.tanh(op.matmul(x, self.weight(), False, False, name=self.name()), name=self.name())

    def _split(self, x: Any) -> Any:
        parts = op.split(x, constant(1, f"axis{self.count}", np.int64), 2)
        parts.set_friendly_name(self.name())
        left = op.relu(parts.output(0), name=self.name())
        return op.concat([parts.output(1), left], 1, name=self.name())

    def _quantised(self, x: Any) -> Any:
        limits = [constant(v, f"limit{self.count}.{i}") for i, v in enumerate((-1.0, 1.0, -1.0, 1.0))]
        levels = op.fake_quantize(x, *limits, 256)
        levels.set_friendly_name(self.name())
        return op.matmul(levels, self.weight(), False, False, name=self.name())

    def _choice(self, x: Any) -> Any:
        bodies = []
        for body in (op.relu, op.tanh):
            inner = op.parameter([self.rows, WIDTH], np.float32, name=f"inner{self.count}")
            bodies.append((inner, ov.Model([op.result(body(inner, name="body"))], [inner], "body")))
        axes = constant([0, 1], f"axes{self.count}", np.int64)
        total = op.reduce_sum(self.any(), axes, False, name=self.name())
        choice = op.if_op(op.greater(total, constant(0.0, f"zero{self.count}"), name=self.name()).output(0))
        choice.set_friendly_name(self.name())
        for (_, model), place in zip(bodies, (choice.set_then_body, choice.set_else_body), strict=True):
            place(model)
        choice.set_input(x.output(0), bodies[0][0], bodies[1][0])
        return choice.set_output(bodies[0][1].results[0], bodies[1][1].results[0]).get_node()

    def add_state(self, number: int) -> None:
        """Add a state to which a value is added in every inference."""
        info = VariableInfo()
        info.data_shape, info.data_type = ov.PartialShape([self.rows, WIDTH]), ov.Type.f32
        info.variable_id = f"state{number}"
        variable = Variable(info)
        read = op.read_value(constant(np.zeros((self.rows, WIDTH)), f"initial{number}"), variable)
        read.set_friendly_name(f"read{number}")
        new = op.tanh(op.add(read, self.any(), name=self.name()), name=self.name())
        assign = op.assign(new, variable)
        assign.set_friendly_name(f"assign{number}")
        self.sinks.append(assign)
        self.values.append(new)


def random_model(seed: int, size: int, *, dynamic: bool, state: bool) -> ov.Model:
    """Return a model of about `size` operations of all kinds, drawn from a seed."""
    rng = np.random.default_rng(seed)
    rows = -1 if dynamic else 2
    inputs = [op.parameter([rows, WIDTH], np.float32, name=name) for name in ("x", "y")[: 1 + int(rng.integers(2))]]
    made = RandomModel(rng, rows, list(inputs), [])
    for i in range(size):
        made.add()
        if state and i == size // 2:
            made.add_state(0)
    ends = [v for v in made.values[len(inputs) :] if not any(out.get_target_inputs() for out in v.outputs())]
    ends += [made.any() for _ in range(int(rng.integers(2)))]
    results = [op.result(value, name=f"out{i}") for i, value in enumerate(ends)]
    return ov.Model(results, made.sinks, inputs, "random")


def random_placement(graph: Graph, rng: np.random.Generator, names: tuple[str, ...] = ("A", "B")) -> Placement:
    """Return a placement that keeps colocation constraints, in runs of operations as real ones have."""
    device = np.cumsum(rng.random(graph.n) < 0.4).astype(np.int32) % len(names)
    for label in np.unique(graph.colocate[graph.colocate >= 0]).tolist():
        members = np.flatnonzero(graph.colocate == label)
        device[members] = device[members[0]]
    priority = rng.permutation(graph.n).astype(np.float64) if rng.random() < 0.5 else None
    return Placement(device, names, priority)


def graph_with_dynamic_cuts(model: ov.Model) -> Graph:
    """Return the graph of a model, tensors of dynamic shape not colocated."""
    return to_graph(model, source="0" * 64, dynamic_cuts=True)


def arrays_for(model: ov.Model, seed: int, rows: int = 2) -> list[Any]:
    """Return an array per input."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, WIDTH)).astype(np.float32) for _ in model.inputs]


COMPUTED = frozenset({"Relu", "Tanh", "Sigmoid", "Add", "MatMul", "Split", "Concat", "FakeQuantize", "If"})


def whole(model: ov.Model) -> ov.InferRequest:
    """Return a request of the model in one piece, on the CPU in f32; its outputs come first, then all that it computes.

    As all is an output, no memory is used twice: with one thread OpenVINO 2026.4.1 gives wrong outputs of some of these
    models otherwise.
    """
    seen = model.clone()
    computed = [op for op in seen.get_ordered_ops() if op.get_type_name() in COMPUTED]
    seen.add_outputs([out for op in computed for out in op.outputs()])
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "2"}
    return ov.Core().compile_model(seen, "CPU", properties).create_infer_request()


@cache
def two_threads() -> tuple[DeviceSpec, ...]:
    """Return devices A and B, two threads of the CPU each; see `whole` for why not one."""
    both = "CPU{INFERENCE_NUM_THREADS=2,INFERENCE_PRECISION_HINT=f32}"
    return parse_devices([f"A={both},B={both}"], discover_plugins())
