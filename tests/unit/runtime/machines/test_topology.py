"""Machines from files and presets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import DeviceError, UnknownNameError, UsageError
from runtime.machines.machine import Machine
from runtime.machines.roofline import CHIPS, Chip
from runtime.machines.topology import PRESETS, machine_of, preset_machine
from runtime.machines.topology_file import read_topology
from tests import ROOT

FULL = """
[links]
bytes_per_s = "12GB/s"
latency_s = 20e-6

[[device]]
name = "cpu"
kind = "cpu"
memory_bytes = "64GiB"

[[device]]
name = "fast"
kind = "gpu"
chip = "p100"
memory_bytes = 16_000_000_000
launch_s = 4e-6
efficiency = {conv = 0.7}

[[device]]
name = "odd"
flops_per_s = 2e12
bytes_per_s = 1e11

[[link]]
from = "cpu"
to = "fast"
bytes_per_s = 30e9
latency_s = 0

[[link]]
from = "fast"
to = "odd"
bytes_per_s = "1MB"
both_ways = false
"""


def read(text: str, folder: Path) -> Machine:
    path = folder / "machine.toml"
    path.write_text(text, encoding="utf-8")
    return read_topology(path)


def devices(*names: str) -> str:
    return "".join(f'[[device]]\nname = "{name}"\nkind = "gpu"\n' for name in names)


def test_a_file_gives_devices_chips_and_links(tmp_path: Path) -> None:
    found = read(FULL, tmp_path)
    topology = found.topology
    assert topology.names == ("cpu", "fast", "odd")
    assert [d.kind for d in topology.devices] == ["cpu", "gpu", "other"]
    assert [d.memory_bytes for d in topology.devices] == [64 * 2**30, 16 * 10**9, 0]
    p100 = CHIPS["p100"]
    assert found.chips == (
        CHIPS["desktop-cpu"],
        Chip(p100.flops_per_s, p100.bytes_per_s, 4e-6, p100.auxiliary_s, {"conv": 0.7}),
        Chip(2e12, 1e11),
    )
    bandwidth = [[np.inf, 30e9, 12e9], [30e9, np.inf, 1e6], [12e9, 12e9, np.inf]]
    latency = [[0, 0, 20e-6], [0, 0, 20e-6], [20e-6, 20e-6, 0]]
    assert topology.link_bytes_per_s.tolist() == bandwidth
    assert topology.link_latency_s.tolist() == latency


def test_one_device_needs_no_links_and_no_chip(tmp_path: Path) -> None:
    found = read('[[device]]\nname = "x"\n', tmp_path)
    assert found.topology.p == 1
    assert found.chips == (None,)


def test_links_that_are_missing_are_all_listed(tmp_path: Path) -> None:
    text = devices("a", "b", "c") + '[[link]]\nfrom = "a"\nto = "b"\nbytes_per_s = 1e9\n'
    text += '[[link]]\nfrom = "b"\nto = "c"\nbytes_per_s = 1e9\nboth_ways = false\n'
    with pytest.raises(UsageError, match=r"3 link\(s\) is missing: a -> c, c -> a, c -> b"):
        read(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (devices("a", "a"), "two devices are called a"),
        (devices("a") + 'memory = "1GB"\n', "device a has an unknown key 'memory' .did you mean 'memory_bytes'"),
        (devices("a") + "[linsk]\n", "unknown key 'linsk' .did you mean 'link'"),
        (devices("a") + "[links]\nlatencys = 1\n", "unknown key 'latencys'"),
        (
            devices("a") + 'memory_bytes = "16GX"\n',
            "memory_bytes of device a is '16GX', but must be a number",
        ),
        (devices("a") + "memory_bytes = -1\n", "memory_bytes of device a is -1, but must be at least 0"),
        (devices("a") + "memory_bytes = true\n", "memory_bytes of device a is True"),
        (devices("a") + "flops_per_s = 0\n", "flops_per_s of device a is 0, but must be above 0"),
        (devices("a") + "flops_per_s = nan\n", "flops_per_s of device a is nan"),
        (devices("a") + "efficiency = {gem = 0.5}\n", "unknown key 'gem' .did you mean 'gemm'"),
        (devices("a") + 'chip = "p10"\n', "chip of device a is 'p10', but must be 'p100'"),
        ('[[device]]\nname = "a"\nkind = "gpuu"\n', "kind of device a is 'gpuu', but must be 'cpu'"),
        ('[[device]]\nname = "a"\nflops_per_s = 1e12\n', "needs both flops_per_s and bytes_per_s"),
        ('[[device]]\nkind = "gpu"\n', "needs name"),
        ("[device]\nname = 'a'\n", r"device is .*, but must be a list"),
        (devices("a", "b") + "[links]\nbytes_per_s = 0\n", "bytes_per_s of links is 0, but must be above 0"),
        (devices("a", "b") + "[links]\nbytes_per_s = 1e-320\n", "is 9.99989e-321 bytes/s, which is not plausible"),
        (
            devices("a", "b") + "[links]\nbytes_per_s = 1\nlatency_s = inf\n",
            "latency_s of links is inf",
        ),
        (
            devices("a") + '[[link]]\nfrom = "a"\nto = "z"\nbytes_per_s = 1\n',
            "names the device 'z', which is not there",
        ),
        (devices("a") + '[[link]]\nfrom = "a"\nto = "a"\nbytes_per_s = 1\n', "leads from a to itself"),
        (
            devices("a") + '[[link]]\nfrom = "a"\nto = "a"\nboth_ways = 1\n',
            "both_ways of link a -> a is 1, but",
        ),
        ("[[device]\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DeviceError), match=cause):
        read(text, tmp_path)


def test_all_faults_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kind of device x is 'b'.*unknown key 'a'.*is missing"):
        read('a = 1\n[[device]]\nname = "x"\nkind = "b"\n[[device]]\nname = "y"\n', tmp_path)


def test_a_file_without_devices_ends_like_a_missing_device(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="names no device"):
        read("[links]\nbytes_per_s = 1\n", tmp_path)


def test_a_file_that_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        machine_of(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_built_as_its_help_writes_it(name: str) -> None:
    found = preset_machine(PRESETS[name][0])
    assert found.topology.p == len(found.chips)
    assert all(chip is not None for chip in found.chips)
    assert all(d.memory_bytes > 0 for d in found.topology.devices)
    assert np.array_equal(found.topology.link_latency_s, found.topology.link_latency_s.T)


def test_equal_devices_are_p100s_of_15_gib_over_plain_links() -> None:
    found = preset_machine("equal:4")
    assert found.topology.names == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert {d.memory_bytes for d in found.topology.devices} == {15 * 2**30}
    assert set(found.topology.link_bytes_per_s[~np.eye(4, dtype=bool)]) == {7.6e9}
    assert not found.topology.link_latency_s.any()
    assert found.chips == (CHIPS["p100"],) * 4


def test_two_levels_are_ten_times_slower_across() -> None:
    topology = preset_machine("two-level:2x4").topology
    assert topology.p == 8
    assert topology.link_bytes_per_s[0, 3] == 80e9
    assert topology.link_bytes_per_s[0, 4] == topology.link_bytes_per_s[7, 3] == 8e9


def test_on_a_ring_distance_multiplies_latency_and_divides_bandwidth() -> None:
    topology = preset_machine("ring:5").topology
    assert topology.link_bytes_per_s[0].tolist() == [np.inf, 7.6e9, 3.8e9, 3.8e9, 7.6e9]
    assert topology.link_latency_s[0] == pytest.approx([0, 5e-6, 10e-6, 10e-6, 5e-6])


def test_unequal_devices_differ_by_a_bounded_factor_and_are_the_same_every_time() -> None:
    one, two = preset_machine("unequal:20"), preset_machine("unequal:20")
    speed = np.array([chip.flops_per_s for chip in one.chips if chip is not None]) / CHIPS["p100"].flops_per_s
    assert speed.min() >= 1 / 4
    assert speed.max() <= 4
    assert np.unique(speed).size == 20
    assert one.chips == two.chips
    assert np.array_equal(one.topology.link_bytes_per_s, two.topology.link_bytes_per_s)


def test_a_graph_brings_its_own_bandwidth_and_memory_but_not_for_cpus() -> None:
    topology = preset_machine("cpu+gpu", link_bytes_per_s=2e9, memory_bytes=10**6).topology
    assert topology.link_bytes_per_s[0, 1] == 2e9
    assert [d.memory_bytes for d in topology.devices] == [0, 10**6]


def test_a_machine_without_memory_limits_is_otherwise_the_same() -> None:
    found = preset_machine("p100x8")
    free = found.without_memory_limits()
    assert {d.memory_bytes for d in free.topology.devices} == {0}
    assert free.topology.names == found.topology.names


@pytest.mark.parametrize("text", ["equal", "equal:", "equal:0", "equal:x", "equal:2x2", "two-level:4", "cpu+gpu:2"])
def test_a_size_that_does_not_fit_shows_the_form(text: str) -> None:
    name = text.partition(":")[0]
    with pytest.raises(UsageError, match=r" needs | takes no size") as found:
        preset_machine(text)
    assert PRESETS[name][0] in found.value.remedy


def test_too_many_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 1024 devices"):
        preset_machine("two-level:100x100")


def test_an_unknown_preset_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'equal:4'\?"):
        machine_of("equl:4")


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    found = read(page.split("```toml")[1].split("```")[0], tmp_path)
    assert found.topology.names == ("cpu", "gpu0")
    assert found.topology.link_bytes_per_s[0, 1] == 25e9
    assert found.topology.link_bytes_per_s[1, 0] == 12e9


def test_the_documentation_names_every_preset_and_chip() -> None:
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in page for name in PRESETS)
    assert all(name in page for name in CHIPS)
