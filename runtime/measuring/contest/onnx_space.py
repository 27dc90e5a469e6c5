"""ONNX Runtime beside OpenVINO: its default, and the settings of it that are worth trying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.core.devices import DeviceSpec
from pipeline.system.process import cpu_count
from runtime.executor.onnx_session import CPU_PROVIDER, ONNX_RUNTIME, onnxruntime
from runtime.measuring.contest.space import MOST_REQUESTS, ends_first, thread_counts
from runtime.measuring.contest.variant import InOnnxRuntime, Variant, VariantKind
from runtime.measuring.process.onnx_executable import THREADS

MODE, LEVEL, SPINNING = "execution_mode", "graph_optimization_level", "session.intra_op.allow_spinning"
PARALLEL = "ORT_PARALLEL"
# Axes beyond threads: option -> the values that are tried, the first of them what ONNX Runtime does by itself.
FURTHER: Mapping[str, Sequence[str]] = {
    SPINNING: ("1", "0"),
    MODE: ("ORT_SEQUENTIAL", PARALLEL),
    LEVEL: ("ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC"),
}
WORDS: Mapping[tuple[str, str], str] = {
    (SPINNING, "0"): "not spinning",
    (MODE, PARALLEL): "parallel",
    (LEVEL, "ORT_ENABLE_EXTENDED"): "extended graph",
    (LEVEL, "ORT_ENABLE_BASIC"): "basic graph",
}
SUFFIX = "ExecutionProvider"
ELSEWHERE = ("AzureExecutionProvider",)  # which sends inputs away


@dataclass(frozen=True, slots=True)
class OnnxSpace:
    """The settings of ONNX Runtime for one model.

    runs: the source file and the version. objective: "latency" keeps one request in flight. providers: those that are
    installed, the CPU's among them.
    """

    runs: InOnnxRuntime
    objective: str
    providers: Sequence[str] = (CPU_PROVIDER,)

    @classmethod
    def of(cls, source: Path, version: str, objective: str) -> OnnxSpace:
        """Return the space of the providers that are installed.

        Raises:
            MissingPackageError: onnxruntime is not.
        """
        found = [name for name in onnxruntime().get_available_providers() if name not in ELSEWHERE]
        return cls(InOnnxRuntime(source, version), objective, tuple(found))

    def default(self, kind: VariantKind = "settings") -> Variant:
        """Return ONNX Runtime as it comes, on the CPU; where throughput counts, with a caller per processor."""
        requests = cpu_count() if self.objective == "throughput" else 1
        return replace(self._variant({}, requests), kind=kind, placer="settings" if kind == "settings" else "baseline")

    def first(self) -> list[Variant]:
        """Return other providers as they come, then numbers of threads, what is most likely to be fast first."""
        others = [self._variant({}, 1, name) for name in self.providers if name != CPU_PROVIDER]
        counts = ends_first(thread_counts(cpu_count()))
        if self.objective == "latency":
            return [*others, *(self._variant({THREADS: str(count)}, 1) for count in counts)]
        least = sorted(counts)
        each = [(threads, max(1, cpu_count() // threads)) for threads in least]
        return [*others, *(self._variant({THREADS: str(threads)}, requests) for threads, requests in each)]

    def around(self, variant: Variant) -> list[Variant]:
        """Return the variants one step from one of ONNX Runtime's: another value of one axis each."""
        (device,) = variant.devices
        given = dict(device.properties)
        steps: list[tuple[dict[str, str], int]] = []
        for name, values in FURTHER.items():
            now = given.get(name, values[0])
            for value in values:
                if value != now:
                    changed = {key: v for key, v in given.items() if key != name}
                    steps.append((changed | ({} if value == values[0] else {name: value}), variant.requests))
        if self.objective == "throughput":
            most = MOST_REQUESTS * cpu_count()
            steps += [(given, n) for n in (2 * variant.requests, variant.requests // 2) if 1 <= n <= most]
        elif THREADS in given:
            counts = thread_counts(cpu_count())
            at = counts.index(int(given[THREADS]))
            near = [count for count in counts[max(0, at - 1) : at + 2] if str(count) != given[THREADS]]
            steps += [({**given, THREADS: str(count)}, variant.requests) for count in near]
        return [self._variant(options, requests, device.openvino_name) for options, requests in steps]

    def _variant(self, options: Mapping[str, str], requests: int, provider: str = CPU_PROVIDER) -> Variant:
        """Return ONNX Runtime with these options and a provider, as a variant that is searched."""
        is_cpu = provider == CPU_PROVIDER
        device = ONNX_RUNTIME if is_cpu else f"{ONNX_RUNTIME} {provider.removesuffix(SUFFIX)}"
        spec = DeviceSpec(device, ONNX_RUNTIME, provider, options, "cpu" if is_cpu else "other")
        name = onnx_name(device, options, requests)
        return Variant(
            name, "settings", provider, (spec,), single=True, kind="settings", requests=requests, onnx=self.runs
        )


def onnx_name(device: str, options: Mapping[str, str], requests: int) -> str:
    """Return what a variant of ONNX Runtime is called.

    >>> onnx_name("ONNX Runtime", {"intra_op_num_threads": "2", "session.intra_op.allow_spinning": "0"}, 1)
    'ONNX Runtime 2 threads not spinning'
    """
    words = [device] if options else [device, "default"]
    if THREADS in options:
        words.append(f"{options[THREADS]} thread{'' if options[THREADS] == '1' else 's'}")
    words += [f"{requests} requests"] if requests > 1 else []
    return " ".join([*words, *(word for (key, value), word in WORDS.items() if options.get(key) == value)])
