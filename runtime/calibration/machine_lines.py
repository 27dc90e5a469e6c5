"""What one machine takes for the operations of models, as lines that travel: JSON, one per model and device.

A line holds the calibrated seconds of every operation with what a cost model may know of it, and what the whole model
took. Files of lines only grow, so that a folder of machines can be kept in git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Required

import numpy as np
from pydantic import Field, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, topological_order
from pipeline.shared.validation import strict_table
from pipeline.system.json_lines import append_line, load_lines
from runtime.machines.roofline import operation_class

SCHEMA: Literal["placewright.machine/1"] = "placewright.machine/1"
UNION = "*.jsonl merge=union\n"  # what lets git merge files that only grow
NAMED_BY = 12  # digits of a fingerprint that name a file
ELEMENTWISE = re.compile(
    r"Add|Subtract|Multiply|Divide|Maximum|Minimum|SquaredDifference|Power|Relu|PRelu|Elu|Gelu|Selu|Swish|HSwish|Mish"
    r"|HSigmoid|Sigmoid|Tanh|SoftPlus|SoftSign|Clamp|Exp|Log|Sqrt|Abs|Negative|Floor|Round|FakeQuantize|Convert"
    r"|BatchNormInference|Reshape|Squeeze|Unsqueeze"
)
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Row = tuple[str, Amount, Amount, Amount, Amount]  # type, FLOPs, bytes read, bytes written, seconds


@strict_table("ignore")
class MachineLine(TypedDict, total=False):
    """One model on one device of one machine. latency_s: of the whole model; rows: of its operations.

    held_out: what `predict` made of the lines before this one, over what the model takes, as a logarithm; None without
    any.
    """

    schema: Required[Literal["placewright.machine/1"]]
    fingerprint: Required[str]
    machine: Required[str]
    runtime: Required[str]
    device: Required[str]
    model: Required[str]
    sha256: Required[str]
    latency_s: Required[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    rows: Required[list[Annotated[Row, Strict(False)]]]  # JSON has lists
    held_out: float | None


def rows_of(graph: Graph, op_s: Float64 | None = None) -> list[Row]:
    """Return what is known of the operations of a graph; op_s: float64 [n], their seconds, 0 where unknown.

    An elementwise operation, or one that changes the shape alone, counts to the one whose only reader it is: runtimes
    run both as one kernel. Constants, parameters and results take no part.
    """
    seconds = np.zeros(graph.n) if op_s is None else op_s
    types = [graph.type_names[t] for t in graph.op_type]
    counted = np.array([operation_class(name) != "free" for name in types])
    flows = (graph.edge_bytes > 0) & counted[graph.edges[0]]
    readers = np.bincount(graph.edges[0], minlength=graph.n)
    head = np.arange(graph.n)
    into: dict[int, list[int]] = {}
    for producer, consumer in graph.edges[:, flows].T.tolist():
        into.setdefault(consumer, []).append(producer)
    held: dict[int, list[int]] = {}  # what lies ready before an inference, and is read by it
    for producer, consumer in graph.edges[:, graph.edge_bytes == 0].T.tolist():
        held.setdefault(consumer, []).append(producer)
    weights = graph.weight_bytes.astype(np.float64)
    for i in topological_order(graph).tolist():
        weights[i] += sum(weights[p] for p in held.get(i, ()))
        if ELEMENTWISE.fullmatch(types[i]):
            alone = [p for p in into.get(i, ()) if readers[p] == 1 and graph.out_bytes[p] == graph.out_bytes[i]]
            head[i] = head[alone[0]] if alone else i
    within = flows & (head[graph.edges[0]] == head[graph.edges[1]])
    passed = np.bincount(head[graph.edges[0]], weights=graph.edge_bytes * within, minlength=graph.n)
    read = np.bincount(graph.edges[1], weights=graph.edge_bytes, minlength=graph.n) + weights
    sums = [
        np.bincount(head, weights=each, minlength=graph.n) for each in (graph.flops, read, graph.out_bytes, seconds)
    ]
    return [
        (types[i], float(sums[0][i]), float(sums[1][i] - passed[i]), float(sums[2][i] - passed[i]), float(sums[3][i]))
        for i in np.flatnonzero(counted & (head == np.arange(graph.n))).tolist()
    ]


def append_machine_line(folder: Path, line: Mapping[str, Any]) -> Path:
    """Add a line to its machine's file in a folder; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{line['fingerprint'][:NAMED_BY]}.jsonl"
    append_line(path, line)
    return path


def let_git_merge(folder: Path) -> None:
    """Let git merge the files of a folder that machines add to."""
    folder.mkdir(parents=True, exist_ok=True)
    attributes = folder / ".gitattributes"
    if not attributes.exists():
        attributes.write_text(UNION, encoding="utf-8")


def read_machine_lines(*paths: Path) -> list[MachineLine]:
    """Return the lines of files, and of all files of folders; of one model on one device the last counts.

    Raises:
        UsageError: one of them has none.
    """
    remedy = "Calibrate on that machine: placewright calibrate MODEL --out DIR --machines FOLDER"
    lines: dict[tuple[str, str, str], MachineLine] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"There is no {path}.", remedy)
        found = list(lines_in(path))
        if not found:
            raise UsageError(f"{path} holds no calibration of a machine.", remedy)
        lines |= {(line["fingerprint"], line["device"], line["sha256"]): line for line in found}
    return list(lines.values())


def lines_in(path: Path) -> Iterator[MachineLine]:
    """Yield the lines of a file, or of the files of a folder, none where there is neither.

    Raises:
        UsageError: one is damaged.
    """
    adapter = TypeAdapter(MachineLine)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    for file, document in ((at, each) for at in files for each in load_lines(at, summed=False)):
        if document.get("schema") == SCHEMA:
            try:
                yield adapter.validate_python(document)
            except ValidationError as error:
                raise UsageError(f"{file} holds a line that is damaged.", "Delete that line.") from error


def by_device(lines: Sequence[MachineLine]) -> dict[tuple[str, str], list[MachineLine]]:
    """Return the lines of every device of every machine; models of which no operation takes time say nothing."""
    found: dict[tuple[str, str], list[MachineLine]] = {}
    for line in (line for line in lines if any(row[4] > 0 for row in line["rows"])):
        found.setdefault((line["fingerprint"], line["device"]), []).append(line)
    return found
