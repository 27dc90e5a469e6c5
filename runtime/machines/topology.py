"""Machines that need not be at hand, by the name of a file or of a preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.errors import UnknownNameError, UsageError
from runtime.machines.machine import Machine, simulated_device
from runtime.machines.roofline import CHIPS
from runtime.machines.topology_file import read_topology

MOST_DEVICES = 1024
OFFICIAL = "accelerators"  # the preset of accelerators and CPU cores around one host

GPU_BYTES = 15 * 2**30  # of 16 GiB, what is left beside the runtime
HOST_BYTES = 64 * 2**30
SPREAD = 4.0  # unequal devices differ from the usual one by at most this factor


def machine_of(text: str, *, link_bytes_per_s: float = 0.0, memory_bytes: int = 0) -> Machine:
    """Return the machine of a TOML file or of a preset; the two figures change presets only, see `preset_machine`.

    Raises:
        UsageError: there is no such file or preset, or something in the file is wrong.
        DeviceError: the file names no device.
    """
    if text.endswith(".toml") or Path(text).is_file():
        return read_topology(Path(text))
    return preset_machine(text, link_bytes_per_s=link_bytes_per_s, memory_bytes=memory_bytes)


def preset_machine(text: str, *, link_bytes_per_s: float = 0.0, memory_bytes: int = 0) -> Machine:
    """Return the machine that "NAME" or "NAME:SIZE" stands for; see PRESETS.

    link_bytes_per_s: in place of the preset's own bandwidth, of its fastest links where they differ; 0 keeps it.
    memory_bytes: in place of what its devices hold, but for CPUs, which then hold anything; 0 keeps it.

    Raises:
        UsageError: there is no such preset, or its size is wrong.
    """
    name, _, size = text.partition(":")
    if name not in PRESETS:
        raise UnknownNameError("topology file or preset", text, (form for form, _ in PRESETS.values()))
    form, build = PRESETS[name]
    built = build(_preset_sizes(text, size, form), link_bytes_per_s)
    if memory_bytes == 0:
        return built
    devices = tuple(replace(d, memory_bytes=0 if d.kind == "cpu" else memory_bytes) for d in built.topology.devices)
    return Machine(replace(built.topology, devices=devices), built.chips)


def _preset_sizes(text: str, size: str, form: str) -> tuple[int, ...]:
    """Return the numbers of a preset's size, as many as in its form."""
    wanted = form.partition(":")[2]
    words = size.split("x") if size else []
    least = 0 if form.startswith(OFFICIAL) and any(word.strip("0") for word in words) else 1
    if len(words) != wanted.count("x") + bool(wanted) or not all(w.isdecimal() and int(w) >= least for w in words):
        name, letters = form.partition(":")[0], "NM"[: wanted.count("x") + bool(wanted)]
        needs = f":{'x'.join(letters)} needs {', '.join(letters)} >= {least}" if letters else " takes no size"
        raise UsageError(f"{name}{needs}, got {size or 'none'}.", f"Write for example {form}.")
    sizes = tuple(int(word) for word in words)
    if max(sum(sizes), int(np.prod(sizes))) > MOST_DEVICES:
        raise UsageError(f"{text!r} has more than {MOST_DEVICES} devices.", f"Use at most {MOST_DEVICES} devices.")
    return sizes


def _gpu_devices(count: int) -> tuple[DeviceSpec, ...]:
    return tuple(simulated_device(f"gpu{i}", "gpu", GPU_BYTES) for i in range(count))


def _equal_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    (count,) = sizes
    topology = Topology.uniform(_gpu_devices(count), bytes_per_s=link_bytes_per_s or 7.6e9, latency_s=0.0)
    return Machine(topology, (CHIPS["p100"],) * count)


def _p100_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    """Return P100s that talk over PCIe."""
    (count,) = sizes
    topology = Topology.uniform(_gpu_devices(count), bytes_per_s=link_bytes_per_s or 8e9, latency_s=50e-6)
    return Machine(topology, (CHIPS["p100"],) * count)


def _p100x8_machine(_: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    return _p100_machine((8,), link_bytes_per_s)


def _two_level(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    hosts, each = sizes
    host = np.repeat(np.arange(hosts), each)
    inside = host[:, None] == host
    fast = link_bytes_per_s or 80e9
    bytes_per_s, latency_s = np.where(inside, fast, fast / 10), np.where(inside, 5e-6, 50e-6)
    return Machine(
        _uniform_topology(_gpu_devices(hosts * each), bytes_per_s, latency_s), (CHIPS["p100"],) * (hosts * each)
    )


def _ring_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    (count,) = sizes
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    hops = np.maximum(np.minimum(apart, count - apart), 1)  # every host on the way stores and forwards
    bytes_per_s, latency_s = (link_bytes_per_s or 7.6e9) / hops, 5e-6 * hops
    return Machine(_uniform_topology(_gpu_devices(count), bytes_per_s, latency_s), (CHIPS["p100"],) * count)


def _desktop_machine(_: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    devices = (simulated_device("cpu", "cpu", 32 * 2**30), simulated_device("gpu", "gpu", 12 * 2**30))
    topology = Topology.uniform(devices, bytes_per_s=link_bytes_per_s or 12e9, latency_s=20e-6)
    return Machine(topology, (CHIPS["desktop-cpu"], CHIPS["desktop-gpu"]))


def _sockets_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    (count,) = sizes
    devices = tuple(simulated_device(f"cpu{i}", "cpu", HOST_BYTES) for i in range(count))
    topology = Topology.uniform(devices, bytes_per_s=link_bytes_per_s or 30e9, latency_s=1e-6)
    return Machine(topology, (CHIPS["socket"],) * count)


def _unequal_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    (count,) = sizes
    rng = np.random.default_rng(count)
    speed = SPREAD ** rng.uniform(-1, 1, count)
    link = SPREAD ** np.triu(rng.uniform(-1, 1, (count, count)), 1)
    bytes_per_s = (link_bytes_per_s or 7.6e9) * link * link.T
    latency_s = np.full((count, count), 20e-6)
    chips = tuple(CHIPS["p100"].scaled(float(factor)) for factor in speed)
    return Machine(_uniform_topology(_gpu_devices(count), bytes_per_s, latency_s), chips)


def _accelerators_machine(sizes: tuple[int, ...], link_bytes_per_s: float) -> Machine:
    """Return what Tarnawski et al. place on: equal accelerators and CPU cores, which all share the host's memory."""
    count, cores = sizes
    accelerators = tuple(simulated_device(f"acc{i}", "npu", GPU_BYTES) for i in range(count))
    devices = (*accelerators, *(simulated_device(f"cpu{i}", "cpu", HOST_BYTES) for i in range(cores)))
    chips = (*((CHIPS["p100"],) * count), *((CHIPS["socket"],) * cores))
    return Machine(Topology.uniform(devices, bytes_per_s=link_bytes_per_s or 2.0**31, latency_s=0.0), chips)


def _uniform_topology(
    devices: tuple[DeviceSpec, ...],
    bytes_per_s: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    latency_s: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> Topology:
    own = np.eye(len(devices), dtype=bool)
    return Topology(devices, np.where(own, np.inf, bytes_per_s), np.where(own, 0.0, latency_s))


# Name -> an example of how it is written, and what builds it from its sizes and a bandwidth.
PRESETS: Mapping[str, tuple[str, Callable[[tuple[int, ...], float], Machine]]] = MappingProxyType(
    {
        "equal": ("equal:4", _equal_machine),
        "p100x8": ("p100x8", _p100x8_machine),
        "p100": ("p100:4", _p100_machine),
        "two-level": ("two-level:2x4", _two_level),
        "ring": ("ring:4", _ring_machine),
        "cpu+gpu": ("cpu+gpu", _desktop_machine),
        "sockets": ("sockets:2", _sockets_machine),
        "unequal": ("unequal:20", _unequal_machine),
        OFFICIAL: (f"{OFFICIAL}:6x1", _accelerators_machine),
    }
)
