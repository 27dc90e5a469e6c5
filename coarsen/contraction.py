"""Groups that good placements keep together, by a learned score of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.graph import Graph, Grouping
from pipeline.core.params import check_params, param
from pipeline.shared.contraction.edge_figures import EdgeFigures
from pipeline.shared.contraction.edge_network import edge_logits, shipped_weights
from pipeline.shared.contraction.merging import MergeLimits, contracted
from pipeline.shared.partition import check_parts, make_acyclic, node_costs


@dataclass(frozen=True, slots=True)
class Contraction:
    """Merges along the edges whose ends most probably share a device in a good placement.

    The score was learned on generated graphs; sums of log-odds over all edges between two groups decide, within a limit
    of work (`pipeline.shared.contraction`). With `acyclic`, groups that would close a cycle are cut afterwards.
    """

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False

    parts: int = param(128, "number of groups at which merging stops; more remain if no merge is allowed")
    balance: float = param(2.0, "most work of a group, relative to the mean")
    devices: int = param(4, "devices that the score is asked for", within="[1, inf)")
    acyclic: bool = param(True, "cut groups so that no cycle remains")

    def __post_init__(self) -> None:
        check_params(self)
        check_parts(self.parts, self.balance)

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return the groups."""
        score = edge_logits(shipped_weights(), EdgeFigures.of_graph(graph, devices=self.devices))
        limits = MergeLimits.balanced(node_costs(graph, "flops"), groups=self.parts, balance=self.balance)
        grouping = contracted(graph.edges.astype("int64"), score, limits)
        return make_acyclic(graph, grouping) if self.acyclic else grouping
