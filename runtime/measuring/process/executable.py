"""What can be measured: a compiled model, be it by HETERO, or a model in segments. Both are spoken to alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import openvino as ov

from pipeline.core.devices import DeviceSpec, computes_together
from runtime.executor.placed import PlacedModel, SegmentCompiler
from runtime.executor.segments import Segmentation, SegmentSpec
from runtime.executor.splitting import how_to_run, placed_in_memory
from runtime.machines.devices import PRECISION, precision_name
from runtime.measuring.process import kernels
from runtime.measuring.process.affinity import set_affinities
from runtime.measuring.process.answers import RunsOn
from runtime.measuring.process.onnx_executable import OnnxExecutable

Arrays = Sequence[npt.NDArray[np.generic]]


class InferenceRequest(Protocol):
    """One inference at a time, as openvino.InferRequest has them."""

    def infer(self) -> Any:
        """Run one inference."""

    def start_async(self) -> None:
        """Begin one inference."""

    def wait(self) -> None:
        """Wait for its end."""

    def set_callback(self, callback: Callable[[Any], None], userdata: Any) -> None:
        """Let a function be called at the end of every inference that is begun."""

    def reset_state(self) -> None:
        """Set all states to their initial values."""


class Executable(Protocol):
    """A model that is ready to run: loaded from a command of the measuring child, and closed at the end.

    requests: those that may run at the same time; `infer` runs the first. Inputs are set once, of all. compile_s:
    seconds that compiling it has taken.
    """

    requests: Sequence[InferenceRequest]
    compile_s: float

    def load(self, arrays: Arrays) -> None:
        """Take the inputs of all inferences to come."""

    def infer(self) -> None:
        """Run one inference."""

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return the outputs of the last inference, in the model's order."""

    def reset(self) -> None:
        """Set all states of the first request to their initial values."""

    def describe(self) -> RunsOn:
        """Return how the model really runs."""

    def close(self) -> None:
        """End what runs for the model."""


def compile_executable(
    command: Mapping[str, Any], model: ov.Model, core: ov.Core, devices: Sequence[DeviceSpec], kept: KeptSegments
) -> Executable:
    """Return what a command of the measuring child asks for, compiled.

    core: what has read the model, and knows the devices. kept: compiled segments of earlier commands, which are used
    again if the command says so.
    """
    stated = command.get("segments")
    if command.get("onnx"):
        return OnnxExecutable.of(command, model)
    if stated is None:
        return CompiledExecutable.of(command, model, core)
    compiler = kept.compiler_for(command["model"], command["batch"]) if stated["reuse"] else SegmentCompiler()
    parts = tuple(SegmentSpec(tuple(p["operations"]), p["device"], p["priority"]) for p in stated["parts"])
    how = how_to_run(stated["runner"], max(1, command["requests"]))
    before, begun = compiler.compilations, time.perf_counter()
    placed = placed_in_memory(model, Segmentation(parts), devices, how, compiler)
    return SegmentsExecutable.of(placed, compiler.compilations - before, time.perf_counter() - begun)


@dataclass(slots=True)
class KeptSegments:
    """The compiled segments of one model file at one batch, for as long as it is what is measured."""

    model: tuple[str, int] = ("", 1)
    compiler: SegmentCompiler = field(default_factory=SegmentCompiler)

    def compiler_for(self, model: str, batch: int) -> SegmentCompiler:
        """Return what has compiled segments of this model before; those of another are let go."""
        if (model, batch) != self.model:
            self.model, self.compiler = (model, batch), SegmentCompiler()
        return self.compiler


@dataclass(slots=True)
class CompiledExecutable:
    """A model that OpenVINO compiled as a whole, perhaps for HETERO or AUTO.

    together: whether OpenVINO computes several requests at once.
    """

    compiled: ov.CompiledModel
    requests: Sequence[ov.InferRequest]
    stateful: bool
    compile_s: float
    cached: bool
    together: bool = False

    @classmethod
    def of(cls, command: Mapping[str, Any], model: ov.Model, core: ov.Core) -> Self:
        """Return the model placed and compiled as a command says, or taken from the folder that is its cache."""
        properties = dict(command["properties"])
        if command["affinity"]:
            set_affinities(model, command["affinity"])
        elif command["cache"]:  # of a split it could hold what was compiled for other affinities
            properties["CACHE_DIR"] = command["cache"]
        begun = time.perf_counter()
        compiled = core.compile_model(model, command["target"], properties)
        compile_s = time.perf_counter() - begun
        count = command["requests"] or _optimal_requests(compiled)
        # Asked of the model: AUTO over several devices refuses to say whether a request has state.
        stateful = bool(model.get_variables())
        cached = "CACHE_DIR" in properties and bool(compiled.get_property("LOADED_FROM_CACHE"))
        requests = [compiled.create_infer_request() for _ in range(count)]
        together = computes_together(command["target"])
        return cls(compiled, requests, stateful, compile_s, cached, together)

    def with_new_requests(self) -> Self:
        """Return the same compiled model with as many requests, which nobody else uses."""
        return replace(self, requests=[self.compiled.create_infer_request() for _ in self.requests])

    def load(self, arrays: Arrays) -> None:
        """Take the inputs of all inferences to come."""
        for request in self.requests:
            for port, value in zip(self.compiled.inputs, arrays, strict=True):
                request.set_tensor(port, ov.Tensor(value))

    def infer(self) -> None:
        """Run one inference, beside it those of the other requests where they are computed together."""
        others = self.requests[1:] if self.together else ()
        for request in others:
            request.start_async()
        self.requests[0].infer()
        for request in others:
            request.wait()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return the outputs of the last inference, in the model's order."""
        return _request_outputs(self.requests[0])

    def reset(self) -> None:
        """Set all states of the first request to their initial values."""
        if self.stateful:
            self.requests[0].reset_state()

    def describe(self) -> RunsOn:
        """Return how the model really runs."""
        return {
            **_describe_compiled(self.compiled),
            "cached": self.cached,
            "reported": _reported_properties(self.compiled),
        }

    def close(self) -> None:
        """Do nothing: whoever forgets a compiled model ends it."""


@dataclass(slots=True)
class SegmentsExecutable:
    """A model in segments; compilations: how many of them were compiled for it."""

    placed: PlacedModel
    requests: Sequence[Any]
    compilations: int
    compile_s: float

    @classmethod
    def of(cls, placed: PlacedModel, compilations: int, compile_s: float) -> Self:
        """Return a loaded model in segments, with as many requests as it may run at the same time."""
        return cls(placed, [placed.create_infer_request() for _ in range(placed.requests)], compilations, compile_s)

    @property
    def stateful(self) -> bool:
        """Return whether a segment keeps a state."""
        return self.placed.stateful

    def load(self, arrays: Arrays) -> None:
        """Take the inputs of all inferences to come."""
        for request in self.requests:
            for i, value in enumerate(arrays):
                request.set_input_tensor(i, ov.Tensor(value))

    def infer(self) -> None:
        """Run one inference."""
        self.requests[0].infer()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return the outputs of the last inference, in the model's order."""
        return _request_outputs(self.requests[0])

    def reset(self) -> None:
        """Set all states of the first request to their initial values."""
        self.requests[0].reset_state()

    def describe(self) -> RunsOn:
        """Return how all segments together really run."""
        each = [_describe_compiled(model) for model in self.placed.wiring.compiled]
        int8 = [told["int8_kernels"] for told in each]
        named = [name for names in int8 if names is not None for name in names]
        names = {e.openvino_name for e in self.placed.manifest.devices.values()}
        ran = dict.fromkeys(device for told in each for device in told["executed_on"])
        return {
            "executed_on": [device for device in ran if device in names] or list(ran),
            "subgraphs": len(each),
            "precisions": {d: p for told in each for d, p in told["precisions"].items()},
            "int8_kernels": None if None in int8 else named,
            "threads": {d: t for told in each for d, t in told["threads"].items()},
            "compilations": self.compilations,
            "cached": False,
        }

    def close(self) -> None:
        """End the threads."""
        self.placed.close()


def _request_outputs(request: Any) -> list[npt.NDArray[Any]]:
    return [_array_of(tensor) for tensor in request.output_tensors]


def _array_of(tensor: ov.Tensor) -> npt.NDArray[Any]:
    """Return a copy of what a tensor holds; numpy has no bf16, whose bits are the upper half of those of f32."""
    data = tensor.bytes_data if tensor.element_type == ov.Type.string else tensor.data
    if tensor.element_type == ov.Type.bf16:
        return (np.array(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.array(data)


def _describe_compiled(compiled: ov.CompiledModel) -> RunsOn:
    """Return how a compiled model really runs."""
    known = set(compiled.get_property("SUPPORTED_PROPERTIES"))
    executed = list(compiled.get_property("EXECUTION_DEVICES"))
    parts = "HETERO_NUMBER_OF_SUBMODELS"
    subgraphs = int(compiled.get_property(parts)) if parts in known else 1
    by_device: Mapping[str, Any] = compiled.get_property("DEVICE_PROPERTIES") if "DEVICE_PROPERTIES" in known else {}
    if not by_device and len(executed) == 1:
        names = (PRECISION, "INFERENCE_NUM_THREADS")
        by_device = {executed[0]: {key: compiled.get_property(key) for key in names if key in known}}
    return {
        "executed_on": executed,
        "subgraphs": subgraphs,
        "precisions": {d: precision_name(p[PRECISION]) for d, p in by_device.items() if PRECISION in p},
        "int8_kernels": kernels.int8_kernels(compiled) if all(d.startswith("CPU") for d in executed) else None,
        "threads": {d: int(p["INFERENCE_NUM_THREADS"]) for d, p in by_device.items() if "INFERENCE_NUM_THREADS" in p},
    }


def _reported_properties(compiled: ov.CompiledModel) -> dict[str, str]:
    """Return the properties that a model which one device runs was compiled with; {} where several run it."""
    known = compiled.get_property("SUPPORTED_PROPERTIES")
    if "DEVICE_PROPERTIES" in known or len(compiled.get_property("EXECUTION_DEVICES")) != 1:
        return {}
    return {key: str(compiled.get_property(key)) for key in known if key != "SUPPORTED_PROPERTIES"}


def _optimal_requests(compiled: ov.CompiledModel) -> int:
    """Return how many requests the runtime advises to keep in flight."""
    key = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
    return int(compiled.get_property(key)) if key in compiled.get_property("SUPPORTED_PROPERTIES") else 1
