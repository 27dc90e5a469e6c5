"""HSDAG as the code published with the paper does it, without the mistakes in its bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.core.params import param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Method, Search, policy_of
from policy.place.published.hsdag.agent import Design, ParsingAgent
from policy.place.published.hsdag.episodes import Course, learn
from policy.place.published.hsdag.network import ParsingRounds


@dataclass(frozen=True, slots=True)
class HsdagReleased(Method):
    """Learns placements on groups that it parses to a fixed point at every step.

        X = MLP(features + state)
        until no edges are left:  S = sigmoid(phi(z_v * z_u)) on Z = GCN1(X),  cluster,  X = pooled GCN2(X)
        device of a cluster ~ softmax(placer(f)),  f = MLP(X),  state_v += f of v's cluster
        after x steps: loss = - R * sum of all log p,  R = sum over k of gamma^k r_(x - k),  r = 1 / latency

    What sets it apart from the paper can be switched off, one by one: `refuse_uniform`, a placement on one device is
    not evaluated and counts as 1e10 s; `to_fixed_point`, a connected graph ends as one cluster, but for edges that
    get lost; `noisy_scores`, which lose them, because dropout scores the two directions of an edge differently;
    `shared_return`, all steps of an episode have one return as their reward. Dropout is never switched off.

    Source: the code published with Duan et al., "A structure-aware framework for learning device placements on
    computation graphs", NeurIPS 2024, in the configuration it was published with. Deliberate differences: each
    operation runs where it was placed (the original mixes up their order when it applies a placement); a placement
    seen before is not evaluated again; what fails has reward 0; learning ends after `patience` episodes without a new
    placement; devices that an operation may not use are never drawn, and clusters that no device may run are taken
    apart; types have a column for every known type, not for those of the model; nodes are numbered in a topological
    order; the input network drops activations after its first layer only and ends in one normalisation more.
    Placements on one device are among the answers all the same, because the search evaluates them before learning
    begins.
    """

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = False
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"learning_rate": 1e-9}}

    episodes: int = param(25, "updates at most", within="[1, inf)")
    steps: int = param(20, "placements drawn per update", within="[1, inf)")
    learning_rate: float = param(1e-3, "step size of Adam", within="(0, 1)")
    gamma: float = param(0.95, "discount from step to step", within="[0, 1]")
    hidden: int = param(128, "width of encoder, edge scorer and placer", within="[1, inf)")
    dropout: float = param(0.2, "share of activations dropped", within="[0, 1)")
    refuse_uniform: bool = param(True, "do not evaluate placements on one device; they count as 1e10 s")
    to_fixed_point: bool = param(True, "parse until no edges are left instead of once")
    noisy_scores: bool = param(True, "let dropout score the two directions of an edge differently")
    shared_return: bool = param(True, "credit every step of an episode with the return of the whole")
    patience: int = param(3, "stop after so many updates in a row without a placement that is new", within="[1, inf)")

    @property
    def recipe(self) -> Recipe:
        """Return the stages before, as in the published code."""
        return Recipe(
            coarsen=(("colocate", {"rule": "released"}),),
            blocks=("types", "index"),
            embed=("gcn", {"width": self.hidden, "layers": 0, "dropout": self.dropout}),
            group=("identity", {}),
        )

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the episodes or the budget end.

        Raises:
            UsageError: the problem has no policy inputs, or weights that do not fit them.
        """
        policy = policy_of(search.problem, "hsdag_released")
        rounds = ParsingRounds(
            self.to_fixed_point, self.noisy_scores, score_layers=2, pool_layers=1, dropout=self.dropout
        )
        design = Design(self.hidden, rounds, dropped_edges=0.0, state="features")
        course = Course(
            self.episodes,
            self.steps,
            1,  # its K_epochs is read and never used
            self.learning_rate,
            self.gamma,
            self.shared_return,
            self.refuse_uniform,
            self.patience,
        )
        with torch_seeded(seed):
            learn(search, ParsingAgent(search.problem, policy, design, seed=seed), course)
