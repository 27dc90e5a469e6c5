"""A profile that is made up, for tests that measure nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime.measuring.profile.profile
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph
from runtime.measuring.profile.profile import Profile


def make_up_profiles(patch: pytest.MonkeyPatch) -> None:
    """Let the profile stage make its figures up instead of running the devices."""

    def profile(model: Path, graph: Graph, devices: Sequence[DeviceSpec], *_: Any, **__: Any) -> Profile:
        p, names = len(devices), tuple(d.name for d in devices)
        op_s = np.full((graph.n, p), 1e-5) * (1.0 + np.arange(p))
        costs = CostTable(graph.names, names, op_s, np.full(p, 1e-6), ("given",) * p)
        topology = Topology.uniform(tuple(devices), bytes_per_s=1e9, latency_s=1e-6)
        return Profile(costs, topology, dict.fromkeys(names, 1.0), dict.fromkeys(names, 1.0), {})

    patch.setattr(runtime.measuring.profile.profile, "profile_model", profile)
    patch.setattr(runtime.measuring.profile.profile, "profile_slowdown", lambda *_, **__: {})
