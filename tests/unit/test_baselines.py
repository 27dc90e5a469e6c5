"""What every placement is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.settings import MeasureSettings
from runtime.machines.devices import discover, make_spec, parse_devices
from runtime.measuring import baselines as module
from runtime.measuring.baselines import baselines, reference_variant, thread_counts
from runtime.measuring.hetero import reference_outputs
from runtime.measuring.variant import check, executed_names, start
from tests.models import two_towers
from tests.two_cpus import two_cpus, write
from tests.unit.test_devices import CPU, GPU, PLUGINS


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 3, 4, 8]), (12, [1, 2, 3, 4, 8, 12])]
)
def test_thread_counts_by_hand(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def halves() -> tuple[DeviceSpec, ...]:
    return tuple(
        make_spec(name, "CPU", {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": precision}, {"CPU": CPU})
        for name, precision in (("A", "f32"), ("B", "bf16"))
    )


def test_a_cpu_stands_with_every_thread_count_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    found = baselines(halves(), {"CPU": CPU})
    names = [v.name for v in found]
    assert names == ["A", "B", "CPU 2 threads f32", "CPU 2 threads bf16", "AUTO", "HETERO default"]
    assert [v.single for v in found] == [True] * 4 + [False] * 2
    assert all(v.baseline for v in found)
    assert found[2].devices[0].properties["INFERENCE_NUM_THREADS"] == "2"
    assert (found[4].target, found[4].devices) == ("AUTO:CPU_A,CPU_B", halves())
    assert found[5].target == "HETERO:CPU_A,CPU_B"
    assert found[5].affinity is None


def test_auto_chooses_among_the_devices_of_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    found = baselines(halves()[:1], {"CPU": replace(CPU, precisions=("f32",))})
    assert [(v.name, v.target, v.devices) for v in found[1:]] == [("AUTO", "AUTO:CPU_A", halves()[:1])]


def test_auto_prefers_accelerators_and_the_rows_of_the_paper_the_cpu_or_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    plugins = PLUGINS | {"NPU": replace(GPU, name="NPU")}
    devices = parse_devices(["NPU,CPU,B=GPU.1,GPU.0"], plugins)
    rows = {v.name: (v.target, [d.name for d in v.devices]) for v in baselines(devices, plugins) if not v.single}
    assert rows == {
        "AUTO": ("AUTO:GPU_B,GPU.0,NPU,CPU", ["B", "GPU.0", "NPU", "CPU"]),
        "OpenVINO-CPU": ("AUTO:CPU,GPU_B,GPU.0", ["CPU", "B", "GPU.0"]),
        "OpenVINO-GPU": ("AUTO:GPU_B,GPU.0,CPU", ["B", "GPU.0", "CPU"]),
        "HETERO default": ("HETERO:NPU,CPU,GPU_B,GPU.0", ["NPU", "CPU", "B", "GPU.0"]),
    }


def test_auto_runs_on_the_first_device_with_its_own_properties(tmp_path: Path) -> None:
    model, _ = write(two_towers(), tmp_path)
    (auto,) = (v for v in baselines(two_cpus()[::-1], discover()) if v.name == "AUTO")
    child, loaded = start(auto, model, MeasureSettings(), seed=0)
    with child:
        assert child.ask("run", seconds=0.0, minimum=3, realtime=False)["samples_s"]
        assert (
            check(auto, loaded, child, reference_outputs(model, MeasureSettings(), seed=0), MeasureSettings()) is None
        )
    assert executed_names(auto, loaded["executed_on"]) == ("B",)
    assert loaded["threads"] == {"CPU_B": 1}
    assert loaded["precisions"] == {"CPU_B": "f32"}


def test_baselines_have_distinct_names_and_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 12)
    found = baselines(halves(), {"CPU": CPU})
    assert len({v.name for v in found}) == len(found)
    assert all("CPU" in d.openvino_name and "." not in d.openvino_name for v in found for d in v.devices)


def test_the_reference_is_the_cpu_in_f32() -> None:
    reference = reference_variant()
    assert reference.target == "CPU"
    assert reference.devices[0].properties["INFERENCE_PRECISION_HINT"] == "f32"
