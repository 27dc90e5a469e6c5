"""Where a model really runs, and why there: one row per operation, and per step that a device adds."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError, FallbackError, PlacewrightError, StoreError, UsageError, list_some
from pipeline.core.settings import MeasureSettings
from pipeline.result.deployment import Deployment
from pipeline.result.result import Result
from pipeline.stages.host import look_at_model

if TYPE_CHECKING:
    from coarsen.reading.sizes.shapes import InputShapes
    from runtime.measuring.process.child import Child, ChildError

NAMELESS = re.compile(r"(?P<plugin>\w+)(\.\d+)?\{[^{}]*\}")  # a device with properties
SECONDS = 1.0  # of inferences over which the counters are averaged
MINIMUM = 5
MODES = ("AUTO", "HETERO", "MULTI")
FOLDED = "constant folded"
ROLES: Mapping[str, str] = {"Parameter": "an input", "Result": "an output", "Constant": FOLDED}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is compiled, and where it is asked to run.

    target, properties: for compile_model. affinity: {operation: device as OpenVINO knows it}, None for none. asked:
    {operation: the user's name of its device}; "" stands for all others, and nobody is asked where it is missing. onnx:
    the file that ONNX Runtime runs, by the providers that the target lists; None for OpenVINO.
    """

    target: str
    devices: tuple[DeviceSpec, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, str] | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    onnx: Path | None = None

    def device_of(self, operation: str) -> str:
        """Return the name of the device that an operation is asked to run on, "" if it is all the same."""
        return self.asked.get(operation, self.asked.get("", ""))


@dataclass(frozen=True, slots=True)
class LocatedRecord:
    """An operation of the model, or a step that a device adds to it.

    device: where it ran, "" where nothing of it is left to run. asked: the device it was asked for on, "" for none.
    seconds: of the kernel that it names; 0 where another operation names it, or nothing is executed. fallback: whether
    it ran elsewhere than asked for.
    """

    operation: str
    type: str
    device: str
    seconds: float
    precision: str
    kernel: str
    why: str
    asked: str = ""
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class DeviceTotalRecord:
    """What runs on one device: seconds of an inference, and how many operations and added steps."""

    device: str
    seconds: float
    operations: int


@dataclass(frozen=True, slots=True)
class WhereRecord:
    """Where a model ran: devices and operations, by time.

    latency_s: median of an inference while the counters are on.
    """

    schema: Literal["placewright.where/1"]
    model: str
    target: str
    executed_on: list[str]
    latency_s: float
    devices: list[DeviceTotalRecord]
    operations: list[LocatedRecord]


def where_model(model: Path, device: str, shapes: InputShapes) -> WhereRecord:
    """Return where a model runs on a device, or on AUTO or HETERO over some.

    device: as `--devices` takes one, or "AUTO:GPU,CPU", or "onnxruntime". shapes: what becomes of dynamic inputs.

    Raises:
        ModelError: the model cannot be read.
        UsageError: the device is none.
        DeviceError: the machine does not have it, or it refuses operations.
        ChildError: the model could not be run.
    """
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.read_in_process import read_in_process

    known = look_at_model(model)
    wanted = wanted_of_onnxruntime(known.path) if device == "onnxruntime" else wanted_on(device)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        read_in_process(known.path, Path(folder), source=known.sha256, limits=ReadLimits(), shapes=shapes)
        return locate_in(Path(folder) / "model.xml", wanted, name=str(model), seconds=SECONDS, minimum=MINIMUM)


def where_run(run: Path, model: Path | None = None) -> WhereRecord:
    """Return where the placed model of a finished run runs, compiled as the run says.

    model: what it must be the run of; None for any.

    Raises:
        StoreError: the folder holds no finished run, or one of another model.
        DeviceError: the machine does not have a device, or it refuses operations.
        ChildError: the model could not be run.
    """
    from runtime.machines.devices import discover_plugins

    deployment = Deployment.load(run)
    if model is not None and look_at_model(model).sha256 != deployment.record.model.source_sha256:
        raise StoreError(f"{run} is a run of another model than {model}.", "Remove one of the two.")
    if deployment.in_onnxruntime:
        return _where_onnx(deployment)
    deployment.check_whole("which OpenVINO does not see as one")
    here = discover_plugins()
    missing = sorted({d.plugin for d in deployment.record.devices.values()} - set(here))
    if missing:
        raise DeviceError(
            f"{run} uses {', '.join(missing)}, which this machine does not have.", f"Devices here: {', '.join(here)}."
        )
    return locate_in(
        deployment.model, wanted_by(deployment), name=str(deployment.model), seconds=SECONDS, minimum=MINIMUM
    )


def _where_onnx(deployment: Deployment) -> WhereRecord:
    """Return where the ONNX file of a run runs, with the options and the sizes that it was measured with."""
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.read_in_process import read_in_process
    from coarsen.reading.sizes.shapes import InputShapes
    from runtime.executor.onnx_session import ONNX_RUNTIME

    known, shapes = look_at_model(deployment.model), deployment.record.shapes
    given = [f"{name}={shape.strip('[]').replace(',', 'x')}" for name, shape in shapes.items()]
    providers = [d.openvino_name for d in deployment.record.devices.values()]
    specs = [DeviceSpec(name, ONNX_RUNTIME, name, deployment.onnx_options) for name in providers]
    wanted = Wanted(deployment.record.target, tuple(specs), onnx=deployment.model.absolute())
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        sizes = InputShapes(tuple(given), True)
        read_in_process(known.path, Path(folder), source=known.sha256, limits=ReadLimits(), shapes=sizes)
        name = str(deployment.model)
        return locate_in(Path(folder) / "model.xml", wanted, name=name, seconds=SECONDS, minimum=MINIMUM)


def wanted_of_onnxruntime(model: Path) -> Wanted:
    """Return what asks ONNX Runtime to run a file as it does by itself, on the CPU.

    Raises:
        UsageError: it is not an ONNX file.
        MissingPackageError: onnxruntime is not installed.
    """
    from pipeline.stages.host import check_onnxruntime
    from runtime.executor.onnx_session import CPU_PROVIDER, ONNX_RUNTIME

    check_onnxruntime(model, "Give another --device")
    device = DeviceSpec(CPU_PROVIDER, ONNX_RUNTIME, CPU_PROVIDER, {}, "cpu")
    return Wanted(CPU_PROVIDER, (device,), onnx=model.absolute())


def wanted_on(text: str) -> Wanted:
    """Return what "CPU", "A=CPU{KEY=VALUE}", "AUTO" or "HETERO:GPU,CPU" ask for.

    A single device with properties needs no name here, "CPU{KEY=VALUE}": it goes by its plug-in's.

    AUTO is asked to run on the first of the devices that it is given, whatever it may fall back to.

    Raises:
        UsageError: it is none of these.
        DeviceError: the machine does not have a device.
    """
    from runtime.machines.devices import discover_plugins, make_spec, parse_devices
    from runtime.measuring.contest.baselines import AUTO_PROPERTIES
    from runtime.measuring.process.affinity import HETERO_PROPERTIES

    mode, _, rest = text.partition(":")
    plugins = discover_plugins()
    if mode not in MODES:
        nameless = NAMELESS.fullmatch(text)
        devices = parse_devices([f"{nameless['plugin']}={text}" if nameless else text], plugins)
        if len(devices) != 1:
            raise UsageError(f"{text!r} names several devices.", f"Pass one device, HETERO:{text} or AUTO:{text}.")
        return Wanted(devices[0].openvino_name, devices, asked={"": devices[0].name})
    devices = parse_devices([rest], plugins) if rest else tuple(make_spec(p, p, {}, plugins) for p in plugins)
    target = f"{mode}:{','.join(d.openvino_name for d in devices)}"
    properties = {"AUTO": AUTO_PROPERTIES, "HETERO": HETERO_PROPERTIES}.get(mode, {})
    return Wanted(target, devices, properties, asked={"": devices[0].name} if mode == "AUTO" and rest else {})


def wanted_by(deployment: Deployment) -> Wanted:
    """Return what a run asks for: the placement, the only device, or the one that AUTO chose when it was measured."""
    record = deployment.record
    devices = tuple(DeviceSpec(n, d.plugin, d.openvino_name, d.properties) for n, d in record.devices.items())
    if deployment.is_split:
        return Wanted(record.target, devices, record.properties, deployment.affinities, record.placement)
    if ":" not in record.target and len(devices) == 1:
        return Wanted(record.target, devices, record.properties, asked={"": devices[0].name})
    chosen = Result.load(deployment.path).best.devices_used if record.target.startswith("AUTO") else []
    return Wanted(record.target, devices, record.properties, asked={"": chosen[0]} if len(chosen) == 1 else {})


def refuse_fallback(located: WhereRecord) -> None:
    """Raise if operations ran elsewhere than asked for.

    Raises:
        FallbackError: they did; it names them.
    """
    fallen = [row for row in located.operations if row.fallback]
    if not fallen:
        return
    asked, ran = (sorted({getattr(row, name) for row in fallen}) for name in ("asked", "device"))
    raise FallbackError(
        f"{len(fallen)} operation(s) placed on {', '.join(asked)} ran on {', '.join(ran)}: "
        f"{list_some([row.operation for row in fallen])}.",
        "Run `placewright doctor`; where a device cannot run them, place them elsewhere.",
    )


def locate_in(model: Path, wanted: Wanted, *, name: str, seconds: float, minimum: int) -> WhereRecord:
    """Return where a normalised model runs; name: what the record calls it. seconds: of inferences, `minimum` at least.

    Raises:
        DeviceError: the device refuses operations.
        ChildError: the model could not be run.
    """
    from runtime.measuring.contest.variant import InOnnxRuntime, Variant, describe_variant
    from runtime.measuring.process.child import Child, ChildError

    settings = MeasureSettings()
    onnx = None if wanted.onnx is None else InOnnxRuntime(wanted.onnx, "")
    variant = Variant("located", "user", wanted.target, wanted.devices, wanted.properties, wanted.affinity, onnx=onnx)
    with Child(timeout_s=settings.timeout_s, memory_bytes=settings.memory_bytes) as child:
        try:
            command = describe_variant(variant, model, settings, seed=0)
            answer = child.ask("locate", seconds=seconds, minimum=minimum, **command)
        except ChildError as error:
            raise refused_instead(error, child, model, wanted) from error
    return record_of(answer, wanted, model=name)


def refused_instead(error: ChildError, child: Child, model: Path, wanted: Wanted) -> PlacewrightError:
    """Return the error that names the operations of a model that its only device refuses, else the one that there was.

    child: which is alive if it was no more than a refusal.
    """
    if error.failed.kind != "refused" or len(wanted.devices) != 1 or wanted.onnx is not None:
        return error
    device = wanted.devices[0]
    refused = list(child.ask("support", model=str(model), device=device.to_json())["refused"])
    if not refused:
        return error
    return DeviceError(
        f"{device.name} refuses {len(refused)} operation(s): {list_some(refused)}.",
        f"Run them on another device: --device HETERO:{device.name},CPU",
    )


def record_of(answer: Mapping[str, Any], wanted: Wanted, *, model: str) -> WhereRecord:
    """Return the record of what `runtime.measuring.process.locate_operations` answers.

    HETERO does not say which device runs a sub-model. It is the one that most of the sub-model's operations go by, as
    long as that is among those the compiled model says it runs on.
    """
    rows = _Rows(answer, wanted)
    located = sorted(rows.of_operations() + rows.added(), key=lambda row: -row.seconds)
    totals: dict[str, list[float]] = {}
    for row in located:
        if row.device:
            totals.setdefault(row.device, []).append(row.seconds)
    return WhereRecord(
        schema="placewright.where/1",
        model=model,
        target=wanted.target if wanted.onnx is None else "ONNX Runtime",
        executed_on=rows.executed_on,
        latency_s=answer["latency_s"],
        devices=sorted(
            (DeviceTotalRecord(device, sum(each), len(each)) for device, each in totals.items()),
            key=lambda total: -total.seconds,
        ),
        operations=located,
    )


class _Rows:
    """Rows of one answer: who runs what under which name."""

    def __init__(self, answer: Mapping[str, Any], wanted: Wanted) -> None:
        self.wanted = wanted
        self.nodes: Sequence[Mapping[str, Any]] = answer["nodes"]
        self.operations: Sequence[tuple[str, str, bool]] = answer["operations"]
        self.assigned: Mapping[str, str] = answer["assigned"]
        self.executed_on = self._names(answer["executed_on"])
        self.refused = {self._names([d])[0]: set(names) for d, names in answer["refused"].items()}
        # The counters are means over all inferences, cold ones too: brought down to the median one.
        self.scale = answer["latency_s"] / answer["mean_s"]
        self.parts = self._devices_of_parts()
        self.seconds: dict[str, float] = {}  # of all kernels that an operation names; a decomposed one names several
        for node in self.nodes:
            if node["operations"]:
                head = self._head(node)
                self.seconds[head] = self.seconds.get(head, 0.0) + self.scale * node["seconds"]
        self.head = {self._head(node): node for node in reversed(self.nodes) if node["operations"]}
        self.runs_in = {op: node for node in reversed(self.nodes) for op in node["operations"]}

    def of_operations(self) -> list[LocatedRecord]:
        """Return a row per operation of the model, in its order."""
        return [self._row(name, kind, constant) for name, kind, constant in self.operations]

    def added(self) -> list[LocatedRecord]:
        """Return a row per step that a device adds and that takes time."""
        why = {"Reorder": "added by the device: another layout", "Convert": "added by the device: another precision"}
        return [
            LocatedRecord(
                operation=node["name"],
                type=node["type"],
                device=self._device(node),
                seconds=node["seconds"] * self.scale,
                precision=node["precision"],
                kernel=node["kernel"],
                why=why.get(node["type"], "added by the device"),
            )
            for node in self.nodes
            if not node["operations"] and node["seconds"] > 0
        ]

    def _row(self, name: str, kind: str, constant: bool) -> LocatedRecord:
        node = self.head.get(name) or self.runs_in.get(name)
        if node is None:
            why = FOLDED if constant else "rewritten by the device: no step of its own"
            return LocatedRecord(name, kind, "", 0.0, "", "", why)
        device, asked = self._device(node), self.wanted.device_of(name)
        fallback = bool(asked) and node["executed"] and asked != device
        return LocatedRecord(
            operation=name,
            type=kind,
            device=device,
            seconds=self.seconds.get(name, 0.0),
            precision=node["precision"],
            kernel=node["kernel"],
            why=f"asked for on {asked}" if fallback else self._why(name, "Constant" if constant else kind, node),
            asked=asked,
            fallback=fallback,
        )

    def _why(self, name: str, kind: str, node: Mapping[str, Any]) -> str:
        """Return why an operation is where it is; kind: its type, "Constant" for all that follows from constants."""
        if self._head(node) != name:
            return f"fused into {self._head(node)}"
        if not node["executed"]:
            return ROLES.get(kind, "nothing to execute")
        refusing = [device for device, names in self.refused.items() if name in names]
        if refusing:
            return f"refused by {', '.join(refusing)}"
        mode = self.wanted.target.partition(":")[0]
        if self.wanted.affinity is not None:
            return "placed there"
        if self.wanted.onnx is not None:
            return "assigned by ONNX Runtime"
        return f"chosen by {mode}" if mode in MODES else "asked for"

    def _device(self, node: Mapping[str, Any]) -> str:
        """Return the name of the device that runs a node, "" where nobody says."""
        if not self.assigned:
            return " and ".join(self.executed_on)
        if node["part"] is not None:
            return self.parts[node["part"]]
        stated = [self.assigned[op] for op in (*node["operations"], node["name"]) if op in self.assigned]
        return self._names(stated)[0] if stated else ""

    def _devices_of_parts(self) -> dict[int, str]:
        """Return the device of every sub-model of HETERO."""
        votes: dict[int, Counter[str]] = {}
        for node in self.nodes:
            if self.assigned and node["part"] is not None:
                weight = 1 + len(self.nodes) * node["executed"]  # what is executed decides, what is not in doubt
                votes.setdefault(node["part"], Counter()).update(
                    {self.assigned[op]: weight for op in node["operations"] if op in self.assigned}
                )
        ran = {part: self._names([max(count, key=count.__getitem__)])[0] for part, count in votes.items() if count}
        return {part: ran[part] if ran.get(part) in self.executed_on else "unknown" for part in votes}

    def _names(self, openvino_names: Sequence[str]) -> list[str]:
        """Return the user's names of devices."""
        from runtime.measuring.contest.variant import Variant, executed_names

        return list(executed_names(Variant("", "where", self.wanted.target, self.wanted.devices), openvino_names))

    @staticmethod
    def _head(node: Mapping[str, Any]) -> str:
        """Return the operation that names a node: the one of its own name, or else the first it runs."""
        operations: Sequence[str] = node["operations"]
        return node["name"] if node["name"] in operations else operations[0]
