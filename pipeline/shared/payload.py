"""How artifacts are written to files and read back: npz without pickle, JSON, models whole."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeVar

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.arrays import Float32, Float64
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Evaluation, FailureKind, Measurement, MeasurementFailed, Prediction
from pipeline.core.tensors import INFERRED, Reads
from pipeline.system.private_files import disk_fault

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Kind = TypeVar("Kind")
GRAPH_ARRAYS = (
    "op_type",
    "edges",
    "flops",
    "weight_bytes",
    "out_bytes",
    "edge_bytes",
    "shape_ptr",
    "shape_dim",
    "colocate",
    "kernel",
)
READ_ARRAYS = ("edge", "port", "size", "tensor")  # filed as "read_edge" and so on; earlier versions have none
# What numpy and zipfile raise besides ValueError where bytes of an npz file were changed or cut off; MemoryError where
# a header tells of an array that no memory holds.
NO_ARRAYS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    OverflowError,
    AttributeError,
)
FILED_AS = {"colocate": "tie"}  # names that arrays have in files written by earlier versions, too


@contextlib.contextmanager
def whole_ir(xml: Path) -> Iterator[Path]:
    """Give where to save a model as IR; the .xml and the .bin then take the name of `xml`, when both are whole.

    Raises:
        OSError: the disk is full, say, of which OpenVINO itself says no more than that a stream failed.
    """
    with tempfile.TemporaryDirectory(prefix=f".{xml.stem}.", dir=xml.parent) as folder:
        written = Path(folder) / xml.name
        try:
            yield written
        except RuntimeError as error:
            if (why := disk_fault(xml.parent, error)) is not error:
                raise why from error
            if "iostream" not in str(error):
                raise
            # OpenVINO removes what it has written, and the disk may have room again.
            said = "what was written ended early, as on a full disk"
            raise OSError(errno.ENOSPC, said, str(xml.parent)) from error
        for suffix in (".bin", ".xml"):
            written.with_suffix(suffix).replace(xml.with_suffix(suffix))


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays as npz; object arrays are refused."""
    with path.open("wb") as out:
        np.savez_compressed(out, allow_pickle=False, **arrays)


def load_arrays(path: Path | io.BytesIO, *, beginning: str = "") -> dict[str, Any]:
    """Return the named arrays of an npz file; those alone whose names begin so.

    Raises:
        ValueError: it is none, or damaged.
    """
    try:
        # Opened here: numpy leaves a file open that it cannot read.
        with path.open("rb") if isinstance(path, Path) else path as file, np.load(file, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in arrays.files if name.startswith(beginning)}
    except NO_ARRAYS as error:
        raise ValueError(f"{path} is no file of arrays, or damaged ({type(error).__name__})") from error
    if not all(isinstance(array, np.ndarray) for array in held.values()):  # else NumPy gives the bytes
        raise ValueError(f"{path} holds something else than arrays")
    return held


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        ValueError: it holds none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error


def from_json(kind: type[Kind], document: Any) -> Kind:
    """Return the record that a document holds; keys of other versions are left alone.

    Raises:
        ValueError: it holds none.
    """
    from pydantic import ValidationError

    adapter: TypeAdapter[Kind] = _adapter_of(kind)  # type: ignore[arg-type]  # classes are hashable
    try:
        return adapter.validate_python(document)
    except ValidationError as error:  # whose own words take several lines
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _adapter_of(kind: type[Kind]) -> TypeAdapter[Kind]:
    """Return what reads records of a kind, made once: that takes longer than reading many."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def save_graph(path: Path, graph: Graph) -> None:
    """Write a graph as npz; names are UTF-8 text in one array of bytes."""
    text = json.dumps({"names": graph.names, "type_names": graph.type_names, "source": graph.source})
    save_arrays(
        path,
        {
            "text": np.frombuffer(text.encode(), dtype=np.uint8),
            **{FILED_AS.get(name, name): getattr(graph, name) for name in GRAPH_ARRAYS},
            **{f"read_{name}": getattr(graph.reads, name) for name in READ_ARRAYS},
        },
    )


def load_graph(path: Path) -> Graph:
    """Return the graph `save_graph` wrote."""
    arrays = load_arrays(path)
    text = json.loads(arrays.pop("text").tobytes().decode())
    arrays |= {name: arrays.pop(filed) for name, filed in FILED_AS.items()}
    told = {name: arrays.pop(f"read_{name}") for name in READ_ARRAYS if f"read_{name}" in arrays}
    names, type_names = tuple(text["names"]), tuple(text["type_names"])
    reads = Reads(**told) if told else INFERRED
    return Graph(names=names, type_names=type_names, source=text["source"], reads=reads, **arrays)


def save_grouping(path: Path, grouping: Grouping) -> None:
    """Write a grouping as npz."""
    save_arrays(path, {"group": grouping.group})


def load_grouping(path: Path) -> Grouping:
    """Return the grouping `save_grouping` wrote."""
    return Grouping(load_arrays(path)["group"])


def save_weights(path: Path, weights: Mapping[str, Float32]) -> None:
    """Write network parameters as safetensors, whose own error of a full disk is no OSError."""
    from safetensors.numpy import save

    path.write_bytes(save({name: np.ascontiguousarray(array) for name, array in weights.items()}))


def read_weights(path: Path) -> dict[str, Float32]:
    """Return the parameters `save_weights` wrote."""
    from safetensors.numpy import load_file

    return dict(load_file(path))


def save_profile(path: Path, costs: CostTable, topology: Topology) -> None:
    """Write a cost table and the topology it belongs to as npz."""
    text = json.dumps(
        {"names": costs.names, "origin": costs.origin, "devices": [d.to_json() for d in topology.devices]}
    )
    save_arrays(
        path,
        {
            "text": np.frombuffer(text.encode(), dtype=np.uint8),
            "op_s": costs.op_s,
            "launch_s": costs.launch_s,
            "link_bytes_per_s": topology.link_bytes_per_s,
            "link_latency_s": topology.link_latency_s,
        },
    )


def load_profile(path: Path) -> tuple[CostTable, Topology]:
    """Return what `save_profile` wrote."""
    arrays = load_arrays(path)
    text = json.loads(arrays["text"].tobytes().decode())
    devices = tuple(DeviceSpec(**d) for d in text["devices"])
    topology = Topology(devices, arrays["link_bytes_per_s"], arrays["link_latency_s"])
    costs = CostTable(tuple(text["names"]), topology.names, arrays["op_s"], arrays["launch_s"], tuple(text["origin"]))
    return costs, topology


def load_slowdown(path: Path, topology: Topology) -> Float64:
    """Return float64 [p], what operations take beside the other devices over what they take alone, of a profile.json.

    It is 1 for devices that were not asked about, and for all if other processes kept anybody from telling.
    """
    slowdown = read_json(path)["slowdown"] or {}
    return np.array([slowdown.get(name, 1.0) for name in topology.names], np.float64)


class FailureDocument(TypedDict):
    """Why a placement could not be measured; see `MeasurementFailed`."""

    kind: FailureKind
    message: str


class EvaluationDocument(TypedDict):
    """What an evaluator said of a placement, see `Measurement`; of one that failed why alone."""

    failed: FailureDocument | None
    samples_s: NotRequired[list[float]]
    warm_up: NotRequired[int]
    compile_s: NotRequired[float]
    executed_on: NotRequired[list[str]]
    subgraphs: NotRequired[int]
    precision: NotRequired[str]
    waited_share: NotRequired[float]
    realtime: NotRequired[bool]
    predicted: NotRequired[bool]


def failure_to_json(failed: MeasurementFailed) -> FailureDocument:
    """Return why a placement could not be measured, as JSON values."""
    return {"kind": failed.kind, "message": failed.message}


def result_to_json(result: Evaluation) -> EvaluationDocument:
    """Return what an evaluator said, or the reason why it could not, as JSON values."""
    if isinstance(result, MeasurementFailed):
        return {"failed": failure_to_json(result)}
    measured = Measurement(result.samples_s) if isinstance(result, Prediction) else result
    document: EvaluationDocument = {
        "failed": None,
        "samples_s": result.samples_s.tolist(),
        "warm_up": measured.warm_up,
        "compile_s": measured.compile_s,
        "executed_on": list(result.executed_on),
        "subgraphs": result.subgraphs,
        "precision": measured.precision,
        "waited_share": measured.waited_share,
        "realtime": measured.realtime,
    }
    if isinstance(result, Prediction):
        document["predicted"] = True
    return document


def result_from_json(document: Mapping[str, Any]) -> Evaluation:
    """Return what `result_to_json` described."""
    if document["failed"]:
        return MeasurementFailed(document["failed"]["kind"], document["failed"]["message"])
    executed_on, subgraphs = tuple(document["executed_on"]), document["subgraphs"]
    if document.get("predicted"):
        return Prediction(document["samples_s"][0], executed_on, subgraphs)
    return Measurement(
        np.array(document["samples_s"]),
        warm_up=document["warm_up"],
        compile_s=document["compile_s"],
        executed_on=executed_on,
        subgraphs=subgraphs,
        precision=document["precision"],
        waited_share=document["waited_share"],
        realtime=document["realtime"],
    )
