"""What the source of a model gives for operations of the normalised model: joined by the names of their tensors.

OpenVINO keeps the names that an ONNX file has for its tensors. ONNX Runtime gives every tensor of a copy of the file in
which it is an output. Any other source is run as OpenVINO reads it, its operations outputs as well, so that nothing is
fused; there operations go by their own names, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov

from coarsen.reading.model.files import model_files
from coarsen.reading.model.read import name_the_nameless
from coarsen.reading.model.results_order import ResultsOrder
from coarsen.reading.reference.reference import (
    AS_READ,
    EVALUATE,
    ONNXRUNTIME,
    OnnxSession,
    Run,
    by_evaluate,
    by_onnxruntime,
    on_cpu,
    onnxruntime_name,
)
from pipeline.core.errors import MissingPackageError, ModelError
from pipeline.shared.checks import CHECKS, EVALUATED, OUTPUTS, ByKind, load_by_kind, relative_l2, save_by_kind
from pipeline.shared.model_outputs import expose_ports
from pipeline.shared.runtime_words import refusal_in_words

LARGEST_COPY = 2**31 - 1  # bytes of an ONNX file in one piece
AGREES = 0.05  # relative distance up to which the CPU agrees with the reference implementation on the source

Place = tuple[str, int]  # an operation of the normalised model, and which of its outputs


@dataclass(frozen=True, slots=True)
class _Found:
    """What runs a source: the arrays by name, which of these are its outputs, and which is that of each place.

    With places ONNX Runtime tells no outputs.
    """

    executor: str
    run: Run
    outputs: Sequence[str]
    names: Mapping[Place, str]


def write_source_results(order: ResultsOrder) -> dict[str, Any]:
    """Write what the source gives; return {"executor", "why_not": sentences on executors that were not used}.

    Operations without a counterpart in the source are left out. The source begins a sequence where it has state.

    Raises:
        ModelError: nothing runs the source.
    """
    folder, path = Path(order.folder), Path(order.source)
    checks = load_by_kind(folder / CHECKS)
    normalised, source = ov.Core().read_model(folder / "model.xml"), ov.Core().read_model(path)
    # outputs of these operations that somebody takes
    known = {op.get_friendly_name(): op for op in normalised.get_ordered_ops()}
    wanted = {
        (name, port): output
        for name in order.operations
        for port, output in enumerate(known[name].outputs())
        if output.get_target_inputs()
    }
    why_not: list[str] = []
    if path.suffix == ".onnx":
        try:
            found = _by_onnxruntime(path, source, wanted)
            _write_results(found, checks, order.paths)
        except MissingPackageError as error:
            why_not.append(f"{ONNXRUNTIME} was not used: {error}")
        except ModelError as error:
            why_not.append(f"{ONNXRUNTIME} does not run the model: {error.cause}.")
        else:
            return {"executor": found.executor, "why_not": why_not}
    try:
        found = _as_read(path, source, wanted, folder)
        _write_results(found, checks, order.paths)
    except RuntimeError as error:
        cause = f"{path} does not run as it is read: {refusal_in_words(str(error))}."
        raise ModelError(
            " ".join([cause, *why_not]), "Name another run: --against CPU, or give other sizes."
        ) from error
    return {"executor": found.executor, "why_not": why_not}


def _write_results(found: _Found, checks: ByKind, paths: Mapping[str, str]) -> None:
    for kind, path in paths.items():
        arrays = found.run(dict(checks[kind]))
        written = {OUTPUTS: {name: arrays[name] for name in found.outputs}}
        for (operation, port), name in found.names.items():
            written.setdefault(str(port), {})[operation] = arrays[name]
        save_by_kind(Path(path), written)


def _by_onnxruntime(path: Path, source: ov.Model, wanted: Mapping[Place, ov.Output]) -> _Found:
    if not wanted:
        outputs = [f"output_{i}" for i in range(len(source.outputs))]
        return _Found(onnxruntime_name(), by_onnxruntime(path, source), outputs, {})
    content, tensors = _with_outputs(path, {place: set(out.get_names()) for place, out in wanted.items()})
    session = OnnxSession(content, source)
    return _Found(onnxruntime_name(), partial(session.run, sorted(set(tensors.values()))), (), tensors)


def _with_outputs(path: Path, names: Mapping[Place, set[str]]) -> tuple[bytes, dict[Place, str]]:
    """Return an ONNX file in which tensors are outputs as well, and which of its tensors each place is.

    names: of the tensor at each place, of which the file knows some, or none.

    Raises:
        MissingPackageError: onnx is not installed.
        ModelError: the file is too large to be copied.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError("Results of single operations in ONNX Runtime take", "onnx") from error
    if sum(file.stat().st_size for file in model_files(path)) > LARGEST_COPY:
        raise ModelError("of a file of more than 2 GB it gives no results of single operations")
    model = onnx.load(str(path))
    made = {name for node in model.graph.node for name in node.output if name}
    tensors = {place: min(known) for place, each in names.items() if (known := each & made)}
    outputs = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(set(tensors.values()) - outputs))
    content: bytes = model.SerializeToString()
    return content, tensors


def _as_read(path: Path, source: ov.Model, wanted: Mapping[Place, ov.Output], folder: Path) -> _Found:
    """Return what runs the source as OpenVINO reads it: the CPU, or the reference implementation.

    The second counts where it was asked for the outputs, and the first departs from it.
    """
    if path.suffix != ".xml":
        name_the_nameless(source)
    outputs = [f"output_{i}" for i in range(len(source.outputs))]
    # the output of the source for each place that has one, by the name of its tensor or its operation's
    # A Result's output has the names of the tensor that it takes.
    operations = [op for op in source.get_ordered_ops() if op.get_type_name() != "Result"]
    tensors = {name: out for op in operations for out in op.outputs() for name in out.get_names()}
    often = Counter(op.get_friendly_name() for op in operations)
    by_name = {op.get_friendly_name(): op for op in operations}
    joined = {}
    for (name, port), output in wanted.items():
        tensor = next((tensors[n] for n in sorted(output.get_names()) if n in tensors), None)
        if tensor is None and often[name] == 1:
            counterpart = by_name[name]
            if counterpart.get_type_name() == output.get_node().get_type_name():
                tensor = counterpart.output(port)
        if tensor is not None and tensor.get_node().get_type_name() not in ("Parameter", "Constant"):
            joined[name, port] = tensor
    right = not (folder / EVALUATED).exists() or _agrees_with_reference(on_cpu(source, 1), folder)
    exposed = zip(joined, expose_ports(source, list(joined.values())), strict=True)
    names = {place: f"output_{i}" for place, i in exposed}
    if right:
        return _Found(AS_READ, on_cpu(source, 1), outputs, names)
    return _Found(EVALUATE, by_evaluate(source), outputs, names)


def _agrees_with_reference(run: Run, folder: Path) -> bool:
    """Return whether what runs the source gives what the reference implementation does."""
    [(kind, expected)] = load_by_kind(folder / EVALUATED).items()
    outputs = run(dict(load_by_kind(folder / CHECKS)[kind]))
    return all(
        outputs[name].shape == array.shape and relative_l2(outputs[name], array) <= AGREES
        for name, array in expected.items()
    )
