"""Whether variants of different names are one: a plug-in that reports the same of both runs both in the same way."""

from __future__ import annotations

from dataclasses import replace

from runtime.measuring.contest.variant import Variant
from runtime.measuring.process.answers import LoadAnswer

# What a plug-in reports that decides nothing: names, counters, and the hints that it has made settings of.
WITHOUT_EFFECT = frozenset(
    {
        *("NETWORK_NAME", "EXECUTION_DEVICES", "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "PERF_COUNT", "LOG_LEVEL"),
        *("PERFORMANCE_HINT_NUM_REQUESTS", "LOADED_FROM_CACHE", "CACHE_DIR", "CACHE_MODE", "RUNTIME_REQUIREMENTS"),
    }
)
HINTS = frozenset({"PERFORMANCE_HINT"})  # what a CPU makes of one are threads and streams, which it reports


def variant_likeness(variant: Variant, loaded: LoadAnswer) -> str:
    """Return a digest that two variants share if one plug-in runs both with equal settings and requests.

    "" for variants of which no single plug-in tells that: splits, AUTO.
    """
    reported = loaded.get("reported")
    if not reported or not variant.single or variant.affinity is not None or len(variant.devices) != 1:
        return ""
    (device,) = variant.devices
    without = WITHOUT_EFFECT | (HINTS if device.kind == "cpu" else frozenset())
    asked = {**device.properties, **variant.properties, **reported}  # what is not reported is told by what was asked
    told = {key: value for key, value in asked.items() if key not in without}
    plain = replace(device, name=device.plugin, openvino_name=device.plugin, properties=told)
    return replace(variant, target=device.plugin, devices=(plain,), properties={}, requests=loaded["requests"]).identity
