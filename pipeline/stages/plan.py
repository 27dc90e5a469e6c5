"""A run: the stages of one model on one machine, in order.

    read        model file -> graph, normalised model
    kernels     what the CPU runtime fuses                       (only if the coarsening asks for it)
    coarsen     graph -> fewer nodes
    precisions  how far outputs in low precisions differ         (only if such a precision is in question)
    profile     seconds per operation and device, links          (measured)
    embed       nodes -> features, embeddings, encoder           (only if a placer learns, or it was chosen)
    group       embeddings -> groups, grouper                    (likewise)
    place       groups -> candidate placements, best first
    measure     candidates and baselines, against one another    (measured)

`plan` writes down every stage as a Task whose key follows from what goes in, so that nothing has to run to know what
would. `pipeline.stages.execution` executes the tasks against the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingPackageError, UnknownNameError, UsageError
from pipeline.core.settings import EmbedSettings, GroupSettings, PlaceSettings
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import declared, placers_called
from pipeline.shared.partition import has_metis
from pipeline.store.store import file_digest
from pipeline.store.task import FILES, Task

STAGES = ("read", "kernels", "coarsen", "precisions", "profile", "embed", "group", "place", "measure")
# Raised by hand when a step's own output changes for equal input.
STEP_VERSION: Mapping[str, int] = dict.fromkeys(STAGES, 1) | {
    "read": 7,
    "precisions": 4,
    "profile": 7,
    "embed": 2,
    "place": 9,
    "measure": 8,
}
# Their samples are shared by runs of different budgets: a larger one extends what a smaller one has found.
SAMPLED = ("place", "measure")
# Packages that decide what a step makes; of those that measure, the fingerprint tells.
PACKAGES: Mapping[str, Sequence[str]] = {"read": ("openvino", "onnxruntime", "onnx")}
# Stages whose implementations may ask for partitions of METIS, which others make where it is missing.
PARTITIONED = ("coarsen", "group", "place")
# Their answers hold for every seed: runs that differ in the seed alone share them.
SEEDLESS = ("read", "kernels", "precisions", "profile")
# Of these the implementations say whether their answers do.
OPEN = ("coarsen", "embed", "group")
# Settings of the measure stage that hold wherever outputs are compared, and wherever a placement is measured.
COMPARED_ALIKE = ("accuracy", "tolerance", "low_tolerance", "metric", "metric_drop", "dynamic_size", "decode_steps")
METRIC = "metric"  # the setting among them that names a file, and a function in it
MEASURED_ALIKE = ("timeout_s", *COMPARED_ALIKE, "memory_bytes")
# What a tensor between segments of two devices costs beyond its bytes: a thread that is woken, kernels that are not
# fused, layouts that are changed. Measured on a 2-core machine; docs/executor.md.
BOUNDARY_S = 5e-5
NOT_INSTALLED = "not installed"
ONNXRUNTIME_BUILDS = ("gpu", "directml", "openvino", "qnn", "rocm", "migraphx", "training")
LEARNING_BUDGET_S = 90.0  # below it a placer that learns gets no further than being loaded


@dataclass(frozen=True, slots=True)
class HostMachine:
    """The devices of a run and the hardware they are on.

    facts: see `runtime.machines.devices.hardware`. low: (plug-in, precision) of what they and their baselines compute
    in other than f32. open_names: those whose precision nobody asked for; they compute in f32 if a model needs that.
    halves: whether the devices are halves of one CPU that nobody asked for.
    """

    devices: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    fingerprint: str
    low: tuple[tuple[str, str], ...] = ()
    open_names: tuple[str, ...] = ()
    halves: bool = False


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file and the sha256 of its content."""

    path: Path
    sha256: str


def look_at_model(path: Path) -> ModelFile:
    """Return a model file with its hash.

    Raises:
        ModelError: there is no such file.
    """
    from coarsen.reading.model.files import model_sha256

    return ModelFile(path, model_sha256(path))


def look_at_machine(devices: Sequence[str]) -> HostMachine:
    """Return the machine and the devices asked for, or those it has.

    Raises:
        DeviceError: a device is not there.
        UsageError: a device is not written as it should be.
    """
    from runtime.machines import devices as available
    from runtime.measuring.profile.precisions import FULL, low_precisions

    plugins = available.discover()
    specs = available.parse_devices(devices, plugins) if devices else available.default_devices(plugins)
    if devices:
        available.check_properties(specs)
    facts = available.hardware(plugins)
    low = low_precisions(specs, plugins)
    open_names = () if devices else tuple(d.name for d in specs if d.properties[available.PRECISION] != FULL)
    documents, fingerprint = tuple(d.to_json() for d in specs), available.fingerprint(facts)
    halves = not devices and tuple(d.name for d in specs) == available.HALVES
    return HostMachine(documents, facts, fingerprint, tuple(low), open_names, halves)


def plan(model: ModelFile, settings: Settings, machine: HostMachine | None, *, upto: str = "measure") -> list[Task]:
    """Return the tasks of a run up to a stage, in the order in which they can be executed.

    machine: None is enough up to `coarsen`, unless it fuses kernels.
    """
    planned = _Planned(model, settings, machine)
    check_runtimes(model, settings)
    _read_and_coarsen(planned)
    if upto not in ("read", "kernels", "coarsen"):
        _profile(planned)
        if upto in ("embed", "group") or _is_learned(settings):
            _embed_and_group(planned)
        settings = _by_machine(_by_runtime(settings), machine)
        _place(planned, settings)
        _measure(planned, settings)
    return _upto(planned.tasks, upto)


@dataclass(frozen=True, slots=True)
class _Planned:
    """The tasks of a run so far and their keys, by stage, and what all of them are made from."""

    model: ModelFile
    settings: Settings
    machine: HostMachine | None
    tasks: dict[str, Task] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def add(
        self, stage: str, uses: Mapping[str, str], inputs: Sequence[str], *, measured: bool = False, **params: Any
    ) -> None:
        """Add the task of a stage, with what decides its outcome.

        uses: implementations, each with its stage. inputs: stages whose artifacts it takes, as far as there are any.
        """
        settings = self.settings
        called = _called(settings) if stage == "place" else []
        version: dict[str, int | str] = {"step": STEP_VERSION[stage]}
        version |= {f"{s}.{n}": declared(s, n).version for s, n in (*((s, n) for n, s in uses.items()), *called)}
        version |= {name: installed(name) for name in PACKAGES.get(stage, ())}
        if stage in PARTITIONED and not has_metis():
            version["pymetis"] = NOT_INSTALLED
        named = {f for n, s in uses.items() for f in declared(s, n, settings.params_of(s, n)).files}
        files: dict[str, str] = {}
        params = _by_content(params, named | {METRIC}, files)
        keys = {name: self.keys[name] for name in inputs if name in self.keys}
        mark = _machine(self.machine).fingerprint if measured else ""
        name = "+".join(uses) or stage
        context = _reading(self.model, settings) if stage == "read" else {}
        context |= {"model": str(self.model.path)} if "onnxruntime" in params else {}
        context |= {FILES: files} if files else {}
        seed = settings.seed if _is_seeded(stage, version) else 0
        series = {"stage": stage, "read": keys["read"], "machine": mark} if measured and stage in SAMPLED else {}
        self.tasks[stage] = Task(stage, name, version, params, seed, keys, mark, context, series)
        self.keys[stage] = self.tasks[stage].key


def _read_and_coarsen(planned: _Planned) -> None:
    s = planned.settings
    chain = [*(() if s.coarsen.raw or "fold" in s.coarsen.use else ("fold",)), *s.coarsen.use]
    planned.add(
        "read",
        {},
        (),
        model_sha256=planned.model.sha256,
        decode_steps=s.measure.decode_steps,
        **_shapes(s),
        **_rewrites(s),
    )
    if "fuse" in chain:
        planned.add("kernels", {}, ("read",), measured=True)
    planned.add("coarsen", dict.fromkeys(chain, "coarsen"), ("read", "kernels"), use=_chosen(s, "coarsen", chain))


def _profile(planned: _Planned) -> None:
    """Add what is measured before placements are: which precisions the model tolerates, and what operations take."""
    s, machine = planned.settings, _machine(planned.machine)
    if machine.low and (machine.open_names or s.measure.use == "hetero"):
        alike = {name: getattr(s.measure, name) for name in MEASURED_ALIKE}
        planned.add("precisions", {}, ("read",), measured=True, low=list(map(list, machine.low)), settings=alike)
    planned.add(
        "profile",
        {},
        ("read", "precisions") if machine.open_names else ("read",),
        measured=True,
        settings=asdict(s.profile),
        devices=list(machine.devices),
        open_names=list(machine.open_names),
        measuring={name: getattr(s.measure, name) for name in COMPARED_ALIKE},
        **({} if s.measure.runtime == "hetero" else {"company": True}),
    )


def _embed_and_group(planned: _Planned) -> None:
    from embed.features import needs_costs

    s = planned.settings
    planned.add(
        "embed",
        {s.embed.use: "embed"},
        ("read", "coarsen", "profile") if needs_costs(s.embed.blocks) else ("read", "coarsen"),
        use=_one(s, "embed", s.embed.use),
        blocks=list(s.embed.blocks),
    )
    planned.add("group", {s.group.use: "group"}, ("read", "coarsen", "embed"), use=_one(s, "group", s.group.use))


def _place(planned: _Planned, s: Settings) -> None:
    asked, placers = _asked(s), placers_of(s)
    real = any(declared("measure", name).real for name in asked)
    planned.add(
        "place",
        dict.fromkeys(placers, "place") | dict.fromkeys(asked, "measure"),
        ("read", "coarsen", "profile", "embed", "group"),
        measured=real,
        use=_chosen(s, "place", placers),
        embedder=_one(s, "embed", s.embed.use),
        grouper=_one(s, "group", s.group.use),
        evaluator=measurer_settings(s, asked[0]),
        evaluations=s.place.evaluations,
        finalists=s.place.finalists,
        budget_s=s.budget_s,
        real=real,
        **({} if s.measure.runtime == "hetero" else {"boundary_s": BOUNDARY_S}),
        **_settings_first(s, planned.machine),
        **_reward(s, asked),
    )


def _measure(planned: _Planned, s: Settings) -> None:
    planned.add(
        "measure",
        {s.measure.use: "measure"},
        ("read", "precisions", "place", "profile"),
        measured=True,
        settings=asdict(s.measure),
        budget_s=s.budget_s,
        evaluator=_one(s, "measure", s.measure.use),
        finalists=s.place.finalists,
        devices=list(_machine(planned.machine).devices),
        real=declared("measure", s.measure.use).real,
        **_settings_first(s, planned.machine),
        **_onnxruntime(planned.model, s),
    )


def check_runtimes(model: ModelFile, settings: Settings) -> None:
    """Check that ONNX Runtime can run a model where it was asked for.

    Raises:
        UsageError: the model is no ONNX file, or a simulator is asked.
        MissingPackageError: onnxruntime is not installed.
    """
    if "onnxruntime" not in settings.measure.runtimes:
        return
    remedy = "Leave onnxruntime out of --runtimes"
    if settings.measure.use != "hetero":
        raise UsageError(
            f"measure.use is {settings.measure.use}, which knows nothing of ONNX Runtime.", f"{remedy}, or measure.use."
        )
    check_onnxruntime(model.path, remedy)


def check_onnxruntime(model: Path, remedy: str) -> None:
    """Check that ONNX Runtime is there, and that a model is for it; remedy: what else to do.

    Raises:
        UsageError: the model is no ONNX file.
        MissingPackageError: onnxruntime is not installed.
    """
    if model.suffix != ".onnx":
        cause = f"ONNX Runtime runs ONNX files, and {model.name} is none."
        raise UsageError(cause, f"{remedy}, or give the .onnx file.")
    if onnxruntime_version() == NOT_INSTALLED:
        raise MissingPackageError("Running a model by ONNX Runtime takes", "onnxruntime")


def _onnxruntime(model: ModelFile, settings: Settings) -> dict[str, Any]:
    """Return the parameter that says which file ONNX Runtime is to run, in which version; {} where it is not to."""
    asked = settings.measure.runtimes
    if (asked and "onnxruntime" not in asked) or model.path.suffix != ".onnx" or settings.measure.use != "hetero":
        return {}
    version = onnxruntime_version()
    return {} if version == NOT_INSTALLED else {"onnxruntime": {"model_sha256": model.sha256, "version": version}}


def with_seed(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks of a run that differs in its seed alone; much cheaper than planning it."""
    seeded: list[Task] = []
    keys: dict[str, str] = {}
    for task in tasks:
        own = seed if _is_seeded(task.stage, task.version) else 0
        other = replace(task, seed=own, inputs={stage: keys[stage] for stage in task.inputs})
        seeded.append(other)
        keys[task.stage] = other.key
    return seeded


def _is_seeded(stage: str, version: Mapping[str, int | str]) -> bool:
    """Return whether the answer of a stage depends on the seed; version: of all implementations that it uses."""
    if stage not in OPEN:
        return stage not in SEEDLESS
    used = [key.partition(".") for key in version if "." in key]
    return any(declared(s, name).seeded for s, _, name in used)


def _shapes(settings: Settings) -> dict[str, Any]:
    """Return what decides the shapes of the inputs, and the arrays they are measured with."""
    from coarsen.reading.sizes.shapes import InputShapes

    shapes, size = InputShapes.of(settings.coarsen), settings.measure.dynamic_size
    open_ones: dict[str, Any] = (
        {"dynamic_size": size}
        if shapes.keep_dynamic or any("?" in text or ".." in text for text in shapes.given)
        else {}
    )
    open_ones |= {"shape_ranges": shapes.ranges} if shapes.ranges else {}
    return {
        "shapes": shapes.given,
        "keep_dynamic": shapes.keep_dynamic,
        "input_sha256": shapes.data_sha256,
        **open_ones,
    }


def _rewrites(settings: Settings) -> dict[str, Any]:
    """Return what is rewritten in the model; nothing if nothing is, so that what was read before stays read."""
    from coarsen.reading.rewriting.rewrites import Rewrites

    asked = Rewrites.of(settings.coarsen)
    return {} if asked == Rewrites() else {"rewrites": asdict(asked)}


def _reading(model: ModelFile, settings: Settings) -> dict[str, Any]:
    """Return what reads a model and does not change what is read: where it and its arrays lie, and the limits."""
    from coarsen.reading.model.growth import ReadLimits

    limits = asdict(ReadLimits.of(settings.coarsen))
    return {"model": str(model.path), "input": settings.coarsen.input, "limits": limits}


def _upto(tasks: Mapping[str, Task], stage: str) -> list[Task]:
    """Return the tasks that the stage needs, itself last."""
    if stage not in tasks:
        raise UnknownNameError("stage in this run", stage, tasks)
    needed, front = {stage}, [stage]
    while front:
        for name in tasks[front.pop()].inputs:
            if name not in needed:
                needed.add(name)
                front.append(name)
    return [task for name, task in tasks.items() if name in needed]


def _machine(machine: HostMachine | None) -> HostMachine:
    if machine is None:
        raise ValueError("this stage needs to know the machine")
    return machine


def _one(settings: Settings, stage: str, name: str) -> list[Any]:
    """Return [name, all parameters] of an implementation, defaults filled in."""
    return [name, declared(stage, name, settings.params_of(stage, name)).params]


def _by_content(value: Any, fields: Set[str], files: dict[str, str]) -> Any:
    """Return parameters in which files are named by what they hold, so that they may lie anywhere.

    fields: names of parameters that name files. files: gets such a name -> the path, for each file that there is.

    Raises:
        UsageError: the file of the user's metric holds no such function.
    """
    if isinstance(value, Mapping):
        return {
            name: _content_name(v, files, metric=name == METRIC)
            if name in fields and isinstance(v, str)
            else _by_content(v, fields, files)
            for name, v in value.items()
        }
    return [_by_content(v, fields, files) for v in value] if isinstance(value, list | tuple) else value


def _content_name(text: str, files: dict[str, str], *, metric: bool) -> str:
    """Return a path as its file's name and content, with the metric's function behind it; "" and what is none stay."""
    if not text or not (metric or Path(text).is_file()):
        return text
    if metric:
        from runtime.measuring.outputs.quality import metric_file

        path = metric_file(text)
    else:
        path = Path(text)
    name = f"<{path.name}@{file_digest(path)}>"  # in brackets, so that none is a part of another
    files[name] = str(path.absolute())
    return f"{name}:{text.rpartition(':')[2]}" if metric else name


def _by_runtime(settings: Settings) -> Settings:
    """Return the settings of a search for what runs splits.

    The usual simulator, and the calibration to measurements, know no two devices that work at the same time: for
    segments that do, the default is the simulator of a dataflow machine alone, and where throughput counts, that of a
    pipeline in its steady state.
    """
    place, usual = settings.place, PlaceSettings()
    if settings.measure.runtime == "hetero" or (place.evaluator, place.reward) != (usual.evaluator, usual.reward):
        return settings
    evaluator = "pipelined" if settings.measure.objective == "throughput" else "listsched"
    return replace(settings, place=replace(place, evaluator=evaluator, reward="simulated"))


def _by_machine(settings: Settings, machine: HostMachine | None) -> Settings:
    """Return the settings of a search on a machine: on halves of one CPU no placement is measured while searching.

    HETERO runs the two one after another, so that a split can hardly pay: what that saves goes to the comparison.
    """
    place, usual = settings.place, PlaceSettings()
    if not _settings_first(settings, machine) or (place.evaluator, place.reward) != (usual.evaluator, usual.reward):
        return settings
    return replace(settings, place=replace(place, reward="simulated"))


def _settings_first(settings: Settings, machine: HostMachine | None) -> dict[str, Any]:
    """Return the parameter that says that settings are tried before any split; {} elsewhere."""
    real = settings.measure.use == "hetero" and settings.measure.runtime == "hetero" and settings.measure.settings
    if real and settings.measure.runtimes == ("onnxruntime",):
        return {"settings_first": "no split is measured"}
    return {"settings_first": True} if real and machine is not None and machine.halves else {}


def _asked(settings: Settings) -> tuple[str, ...]:
    """Return what the placers ask, and behind it, where they are calibrated to it round by round, what measures."""
    place, devices = settings.place, settings.measure.use
    if place.reward == "measured" and devices == "hetero" and settings.measure.runtime != "hetero":
        devices = "dataflow"
    if place.reward == "simulated" or declared("measure", place.evaluator).real:
        return (place.evaluator,)
    return (devices,) if place.reward == "measured" else (place.evaluator, devices)


def _reward(settings: Settings, asked: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of the place stage that say how its placements are valued."""
    place = settings.place
    if len(asked) > 1:
        rounds = {"rounds": place.rounds, "measurements": place.measurements}
        return {"reward": "hybrid", "devices": measurer_settings(settings, asked[1]), **rounds}
    return {"reward": "measured" if declared("measure", asked[0]).real else "simulated"}


def measurer_settings(settings: Settings, name: str) -> list[Any]:
    """Return [name, all parameters] of an evaluator; what is set of the last measurement holds for it as well."""
    known = declared("measure", name).params
    shared = {field: getattr(settings.measure, field) for field in MEASURED_ALIKE if field in known}
    return [name, declared("measure", name, {**shared, **settings.params_of("measure", name)}).params]


def _chosen(settings: Settings, stage: str, names: Sequence[str]) -> list[list[Any]]:
    if not names:
        raise UsageError(f"{stage}.use is empty.", f"Name at least one of {', '.join(registry.table(stage))}.")
    return [_one(settings, stage, name) for name in names]


def placers_of(settings: Settings) -> tuple[str, ...]:
    """Return the placers of a run: those chosen; of the defaults, learners only where the budget lets them learn."""
    chosen = settings.place.use
    if chosen != PlaceSettings().use or settings.budget_s >= LEARNING_BUDGET_S:
        return chosen
    return tuple(name for name in chosen if not declared("place", name).learns)


def _is_learned(settings: Settings) -> bool:
    """Return whether a placer learns, or the stages that make what it learns from were chosen for themselves."""
    chosen = settings.embed != EmbedSettings() or settings.group != GroupSettings()
    set_ = any(settings.params.get(stage) for stage in ("embed", "group"))
    return chosen or set_ or any(declared("place", name).learns for name in placers_of(settings))


def _called(settings: Settings) -> list[tuple[str, str]]:
    """Return (stage, implementation) of all that placers bring along instead of what the stages have made, or call."""
    called: list[tuple[str, str]] = []
    for name in placers_of(settings):
        values = settings.params_of("place", name)
        called += [(stage, used) for stage, used in declared("place", name, values).recipe]
        called += [("place", placer) for placer in placers_called(name, values)]
    return called


def onnxruntime_version() -> str:
    """Return the version of ONNX Runtime, whichever of its distributions is installed, with the name of a special one.

    `NOT_INSTALLED` if there is none.
    """
    for name in ("onnxruntime", *(f"onnxruntime-{build}" for build in ONNXRUNTIME_BUILDS)):
        version = installed(name)
        if version != NOT_INSTALLED:
            return version if name == "onnxruntime" else f"{version} ({name})"
    return NOT_INSTALLED


def installed(name: str) -> str:
    """Return the version of an installed distribution, `NOT_INSTALLED` if there is none; it is not imported."""
    return _version(metadata.version, name)


@cache
def _version(ask: Callable[[str], str], name: str) -> str:
    try:
        return ask(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
