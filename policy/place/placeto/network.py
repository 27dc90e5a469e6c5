"""Placeto's network: messages along and against the edges, pools around the node in hand, and a head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policy.place.placeto.nodes import Hearing, Network, NodeGraph

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


class Stacked(nn.Module):
    """Two layers with ReLU behind each, once per direction: [directions, r, d] to the same shape."""

    def __init__(self, directions: int, d: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(directions, d, d)) for _ in range(2))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(directions, 1, d)) for _ in range(2))
        for weight in self.weights:
            for matrix in weight:
                nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor) -> Tensor:
        """Return what directions [lo, hi) make of x."""
        for bias, weight in zip(self.biases, self.weights, strict=True):
            x = torch.baddbmm(bias, x, weight).relu()
        return x

    def one(self, i: int, x: Tensor) -> Tensor:
        """Return what direction i makes of x, [r, d]."""
        for bias, weight in zip(self.biases, self.weights, strict=True):
            x = torch.addmm(bias[i], x, weight[i]).relu()
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
        self.own = _perceptron(d, d, d, d)
        self.f, self.g = Stacked(self.directions, d), Stacked(self.directions, d)
        self.pool_f, self.pool_g = Stacked(self.pools, wide), Stacked(self.pools, wide)
        self.head = _perceptron(seen, 2 * seen, seen, devices)

    def forward(self, graph: NodeGraph, x: Tensor, nodes: Sequence[int]) -> Tensor:
        """Return float32 [c, w, p], scores of node nodes[i] in w placements, for each i of c.

        x: float32 [n, c, w, d], features.
        """
        n, c, w, d = x.shape
        own = self.own(x.reshape(n * c * w, d))
        states = self._passed(graph, own) if self.rounds else self._swept(graph, own)
        seen = states.view(self.directions, n, c, w, d).permute(2, 1, 3, 0, 4).reshape(c, n, w, self.directions * d)
        return torch.stack([self._read(graph, one, v) for one, v in zip(seen.unbind(), nodes, strict=True)])

    def _passed(self, graph: NodeGraph, own: Tensor) -> Tensor:
        """Return float32 [directions, n r, d], states after the rounds of messages; own: [n r, d]."""
        states = own = own.expand(self.directions, -1, -1)
        rows = self.directions * graph.n
        counts = torch.from_numpy(graph.heard).repeat_interleave(own.shape[1] // graph.n, dim=1)[:, :, None]
        for _ in range(self.rounds):
            heard = _Heard.apply(self.f(states).view(rows, -1), graph.all)  # type: ignore[no-untyped-call]
            states = torch.addcmul(own, self.g(heard.view_as(own)), counts)
        return states

    def _swept(self, graph: NodeGraph, own: Tensor) -> Tensor:
        """Return the same after one sweep: every node hears its neighbours' last states."""
        return torch.stack([self._swept_one(graph, own.view(graph.n, -1), i) for i in range(self.directions)])

    def _swept_one(self, graph: NodeGraph, own: Tensor, i: int) -> Tensor:
        """Return [n r, d], the states of direction i; own: [n, r d]. Without directions, only producers are heard."""
        d, ptr = self.features, graph.level_ptr.tolist()
        spans = list(itertools.pairwise(ptr))
        states: list[Tensor] = []
        messages: list[Tensor] = []  # of the depths done, in the order of the nodes
        for (lo, hi), hearing in zip(reversed(spans) if i else spans, graph.levels[i], strict=True):
            state = own[lo:hi]
            if messages:
                heard = _Heard.apply(torch.cat(messages), hearing)  # type: ignore[no-untyped-call]
                counts = torch.from_numpy(graph.heard[i, lo:hi, None])
                state = state + self.g.one(i, heard.view(-1, d)).view_as(state) * counts
            message = self.f.one(i, state.reshape(-1, d)).view_as(state)
            at = 0 if i else len(states)
            states.insert(at, state)
            messages.insert(at, message)
        return torch.cat(states).view(-1, d)

    def _read(self, graph: NodeGraph, states: Tensor, v: int) -> Tensor:
        """Return float32 [w, p], scores of node v from states [n, w, wide]."""
        pools = graph.pools(v)
        if self.pools == 1:
            pools = (torch.cat([torch.from_numpy(nodes) for nodes in pools]).numpy(),)
        parts = []
        for i, nodes in enumerate(pools):
            w, wide = states.shape[1:]
            if not nodes.size:
                parts.append(states.new_zeros(w, wide))
                continue
            members = states.index_select(0, torch.from_numpy(nodes))
            total = self.pool_f.one(i, members.view(-1, wide)).view(nodes.size, w, wide).sum(dim=0)
            parts.append(self.pool_g.one(i, total))
        found: Tensor = self.head(torch.cat([*parts, states[v]], dim=1))
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
