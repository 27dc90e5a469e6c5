"""What learns: encoders and groupers, what a placer that learns is given, and where it leaves what it has learned.

embed      features -> embedding, and the encoder that made it     Embedder -> Encoder
group      embedding -> Grouping, and how likely it was            Grouper -> GroupModel
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Float32, frozen
from pipeline.core.graph import Graph, Grouping

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """What the embed stage leaves behind.

    nodes: float32 [n, h]. weights: the encoder's parameters, name -> float32 array; empty if it has none.
    """

    nodes: Float32
    weights: Mapping[str, Float32]


class Encoder(Protocol):
    """A torch module from node features to node embeddings."""

    def __call__(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return float32 [n, h] from features float32 [n, f] and edges int64 [2, m], producer above consumer.

        Permutation equivariant; finite; the gradient reaches every parameter.
        """

    @property
    def module(self) -> nn.Module:
        """Return the module that holds the parameters."""

    @property
    def width(self) -> int:
        """Return h."""


class Embedder(Protocol):
    """Builds encoders, and trains one on the graph alone."""

    version: ClassVar[int]

    def encoder(self, features: int, *, seed: int) -> Encoder:
        """Return a fresh encoder for rows of `features` numbers, its parameters drawn from `seed`."""

    def embed(self, features: Float32, graph: Graph, *, seed: int) -> Embedding:
        """Return embeddings of float32 [n, f], after self-supervised training if the implementation has any."""


class GroupSample(NamedTuple):
    """One draw of a grouping.

    choice: int64, the draw itself, from which `GroupModel.log_prob` finds its probability again; [0] where nothing
    was drawn.
    log_prob, entropy: scalar tensors; 0 where the grouping is not random.
    """

    grouping: Grouping
    choice: Tensor
    log_prob: Tensor
    entropy: Tensor


class GroupModel(Protocol):
    """A built grouper: what groups the nodes, with its learned parameters if it has any."""

    @property
    def module(self) -> nn.Module:
        """Return the module that holds the parameters; it may hold none."""

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return a draw of a grouping for embeddings float32 [n, h]; with `greedy` the most likely one."""

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return r independent draws for embeddings float32 [n, h]."""

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return the scalar log-probability of a draw, at most 0, equal to the one `group` gave with it."""


class Grouper(Protocol):
    """Merges nodes into groups that are placed as one."""

    version: ClassVar[int]

    def build(self, width: int, *, seed: int) -> GroupModel:
        """Return a fresh model for embeddings of `width` numbers, its parameters drawn from `seed`."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Numbers that outlive a process: arrays by name, and facts that JSON can hold."""

    arrays: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays whose names begin with a prefix, by what follows it."""
        return {name.removeprefix(prefix): values for name, values in self.arrays.items() if name.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays under names that begin with a prefix; see `Snapshot.part`."""
    return {prefix + name: values for name, values in arrays.items()}


class Checkpointer(Protocol):
    """Where a placer that learns leaves what it has learned.

    `save` replaces what was saved before, whole or not at all; a process killed at any point finds by `load` the last
    snapshot that was saved whole. `publish` leaves the policy itself, for other graphs.
    """

    def load(self) -> Snapshot | None:
        """Return what was saved last for the same search; None if nothing was."""

    def save(self, state: Snapshot) -> None:
        """Keep the state of a search that goes on."""

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy that may be loaded for another graph."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """What the embed and group stages hand to a placer that learns.

    features: float32 [n, f], one row per node of the problem's graph.
    embedder, grouper: the implementations in use; a placer builds fresh modules from them and fills in the weights.
    encoder_weights, grouper_weights: parameter name -> float32 array, as the two stages left them.
    learned: a policy published before, perhaps on another graph, to begin with; None begins from scratch.
    checkpointer: where the state of the search is kept; None keeps nothing.
    """

    features: Float32
    embedder: Embedder
    grouper: Grouper
    encoder_weights: Mapping[str, Float32] = field(default_factory=dict)
    grouper_weights: Mapping[str, Float32] = field(default_factory=dict)
    learned: Snapshot | None = None
    checkpointer: Checkpointer | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", frozen(self.features, np.float32, (None, None), "features"))
