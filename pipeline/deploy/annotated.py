"""A placement for ONNX Runtime: an annotation on every node of an ONNX file, and the option that makes devices of them.

A node runs where the operation ran that gave its output: OpenVINO keeps the names of an ONNX file's tensors. What has
no counterpart, such as folded arithmetic on shapes, follows its first reader that has one, else its producer.

Source: microsoft/onnxruntime, docs/annotated_partitioning/PartitioningWithAnnotationsAndMemoryConstraints.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError, UsageError
from pipeline.deploy.rendering import rendered
from pipeline.result.deployment import EVERYTHING, Deployment
from pipeline.result.directory import RunDirectory
from pipeline.store.store import write_json, write_text
from pipeline.system.private import copy_whole, make_alike, write_whole

ANNOTATION, ASSIGNMENT = "layer_ann", "session.layer_assignment_settings"
DESIGNATORS = ("cpu", "gpu", "npu")  # of ONNX Runtime's devices, which OpenVINO calls the same in capitals
THREADS = "INFERENCE_NUM_THREADS"
ANNOTATED_IR = 10  # the version of ONNX files in which nodes have metadata
INITIALISED_IR = 4  # the version since which inputs may take the place of weights
OUT_MODEL, OUT_SESSION, OUT_PROGRAM = "model.onnx", "session.json", "run.py"


def onnx_session(deployment: Deployment, out: Path) -> list[Path]:
    """Write the annotated ONNX file, its session options, and a program that needs onnxruntime and numpy only.

    Raises:
        UsageError: the model is not an ONNX file, or the placement has devices that ONNX Runtime does not tell apart.
        StoreError: the model is not there any more, or has changed.
    """
    from runtime.measuring.outputs.tensor_names import input_shapes

    if deployment.record.rewrite:
        raise UsageError(
            f"{deployment.path} runs a rewritten model, and ONNX Runtime would run the file it was made from.",
            f"Use the target {EVERYTHING}.",
        )
    source = _source(deployment)
    designators = _designators(deployment)
    onnx = _onnx()
    model = onnx.load(source, load_external_data=False)
    _annotate(model.graph, _devices(deployment, model.graph))
    if INITIALISED_IR <= model.ir_version < ANNOTATED_IR:
        model.ir_version = ANNOTATED_IR
    threads = {str(d.properties[THREADS]) for d in deployment.record.devices.values() if THREADS in d.properties}
    session = {
        "config": {ASSIGNMENT: "; ".join(f"{kind}(={name})" for name, kind in designators.items())},
        "intra_op_num_threads": int(max(threads, key=int)) if threads else None,
        "measured_shapes": input_shapes(deployment.model),
    }
    written = _with_weights(source, out, model.SerializeToString())
    write_json(out / OUT_SESSION, session)
    write_text(out / OUT_PROGRAM, rendered("run_onnx.py.j2"))
    return [out / OUT_PROGRAM, out / OUT_SESSION, *written]


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise UsageError("The package onnx is not installed.", "Install it: pip install onnx") from error
    return onnx


def _source(deployment: Deployment) -> Path:
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


def _designators(deployment: Deployment) -> dict[str, str]:
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


def _devices(deployment: Deployment, graph: Any) -> list[str]:
    """Return the device of every node of a graph, in its order, "" where nothing tells."""
    from runtime.measuring.outputs.tensor_names import producers

    placement, gives = deployment.record.placement, producers(deployment.model)
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
            wanted |= dict.fromkeys(_reads(node), devices[i])
    for i, node in enumerate(graph.node):
        devices[i] = devices[i] or next((of_tensor[t] for t in _reads(node) if of_tensor.get(t)), "")
        of_tensor |= dict.fromkeys(node.output, devices[i])
    return devices


def _reads(node: Any) -> list[str]:
    """Return the tensors that a node reads, those that its bodies take from outside among them."""
    inner = [tensor for body in _bodies(node) for part in body.node for tensor in _reads(part)]
    return [tensor for tensor in (*node.input, *inner) if tensor]  # an input that is left out has the name ""


def _bodies(node: Any) -> Iterator[Any]:
    """Yield the graphs inside a node: an If's branches, a Loop's or a Scan's body."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _annotate(graph: Any, devices: list[str]) -> None:
    """Write the device of every node into it, and into the nodes of its bodies; an earlier annotation goes."""
    for node, device in zip(graph.node, devices, strict=True):
        others = [prop for prop in node.metadata_props if prop.key != ANNOTATION]
        del node.metadata_props[:]
        node.metadata_props.extend(others)
        if device:
            node.metadata_props.add(key=ANNOTATION, value=device)
        for body in _bodies(node):
            _annotate(body, [device] * len(body.node))


def _with_weights(source: Path, out: Path, content: bytes) -> list[Path]:
    """Write a model, and its external data under the names that it calls them; return the paths."""
    from coarsen.reading.model.files import model_files

    beside = {file: out / file.relative_to(source.parent) for file in model_files(source)[1:]}
    try:
        make_alike(out)
        write_whole(out / OUT_MODEL, content)
        for file, copy in beside.items():
            make_alike(copy.parent)
            copy_whole(file, copy)
    except OSError as error:
        raise StoreError(
            f"{out} cannot be written: {error.strerror}.", "Free disk space, or use another folder with --out."
        ) from error
    return [out / OUT_MODEL, *beside.values()]
