"""Variants: everything that can be measured beside one another, placements and baselines alike."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.core.accuracy import Accuracy
from pipeline.core.devices import DATAFLOW, DeviceSpec
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.shared.checks import NORMALISED, REFERENCE, load_by_kind
from pipeline.shared.model_inputs import TIMED, first_samples
from runtime.executor.segments import SegmentSpec
from runtime.machines.devices import GROUP_SIZE, KV_CACHE
from runtime.measuring.outputs.outputs import Outputs, OutputsByKind, Reference, lost_int8
from runtime.measuring.outputs.quality import accept_outputs, compared_kinds, reference_beside
from runtime.measuring.process.affinity import HETERO_PROPERTIES, hetero_target
from runtime.measuring.process.answers import LoadAnswer, RunAnswer
from runtime.measuring.process.batching import repeat_outputs
from runtime.measuring.process.child import Child

# Properties that let a device round more than its precision says -> the value with which it does not.
EXACT: Mapping[str, str] = {GROUP_SIZE: "0", KV_CACHE: "f32"}
WARM_UP_S = 0.3
WARM_UP_MINIMUM = 3


# What a variant is: a plug-in as it comes, with a hint, a device of the user's, AUTO and HETERO left to themselves; a
# runtime that nobody asked for, which is told of and never the answer; and what is searched: settings of one device,
# and splits over several.
VariantKind = Literal["default", "hint", "device", "own choice", "other runtime", "settings", "split"]


@dataclass(frozen=True, slots=True)
class InSegments:
    """How a model is run in segments: which, by which runner, and whether earlier compilations of them may be used."""

    parts: tuple[SegmentSpec, ...]
    runner: str
    reuse: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what a child's command says of it."""
        return {"runner": self.runner, "reuse": self.reuse, "parts": [asdict(part) for part in self.parts]}


@dataclass(frozen=True, slots=True)
class InOnnxRuntime:
    """That a model is run by ONNX Runtime: from which file, by which version of it."""

    source: Path
    version: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a model.

    name: what the result calls it. placer: who proposed it, "baseline" for none. target: the device string of
    compile_model. devices: what must be registered. affinity: {operation: device as OpenVINO knows it}, or None.
    single: whether it is one device on its own. requests: inferences in flight; 0 for as many as the runtime advises.
    segments: how the model is run in segments, by the executor instead of OpenVINO; None for OpenVINO.
    batch: inferences that are computed at once, as one. rewrite: the form of the model, "" as it was read; see
    `pipeline.shared.model_forms`. onnx: how ONNX Runtime runs its source, by the target, a list of providers, with the
    device's properties as options; None for OpenVINO.
    """

    name: str
    placer: str
    target: str
    devices: tuple[DeviceSpec, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, str] | None = None
    single: bool = False
    kind: VariantKind = "device"
    requests: int = 1
    segments: InSegments | None = None
    batch: int = 1
    rewrite: str = ""
    onnx: InOnnxRuntime | None = None

    @property
    def baseline(self) -> bool:
        """Return whether the variant is a baseline, not something that was searched."""
        return self.kind not in ("settings", "split")

    @property
    def reported_only(self) -> bool:
        """Return whether the variant is measured to be told of, and neither an answer nor a baseline of one."""
        return self.kind == "other runtime"

    @property
    def rounds(self) -> bool:
        """Return whether the variant rounds where the model as it was read does not, whatever its precision is."""
        return bool(self.rewrite) or any(
            device.properties.get(name, exact) != exact for device in self.devices for name, exact in EXACT.items()
        )

    @property
    def identity(self) -> str:
        """Return a digest of all that decides how the variant runs, its name left out."""
        said = {
            "target": self.target,
            "devices": [[d.openvino_name, d.plugin, sorted(d.properties.items())] for d in self.devices],
            "properties": sorted(self.properties.items()),
            "affinity": None if self.affinity is None else sorted(self.affinity.items()),
            "requests": self.requests,
            "batch": self.batch,
            **({} if self.segments is None else {"segments": self.segments.to_json()}),
            **({"rewrite": self.rewrite} if self.rewrite else {}),
            **({} if self.onnx is None else {"onnxruntime": self.onnx.version}),
        }
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def hetero_variant(name: str, placer: str, devices: Sequence[DeviceSpec], affinity: Mapping[str, str]) -> Variant:
    """Return the variant that runs a placement; one that uses a single device is compiled on it directly."""
    used = tuple(d for d in devices if d.openvino_name in set(affinity.values()))
    if len(used) == 1:
        return Variant(name, placer, used[0].openvino_name, used, single=True, kind="settings")
    return Variant(name, placer, hetero_target(used), used, HETERO_PROPERTIES, affinity, kind="split")


def dataflow_variant(
    name: str, placer: str, devices: Sequence[DeviceSpec], affinity: Mapping[str, str], segments: InSegments
) -> Variant:
    """Return the variant that runs a placement in segments; one that uses a single device is compiled on it directly.

    affinity: {operation: device as OpenVINO knows it}.
    """
    used = tuple(d for d in devices if d.openvino_name in set(affinity.values()))
    if len(used) == 1:
        return hetero_variant(name, placer, devices, affinity)
    target = f"{DATAFLOW}:{','.join(d.openvino_name for d in used)}"
    return Variant(name, placer, target, used, {}, affinity, kind="split", segments=segments)


def start_child(variant: Variant, model: Path, settings: MeasureSettings, *, seed: int) -> tuple[Child, LoadAnswer]:
    """Return a child that has compiled the variant, and what it says about it.

    Raises:
        ChildError: the variant could not be compiled; the child is gone.
    """
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Child(timeout_s=settings.timeout_s, memory_bytes=settings.memory_bytes))
        loaded = load_variant(child, variant, model, settings, seed=seed)
        stack.pop_all()  # loaded: from here on the caller ends it
    return child, loaded


def load_variant(
    child: Child, variant: Variant, model: Path, settings: MeasureSettings, *, seed: int, cache: str = ""
) -> LoadAnswer:
    """Let a child compile the variant, in place of what it had before; return what it says about it.

    cache: folder of what has been compiled before, for devices on their own; "" to compile it whole.

    Raises:
        ChildError: the variant could not be compiled.
    """
    cache = cache if variant.single and variant.affinity is None and ":" not in variant.target else ""
    how = describe_variant(variant, model, settings, seed=seed) | {"requests": variant.requests, "batch": variant.batch}
    child.rests = variant.onnx is not None
    answer: LoadAnswer = child.ask("load", cache=cache, **how)
    return answer


def describe_variant(variant: Variant, model: Path, settings: MeasureSettings, *, seed: int) -> dict[str, Any]:
    """Return what a child's command needs to know to compile a variant and to make its inputs."""
    options = {name: value for device in variant.devices for name, value in device.properties.items()}
    return {
        "model": str(model),
        "rewrite": variant.rewrite,
        "devices": [] if variant.onnx else [d.to_json() for d in variant.devices],
        "target": variant.target,
        "properties": dict(variant.properties),
        "onnx": {"source": str(variant.onnx.source), "options": options} if variant.onnx else None,
        "affinity": None if variant.affinity is None else dict(variant.affinity),
        "segments": None if variant.segments is None else variant.segments.to_json(),
        "seed": seed,
        "dynamic_size": settings.dynamic_size,
        "decode_steps": settings.decode_steps,
    }


def warm_up(child: Child, seconds: float = WARM_UP_S, minimum: int = WARM_UP_MINIMUM) -> int:
    """Run inferences until caches and clocks have settled; return how many."""
    answer: RunAnswer = child.ask("run", seconds=seconds, minimum=minimum, realtime=False)
    return len(answer["samples_s"])


def outputs_of(child: Child) -> Outputs:
    """Return the outputs of one inference, or of a sequence's last, by their position: "output_0" ..."""
    return outputs_by_kind(child, (TIMED,))[TIMED]


def outputs_by_kind(child: Child, kinds: Sequence[str]) -> OutputsByKind:
    """Return the same for every kind of inputs: `TIMED`, those that are timed, or one that the read stage has drawn."""
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        path = Path(folder) / "outputs.npz"
        child.ask("outputs", path=str(path), kinds=list(kinds))
        return load_by_kind(path)


def input_kinds(model: Path) -> list[str]:
    """Return the kinds of inputs on which outputs of a normalised model are compared, without further samples."""
    beside = model.with_name(REFERENCE)
    return first_samples(load_by_kind(beside)) if beside.is_file() else [TIMED]


def time_kernels(child: Child, settings: ProfileSettings) -> dict[str, Any]:
    """Return what every kernel takes of a model that a child has compiled with counters."""
    times: dict[str, Any] = child.ask(
        "kernels", count=settings.inferences, seconds=min(settings.seconds, settings.timeout_s)
    )
    return times


def reference_of(
    model: Path,
    timed: OutputsByKind,
    *,
    int8_kernels: Sequence[str] | None = None,
    seconds: float = 0.0,
    load_s: float = 0.0,
) -> Reference:
    """Return what variants of a model are compared with: outputs of the source model if they lie beside `model`.

    model: normalised. timed: what it gives itself on the CPU in f32 for the inputs that are timed, if none lie there.
    int8_kernels: of the whole model on the CPU in f32. seconds, load_s: that its outputs took there, and compiling it.
    """
    beside, normalised = reference_beside(model.parent), model.with_name(NORMALISED)
    return replace(
        beside,
        outputs=beside.outputs or timed,
        int8_kernels=int8_kernels,
        seconds=seconds,
        load_s=load_s,
        normalised=load_by_kind(normalised) if normalised.is_file() else {},
    )


def for_batch(reference: Reference, count: int) -> Reference:
    """Return what so many equal inferences at once are compared with."""
    if count == 1:
        return reference
    outputs, exact = (
        {kind: repeat_outputs(each, count) for kind, each in by_kind.items()}
        for by_kind in (reference.outputs, reference.exact)
    )
    return replace(reference, outputs=outputs, exact=exact)


def known_reference(model: Path, ran: Mapping[str, Any] | None) -> Reference | None:
    """Return what variants of a model are compared with if its outputs lie beside it; None if it has to be run.

    ran: `Reference.ran` of another process that has run it; None if none has.
    """
    return None if ran is None or not model.with_name(REFERENCE).is_file() else reference_of(model, {}, **ran)


def check_outputs(
    variant: Variant,
    loaded: LoadAnswer,
    child: Child,
    expected: Reference,
    settings: MeasureSettings,
    *,
    kinds: Sequence[str] | None = None,
) -> Accuracy | MeasurementFailed:
    """Return how far the outputs of a loaded variant are from the reference's, or why it must not count.

    It must not if it runs elsewhere than asked, if a split computes less in int8 than the whole model, or if its
    outputs differ by more than its precisions may, or lose too much by the user's metric.

    kinds: of inputs that are compared; those of `compared_kinds` unless given.

    Raises:
        UsageError: that metric fails.
    """
    asked = executed_names(variant, sorted(set((variant.affinity or {}).values())))
    ran = executed_names(variant, sorted(loaded["executed_on"]))
    if variant.affinity is not None and asked != ran:
        return MeasurementFailed("refused", f"asked for {', '.join(asked)}, ran on {', '.join(ran)}")
    if variant.affinity is not None:
        lost = lost_int8(loaded["int8_kernels"], expected)
        if lost is not None:
            return lost
    precisions = computed_in(variant, loaded)
    kinds = kinds if kinds is not None else compared_kinds(expected, precisions)
    expected = for_batch(expected, variant.batch)
    return accept_outputs(outputs_by_kind(child, kinds), expected, precisions, settings)


def computed_in(variant: Variant, loaded: LoadAnswer) -> dict[str, str]:
    """Return the precisions that a loaded variant computes in, by device, and of what else rounds, as "rounded"."""
    return {**loaded["precisions"], **({"rounded": "int8"} if variant.rounds else {})}


def executed_names(variant: Variant, openvino_names: Sequence[str]) -> tuple[str, ...]:
    """Return the user's names of devices that OpenVINO names; GPUs add their number to their name, "GPU_B.1"."""
    names = {d.openvino_name: d.name for d in variant.devices}
    return tuple(names.get(device) or names.get(device.partition(".")[0], device) for device in openvino_names)
