"""What can be set of a device: the coarse grid, the steps around it, and names that tell settings apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.settings import MeasureSettings
from runtime.machines.cpu_topology import Core, CpuTopology
from runtime.machines.devices import PRECISION, Plugin, discover_plugins
from runtime.measuring.contest import space as module
from runtime.measuring.contest.space import Space, settings_variant, thread_counts
from runtime.measuring.contest.variant import start_child
from tests.models import two_towers
from tests.two_cpus import write
from tests.unit.runtime.machines.test_devices import CPU, GPU

SETTABLE = frozenset({"ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "SCHEDULING_CORE_TYPE", "NUM_STREAMS"})
HYBRID = CpuTopology((Core((0, 1), "P"), Core((2,), "E")))
PLAIN = CpuTopology((Core((0,)), Core((1,))))


def space(
    monkeypatch: pytest.MonkeyPatch,
    objective: str = "latency",
    *,
    plugin: Plugin = CPU,
    count: int = 2,
    cores: CpuTopology = PLAIN,
) -> Space:
    monkeypatch.setattr(module, "cpu_count", lambda: count)
    monkeypatch.setattr(module, "cpu_topology", lambda: cores)
    plugin = replace(plugin, settable=SETTABLE)
    kind = "cpu" if plugin.name == "CPU" else "gpu"
    return Space.of([DeviceSpec("A", plugin.name, plugin.name, {}, kind)], {plugin.name: plugin}, objective)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 3, 4, 8]), (12, [1, 2, 3, 4, 8, 12])]
)
def test_thread_counts_by_hand(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_for_latency_the_grid_is_threads_by_precision_with_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [v.name for v in space(monkeypatch).first()]
    assert names == ["CPU 2 threads bf16", "CPU 2 threads f32", "CPU 1 thread bf16", "CPU 1 thread f32"]
    assert {v.requests for v in space(monkeypatch).first()} == {1}
    assert all(v.single and not v.baseline for v in space(monkeypatch).first())


def test_whatever_time_allows_every_axis_is_tried_early_and_slow_precisions_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = replace(CPU, precisions=("f16", "f32", "bf16"))
    names = [v.name for v in space(monkeypatch, plugin=plugin, count=8).first()]
    assert names[:3] == ["CPU 8 threads bf16", "CPU 8 threads f32", "CPU 1 thread bf16"]
    assert names.index("CPU 1 thread f32") < 4
    assert names[-1].endswith("f16")
    assert len(set(names)) == 3 * len(thread_counts(8))


def test_for_throughput_the_grid_is_streams_by_precision_with_a_request_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch, "throughput", count=4).first()
    assert [(v.devices[0].properties["NUM_STREAMS"], v.requests, v.batch) for v in found[:5]] == [
        ("4", 4, 1),
        ("4", 4, 16),
        ("4", 4, 1),
        ("1", 1, 1),
        ("1", 1, 1),
    ]
    assert [v.batch for v in found[5:]] == [1] * len(found[5:])
    assert {v.devices[0].properties["INFERENCE_NUM_THREADS"] for v in found} == {"4"}


def test_precisions_that_the_model_does_not_bear_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = replace(CPU, precisions=("f32",))
    assert {v.devices[0].properties[PRECISION] for v in space(monkeypatch, plugin=plugin).first()} == {"f32"}


def test_a_gpu_has_streams_for_throughput_and_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = replace(GPU, precisions=("f16",))
    assert [v.name for v in space(monkeypatch, plugin=plugin).first()] == [f"{GPU.name} f16"]
    streams = [v.name for v in space(monkeypatch, "throughput", plugin=plugin).first()]
    assert streams == [
        f"{GPU.name} {words} f16" for words in ("1 stream", "1 stream batch 16", "2 streams", "4 streams")
    ]


def test_a_step_changes_one_axis_to_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch)
    best = found.first()[0]
    assert [v.name for v in found.around(best)] == ["CPU 2 threads bf16 unpinned"]
    (unpinned,) = found.around(best)
    assert [v.devices[0].properties["ENABLE_CPU_PINNING"] for v in found.around(unpinned)] == ["YES"]


def test_core_types_and_hyper_threading_are_axes_where_the_machine_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch, cores=HYBRID)
    steps = {v.name.removeprefix("CPU 2 threads bf16 ") for v in found.around(found.first()[0])}
    assert steps == {"unpinned", "hyper-threaded", "without hyper-threading", "performance cores", "efficient cores"}


def test_requests_are_an_axis_of_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch, "throughput")
    best = found.first()[0]
    assert [(v.requests, v.batch) for v in found.around(best)] == [(2, 4), (2, 1), (4, 1)]  # unpinned is the second
    eight = settings_variant("CPU", {**best.devices[0].properties}, 8)
    assert [v.requests for v in found.around(eight)] == [8, 8, 4]
    sixteen = replace(eight, batch=16)
    assert [v.batch for v in found.around(sixteen)] == [4, 64, 16, 16]
    assert len({v.name for v in found.around(sixteen)}) == 4


def test_what_is_no_settings_has_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch)
    assert found.around(replace(found.first()[0], kind="split")) == []


def test_names_tell_all_settings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = space(monkeypatch, "throughput", count=8, cores=HYBRID)
    everything = {v.identity: v.name for v in found.first()}
    front = found.first()
    for _ in range(2):
        front = [n for v in front for n in found.around(v)]
        everything |= {v.identity: v.name for v in front}
    assert len(set(everything.values())) == len(everything)


def test_every_setting_of_this_machine_compiles(tmp_path: Path) -> None:
    model, _ = write(two_towers(), tmp_path)
    plugins = {"CPU": discover_plugins()["CPU"]}
    found = Space.of([DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")], plugins, "throughput")
    best = found.first()[0]
    for variant in [best, *found.around(best)]:
        child, loaded = start_child(variant, model, MeasureSettings(), seed=0)
        with child:
            assert loaded["executed_on"] == ["CPU"]
            assert loaded["requests"] == variant.requests
