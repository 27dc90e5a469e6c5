"""The cores of a machine as /sys tells them, and the devices that become of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.errors import DeviceError
from pipeline.system.process import cpu_count
from pipeline.system.processors import format_ranges, from_ranges
from runtime.machines import devices
from runtime.machines.cpu_topology import Core, CpuTopology, cpu_topology
from runtime.machines.devices import default_devices
from tests.unit.runtime.machines.test_devices import CPU, PLUGINS

TYPED = replace(CPU, settable=CPU.settable | {"SCHEDULING_CORE_TYPE"})


def tree(
    root: Path, cores: Sequence[tuple[int, ...]], *, sockets: Sequence[str] = (), **files: str
) -> tuple[Path, frozenset[int]]:
    """Return a root with these cores, each the numbers of its processors, and the processors; sockets: by their cores.

    files: "cpu_core" or "node0" -> the processors there.
    """
    texts: dict[str, str] = {}
    for k, core in enumerate(cores):
        socket = next((s for s, at in enumerate(sockets) if k in from_ranges(at)), 0)
        for i in core:
            at = f"system/cpu/cpu{i}/topology"
            texts |= {f"{at}/thread_siblings_list": format_ranges(core), f"{at}/physical_package_id": str(socket)}
    for name, text in files.items():
        texts[f"system/node/{name}/cpulist" if name.startswith("node") else f"{name}/cpus"] = text
    for name, text in texts.items():
        path = root / "sys/devices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root, frozenset(i for core in cores for i in core)


# 6 P-cores with hyper-threading, 8 E-cores without.
HYBRID = [(2 * k, 2 * k + 1) for k in range(6)] + [(i,) for i in range(12, 20)]
HYBRID_FILES = {"cpu_core": "0-11", "cpu_atom": "12-19", "node0": "0-19"}
# 2 sockets of 4 cores, whose second processors have the numbers above all first ones.
TWO = [(k, k + 8) for k in range(8)]
TWO_FILES = {"node0": "0-3,8-11", "node1": "4-7,12-15"}


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have the time of 64 processors."""
    monkeypatch.setattr(devices, "cpu_count", lambda: 64)


def read(root: Path, cores: Sequence[tuple[int, ...]], **files: str) -> CpuTopology:
    root, allowed = tree(root, cores, **files)
    return cpu_topology(root, allowed=allowed)


def threads(found: Sequence[devices.DeviceSpec]) -> dict[str, Mapping[str, str]]:
    left_out = ("ENABLE_CPU_PINNING", "INFERENCE_PRECISION_HINT")
    return {d.name: {k: v for k, v in d.properties.items() if k not in left_out} for d in found}


def test_a_hybrid_processor_is_a_device_per_type_of_core(tmp_path: Path) -> None:
    cores = read(tmp_path, HYBRID, **HYBRID_FILES)
    assert cores.types == {"P": 6, "E": 8}
    assert cores.words() == "14 cores (6 P, 8 E), 20 processors, 1 socket, 1 NUMA node"
    found = default_devices({"CPU": TYPED}, cores)
    assert threads(found) == {
        "P": {"INFERENCE_NUM_THREADS": "6", "SCHEDULING_CORE_TYPE": "PCORE_ONLY"},
        "E": {"INFERENCE_NUM_THREADS": "8", "SCHEDULING_CORE_TYPE": "ECORE_ONLY"},
    }
    assert [d.openvino_name for d in found] == ["CPU_P", "CPU_E"]


def test_every_gpu_stands_beside_the_parts_of_the_cpu(tmp_path: Path) -> None:
    cores = read(tmp_path, HYBRID, **HYBRID_FILES)
    found = default_devices({**PLUGINS, "CPU": TYPED}, cores)
    assert [d.name for d in found] == ["P", "E", "GPU.0", "GPU.1"]
    assert [d.plugin for d in found] == ["CPU", "CPU", "GPU.0", "GPU.1"]


def test_a_runtime_that_knows_no_types_of_cores_gets_halves(tmp_path: Path) -> None:
    assert [d.name for d in default_devices({"CPU": CPU}, read(tmp_path, HYBRID, **HYBRID_FILES))] == ["A", "B"]


def test_cores_that_may_not_be_used_are_no_device(tmp_path: Path) -> None:
    root, _ = tree(tmp_path, HYBRID, **HYBRID_FILES)
    cores = cpu_topology(root, allowed=[1, 2, 3, 13])
    assert cores.cores == (Core((1,), "P"), Core((2, 3), "P"), Core((13,), "E"))
    only = cpu_topology(root, allowed=range(12, 16))
    assert only.types == {}
    assert [d.name for d in default_devices({"CPU": TYPED}, only)] == ["A", "B"]


def test_a_quota_limits_the_threads_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_count", lambda: 3)
    found = default_devices({"CPU": TYPED}, read(tmp_path, HYBRID, **HYBRID_FILES))
    assert {d.properties["INFERENCE_NUM_THREADS"] for d in found} == {"3"}


def test_a_machine_of_two_nodes_is_a_device_per_node(tmp_path: Path) -> None:
    cores = read(tmp_path, TWO, sockets=["0-3", "4-7"], **TWO_FILES)
    assert cores.nodes == cores.sockets == {0: 4, 1: 4}
    assert cores.to_json() == {
        "processors": "0-15",
        "cores": 8,
        "hyper_threading": True,
        "types": {},
        "sockets": {"0": 4, "1": 4},
        "nodes": {"0": 4, "1": 4},
    }
    found = default_devices({"CPU": TYPED}, cores)
    assert threads(found) == {"N0": {"INFERENCE_NUM_THREADS": "4"}, "N1": {"INFERENCE_NUM_THREADS": "4"}}


def test_sockets_count_where_the_system_knows_of_one_node(tmp_path: Path) -> None:
    cores = read(tmp_path, TWO, sockets=["0-1", "2-7"], node0="0-15")
    assert cores.nodes == {0: 2, 1: 6}
    assert [d.name for d in default_devices({"CPU": CPU}, cores)] == ["N0", "N1"]


def test_a_system_that_tells_nothing_has_a_core_per_processor(tmp_path: Path) -> None:
    cores = cpu_topology(tmp_path, allowed=[0, 1, 2])
    assert cores.words() == "3 cores, 3 processors, 1 socket, 1 NUMA node"
    assert [d.name for d in default_devices({"CPU": CPU}, cores)] == ["A", "B"]
    assert default_devices({"CPU": CPU}, CpuTopology(())) == default_devices({"CPU": CPU}, cores)
    with pytest.raises(DeviceError, match="no device"):
        default_devices({}, cores)


def test_this_machine_has_the_processors_of_this_process() -> None:
    cores = cpu_topology()
    assert sum(len(core.ids) for core in cores.cores) >= cpu_count()
    assert sum(cores.sockets.values()) == len(cores.cores)
