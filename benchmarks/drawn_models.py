"""Whether what placewright makes of a model computes the same as the model: small models drawn by seed, or a list.

Drawn ones have the habits of exporters: relative positions and masks, shape arithmetic, quantisation of every kind,
control flow, dynamic axes. Each is run by ONNX Runtime and, as placewright normalised it, by OpenVINO's CPU in f32;
outputs are compared by name on noise, a smooth signal, zeros and, where there is a mask, with padding.

    python -m benchmarks.drawn_models --out DIR [--count 200] [--seed 0] [--only 7 --only 12]
    python -m benchmarks.drawn_models --out DIR --models LIST.json   # of benchmarks.judge, ONNX files alone
    python -m benchmarks.drawn_models --out DIR --write              # the models and LIST.json for benchmarks.judge
    python -m benchmarks.judge --models DIR/LIST.json --out JUDGED --budget 8s --starts 0   # whole runs, their outputs

Drawn models that depart are kept in DIR; `departures.jsonl` there has one line of JSON per model, and a table is
printed. Models that are in it already are not looked at again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from benchmarks.common import silent
from benchmarks.drawn_families import FAMILIES, Drawing, Drawn
from benchmarks.judge import read_list
from benchmarks.outputs import (
    VOCABULARY,
    Apart,
    Arrays,
    Port,
    Sizes,
    apart,
    arrays,
    by_onnxruntime,
    by_openvino,
    kinds_of,
    own_width,
    ports,
    quiet_sizes,
    session,
)
from pipeline import api
from pipeline.core.errors import PlacewrightError
from pipeline.settings.config import Settings
from pipeline.store.store import Store

COUNT = 200
LEAST_WIDTH = 1e-4  # what sums in another order come to in deep models
WIDTHS = 4.0  # how often the reference's own width an answer may be away
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
DEPARTURES = "departures.jsonl"
AS_READ, CONCRETE, NORMALISED, LOWERED = "as read", "concrete", "normalised", "by default"
TWO_THREADS = "two threads"  # normalised, in f32; all others but the default have one
WAYS = (AS_READ, CONCRETE, NORMALISED, TWO_THREADS, LOWERED)


@dataclass(frozen=True, slots=True)
class Case:
    """A model to look at: its file, the shapes of its inputs, and below what its ids are.

    plain: the file that it was quantised from.
    """

    name: str
    path: Path
    sizes: Sizes
    vocabulary: int = VOCABULARY
    plain: Path | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out for one model.

    operations: type -> how many. width: how far the reference lies from itself, see `outputs.own_width`. distances: way
    of running it -> kind of inputs -> how far from the reference. error: why it was not compared, in words, with
    placewright's exit code if it ended with one.
    """

    name: str
    sizes: Sizes
    operations: Mapping[str, int]
    width: float = 0.0
    distances: Mapping[str, Mapping[str, float]] | None = None
    error: str = ""
    exit_code: int = 0

    def worst(self, way: str) -> float:
        """Return the largest distance of one way of running it, 0 if it was not run."""
        return max((self.distances or {}).get(way, {}).values(), default=0.0)

    def departs(self, way: str) -> bool:
        """Return whether one way of running it departs from the reference by more than the reference from itself."""
        return self.worst(way) > max(LEAST_WIDTH, WIDTHS * self.width)

    @property
    def wrong(self) -> bool:
        """Return whether it is worth a look: it departs in f32 as placewright reads it, or was not compared."""
        return bool(self.error) or self.departs(NORMALISED) or self.departs(TWO_THREADS)


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    """A few inputs for static quantisation."""

    def __init__(self, inputs: Sequence[Port], drawn: Drawn) -> None:
        self._rest = [arrays(inputs, drawn.sizes, "noise", seed=s, vocabulary=drawn.vocabulary) for s in range(3)]

    def get_next(self) -> Arrays | None:
        return self._rest.pop() if self._rest else None


def draw(seed: int, number: int, folder: Path) -> Case:
    """Return a drawn model, named after its number, family and how it was quantised or stored."""
    rng = np.random.default_rng([seed, number])
    family = sorted(FAMILIES)[number % len(FAMILIES)]
    drawing = Drawing(rng=rng)
    drawn = FAMILIES[family](drawing)
    path = drawing.save(folder / f"{number:03d}-{family}.onnx", drawn.inputs, drawn.outputs)
    treatment = str(rng.choice(["float", "float", *drawn.treatments]))
    made = treated(path, drawn, treatment)
    plain = path if treatment.startswith(("dynamic", "qdq")) else None
    return Case(made.stem, made, drawn.sizes, drawn.vocabulary, plain)


def treated(path: Path, drawn: Drawn, treatment: str) -> Path:
    """Return the file of a model that was quantised, or whose weights are stored in half precision."""
    out = path.with_name(f"{path.stem}-{treatment.replace(' ', '-')}.onnx")
    match treatment:
        case "float":
            return path
        case "dynamic" | "dynamic per channel":
            quantize_dynamic(path, out, per_channel="channel" in treatment, weight_type=QuantType.QInt8)
        case "dynamic unsigned":
            quantize_dynamic(path, out, weight_type=QuantType.QUInt8)
        case "qdq" | "qdq per channel":
            data = _Calibration(ports(path), drawn)
            quantize_static(path, out, data, quant_format=QuantFormat.QDQ, per_channel="channel" in treatment)
        case "half weights":
            _halve(path, out)
        case _:
            raise ValueError(f"no treatment {treatment!r}")
    return out


def _halve(path: Path, out: Path) -> None:
    """Store weights of more than 64 numbers in half precision, each with a Cast, as converters do."""
    model = onnx.load(path)
    casts = []
    for weight in model.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size > 64:
            stored = f"{weight.name}_half"
            casts.append(onnx.helper.make_node("Cast", [stored], [weight.name], to=onnx.TensorProto.FLOAT))
            weight.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), stored))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, out)


def look(case: Case, scratch: Path) -> Finding:
    """Return what comes out for one model; scratch: a folder for runs."""
    path = case.path
    counted: dict[str, int] = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        counted[node.op_type] = counted.get(node.op_type, 0) + 1
    about = (case.name, case.sizes, counted)
    inputs = ports(path)
    given = {kind: arrays(inputs, case.sizes, kind, seed=1, vocabulary=case.vocabulary) for kind in kinds_of(inputs)}
    reference = session(path)
    wanted = {kind: by_onnxruntime(reference, values) for kind, values in given.items()}
    width = own_width(path, given, wanted)
    try:
        normalised = _normalised(case, scratch)
    except PlacewrightError as error:
        return Finding(*about, width, error=error.cause, exit_code=error.exit_code)
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})
    ways: dict[str, tuple[Any, Mapping[str, str]]] = {
        AS_READ: (core.read_model(path), EXACT),
        CONCRETE: (core.read_model(path), EXACT),
        NORMALISED: (core.read_model(normalised), EXACT),
        TWO_THREADS: (core.read_model(normalised), EXACT | {"INFERENCE_NUM_THREADS": "2"}),
        LOWERED: (core.read_model(normalised), {}),
    }
    ways[CONCRETE][0].reshape({port.name: list(given["noise"][port.name].shape) for port in inputs})
    distances = {way: _distances(core, *how, given, wanted) for way, how in ways.items()}
    why = next((f"{way}: {found}" for way, found in distances.items() if isinstance(found, str)), "")
    kept = {way: found for way, found in distances.items() if not isinstance(found, str)}
    return Finding(*about, width, kept, why)


def _normalised(case: Case, scratch: Path) -> Path:
    """Return the model as the step read of placewright leaves it.

    Raises:
        PlacewrightError: it refuses the model.
    """
    shapes = tuple(f"{name}={'x'.join(map(str, size)) or 'scalar'}" for name, size in case.sizes.items())
    settings = Settings().updated({"coarsen.shapes": shapes}, "the benchmark")
    run, store = scratch / "run" / case.name, Store(scratch / "store")
    outcomes = api.advance_run(case.path, settings, run, store, upto="coarsen", progress=silent).outcomes
    return outcomes["read"].entry.path("model.xml")


def _distances(
    core: Any, model: Any, properties: Mapping[str, str], given: Mapping[str, Arrays], wanted: Mapping[str, Arrays]
) -> dict[str, float] | str:
    """Return how far outputs lie from the reference by kind of inputs, or why the CPU does not run the model."""
    try:
        compiled = core.compile_model(model, "CPU", dict(properties))
        found = {kind: by_openvino(compiled, values, list(wanted[kind])) for kind, values in given.items()}
    except RuntimeError as error:
        return " ".join(str(error).split())[-200:]
    quiet = quiet_sizes(wanted.values())
    gaps: dict[str, Apart] = {kind: apart(outputs, wanted[kind], quiet) for kind, outputs in found.items()}
    return {kind: gap.worst for kind, gap in gaps.items()}


def table(findings: Sequence[Finding]) -> str:
    """Return in lines how many depart on each way of running them, and which."""
    lines = [
        f"{len(findings)} models; departs: by more than {WIDTHS:g} own widths of the reference and {LEAST_WIDTH:g}"
    ]
    for way in WAYS:
        lines.append(f"{way:>12}: {sum(f.departs(way) for f in findings)} depart")
    lines.append(f"{'not compared':>12}: {sum(bool(f.error) for f in findings)}")
    for f in findings:
        if f.wrong:
            far = "  ".join(f"{way} {f.worst(way):.2g}" for way in f.distances or {})
            lines.append(f"{f.name}, own width {f.width:.1g}: {far}  {f.error[:110]}")
    return "\n".join(lines)


def write_list(cases: Iterable[Case], file: Path) -> None:
    """Write what `benchmarks.judge` takes: of every model its file, what it was quantised from, and its inputs."""
    rows = [
        {"name": c.name, "path": c.path.name, "sizes": c.sizes, "vocabulary": c.vocabulary}
        | ({"float": c.plain.name} if c.plain else {})
        for c in cases
    ]
    file.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw models, compare what placewright makes of them, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn_models", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models that depart")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, action="append", help="number of one drawn model; repeatable")
    parser.add_argument("--models", type=Path, help="LIST.json of benchmarks.judge, in place of drawn models")
    parser.add_argument("--write", action="store_true", help="write the drawn models and their list, look at none")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    numbers = chosen.only or range(chosen.count)
    if chosen.write:
        write_list((draw(chosen.seed, number, chosen.out) for number in numbers), chosen.out / "LIST.json")
        return
    journal = chosen.out / DEPARTURES
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    findings = [Finding(**json.loads(line)) for line in lines]
    done = {finding.name for finding in findings}
    with journal.open("a", encoding="utf-8") as written, tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if chosen.models:
            cases = (Case(m.name, m.path, m.sizes, m.vocabulary) for m in read_list(chosen.models) if m.onnx)
        else:
            cases = (draw(chosen.seed, number, scratch) for number in numbers)
        for case in cases:
            if case.name in done:
                continue
            found = look(case, scratch)
            findings.append(found)
            written.write(json.dumps(asdict(found)) + "\n")
            written.flush()
            if found.wrong and case.path.parent == scratch:
                shutil.copy(case.path, chosen.out)
    print(table(findings))


if __name__ == "__main__":
    main()
