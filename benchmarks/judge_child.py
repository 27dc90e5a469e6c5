"""One way to run a model, in a process of its own, for `benchmarks.judge`: plain OpenVINO or ONNX Runtime.

The first line on standard input is the job, {"model", "sizes", "vocabulary", "values", "way"}; every further line
is a command, and each is answered by one line of JSON: {"do": "outputs", "to": FILE.npz} writes the outputs of every
kind of inputs as "kind/name", {"do": "turn", "seconds": 0.2} gives the median seconds of an inference. `way` is one of

    {"by": "onnxruntime", "threads": 0}        as many threads as it takes by itself; "optimised": false for
                                               no rewriting, "moved": seed for weights and inputs that
                                               are moved a little, see `outputs.moved`
    {"by": "openvino", "properties": {...}}    the model as read, with these shapes; "concrete": false leaves them open
    {"by": "run", "folder": FOLDER}            what a finished run says to deploy, as docs/result.md has it
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.outputs import (
    NOISE,
    Array,
    Arrays,
    arrays,
    by_onnxruntime,
    by_openvino,
    kinds_of,
    moved,
    nudged,
    ports,
    session,
)

WARM_UP_S, WARM_UP = 0.1, 2  # seconds and inferences before anything counts
LEAST = 3  # inferences of a turn
OURS = ("pipeline", "coarsen", "embed", "policy", "runtime")
PLAIN = ("CPU", "GPU", "NPU", "AUTO", "HETERO", "MULTI")

Infer = Callable[[Arrays], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Way:
    """A model made ready: what gives its outputs by name, and what makes a call that runs one inference again.

    plain: whether it runs without placewright.
    """

    outputs: Infer
    prepare: Callable[[Arrays], Callable[[], object]]
    plain: bool = True


def main() -> None:
    """Answer commands until there are no more."""
    job = json.loads(sys.stdin.readline())
    path = Path(job["model"])
    inputs = ports(path)
    given = {
        kind: arrays(inputs, job["sizes"], kind, seed=1, vocabulary=job["vocabulary"]) for kind in kinds_of(inputs)
    }
    for values in given.values():
        values.update({name: np.full_like(values[name], value) for name, value in job["values"].items()})
    if job["way"].get("moved") is not None:
        given = {kind: nudged(values, job["way"]["moved"]) for kind, values in given.items()}
    way = ready(path, job["way"], given[NOISE])
    once = way.prepare(given[NOISE])
    begun, done = time.perf_counter(), 0
    while done < WARM_UP or time.perf_counter() - begun < WARM_UP_S:
        once()
        done += 1
    if way.plain and any(name.split(".")[0] in OURS for name in sys.modules):
        raise RuntimeError("the judge's child has imported placewright")
    say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "outputs":
            found = {f"{kind}/{name}": a for kind, values in given.items() for name, a in way.outputs(values).items()}
            np.savez(command["to"], **{key.replace("/", "|"): value for key, value in found.items()})  # type: ignore[arg-type]
            say({"kinds": list(given)})
        else:
            say(turn(once, command["seconds"]))


def turn(once: Callable[[], object], seconds: float) -> dict[str, float]:
    """Return the median seconds of the inferences of one turn, and their number."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < LEAST or time.perf_counter() < end:
        begun = time.perf_counter()
        once()
        samples.append(time.perf_counter() - begun)
    return {"median_s": statistics.median(samples), "inferences": len(samples)}


def ready(path: Path, way: Mapping[str, Any], given: Arrays) -> Way:
    """Return a model made ready in one way.

    Raises:
        RuntimeError: a device refuses it.
    """
    if way["by"] == "onnxruntime":
        file = path if way.get("moved") is None else moved(path, way["moved"])
        return _of_onnxruntime(session(file, threads=way["threads"], optimised=way.get("optimised", True)))
    if way["by"] == "run":
        return deployed(Path(way["folder"]), path)
    core = ov.Core()
    model = core.read_model(path)
    if way.get("concrete", True):
        model.reshape({name: list(a.shape) for name, a in given.items()})
    return _of_openvino(core.compile_model(model, "CPU", dict(way["properties"])), _names(model))


def _names(model: Any) -> list[str]:
    return [port.get_any_name() for port in model.outputs]


def _of_openvino(compiled: Any, names: Sequence[str]) -> Way:
    def prepare(values: Arrays) -> Callable[[], object]:
        request = compiled.create_infer_request()
        for port in compiled.inputs:
            name = next(n for n in port.get_names() if n in values)
            request.set_tensor(port, ov.Tensor(values[name]))
        return lambda: request.infer()

    return Way(lambda values: by_openvino(compiled, values, names), prepare)


def _of_onnxruntime(made: Any) -> Way:
    return Way(lambda values: by_onnxruntime(made, values), lambda values: lambda: made.run(None, values))


def deployed(run: Path, source: Path) -> Way:
    """Return what a finished run of a source says to deploy, by docs/result.md.

    Segments, which no device of OpenVINO runs, are run by placewright's own `pipeline.load`.
    """
    document = json.loads((run / "placement.json").read_text(encoding="utf-8"))
    if document["runtime"] == "onnxruntime":
        return _of_onnxruntime(recorded_session(run, document))
    core = ov.Core()
    names = _names(core.read_model(source))
    if not document["target"].split(":")[0].startswith(PLAIN) and document["target"] not in document["devices"]:
        return _by_placewright(run, names)
    for device in document["devices"].values():
        if device["openvino_name"] != device["plugin"]:
            library = f"openvino_intel_{device['plugin'].split('.')[0].lower()}_plugin"
            core.register_plugin(library, device["openvino_name"])
        core.set_property(device["openvino_name"], device["properties"])
    model = core.read_model(run / document["model"]["file"])
    if document["placement"] and document["target"].startswith("HETERO"):
        for op in model.get_ops():
            device = document["devices"][document["placement"][op.get_friendly_name()]]
            op.get_rt_info()["affinity"] = device["openvino_name"]
    return _of_openvino(core.compile_model(model, document["target"], document["properties"]), names)


def recorded_session(run: Path, document: Mapping[str, Any]) -> Any:
    """Return ONNX Runtime's session of a run that it won, with the options and providers of its placement.json."""
    (device,) = document["devices"].values()
    providers = document["target"].split(",")
    return session(run / document["model"]["file"], threads=0, recorded=device["properties"], providers=providers)


def _by_placewright(run: Path, names: Sequence[str]) -> Way:
    import pipeline

    loaded = pipeline.load(run)

    def outputs(values: Arrays) -> Arrays:
        found = loaded(values)
        return {name: np.array(found[name]) for name in names}

    return Way(outputs, lambda values: lambda: loaded(values), plain=False)


def say(answer: Mapping[str, Any]) -> None:
    """Write one line of JSON."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
