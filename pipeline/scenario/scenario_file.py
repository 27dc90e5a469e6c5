"""The scenario file: models that share a machine, what is asked of each, and what is wanted of all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from pipeline.core.errors import ModelError, UsageError, suggest_name
from pipeline.core.scenario import Isolation, LatePolicy, LoadScenario, ModelLoad, Phase, ScenarioObjective, chain_to
from pipeline.settings.config import parse_bytes, parse_time, read_toml
from pipeline.shared.arrivals import trace_rate
from pipeline.shared.validation import Faults, repeated_values, strict_table
from pipeline.system.paths import is_file, path_exists

REMEDY = (
    'Write [[models]] with name = "detector", model = "det.onnx", rate = 15 and deadline = "60ms"; '
    "`placewright schema scenario` has all keys."
)
TRACE = "trace:"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


@strict_table()
class PhaseEntry(TypedDict, total=False):
    """A [[models.phases]]: one way in which the model is called. shape: as --shape takes it. share: of its requests."""

    name: Required[FolderName]
    shape: Required[Annotated[list[str], Field(min_length=1)]]
    share: Positive


@strict_table()
class ScenarioModel(TypedDict, total=False):
    """A [[models]]: the model, its requests, and what is wanted of them; see `pipeline.core.scenario.ModelLoad`."""

    name: Required[FolderName]
    model: Required[Annotated[str, Field(min_length=1)]]
    shape: list[str]
    input: str
    rate: Positive
    arrivals: str
    concurrency: Annotated[int, Field(ge=1)]
    deadline: str
    percentile: Annotated[float, Field(gt=0, lt=100)]
    weight: Positive
    late: LatePolicy
    after: str
    calls: Positive
    devices: Annotated[list[str], Field(min_length=1)]
    phases: Annotated[list[PhaseEntry], Field(min_length=1)]


@strict_table()
class ScenarioDocument(TypedDict, total=False):
    """The file of a scenario. memory, load_time, processor: limits; processor seconds per second of load."""

    objective: ScenarioObjective
    isolation: Isolation
    memory: str
    load_time: str
    processor: Positive
    models: Required[Annotated[list[ScenarioModel], Field(min_length=1)]]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from: a path or zoo:NAME, sizes as --shape takes them, a file of arrays or ""."""

    model: str
    shapes: tuple[str, ...]
    input: str


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """What a scenario file says. sources: of the models, by name. stated: the objective, "" where it follows."""

    path: Path
    scenario: LoadScenario
    sources: Mapping[str, ModelSource]
    stated: ScenarioObjective | Literal[""] = ""

    @property
    def plain(self) -> bool:
        """Return whether it asks for no more than tuning one model does."""
        (first, *others), s = self.scenario.models, self.scenario
        limits = s.memory_bytes or s.load_s or s.processor_s
        return not (others or limits or first.rate or first.concurrency or math.isfinite(first.deadline_s))


def read_scenario(path: Path) -> ScenarioFile:
    """Return what a TOML file says of models that share a machine.

    Raises:
        UsageError: the file cannot be read, keys are unknown or wrong, or the scenario makes no sense.
        ModelError: a model is not there.
    """
    faults = Faults(str(path), UsageError, REMEDY)
    document = faults.checked(ScenarioDocument, read_toml(path))
    faults.end()
    entries = document["models"]
    loads: list[ModelLoad] = []
    sources: dict[str, ModelSource] = {}
    for entry in entries:
        for load, source in _read_model(entry, path.parent, faults):
            loads.append(load)
            sources[load.name] = source
    called = (entry["name"] for entry in entries), (load.name for load in loads)  # a phase is a model of its own
    for name in dict.fromkeys(name for names in called for name in repeated_values(names)):
        faults.add(f"several models are called {name!r}")
    _check_chains(loads, faults)
    asked = any(load.rate for load in loads)
    objective = document.get("objective", "load" if asked else "throughput")
    if objective == "load" and not (asked and any(math.isfinite(m.deadline_s) for m in loads)):
        faults.add('objective "load" needs a model with a rate, and one with a deadline')
    if objective == "latency":
        for load in loads:
            if not (load.rate or load.concurrency or load.after):
                faults.add(f'objective "latency" needs a rate, concurrency or after of model {load.name}')
    faults.end()
    for name, source in sources.items():
        if not (source.model.startswith("zoo:") or path_exists(Path(source.model))):
            raise ModelError(f"The model {name}, {source.model}, does not exist.", f"Correct its path in {path}.")
    if objective == "throughput":
        loads = [replace(load, rate=0.0) for load in loads]  # closed loops
    scenario = LoadScenario(
        tuple(loads),
        objective,
        document.get("isolation", "process"),
        parse_bytes(document["memory"], f"memory of {path}") if "memory" in document else 0,
        parse_time(document["load_time"], f"load_time of {path}", "5s") if "load_time" in document else 0.0,
        document.get("processor", 0.0),
    )
    return ScenarioFile(path, scenario, sources, document.get("objective", ""))


def _read_model(entry: ScenarioModel, folder: Path, faults: Faults) -> list[tuple[ModelLoad, ModelSource]]:
    """Return a model; one with phases as one for each."""
    name = entry["name"]
    given = entry["model"]
    model = given if given.startswith("zoo:") else str(folder / given)
    data = str((folder / entry["input"]).absolute()) if "input" in entry else ""
    if data and not is_file(Path(data)):
        faults.add(f"input of model {name}, {data}, does not exist")
    ways = [key for key in ("rate", "concurrency", "after") if key in entry]
    if len(ways) > 1:
        faults.add(f"model {name} has {' and '.join(ways)}, of which it may have one")
    if "after" not in entry and "calls" in entry:
        faults.add(f"model {name} has calls, but no after")
    arrivals, trace_s = _read_arrivals(entry, folder, faults)
    rate = entry.get("rate", trace_rate(trace_s) if trace_s and "after" not in entry else 0.0)
    load = ModelLoad(
        name,
        rate,
        entry.get("concurrency", 0),
        arrivals,
        trace_s,
        parse_time(entry["deadline"], f"deadline of model {name}", "60ms") if "deadline" in entry else math.inf,
        entry.get("percentile", 99.0),
        entry.get("weight", 1.0),
        entry.get("late", "queue"),
        entry.get("after", ""),
        entry.get("calls", 1.0),
        tuple(entry.get("devices", ())),
    )
    if load.late == "drop" and math.isinf(load.deadline_s):
        faults.add(f'model {name} has late = "drop", but no deadline')
    shapes = tuple(entry.get("shape", ()))
    if "phases" not in entry:
        return [(load, ModelSource(model, shapes, data))]
    whole = sum(phase.get("share", 1.0) for phase in entry["phases"])
    return [
        (
            replace(
                load,
                name=f"{name}-{phase['name']}",
                rate=load.rate * phase.get("share", 1.0) / whole,
                calls=load.calls * phase.get("share", 1.0) / whole,
                weight=load.weight * phase.get("share", 1.0) / whole,
                phase=Phase(phase["name"], name, phase.get("share", 1.0) / whole),
            ),
            ModelSource(model, tuple(phase["shape"]), ""),
        )
        for phase in entry["phases"]
    ]


def phase_ranges(sources: Sequence[ModelSource]) -> tuple[str, ...]:
    """Return the sizes of all phases of a model as --shape-range takes them, and --shape where they are equal.

    None where phases name different inputs, or sizes that cannot be written so, such as 0 for a cache that is empty.

    >>> phase_ranges([ModelSource("m", ("x[1,32]", "y=1x8"), ""), ModelSource("m", ("x[1,1]", "y=1x8"), "")])
    ('x=1x32|1', 'y=1x8')
    >>> phase_ranges([ModelSource("m", ("x[1,0]",), ""), ModelSource("m", ("x[1,1]",), "")])
    ()
    """
    inputs: dict[str, list[list[str]]] = {}
    for source in sources:
        for text in source.shapes:
            match = re.fullmatch(r"(?:(.+)=)?([\dx]+)|([^\[]+)\[([\d, ]+)\]", text)
            if match is None:
                return ()
            sizes = re.split(r"[x,]\s*", match[2] or match[4])
            inputs.setdefault(match[1] or match[3] or "", []).append(sizes)
    ranges = []
    for name, shapes in inputs.items():
        if len(shapes) != len(sources) or len({len(shape) for shape in shapes}) != 1:
            return ()
        columns = ["|".join(dict.fromkeys(column)) for column in zip(*shapes, strict=True)]
        if any(
            column.count("|") + 1 not in (1, len(sources)) or column.startswith("0") or "|0" in column
            for column in columns
        ):
            return ()
        ranges.append(f"{name}={'x'.join(columns)}".removeprefix("="))
    return tuple(ranges)


def _read_arrivals(
    entry: ScenarioModel, folder: Path, faults: Faults
) -> tuple[Literal["poisson", "periodic", "trace"], tuple[float, ...]]:
    """Return how requests arrive, and the times of a trace."""
    text, name = entry.get("arrivals", "poisson"), entry["name"]
    if text in ("poisson", "periodic"):
        return ("poisson" if text == "poisson" else "periodic"), ()
    if not text.startswith(TRACE):
        faults.add(f'arrivals of model {name} is {text!r}, but must be "poisson", "periodic" or "trace:FILE"')
        return "poisson", ()
    file = folder / text.removeprefix(TRACE)
    try:
        times = tuple(float(word) for word in re.split(r"[\s,]+", file.read_text(encoding="utf-8").strip()))
    except OSError as error:
        faults.add(f"the trace of model {name}, {file}, cannot be read: {error.strerror}")
        return "poisson", ()
    except ValueError:
        times = ()
    if len(times) < 2 or not all(map(math.isfinite, times)) or max(times) <= min(times):
        faults.add(f"the trace of model {name}, {file}, must hold two or more seconds that differ, one per line")
        return "poisson", ()
    return "trace", times


def _check_chains(loads: Sequence[ModelLoad], faults: Faults) -> None:
    """Note models that come after one that is not there, or after themselves."""
    known = {load.name: load for load in loads}
    for load in loads:
        if load.after and load.after not in known:
            faults.add(f"model {load.name} is after an unknown {load.after!r} ({suggest_name(load.after, known)})")
    for load in loads:
        chain = chain_to(load.name, known)
        if known[chain[0]].after == load.name and load.name == min(chain):
            faults.add(f"{' after '.join([*reversed(chain), load.name])} is a cycle")
