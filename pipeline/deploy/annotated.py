"""A program for ONNX Runtime: of a placement, with an annotation on every node of an ONNX file, or of its own settings.

A node runs where the operation ran that gave its output: OpenVINO keeps the names of an ONNX file's tensors. What has
no counterpart, such as folded arithmetic on shapes, follows its first reader that has one, else its producer.

Source: microsoft/onnxruntime, docs/annotated_partitioning/PartitioningWithAnnotationsAndMemoryConstraints.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError, UsageError
from pipeline.deploy.rendering import render_template
from pipeline.result.deployment import EVERYTHING, Deployment
from pipeline.result.directory import RunDirectory
from pipeline.result.onnx_copy import write_onnx
from pipeline.store.store import write_json, write_text

ANNOTATION, ASSIGNMENT = "layer_ann", "session.layer_assignment_settings"
DESIGNATORS = ("cpu", "gpu", "npu")  # of ONNX Runtime's devices, which OpenVINO calls the same in capitals
THREADS = "INFERENCE_NUM_THREADS"
ANNOTATED_IR = 10  # the version of ONNX files in which nodes have metadata
INITIALISED_IR = 4  # the version since which inputs may take the place of weights
OUT_SESSION, OUT_PROGRAM = "session.json", "run.py"


def onnx_session(deployment: Deployment, out: Path) -> list[Path]:
    """Write the annotated ONNX file, its session options, and a program that needs onnxruntime and numpy only.

    Where ONNX Runtime runs the answer, the file is as it is, and the options are those that it was measured with.

    Raises:
        UsageError: the model is not an ONNX file, or the placement has devices that ONNX Runtime does not tell apart.
        StoreError: the model is not there any more, or has changed.
    """
    from runtime.measuring.outputs.tensor_names import input_shapes

    if deployment.in_onnxruntime:
        return _written_as_measured(deployment, out)
    if deployment.record.rewrite:
        raise UsageError(
            f"{deployment.path} runs a rewritten model, and ONNX Runtime would run the file it was made from.",
            f"Use the target {EVERYTHING}.",
        )
    source = _source_file(deployment)
    designators = _device_designators(deployment)
    onnx = _import_onnx()
    model = onnx.load(source, load_external_data=False)
    _annotate_nodes(model.graph, _node_devices(deployment, model.graph))
    if INITIALISED_IR <= model.ir_version < ANNOTATED_IR:
        model.ir_version = ANNOTATED_IR
    threads = {str(d.properties[THREADS]) for d in deployment.record.devices.values() if THREADS in d.properties}
    session = {
        "config": {ASSIGNMENT: "; ".join(f"{kind}(={name})" for name, kind in designators.items())},
        "options": {"intra_op_num_threads": int(max(threads, key=int))} if threads else {},
        "providers": [],
        "measured_shapes": input_shapes(deployment.model),
    }
    written = write_onnx(source, out, model.SerializeToString())
    return [*_with_program(out, session), *written]


def _written_as_measured(deployment: Deployment, out: Path) -> list[Path]:
    """Write the ONNX file of a run that ONNX Runtime won, its session options, and the program."""
    options = deployment.onnx_options
    session = {
        "config": {name: value for name, value in options.items() if "." in name},
        "options": {name: _value(value) for name, value in options.items() if "." not in name},
        "providers": deployment.record.target.split(","),
        "measured_shapes": {name: _sizes(shape) for name, shape in deployment.record.shapes.items()},
    }
    written = write_onnx(deployment.model, out)
    return [*_with_program(out, session), *written]


def _sizes(shape: str) -> list[int]:
    """Return the sizes of a shape in words, the greatest of a range, 1 of any.

    >>> _sizes("[1,160..320,?]")
    [1, 320, 1]
    """
    ends = [size.rpartition(".")[2] for size in shape.strip("[]").split(",")]
    return [int(end) if end.isdigit() else 1 for end in ends]


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _with_program(out: Path, session: Mapping[str, Any]) -> list[Path]:
    """Write the options of a session, and the program that reads them; return their paths."""
    write_json(out / OUT_SESSION, session)
    write_text(out / OUT_PROGRAM, render_template("run_onnx.py.j2"))
    return [out / OUT_PROGRAM, out / OUT_SESSION]


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise UsageError("The package onnx is not installed.", "Install it: pip install onnx") from error
    return onnx


def _source_file(deployment: Deployment) -> Path:
    """Return the ONNX file that a run was made of."""
    from coarsen.reading.model.files import model_sha256

    manifest = RunDirectory(deployment.path).manifest()
    path = Path(manifest["model"]["path"]) if manifest is not None else deployment.model
    if path.suffix != ".onnx":
        raise UsageError(
            f"{deployment.path} is a run of {path.name}, which is not an ONNX file.",
            f"Use the target {EVERYTHING} for other models.",
        )
    if not path.is_file():
        raise StoreError(
            f"The model {path} of {deployment.path} is missing.", "Restore it, or run again from its new place."
        )
    if model_sha256(path) != deployment.record.model.source_sha256:
        raise StoreError(f"{path} has changed since the run {deployment.path}.", "Run again with the present file.")
    return path


def _device_designators(deployment: Deployment) -> dict[str, str]:
    """Return {device of the run: ONNX Runtime's word for it}."""
    if not deployment.record.placement:
        raise UsageError(
            f"{deployment.path} lets {deployment.record.target} choose the devices: there is nothing to annotate.",
            f"Use the target {EVERYTHING}.",
        )
    used = set(deployment.record.placement.values())
    devices = {name: device for name, device in deployment.record.devices.items() if name in used}
    known = {name: device.plugin.partition(".")[0].lower() for name, device in devices.items()}
    unsupported = sorted(name for name, kind in known.items() if kind not in DESIGNATORS)
    if unsupported:
        raise UsageError(
            f"{deployment.path} runs on {', '.join(unsupported)}, which ONNX Runtime cannot address; "
            f"it knows {', '.join(DESIGNATORS)}.",
            f"Use the target {EVERYTHING}.",
        )
    if len(set(known.values())) != len(known):
        raise UsageError(
            f"{deployment.path} runs on {', '.join(known)}, some of which ONNX Runtime cannot distinguish; "
            f"it knows {', '.join(DESIGNATORS)}.",
            f"Use the target {EVERYTHING}.",
        )
    return known


def _node_devices(deployment: Deployment, graph: Any) -> list[str]:
    """Return the device of every node of a graph, in its order, "" where nothing tells."""
    from runtime.measuring.outputs.tensor_names import producers_of_tensors

    placement, gives = deployment.record.placement, producers_of_tensors(deployment.model)
    devices = ["" for _ in graph.node]
    of_tensor: dict[str, str] = {}  # tensor -> the device of its producer
    for i, node in enumerate(graph.node):
        operations = [gives[tensor] for tensor in node.output if tensor in gives] or [node.name]
        devices[i] = next((placement[op] for op in operations if op in placement), "")
        of_tensor |= dict.fromkeys(node.output, devices[i])
    wanted: dict[str, str] = {}  # tensor -> the device of its first reader that has one
    for i in reversed(range(len(devices))):  # readers first: nodes stand in topological order
        node = graph.node[i]
        devices[i] = devices[i] or next((wanted[t] for t in node.output if wanted.get(t)), "")
        if devices[i]:
            wanted |= dict.fromkeys(_tensors_read(node), devices[i])
    for i, node in enumerate(graph.node):
        devices[i] = devices[i] or next((of_tensor[t] for t in _tensors_read(node) if of_tensor.get(t)), "")
        of_tensor |= dict.fromkeys(node.output, devices[i])
    return devices


def _tensors_read(node: Any) -> list[str]:
    """Return the tensors that a node reads, those that its bodies take from outside among them."""
    inner = [tensor for body in _body_graphs(node) for part in body.node for tensor in _tensors_read(part)]
    return [tensor for tensor in (*node.input, *inner) if tensor]  # an input that is left out has the name ""


def _body_graphs(node: Any) -> Iterator[Any]:
    """Yield the graphs inside a node: an If's branches, a Loop's or a Scan's body."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _annotate_nodes(graph: Any, devices: list[str]) -> None:
    """Write the device of every node into it, and into the nodes of its bodies; an earlier annotation goes."""
    for node, device in zip(graph.node, devices, strict=True):
        others = [prop for prop in node.metadata_props if prop.key != ANNOTATION]
        del node.metadata_props[:]
        node.metadata_props.extend(others)
        if device:
            node.metadata_props.add(key=ANNOTATION, value=device)
        for body in _body_graphs(node):
            _annotate_nodes(body, [device] * len(body.node))
