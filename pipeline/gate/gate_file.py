"""What a gate compares: two sides, models, limits, and exceptions that expire; from options and a TOML file."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from pipeline.core.accuracy import AccuracyLevel
from pipeline.core.errors import ModelError, UsageError, suggest_name
from pipeline.deploy.emit import for_compiling
from pipeline.result.deployment import PLACEMENT, Deployment
from pipeline.settings.config import parse_share, parse_time, read_toml
from pipeline.shared.validation import Faults, Name, strict_table
from pipeline.system.paths import is_file, path_exists

Figure = Literal[
    "latency", "throughput", "p99", "load", "memory of reading", "memory of compiling", "memory of running"
]
FIGURES: tuple[Figure, ...] = (
    "latency", "throughput", "p99", "load", "memory of reading", "memory of compiling", "memory of running"
)  # fmt: skip
TIMED: tuple[Figure, ...] = ("latency", "throughput")  # what decides unless limits say otherwise
OUTPUTS, RUNS = "outputs", "runs"
CHECKS = (*FIGURES, OUTPUTS, RUNS)
LEAST = 0.02  # share by which a figure may get worse unless a limit says otherwise
PER_MODEL_S = 60.0
PYTHONS = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")
INTERPRETER = re.compile(r"(python|pypy)[\d.]*[a-z]?(\.exe)?", re.IGNORECASE)
REMEDY = (
    'Write models = ["model.onnx"], and maybe before = "old/", after = "new/", budget = "120s", limits.latency = "5%", '
    "[[model]] with path and limits, and [[accept]] with model, what, until and reason."
)
SIDE_REMEDY = (
    "Give a virtual environment, its python, a model file, a run directory of placewright, or KEY=VALUE of the runtime."
)


@strict_table()
class GatedModelEntry(TypedDict, total=False):
    """A [[model]]: its file, what it may lose, and arrays and shapes of its inputs."""

    path: Required[Name]
    limits: dict[str, str]
    input: str
    shapes: list[str]


@strict_table()
class AcceptEntry(TypedDict, total=False):
    """An [[accept]]: a difference that is known. up_to: as much as that, such as "12%"."""

    model: Required[Name]
    what: Required[Name]
    until: Required[date]
    reason: Required[Name]
    up_to: str


@strict_table()
class GateFile(TypedDict, total=False):
    """gate.toml."""

    before: str | list[str]
    after: str | list[str]
    models: list[str]
    model: list[GatedModelEntry]
    budget: str
    device: str
    runtime: Literal["openvino", "onnxruntime"]
    accuracy: AccuracyLevel
    limits: dict[str, str]
    accept: Annotated[list[AcceptEntry], Field(default_factory=list)]


@dataclass(frozen=True, slots=True)
class Side:
    """One of what is compared; words: as it was asked for. python: None for the interpreter that runs placewright.

    model: in place of the models of the gate. device: the same; "" for the gate's.
    """

    words: str
    python: Path | None = None
    model: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    device: str = ""


@dataclass(frozen=True, slots=True)
class GatedModel:
    """A model: what it is called, its file on either side, what it may lose by figure, and its inputs."""

    name: str
    before: Path
    after: Path
    limits: Mapping[Figure, float]
    input: Path | None = None
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A difference that is known: of a model, in a figure, its outputs or whether it runs, until a day.

    up_to: the share that is accepted; None for whatever it is.
    """

    model: str
    what: str
    until: date
    reason: str
    up_to: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """What is compared, and how. budget_s: for all models together."""

    before: Side
    after: Side
    models: tuple[GatedModel, ...]
    budget_s: float
    device: str = "CPU"
    runtime: str = ""
    accuracy: AccuracyLevel = "usual"
    accepted: tuple[Accepted, ...] = ()

    def accepts(self, model: str, what: str) -> Accepted | None:
        """Return what accepts a difference, the one that holds longest, whether or not it has expired."""
        known = [a for a in self.accepted if a.model == model and a.what == what]
        return max(known, key=lambda a: a.until, default=None)


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the command line says; what it leaves out is the file's."""

    models: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    file: Path | None = None
    budget: str | None = None
    device: str | None = None
    runtime: str | None = None
    accuracy: AccuracyLevel | None = None
    input: Path | None = None
    shapes: tuple[str, ...] = ()


def read_gate(options: GateOptions) -> Gate:
    """Return what to compare.

    Raises:
        UsageError: the file is wrong, or a side is missing.
        ModelError: a model is missing.
        StoreError: a run directory is not finished.
    """
    document, folder = _read_file(options.file), options.file.parent if options.file else Path()
    where = str(options.file) if options.file else "the options"
    told = (("before", options.before, document.get("before", [])), ("after", options.after, document.get("after", [])))
    sides = [
        _parse_side(name, given or ([said] if isinstance(said, str) else said), Path() if given else folder)
        for name, given, said in told
    ]
    if not any(given or said for _, given, said in told):
        raise UsageError(f"In {where}: neither side is given.", "placewright gate model.xml --before old/ --after new/")
    limits = dict.fromkeys(TIMED, LEAST) | _parse_limits(document.get("limits", {}), where)
    own = sides[0].model or sides[1].model
    listed = [*(GatedModelEntry(path=path) for path in document.get("models", [])), *document.get("model", [])]
    chosen = [Path(m) for m in options.models] or [folder / e["path"] for e in listed] or ([own] if own else [])
    if not chosen:
        raise UsageError("There is no model to compare.", "placewright gate model.xml --before old/ --after new/")
    if len(chosen) > 1 and own is not None:
        raise UsageError(f"{own} stands against {len(chosen)} models.", "Give one model, or environments alone.")
    twice = next((path for i, path in enumerate(chosen) if any(_is_same_file(path, p) for p in chosen[:i])), None)
    if twice is not None:
        raise UsageError(f"{twice} is listed twice.", "Name every model once, in models or as a [[model]].")
    names = _distinct_names(chosen)
    entries = [_entry_of(path, listed, folder) for path in chosen]
    models = [
        _gated_model(name, path, entry, limits, sides, folder, options)
        for name, path, entry in zip(names, chosen, entries, strict=True)
    ]
    known = {alias: n for n, p, e in zip(names, chosen, entries, strict=True) for alias in (n, str(p), e["path"])}
    left = [entry["path"] for entry in listed if entry not in entries]
    others = {name for path in left for name in (path, Path(path).name)}
    budget = options.budget or document.get("budget")
    return Gate(
        sides[0],
        sides[1],
        tuple(models),
        parse_time(budget, "budget", "120s or 2m") if budget else PER_MODEL_S * len(models),
        options.device or document.get("device", "CPU"),
        options.runtime or document.get("runtime", ""),
        options.accuracy or document.get("accuracy", "usual"),
        _parse_accepted(document.get("accept", []), known, others, where),
    )


def _is_same_file(one: Path, other: Path) -> bool:
    return one == other or (path_exists(one) and path_exists(other) and one.samefile(other))


def _entry_of(path: Path, listed: Sequence[GatedModelEntry], folder: Path) -> GatedModelEntry:
    """Return what the file says of a model: of its path, or else of the only one of its name."""
    same = [e for e in listed if _is_same_file(folder / e["path"], path)]
    named = [e for e in listed if Path(e["path"]).name == path.name]
    return same[0] if same else named[0] if len(named) == 1 else GatedModelEntry(path=str(path))


def _read_file(path: Path | None) -> GateFile:
    if path is None:
        return GateFile()
    faults = Faults(str(path), UsageError, REMEDY)
    document = faults.checked(GateFile, read_toml(path))
    faults.end()
    return document


def _parse_side(name: str, parts: Sequence[str], folder: Path) -> Side:
    """Return a side of its parts: environment, interpreter, model, run directory, settings."""
    side = Side(" ".join(parts) or "this environment")
    for part in parts:
        path = folder / part
        if path_exists(path) and path.is_dir():
            python = next((path / p for p in PYTHONS if (path / p).is_file()), None)
            if python is not None:
                side = replace(side, python=python)
            elif (path / PLACEMENT).is_file():
                side = _side_of_run(side, path)
            else:
                raise UsageError(f"{path} holds neither an interpreter nor a finished run.", SIDE_REMEDY)
        elif is_file(path):
            interpreter = INTERPRETER.fullmatch(path.name)
            side = replace(side, python=path) if interpreter else replace(side, model=path)
        elif "=" in part:
            key, _, value = part.partition("=")
            side = replace(side, settings={**side.settings, key.strip(): value.strip()})
        else:
            raise UsageError(f"There is no {path} (--{name}).", SIDE_REMEDY)
    return side


def _side_of_run(side: Side, path: Path) -> Side:
    """Return a side with the placed model and the settings of a run's answer.

    Raises:
        UsageError: the answer cannot be told without placewright.
    """
    deployment = Deployment.load(path)
    if deployment.in_onnxruntime:
        return replace(side, model=deployment.model, settings={**deployment.onnx_options, **side.settings})
    plain = deployment.plain("gate")
    settings = {**for_compiling(plain), **side.settings}
    return replace(side, model=deployment.model, device=plain.target, settings=settings)


def _gated_model(
    name: str,
    path: Path,
    entry: GatedModelEntry,
    limits: Mapping[Figure, float],
    sides: Sequence[Side],
    folder: Path,
    options: GateOptions,
) -> GatedModel:
    arrays = options.input or (folder / entry["input"] if "input" in entry else None)
    files = [side.model or path for side in sides]
    missing = next((file for file in files if not path_exists(file)), None)
    if missing is not None:
        raise ModelError(f"There is no model {missing}.", "Correct the path.")
    if arrays is not None and not path_exists(arrays):
        raise UsageError(f"There is no file {arrays}.", "Correct the path.")
    own = {**limits, **_parse_limits(entry.get("limits", {}), name)}
    shapes = options.shapes or tuple(entry.get("shapes", ()))
    return GatedModel(name, files[0], files[1], own, arrays, shapes)


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return what models are called: names of files, with as much of the path as tells them apart."""
    names = [path.name for path in paths]
    return [str(p) if names.count(n) > 1 else n for p, n in zip(paths, names, strict=True)]


def _parse_limits(table: Mapping[str, str], where: str) -> dict[Figure, float]:
    limits: dict[Figure, float] = {}
    for name, share in table.items():
        figure = next((f for f in FIGURES if f == name), None)
        if figure is None:
            raise UsageError(f"In {where}: there is no figure {name!r} to limit.", suggest_name(name, FIGURES))
        limits[figure] = parse_share(share, f"limit of {name}")
    return limits


def _parse_accepted(
    entries: Sequence[AcceptEntry], known: Mapping[str, str], others: Container[str], where: str
) -> tuple[Accepted, ...]:
    """Return the exceptions for models of this gate. known: by all that a model may be called. others: of the file."""
    accepted = []
    for entry in entries:
        if entry["what"] not in CHECKS:
            raise UsageError(
                f"In {where}: nothing is called {entry['what']!r} that could be accepted.",
                suggest_name(entry["what"], CHECKS),
            )
        up_to = parse_share(entry["up_to"], "accepted share") if "up_to" in entry else None
        if entry["model"] in known:
            name = known[entry["model"]]
            accepted.append(Accepted(name, entry["what"], entry["until"], entry["reason"], up_to))
        elif entry["model"] not in others:
            raise UsageError(
                f"In {where}: an exception is for {entry['model']}, which is no model of this gate.",
                suggest_name(entry["model"], list(known)),
            )
    return tuple(accepted)
