"""Models as exporters leave them: small networks with the habits of torch.onnx, TensorFlow and quantisation tools.

`EXPORTED` names a builder for each; it writes the model into a folder and returns its path. Their latency is a few
milliseconds at most. What torch is said to do here is what its TorchScript exporter writes at opset 17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import openvino as ov
from onnx import TensorProto, helper, numpy_helper
from openvino import opset8, opset13
from openvino.op.util import Variable, VariableInfo

Dim = int | str
FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL

VOCABULARY, POSITIONS, HIDDEN = 100, 64, 16  # of the text models
STRIDE = 32  # sides of the recogniser's and the detector's images must be multiples of it


@dataclass(slots=True)
class OnnxGraph:
    """An ONNX graph in the making: nodes and weights, every tensor with a name of its own."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    dtype: type[np.floating[Any]] = np.float32
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or of its outputs if there are several."""
        name = f"/{kind}_{len(self.nodes)}"
        names = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def const(self, values: Any, dtype: npt.DTypeLike = np.int64) -> str:
        """Add a constant; return its name."""
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights that keep the size of what they are multiplied with; return their name."""
        fan = int(np.prod(shape[1:])) or 1
        return self.const(self.rng.standard_normal(shape) / np.sqrt(fan), self.dtype)

    def conv(self, x: str, before: int, after: int, *, kernel: int = 3, stride: int = 1, relu: bool = True) -> str:
        """Add a convolution that keeps the size at stride 1, and a Relu."""
        weights, bias = self.weight(after, before, kernel, kernel), self.const(np.full(after, 0.1), self.dtype)
        pads, strides = [kernel // 2] * 4, [stride] * 2
        y = self.op("Conv", x, weights, bias, kernel_shape=[kernel] * 2, pads=pads, strides=strides)
        return str(self.op("Relu", y)) if relu else str(y)

    def linear(self, x: str, before: int, after: int) -> str:
        """Add a matrix product over the last dimension, and a bias."""
        product = self.op("MatMul", x, self.const(self.rng.standard_normal((before, after)) / before**0.5, self.dtype))
        return str(self.op("Add", product, self.const(np.full(after, 0.1), self.dtype)))

    def size(self, x: str, axis: int) -> str:
        """Add torch's way to one size of a tensor, as a tensor of one element: Shape, Gather, Unsqueeze."""
        scalar = self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)
        return str(self.op("Unsqueeze", scalar, self.const([0])))

    def save(
        self,
        path: Path,
        inputs: Mapping[str, tuple[int, Sequence[Dim]]],
        outputs: Mapping[str, tuple[str, int, Sequence[Dim | None]]],
    ) -> Path:
        """Write the model; inputs: name -> (type, shape), outputs: name -> (tensor, type, shape)."""
        for name, (tensor, _, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"/out/{name}"))
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            [helper.make_tensor_value_info(n, kind, list(shape)) for n, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(n, kind, list(shape)) for n, (_, kind, shape) in outputs.items()],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="pytorch")
        model.ir_version = 8
        path.write_bytes(model.SerializeToString())
        return path


def dynamic_batch_cnn(folder: Path, *, dtype: type[np.floating[Any]] = np.float32) -> Path:
    """A classifier of images, the batch dynamic: Conv, BatchNormalization, Relu, pooling, Flatten, Gemm."""
    g = OnnxGraph(dtype=dtype)
    kind = HALF if dtype == np.float16 else FLOAT
    y = "input"
    for before, after in ((3, 16), (16, 16), (16, 32)):
        y = g.op("Conv", y, g.weight(after, before, 3, 3), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
        statistics = [g.const(np.full(after, v), dtype) for v in (1.0, 0.1, 0.0, 1.0)]
        y = g.op("Relu", g.op("BatchNormalization", y, *statistics, epsilon=1e-5))
    y = g.op("Flatten", g.op("GlobalAveragePool", y), axis=1)
    y = g.op("Gemm", y, g.weight(10, 32), g.const(np.zeros(10), dtype), transB=1)
    return g.save(
        folder / "dynamic_batch_cnn.onnx",
        {"input": (kind, ["batch_size", 3, 48, 48])},
        {"logits": (y, kind, ["batch_size", 10])},
    )


def scalar_bounds(folder: Path) -> Path:
    """A tracker of pitch: a score of each frame, kept within bounds that are inputs of a single number each."""
    g = OnnxGraph()
    frames = g.op("Reshape", "audio", g.const([1, -1, 32]))
    y = g.linear(str(g.op("Tanh", g.linear(str(frames), 32, 16))), 16, 8)
    lowest, highest = g.op("Min", "fmin", "fmax"), g.op("Max", "fmin", "fmax")
    y = g.op("Min", g.op("Max", y, lowest), g.op("Add", highest, g.const(2.0, np.float32)))
    return g.save(
        folder / "scalar_bounds.onnx",
        {"audio": (FLOAT, [1, 256]), "fmin": (FLOAT, []), "fmax": (FLOAT, [])},
        {"pitch": (y, FLOAT, [1, 8, 8])},
    )


def fp16_cnn(folder: Path) -> Path:
    """The classifier exported in half precision, inputs and all."""
    return dynamic_batch_cnn(folder, dtype=np.float16)


def detector(folder: Path) -> Path:
    """A detector whose images may have any height and width, upsampled to sizes that Shape nodes tell."""
    g = OnnxGraph()
    stem = g.conv("images", 3, 8, stride=2)
    fine = g.conv(stem, 8, 8, stride=2)
    coarse = g.conv(fine, 8, 16, stride=2)
    lateral = g.conv(coarse, 16, 8, kernel=1)
    # F.interpolate(lateral, size=fine.shape[2:])
    sizes = g.op("Concat", g.size(lateral, 0), g.size(lateral, 1), g.size(fine, 2), g.size(fine, 3), axis=0)
    upsampled = g.op(
        "Resize", lateral, "", "", sizes, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip
    merged = g.op("Concat", fine, upsampled, axis=1)
    heads = []
    for level, channels in ((merged, 16), (coarse, 16)):
        y = g.conv(level, channels, 6, relu=False)
        # y.view(n, 6, -1).permute(0, 2, 1)
        area = g.op("Mul", g.op("Gather", g.op("Shape", y), g.const(2), axis=0),
                    g.op("Gather", g.op("Shape", y), g.const(3), axis=0))  # fmt: skip
        target = g.op("Concat", g.size(y, 0), g.const([6]), g.op("Unsqueeze", area, g.const([0])), axis=0)
        heads.append(g.op("Transpose", g.op("Reshape", y, target), perm=[0, 2, 1]))
    boxes = g.op("Sigmoid", g.op("Concat", *heads, axis=1))
    return g.save(
        folder / "detector.onnx",
        {"images": (FLOAT, ["batch", 3, "height", "width"])},
        {"boxes": (boxes, FLOAT, ["batch", "anchors", 6])},
    )


def text_detector(folder: Path) -> Path:
    """A detector of text: five steps down and up again, so that sides other than multiples of 32 do not add up."""
    g = OnnxGraph()
    down = [g.conv("x", 3, 4)]
    for _ in range(5):
        down.append(g.conv(down[-1], 4, 4, stride=2))
    y = down.pop()
    while down:
        scales = g.const([1.0, 1.0, 2.0, 2.0], np.float32)
        up = g.op(
            "Resize", y, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
        y = g.op("Add", up, down.pop())
    heat = g.op("Sigmoid", g.conv(y, 4, 1, kernel=1, relu=False))
    return g.save(
        folder / "text_detector.onnx",
        {"x": (FLOAT, ["DynamicDimension.0", 3, "DynamicDimension.1", "DynamicDimension.2"])},
        {"heat": (heat, FLOAT, [None, 1, None, None])},
    )


def text_recogniser(folder: Path) -> Path:
    """A recogniser of lines of text of any width, whose windows of 4 columns, after 8 times pooling, must come out."""
    g = OnnxGraph()
    y = "x"
    for before, after in ((3, 8), (8, 16), (16, 16)):
        y = g.op("MaxPool", g.conv(y, before, after), kernel_shape=[2, 2], strides=[2, 2])
    y = g.op("Squeeze", g.op("ReduceMean", y, axes=[2], keepdims=1), g.const([2]))  # [n, 16, w / 8]
    # Attention within windows of 4 columns: a Reshape whose count of windows Shape and Div tell.
    windows = g.op("Div", g.size(y, 2), g.const([4]))
    target = g.op("Concat", g.size(y, 0), g.const([16]), windows, g.const([4]), axis=0)
    mixed = g.op("Softmax", g.op("Reshape", y, target), axis=3)
    whole = g.op("Concat", g.size(y, 0), g.const([16]), g.const([-1]), axis=0)
    y = g.op("Add", y, g.op("Reshape", mixed, whole))
    y = g.op("Softmax", g.linear(g.op("Transpose", y, perm=[0, 2, 1]), 16, 40), axis=2)
    return g.save(
        folder / "text_recogniser.onnx",
        {"x": (FLOAT, ["DynamicDimension.0", 3, 48, "DynamicDimension.1"])},
        {"softmax": (y, FLOAT, [None, None, 40])},
    )


def branching(folder: Path) -> Path:
    """A network that scales its features if they are large: an If whose bodies read tensors from outside."""
    g = OnnxGraph()
    y = g.conv(g.conv("input", 3, 8, stride=2), 8, 8)
    mean = g.op("ReduceMean", y, keepdims=0)
    large = g.op("Greater", mean, g.const(0.05, np.float32))
    bodies = {}
    for branch, kind in (("then_branch", "Tanh"), ("else_branch", "Sigmoid")):
        out = helper.make_tensor_value_info(f"{branch}_out", FLOAT, None)
        node = helper.make_node(kind, [y], [f"{branch}_out"], name=f"/{branch}/{kind}")
        bodies[branch] = helper.make_graph([node], branch, [], [out])
    y = g.conv(g.op("If", large, **bodies), 8, 8)
    y = g.op("Flatten", g.op("GlobalAveragePool", y))
    return g.save(
        folder / "branching.onnx",
        {"input": (FLOAT, ["batch", 3, 32, 32])},
        {"features": (y, FLOAT, ["batch", 8])},
    )


def looping(folder: Path) -> Path:
    """A network that refines its features in a Loop of four turns."""
    g = OnnxGraph()
    y = g.linear("input", 32, HIDDEN)
    weight = helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(np.eye(HIDDEN, dtype=np.float32) * 0.9, "value")
    )
    body = helper.make_graph(
        [
            weight,
            helper.make_node("MatMul", ["state", "w"], ["product"], name="/loop/MatMul"),
            helper.make_node("Tanh", ["product"], ["state_out"], name="/loop/Tanh"),
            helper.make_node("Identity", ["go_on"], ["go_on_out"], name="/loop/Identity"),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", INT64, []),
            helper.make_tensor_value_info("go_on", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on_out", BOOL, []),
            helper.make_tensor_value_info("state_out", FLOAT, None),
        ],
    )
    y = g.op("Loop", g.const(4), g.const(True, np.bool_), y, body=body)
    y = g.linear(g.op("Relu", y), HIDDEN, 8)
    return g.save(folder / "looping.onnx", {"input": (FLOAT, ["batch", 32])}, {"output": (y, FLOAT, ["batch", 8])})


def lstm_states_as_inputs(folder: Path) -> Path:
    """A recurrent network of sequences of any length, whose states h0 and c0 are inputs; the batch is their second."""
    g = OnnxGraph()
    y = g.op("Transpose", g.linear("input", 8, HIDDEN), perm=[1, 0, 2])
    weights = [g.weight(1, 4 * HIDDEN, HIDDEN), g.weight(1, 4 * HIDDEN, HIDDEN), g.weight(1, 8 * HIDDEN)]
    y, h, c = g.op("LSTM", y, *weights, "", "h0", "c0", outputs=3, hidden_size=HIDDEN)
    y = g.op("Transpose", g.op("Squeeze", y, g.const([1])), perm=[1, 0, 2])
    state = (FLOAT, [1, "batch", HIDDEN])
    return g.save(
        folder / "lstm_states_as_inputs.onnx",
        {"input": (FLOAT, ["batch", "sequence", 8]), "h0": state, "c0": state},
        {
            "output": (g.linear(y, HIDDEN, 8), FLOAT, ["batch", "sequence", 8]),
            "hn": (h, *state),
            "cn": (c, *state),
        },
    )


def nms_detector(folder: Path) -> Path:
    """A detector that ends in NonMaxSuppression: how many rows its outputs have is known only after an inference."""
    g = OnnxGraph()
    y = g.conv(g.conv(g.conv("images", 3, 8, stride=2), 8, 8, stride=2), 8, 9, stride=2, relu=False)
    y = g.op("Transpose", g.op("Reshape", y, g.const([0, 9, -1])), perm=[0, 2, 1])
    centre, size, scores = g.op("Split", g.op("Sigmoid", y), g.const([2, 2, 5]), axis=2, outputs=3)
    corners = [g.op(kind, centre, g.op("Mul", size, g.const(0.25, np.float32))) for kind in ("Sub", "Add")]
    boxes = g.op("Concat", *corners, axis=2)
    by_class = g.op("Transpose", scores, perm=[0, 2, 1])
    limits = [g.const([20]), g.const([0.5], np.float32), g.const([0.4], np.float32)]
    selected = g.op("NonMaxSuppression", boxes, by_class, *limits)
    rows = g.op("Squeeze", g.op("Slice", selected, g.const([2]), g.const([3]), g.const([1])), g.const([1]))
    return g.save(
        folder / "nms_detector.onnx",
        {"images": (FLOAT, ["batch", 3, 64, 64])},
        {
            "selected": (selected, INT64, [None, 3]),
            "boxes": (g.op("Gather", g.op("Squeeze", boxes, g.const([0])), rows, axis=0), FLOAT, [None, 4]),
        },
    )


def text_classifier(folder: Path) -> Path:
    """A transformer block of BERT's inputs, int64 [batch, sequence] each, with positions up to 64 from a table."""
    g = OnnxGraph()
    # position_ids[:, :sequence], a Slice of a constant by the shape of the input
    positions = g.op("Slice", g.const(np.arange(POSITIONS)[None]), g.const([0]), g.size("input_ids", 1), g.const([1]))
    tables = (("input_ids", VOCABULARY), (positions, POSITIONS), ("token_type_ids", 2))
    rows = [g.op("Gather", g.weight(n, HIDDEN), ids, axis=0) for ids, n in tables]
    y = g.op("Add", g.op("Add", rows[0], rows[1]), rows[2])
    y = g.op("LayerNormalization", y, *(g.const(np.full(HIDDEN, v), np.float32) for v in (1.0, 0.0)))
    mask = g.op("Unsqueeze", g.op("Unsqueeze", "attention_mask", g.const([1])), g.const([2]))
    mask = g.op("Sub", g.const(1.0, np.float32), g.op("Cast", mask, to=FLOAT))
    mask = g.op("Mul", mask, g.const(-10000.0, np.float32))
    split = g.op("Concat", g.size(y, 0), g.size(y, 1), g.const([2]), g.const([HIDDEN // 2]), axis=0)
    q, k, v = (g.op("Transpose", g.op("Reshape", g.linear(y, HIDDEN, HIDDEN), split), perm=p)
               for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))  # fmt: skip
    scores = g.op("Div", g.op("MatMul", q, k), g.const((HIDDEN // 2) ** 0.5, np.float32))
    attended = g.op("MatMul", g.op("Softmax", g.op("Add", scores, mask), axis=3), v)
    whole = g.op("Concat", g.size(y, 0), g.size(y, 1), g.const([HIDDEN]), axis=0)
    attended = g.op("Reshape", g.op("Transpose", attended, perm=[0, 2, 1, 3]), whole)
    y = g.op("Add", y, g.linear(attended, HIDDEN, HIDDEN))
    y = g.op("Add", y, g.linear(g.op("Relu", g.linear(y, HIDDEN, 4 * HIDDEN)), 4 * HIDDEN, HIDDEN))
    first = g.op("Gather", y, g.const(0), axis=1)
    ids = (INT64, ["batch_size", "sequence_length"])
    return g.save(
        folder / "text_classifier.onnx",
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ids),
        {"logits": (g.linear(g.op("Tanh", first), HIDDEN, 2), FLOAT, ["batch_size", 2])},
    )


def qdq_cnn(folder: Path) -> Path:
    """A quantised classifier: QuantizeLinear and DequantizeLinear around every Conv, int8 weights by channel."""
    g = OnnxGraph()

    def quantised(x: str, low: float, high: float) -> str:
        scale, zero = (high - low) / 255, round(-low * 255 / (high - low))
        return dequantised(g.op("QuantizeLinear", x, *_scale(scale, zero)), scale, zero)

    def dequantised(x: str, scale: float, zero: int) -> str:
        return str(g.op("DequantizeLinear", x, *_scale(scale, zero)))

    def _scale(scale: float, zero: int) -> tuple[str, str]:
        return g.const(scale, np.float32), g.const(zero, np.uint8)

    y = quantised("input", -4.0, 4.0)
    for before, after in ((3, 16), (16, 16), (16, 32)):
        stored = g.const(g.rng.integers(-127, 128, (after, before, 3, 3)), np.int8)
        scales = g.const(g.rng.uniform(0.5, 1.5, after) / (127 * 3 * before**0.5), np.float32)
        w = g.op("DequantizeLinear", stored, scales, g.const(np.zeros(after), np.int8), axis=0)
        bias = g.const(np.full(after, 0.1), np.float32)
        y = g.op("Conv", y, w, bias, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
        y = quantised(g.op("Relu", y), 0.0, 4.0)
    y = g.op("Flatten", g.op("GlobalAveragePool", y), axis=1)
    y = g.op("Gemm", y, g.weight(10, 32), g.const(np.zeros(10), np.float32), transB=1)
    return g.save(
        folder / "qdq_cnn.onnx",
        {"input": (FLOAT, ["batch_size", 3, 64, 64])},
        {"logits": (y, FLOAT, ["batch_size", 10])},
    )


def topk_classifier(folder: Path) -> Path:
    """A classifier that answers with its five best classes and the best one of each position."""
    g = OnnxGraph()
    y = g.conv(g.conv("input", 3, 8, stride=2), 8, 16, stride=2)
    scores = g.op("Softmax", g.linear(g.op("Flatten", g.op("GlobalAveragePool", y)), 16, 50), axis=1)
    values, indices = g.op("TopK", scores, g.const([5]), axis=1, outputs=2)
    best = g.op("ArgMax", y, axis=1, keepdims=0)
    return g.save(
        folder / "topk_classifier.onnx",
        {"input": (FLOAT, ["batch", 3, 32, 32])},
        {
            "values": (values, FLOAT, ["batch", 5]),
            "indices": (indices, INT64, ["batch", 5]),
            "map": (best, INT64, ["batch", 8, 8]),
        },
    )


def two_sequences(folder: Path) -> Path:
    """A network of two inputs that share their length, as a spectrogram and its pitch do."""
    g = OnnxGraph()
    pitch = g.linear(g.op("Unsqueeze", "pitch", g.const([2])), 1, HIDDEN)
    y = g.op("Relu", g.op("Add", g.linear("frames", 20, HIDDEN), pitch))
    left, right = (g.linear(g.op("Tanh", g.linear(y, HIDDEN, 64)), 64, HIDDEN) for _ in range(2))
    y = g.op("Concat", left, right, axis=2)
    return g.save(
        folder / "two_sequences.onnx",
        {"frames": (FLOAT, ["batch", "time", 20]), "pitch": (FLOAT, ["batch", "time"])},
        {"audio": (g.linear(y, 2 * HIDDEN, 8), FLOAT, ["batch", "time", 8])},
    )


def _constant(values: Any, name: str, dtype: npt.DTypeLike = np.float32) -> ov.Node:
    return opset13.constant(np.asarray(values, dtype), name=name)


def _ir_conv(x: ov.Output, name: str, before: int, after: int, *, dtype: npt.DTypeLike = np.float32) -> ov.Node:
    """Return a convolution of stride 2 and a Relu; weights in half precision are widened by a Convert."""
    rng = np.random.default_rng([before, after])
    w = _constant(rng.standard_normal((after, before, 3, 3)) / (3 * before**0.5), f"{name}/weights", dtype)
    if np.dtype(dtype) == np.float16:
        w = opset13.convert(w, "f32", name=f"{name}/weights/widened")
        w.get_rt_info()["decompression"] = ""
    y = opset13.convolution(x, w, [2, 2], [1, 1], [1, 1], [1, 1], name=name)
    return opset13.relu(opset13.add(y, _constant(np.full((1, after, 1, 1), 0.1), f"{name}/bias")), name=f"{name}/relu")


def _ir_head(y: ov.Node, channels: int) -> ov.Node:
    """Return ten scores of the features of an image."""
    pooled = opset13.reduce_mean(y, _constant([2, 3], "pool/axes", np.int64), False, name="pool")
    w = _constant(np.random.default_rng(1).standard_normal((channels, 10)) / channels**0.5, "head/weights")
    return opset13.matmul(pooled, w, False, False, name="head")


def _saved(model: ov.Model, path: Path) -> Path:
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def uint8_images(folder: Path) -> Path:
    """TensorFlow's habit: uint8 images [?, ?, ?, 3], cast, scaled to [-1, 1] and transposed within the model."""
    x = opset13.parameter(ov.PartialShape([-1, -1, -1, 3]), np.uint8, name="input_tensor")
    x.output(0).set_names({"input_tensor:0"})
    y = opset13.convert(x, "f32", name="cast")
    y = opset13.divide(opset13.subtract(y, _constant(127.5, "mean"), name="sub"), _constant(127.5, "std"), name="div")
    y = opset13.transpose(y, _constant([0, 3, 1, 2], "order", np.int64), name="to_nchw")
    y = _ir_conv(_ir_conv(y, "conv1", 3, 16), "conv2", 16, 32)
    return _saved(
        ov.Model([opset13.result(_ir_head(y, 32), name="scores")], [x], "uint8_images"), folder / "uint8_images.xml"
    )


def fp16_weights(folder: Path) -> Path:
    """What OpenVINO's model converter writes: weights in half precision behind a Convert, the batch dynamic."""
    x = opset13.parameter(ov.PartialShape([-1, 3, 64, 64]), np.float32, name="x")
    x.output(0).set_names({"x"})
    y = _ir_conv(_ir_conv(x, "conv1", 3, 16, dtype=np.float16), "conv2", 16, 32, dtype=np.float16)
    return _saved(
        ov.Model([opset13.result(_ir_head(y, 32), name="scores")], [x], "fp16_weights"), folder / "fp16_weights.xml"
    )


def fake_quantised_cnn(folder: Path) -> Path:
    """What NNCF writes: FakeQuantize before every convolution, weights as int8 with a Convert and a Multiply."""
    x = opset13.parameter(ov.PartialShape([-1, 3, 64, 64]), np.float32, name="x")
    x.output(0).set_names({"x"})
    y, rng = x, np.random.default_rng(0)
    for i, (before, after, low) in enumerate(((3, 16, -4.0), (16, 16, 0.0), (16, 32, 0.0))):
        limits = [_constant(np.full((1, 1, 1, 1), v), f"fq{i}/{n}") for n, v in enumerate((low, 4.0, low, 4.0))]
        y = opset13.fake_quantize(y, *limits, 256)
        y.set_friendly_name(f"fq{i}")
        stored = _constant(rng.integers(-127, 128, (after, before, 3, 3)), f"conv{i}/stored", np.int8)
        scale = _constant(rng.uniform(0.5, 1.5, (after, 1, 1, 1)) / (127 * 3 * before**0.5), f"conv{i}/scale")
        w = opset13.multiply(opset13.convert(stored, "f32", name=f"conv{i}/widened"), scale, name=f"conv{i}/weights")
        y = opset13.convolution(y, w, [2, 2], [1, 1], [1, 1], [1, 1], name=f"conv{i}")
        y = opset13.relu(opset13.add(y, _constant(np.full((1, after, 1, 1), 0.1), f"conv{i}/bias")), name=f"relu{i}")
    model = ov.Model([opset13.result(_ir_head(y, 32), name="scores")], [x], "fake_quantised_cnn")
    return _saved(model, folder / "fake_quantised_cnn.xml")


def lstm_with_state(folder: Path) -> Path:
    """A recurrent network that keeps its states from one inference to the next: ReadValue, LSTMSequence, Assign."""
    rng = np.random.default_rng(0)
    x = opset13.parameter(ov.PartialShape([-1, -1, 8]), np.float32, name="x")
    x.output(0).set_names({"x"})
    embedded = opset13.tanh(
        opset13.matmul(x, _constant(rng.standard_normal((8, HIDDEN)) / 3, "embed/weights"), False, False, name="embed"),
        name="embed/tanh",
    )
    batch = opset13.gather(
        opset13.shape_of(x, name="shape"), _constant([0], "first", np.int64), _constant(0, "axis", np.int64), name="n"
    )
    tail = _constant([HIDDEN], "tail", np.int64)
    directions = _constant([1], "directions", np.int64)
    initial = opset13.broadcast(
        _constant(0.0, "zero"), opset13.concat([batch, tail], 0, name="state/shape"), name="initial"
    )
    reads, variables = [], []
    for name in ("h", "c"):
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, HIDDEN]), ov.Type.f32, name
        variables.append(Variable(info))
        reads.append(opset13.read_value(initial, variables[-1]))
        reads[-1].set_friendly_name(f"{name}/read")
    lengths = opset13.broadcast(
        opset13.gather(
            opset13.shape_of(x, name="shape2"), _constant(1, "second", np.int64), _constant(0, "axis2", np.int64)
        ),
        batch,
        name="lengths",
    )
    w, r = (_constant(rng.standard_normal((1, 4 * HIDDEN, HIDDEN)) / 8, f"lstm/{n}") for n in ("W", "R"))
    b = _constant(np.zeros((1, 4 * HIDDEN)), "lstm/B")
    states = [opset13.unsqueeze(read, directions, name=f"{n}/unsqueezed") for n, read in zip("hc", reads, strict=True)]
    lstm = opset8.lstm_sequence(embedded, *states, lengths, w, r, b, HIDDEN, "FORWARD")
    lstm.set_friendly_name("lstm")
    assigns = []
    for port, (name, variable) in enumerate(zip(("h", "c"), variables, strict=True), 1):
        state = opset13.squeeze(lstm.output(port), directions, name=f"{name}/squeezed")
        assigns.append(opset13.assign(state, variable))
        assigns[-1].set_friendly_name(f"{name}/assign")
    y = opset13.squeeze(lstm.output(0), directions, name="squeezed")
    y = opset13.matmul(y, _constant(rng.standard_normal((HIDDEN, 8)) / 4, "out/weights"), False, False, name="out")
    model = ov.Model([opset13.result(y, name="scores")], assigns, [x], "lstm_with_state")
    return _saved(model, folder / "lstm_with_state.xml")


EXPORTED: Mapping[str, Callable[[Path], Path]] = {
    build.__name__: build
    for build in (
        dynamic_batch_cnn,
        scalar_bounds,
        detector,
        text_detector,
        text_recogniser,
        branching,
        looping,
        lstm_states_as_inputs,
        lstm_with_state,
        nms_detector,
        uint8_images,
        text_classifier,
        qdq_cnn,
        fake_quantised_cnn,
        fp16_weights,
        fp16_cnn,
        topk_classifier,
        two_sequences,
    )
}
