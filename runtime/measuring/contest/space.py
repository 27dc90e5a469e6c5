"""What can be set of a device, and the variants that are worth trying: a coarse grid, then steps around the best."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.core.devices import AUTO_BATCH, DeviceSpec, computes_together
from pipeline.shared.model_forms import FILLED, INT8_LSTM, ModelForm
from pipeline.system.process import cpu_count
from runtime.machines.cpu_topology import cpu_topology
from runtime.machines.devices import GROUP_SIZE, KINDS, KV_CACHE, PRECISION, Plugin
from runtime.measuring.contest.variant import Variant

THREADS = "INFERENCE_NUM_THREADS"
STREAMS = "NUM_STREAMS"
PINNING = "ENABLE_CPU_PINNING"
RESERVATION = "ENABLE_CPU_RESERVATION"  # processors of one compiled model are not given to the next
BATCH_TIMEOUT, BATCH_WAIT_MS = "AUTO_BATCH_TIMEOUT", "1"  # how long a request waits for others
HYPER_THREADING = "ENABLE_HYPER_THREADING"
CORE_TYPE = "SCHEDULING_CORE_TYPE"
PARTITIONER = "TBB_PARTITIONER"
# The axes of a CPU beyond threads, streams and precision: property -> the values that are tried.
FURTHER: Mapping[str, Sequence[str]] = {
    PINNING: ("YES", "NO"),
    HYPER_THREADING: ("YES", "NO"),
    CORE_TYPE: ("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY"),
    PARTITIONER: ("STATIC", "AUTO"),
}
# Numbers of a row that are quantised together, where the model unpacks weights: those to begin with, then the others.
ROW = "4294967295"
GROUPS, FURTHER_GROUPS = ("128", "32"), ("64", "0", ROW)
CACHES = ("u8", "bf16", "f16", "f32")  # what keys and values may be kept in
DEFAULTS: Mapping[str, str] = {PINNING: "YES", CORE_TYPE: "ANY_CORE"}  # where a plug-in has one whatever the model
PRIORITY, PRIORITIES = "MODEL_PRIORITY", ("HIGH", "LOW")  # of what takes the default, between them
WORDS: Mapping[tuple[str, str], str] = {
    (PINNING, "NO"): "unpinned",
    (PINNING, "YES"): "pinned",
    (RESERVATION, "YES"): "reserved",
    (HYPER_THREADING, "YES"): "hyper-threaded",
    (HYPER_THREADING, "NO"): "without hyper-threading",
    (CORE_TYPE, "ANY_CORE"): "any cores",
    (CORE_TYPE, "PCORE_ONLY"): "performance cores",
    (CORE_TYPE, "ECORE_ONLY"): "efficient cores",
    **{(PRIORITY, level): f"{level.lower()} priority" for level in PRIORITIES},
    (PARTITIONER, "STATIC"): "static partitions",
    (PARTITIONER, "AUTO"): "automatic partitions",
    **{(GROUP_SIZE, size): f"group {'row' if size == ROW else size}" for size in (*GROUPS, *FURTHER_GROUPS)},
    **{(KV_CACHE, precision): f"cache {precision}" for precision in CACHES},
}
MOST_REQUESTS = 4  # times the streams
BATCHES = (1, 4, 16, 64)
FIRST_BATCH = 16


@dataclass(frozen=True, slots=True)
class Space:
    """The settings of the plug-ins of a machine.

    plugins: by name, with the precisions that the model tolerates. objective: "latency" keeps one request in flight.
    further: property -> values, of a CPU's other axes that make a difference on this machine. forms: of the model.
    keeps_keys: whether the model keeps keys and values of attentions from one inference to the next.
    """

    plugins: Mapping[str, Plugin]
    objective: str
    further: Mapping[str, Sequence[str]]
    forms: Sequence[ModelForm] = (ModelForm(),)
    keeps_keys: bool = False

    @classmethod
    def of(
        cls,
        devices: Sequence[DeviceSpec],
        plugins: Mapping[str, Plugin],
        objective: str,
        forms: Sequence[ModelForm] = (ModelForm(),),
        *,
        keeps_keys: bool = False,
    ) -> Space:
        """Return the space of the plug-ins that these devices are instances of."""
        used = {d.plugin: plugins[d.plugin] for d in devices}
        settable = set().union(*(p.settable for n, p in used.items() if _property_kind(n) == "cpu"))
        known = {key: values for key, values in FURTHER.items() if key in settable and _property_matters(key)}
        return cls(used, objective, known, forms, keeps_keys)

    def first(self) -> list[Variant]:
        """Return the coarse grid, what is most likely to be fast first: rewritten models, where there are any."""
        rewritten = [v for name in self.plugins for v in self._rewritten(name)]
        return [*rewritten, *(v for name in self.plugins for v in self._grid(name))]

    def around(self, variant: Variant) -> list[Variant]:
        """Return the variants one step from one of settings: another value of one axis each."""
        if variant.kind != "settings" or len(variant.devices) != 1:
            return []
        (device,) = variant.devices
        plugin, given = device.plugin, device.properties
        steps: list[tuple[dict[str, str], int]] = []
        batches: list[int] = []
        if device.kind == "cpu":
            for key, values in self.further.items():
                now = device.properties.get(key, DEFAULTS.get(key))
                steps += [({key: value}, variant.requests) for value in values if value != now]
        if self.objective == "throughput":
            streams = int(device.properties.get(STREAMS, "1"))
            for requests in (2 * variant.requests, variant.requests // 2):
                if streams <= requests <= MOST_REQUESTS * streams:
                    steps.append(({}, requests))
            at = BATCHES.index(variant.batch)
            batches = [b for b in BATCHES[max(0, at - 1) : at + 2] if b != variant.batch]
        steps += [({key: value}, variant.requests) for key, value in self._inner_steps(variant)]
        rewrite = variant.rewrite
        variants = [settings_variant(plugin, dict(given), variant.requests, batch, rewrite) for batch in batches]
        variants += [settings_variant(plugin, {**given, **new}, n, variant.batch, rewrite) for new, n in steps]
        return variants + (self._other_sizes(variant) if rewrite else [])

    def _inner_steps(self, variant: Variant) -> list[tuple[str, str]]:
        """Return other values of what a plug-in quantises of its own accord, where the model has such a thing."""
        (device,) = variant.devices
        settable, given = self.plugins[device.plugin].settable, device.properties
        steps: list[tuple[str, str]] = []
        if GROUP_SIZE in settable and self._form(variant.rewrite).compressed:
            steps += [(GROUP_SIZE, size) for size in (*GROUPS, *FURTHER_GROUPS) if size != given.get(GROUP_SIZE)]
        if KV_CACHE in settable and self.keeps_keys:
            steps += [(KV_CACHE, precision) for precision in CACHES if precision != given.get(KV_CACHE)]
        return steps

    def _form(self, rewrite: str) -> ModelForm:
        return next((form for form in self.forms if form.rewrite == rewrite), ModelForm(rewrite))

    def _other_sizes(self, variant: Variant) -> list[Variant]:
        """Return a variant with the next larger and smaller numbers of threads, or streams."""
        (device,) = variant.devices
        given, key = device.properties, STREAMS if self.objective == "throughput" else THREADS
        counts = sorted({threads if key == THREADS else n for threads, n in self._threads_and_streams(device.plugin)})
        if key not in given or int(given[key]) not in counts:
            return []
        at = counts.index(int(given[key]))
        near = [count for count in counts[max(0, at - 1) : at + 2] if count != int(given[key])]
        how = [(count, count if key == STREAMS else variant.requests) for count in near]
        return [
            settings_variant(device.plugin, {**given, key: str(count)}, requests, variant.batch, variant.rewrite)
            for count, requests in how
        ]

    def _rewritten(self, name: str) -> list[Variant]:
        """Return the rewritten forms by precision, with as many threads, or streams, as there are at most.

        Weights of 8 bits come with groups in which the plug-in quantises what they are multiplied with. Recurrent
        layers are tried with one thread as well: each step is a small product that waits for the one before. They are
        filled up for low precisions alone.
        """
        plugin = self.plugins[name]
        sizes = self._threads_and_streams(name)
        variants = []
        for form in self.forms:
            sequential = form.rewrite in (INT8_LSTM, FILLED) and self.objective == "latency"
            grouped = form.compressed and GROUP_SIZE in plugin.settable
            for group, precision, (threads, streams) in itertools.product(
                [{GROUP_SIZE: size} for size in GROUPS] if grouped else [{}],
                [p for p in fast_first(name, plugin.precisions) if form.rewrite != FILLED or p != "f32"],
                dict.fromkeys([sizes[0], min(sizes)]) if sequential else sizes[:1],
            ):
                properties = {STREAMS: str(streams)} if self.objective == "throughput" else {}
                properties |= {THREADS: str(threads)} if threads else {}
                requests = streams if self.objective == "throughput" else 1
                how = {**properties, PRECISION: precision, **group}
                variants += [settings_variant(name, how, requests, rewrite=form.rewrite)] if form.rewrite else []
        return variants

    def _grid(self, name: str) -> list[Variant]:
        """Return threads, or streams, each in both fast precisions, then the slow ones: time may end after any."""
        precisions = fast_first(name, self.plugins[name].precisions)
        sizes = self._threads_and_streams(name)
        variants = []
        cells = [*itertools.product(sizes, precisions[:2]), *itertools.product(sizes, precisions[2:])]
        for (threads, streams), precision in cells:
            properties = {STREAMS: str(streams)} if self.objective == "throughput" else {}
            properties |= {THREADS: str(threads)} if threads else {}
            requests = streams if self.objective == "throughput" else 1
            variants.append(settings_variant(name, {**properties, PRECISION: precision}, requests))
        if (
            self.objective == "throughput" and variants
        ):  # a batch is worth more than any other axis, if the model has one
            variants.insert(
                1, settings_variant(name, variants[0].devices[0].properties, variants[0].requests, FIRST_BATCH)
            )
        return variants

    def _threads_and_streams(self, name: str) -> list[tuple[int, int]]:
        """Return pairs of threads, 0 where the plug-in has no such property, and streams."""
        most = cpu_count()
        if _property_kind(name) != "cpu":
            streams = (1, 2, 4) if self.objective == "throughput" and STREAMS in self.plugins[name].settable else (1,)
            return [(0, s) for s in streams]
        if self.objective == "latency":
            return [(threads, 1) for threads in ends_first(thread_counts(most))]
        return [(most, streams) for streams in ends_first(thread_counts(most))]


def fast_first(name: str, precisions: Sequence[str]) -> list[str]:
    """Return precisions, low ones first: they are faster, if anything; but few CPUs compute in f16, and slowly."""
    rank = {"f32": 1, "f16": 2} if _property_kind(name) == "cpu" else {"f32": 1}
    return sorted(precisions, key=lambda p: rank.get(p, 0))


def ends_first(counts: Sequence[int]) -> list[int]:
    """Return the largest count, the least, then the others in descending order.

    >>> ends_first([1, 2, 3, 4])
    [4, 1, 3, 2]
    """
    return list(dict.fromkeys([counts[-1], counts[0], *reversed(counts)]))


def _property_kind(name: str) -> str:
    return KINDS.get(name.partition(".")[0], "other")


def _property_matters(key: str) -> bool:
    """Return whether a property can make a difference on this machine."""
    cpu = cpu_topology()
    if key == HYPER_THREADING:
        return any(len(core.ids) > 1 for core in cpu.cores)
    return bool(cpu.types) if key == CORE_TYPE else True


def thread_counts(most: int) -> list[int]:
    """Return the thread counts worth trying: all up to 4, then powers of two, and the most there are.

    >>> thread_counts(12)
    [1, 2, 3, 4, 8, 12]
    """
    powers = {1 << e for e in range(3, most.bit_length()) if 1 << e <= most}
    return sorted({*range(1, min(most, 4) + 1), *powers, most})


def settings_variant(
    plugin: str, properties: Mapping[str, str], requests: int, batch: int = 1, rewrite: str = ""
) -> Variant:
    """Return a plug-in with these properties, as a variant that is searched."""
    device = DeviceSpec(plugin, plugin, plugin, dict(properties), _property_kind(plugin))
    name = settings_name(plugin, properties, requests, batch, rewrite)
    return Variant(
        name,
        "settings",
        plugin,
        (device,),
        single=True,
        kind="settings",
        requests=requests,
        batch=batch,
        rewrite=rewrite,
    )


def auto_batched(variant: Variant, size: int) -> Variant:
    """Return a setting whose requests OpenVINO computes together: as many as `size` that come within a millisecond.

    Twice as many are in flight, so that some can wait while others are computed. Models without a batch are refused.

    Source: OpenVINO's documentation, Automatic Batching.
    """
    return replace(
        variant,
        name=f"{variant.name} batches of {size}",
        target=f"{AUTO_BATCH}:{variant.target}({size})",
        properties={**variant.properties, BATCH_TIMEOUT: BATCH_WAIT_MS},
        single=False,
        requests=2 * size,
    )


def auto_batch_of(variant: Variant) -> int:
    """Return how many requests a setting computes together at most; 1 where each is on its own."""
    return int(variant.target.partition("(")[2].rstrip(")")) if computes_together(variant.target) else 1


def settings_name(plugin: str, properties: Mapping[str, str], requests: int, batch: int = 1, rewrite: str = "") -> str:
    """Return what settings are called.

    >>> settings_name("CPU", {"INFERENCE_NUM_THREADS": "2", "INFERENCE_PRECISION_HINT": "f32"}, 1)
    'CPU 2 threads f32'
    """
    return " ".join(settings_words(plugin, properties, requests, batch, rewrite))


def settings_words(
    plugin: str, properties: Mapping[str, str], requests: int, batch: int = 1, rewrite: str = ""
) -> list[str]:
    """Return what tells settings from all others of their plug-in, a word or two each."""
    words = [plugin, rewrite] if rewrite else [plugin]
    if THREADS in properties:
        words.append(f"{properties[THREADS]} thread{'' if properties[THREADS] == '1' else 's'}")
    if STREAMS in properties:
        words.append(f"{properties[STREAMS]} stream{'' if properties[STREAMS] == '1' else 's'}")
    if requests > int(properties.get(STREAMS, "1")):
        words.append(f"{requests} requests")
    words += [f"batch {batch}"] if batch > 1 else []
    words += [properties[PRECISION]] if PRECISION in properties else []
    words += [word for (key, value), word in WORDS.items() if properties.get(key) == value]
    told = {THREADS, STREAMS, PRECISION, *(key for (key, value) in WORDS if properties.get(key) == value)}
    return words + [f"{key}={value}" for key, value in properties.items() if key not in told]
