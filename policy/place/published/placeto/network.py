"""Placeto's network: messages along and against the edges, pools around the node in hand, and a head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policy.place.published.placeto.nodes import Hearing, Network, NodeGraph

FIXED = 5  # numbers of a node beside its bytes and device: time, bytes put out, times placed, in hand, start


class _Heard(torch.autograd.Function):
    """What nodes hear: a sparse matrix times messages, float32 [s, width]."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, hearing: Hearing) -> Tensor:
        ctx.hearing = hearing
        return torch.from_numpy(hearing.sums @ messages.detach().numpy())

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return torch.from_numpy(ctx.hearing.back @ slopes[0].contiguous().numpy()), None


class MessageLayers(nn.Module):
    """s perceptrons of equal sizes, with ReLU behind each layer, or behind all but the last.

    What goes in and comes out has one number more than it needs, which is always 1, so that a layer is one product of
    matrices: for rows of ten numbers, adding biases apart takes longer than multiplying.
    """

    def __init__(self, s: int, *widths: int, cut: bool = True) -> None:
        super().__init__()
        self.cut = cut
        pairs = list(itertools.pairwise(widths))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(s, cols, rows)) for cols, rows in pairs)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(s, 1, rows)) for _, rows in pairs)
        for weight in self.weights:
            for matrix in weight:
                nn.init.xavier_uniform_(matrix)

    def matrices(self) -> list[Tensor]:
        """Return float32 [s, cols + 1, rows + 1] per layer: weights above biases, and a column that hands on the 1."""
        found = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            last = weight.new_zeros(weight.shape[0], weight.shape[1] + 1, 1)
            last[:, -1] = 1.0
            found.append(torch.cat([torch.cat([weight, bias], dim=1), last], dim=2))
        return found

    def through(self, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Return what layers make of rows, [s, r, cols + 1] by [s, cols + 1, rows + 1]."""
        for i, matrix in enumerate(matrices):
            x = torch.bmm(x, matrix)
            if self.cut or i < len(matrices) - 1:
                x = x.relu_()
        return x


class PlacetoNetwork(nn.Module):
    """Scores devices for the node in hand, of many placements of one graph at a time.

        t = MLP(features);   x_u <- t_u + g(sum of f(x_w) over neighbours w of u), in both directions
        logits = MLP([sums g_i(sum of f_i(x_u) over pool i);  x_v]),  pools: nodes before v, behind v, neither

    Widths follow the number of features d: perceptrons of messages are d -> d -> d, those of pools 2d -> 2d -> 2d with
    ReLU behind each layer, the nodes' own is d -> d -> d -> d, the head 8d -> 16d -> 8d -> p. g counts as 0 where there
    is nobody to hear. "gnn" is an ablation: messages know no direction, and all other nodes are one pool.

    Source: the code published with Addanki et al., Placeto, NeurIPS 2019; with d = 8 and p = 2 it has 20,762
    parameters. Weights are Glorot's, biases 0.
    """

    def __init__(self, network: Network, *, devices: int, rounds: int, memory: bool) -> None:
        super().__init__()
        self.directions, self.pools = (2, 3) if network == "placeto" else (1, 1)
        self.network, self.rounds, self.memory, self.devices = network, rounds, memory, devices
        d = self.features = FIXED + memory + devices
        wide = self.directions * d
        seen = (self.pools + 1) * wide
        self.own = MessageLayers(1, d, d, d, d, cut=False)
        self.f, self.g = MessageLayers(self.directions, d, d, d), MessageLayers(self.directions, d, d, d)
        self.pool_f, self.pool_g = (
            MessageLayers(self.pools, wide, wide, wide),
            MessageLayers(self.pools, wide, wide, wide),
        )
        self.head = _perceptron(seen, 2 * seen, seen, devices)

    def forward(self, graph: NodeGraph, x: Tensor, nodes: Sequence[int]) -> Tensor:
        """Return float32 [c, w, p], scores of node nodes[i] in w placements, for each i of c.

        x: float32 [n, c, w, d + 1], features and a 1.
        """
        n, c, w, more = x.shape
        own = self.own.through(x.view(1, n * c * w, more), self.own.matrices())
        states = self._passed(graph, own) if self.rounds else self._swept(graph, own[0])
        by_step = states.view(self.directions, n, c, w, more)[..., :-1].permute(2, 1, 3, 0, 4)
        seen = torch.cat([by_step.reshape(c, n, w, -1), x.new_ones(c, n, w, 1)], dim=3)
        pools = self.pool_f.matrices(), self.pool_g.matrices()
        return torch.stack([self._read(graph, one, v, *pools) for one, v in zip(seen.unbind(), nodes, strict=True)])

    def _passed(self, graph: NodeGraph, own: Tensor) -> Tensor:
        """Return float32 [directions, n r, d + 1], states after the rounds of messages; own: [1, n r, d + 1]."""
        states = own = own.expand(self.directions, -1, -1).contiguous()
        r = own.shape[1] // graph.n
        counted = torch.from_numpy(graph.heard).repeat_interleave(r, dim=1)[:, :, None].repeat(1, 1, own.shape[2])
        counted[:, :, -1] = 0.0
        f, g = self.f.matrices(), self.g.matrices()
        for _ in range(self.rounds):
            messages = self.f.through(states, f).view(self.directions * graph.n, -1)
            heard = _Heard.apply(messages, graph.all).view_as(own)  # type: ignore[no-untyped-call]
            heard[:, :, -1] = 1.0
            states = torch.addcmul(own, self.g.through(heard, g), counted)
        return states

    def _swept(self, graph: NodeGraph, own: Tensor) -> Tensor:
        """Return the same after one sweep: every node hears its neighbours' last states; own: [n r, d + 1]."""
        f, g = self.f.matrices(), self.g.matrices()
        parts = [
            self._swept_one(graph, own.view(graph.n, -1), i, [m[i : i + 1] for m in f], [m[i : i + 1] for m in g])
            for i in range(self.directions)
        ]
        return torch.stack(parts)

    def _swept_one(self, graph: NodeGraph, own: Tensor, i: int, f: Sequence[Tensor], g: Sequence[Tensor]) -> Tensor:
        """Return [n r, d + 1], the states of direction i; own: [n, r (d + 1)]."""
        more, spans = self.features + 1, list(itertools.pairwise(graph.level_ptr.tolist()))
        states: list[Tensor] = []
        messages: list[Tensor] = []  # of the depths done, in the order of the nodes
        for (lo, hi), hearing in zip(reversed(spans) if i else spans, graph.levels[i], strict=True):
            state = own[lo:hi]
            if messages:
                heard = _Heard.apply(torch.cat(messages), hearing).view(1, -1, more)  # type: ignore[no-untyped-call]
                heard[:, :, -1] = 1.0
                counted = torch.from_numpy(graph.heard[i, lo:hi, None, None]).repeat(1, 1, more)
                counted[:, :, -1] = 0.0
                update = self.g.through(heard, g).view(hi - lo, -1, more)
                state = (state.view(hi - lo, -1, more) + update * counted).view(hi - lo, -1)
            message = self.f.through(state.reshape(1, -1, more), f).view_as(state)
            at = 0 if i else len(states)
            states.insert(at, state)
            messages.insert(at, message)
        return torch.cat(states).view(-1, more)

    def _read(self, graph: NodeGraph, states: Tensor, v: int, f: Sequence[Tensor], g: Sequence[Tensor]) -> Tensor:
        """Return float32 [w, p], scores of node v from states [n, w, wide + 1]."""
        pools, (_, w, more) = graph.pools(v), states.shape
        if self.pools == 1:
            pools = (np.concatenate(pools),)
        parts = []
        for i, nodes in enumerate(pools):
            if not nodes.size:
                parts.append(states.new_zeros(w, more - 1))
                continue
            members = states.index_select(0, torch.from_numpy(nodes)).view(1, -1, more)
            total = self.pool_f.through(members, [m[i : i + 1] for m in f]).view(-1, w, more).sum(dim=0)
            total = torch.cat([total[:, :-1], total.new_ones(w, 1)], dim=1)[None]
            parts.append(self.pool_g.through(total, [m[i : i + 1] for m in g])[0, :, :-1])
        found: Tensor = self.head(torch.cat([*parts, states[v, :, :-1]], dim=1))
        return found


def _perceptron(*widths: int) -> nn.Sequential:
    """Return layers with ReLU between them."""
    layers: list[nn.Module] = []
    for cols, rows in itertools.pairwise(widths):
        layer = nn.Linear(cols, rows)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
