"""A process that tells what a worker of a fleet is.

in   {"mark": path, "text": what stands in that file of the store}
out  {"node", "fingerprint", "versions", "environment", "store", "clock_s"}; store: its own if it sees no mark
in   {"devices": as the command line writes them}
out  {"machine": ...}
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.errors import list_some
from pipeline.result.result import read_versions
from pipeline.stages.host import HostMachine, look_at_machine
from pipeline.store.store import Store, default_store
from pipeline.system.workers import Begin, ignore_step, serve_commands

MUST_AGREE = ("placewright", "openvino")  # what they make is filed under keys that were computed elsewhere
CLOCK_S = 5.0  # by which clocks may differ unsaid: entries of the store are swept by their age
# Set by Dask for the processes it starts, unless told otherwise; they change how long inferences take.
ENVIRONMENT = ("MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def describe_machine(command: Mapping[str, Any], _: Begin = ignore_step) -> dict[str, Any]:
    """Return the machine with the devices asked for.

    Raises:
        PlacewrightError: a device is not there, or not written as it should be.
    """
    return {"machine": asdict(look_at_machine(command["devices"]))}


def describe_worker(command: Mapping[str, Any], _: Begin = ignore_step) -> dict[str, Any]:
    """Return what the worker is.

    Raises:
        StoreError: it sees no mark, and can write no store of its own.
    """
    from runtime.machines.devices import discover_plugins, hardware_facts, hardware_fingerprint

    mark = Path(command["mark"])
    own = ""
    if not (mark.is_file() and mark.read_text(encoding="ascii") == command["text"]):
        store = Store(default_store())  # which may be moved by an environment variable of this worker
        store.prepare()
        own = str(store.root)
    return {"fingerprint": hardware_fingerprint(hardware_facts(discover_plugins())), "store": own, **read_traits()}


def read_traits() -> dict[str, Any]:
    """Return what the workers of a fleet should have in common, but for the node, and the clock."""
    return {
        "node": platform.node(),
        "versions": {"python": platform.python_version(), **read_versions()},
        "environment": {name: os.environ.get(name, "") for name in ENVIRONMENT},
        "clock_s": time.time(),
    }


def read_machine(document: Mapping[str, Any]) -> HostMachine:
    """Return a machine that was written as JSON."""
    return HostMachine(
        devices=tuple(document["devices"]),
        facts=document["facts"],
        fingerprint=document["fingerprint"],
        low=tuple((plugin, precision) for plugin, precision in document["low"]),
        spare=tuple((plugin, precision) for plugin, precision in document.get("spare", ())),
        open_names=tuple(document["open_names"]),
        halves=document.get("halves", False),
        whole=tuple(document.get("whole", ())),
    )


def explain_refusal(told: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return why a worker cannot be used, "" if it can. own: the traits of the process that asks."""
    if "error" in told:
        return f"it cannot tell what it is: {told['error']['cause']}"
    other = compare_versions({k: told["versions"].get(k) for k in MUST_AGREE}, own["versions"])
    return f"it has {list_some(other)}" if other else ""


def compare_traits(told: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return what of a worker differs and may do so."""
    differing = compare_versions(told["versions"], own["versions"])
    differing += [f"{k}={v}" for k, v in told["environment"].items() if v != own["environment"].get(k, "")]
    ahead_s = told["clock_s"] - own["clock_s"]
    if abs(ahead_s) > CLOCK_S:
        differing.append(f"a clock {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}")
    return differing


def compare_versions(told: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return in words which versions differ, of what both have."""
    return [f"{name} {value}, not {own[name]}" for name, value in told.items() if name in own and value != own[name]]


if __name__ == "__main__":
    serve_commands({"mark": describe_worker, "devices": describe_machine})
