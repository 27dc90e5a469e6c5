"""What any placement must be compared with: single devices, AUTO, and HETERO left to itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.core.devices import DeviceSpec
from pipeline.core.process import cpu_count
from runtime.machines.devices import PRECISION, Plugin, threads_of
from runtime.measuring.affinity import HETERO_PROPERTIES, hetero_target
from runtime.measuring.variant import Variant

# AUTO otherwise answers from a CPU until the device it chose has compiled, and a turn would measure both.
AUTO_PROPERTIES: Mapping[str, str] = {"ENABLE_STARTUP_FALLBACK": "NO"}
AUTO_ORDER = ("gpu", "npu", "other", "cpu")  # what AUTO prefers when it is left to itself


def reference_variant() -> Variant:
    """Return the variant whose outputs all others are compared with: the CPU in f32."""
    properties = {PRECISION: "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    device = DeviceSpec("reference", "CPU", "CPU", properties, "cpu")
    return Variant("reference", "baseline", "CPU", (device,), single=True)


def thread_counts(most: int) -> list[int]:
    """Return the thread counts worth a baseline: all up to 4, then powers of two, and the most there are.

    >>> thread_counts(12)
    [1, 2, 3, 4, 8, 12]
    """
    powers = {1 << e for e in range(3, most.bit_length()) if 1 << e <= most}
    return sorted({*range(1, min(most, 4) + 1), *powers, most})


def baselines(devices: Sequence[DeviceSpec], plugins: Mapping[str, Plugin]) -> list[Variant]:
    """Return every device on its own, AUTO over all of them, and HETERO with its own affinities.

    A CPU, named or not, also stands with every thread count of the machine and every precision it computes in: half
    a machine is no yardstick for a placement on both halves.
    """
    found = [Variant(d.name, "baseline", d.openvino_name, (d,), single=True) for d in devices]
    for plugin in sorted({d.plugin for d in devices if d.kind == "cpu"}):
        named = [d for d in devices if d.plugin == plugin]
        covered = {(threads_of(d), d.properties[PRECISION]) for d in named}
        for precision in plugins[plugin].precisions:
            for threads in thread_counts(cpu_count()):
                if (threads, precision) not in covered:
                    found.append(_cpu_variant(plugin, threads, precision))
    found += _auto_variants(devices)
    if len(devices) > 1:
        found.append(Variant("HETERO default", "baseline", hetero_target(devices), tuple(devices), HETERO_PROPERTIES))
    return found


def _auto_variants(devices: Sequence[DeviceSpec]) -> list[Variant]:
    """Return AUTO over all devices, and over CPUs and GPUs with either first where there are both.

    AUTO takes the first device of its list that can run the model; aliases keep their own properties in it.

    Source: HSDAG, table 2, rows OpenVINO-CPU and OpenVINO-GPU (priorities CPU,GPU and GPU,CPU).
    """

    def variant(name: str, kinds: Sequence[str]) -> Variant:
        ranked = [d for kind in kinds for d in devices if d.kind == kind]
        target = "AUTO:" + ",".join(d.openvino_name for d in ranked)
        return Variant(name, "baseline", target, tuple(ranked), AUTO_PROPERTIES)

    found = [variant("AUTO", AUTO_ORDER)]
    if {"cpu", "gpu"} <= {d.kind for d in devices}:
        found += [variant("OpenVINO-CPU", ("cpu", "gpu")), variant("OpenVINO-GPU", ("gpu", "cpu"))]
    return found


def _cpu_variant(plugin: str, threads: int, precision: str) -> Variant:
    """Return the plug-in as anyone would use it, pinning and all, with so many threads."""
    properties = {"INFERENCE_NUM_THREADS": str(threads), PRECISION: precision}
    name = f"{plugin} {threads} thread{'s' if threads > 1 else ''} {precision}"
    return Variant(name, "baseline", plugin, (DeviceSpec(plugin, plugin, plugin, properties, "cpu"),), single=True)
