"""What the benchmarks share: the form of a figure, timing, and synthetic models of any size."""

from __future__ import annotations

import json
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import openvino as ov
from openvino import opset13 as op

from coarsen.reading.model.read import read_model, save_model, to_graph
from pipeline.core.graph import Graph
from pipeline.system.json_lines import append_line, load_lines
from runtime import zoo

ROOT = Path(__file__).parent.parent
PLACEWRIGHT = Path(sysconfig.get_path("scripts")) / "placewright"

LANES = 8  # operations of a layer that stand side by side
WIDTH = 16
BLOCK = 12  # operations of one block of the synthetic model, its weights included

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a benchmark found.

    value: None where it could not be found; `how` then says why. target: what the value must stay below, or None.
    met: whether it does; None where there is no target. how: what was run, how often, and which summary is given.
    """

    figure: str
    value: float | None
    unit: str
    target: float | None
    met: bool | None
    how: str


@dataclass(frozen=True, slots=True)
class CellJournal:
    """Rows of cells, each searched once: a line is written down as soon as a cell is done.

    path: file of the lines.
    """

    path: Path

    def rows(self) -> dict[str, Mapping[str, Any]]:
        """Return what is written down, by cell."""
        return {row["cell"]: row for row in load_lines(self.path, summed=False)}

    def note(self, cell: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write down what a cell came to, and return it."""
        append_line(self.path, {"cell": cell, **row})
        return row

    def found(self, cell: str, search: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what is written down of a cell, searched if nothing is."""
        known = self.rows().get(cell)
        return self.note(cell, search()) if known is None else known


def median_row(rows: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """Return the row of the seed that found the median of a value, the lower one of two."""
    return sorted(rows, key=lambda row: float(row[key]))[(len(rows) - 1) // 2]


def figure(name: str, value: float | None, unit: str, how: str, *, target: float | None = None) -> Figure:
    """Return a figure, rounded to four digits, with its target looked at before rounding.

    >>> figure("help_time", 0.123456, "s", "once", target=0.3).met
    True
    """
    met = None if target is None else value is not None and value < target
    return Figure(name, None if value is None else float(f"{value:.4g}"), unit, target, met, how)


def say(figures: Iterable[Figure]) -> None:
    """Print every figure as one line of JSON as soon as it is known."""
    for found in figures:
        print(json.dumps(asdict(found)), flush=True)


def timed(function: Callable[[], Answer]) -> tuple[float, Answer]:
    """Return the seconds of one call, and its answer."""
    begun = time.perf_counter()
    answer = function()
    return time.perf_counter() - begun, answer


def median_s(function: Callable[[], object], repetitions: int) -> float:
    """Return the median seconds of some calls, after one that does not count."""
    function()
    return statistics.median(timed(function)[0] for _ in range(repetitions))


def process_s(command: Sequence[str | Path], repetitions: int) -> float:
    """Return the median seconds of some processes from start to end, after one that does not count.

    Raises:
        CalledProcessError: the process fails.
    """
    return median_s(lambda: subprocess.run(command, check=True, capture_output=True), repetitions)


def zoo_model(name: str, folder: Path) -> tuple[Path, Graph]:
    """Return a network of the zoo as the stages after reading see it: the normalised IR, and its graph."""
    raw, normal = folder / f"{name}.raw.xml", folder / f"{name}.xml"
    zoo.export(name, raw)
    model = read_model(raw)
    save_model(model, normal)
    return normal, to_graph(model, source=name)


def layered_graph(n: int, *, seed: int) -> Graph:
    """Return a graph of n operations in layers of 8: each reads its own lane of the layer before.

    A third also reads another lane of an earlier layer, ten layers back in the mean, as skip connections do.

    Types and sizes are those of a convolutional network: the shapes' channels double and their sides halve along it.
    """
    rng = np.random.default_rng(seed)
    type_names = ("Convolution", "Add", "Relu", "MatMul", "Concat", "MaxPool")
    layer, lane = np.divmod(np.arange(n), LANES)
    own = np.stack([np.arange(n) - LANES, np.arange(n)])[:, LANES:]  # [2, n - 8]
    shift = rng.integers(1, LANES, n)
    back = np.minimum(rng.geometric(1 / 10, n), layer)
    other = np.stack([(layer - back) * LANES + (lane + shift) % LANES, np.arange(n)])[:, LANES:]
    edges = np.concatenate([own, other[:, rng.random(other.shape[1]) < 1 / 3]], axis=1)
    edges = edges[:, np.lexsort((edges[1], edges[0]))]
    op_type = rng.integers(0, len(type_names), n)
    depth = (4 * np.arange(n)) // n
    shape = np.stack([np.ones(n, np.int64), 64 << depth, 56 >> depth, 56 >> depth], axis=1)  # [n, 4]
    elements = shape.prod(axis=1)
    heavy = np.isin(op_type, (0, 3))
    return Graph(
        names=tuple(f"operation{i}" for i in range(n)),
        op_type=op_type.astype(np.int16),
        type_names=type_names,
        edges=edges.astype(np.int32),
        flops=np.where(heavy, 18.0 * elements * shape[:, 1], elements),
        weight_bytes=np.where(heavy, 36 * shape[:, 1] ** 2, 0),
        out_bytes=4 * elements,
        edge_bytes=4 * elements[edges[0]],
        shape_ptr=np.arange(n + 1) * 4,
        shape_dim=shape.reshape(-1),
        colocate=np.full(n, -1, np.int32),
        kernel=np.full(n, -1, np.int32),
    )


def layered_model(n: int, *, seed: int) -> ov.Model:
    """Return a model of exactly n operations, weights counted: layers of 8 blocks, their outputs added at the end.

    A block takes the outputs of its own and the next lane by turns through two branches of MatMul, Add and Relu, joins
    them with a Concat and adds its own lane's input.
    """
    if n < LANES * (BLOCK + 1):
        raise ValueError(f"a layered model has at least {LANES * (BLOCK + 1)} operations, not {n}")
    rng = np.random.default_rng(seed)
    x = op.parameter([1, WIDTH], np.float32, name="x")
    lanes = [x] * LANES
    blocks, rest = divmod(n - 1 - LANES, BLOCK)  # besides the blocks: the input, seven sums, the output
    for b in range(blocks):
        lane = b % LANES
        lanes[lane] = _block(lanes[lane], lanes[(lane + 1) % LANES], rng, f"block{b}")
    total = lanes[0]
    for i, output in enumerate(lanes[1:]):
        total = op.add(total, output, name=f"sum{i}")
    for i in range(rest):
        total = op.relu(total, name=f"rest{i}")
    return ov.Model([op.result(total, name="out")], [x], "layered")


def _block(x: ov.Node, neighbour: ov.Node, rng: np.random.Generator, name: str) -> ov.Node:
    branches = []
    for side, source in (("left", x), ("right", neighbour)):
        values = (rng.standard_normal((WIDTH, WIDTH // 2)) / WIDTH).astype(np.float32)
        weight = op.constant(values, name=f"{name}.{side}.weight")
        bias = op.constant(np.zeros((1, WIDTH // 2), np.float32), name=f"{name}.{side}.bias")
        product = op.matmul(source, weight, False, False, name=f"{name}.{side}.product")
        branches.append(op.relu(op.add(product, bias, name=f"{name}.{side}.add"), name=f"{name}.{side}.relu"))
    return op.add(op.concat(branches, 1, name=f"{name}.concat"), x, name=f"{name}.residual")


def silent(_: str) -> None:
    """Take a progress message and say nothing."""


def parts(name: str, seconds: dict[str, float], how: str) -> Iterator[Figure]:
    """Yield one figure without a target per part of a longer time."""
    for part, spent in seconds.items():
        yield figure(f"{name}.{part}", spent, "s", f"{part} within {name}; {how}")
