"""Models, mutated as ONNX and as IR, through the reader: every end is an error that names the cause, or a right answer.

Most cases are read by a fork of a process that has imported the reader, so that thousands fit into minutes; every
fiftieth is read as a run reads it, in a process of its own. The fork may die, as OpenVINO dies of some models: a run
says so and goes on. It may not take longer than LIMIT_S or more than LIMIT_BYTES. An answer is right if the graph has
unique names and no cycle, the saved model is what the graph says, and, where OpenVINO runs the source as it stands,
gives its outputs.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import json
import logging
import os
import resource
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.commands import run_command
from tests.campaigns.mutation import HOSTILE_NAMES, mutate_bytes
from tests.campaigns.runner import Campaign, Case, Judge, WrongError, require

LIMIT_S = 60.0
LIMIT_BYTES = 4 << 30
PARSING_S = 10.0  # after which a fork that OpenVINO has not come back to from parsing these few bytes is ended
PARSES = b"_ov_api.py"
WHOLE_EVERY = 50
COMPARED = 0.05  # largest difference, as a share of the largest output: the plug-in computes in f32 either way
TOO_SLOW, TOO_LARGE, PARSES_ON = 1000, 1001, 1002  # no exit status
DIMENSIONS = (0, -1, 1, 2, 3, 7, 8, 64, 1000, 2**31 - 1, 2**31, 2**62, -(2**63))
NUMBERS = ("0", "-1", "1", "2", "3", "255", "2147483648", "9223372036854775807", "-9223372036854775808", "1e309", "nan")


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
    from tests.models import growing_cache, two_towers, with_state
    from tests.two_cpus import branchy

    found = []
    for i, model in enumerate([two_towers(1, width=4), with_state(), growing_cache(), branchy(1)]):
        xml = folder / f"seed{i}.xml"
        save_model(model, xml)
        found.append((xml.read_text(encoding="utf-8"), xml.with_suffix(".bin").read_bytes()))
    return found


def mutate_onnx(rng: np.random.Generator, content: bytes) -> bytes:
    """Return an ONNX model of which fields of messages drawn at random were changed, removed, doubled or exchanged."""
    import onnx

    model = onnx.load_model_from_string(content)
    for _ in range(int(rng.integers(1, 4))):
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


def mutate_ir(rng: np.random.Generator, text: str) -> str:
    """Return an IR of which elements and attributes drawn at random were changed, removed, doubled or exchanged."""
    from xml.etree import ElementTree

    root = ElementTree.fromstring(text)
    for _ in range(int(rng.integers(1, 4))):
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


def write_case(case: Case, onnx: Sequence[bytes], ir: Sequence[tuple[str, bytes]]) -> Path:
    """Write the mutated model of a case."""
    rng = case.rng
    if case.seed % 2:
        text, weights = ir[rng.integers(len(ir))]
        content = mutate_ir(rng, text).encode(errors="replace")
        path = case.folder / "m.xml"
        path.with_suffix(".bin").write_bytes(weights if rng.random() < 0.9 else mutate_bytes(rng, weights, 1))
    else:
        content, path = mutate_onnx(rng, onnx[rng.integers(len(onnx))]), case.folder / "m.onnx"
    path.write_bytes(mutate_bytes(rng, content, int(rng.integers(1, 4))) if rng.random() < 0.2 else content)
    return path


def read_forked(path: Path, out: Path) -> tuple[dict[str, Any] | None, int]:
    """Return what the reader answers in a fork of this process, and the fork's exit status."""
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.model.files import model_files, model_sha256
    from coarsen.reading.model.reading_options import USUAL
    from coarsen.reading.rewriting.rewrites import Rewrites
    from coarsen.reading.sizes.shapes import InputShapes

    command = {
        "path": str(path),
        "out": str(out),
        "source": model_sha256(path),
        "file_bytes": sum(file.stat().st_size for file in model_files(path)),
        "limits": asdict(ReadLimits()),
        "shapes": asdict(InputShapes()),
        "rewrites": asdict(Rewrites()),
        "save": True,
        "dynamic_cuts": False,
        "way": asdict(USUAL),
        "reference": None,
        "tries": str(out / "tries.jsonl"),
    }
    answer = out / "answer.json"
    child = os.fork()
    if not child:
        _answer_in_fork(command, answer, out / "said.txt")
    status = _wait_for(child, out / "said.txt")
    return (json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None), status


def _answer_in_fork(command: dict[str, Any], answer: Path, said: Path) -> None:
    """Answer a command and end this process."""
    from coarsen.reading import read_child

    words = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(words, 1)
    os.dup2(words, 2)
    status = 1
    try:
        faulthandler.dump_traceback_later(PARSING_S, exit=False, file=words)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        logging.getLogger().handlers.clear()
        told = json.dumps(read_child.answer_command(json.loads(json.dumps(command)))[0])
        answer.write_text(told, encoding="utf-8")
        status = 0
    except BaseException:  # noqa: BLE001  told by the status and the words
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


def _wait_for(child: int, said: Path) -> int:
    """Return the exit status of a child, negative for a signal; TOO_SLOW and so on if it exceeds a limit.

    said: where it writes, and in the middle of a long time what it is doing.
    """
    import psutil

    process, end = psutil.Process(child), time.monotonic() + LIMIT_S
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            slow, large = time.monotonic() > end, memory.rss - memory.shared > LIMIT_BYTES
            parses = time.monotonic() > end - LIMIT_S + PARSING_S + 1 and PARSES in said.read_bytes()
            if slow or large or parses:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return PARSES_ON if parses else TOO_SLOW if slow else TOO_LARGE
        time.sleep(0.002)


def check_answer(source: Path, out: Path) -> str:
    """Hold what was read against the saved model, and that against the source where OpenVINO runs it as it stands."""
    import openvino as ov

    from pipeline.core.graph import topological_order
    from pipeline.shared.payload import load_graph

    graph = load_graph(out / "graph.npz")
    topological_order(graph)
    core = ov.Core()
    normal = core.read_model(out / "model.xml")
    names = [op.get_friendly_name() for op in normal.get_ordered_ops()]
    require(len(set(names)) == len(names), "two operations of the saved model share a name")
    require(set(names) == set(graph.names), f"the graph and the saved model differ in {set(names) ^ set(graph.names)}")
    try:
        given = core.read_model(source)
        if given.is_dynamic() or given.get_sinks():
            return "read, sizes chosen"
        inputs = {i: _drawn_input(port) for i, port in enumerate(given.inputs)}
        plain = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        (out / "runs-source").touch()
        expected = core.compile_model(given, "CPU", plain)(inputs)
        (out / "runs-source").unlink()
    except (RuntimeError, TypeError, ValueError):
        return "read"  # nothing to compare with
    got = core.compile_model(normal, "CPU", plain)(inputs)
    require(len(got) == len(expected), f"{len(got)} outputs instead of {len(expected)}")
    for i in range(len(expected)):
        require(_close(expected[i], got[i]), f"output {i} is {got[i].ravel()[:4]} and not {expected[i].ravel()[:4]}")
    return "read, same outputs"


def _drawn_input(port: Any) -> Any:
    rng, shape = np.random.default_rng(0), tuple(port.shape)
    if np.prod(shape, dtype=float) > 1e7:
        raise ValueError("too large to compare")
    kind = port.get_element_type().to_dtype()
    return (rng.standard_normal(shape) if np.issubdtype(kind, np.floating) else rng.integers(0, 2, shape)).astype(kind)


def _close(expected: Any, got: Any) -> bool:
    if expected.shape != got.shape:
        return False
    if not np.issubdtype(expected.dtype, np.floating):
        return bool(np.mean(expected != got) < COMPARED) if expected.size else True
    finite = np.isfinite(expected) & np.isfinite(got)
    if not finite.any():
        return True
    with np.errstate(all="ignore"):
        most = float(np.abs(expected[finite]).max()) or 1.0
        return bool(np.abs(expected[finite] - got[finite]).max() <= COMPARED * most)


def judge_forked(case: Case, path: Path) -> str:
    """Read a model in a fork and judge its end."""
    out = case.folder / "out"
    out.mkdir()
    answer, status = read_forked(path, out)
    said = (out / "said.txt").read_bytes().decode(errors="replace")[-1500:]
    if status == PARSES_ON:  # a run ends it after coarsen.read_timeout_s
        return "OpenVINO parses without end"
    require(status != TOO_SLOW, f"takes longer than {LIMIT_S:g} s")
    require(status != TOO_LARGE, f"takes more than {LIMIT_BYTES} bytes")
    if status < 0:
        return f"OpenVINO died ({signal.Signals(-status).name})"
    require(status == 0 and answer is not None, f"ends with {status}: {said}")
    if answer is None:
        raise WrongError("no answer")
    if "error" in answer:
        error = answer["error"]
        require(error["cause"] and "Traceback" not in error["cause"], f"an error without a cause: {error}")
        names = str(path) in error["cause"] or "m.bin" in error["cause"] or "--shape" in error["remedy"]
        require(names, f"neither model nor input is named: {error}")
        return "refused"
    require("os_error" not in answer, f"an OSError: {answer}")
    child = os.fork()
    if not child:
        _judge_in_fork(path, out)
    status = _wait_for(child, out / "said.txt")
    told = (out / "judged.txt").read_text(encoding="utf-8") if (out / "judged.txt").exists() else ""
    if status and (out / "runs-source").exists():  # it dies of the source as it stands: nothing to compare with
        return "read"
    require(status == 0, told or f"the judge of a model ended with {status}")
    return told


def _judge_in_fork(path: Path, out: Path) -> None:
    """Write down what `check_answer` says and end this process."""
    status, told = 1, ""
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        told = check_answer(path, out)
        status = 0
    except BaseException as error:  # noqa: BLE001  told by the status and the words
        told = repr(error)
    finally:
        (out / "judged.txt").write_text(told, encoding="utf-8", errors="replace")
        os._exit(status)


def judge_whole(case: Case, path: Path) -> str:
    """Read a model as a run does, by the command line."""
    begun = time.monotonic()
    graph = ["search", path, "--topology", "equal:2", "--evaluations", "4", "--placer", "greedy", "--quiet", "--json"]
    ended = run_command(*graph, "--store", case.folder / "s")
    require(time.monotonic() - begun < 3 * LIMIT_S, "takes longer than three minutes")
    return "searched" if ended.code == 0 else f"search refused ({ended.code})"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what mutates and reads a model."""
    from coarsen.reading import read_child  # noqa: F401
    from coarsen.reading.model import read  # noqa: F401  imported once, before any fork
    from coarsen.reading.reference import reference  # noqa: F401
    from coarsen.reading.rewriting import forms, quantisers, rewriting  # noqa: F401

    onnx, ir = onnx_seeds(folder), ir_seeds(folder)

    def judge(case: Case) -> str:
        path = write_case(case, onnx, ir)
        return judge_whole(case, path) if case.seed % WHOLE_EVERY == WHOLE_EVERY - 1 else judge_forked(case, path)

    yield judge


CAMPAIGN = Campaign("models", 3.0, begin)
