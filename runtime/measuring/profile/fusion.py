"""Which operations the CPU runtime runs as one kernel."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.arrays import Int32
from pipeline.core.graph import Graph
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.process.child import Child
from runtime.measuring.profile.profile import kernel_labels

TIMEOUT_S = 900.0


def cpu_kernels(model: Path, graph: Graph) -> Int32:
    """Return int32 [n], the number of the CPU kernel that runs each operation; -1 where it has none of its own.

    Raises:
        ChildError: the CPU cannot compile the model.
    """
    device = reference_variant().devices[0]
    with Child(timeout_s=TIMEOUT_S) as child:
        groups = child.ask("fusion", model=str(model), device=device.to_json())["groups"]
    return kernel_labels(graph, groups)
