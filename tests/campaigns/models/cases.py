"""Small models as ONNX and IR, seeds and drawn ones, and mutations that know their structure."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tests.campaigns.mutation import HOSTILE_NAMES, mutate_bytes
from tests.campaigns.runner import Case
from tests.models import growing_cache, two_towers, with_if, with_loop, with_state, with_tensor_iterator
from tests.two_cpus import branchy

DIMENSIONS = (0, -1, 1, 2, 3, 7, 8, 64, 1000, 2**31 - 1, 2**31, 2**62, -(2**63))
NUMBERS = ("0", "-1", "1", "2", "3", "255", "2147483648", "9223372036854775807", "-9223372036854775808", "1e309", "nan")
UNARY = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Exp", "Erf", "Softplus", "Identity", "HardSwish", "Softsign", "Ceil")
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu")
ALTERED_TYPES = (
    *UNARY,
    *BINARY,
    "MatMul",
    "Conv",
    "LSTM",
    "Loop",
    "If",
    "Scan",
    "Reshape",
    "NonZero",
    "Range",
    "Einsum",
)
LOCATIONS = ("w.data", "../w.data", "/etc/passwd", "/dev/zero", "missing", "", ".", "link", "a\x00b", "%s", "x" * 5000)
ENTITIES = (
    '<!DOCTYPE net [<!ENTITY a "'
    + "a" * 90
    + '">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 40}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    + '<!ENTITY file SYSTEM "file:///etc/passwd">]>\n'
)


def onnx_seeds(folder: Path) -> list[bytes]:
    """Return small ONNX models of many kinds of operations."""
    import onnx

    from tests.onnx_models import convolution_onnx, relu_onnx

    paths = [convolution_onnx(folder / "conv.onnx"), relu_onnx(folder / "relu.onnx", [1, 2, 3])]
    models = [*(path.read_bytes() for path in paths), *(m.SerializeToString() for m in _drawn_onnx())]
    for content in models:
        onnx.load_model_from_string(content)
    return models


def _drawn_onnx() -> Iterator[Any]:
    """Yield models with recurrence, control flow, quantisation, dynamic shapes and several outputs."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str], weights: Sequence[Any]) -> Any:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(list(nodes), "g", list(inputs), ends, list(weights))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        made.ir_version = 8
        return made

    def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    node = helper.make_node
    weights = [tensor("W", 1, 16, 3), tensor("R", 1, 16, 4), tensor("B", 1, 32)]
    yield model([node("LSTM", ["x", "W", "R", "B"], ["y", "h"], hidden_size=4)], [value("x", 5, 1, 3)], ["y"], weights)
    indices = numpy_helper.from_array(np.array([0, 2]), "i")
    attention = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
        node("Gather", ["y", "i"], ["z"], axis=1),
    ]
    weights = [tensor("wq", 4, 4), tensor("wk", 4, 4), indices]
    yield model(attention, [value("x", "batch", "tokens", 4)], ["y", "z"], weights)
    split = [
        node("Split", ["x"], ["a", "b"], axis=1),
        node("Relu", ["a"], ["c"]),
        node("Sigmoid", ["b"], ["d"]),
        node("Mul", ["c", "d"], ["e"]),
        node("Conv", ["e", "w"], ["f"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["f", "g", "g", "g", "v"], ["n"]),
        node("MaxPool", ["n"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["m", "", "scales"], ["y"], mode="nearest"),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    more = [tensor("w", 2, 2, 3, 3), tensor("g", 2), numpy_helper.from_array(np.ones(2, np.float32), "v"), scales]
    yield model(split, [value("x", 1, 4, 8, 8)], ["y"], more)
    scale = [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(0), "z")]
    quantised = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Gemm", ["d", "w", "b"], ["y"], transB=1),
    ]
    yield model(quantised, [value("x", 2, 4)], ["y"], [*scale, tensor("w", 3, 4), tensor("b", 3)])

    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, ["x"], ["r"])], kind, [], [value("r", 2, 4)])

    chosen = node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    yield model([chosen], [value("x", 2, 4), value("c", kind=TensorProto.BOOL)], ["y"], [])


def ir_seeds(folder: Path) -> list[tuple[str, bytes]]:
    """Return small models as IR: description and weights."""
    from coarsen.reading.model.read import save_model

    made = [
        two_towers(1, width=4),
        with_state(),
        growing_cache(),
        branchy(1),
        with_if(),
        with_loop(),
        with_tensor_iterator(),
    ]
    found = []
    for i, model in enumerate(made):
        xml = folder / f"seed{i}.xml"
        save_model(model, xml)
        found.append((xml.read_text(encoding="utf-8"), xml.with_suffix(".bin").read_bytes()))
    return found


def mutate_onnx(rng: np.random.Generator, content: bytes, times: int) -> bytes:
    """Return an ONNX model of which so many fields drawn at random were changed, removed, doubled or exchanged."""
    import onnx

    model = onnx.load_model_from_string(content)
    for _ in range(times):
        messages = list(_list_messages(model))
        message = messages[rng.integers(len(messages))]
        fields = [f for f, _ in message.ListFields()] if rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
        if fields:
            _change_field(rng, message, fields[rng.integers(len(fields))], messages)
    return model.SerializeToString()


def _list_messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.label == field.LABEL_REPEATED else [value]:
                yield from _list_messages(inner)


def _change_field(rng: np.random.Generator, message: Any, field: Any, messages: Sequence[Any]) -> None:
    repeated = field.label == field.LABEL_REPEATED
    held = getattr(message, field.name)
    if field.type == field.TYPE_MESSAGE:
        alike = [m for m in messages if field.message_type == m.DESCRIPTOR]
        match rng.integers(3):
            case 0:
                message.ClearField(field.name)
            case 1 if repeated and len(held):
                del held[int(rng.integers(len(held)))]
            case _ if alike:
                other = type(alike[0])()
                other.CopyFrom(alike[rng.integers(len(alike))])
                if repeated:
                    held.insert(int(rng.integers(len(held) + 1)), other)
                else:
                    held.CopyFrom(other)
        return
    value = _drawn_value(rng, field, messages)
    with contextlib.suppress(ValueError, TypeError):  # what protobuf refuses to hold no file can hold
        if not repeated:
            setattr(message, field.name, value)
        elif len(held) and rng.random() < 0.7:
            held[int(rng.integers(len(held)))] = value
        elif rng.random() < 0.5:
            held.append(value)
        else:
            del held[:]


def _drawn_value(rng: np.random.Generator, field: Any, messages: Sequence[Any]) -> Any:
    if field.type == field.TYPE_STRING:
        known = [m.name for m in messages if hasattr(m, "name") and m.name]
        words = [*known, *HOSTILE_NAMES[:-3], "Relu", "LSTM", "Loop", "Reshape", "location", "offset", "length"]
        return str(words[rng.integers(len(words))])
    if field.type == field.TYPE_BYTES:
        return rng.integers(0, 256, int(rng.integers(0, 64)), np.uint8).tobytes()
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return float(rng.choice([0.0, -1.0, 1e38, np.inf, np.nan, 1e-40]))
    if rng.random() < 0.5:
        return int(rng.integers(-4, 24))
    return int(DIMENSIONS[rng.integers(len(DIMENSIONS))])


def mutate_ir(rng: np.random.Generator, text: str, times: int) -> str:
    """Return an IR of which so many elements and attributes were changed, removed, doubled or exchanged."""
    from xml.etree import ElementTree

    root = ElementTree.fromstring(text)
    for _ in range(times):
        parents = [element for element in root.iter() if len(element)]
        holder = parents[rng.integers(len(parents))]
        at = int(rng.integers(len(holder)))
        match rng.integers(6):
            case 0:
                holder.remove(holder[at])
            case 1:
                holder.insert(int(rng.integers(len(holder) + 1)), copy.deepcopy(holder[at]))
            case 2:
                every = list(root.iter())
                holder.append(copy.deepcopy(every[rng.integers(1, len(every))])) if rng.random() < 0.2 else None
            case _:
                named = [element for element in root.iter() if element.attrib or (element.text or "").strip()]
                _change_element(rng, named[rng.integers(len(named))], named)
    return ElementTree.tostring(root, encoding="unicode")


def _change_element(rng: np.random.Generator, element: Any, named: Sequence[Any]) -> None:
    words = [*NUMBERS, "", "f32", "i64", "boolean", "Relu", "opset1", "1,2,3", "a" * 70_000]
    words += [str(value) for e in named for value in e.attrib.values()][:400]
    word = words[rng.integers(len(words))]
    if element.attrib:
        keys = list(element.attrib)
        key = keys[rng.integers(len(keys))]
        if rng.random() < 0.1:
            del element.attrib[key]
        else:
            element.set(key, word)
    else:
        element.text = word


class _Drawing:
    """A graph that grows by an operation at a time. held: values and their sizes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.held = [("x", [int(n) for n in rng.integers(1, 5, int(rng.integers(1, 4)))])]
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self) -> None:
        """Add an operation drawn at random."""
        rng = self._rng
        name, shape = self.held[-1] if rng.random() < 0.7 else self.held[rng.integers(len(self.held))]
        match rng.integers(4):
            case 0:
                self._put(str(rng.choice(UNARY)), [name], shape)
            case 1:
                alike = [n for n, s in self.held if s == shape]
                other = self._constant(rng.standard_normal(shape[-1:]).astype(np.float32))
                other = other if rng.random() < 0.5 else alike[rng.integers(len(alike))]
                self._put(str(rng.choice(BINARY)), [name, other], shape)
            case 2 if len(shape) > 1:
                columns = int(rng.integers(1, 5))
                matrix = rng.standard_normal((shape[-1], columns)).astype(np.float32)
                self._put("MatMul", [name, self._constant(matrix)], [*shape[:-1], columns])
            case _:
                self._reshape(name, shape, int(rng.integers(len(shape))))

    def _reshape(self, name: str, shape: list[int], axis: int) -> None:
        def sized(size: int) -> list[int]:
            return [size if i == axis else n for i, n in enumerate(shape)]

        match self._rng.integers(7):
            case 0:
                order = [int(i) for i in self._rng.permutation(len(shape))]
                self._put("Transpose", [name], [shape[i] for i in order], perm=order)
            case 1:
                self._put("Reshape", [name, self._constant(np.array([-1]))], [int(np.prod(shape))])
            case 2:
                self._put("Concat", [name, name], sized(2 * shape[axis]), axis=axis)
            case 3:
                index = self._constant(self._rng.integers(0, shape[axis], 2))
                self._put("Gather", [name, index], sized(2), axis=axis)
            case 4:
                self._put("Softmax", [name], shape, axis=axis)
            case 5:
                size = max(1, shape[axis] - 1)
                self._put("Slice", [name, *(self._constant(np.array([n])) for n in (0, size, axis))], sized(size))
            case _:
                self._put("Unsqueeze", [name, self._constant(np.array([0]))], [1, *shape])

    def _constant(self, values: Any) -> str:
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(np.asarray(values), f"c{len(self.weights)}"))
        return str(self.weights[-1].name)

    def _put(self, kind: str, inputs: list[str], shape: list[int], **attributes: Any) -> None:
        from onnx import helper

        name = f"v{len(self.nodes)}"
        named = {"name": f"{kind}_{len(self.nodes)}"} if self._rng.random() < 0.7 else {}
        self.nodes.append(helper.make_node(kind, inputs, [name], **named, **attributes))
        self.held.append((name, shape))


def drawn_onnx(rng: np.random.Generator) -> Any:
    """Return an ONNX model of one to seven operations on a small array; every fifth leaves its first size open."""
    from onnx import TensorProto, helper

    drawing = _Drawing(rng)
    for _ in range(int(rng.integers(1, 8))):
        drawing.add()
    named = [drawing.held[-1][0]]
    if len(drawing.nodes) > 1 and rng.random() < 0.3:
        named.append("v0")
    shape = drawing.held[0][1]
    opened: list[Any] = ["n", *shape[1:]] if rng.random() < 0.2 else shape
    graph = helper.make_graph(
        drawing.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, opened)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in named],
        drawing.weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def alter_onnx(rng: np.random.Generator, content: bytes, folder: Path) -> bytes:
    """Return an ONNX model with one change that a mistaken or hostile exporter would make."""
    import onnx

    model = onnx.load_model_from_string(content)
    match rng.integers(8):
        case 0:
            model.opset_import[0].version = int(rng.choice([-1, 0, 1, 7, 9, 11, 13, 18, 21, 25, 99, 2**40]))
        case 1:
            model.ir_version = int(rng.choice([-1, 0, 3, 7, 13, 99, 2**40]))
        case 2:
            with contextlib.suppress(DecodeError, SystemError):  # it is nested too deeply by now
                _put_inside(rng, model)
        case 3 | 4:
            _alter_sizes(rng, model, folder)
        case _:
            _alter_node(rng, model)
    return model.SerializeToString()  # type: ignore[no-any-return]


def _alter_node(rng: np.random.Generator, model: Any) -> None:
    """Change an edge, a type or a name."""
    nodes, graph = model.graph.node, model.graph
    node = nodes[rng.integers(len(nodes))] if len(nodes) else nodes.add()
    values = ["", *(i.name for i in graph.input), *(o for n in nodes for o in n.output)]
    value = values[rng.integers(len(values))]
    match rng.integers(4):
        case 0 if len(node.input):  # maybe a cycle
            node.input[int(rng.integers(len(node.input)))] = value
        case 1 if len(node.output):  # a value that is defined twice, or never
            node.output[0] = value
        case 2:
            node.op_type = str(rng.choice(ALTERED_TYPES))
        case _:
            name = str(HOSTILE_NAMES[rng.integers(len(HOSTILE_NAMES))]).replace("\ud800", "")
            for each in nodes:
                each.input[:] = [name if i == value else i for i in each.input]
                each.output[:] = [name if o == value else o for o in each.output]
            for end in (*graph.input, *graph.output):
                end.name = name if end.name == value else end.name


def _alter_sizes(rng: np.random.Generator, model: Any, folder: Path) -> None:
    """Change where a weight lies, of what type or size it is, the size of the input, or add an array without end."""
    from onnx import TensorProto, helper

    weights, inputs = model.graph.initializer, model.graph.input
    weight = weights[rng.integers(len(weights))] if len(weights) else weights.add()
    sizes = inputs[0].type.tensor_type.shape.dim if len(inputs) else []
    match rng.integers(6):
        case 0 | 1:
            _put_outside(rng, weight, folder)
        case 2:
            weight.data_type = int(rng.integers(0, 24))
        case 3 if len(sizes):
            sizes[int(rng.integers(len(sizes)))].dim_value = int(DIMENSIONS[rng.integers(len(DIMENSIONS))])
        case 3 | 4:
            weight.dims.append(int(DIMENSIONS[rng.integers(len(DIMENSIONS))]))
        case _:
            shape = [int(DIMENSIONS[rng.integers(len(DIMENSIONS))]) for _ in range(3)]
            weights.append(helper.make_tensor("huge", TensorProto.INT64, [3], shape))
            model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["huge"], ["filled"]))
            if len(model.graph.output):
                model.graph.output[0].name = "filled"


def _put_outside(rng: np.random.Generator, weight: Any, folder: Path) -> None:
    """Let a weight lie in a file beside the model: whole, short, missing, linked, or one that is not the model's."""
    from onnx import TensorProto

    content = weight.raw_data
    (folder / "w.data").write_bytes(content[: int(rng.integers(len(content) + 1))] if rng.random() < 0.3 else content)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(str(rng.choice(["w.data", "/etc/passwd", "link", "."])))
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    location = "w.data" if rng.random() < 0.4 else str(rng.choice(LOCATIONS))
    given = {"location": location}
    if rng.random() < 0.5:
        given["offset"] = str(rng.choice(NUMBERS))
    if rng.random() < 0.5:
        given["length"] = str(rng.choice([*NUMBERS, str(len(content))]))
    for key, value in given.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value


def _put_inside(rng: np.random.Generator, model: Any) -> None:
    """Move the operations of a model into the branches of an If, so many deep."""
    from onnx import TensorProto, helper

    outputs = [o.name for o in model.graph.output]
    inner = list(model.graph.node)
    weights = [helper.make_tensor("which", TensorProto.BOOL, [], [True])]
    for depth in range(int(rng.choice([1, 2, 3, 20]))):
        branch = helper.make_graph(inner, f"b{depth}", [], [helper.make_tensor_value_info(o, 1, None) for o in outputs])
        renamed = [f"{o}_{depth}" for o in outputs]
        inner = [helper.make_node("If", ["which"], renamed, then_branch=branch, else_branch=branch)]
        outputs = renamed
        if depth > 2:  # both branches double what they hold
            inner = [helper.make_node("If", ["which"], renamed, then_branch=branch)]
    for end, name in zip(model.graph.output, outputs, strict=True):
        end.name = name
    del model.graph.node[:]
    model.graph.node.extend(inner)
    model.graph.initializer.extend(weights)


def alter_ir(rng: np.random.Generator, text: str) -> str:
    """Return an IR with one change that a mistaken or hostile exporter would make."""
    from xml.etree import ElementTree

    root = ElementTree.fromstring(text)
    layers, edges = root.findall("./layers/layer"), root.findall(".//edge")
    layer = layers[rng.integers(len(layers))]
    match rng.integers(8):
        case 0 if edges:
            edge, end = edges[rng.integers(len(edges))], str(rng.choice(["from", "to"]))
            edge.set(f"{end}-layer", str(rng.choice([e.get("id") for e in layers])))
        case 1:
            layer.set("type", str(rng.choice([e.get("type") for e in layers] + [*UNARY, "If", "ReadValue", "Assign"])))
        case 2:
            sizes = root.findall(".//dim")
            sizes[rng.integers(len(sizes))].text = str(DIMENSIONS[rng.integers(len(DIMENSIONS))])
        case 3:
            ports = root.findall(".//port")
            ports[rng.integers(len(ports))].set(
                "precision", str(rng.choice(["FP16", "I64", "BOOL", "U4", "STRING", "?"]))
            )
        case 4:
            shaped = [e for e in root.iter("data") if "shape" in e.attrib]
            if shaped:
                shape = ",".join(str(n) for n in rng.choice([-1, 0, 1, 2, 4, 2**31, 2**62], int(rng.integers(1, 4))))
                shaped[rng.integers(len(shaped))].set("shape", shape)
        case 5:
            layer.set("name", str(rng.choice([e.get("name") for e in layers])))
        case 6:
            root.set("version", str(rng.choice(["0", "1", "9", "10", "11", "12", "x", "99999999999999999999"])))
        case _:
            stored = [e for e in root.iter("data") if "offset" in e.attrib]
            if stored:
                data = stored[rng.integers(len(stored))]
                data.set(str(rng.choice(["offset", "size"])), str(rng.choice(NUMBERS)))
    changed = ElementTree.tostring(root, encoding="unicode")
    return ENTITIES + changed if rng.random() < 0.02 else changed


class Cases:
    """Draws and writes mutated models. folder: where the seeds are made."""

    def __init__(self, folder: Path) -> None:
        import openvino as ov

        self._onnx, self._ir = onnx_seeds(folder), ir_seeds(folder)
        rng = np.random.default_rng(36)
        for i in range(30):
            path = folder / f"drawn{i}.onnx"
            path.write_bytes(drawn_onnx(rng).SerializeToString())
            ov.serialize(ov.Core().read_model(path), path.with_suffix(".xml"))
            text = path.with_suffix(".xml").read_text(encoding="utf-8")
            self._ir.append((text, path.with_suffix(".bin").read_bytes()))

    def write(self, case: Case) -> Path:
        """Write the model of a case: of an odd seed as IR, of an even one as ONNX."""
        rng = case.rng
        alter = [int(n) for n in rng.multinomial(int(rng.integers(0, 4)), [0.6, 0.4])]
        if case.seed % 2:
            text, weights = self._ir[rng.integers(len(self._ir))]
            for _ in range(alter[0]):
                text = alter_ir(rng, text)
            content = (mutate_ir(rng, text, alter[1]) if alter[1] and "<!DOCTYPE" not in text else text).encode(
                errors="replace"
            )
            path = case.folder / "m.xml"
            path.with_suffix(".bin").write_bytes(weights if rng.random() < 0.9 else mutate_bytes(rng, weights, 1))
        else:
            path = case.folder / "m.onnx"
            known = rng.random() < 0.3
            content = self._onnx[rng.integers(len(self._onnx))] if known else drawn_onnx(rng).SerializeToString()
            for _ in range(alter[0]):
                content = alter_onnx(rng, content, case.folder)
            content = mutate_onnx(rng, content, alter[1])
        path.write_bytes(mutate_bytes(rng, content, int(rng.integers(1, 4))) if rng.random() < 0.15 else content)
        return path
