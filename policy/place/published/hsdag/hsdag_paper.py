"""HSDAG as it is written: parse once, draw a device per cluster, reinforce each step by its own reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pipeline.core.errors import UnknownNameError
from pipeline.core.params import check_params, param
from pipeline.core.stages import Recipe
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Method, Search, policy_of
from policy.place.published.hsdag.agent import Design, ParsingAgent
from policy.place.published.hsdag.episodes import Course, learn
from policy.place.published.hsdag.network import ParsingRounds

BLOCKS = ("types", "degree_values", "dims", "fractal", "index_encoding")
# Table 3 of the paper: the features that each of its ablations does without.
ABLATIONS = {"": (), "shape": ("dims",), "id": ("index_encoding",), "structure": ("degree_values", "fractal")}


@dataclass(frozen=True, slots=True)
class HsdagPaper(Method):
    """Learns placements on groups that it parses again at every step.

        Z = GCN(features) + state,  S_vu = sigmoid(phi(z_v * z_u)) on the edges
        each node keeps its edge of the highest score; the clusters are what stays connected
        device of a cluster ~ softmax(placer(its features)),  state_v += features of v's cluster
        after x steps, K times: loss = - sum over i = 1 ... x of gamma^i r_i log p(P_i),  r = 1 / latency

    Chains of operations are one node before learning. Features of a node: the mean of its operations' one-hot types;
    its in-degree and out-degree, one-hot over the values that occur; the dimensions of its output, zero-padded to the
    longest; its fractal dimension; the sine encoding of its index in a topological order. Rates and sizes are those of
    table 6. The answer is the best placement seen.

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024, sections 2 and 3, appendices G and H. Where the paper leaves something open we chose: 8 columns for the
    encoding of the index, which it may also leave unencoded; the output of a chain is its last operation's, and a
    dynamic dimension is 0; degrees and fractal dimension are of the graph of chains, distances in it go either way;
    features of clusters are those of the code published with it (see `Pool`), gamma is its 0.95, and no gradient goes
    through the state. Table 6 has K_epochs = 4, of which the text, one update after x steps, says nothing, and which
    the published code never uses: here, as in the implementations of PPO that have the name, `epochs` updates follow x
    steps. Each takes log p of the same draws under the parameters that the one before it left; a draw's clusters, the
    state before it and the edges that it saw stay. There is no ratio and no clip, because the paper has none.
    Deliberate differences: types have a column for every known type, not for those of the models at hand; placements on
    one device may be drawn and are evaluated first; what fails has reward 0; a placement seen before is not evaluated
    again and costs nothing; learning ends after `patience` episodes without a new placement; devices that an operation
    may not use are never drawn, and clusters that no device may run are taken apart; an input network and a residual
    around the convolutions, as in the published code, which symmetrise the graph.
    """

    version: ClassVar[int] = 3
    keeps: ClassVar[bool] = False
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"never learns": {"learning_rate": 1e-9}}

    episodes: int = param(100, "episodes at most", within="[1, inf)")
    steps: int = param(20, "placements drawn per episode", within="[1, inf)")
    epochs: int = param(4, "updates per episode, which learn from the same draws", within="[1, inf)")
    learning_rate: float = param(1e-4, "step size of Adam", within="(0, 1)")
    gamma: float = param(0.95, "discount from step to step", within="[0, 1]")
    hidden: int = param(128, "width of encoder, edge scorer and placer", within="[1, inf)")
    dropout: float = param(0.2, "share of the edges that the encoder does not see in a step", within="[0, 1)")
    without: Literal["", "shape", "id", "structure"] = param("", "features left out: '', shape, id or structure")
    patience: int = param(3, "stop after so many updates in a row without a placement that is new", within="[1, inf)")

    def __post_init__(self) -> None:
        check_params(self)
        if self.without not in ABLATIONS:
            raise UnknownNameError("ablation", self.without, ABLATIONS)

    @property
    def recipe(self) -> Recipe:
        """Return the stages before, as in the paper."""
        return Recipe(
            coarsen=(("colocate", {"rule": "paper"}),),
            blocks=tuple(block for block in BLOCKS if block not in ABLATIONS[self.without]),
            embed=("gcn", {"width": self.hidden, "layers": 2, "dropout": 0.0}),
            group=("identity", {}),
        )

    def run(self, search: Search, *, seed: int) -> None:
        """Learn until the episodes or the budget end.

        Raises:
            UsageError: the problem has no policy inputs, or weights that do not fit them.
        """
        policy = policy_of(search.problem, "hsdag_paper")
        rounds = ParsingRounds(to_fixed_point=False, noisy_scores=False, score_layers=0, pool_layers=0, dropout=0.0)
        design = Design(self.hidden, rounds, dropped_edges=self.dropout, state="embeddings")
        course = Course(
            self.episodes,
            self.steps,
            self.epochs,
            self.learning_rate,
            self.gamma,
            shared_return=False,
            refuse_uniform=False,
            patience=self.patience,
        )
        with torch_seeded(seed):
            learn(search, ParsingAgent(search.problem, policy, design, seed=seed), course)
