"""What every placement is compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.core.devices import DeviceSpec
from runtime import baselines as module
from runtime.baselines import baselines, reference_variant, thread_counts
from runtime.devices import make_spec
from tests.unit.test_devices import CPU


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
    assert found[4].properties == {}  # the devices disagree on the precision
    assert found[5].target == "HETERO:CPU_A,CPU_B"
    assert found[5].affinity is None


def test_auto_keeps_a_precision_all_devices_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    found = baselines(halves()[:1], {"CPU": replace(CPU, precisions=("f32",))})
    assert [v.name for v in found] == ["A", "AUTO"]
    assert found[1].properties == {"INFERENCE_PRECISION_HINT": "f32"}


def test_baselines_have_distinct_names_and_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 12)
    found = baselines(halves(), {"CPU": CPU})
    assert len({v.name for v in found}) == len(found)
    assert all("CPU" in d.openvino_name and "." not in d.openvino_name for v in found for d in v.devices)


def test_the_reference_is_the_cpu_in_f32() -> None:
    reference = reference_variant()
    assert reference.target == "CPU"
    assert reference.devices[0].properties["INFERENCE_PRECISION_HINT"] == "f32"
