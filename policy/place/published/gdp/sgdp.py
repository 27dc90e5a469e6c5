"""SGDP: the architecture of GDP, tuned, with one gate per graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from pipeline.core.params import param
from pipeline.core.stages import Recipe
from policy.place.base.search import Method, Search
from policy.place.published.gdp.gdp import Gdp


@dataclass(frozen=True, slots=True)
class Sgdp(Method):
    """Learns to place all operations at once as `gdp` does, with one gate of superposition for the whole graph.

    Rewards are compared within their batch, so that what is better than its own kind becomes likelier, and a step of
    the optimiser looks at all of an update's placements: as the network answers for all of them at once, it costs no
    more than a step on one. It imitates the best placements drawn so far as well, and
    draws warmer where it draws mostly what it has drawn before. The likeliest placement is asked
    about after every update. Clusters are layers, where operations share weights.

    Source: Zhou et al., "A single-shot generalized device placement for large dataflow graphs", IEEE Micro 40(5), 2020.
    The gate is that of GO, NeurIPS 2020, by the same authors; no other difference to GDP is known, and the tuning is
    ours: docs/methods/gdp.md.
    """

    version: ClassVar[int] = 3
    keeps: ClassVar[bool] = True
    placers: ClassVar[tuple[str, ...]] = ("gdp",)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"learning_rate": 1e-9}}

    mode: Literal["one", "zero_shot", "finetune"] = param(
        "one", "one, zero_shot or finetune; the last two need --policy"
    )
    rollouts: int = param(16, "placements drawn per update")
    epochs: int = param(4, "how often an update learns from all of them")
    learning_rate: float = param(1e-3, "step size of Adam at the start; it falls to 0 by a cosine")
    entropy_coef: float = param(0.05, "weight of the entropy bonus at the start; it falls to 0 with the budget")
    elites: int = param(4, "best placements drawn so far that every step imitates as well; 0: none")
    elite_coef: float = param(0.3, "weight of imitating them")
    warm: float = param(0.1, "by which share draws get warmer after each update that draws mostly old placements")
    width: int = param(128, "numbers per node in encoder and attention")
    standardise: bool = param(True, "standardise embeddings over the nodes of a graph before the attention")
    segment: int = param(256, "nodes that attend to one another")
    memory: int = param(256, "nodes before a segment that it attends to")
    nodes: int = param(10_000, "most nodes that are placed one by one")
    clusters: int = param(2000, "about how many clusters are made of more nodes")
    cluster_by: Literal["edges", "layers", "contraction"] = param(
        "layers",
        "edges: clusters share most; layers: they are layers, cut by time, where operations share weights; "
        "contraction: a learned score merges them",
    )
    updates: int = param(50, "updates at most in mode finetune")
    patience: int = param(20, "stop after so many updates in a row without a placement that is new")

    def __post_init__(self) -> None:
        self.tuned()

    @property
    def recipe(self) -> Recipe:
        """Return the stages before, those of `gdp`."""
        return self.tuned().recipe

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the budget or the updates end, or nothing new is drawn.

        Raises:
            UsageError: the problem has no policy inputs, or a policy that does not fit; or there is none to begin with.
        """
        self.tuned().run(search, seed=seed)

    def tuned(self) -> Gdp:
        """Return this as settings of `gdp`.

        Raises:
            UsageError: they cannot learn.
        """
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return Gdp(**own, inner=2 * self.width, minibatches=1, baseline="batch", gate="graph", greedy_every=1)
