"""What a container leaves of the processors: quotas of control groups, and the processors it may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.inspect_commands import _processors_text
from pipeline.system import process
from pipeline.system.processors import UsableProcessors, cpu_quota, format_ranges, from_ranges, usable_processors
from runtime.machines import devices
from runtime.machines.devices import default_devices, make_spec
from tests.unit.runtime.machines.test_devices import CPU, GPU

SLICE = "system.slice/docker-abc.scope"


def tree(root: Path, membership: str, files: Mapping[str, str]) -> Path:
    """Return a root whose /proc/self/cgroup and files below /sys/fs/cgroup hold what is given."""
    for name, text in {"proc/self/cgroup": membership, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


V2 = f"0::/{SLICE}"
V1 = f"9:name=systemd:/\n4:memory:/{SLICE}\n3:cpu,cpuacct:/{SLICE}\n0::/"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        (V2, {f"{SLICE}/cpu.max": "150000 100000"}, 1.5),
        (V2, {f"{SLICE}/cpu.max": "max 100000"}, None),
        (V2, {f"{SLICE}/cpu.max": "max 100000", "system.slice/cpu.max": "50000 25000"}, 2.0),  # of the group above
        (V2, {f"{SLICE}/cpu.max": "400000 100000", "system.slice/cpu.max": "300000 100000"}, 3.0),  # the tightest
        (V2, {"cpu.max": "100000 50000"}, 2.0),  # the container's own group is the root of what it sees
        ("0::/../../x", {"x/cpu.max": "100000 50000"}, 2.0),  # seen from a group beside it
        (V2, {}, None),
        (
            V1,
            {f"cpu,cpuacct/{SLICE}/cpu.cfs_quota_us": "250000", f"cpu,cpuacct/{SLICE}/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (V1, {"unified/cpu.max": "300000 100000", "cpu/cpu.cfs_quota_us": "-1"}, 3.0),  # both versions at once
        (V1, {f"memory/{SLICE}/cpu.max": "100000 100000"}, None),  # not where the processors are shared out
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_tightest_quota_of_all_groups_above_holds(
    membership: str, files: Mapping[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert cpu_quota(tree(tmp_path, membership, files)) == quota


def test_a_system_without_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("ids", "quota", "count", "limited"),
    [
        (range(8), None, 8, False),
        (range(8), 2.0, 2, True),
        (range(8), 2.9, 2, True),  # a third thread would stop the other two
        (range(8), 0.5, 1, True),
        (range(2), 4.0, 2, False),
        ((), None, 16, False),
    ],
)
def test_only_what_runs_all_the_time_counts(ids: range, quota: float | None, count: int, limited: bool) -> None:
    usable = UsableProcessors(tuple(ids), quota, 16)
    assert (usable.count, usable.limited) == (count, limited)


def test_affinity_and_quota_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 3, 6}, raising=False)
    usable = usable_processors(tree(tmp_path, V2, {"cpu.max": "200000 100000"}))
    assert (usable.ids, usable.quota, usable.cpuset, usable.count) == ((3, 5, 6), 2.0, "3,5-6", 2)


def test_lists_of_processors_are_read_and_written_as_the_kernel_does() -> None:
    assert from_ranges("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert from_ranges("\n") == frozenset()
    assert format_ranges(from_ranges("0-3,8,10-11")) == "0-3,8,10-11"
    assert format_ranges(()) == ""


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> UsableProcessors:
    """Let this be a container of sixteen processors and the time of three."""
    found = UsableProcessors(tuple(range(16)), 3.0, 16)
    for module in (process, devices):
        monkeypatch.setattr(module, "usable_processors", lambda: found)
    return found


@pytest.mark.usefixtures("quota")
def test_a_cpu_gets_the_threads_that_its_quota_feeds() -> None:
    cpu = make_spec("CPU", "CPU", {}, {"CPU": CPU})
    assert cpu.properties["INFERENCE_NUM_THREADS"] == "3"
    assert not cpu.is_alias
    asked = make_spec("A", "CPU", {"INFERENCE_NUM_THREADS": "8"}, {"CPU": CPU})
    assert asked.properties["INFERENCE_NUM_THREADS"] == "8"
    assert "INFERENCE_NUM_THREADS" not in make_spec("GPU", "GPU", {}, {"GPU": replace(GPU, name="GPU")}).properties
    assert [d.properties["INFERENCE_NUM_THREADS"] for d in default_devices({"CPU": CPU})] == ["1", "1"]


def test_a_quota_and_a_cpuset_are_part_of_the_hardware(
    quota: UsableProcessors, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = devices.hardware_facts({"CPU": CPU})
    assert (facts["processors"], facts["cpuset"], facts["cpu_quota"]) == (3, "0-15", 3.0)
    others = [replace(quota, quota=None), replace(quota, ids=tuple(range(1, 17))), replace(quota, quota=3.5)]
    prints = {devices.hardware_fingerprint(facts)}
    for other in others:
        monkeypatch.setattr(devices, "usable_processors", lambda other=other: other)
        prints.add(devices.hardware_fingerprint(devices.hardware_facts({"CPU": CPU})))
    assert len(prints) == 4


def test_the_doctor_tells_quota_and_cpuset(quota: UsableProcessors) -> None:
    assert _processors_text(quota) == (
        "16 of 16 (cpuset 0-15), with a quota of 3: OpenVINO ignores quotas and starts one thread per processor; "
        "placewright uses 3 threads"
    )
    assert _processors_text(replace(quota, ids=(0, 1), quota=None)) == "2 of 16 (cpuset 0-1), no quota"
    assert _processors_text(replace(quota, ids=(0, 1), quota=2.5)) == "2 of 16 (cpuset 0-1), with a quota of 2.5"
