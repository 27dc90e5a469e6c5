"""Variants of different names that a plug-in runs alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import openvino as ov
import pytest

from pipeline.core.devices import DeviceSpec
from runtime.measuring.contest.space import settings_variant
from runtime.measuring.contest.variant import Variant
from runtime.measuring.contest.variant_likeness import variant_likeness
from runtime.measuring.process.executable import _reported_properties
from tests.models import two_towers

THREADS, PINNING, PRECISION = "INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING", "INFERENCE_PRECISION_HINT"


def compiled(properties: Mapping[str, str]) -> tuple[Variant, dict[str, Any]]:
    """Return settings of the CPU, and what their compiled model says of itself."""
    model = ov.Core().compile_model(two_towers(), "CPU", dict(properties))
    return settings_variant("CPU", properties, 1), {"reported": _reported_properties(model), "requests": 1}


def alike(properties: Mapping[str, str]) -> str:
    return variant_likeness(*compiled(properties))  # type: ignore[arg-type]


def test_settings_that_the_plug_in_has_of_itself_make_no_other_variant() -> None:
    _, told = compiled({})
    own = {THREADS: told["reported"][THREADS], PINNING: told["reported"][PINNING]}
    assert alike({}) == alike({"PERFORMANCE_HINT": "LATENCY"}) == alike(own) != ""


@pytest.mark.parametrize("properties", [{PINNING: "NO"}, {THREADS: "1"}, {PRECISION: "f16"}, {"NUM_STREAMS": "2"}])
def test_settings_that_the_plug_in_reports_make_another_variant(properties: dict[str, str]) -> None:
    _, own = compiled({})
    _, told = compiled(properties)
    if all(told["reported"][key] == own["reported"][key] for key in properties):
        pytest.skip("this machine's plug-in has these of itself")
    assert alike(properties) != alike({})


def test_a_named_device_is_the_plug_in_it_is_an_instance_of() -> None:
    settings, told = compiled({THREADS: "1"})
    device = DeviceSpec("A", "CPU", "CPU_A", {THREADS: "1"}, "cpu")
    named = Variant("A", "baseline", "CPU_A", (device,), single=True)
    loaded: Any = told
    assert variant_likeness(named, loaded) == variant_likeness(settings, loaded) != ""


def test_requests_batches_and_what_is_not_reported_tell_variants_apart() -> None:
    settings, told = compiled({})
    loaded: Any = told
    (device,) = settings.devices
    unreported = replace(settings, devices=(replace(device, properties={"NOBODY_SAYS": "1"}),))
    others = [replace(settings, batch=4), unreported]
    digests = {variant_likeness(variant, loaded) for variant in (settings, *others)}
    assert len(digests) == 3
    assert variant_likeness(settings, {**loaded, "requests": 2}) not in digests


def test_splits_and_what_says_nothing_of_itself_are_like_nothing() -> None:
    settings, told = compiled({})
    loaded: Any = told
    assert variant_likeness(replace(settings, affinity={"a": "CPU"}), loaded) == ""
    assert variant_likeness(replace(settings, single=False), loaded) == ""
    assert variant_likeness(settings, {**loaded, "reported": {}}) == ""
