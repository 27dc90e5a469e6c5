"""Families of small ONNX models, drawn from a generator, with the habits of exporters; `FAMILIES` names them.

Each function draws one model into a `Drawing` and says what goes in and comes out. What it draws: the number and sizes
of layers, and of several ways in which exporters write the same thing, one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from tests.exported_models import BOOL, FLOAT, INT64, Dim, OnnxGraph

LOWEST = float(np.finfo(np.float32).min)
QUANTISED = ("dynamic", "dynamic per channel", "dynamic unsigned")
STATIC = ("qdq", "qdq per channel")
HALF = "half weights"
Outputs = dict[str, tuple[str, int, Sequence[Dim | None]]]  # name -> (tensor, type, shape)
Value = TypeVar("Value")


@dataclass(slots=True)
class Drawn:
    """What a drawn model takes and gives.

    inputs: name -> (type, shape); outputs: name -> (tensor, type, shape). sizes: shapes to run it with. vocabulary: of
    ids. treatments: ways in which it may be quantised or stored.
    """

    inputs: Mapping[str, tuple[int, Sequence[Dim]]]
    outputs: Outputs
    sizes: Mapping[str, Sequence[int]]
    vocabulary: int = 1000
    treatments: Sequence[str] = ()


@dataclass(slots=True)
class Drawing(OnnxGraph):
    """An ONNX graph in the making, and the choices in it."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def pick(self, *options: Value) -> Value:
        """Return one of some options."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float = 0.5) -> bool:
        """Return whether something is so, with a probability."""
        return bool(self.rng.random() < share)

    def number(self, value: float) -> str:
        """Add a constant of no dimension; return its name."""
        return self.const(value, np.float32)

    def dense(self, x: str, before: int, after: int) -> str:
        """Add a matrix product over the last dimension, the weight as it is or transposed, with a bias or without."""
        width = before**0.5
        if self.chance(0.2):  # torch folds no Transpose of weights that a tool quantised or tied
            product = self.op("MatMul", x, self.op("Transpose", self.const(
                self.rng.standard_normal((after, before)) / width, np.float32), perm=[1, 0]))  # fmt: skip
        else:
            product = self.op("MatMul", x, self.const(self.rng.standard_normal((before, after)) / width, np.float32))
        if self.chance(0.2):
            return str(product)
        bias = self.const(self.rng.standard_normal(after) / 10, np.float32)
        return str(self.op("Add", *((product, bias) if self.chance() else (bias, product))))

    def norm(self, x: str, width: int) -> str:
        """Add a layer normalisation or T5's, as one operation or as its parts."""
        scale = self.const(1 + self.rng.standard_normal(width) / 10, np.float32)
        shift = self.const(self.rng.standard_normal(width) / 10, np.float32)
        way = self.pick("whole", "parts", "rms")
        if way == "whole":
            return str(self.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5))
        centred = x if way == "rms" else self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.number(2.0)), axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.number(1e-6)))
        if self.chance():
            y = self.op("Div", centred, deviation)
        else:
            y = self.op("Mul", centred, self.op("Reciprocal", deviation))
        y = self.op("Mul", scale, y)
        return str(y if way == "rms" else self.op("Add", y, shift))

    def gelu(self, x: str) -> str:
        """Add an activation of transformers: GELU by Erf or Tanh, Relu, or SiLU."""
        match self.pick("erf", "tanh", "relu", "silu"):
            case "erf":
                erf = self.op("Erf", self.op("Div", x, self.number(2.0**0.5)))
                return str(self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.number(1.0))), self.number(0.5)))
            case "tanh":
                cube = self.op("Mul", self.op("Pow", x, self.number(3.0)), self.number(0.044715))
                inner = self.op("Mul", self.op("Add", x, cube), self.number((2 / np.pi) ** 0.5))
                one = self.op("Add", self.op("Tanh", inner), self.number(1.0))
                return str(self.op("Mul", self.op("Mul", x, self.number(0.5)), one))
            case "relu":
                return str(self.op("Relu", x))
        return str(self.op("Mul", x, self.op("Sigmoid", x)))

    def length(self, x: str, axis: int) -> str:
        """Add one size of a tensor as a tensor of no dimension."""
        return str(self.op("Gather", self.op("Shape", x), self.const(axis), axis=0))

    def positions(self, x: str, axis: int = 1) -> str:
        """Add 0, 1, ... along an axis of a tensor: a Range, or a Slice of a constant."""
        if self.chance():
            return str(self.op("Range", self.const(0), self.length(x, axis), self.const(1)))
        table = self.const(np.arange(512))
        return str(self.op("Slice", table, self.const([0]), self.size(x, axis), self.const([0]), self.const([1])))

    def cast_float(self, x: str) -> str:
        """Add a conversion to f32."""
        return str(self.op("Cast", x, to=FLOAT))


def mask_bias(g: Drawing, mask: str) -> str:
    """Add what is added to attention scores: about 0 where a mask is 1, about the lowest number where it is 0."""
    four = g.op("Unsqueeze", mask, g.const([1, 2])) if g.chance() else g.op(
        "Unsqueeze", g.op("Unsqueeze", mask, g.const([1])), g.const([2])
    )  # fmt: skip
    match g.pick("subtract", "subtract", "where", "where infinite", "where not"):
        case "subtract":
            low = g.pick(LOWEST, LOWEST, -10000.0, -1e9)
            return str(g.op("Mul", g.op("Sub", g.number(1.0), g.cast_float(four)), g.number(low)))
        case "where":
            return str(g.op("Where", g.op("Cast", four, to=BOOL), g.number(0.0), g.number(LOWEST)))
        case "where infinite":
            return str(g.op("Where", g.op("Cast", four, to=BOOL), g.number(0.0), g.number(-np.inf)))
    return str(g.op("Where", g.op("Equal", four, g.const(0)), g.number(LOWEST), g.number(0.0)))


def relative_bias(g: Drawing, queries: str, keys: str, heads: int, *, causal: bool) -> str:
    """Add T5's bias of relative positions, [1, heads, queries, keys]: buckets by Log, Min and Where, and a table."""
    buckets, far = 16, 64
    there = g.op("Unsqueeze", g.positions(keys), g.const([0]))
    here = g.op("Unsqueeze", g.positions(queries), g.const([1]))
    step = g.op("Sub", there, here)
    if causal:
        offset, count = g.const(0), buckets
        step = g.op("Neg", g.op("Min", step, g.const(0)))
    else:
        count = buckets // 2
        offset = g.op("Mul", g.op("Cast", g.op("Greater", step, g.const(0)), to=INT64), g.const(count))
        step = g.op("Abs", step)
    exact = count // 2
    ratio = g.op("Log", g.op("Div", g.cast_float(step), g.number(float(exact))))
    scaled = g.op("Mul", g.op("Div", ratio, g.number(float(np.log(far / exact)))), g.number(float(count - exact)))
    large = g.op("Add", g.op("Cast", scaled, to=INT64), g.const(exact))
    if g.chance():
        large = g.op("Min", large, g.const(count - 1))
    else:  # torch.full_like of the shape
        full = g.op("Expand", g.const([count - 1]), g.op("Shape", large))
        large = g.op("Where", g.op("Less", large, full), large, full)
    bucket = g.op("Add", offset, g.op("Where", g.op("Less", step, g.const(exact)), step, large))
    bias = g.op("Gather", g.const(g.rng.standard_normal((buckets, heads)), np.float32), bucket, axis=0)
    return str(g.op("Unsqueeze", g.op("Transpose", bias, perm=[2, 0, 1]), g.const([0])))


def heads_of(g: Drawing, x: str, heads: int, each: int, perm: Sequence[int]) -> str:
    """Add the split of the last dimension into heads, by a Reshape whose sizes Shape nodes tell or by -1."""
    if g.chance(0.7):
        target = g.op("Concat", g.size(x, 0), g.const([-1]), g.const([heads]), g.const([each]), axis=0)
    else:
        target = g.const([0, -1, heads, each])
    return str(g.op("Transpose", g.op("Reshape", x, target), perm=list(perm)))


def attention(g: Drawing, x: str, other: str, bias: str, width: int, heads: int, *, scaled: bool) -> str:
    """Add attention of x to another sequence; bias: of the scores, "" for none."""
    each = width // heads
    q = heads_of(g, g.dense(x, width, width), heads, each, [0, 2, 1, 3])
    if g.chance():
        k = heads_of(g, g.dense(other, width, width), heads, each, [0, 2, 3, 1])
    else:
        k = g.op("Transpose", heads_of(g, g.dense(other, width, width), heads, each, [0, 2, 1, 3]), perm=[0, 1, 3, 2])
    v = heads_of(g, g.dense(other, width, width), heads, each, [0, 2, 1, 3])
    scores = g.op("MatMul", q, k)
    if scaled:
        scores = g.op("Div", scores, g.number(each**0.5)) if g.chance() else g.op("Mul", scores, g.number(each**-0.5))
    if bias:
        scores = g.op("Add", scores, bias)
    weights = g.op("Softmax", scores, axis=-1)
    if g.chance(0.3):  # scaled_dot_product_attention guards rows that are masked altogether
        weights = g.op("Where", g.op("IsNaN", weights), g.number(0.0), weights)
    whole = g.op("Concat", g.size(x, 0), g.size(x, 1), g.const([width]), axis=0)
    y = g.op("Reshape", g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3]), whole)
    return g.dense(y, width, width)


IDS = (INT64, ["batch", "sequence"])


def t5_encoder(g: Drawing) -> Drawn:
    """Layers of T5's encoder: a bias of relative positions, to which the mask is added, shared by all layers."""
    heads, each, vocabulary, length = g.pick(2, 4), g.pick(8, 16), 200, g.pick(7, 12, 24, 64)
    width = heads * each
    x = g.op("Gather", g.const(g.rng.standard_normal((vocabulary, width)), np.float32), "input_ids", axis=0)
    bias = relative_bias(g, "input_ids", "input_ids", heads, causal=False)
    bias = g.op("Add", bias, mask_bias(g, "attention_mask"))
    for _ in range(g.pick(1, 2, 3)):
        normed = g.norm(x, width)
        x = g.op("Add", x, attention(g, normed, normed, bias, width, heads, scaled=False))
        x = g.op("Add", x, g.dense(g.gelu(g.dense(g.norm(x, width), width, 2 * width)), 2 * width, width))
    out: Outputs = {"last_hidden_state": (g.norm(x, width), FLOAT, ["batch", "sequence", width])}
    size = [g.pick(1, 1, 2), length]
    sizes = dict.fromkeys(("input_ids", "attention_mask"), size)
    return Drawn(dict.fromkeys(sizes, IDS), out, sizes, vocabulary, (*QUANTISED, HALF))


def t5_decoder(g: Drawing) -> Drawn:
    """Layers of T5's decoder: causal attention with relative positions, and attention to an encoder's output."""
    heads, each, vocabulary = g.pick(2, 4), g.pick(8, 16), 200
    width, length, source = heads * each, g.pick(5, 9, 16), g.pick(6, 17)
    x = g.op("Gather", g.const(g.rng.standard_normal((vocabulary, width)), np.float32), "input_ids", axis=0)
    here, there = (g.op("Unsqueeze", g.positions("input_ids"), g.const([axis])) for axis in (1, 0))
    allowed = g.op("LessOrEqual", there, here)
    if g.chance():
        later = g.op("Mul", g.op("Sub", g.number(1.0), g.cast_float(allowed)), g.number(LOWEST))
    else:
        later = g.op("Where", allowed, g.number(0.0), g.number(g.pick(LOWEST, -np.inf)))
    bias = g.op("Add", relative_bias(g, "input_ids", "input_ids", heads, causal=True), later)
    crossing = mask_bias(g, "encoder_attention_mask")
    for _ in range(g.pick(1, 2)):
        normed = g.norm(x, width)
        x = g.op("Add", x, attention(g, normed, normed, bias, width, heads, scaled=False))
        x = g.op("Add", x, attention(g, g.norm(x, width), "hidden", crossing, width, heads, scaled=False))
        x = g.op("Add", x, g.dense(g.gelu(g.dense(g.norm(x, width), width, 2 * width)), 2 * width, width))
    batch = g.pick(1, 2)
    return Drawn(
        {"input_ids": IDS, "encoder_attention_mask": (INT64, ["batch", "source"]),
         "hidden": (FLOAT, ["batch", "source", width])},
        {"logits": (g.dense(x, width, 50), FLOAT, ["batch", "sequence", 50])},
        {"input_ids": [batch, length], "encoder_attention_mask": [batch, source], "hidden": [batch, source, width]},
        vocabulary,
        (*QUANTISED, HALF),
    )  # fmt: skip


def bert(g: Drawing) -> Drawn:
    """BERT-like layers with a head: classes of tokens, of the first token, or the mean over the mask, normalised."""
    heads, each, vocabulary, length = g.pick(2, 4), g.pick(8, 16), 150, g.pick(8, 16, 33)
    width = heads * each
    x = g.op("Gather", g.const(g.rng.standard_normal((vocabulary, width)), np.float32), "input_ids", axis=0)
    where = g.positions("input_ids") if g.chance() else g.op(  # RoBERTa counts tokens that are no padding
        "Mul", g.op("CumSum", "attention_mask", g.const(1)), "attention_mask")  # fmt: skip
    x = g.op("Add", x, g.op("Gather", g.const(g.rng.standard_normal((513, width)), np.float32), where, axis=0))
    x = g.norm(x, width)
    bias = mask_bias(g, "attention_mask")
    for _ in range(g.pick(1, 2, 3)):
        x = g.norm(g.op("Add", x, attention(g, x, x, bias, width, heads, scaled=True)), width)
        x = g.norm(g.op("Add", x, g.dense(g.gelu(g.dense(x, width, 2 * width)), 2 * width, width)), width)
    out: Outputs
    match g.pick("tokens", "first", "mean", "last"):
        case "tokens":
            out = {"logits": (g.dense(x, width, 9), FLOAT, ["batch", "sequence", 9])}
        case "first":
            y = g.op("Tanh", g.dense(g.op("Gather", x, g.const(0), axis=1), width, width))
            y = g.op("Gemm", y, g.weight(5, width), g.const(np.zeros(5), np.float32), transB=1)
            out = {"logits": (y, FLOAT, ["batch", 5])}
        case "mean":
            m = g.op("Expand", g.op("Unsqueeze", g.cast_float("attention_mask"), g.const([2])), g.op("Shape", x))
            count = g.op("Clip", g.op("ReduceSum", m, g.const([1]), keepdims=0), g.number(1e-9))
            y = g.op("Div", g.op("ReduceSum", g.op("Mul", x, m), g.const([1]), keepdims=0), count)
            norm = g.op("Clip", g.op("ReduceL2", y, axes=[1], keepdims=1), g.number(1e-12))
            out = {"embedding": (g.op("Div", y, g.op("Expand", norm, g.op("Shape", y))), FLOAT, ["batch", width])}
        case _:  # the state of the largest id, as CLIP takes the end of a text
            rows = g.op("Range", g.const(0), g.length(x, 0), g.const(1))
            best = g.op("ArgMax", "input_ids", axis=-1, keepdims=0)
            pairs = g.op("Concat", g.op("Unsqueeze", rows, g.const([1])), g.op("Unsqueeze", best, g.const([1])), axis=1)
            out = {"embedding": (g.op("GatherND", x, pairs), FLOAT, ["batch", width])}
    size = [g.pick(1, 1, 3), length]
    sizes = dict.fromkeys(("input_ids", "attention_mask"), size)
    return Drawn(dict.fromkeys(sizes, IDS), out, sizes, vocabulary, (*QUANTISED, HALF, *STATIC))


def cached_decoder(g: Drawing) -> Drawn:
    """A causal layer with rotary positions whose keys and values of earlier tokens go in and come out."""
    heads, each, vocabulary, past = g.pick(2, 4), g.pick(8, 16), 120, g.pick(4, 11)
    groups = g.pick(1, 2)
    width, length = heads * each, g.pick(1, 1, 3)
    x = g.op("Gather", g.const(g.rng.standard_normal((vocabulary, width)), np.float32), "input_ids", axis=0)
    before = g.length("past_key", 2)
    end = g.op("Add", before, g.length("input_ids", 1))
    where = g.cast_float(g.op("Range", before, end, g.const(1)))
    turns = g.const(10000.0 ** (-np.arange(0, each, 2) / each), np.float32)
    angles = g.op("Mul", g.op("Unsqueeze", where, g.const([1])), turns)
    angles = g.op("Concat", angles, angles, axis=-1)
    cos, sin = g.op("Cos", angles), g.op("Sin", angles)

    def rotated(y: str) -> str:
        first = g.op("Slice", y, g.const([0]), g.const([each // 2]), g.const([3]))
        second = g.op("Slice", y, g.const([each // 2]), g.const([np.iinfo(np.int64).max]), g.const([3]))
        turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return str(g.op("Add", g.op("Mul", y, cos), g.op("Mul", turned, sin)))

    normed = g.norm(x, width)
    q = rotated(heads_of(g, g.dense(normed, width, width), heads, each, [0, 2, 1, 3]))
    keys = heads_of(g, g.dense(normed, width, groups * each), groups, each, [0, 2, 1, 3])
    keys = g.op("Concat", "past_key", rotated(keys), axis=2)
    values = heads_of(g, g.dense(normed, width, groups * each), groups, each, [0, 2, 1, 3])
    values = g.op("Concat", "past_value", values, axis=2)

    def repeated(y: str) -> str:
        if groups == heads:
            return y
        five = g.op("Unsqueeze", y, g.const([2]))
        shape = g.op("Concat", g.size(y, 0), g.const([groups, heads // groups]), g.size(y, 2), g.const([each]), axis=0)
        flat = g.op("Concat", g.size(y, 0), g.const([heads]), g.size(y, 2), g.const([each]), axis=0)
        return str(g.op("Reshape", g.op("Expand", five, shape), flat))

    scores = g.op("MatMul", q, g.op("Transpose", repeated(keys), perm=[0, 1, 3, 2]))
    scores = g.op("Mul", scores, g.number(each**-0.5))
    rows = g.op("Unsqueeze", g.op("Range", before, end, g.const(1)), g.const([1]))
    columns = g.op("Unsqueeze", g.op("Range", g.const(0), end, g.const(1)), g.const([0]))
    low = g.number(g.pick(LOWEST, -np.inf, -1e4))
    scores = g.op("Add", scores, g.op("Where", g.op("Greater", columns, rows), low, g.number(0.0)))
    y = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), repeated(values)), perm=[0, 2, 1, 3])
    y = g.op("Reshape", y, g.op("Concat", g.size(x, 0), g.size(x, 1), g.const([width]), axis=0))
    x = g.op("Add", x, g.dense(y, width, width))
    gate = g.gelu(g.dense(g.norm(x, width), width, 2 * width))
    x = g.op("Add", x, g.dense(g.op("Mul", gate, g.dense(x, width, 2 * width)), 2 * width, width))
    state: tuple[int, Sequence[Dim]] = (FLOAT, ["batch", groups, "past", each])
    grown: Sequence[Dim | None] = ["batch", groups, "total", each]
    size = [1, groups, past, each]
    return Drawn(
        {"input_ids": IDS, "past_key": state, "past_value": state},
        {
            "logits": (g.dense(x, width, 40), FLOAT, ["batch", "sequence", 40]),
            "key": (keys, FLOAT, grown),
            "value": (values, FLOAT, grown),
        },
        {"input_ids": [1, length], "past_key": size, "past_value": size},
        vocabulary,
        (*QUANTISED, HALF),
    )


def activation(g: Drawing, x: str, channels: int) -> str:
    """Add an activation of convolutional networks."""
    match g.pick("Relu", "HardSwish", "SiLU", "Mish", "PRelu", "LeakyRelu", "Elu", "Clip", "HardSigmoid", "Softplus"):
        case "SiLU":
            return str(g.op("Mul", x, g.op("Sigmoid", x)))
        case "Mish":
            return str(g.op("Mul", x, g.op("Tanh", g.op("Softplus", x))))
        case "PRelu":
            return str(g.op("PRelu", x, g.const(g.rng.random((channels, 1, 1)), np.float32)))
        case "Clip":
            return str(g.op("Clip", x, g.number(0.0), g.number(6.0)))
        case "HardSigmoid":
            return str(g.op("Mul", x, g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)))
        case kind:
            return str(g.op(kind, x))


def any_conv(g: Drawing, x: str, before: int, after: int, *, stride: int = 1) -> str:
    """Add a convolution: grouped, by depth, dilated, with padding on one side or by the framework's rule."""
    kernel = g.pick(1, 2, 3, 3, 5)
    dilation = g.pick(1, 1, 2) if stride == 1 else 1
    groups = g.pick(1, 1, 2, before) if before == after else g.pick(1, 1, 2)
    groups = groups if before % groups == 0 and after % groups == 0 else 1
    total = dilation * (kernel - 1)
    low = g.pick(total // 2, total // 2, 0, total)
    how: dict[str, Any] = {"pads": [low, g.pick(low, total - low), total - low, total - low]}
    how["pads"][1], how["pads"][3] = low, total - low
    if g.chance(0.25) and dilation == 1:
        how = {"auto_pad": g.pick("SAME_UPPER", "SAME_LOWER")}
    weight = g.weight(after, before // groups, kernel, kernel)
    bias = [] if g.chance(0.3) else [g.const(g.rng.standard_normal(after) / 10, np.float32)]
    size: dict[str, Any] = {
        "kernel_shape": [kernel] * 2,
        "strides": [stride] * 2,
        "dilations": [dilation] * 2,
        "group": groups,
    }
    y = str(g.op("Conv", x, weight, *bias, **size, **how))
    if g.chance(0.5):
        scale, shift, mean = 1 + g.rng.random(after) / 5, *g.rng.standard_normal((2, after)) / 10
        around = [g.const(v, np.float32) for v in (scale, shift, mean, 0.5 + g.rng.random(after))]
        y = str(g.op("BatchNormalization", y, *around, epsilon=1e-3))
    return y


def excited(g: Drawing, x: str, channels: int) -> str:
    """Add squeeze and excitation: channels weighed by what their means say."""
    mean = g.op("GlobalAveragePool", x) if g.chance() else g.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    inner = g.op("Relu", g.conv(mean, channels, max(2, channels // 4), kernel=1, relu=False))
    gate = g.op(g.pick("Sigmoid", "HardSigmoid"), g.conv(inner, max(2, channels // 4), channels, kernel=1, relu=False))
    return str(g.op("Mul", x, gate) if g.chance() else g.op("Mul", gate, x))


def convolutions(g: Drawing) -> Drawn:
    """A classifier of images of convolutions of all kinds, pooling of all kinds, and a head."""
    side, channels = g.pick(15, 24, 33), g.pick(4, 8, 16)
    y = activation(g, any_conv(g, "input", 3, channels, stride=2), channels)
    for _ in range(g.pick(2, 3, 4)):
        branch = activation(g, any_conv(g, y, channels, channels), channels)
        branch = excited(g, branch, channels) if g.chance(0.4) else branch
        y = g.op("Add", y, branch) if g.chance(0.7) else branch
        if g.chance(0.3):
            after = channels * 2
            left, right = (any_conv(g, y, channels, channels) for _ in range(2))
            y, channels = g.op("Concat", left, right, axis=1), after
        if g.chance(0.25):  # channels shuffled
            five = g.op("Reshape", y, g.const([0, 2, channels // 2, -1]))
            y = g.op("Reshape", g.op("Transpose", five, perm=[0, 2, 1, 3]), g.op("Shape", y))
    match g.pick("max", "average", "lp", "none"):
        case "max":
            y = g.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=g.pick(0, 1))
        case "average":
            y = g.op("AveragePool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1],
                     ceil_mode=g.pick(0, 1), count_include_pad=g.pick(0, 1))  # fmt: skip
        case "lp":
            y = g.op("LRN", y, size=3, alpha=0.05, beta=0.75, bias=1.5)
    pooled = g.op("Flatten", g.op(g.pick("GlobalAveragePool", "GlobalMaxPool"), y), axis=1)
    y = g.op(
        "Gemm", pooled, g.weight(10, channels), g.const(np.zeros(10), np.float32), transB=1, alpha=g.pick(1.0, 0.5)
    )
    y = g.op(g.pick("Softmax", "LogSoftmax"), y, axis=1) if g.chance() else y
    return Drawn(
        {"input": (FLOAT, ["batch", 3, side, side])},
        {"scores": (y, FLOAT, ["batch", 10])},
        {"input": [g.pick(1, 1, 2), 3, side, side]},
        treatments=(*QUANTISED, HALF, *STATIC),
    )


def resized(g: Drawing, x: str, like: str) -> str:
    """Add a Resize in one of its modes, to scales or to the size of another tensor."""
    mode, place, rounding = g.pick(
        ("nearest", "asymmetric", "floor"), ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "align_corners", "round_prefer_ceil"), ("nearest", "asymmetric", "ceil"),
        ("linear", "half_pixel", ""), ("linear", "align_corners", ""), ("linear", "asymmetric", ""),
        ("linear", "pytorch_half_pixel", ""), ("cubic", "half_pixel", ""), ("cubic", "align_corners", ""),
    )  # fmt: skip
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
    how |= {"nearest_mode": rounding} if rounding else {}
    how |= {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
    if g.chance():
        return str(g.op("Resize", x, "", g.const([1.0, 1.0, 2.0, 2.0], np.float32), **how))
    sizes = g.op("Concat", g.size(x, 0), g.size(x, 1), g.size(like, 2), g.size(like, 3), axis=0)
    return str(g.op("Resize", x, "", "", sizes, **how))


def segmenter(g: Drawing) -> Drawn:
    """A network down and up again: InstanceNormalization, Pad, Resize or ConvTranspose, DepthToSpace, arg-max."""
    side, channels = g.pick(16, 24, 32), g.pick(4, 8)
    x = "image"
    if g.chance():
        low = g.pick(0, 1, 2)
        mode = g.pick("reflect", "edge", "constant")
        x = g.op("Pad", x, g.const([0, 0, low, 1, 0, 0, 4 - low, 3]), g.number(0.0), mode=mode)
    fine = activation(g, g.conv(x, 3, channels, relu=False), channels)
    ones, zeros = g.const(1 + g.rng.random(channels), np.float32), g.const(g.rng.random(channels), np.float32)
    fine = g.op("InstanceNormalization", fine, ones, zeros, epsilon=1e-5) if g.chance() else fine
    coarse = activation(g, g.conv(fine, channels, channels, stride=2, relu=False), channels)
    match g.pick("resize", "resize", "transposed", "shuffle"):
        case "resize":
            up = resized(g, coarse, fine)
        case "transposed":
            groups = g.pick(1, 2)
            kernel, pad = g.pick((2, 0), (4, 1), (3, 1))
            extra = 1 if kernel == 3 else 0
            weight = g.weight(channels, channels // groups, kernel, kernel)
            up = g.op("ConvTranspose", coarse, weight, kernel_shape=[kernel] * 2, strides=[2, 2], pads=[pad] * 4,
                      output_padding=[extra] * 2, group=groups)  # fmt: skip
        case _:
            wide = g.conv(coarse, channels, 4 * channels, kernel=1, relu=False)
            up = g.op("DepthToSpace", wide, blocksize=2, mode=g.pick("DCR", "CRD"))
    y = g.op("Concat", up, fine, axis=1)
    scores = g.conv(y, 2 * channels, 5, kernel=1, relu=False)
    kept = g.pick(0, 1)
    best = g.op("ArgMax", scores, axis=1, keepdims=kept)
    return Drawn(
        {"image": (FLOAT, ["batch", 3, "height", "width"])},
        {"scores": (scores, FLOAT, ["batch", 5, None, None]), "best": (best, INT64, [None] * (3 + kept))},
        {"image": [1, 3, side, g.pick(side, side + 8)]},
        treatments=(*QUANTISED, HALF),  # ONNX Runtime does not resize 8 bits in every mode
    )


def recurrent(g: Drawing) -> Drawn:
    """LSTM, GRU or RNN, one or both directions, with lengths or first states, and what follows of them."""
    kind, hidden, width = g.pick("LSTM", "LSTM", "GRU", "RNN"), g.pick(8, 16, 32), g.pick(6, 12)
    direction = g.pick("forward", "reverse", "bidirectional")
    ways, gates = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    batch, steps = g.pick(1, 2), g.pick(5, 12)
    lengths, states = g.chance(0.4), g.chance(0.4)
    y = g.op("Transpose", g.dense("frames", width, hidden), perm=[1, 0, 2])
    inputs: dict[str, tuple[int, Sequence[Dim]]] = {"frames": (FLOAT, ["batch", "steps", width])}
    sizes: dict[str, Sequence[int]] = {"frames": [batch, steps, width]}
    if lengths:
        inputs["lengths"], sizes["lengths"] = (onnx.TensorProto.INT32, ["batch"]), [batch]
    for layer in range(g.pick(1, 2)):
        weights = [
            g.weight(ways, gates * hidden, hidden * (ways if layer else 1)),
            g.weight(ways, gates * hidden, hidden),
        ]
        bias = g.weight(ways, 2 * gates * hidden)
        first = ["h0"] if states and not layer else []
        first += ["c0"] if first and kind == "LSTM" else []
        for name in first:
            inputs[name], sizes[name] = (FLOAT, [ways, "batch", hidden]), [ways, batch, hidden]
        extra = {"linear_before_reset": g.pick(0, 1)} if kind == "GRU" else {}
        taken = [y, *weights, bias, "lengths" if lengths else "", *first]
        y, last = g.op(kind, *taken, outputs=2, hidden_size=hidden, direction=direction, **extra)
        y = g.op("Transpose", y, perm=[0, 2, 1, 3])
        y = g.op("Reshape", y, g.const([0, 0, -1]))
    y = g.op("Transpose", y, perm=[1, 0, 2])
    return Drawn(
        inputs,
        {"output": (g.dense(y, ways * hidden, 5), FLOAT, ["batch", "steps", 5]),
         "last": (last, FLOAT, [ways, "batch", hidden])},
        sizes,
        treatments=("dynamic", "dynamic per channel", HALF),
    )  # fmt: skip


def detector(g: Drawing) -> Drawn:
    """Boxes and scores of a grid, chosen by NonMaxSuppression, TopK or a threshold; ids and counts are integers."""
    classes, side = g.pick(1, 3, 5), g.pick(32, 48)
    y = g.conv(g.conv(g.conv("images", 3, 8, stride=2), 8, 8, stride=2), 8, 4 + classes, stride=2, relu=False)
    y = g.op("Transpose", g.op("Reshape", y, g.const([0, 4 + classes, -1])), perm=[0, 2, 1])
    centre, size, raw = g.op("Split", y, g.const([2, 2, classes]), axis=2, outputs=3)
    half = g.op("Exp", g.op("Clip", size, g.number(-2.0), g.number(2.0)))
    boxes = g.op("Concat", g.op("Sub", centre, half), g.op("Add", centre, half), axis=2)
    scores = g.op("Sigmoid", raw)
    out: Outputs
    match g.pick("suppressed", "best", "threshold"):
        case "suppressed":
            limits = [g.const([g.pick(5, 20)]), g.number(0.5), g.number(0.4)]
            rows = g.op("NonMaxSuppression", boxes, g.op("Transpose", scores, perm=[0, 2, 1]), *limits,
                        center_point_box=g.pick(0, 1))  # fmt: skip
            at = g.op("Gather", rows, g.const(2), axis=1)
            kept = g.op("Gather", g.op("Squeeze", boxes, g.const([0])), at, axis=0)
            out = {"rows": (rows, INT64, [None, 3]), "boxes": (kept, FLOAT, [None, 4])}
        case "best":
            flat = g.op("ReduceMax", scores, axes=[2], keepdims=0)
            values, at = g.op("TopK", flat, g.const([7]), axis=1, outputs=2, largest=1, sorted=1)
            wide = g.op("Expand", g.op("Unsqueeze", at, g.const([2])), g.const([1, 7, 4]))
            kept = g.op("GatherElements", boxes, wide, axis=1)
            label = g.op("GatherElements", g.op("ArgMax", scores, axis=2, keepdims=0), at, axis=1)
            out = {
                "scores": (values, FLOAT, [1, 7]),
                "boxes": (kept, FLOAT, [1, 7, 4]),
                "labels": (label, INT64, [1, 7]),
            }
        case _:
            sure = g.op("Greater", g.op("Squeeze", g.op("ReduceMax", scores, axes=[2], keepdims=0), g.const([0])),
                        g.number(0.6))  # fmt: skip
            at = g.op("Transpose", g.op("NonZero", sure), perm=[1, 0])
            kept = g.op("GatherND", g.op("Squeeze", boxes, g.const([0])), at)
            count = g.op("ReduceSum", g.op("Cast", sure, to=INT64), g.const([0]), keepdims=1)
            out = {"boxes": (kept, FLOAT, [None, 4]), "count": (count, INT64, [1])}
    return Drawn({"images": (FLOAT, [1, 3, side, side])}, out, {"images": [1, 3, side, side]}, treatments=(HALF,))


def _body(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs))


def control_flow(g: Drawing) -> Drawn:
    """An If on a size or a value, a Loop that is left early, or a Scan."""
    width = g.pick(8, 16)
    y = g.dense("x", width, width)
    info = helper.make_tensor_value_info
    match g.pick("if size", "if value", "loop", "scan"):
        case "scan":
            state = g.op("ReduceMean", y, axes=[1], keepdims=0)
            nodes = [
                helper.make_node("Add", ["s", "row"], ["sum"], name="/scan/Add"),
                helper.make_node("Tanh", ["sum"], ["s_out"], name="/scan/Tanh"),
                helper.make_node("Identity", ["s_out"], ["row_out"], name="/scan/Identity"),
            ]
            body = _body(nodes, [info("s", FLOAT, None), info("row", FLOAT, None)],
                         [info("s_out", FLOAT, None), info("row_out", FLOAT, None)])  # fmt: skip
            _, y = g.op("Scan", state, y, outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[1],
                        scan_output_axes=[1], scan_input_directions=[g.pick(0, 1)])  # fmt: skip
        case "loop":
            nodes = [
                helper.make_node("Mul", ["s", "half"], ["m"], name="/loop/Mul"),
                helper.make_node("Sin", ["m"], ["s_out"], name="/loop/Sin"),
                helper.make_node("ReduceMax", ["s_out"], ["top"], keepdims=0, name="/loop/ReduceMax"),
                helper.make_node("Greater", ["top", "least"], ["go_out"], name="/loop/Greater"),
            ]
            half, least = g.number(0.9), g.number(g.pick(0.3, 0.001))
            for node in nodes:
                node.input[:] = [{"half": half, "least": least}.get(name, name) for name in node.input]
            body = _body(nodes, [info("i", INT64, []), info("go", BOOL, []), info("s", FLOAT, None)],
                         [info("go_out", BOOL, []), info("s_out", FLOAT, None)])  # fmt: skip
            y = g.op("Loop", g.const(g.pick(3, 8)), g.const(True, np.bool_), y, body=body)
        case way:
            if way == "if size":
                test = g.op("Greater", g.length("x", 1), g.const(g.pick(4, 100)))
            else:
                test = g.op("Greater", g.op("ReduceMean", y, keepdims=0), g.number(0.0))
            bodies = {}
            for branch, kind in (("then_branch", "Tanh"), ("else_branch", "Sigmoid")):
                node = helper.make_node(kind, [y], [f"{branch}_out"], name=f"/{branch}/{kind}")
                bodies[branch] = _body([node], [], [info(f"{branch}_out", FLOAT, None)])
            y = g.op("If", test, **bodies)
    y = g.norm(g.dense(y, width, width), width)
    steps = g.pick(3, 7)
    return Drawn(
        {"x": (FLOAT, ["batch", "steps", width])},
        {"y": (y, FLOAT, ["batch", "steps", width])},
        {"x": [g.pick(1, 2), steps, width]},
        treatments=("dynamic", HALF),
    )


def _scattered(g: Drawing, x: str, width: int) -> str:
    rows = g.const(np.array([[0, 0], [0, 2], [0, 1]]))
    updates = g.const(g.rng.standard_normal((3, width)), np.float32)
    return str(g.op("ScatterND", x, rows, updates))


def _scattered_elements(g: Drawing, x: str, width: int) -> str:
    at = g.const(g.rng.permutation(width)[None, None, : width // 2].repeat(2, axis=1))
    values = g.const(g.rng.standard_normal((1, 2, width // 2)), np.float32)
    return str(g.op("ScatterElements", x, at, values, axis=2))


def _shifted(g: Drawing, x: str, width: int) -> str:
    """torch.roll along time."""
    head = g.op("Slice", x, g.const([0]), g.const([-1]), g.const([1]))
    tail = g.op("Slice", x, g.const([-1]), g.const([np.iinfo(np.int64).max]), g.const([1]))
    return str(g.op("Concat", tail, head, axis=1))


def _unfolded(g: Drawing, x: str, width: int) -> str:
    """Windows of two steps by reshaping to a size that a division tells; every other step is kept."""
    pairs = g.op("Div", g.size(x, 1), g.const([2]))
    whole = g.op("Mul", pairs, g.const([2]))
    cut = g.op("Slice", x, g.const([0]), whole, g.const([1]))
    four = g.op("Reshape", cut, g.op("Concat", g.size(x, 0), pairs, g.const([2]), g.const([width]), axis=0))
    return str(g.op("ReduceMax", four, axes=[2], keepdims=0))


def _masked(g: Drawing, x: str, width: int) -> str:
    steps = g.op("Range", g.const(0), g.length(x, 1), g.const(1))
    even = g.op("Equal", g.op("Mod", steps, g.const(2)), g.const(0))
    return str(g.op("Where", g.op("Unsqueeze", even, g.const([1])), x, g.op("Neg", x)))


def _triangle(g: Drawing, x: str, width: int) -> str:
    """Each step the mean of those before: a Trilu of ones of a size that Shape tells."""
    n = g.size(x, 1)
    ones = g.op("ConstantOfShape", g.op("Concat", n, n, axis=0),
                value=onnx.numpy_helper.from_array(np.ones(1, np.float32)))  # fmt: skip
    lower = g.op("Trilu", ones, upper=0)
    share = g.op("Div", lower, g.op("ReduceSum", lower, g.const([1]), keepdims=1))
    return str(g.op("MatMul", share, x))


def _group_normed(g: Drawing, x: str, width: int) -> str:
    """Torch's GroupNorm of two groups."""
    ones, zeros = g.const(np.ones(2), np.float32), g.const(np.zeros(2), np.float32)
    normed = g.op("InstanceNormalization", g.op("Reshape", x, g.const([0, 2, -1])), ones, zeros)
    return str(g.op("Reshape", normed, g.op("Shape", x)))


SOUP: Mapping[str, Callable[[Drawing, str, int], str]] = {
    "einsum": lambda g, x, w: g.op("Einsum", x, g.weight(w, w), equation="btc,cd->btd"),
    "outer": lambda g, x, w: g.op("Einsum", g.op("Softmax", g.op("Einsum", x, x, equation="btc,bsc->bts"), axis=-1), x,
                                  equation="bts,bsc->btc"),
    "cumulative": lambda g, x, w: g.op("Mul", g.op("CumSum", x, g.const(1), exclusive=g.pick(0, 1),
                                                   reverse=g.pick(0, 1)), g.number(0.2)),
    "scatter": _scattered,
    "scatter elements": _scattered_elements,
    "shift": _shifted,
    "unfold": _unfolded,
    "masked": _masked,
    "triangle": _triangle,
    "tile": lambda g, x, w: g.op("ReduceMean", g.op("Tile", g.op("Unsqueeze", x, g.const([3])), g.const([1, 1, 1, 3])),
                                 axes=[3], keepdims=0),
    "groups": lambda g, x, w: g.op("Reshape", g.op("Softmax", g.op("Reshape", x, g.const([0, 0, 2, -1])), axis=2),
                                   g.const([0, 0, -1])),
    "gemm": lambda g, x, w: g.op("Reshape", g.op("Gemm", g.op("Reshape", x, g.const([-1, w])), g.weight(w, w),
                                                 g.const(g.rng.standard_normal(w), np.float32), transB=g.pick(0, 1),
                                                 alpha=0.5, beta=2.0), g.op("Shape", x)),
    "steps in time": lambda g, x, w: g.op("Transpose", g.op("Conv", g.op("Transpose", x, perm=[0, 2, 1]),
                                                            g.weight(w, 1, 3), kernel_shape=[3], pads=[2, 0], group=w),
                                          perm=[0, 2, 1]),
    "negative slice": lambda g, x, w: g.op("Slice", x, g.const([-1]), g.const([np.iinfo(np.int64).min]), g.const([2]),
                                           g.const([-1])),
    "extremes": lambda g, x, w: g.op("Add", x, g.op("Sub", g.op("ReduceMax", x, axes=[1], keepdims=1),
                                                    g.op("ReduceMin", x, axes=[1], keepdims=1))),
    "log sum": lambda g, x, w: g.op("Sub", x, g.op("ReduceLogSumExp", x, axes=[-1], keepdims=1)),
    "rounded": lambda g, x, w: g.op("Sub", x, g.op("Round", x)),
    "one hot": lambda g, x, w: g.op("Mul", x, g.op("OneHot", g.op("ArgMax", x, axis=-1, keepdims=0), g.const(w),
                                                   g.const([0.5, 2.0], np.float32), axis=-1)),
    "normalised": lambda g, x, w: g.norm(x, w),
    "group norm": _group_normed,
}  # fmt: skip


def soup(g: Drawing) -> Drawn:
    """A chain of operations on sequences in which shapes are computed: Einsum, ScatterND, CumSum, Trilu, Slice, ..."""
    width, steps = g.pick(4, 8, 12), g.pick(6, 10)
    x = g.dense("x", width, width)
    names = [g.pick(*SOUP) for _ in range(g.pick(2, 3, 4, 5))]
    for name in names:
        x = SOUP[name](g, x, width)
        if g.chance(0.4):
            x = g.gelu(g.dense(x, width, width))
    _, at = g.op("TopK", x, g.const([2]), axis=-1, outputs=2)
    batch = g.pick(1, 1, 2) if "scatter elements" not in names and "group norm" not in names else 1
    return Drawn(
        {"x": (FLOAT, ["batch", "steps", width])},
        {"y": (x, FLOAT, ["batch", None, width]), "at": (at, INT64, ["batch", None, 2])},
        {"x": [batch, steps, width]},
        treatments=("dynamic", HALF),
    )


def speech(g: Drawing) -> Drawn:
    """Frames of sound by strided convolutions, a GLU, separable convolutions in time, attention, and a log softmax."""
    width, heads, samples = g.pick(8, 16), 2, g.pick(200, 333)
    y = g.op("Unsqueeze", "samples", g.const([1]))
    before = 1
    for kernel, stride in ((10, 5), (3, 2)):
        y = g.op("Conv", y, g.weight(width, before, kernel), kernel_shape=[kernel], strides=[stride])
        y, before = g.gelu(y), width
    if g.chance():  # weight normalisation, as it is left in an export
        v, scale = g.weight(2 * width, width, 1), g.const(1 + g.rng.random((2 * width, 1, 1)), np.float32)
        w = g.op("Mul", g.op("Div", v, g.op("ReduceL2", v, axes=[1, 2], keepdims=1)), scale)
    else:
        w = g.weight(2 * width, width, 1)
    first, second = g.op("Split", g.op("Conv", y, w, kernel_shape=[1]), axis=1, outputs=2)
    y = g.op("Mul", first, g.op("Sigmoid", second))
    y = g.op("Conv", y, g.weight(width, 1, 5), kernel_shape=[5], pads=g.pick([2, 2], [4, 0]), group=width)
    x = g.norm(g.op("Transpose", y, perm=[0, 2, 1]), width)
    x = g.op("Add", x, attention(g, x, x, "", width, heads, scaled=True))
    scores = g.op("LogSoftmax", g.dense(x, width, 20), axis=-1)
    best = g.op("ArgMax", scores, axis=-1, keepdims=0)
    return Drawn(
        {"samples": (FLOAT, ["batch", "length"])},
        {"scores": (scores, FLOAT, ["batch", None, 20]), "best": (best, INT64, ["batch", None])},
        {"samples": [g.pick(1, 2), samples]},
        treatments=(*QUANTISED, HALF, *STATIC),
    )


FAMILIES: Mapping[str, Callable[[Drawing], Drawn]] = {
    "bert": bert,
    "cached_decoder": cached_decoder,
    "control_flow": control_flow,
    "convolutions": convolutions,
    "detector": detector,
    "recurrent": recurrent,
    "segmenter": segmenter,
    "soup": soup,
    "speech": speech,
    "t5_decoder": t5_decoder,
    "t5_encoder": t5_encoder,
}
