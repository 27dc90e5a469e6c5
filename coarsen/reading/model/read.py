"""Reading a model with OpenVINO, making it fit for placing, and turning it into a Graph.

Two things are done to every model before anything else looks at it. Constants are folded: arithmetic on shapes that a
device boundary cuts makes tensors dynamic, on which HETERO fails. Names are made unique and the same on every
reading: names are what placements are written in.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino.passes import ConstantFolding, Manager

from coarsen.reading.model.choose_sizes import Suitable, first_that_runs
from coarsen.reading.model.colocation import Operations, colocation_constraints
from coarsen.reading.model.constant_growth import ReadLimits, check_growth, constant_growth
from coarsen.reading.model.files import CHECK_FILE, check_exists, check_ir
from coarsen.reading.model.flops import ATTRIBUTED, Shape, count_elements, operation_flops
from coarsen.reading.model.onnx_checks import check_onnx
from coarsen.reading.model.size_trial import why_refused
from coarsen.reading.model.trial_log import Tries
from coarsen.reading.sizes.dimensions import dimension_names
from coarsen.reading.sizes.given_inputs import check_inputs, load_inputs, shape_texts
from coarsen.reading.sizes.shapes import (
    ChosenShape,
    InputShapes,
    concrete_models,
    first_misfit,
    format_shape,
    option_of,
    other_sizes,
    settle_states,
    with_given,
)
from coarsen.reading.sizes.size_ranges import OTHER_SIZES
from pipeline.core.arrays import Int64
from pipeline.core.errors import ModelError, PlacewrightError, UsageError
from pipeline.core.graph import Graph, weight_side
from pipeline.core.tensors import edges_of
from pipeline.shared.model_inputs import Inputs, concrete_shape, input_name
from pipeline.shared.payload import whole_ir
from pipeline.shared.runtime_words import refusal_in_words
from pipeline.system.paths import is_file

logger = logging.getLogger(__name__)

NOT_CONVERTED = "Export the model without them, or convert it with an OpenVINO extension and give the IR."

# OpenVINO's ConstantFolding passes over an operation that carries this key, whatever its value.
_KEEP_FROM_FOLDING = "DisableConstantFolding_0"

_INTEGERS = frozenset({"i4", "i8", "i16", "i32", "i64", "u4", "u8", "u16", "u32", "u64"})


def read_model(path: Path, *, file_bytes: int = 0, limits: ReadLimits | None = None) -> ov.Model:
    """Return the model of a file in any format OpenVINO reads, its constants folded and its names unique.

    Dynamic inputs stay dynamic; see `read_shaped`. The arguments, and what is raised, are those of `read_shaped`.
    """
    return read_shaped(path, InputShapes(keep_dynamic=True), file_bytes=file_bytes, limits=limits)[0]


def read_shaped(
    path: Path, shapes: InputShapes, *, file_bytes: int = 0, limits: ReadLimits | None = None
) -> tuple[ov.Model, list[ChosenShape]]:
    """Return a model, its inputs' shapes concrete, its constants folded and its names unique, and the shapes chosen.

    It is read in this process; `read_apart` reads what users name. limits: how far constants may grow, given that the
    model's files take `file_bytes`; None for any size.

    Weights stored in fewer bits than they are used in (fp16, int8, int4) stay as stored, with the Convert and what
    else unpacks them. Names of the file are kept; the second of two equal ones gets a suffix, and an operation without
    a name is called after the operation it serves.

    Raises:
        UsageError: the shapes that are given do not fit the model.
        ModelError: there is no such file, it is damaged, OpenVINO does not read it, its constants grow beyond the
            limits, there is nothing to place, or no sizes are found for its dynamic inputs with which it runs.
    """
    found, _ = read_with_inputs(path, shapes, file_bytes=file_bytes, limits=limits)
    return found.model, found.chosen


def read_with_inputs(
    path: Path,
    shapes: InputShapes,
    *,
    file_bytes: int = 0,
    limits: ReadLimits | None = None,
    tries: Tries | None = None,
    fold: bool = True,
    prepare: Callable[[ov.Model], object] = lambda _: None,
) -> tuple[Suitable, Inputs]:
    """Return what `read_shaped` does, and the arrays that the user gave for the inputs, {} if none.

    tries: what is known of sizes from a process that one of them killed, and where more of that is written. fold:
    whether constants are folded. prepare: changes the model before that.
    """
    check_exists(path)
    if path.suffix == ".xml":
        check_ir(path)
    elif path.suffix == ".onnx":
        check_onnx(path)
    data = load_inputs(Path(shapes.data), shapes.data_sha256) if shapes.data else {}
    try:
        declared = ov.Core().read_model(path)
        if data:
            data = check_inputs(declared, data, Path(shapes.data))
            shapes = replace(shapes, given=(*shapes.given, *shape_texts(data)))
        shapeable = (
            (_normalise_model(shaped, path, file_bytes=file_bytes, limits=limits, fold=fold, prepare=prepare), chosen)
            for shaped, chosen in concrete_models(declared, shapes, dimension_names(path))
        )
        found = first_that_runs(shapeable, shapes, tries or Tries())
    except (RuntimeError, UnicodeDecodeError) as error:  # the second where a name, or OpenVINO's words, are not UTF-8
        raise _refusal_error(path, str(error)) from error
    if isinstance(found, Suitable):
        _keep_names(declared, found.model)
        return found, data
    if found.given is not None:
        raise _unsuited_error(declared, found.given, path, found.faults[-1], shapes)
    raise _without_sizes(with_given(declared, shapes), path, found.faults)


def _keep_names(declared: ov.Model, model: ov.Model) -> None:
    """Give the inputs of a model the names that they have in the file, and no others.

    Folding away what only passes an input on leaves the input with the name of what is gone, too.
    """
    for ours, theirs in zip(model.inputs, declared.inputs, strict=True):
        ours.get_tensor().set_names(theirs.get_names())


def _normalise_model(
    model: ov.Model,
    path: Path,
    *,
    file_bytes: int,
    limits: ReadLimits | None,
    fold: bool,
    prepare: Callable[[ov.Model], object],
) -> ov.Model:
    """Return a model with its constants folded and its names unique; it is changed in place."""
    if path.suffix != ".xml":  # in an IR every operation has a name
        name_the_nameless(model)
    prepare(model)
    packed = _keep_packed(model)
    if limits is not None:
        grown = constant_growth(models_within(model), keeps=lambda op: _KEEP_FROM_FOLDING in op.get_rt_info())
        check_growth(grown, path, file_bytes=file_bytes, limits=limits)
    _fold_constants(model, packed, fold=fold)
    settle_states(model)
    if not any(op.get_type_name() not in ("Parameter", "Constant", "Result") for op in model.get_ordered_ops()):
        raise ModelError(
            f"{path} has no operations to place.", "Pass a model with operations between inputs and outputs."
        )
    if not model.outputs:
        raise ModelError(f"{path} has no outputs.", "Export the model again with at least one output.")
    _make_names_unique(model)
    return model


def sequence_end(model: ov.Model, shapes: InputShapes) -> str:
    """Return in words why no second inference of a model with state follows the first; "" if one does.

    So it is where a mask counts what a growing cache holds: with inputs of the same sizes it no longer fits.
    """
    if not model.get_variables() or any(port.get_partial_shape().rank.is_dynamic for port in model.inputs):
        return ""
    size = max(1, shapes.dynamic_size)
    why = why_refused(model, dynamic_size=size, inferences=2)
    return why if why and not why_refused(model, dynamic_size=size) else ""


def _unsuited_error(
    declared: ov.Model, model: ov.Model, path: Path, why_not: str, shapes: InputShapes
) -> PlacewrightError:
    """Return the error for a model that does not run with shapes that a user asked for, or asked to leave open."""
    ports = [port for port in model.inputs if port.get_partial_shape().is_dynamic]
    if not ports:
        with_shapes = ", ".join(f"{input_name(port)} {port.get_partial_shape()}" for port in model.inputs)
        return UsageError(f"{path} does not run with {with_shapes}: {why_not}.", other_sizes(declared))
    tried = ", ".join(
        f"{input_name(p)} {format_shape(concrete_shape(p.get_partial_shape(), shapes.dynamic_size))}" for p in ports
    )
    if shapes.ranges:
        return UsageError(f"{path} does not run with {tried}: it fails: {why_not}.", OTHER_SIZES)
    return UsageError(
        f"{path} does not run with {tried}, the measured size of its dynamic inputs: {why_not}.",
        f"Set measure.dynamic_size to another size. {other_sizes(declared)}",
    )


def _without_sizes(model: ov.Model, path: Path, failed: Sequence[str]) -> ModelError:
    """Return the error for a model that runs with none of the sizes that were tried."""
    ports = [port for port in model.inputs if port.get_partial_shape().is_dynamic]
    listed_inputs = ", ".join(f"{input_name(port)} {port.get_partial_shape()}" for port in ports)
    example = option_of(
        ChosenShape(input_name(port), "", format_shape(concrete_shape(port.get_partial_shape(), 224)), given=True)
        for port in ports
    )
    why = f"; {failed[0] if failed else first_misfit(model, ports)}"
    return ModelError(
        f"{path} runs with none of the sizes that were tried for its dynamic inputs {listed_inputs}{why}.",
        f"Pass the sizes it was made for, as in {example}, or arrays with --input data.npz.",
    )


def save_model(model: ov.Model, xml: Path) -> None:
    """Write a model as IR, the .xml and the .bin beside it, in the precision it has.

    Both files appear under their names only when they are whole.
    """
    xml.parent.mkdir(parents=True, exist_ok=True)
    with whole_ir(xml) as written:
        ov.save_model(model, written, compress_to_fp16=False)


def check_saved(xml: Path, path: Path) -> None:
    """Refuse a model whose IR OpenVINO does not read again: it keeps operations of a damaged one that no IR can hold.

    Raises:
        ModelError: so it is.
    """
    try:
        ov.Core().read_model(xml)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise _refusal_error(path, str(error)) from error


def _refusal_error(path: Path, message: str) -> ModelError:
    """Return the error for a model that OpenVINO refuses, in OpenVINO's words and in one line."""
    external = re.search(r"externally stored data in file \((?P<name>.+?), offset", message)
    if external:
        name = external["name"]
        what = "holds less than it should" if is_file(path.parent / name) else "is missing"
        return ModelError(
            f"The file {path.parent / name}, where {path} has its weights, {what}.",
            f"Copy {name} beside {path.name} again, or export the model again.",
        )
    missing = re.findall(r"No conversion rule found for operations?: *(.+)", message)
    if missing:
        return ModelError(
            f"OpenVINO cannot convert these operations of {path}: {', '.join(missing)}.",
            NOT_CONVERTED,
        )
    failed = re.findall(r"Conversion is failed for: *(.+?)\.?$", message, re.MULTILINE)
    if failed:
        cause = (
            f"OpenVINO cannot convert these operations of {path}: {', '.join(failed)} ({refusal_in_words(message)})."
        )
        return ModelError(cause, NOT_CONVERTED)
    return ModelError(f"OpenVINO cannot read {path}: {refusal_in_words(message)}.", CHECK_FILE)


def bodies_of(op: Any) -> list[tuple[ov.Model, int]]:
    """Return the models inside an If, Loop or TensorIterator, each with how often it runs, 1 if that is not known."""
    match op.get_type_name():
        case "If":
            return [(op.get_then_body(), 1), (op.get_else_body(), 1)]
        case "Loop" | "TensorIterator":
            return [(op.get_function(), max(op.get_num_iterations(), 1))]
    return []


def models_within(model: ov.Model) -> Iterator[ov.Model]:
    """Yield a model and the models in its bodies, and in theirs."""
    yield model
    for op in model.get_ordered_ops():
        for body, _ in bodies_of(op):
            yield from models_within(body)


def _unpacks_weights(op: Any) -> bool:
    """Return whether an operation widens a constant stored in few bits: fp16 or int8 to fp32, int4 to fp16."""
    if op.get_type_name() != "Convert" or op.input_value(0).get_node().get_type_name() != "Constant":
        return False
    stored, used = op.get_input_element_type(0), op.get_output_element_type(0)
    return bool(used.is_real() and stored.bitwidth < used.bitwidth and stored != ov.Type.boolean)


def _keep_packed(model: ov.Model) -> list[Any]:
    """Mark what unpacks weights, so that folding passes over it; return these operations."""
    packed = [op for inner in models_within(model) for op in inner.get_ordered_ops() if _unpacks_weights(op)]
    for op in packed:
        op.get_rt_info()[_KEEP_FROM_FOLDING] = True
    return packed


def _fold_constants(model: ov.Model, packed: list[Any], *, fold: bool) -> None:
    """Replace what depends on constants alone by its value, unless told not to, but leave packed weights packed."""
    if fold:
        manager = Manager()
        manager.register_pass(ConstantFolding())
        manager.run_passes(model)
    for op in packed:
        del op.get_rt_info()[_KEEP_FROM_FOLDING]
    model.validate_nodes_and_infer_types()


def name_the_nameless(model: ov.Model) -> None:
    """Name operations that have no name after the nearest named operation they serve, and their type."""
    operations = model.get_ordered_ops()
    served: dict[str, str] = {}  # OpenVINO's unique name -> name of the nearest named operation below
    nameless: dict[str, bool] = {}
    for op in reversed(operations):
        key = op.get_name()
        # Whether it goes by the number that OpenVINO counted, which differs on every reading. A name of the file can
        # look like such a number; its tensor then has a name too.
        nameless[key] = op.get_friendly_name() == op.get_name() and not any(out.get_names() for out in op.outputs())
        anchor = served.get(key, "") if nameless[key] else op.get_friendly_name()
        for i in range(op.get_input_size()):
            served[op.input_value(i).get_node().get_name()] = anchor
    names = _Names({op.get_friendly_name() for op in operations if not nameless[op.get_name()]})
    for op in operations:
        if nameless[op.get_name()]:
            anchor = served.get(op.get_name(), "")
            op.set_friendly_name(names.fresh(f"{anchor}/{op.get_type_name()}" if anchor else op.get_type_name()))


def _make_names_unique(model: ov.Model) -> None:
    """Give every operation but the first of equal names a suffix, in topological order."""
    operations = model.get_ordered_ops()
    for op in operations:
        if "\0" in op.get_friendly_name():  # where an IR would end it
            op.set_friendly_name(op.get_friendly_name().replace("\0", "_"))
    names = _Names({op.get_friendly_name() for op in operations})
    seen: set[str] = set()
    renamed = 0
    for op in operations:
        name = op.get_friendly_name()
        if name in seen:
            op.set_friendly_name(names.fresh(name))
            renamed += 1
        seen.add(name)
    if renamed:
        logger.warning("%d operations had the name of another one and got a suffix.", renamed)


@dataclass(slots=True)
class _Names:
    """Names in use, and how far the suffixes of each have been counted."""

    taken: set[str]
    count: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """Return `name` if it is free, otherwise with the first free suffix "_2", "_3" ..., and take it."""
        unique = name
        while unique in self.taken:
            self.count[name] = self.count.get(name, 1) + 1
            unique = f"{name}_{self.count[name]}"
        self.taken.add(unique)
        return unique


@dataclass(slots=True)
class _Operation:
    """What is read of one operation, with plain values.

    inputs: (producer, output port), one per input. shapes, byte_sizes, dynamic: one per output. integer, narrow:
    whether all outputs are integers, and have 8 bits or less.
    """

    name: str
    type: str
    inputs: list[tuple[int, int]]
    shapes: list[Shape]
    byte_sizes: list[int]
    dynamic: list[bool]
    integer: bool
    narrow: bool
    flops: float
    weight_bytes: int
    variable: str | None


def _shape_of(partial: Any) -> Shape:
    """Return a shape with -1 for each dynamic dimension, () if not even the rank is known."""
    if partial.is_static:
        return _read_shape(str(partial))
    if partial.rank.is_dynamic:
        return ()
    return tuple(d.get_length() if d.is_static else -1 for d in partial)


@lru_cache(maxsize=4096)
def _read_shape(text: str) -> Shape:
    """Return the shape of a text like [1,3,224,224]: to read it takes a tenth of the time of asking for each number."""
    return tuple(int(size) for size in text.strip("[]").split(",") if size)


def _read_operations(model: ov.Model) -> list[_Operation]:
    """Return what is read of every operation, in topological order."""
    index: dict[str, int] = {}
    operations: list[_Operation] = []
    for op in model.get_ordered_ops():
        sources = [op.input_value(i) for i in range(op.get_input_size())]
        inputs = [(index[source.get_node().get_name()], source.get_index()) for source in sources]
        index[op.get_name()] = len(operations)
        operations.append(_read_operation(op, inputs, [operations[producer].shapes[port] for producer, port in inputs]))
    return operations


def _read_operation(op: Any, inputs: list[tuple[int, int]], input_shapes: list[Shape]) -> _Operation:
    """Return what is read of one operation, whose inputs have been read before."""
    op_type = op.get_type_name()
    ports = range(op.get_output_size())
    partial = [op.get_output_partial_shape(i) for i in ports]
    shapes = [_shape_of(each) for each in partial]
    types = [op.get_output_element_type(i) for i in ports]
    integer = all(kind.get_type_name() in _INTEGERS for kind in types)
    sizes = [-(-int(count_elements(shape)) * kind.bitwidth // 8) for shape, kind in zip(shapes, types, strict=True)]
    attributes = op.get_attributes() if op_type in ATTRIBUTED or op_type in ("ReadValue", "Assign") else {}
    bodies = [(_read_operations(body), runs) for body, runs in bodies_of(op)]
    if bodies:
        flops = max(runs * sum(inner.flops for inner in body) for body, runs in bodies)
        weight_bytes = sum(inner.weight_bytes for body, _ in bodies for inner in body)
    else:
        flops = operation_flops(op_type, input_shapes, shapes, attributes)
        weight_bytes = sizes[0] if op_type == "Constant" else 0
    return _Operation(
        name=op.get_friendly_name(),
        type=op_type,
        inputs=inputs,
        shapes=shapes,
        byte_sizes=sizes,
        dynamic=[each.is_dynamic for each in partial],
        integer=integer,
        narrow=integer and all(kind.bitwidth <= 8 for kind in types),
        flops=flops,
        weight_bytes=weight_bytes,
        variable=attributes.get("variable_id"),
    )


def _bytes_read(operations: list[_Operation]) -> Int64:
    """Return int64 [n], the bytes of all outputs that are read, of all there are if none is.

    An output that nobody reads, such as the indices of a MaxPool, is never sent, and would pass for a second one of
    the size of those that are.
    """
    read = {source for op in operations for source in op.inputs}
    total = [[size for port, size in enumerate(op.byte_sizes) if (i, port) in read] for i, op in enumerate(operations)]
    return np.array([sum(t or op.byte_sizes) for t, op in zip(total, operations, strict=True)], np.int64)


def to_graph(model: ov.Model, *, source: str, dynamic_cuts: bool = False) -> Graph:
    """Return the graph of a model: one node per operation, Parameter, Constant, Convert and Result among them.

    Operations stand in the order of `get_ordered_ops`, which is topological. A dynamic dimension counts 1 in bytes and
    FLOPs. The weights of a Constant are counted on the Constant; edges from it, and from what is computed from
    constants alone, carry 0 bytes. Outputs that nobody reads do not count, unless none is read. An operation with a
    body (If, Loop, TensorIterator) is one node: it holds the weights of its bodies and costs what the body costs,
    times the trip count where that is known; an If costs its more expensive branch.

    model: its operation names must be unique, as `read_model` makes them.
    source: sha256 of the model's files. dynamic_cuts: whether who makes a tensor of dynamic shape may be parted from
    who takes it, which HETERO does not support.
    """
    operations = _read_operations(model)
    rows = [
        (producer, consumer, port, operations[producer].byte_sizes[port])
        for consumer, operation in enumerate(operations)
        for producer, port in operation.inputs
    ]
    edges, edge_bytes, reads = edges_of(*np.array(rows, np.int64).reshape(-1, 4).T)
    type_names = tuple(dict.fromkeys(op.type for op in operations))
    type_index = {name: i for i, name in enumerate(type_names)}
    first_shapes = [op.shapes[0] if op.shapes else () for op in operations]
    variables = {i: op.variable for i, op in enumerate(operations) if op.variable is not None}
    types = [op.type for op in operations]
    # (producer, consumer) of every tensor whose shape is dynamic
    dynamic = (
        []
        if dynamic_cuts
        else [
            (producer, consumer)
            for consumer, operation in enumerate(operations)
            for producer, port in operation.inputs
            if operations[producer].dynamic[port]
        ]
    )
    integer, narrow = (
        np.array(flags, bool) for flags in zip(*((o.integer, o.narrow) for o in operations), strict=True)
    )
    graph = Graph(
        names=tuple(op.name for op in operations),
        op_type=np.array([type_index[op.type] for op in operations], np.int16),
        type_names=type_names,
        edges=edges,
        flops=np.array([op.flops for op in operations], np.float64),
        weight_bytes=np.array([op.weight_bytes for op in operations], np.int64),
        out_bytes=_bytes_read(operations),
        edge_bytes=edge_bytes,
        shape_ptr=np.concatenate([[0], np.cumsum([len(shape) for shape in first_shapes], dtype=np.int64)]),
        shape_dim=np.array([d for shape in first_shapes for d in shape], np.int64),
        colocate=colocation_constraints(Operations(types, integer, narrow, variables, dynamic), edges),
        kernel=np.full(len(operations), -1, np.int32),
        source=source,
        reads=reads,
    )
    # The runtime holds weights where they are read: they do not flow.
    flows = ~weight_side(graph)[edges[0]]
    flowing = replace(reads, size=np.where(flows[reads.edge], reads.size, 0))
    return replace(graph, edge_bytes=np.where(flows, edge_bytes, 0), reads=flowing)
