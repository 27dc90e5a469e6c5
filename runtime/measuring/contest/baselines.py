"""What anything that is searched must be compared with: plug-ins as they come, their hints, single devices, AUTO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.core.devices import DeviceSpec
from runtime.machines.devices import KINDS, PRECISION, Plugin
from runtime.measuring.contest.variant import Variant, VariantKind
from runtime.measuring.process.affinity import HETERO_PROPERTIES, hetero_target

HINT = "PERFORMANCE_HINT"

# AUTO otherwise answers from a CPU until the device it chose has compiled, and a turn would measure both.
AUTO_PROPERTIES: Mapping[str, str] = {"ENABLE_STARTUP_FALLBACK": "NO"}
AUTO_ORDER = ("gpu", "npu", "other", "cpu")  # what AUTO prefers when it is left to itself


def reference_variant() -> Variant:
    """Return the variant whose outputs all others are compared with: the CPU in f32."""
    properties = {PRECISION: "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    device = DeviceSpec("reference", "CPU", "CPU", properties, "cpu")
    return Variant("reference", "baseline", "CPU", (device,), single=True)


def list_baselines(devices: Sequence[DeviceSpec], plugins: Mapping[str, Plugin], objective: str) -> list[Variant]:
    """Return the plug-ins as they come and with their hints, every device on its own, AUTO, and HETERO left to itself.

    plugins: with the precisions that the model tolerates. A plug-in whose own precision the model does not tolerate
    stands in f32. Where throughput counts, as many requests are in flight as the runtime advises. A single device
    leaves AUTO and HETERO no choice: they are that device.
    """
    requests = 0 if objective == "throughput" else 1
    variants: list[Variant] = []
    for name in dict.fromkeys(d.plugin for d in devices):
        plugin = plugins[name]
        variants.append(plain_variant(plugin, "default", "", requests))
        variants += [plain_variant(plugin, "hint", hint, requests) for hint in _objective_hints(plugin, objective)]
    variants += [Variant(d.name, "baseline", d.openvino_name, (d,), single=True, requests=requests) for d in devices]
    if len(devices) > 1:
        variants += _auto_variants(devices, requests)
        default = Variant("HETERO default", "baseline", hetero_target(devices), tuple(devices), HETERO_PROPERTIES)
        variants.append(replace(default, kind="own choice", requests=requests))
    return variants


def _objective_hints(plugin: Plugin, objective: str) -> list[str]:
    """Return the hints that serve an objective, without the one that the plug-in takes of itself."""
    if HINT not in plugin.settable:
        return []
    hints = ("LATENCY", "THROUGHPUT") if objective == "throughput" else ("LATENCY",)
    return [hint for hint in hints if hint != plugin.default_hint]


def plain_variant(plugin: Plugin, kind: VariantKind, hint: str, requests: int) -> Variant:
    """Return a plug-in as anyone would use it: with nothing said but a hint, and f32 where the model needs that."""
    properties = {HINT: hint} if hint else {}
    tolerated = plugin.default_precision in plugin.precisions
    properties |= {} if tolerated else {PRECISION: plugin.precisions[0]}
    words = [plugin.name, f"{hint} hint" if hint else "default", *([] if tolerated else [plugin.precisions[0]])]
    device = DeviceSpec(
        plugin.name, plugin.name, plugin.name, properties, KINDS.get(plugin.name.split(".")[0], "other")
    )
    return Variant(" ".join(words), "baseline", plugin.name, (device,), single=True, kind=kind, requests=requests)


def _auto_variants(devices: Sequence[DeviceSpec], requests: int) -> list[Variant]:
    """Return AUTO over all devices, and over CPUs and GPUs with either first where there are both.

    AUTO takes the first device of its list that can run the model; aliases keep their own properties in it.

    Source: HSDAG, table 2, rows OpenVINO-CPU and OpenVINO-GPU (priorities CPU,GPU and GPU,CPU).
    """

    def variant(name: str, kinds: Sequence[str], properties: Mapping[str, str] = AUTO_PROPERTIES) -> Variant:
        ranked = [d for kind in kinds for d in devices if d.kind == kind]
        target = "AUTO:" + ",".join(d.openvino_name for d in ranked)
        return Variant(name, "baseline", target, tuple(ranked), properties, kind="own choice", requests=requests)

    variants = [variant("AUTO", AUTO_ORDER)]
    if requests != 1:
        variants.append(variant("AUTO cumulative", AUTO_ORDER, {HINT: "CUMULATIVE_THROUGHPUT"}))
    if {"cpu", "gpu"} <= {d.kind for d in devices}:
        variants += [variant("OpenVINO-CPU", ("cpu", "gpu")), variant("OpenVINO-GPU", ("gpu", "cpu"))]
    return variants
