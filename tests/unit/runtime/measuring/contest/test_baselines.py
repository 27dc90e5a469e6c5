"""What every placement is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.machines.devices import discover_plugins, make_spec, parse_devices
from runtime.measuring.contest.baselines import list_baselines, reference_variant
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.variant import Variant, check_outputs, executed_names, start_child
from tests.models import two_towers
from tests.two_cpus import two_cpus, write
from tests.unit.runtime.machines.test_devices import CPU, GPU, PLUGINS


def halves() -> tuple[DeviceSpec, ...]:
    return tuple(
        make_spec(name, "CPU", {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": precision}, {"CPU": CPU})
        for name, precision in (("A", "f32"), ("B", "bf16"))
    )


def names(found: list[Variant]) -> list[tuple[str, str]]:
    return [(v.name, v.kind) for v in found]


def test_plug_ins_as_they_come_and_devices_stand_before_what_the_runtime_chooses() -> None:
    found = list_baselines(halves(), {"CPU": CPU}, "latency")
    kinds = [("CPU default", "default"), ("A", "device"), ("B", "device")]
    assert names(found) == [*kinds, ("AUTO", "own choice"), ("HETERO default", "own choice")]
    assert [v.single for v in found] == [True] * 3 + [False] * 2
    assert all(v.baseline and v.requests == 1 for v in found)
    assert found[0].devices[0].properties == {}
    assert (found[3].target, found[3].devices) == ("AUTO:CPU_A,CPU_B", halves())
    assert found[4].target == "HETERO:CPU_A,CPU_B"
    assert found[4].affinity is None


def test_hints_stand_where_the_plug_in_does_not_take_them_of_itself() -> None:
    plugin = replace(CPU, settable=CPU.settable | {"PERFORMANCE_HINT"}, default_hint="LATENCY")
    assert [v.name for v in list_baselines(halves()[:1], {"CPU": plugin}, "latency") if v.kind == "hint"] == []
    (hint,) = (v for v in list_baselines(halves()[:1], {"CPU": plugin}, "throughput") if v.kind == "hint")
    assert (hint.name, hint.devices[0].properties) == ("CPU THROUGHPUT hint", {"PERFORMANCE_HINT": "THROUGHPUT"})
    silent = replace(plugin, default_hint="")
    assert [v.name for v in list_baselines(halves()[:1], {"CPU": silent}, "latency") if v.kind == "hint"] == [
        "CPU LATENCY hint"
    ]


def test_where_throughput_counts_as_many_requests_run_as_the_runtime_advises() -> None:
    found = list_baselines(halves(), {"CPU": CPU}, "throughput")
    assert {v.requests for v in found} == {0}
    assert "AUTO cumulative" in [v.name for v in found]


def test_a_default_whose_precision_the_model_does_not_bear_stands_in_f32() -> None:
    plugin = replace(CPU, precisions=("f32",), default_precision="bf16")
    found = list_baselines(halves()[:1], {"CPU": plugin}, "latency")[0]
    assert (found.name, found.devices[0].properties) == ("CPU default f32", {"INFERENCE_PRECISION_HINT": "f32"})


def test_auto_chooses_among_the_devices_of_the_run_alone() -> None:
    found = list_baselines(halves(), {"CPU": CPU}, "latency")
    assert [(v.target, v.devices) for v in found if v.name == "AUTO"] == [("AUTO:CPU_A,CPU_B", halves())]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_single_device_leaves_auto_and_hetero_no_choice(objective: str) -> None:
    assert all(v.single for v in list_baselines(halves()[:1], {"CPU": CPU}, objective))


def test_auto_prefers_accelerators_and_the_rows_of_the_paper_the_cpu_or_the_gpu() -> None:
    plugins = PLUGINS | {"NPU": replace(GPU, name="NPU")}
    devices = parse_devices(["NPU,CPU,B=GPU.1,GPU.0"], plugins)
    rows = {
        v.name: (v.target, [d.name for d in v.devices])
        for v in list_baselines(devices, plugins, "latency")
        if not v.single
    }
    assert rows == {
        "AUTO": ("AUTO:GPU_B,GPU.0,NPU,CPU", ["B", "GPU.0", "NPU", "CPU"]),
        "OpenVINO-CPU": ("AUTO:CPU,GPU_B,GPU.0", ["CPU", "B", "GPU.0"]),
        "OpenVINO-GPU": ("AUTO:GPU_B,GPU.0,CPU", ["B", "GPU.0", "CPU"]),
        "HETERO default": ("HETERO:NPU,CPU,GPU_B,GPU.0", ["NPU", "CPU", "B", "GPU.0"]),
    }


def test_auto_runs_on_the_first_device_with_its_own_properties(tmp_path: Path) -> None:
    model, _ = write(two_towers(), tmp_path)
    (auto,) = (v for v in list_baselines(two_cpus()[::-1], discover_plugins(), "latency") if v.name == "AUTO")
    child, loaded = start_child(auto, model, MeasureSettings(), seed=0)
    with child:
        assert child.ask("run", seconds=0.0, minimum=3, realtime=False)["samples_s"]
        expected = reference_outputs(model, MeasureSettings(), seed=0)
        found = check_outputs(auto, loaded, child, expected, MeasureSettings())
        assert not isinstance(found, MeasurementFailed)
        assert found.exact
    assert executed_names(auto, loaded["executed_on"]) == ("B",)
    assert loaded["threads"] == {"CPU_B": 1}
    assert loaded["precisions"] == {"CPU_B": "f32"}


def test_baselines_have_distinct_names_and_device_names() -> None:
    found = list_baselines(halves(), {"CPU": CPU}, "throughput")
    assert len({v.name for v in found}) == len(found)
    assert all("CPU" in d.openvino_name and "." not in d.openvino_name for v in found for d in v.devices)


def test_the_reference_is_the_cpu_in_f32() -> None:
    reference = reference_variant()
    assert reference.target == "CPU"
    assert reference.devices[0].properties["INFERENCE_PRECISION_HINT"] == "f32"
