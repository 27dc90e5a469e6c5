"""A graph to be placed without the hardware at hand: operations with what is known of their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from pipeline.core.arrays import Float64, Int32, frozen, frozen_indices
from pipeline.core.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Tags:
    """Where each of n operations stands in the network, as its author sees it: for people and for rules of thumb.

    layer, step: int32 [n], layer and time step; -1 where there is none.
    """

    layer: Int32
    step: Int32

    def __post_init__(self) -> None:
        upper = np.iinfo(np.int32).max
        for name in ("layer", "step"):
            object.__setattr__(self, name, frozen_indices(getattr(self, name), (None,), upper, name, lower=-1))
        if self.layer.shape != self.step.shape:
            raise ValueError("layer and step must be of one length")

    @classmethod
    def none(cls, n: int) -> Tags:
        """Return tags that say nothing."""
        return cls(np.full(n, -1), np.full(n, -1))


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A graph and what its source knows of times.

    times: device name, device kind ("cpu", "gpu", ...) or "*" -> float64 [n], seconds per operation, inf where it is
    not supported; the first that fits a device counts, in this order. Empty: only a cost model can tell.
    link_bytes_per_s: the bandwidth that the source's transfer times were made with; 0 for none. Presets of
    topologies take it in place of their own.
    memory_bytes: what one device holds according to the source; 0 for unknown. topology: the preset that the source
    asks for; "" for none.
    """

    graph: Graph
    tags: Tags
    times: Mapping[str, Float64] = field(default_factory=dict)
    link_bytes_per_s: float = 0.0
    memory_bytes: int = 0
    topology: str = ""

    def __post_init__(self) -> None:
        n = self.graph.n
        times = {kind: frozen(t, np.float64, (n,), f"times[{kind!r}]") for kind, t in self.times.items()}
        for kind, t in times.items():
            if np.any(np.isnan(t)) or np.any(t < 0):
                raise ValueError(f"times[{kind!r}] must not be NaN or negative")
        object.__setattr__(self, "times", MappingProxyType(times))
        if self.tags.layer.size != n:
            raise ValueError(f"tags of {self.tags.layer.size} operations do not fit a graph of {n}")
