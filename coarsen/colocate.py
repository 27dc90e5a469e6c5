"""Chains become one node before learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.core.errors import UnknownNameError
from pipeline.core.graph import Graph, Grouping, components
from pipeline.core.params import param

RULES = ("paper", "released")


@dataclass(frozen=True, slots=True)
class Colocate:
    """Merges chains, the co-location that HSDAG applies before it learns.

    "paper": v_i and v_j share a set iff v_j is the only child of v_i and v_i is the only parent of v_j; chains
        collapse transitively.
    "released": a node with exactly one parent joins its parent's set, however many children that has. The sets are
        trees rooted at nodes with no parent or several. Groups are numbered by first appearance instead of by the
        last touch, which is no topological order.

    Both quotients are acyclic: every edge that enters a set enters its root, so a cycle of sets would be a cycle of
    their roots.

    Source: "A Structure-Aware Framework for Learning Device Placements on Computation Graphs", NeurIPS 2024,
    appendix G, and the code published with it; the paper's rule after Mirhoseini et al., ICML 2017.
    """

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False
    acyclic: ClassVar[bool] = True

    rule: Literal["paper", "released"] = param(
        "paper", "paper: only child and only parent; released: every node with one parent joins it"
    )

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UnknownNameError("co-location rule", self.rule, RULES)

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return the sets of the rule."""
        parent, child = graph.edges
        joins = graph.in_degree[child] == 1
        if self.rule == "paper":
            joins &= graph.out_degree[parent] == 1
        return components(graph.n, parent[joins], child[joins])
