"""METIS parts as groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coarsen.heavy_edge import HeavyEdge
from pipeline.core.graph import Graph, Grouping
from pipeline.core.params import param
from pipeline.shared.partition import (
    check_node_cost,
    check_parts,
    has_metis,
    make_acyclic,
    metis_parts,
    node_costs,
    tell_once,
)


@dataclass(frozen=True, slots=True)
class Metis:
    """Partitions the graph into parts of about equal cost that exchange few bytes.

    METIS does not know directions: its parts may feed one another in a cycle. `acyclic` cuts them where they do, so
    that there can be several times more groups than parts; coarsen.heavy_edge is acyclic and keeps the number. Where
    pymetis is not installed, as on Windows, heavy_edge takes its place, with its own balance, and a warning says so.

    Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, 1998.
    """

    version: ClassVar[int] = 1

    parts: int = param(32, "number of parts; METIS may leave some of them empty")
    balance: float = param(1.05, "most cost of a part, relative to the mean")
    acyclic: bool = param(False, "cut parts whose quotient graph has a cycle")
    weight: Literal["flops", "bytes", "count"] = param(
        "flops", "what is balanced: flops, bytes (weights and outputs) or count"
    )

    def __post_init__(self) -> None:
        check_parts(self.parts, self.balance)
        check_node_cost(self.weight)

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return the parts, cut where `acyclic` asks for it."""
        if not has_metis():
            tell_once("pymetis is not installed: using coarsen.heavy_edge instead of coarsen.metis.")
            return HeavyEdge(self.parts, acyclic=self.acyclic, weight=self.weight).coarsen(graph, seed=seed)
        parts = metis_parts(
            graph,
            self.parts,
            node_weight=node_costs(graph, self.weight),
            edge_weight=graph.edge_bytes,
            balance=self.balance,
            seed=seed,
        )
        return make_acyclic(graph, Grouping(parts)) if self.acyclic else Grouping(parts)
