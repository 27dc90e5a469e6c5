"""The policy of GDP: a graph encoder, attention in segments, gates of superposition, and a softmax per node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.core.arrays import Float32
from pipeline.core.learning import Encoder, PolicyInputs
from pipeline.shared.torch_tools import load_weights, torch_seeded
from policy.place.published.gdp.sequence import SequenceBatch


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSegments:
    """The n nodes of one or several sequences below one another, cut into s segments of l nodes.

    own: int64 [s, l], the nodes of each segment; where there is none, any. before: int64 [s, m], the m nodes before
    it in its own sequence, its memory. seen: bool [s, m + l], which of both there are. slot: int64 [n], where each node
    stands in `own`, its rows one after another. owner: int64 [n], the sequence of each node. sizes: nodes of each.
    """

    own: Tensor
    before: Tensor
    seen: Tensor
    slot: Tensor
    owner: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], *, length: int, memory: int) -> AttentionSegments:
        """Return the segments of sequences, of at most `length` nodes, each of which remembers `memory` nodes.

        >>> AttentionSegments.of([5], length=2, memory=1).before.tolist()
        [[0], [1], [3]]
        >>> AttentionSegments.of([5], length=2, memory=1).seen.tolist()[0]
        [False, True, True]
        """
        most = max(sizes, default=0)
        length = max(1, min(length, most))
        memory = min(memory, (max(most - 1, 0) // length) * length)  # what lies before the last segment at most
        own, before, seen, slot, rows, first = [], [], [], [], 0, 0
        for size in sizes:
            begin = np.arange(0, size, length)[:, None]
            mine, past = begin + np.arange(length), begin - memory + np.arange(memory)
            there = mine < size
            own.append(np.where(there, mine, 0) + first)
            before.append(np.maximum(past, 0) + first)
            seen.append(np.concatenate([past >= 0, there], axis=1))
            slot.append(np.flatnonzero(there) + rows)
            rows, first = rows + there.size, first + size
        owner = np.repeat(np.arange(len(sizes)), sizes)
        stacked = [torch.from_numpy(np.concatenate(part)) for part in (own, before, seen, slot)]
        return cls(stacked[0], stacked[1], stacked[2], stacked[3], torch.from_numpy(owner), tuple(sizes))


LEAST_VARIANCE = 1e-6  # of a column over the nodes, below which it tells nothing


@dataclass(frozen=True, slots=True)
class PlacerDesign:
    """The sizes of a policy.

    width: numbers per node. layers, heads, inner: of attention, and the hidden width of the network behind it. segment,
    memory: nodes that attend to one another, and nodes before them that they remember. devices: of the softmax.
    gate: "node" or "graph": which superposition; "none". standardise: whether embeddings are, over a graph's nodes.
    """

    width: int
    layers: int
    heads: int
    inner: int
    segment: int
    memory: int
    devices: int
    gate: Literal["node", "graph", "none"]
    standardise: bool


class SegmentAttention(nn.Module):
    """Attention of each segment to itself and to its memory, without positions.

        Q = X_s W_q;  K, V = [SG(M_s); X_s] W_k, W_v;  Y = softmax(Q K^T / sqrt(h)) V W_o

    M_s: what the nodes before the segment brought into this layer. No gradient goes into it (SG), so none crosses
    segments; forward, one layer carries news one memory further. As M_s is the input of the layer, not its output, all
    segments are computed at once.

    Source: Dai et al., "Transformer-XL", ACL 2019, section 3.2, without its positions and its causal mask, as in Zhou
    et al., GDP, 2019.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, at: AttentionSegments, gate: Tensor | None) -> Tensor:
        """Return float32 [n, width] from inputs float32 [n, width], gated already; gate: of the last dense layer."""
        query = self._by_head(self.query(x)[at.own])
        key, value = (self._by_head(self._remembered(layer, x, at)) for layer in (self.key, self.value))
        heard = functional.scaled_dot_product_attention(query, key, value, attn_mask=at.seen[:, None, None])
        flat = heard.transpose(1, 2).reshape(-1, x.shape[1])  # [s * l, width]
        out: Tensor = self.out(gated(flat[at.slot], gate))
        return out

    def _remembered(self, layer: nn.Module, x: Tensor, at: AttentionSegments) -> Tensor:
        """Return float32 [s, m + l, width], keys or values of the memory and of the segment itself."""
        own: Tensor = layer(x)[at.own]
        return own if at.before.shape[1] == 0 else torch.cat([layer(x.detach())[at.before], own], dim=1)

    def _by_head(self, x: Tensor) -> Tensor:
        """Return float32 [s, heads, l, width / heads] from float32 [s, l, width]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class PlacerBlock(nn.Module):
    """X' = LN(X + attention(X)),  X'' = LN(X' + B ReLU(A X')); every dense layer's input may be gated."""

    def __init__(self, design: PlacerDesign) -> None:
        super().__init__()
        self.attention = SegmentAttention(design.width, design.heads)
        self.grow, self.shrink = nn.Linear(design.width, design.inner), nn.Linear(design.inner, design.width)
        self.heard, self.thought = nn.LayerNorm(design.width), nn.LayerNorm(design.width)

    def forward(self, x: Tensor, at: AttentionSegments, gate: Tensor | None) -> Tensor:
        """Return float32 [n, width] from float32 [n, width]; gate: float32 [n, width], or None for none."""
        x = self.heard(x + self.attention(gated(x, gate), at, gate))
        inner = torch.relu(self.grow(gated(x, gate)))
        out: Tensor = self.thought(x + self.shrink(gated(inner, gate)))
        return out


def gated(x: Tensor, gate: Tensor | None) -> Tensor:
    """Return float32 [n, w] times a gate float32 [n, width], repeated where w is a multiple of the width."""
    return x if gate is None else x * gate.repeat(1, x.shape[1] // gate.shape[1])


class NodeGate(nn.Module):
    """2 sigmoid(W block(x)): a gate per node, from one more block; 1 before anything is learned.

    Source: Zhou et al., GDP, 2019: x^(l+1) = g^(l)(c(x^(0)) * x^(l)); after Cheung et al., "Superposition of many
    models into one", NeurIPS 2019.
    """

    def __init__(self, design: PlacerDesign) -> None:
        super().__init__()
        self.block, self.last = PlacerBlock(design), _zeros(design.width)

    def forward(self, x: Tensor, at: AttentionSegments) -> Tensor:
        """Return float32 [n, width] from embeddings float32 [n, width]."""
        return 2 * torch.sigmoid(self.last(self.block(x, at, None)))


class GraphGate(nn.Module):
    """2 sigmoid(W mean of x): one gate for all nodes of a graph; 1 before anything is learned.

    Source: Zhou et al., "Transferable graph optimizers for ML compilers" (GO), NeurIPS 2020, section 4.3, as its public
    re-implementations read it.
    """

    def __init__(self, design: PlacerDesign) -> None:
        super().__init__()
        self.last = _zeros(design.width)

    def forward(self, x: Tensor, at: AttentionSegments) -> Tensor:
        """Return float32 [n, width] from embeddings float32 [n, width]."""
        return (2 * torch.sigmoid(self.last(mean_of(x, at))))[at.owner]


def standardised(x: Tensor, at: AttentionSegments) -> Tensor:
    """Return float32 [n, width], each column less its mean over a graph's nodes, over its standard deviation there.

    What all nodes have in common otherwise hides what tells them apart, and they begin by going to one device together.
    """
    mean = mean_of(x, at)
    deviation = (mean_of((x - mean[at.owner]) ** 2, at) + LEAST_VARIANCE).sqrt()
    return (x - mean[at.owner]) / deviation[at.owner]


def mean_of(x: Tensor, at: AttentionSegments) -> Tensor:
    """Return float32 [graphs, width], the mean over the nodes of each graph."""
    size = torch.tensor(at.sizes, dtype=x.dtype)[:, None]
    return x.new_zeros(len(at.sizes), x.shape[1]).index_add(0, at.owner, x) / size


def _zeros(width: int) -> nn.Linear:
    """Return a layer that answers 0 to everything until it has learned."""
    layer = nn.Linear(width, width)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class SingleShotPolicy(nn.Module):
    """A device for every node at once: softmax over devices of what encoder and attention make of the graph."""

    def __init__(self, inputs: PolicyInputs, design: PlacerDesign, *, seed: int) -> None:
        super().__init__()
        self.design = design
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        self.encoder: Encoder = inputs.embedder.encoder(inputs.features.shape[1], seed=seeds[0])
        load_weights(self.encoder.module, inputs.encoder_weights)
        self.encoder_module = self.encoder.module  # under this name parameters() finds it
        same = self.encoder.width == design.width
        with torch_seeded(seeds[1]):
            self.enter = nn.Identity() if same else nn.Linear(self.encoder.width, design.width)
            self.blocks = nn.ModuleList(PlacerBlock(design) for _ in range(design.layers))
            self.head = nn.Linear(design.width, design.devices)
            nn.init.xavier_normal_(self.head.weight)  # like nodes lean alike at first, so that draws cut less
            nn.init.zeros_(self.head.bias)
            gates = {"node": NodeGate, "graph": GraphGate}
            self.gate = gates[design.gate](design) if design.gate in gates else None

    def segments(self, sizes: tuple[int, ...]) -> AttentionSegments:
        """Return how sequences of these sizes are attended to."""
        return AttentionSegments.of(sizes, length=self.design.segment, memory=self.design.memory)

    def log_p(self, batch: SequenceBatch) -> list[Tensor]:
        """Return for each graph float32 [k, p], log-probabilities of its nodes' devices; -inf where not allowed."""
        at = self.segments(tuple(sequence.k for sequence in batch.sequences))
        scores = self.scores(self.enter(self.encoder(batch.features, batch.edges)), at)
        log_ps, first = [], 0
        for sequence in batch.sequences:
            mine = scores[first : first + sequence.k, : sequence.p]
            log_ps.append(torch.log_softmax(mine.masked_fill(~sequence.allowed, -torch.inf), dim=1))
            first += sequence.k
        return log_ps

    def scores(self, x: Tensor, at: AttentionSegments) -> Tensor:
        """Return float32 [n, devices] from embeddings float32 [n, width]."""
        gate = None if self.gate is None else self.gate(x, at)
        x = standardised(x, at) if self.design.standardise else x
        for block in self.blocks:
            x = block(x, at, gate)
        out: Tensor = self.head(gated(x, gate))
        return out

    def load(self, weights: Mapping[str, Float32]) -> None:
        """Take over parameters.

        Raises:
            UsageError: they are of another kind of policy.
        """
        load_weights(self, weights)
