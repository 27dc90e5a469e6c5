"""The compiled loops behind `hierarchy`: merging clusters along expensive edges, and the quotient of an undirected
graph.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled

LIGHT = 0.02  # share of the limit of work below which a node may join any cluster: leaves, reshapes
CROWD = 4  # nodes of a cluster that is still joined by what is not light, so that no cluster outgrows its level
KIN = 3.0  # how much more an edge within a layer counts


class Neighbours(NamedTuple):
    """An undirected graph: node i and neighbour[ptr[i]:ptr[i + 1]] share tensors that take transfer_s to send."""

    ptr: Int64
    neighbour: Int32
    transfer_s: Float64


class MatchingWeights(NamedTuple):
    """What nodes weigh: seconds, bytes, bool [k, p] where they may go, and their layer or -1."""

    work_s: Float64
    held: Int64
    allowed: Bool
    layer: Int32


@compiled
def clusters(
    graph: Neighbours, weights: MatchingWeights, order: Int64, cap_s: float, cap_bytes: int, least: int
) -> Int32:
    """Return int32 [k], the cluster that each node becomes part of; clusters are numbered by first appearance.

    Nodes are visited by `order`. One that is still alone merges with the neighbour, alone or in a small cluster, with
    the most expensive transfer for the work of both, within `cap_s` and `cap_bytes`; no more than `least` clusters are
    strived for. A node whose only neighbour's cluster is full stays alone.
    """
    k = graph.ptr.size - 1
    label = np.full(k, -1, np.int32)
    work, held, allowed = weights.work_s.copy(), weights.held.copy(), weights.allowed.copy()  # by cluster's first node
    size = np.ones(k, np.int32)
    head = np.arange(k).astype(np.int32)  # the node by which a node's cluster is known
    left = k
    floor_s = max(1e-3 * work.sum() / max(k, 1), 1e-30)
    for u in order:
        if left <= least:
            break
        if head[u] != u or size[u] > 1:
            continue
        best = -1
        best_score = 0.0
        for e in range(graph.ptr[u], graph.ptr[u + 1]):
            c = head[graph.neighbour[e]]
            if c == u or (held[u] + held[c] > cap_bytes and held[u] > 0 and held[c] > 0):
                continue
            light = work[u] <= LIGHT * cap_s and work[c] - weights.work_s[c] <= cap_s
            if not light and (size[c] >= CROWD or work[u] + work[c] > cap_s):
                continue
            both = 0
            either = 0
            for d in range(allowed.shape[1]):
                both += allowed[u, d] and allowed[c, d]
                either += allowed[u, d] or allowed[c, d]
            kin = KIN if weights.layer[u] >= 0 and weights.layer[u] == weights.layer[c] else 1.0
            score = kin * graph.transfer_s[e] * both / either / (work[u] + work[c] + floor_s)
            if both > 0 and score > best_score:
                best, best_score = c, score
        if best >= 0:
            head[u] = best
            work[best] += work[u]
            held[best] += held[u]
            size[best] += size[u]
            for d in range(allowed.shape[1]):
                allowed[best, d] = allowed[best, d] and allowed[u, d]
            left -= 1
    return _numbered(head, label)


@allocating
def _numbered(head: Int32, label: Int32) -> Int32:
    """Return the label of each node's cluster, numbered by first appearance; head[head[i]] == head[i]."""
    count = 0
    for i in range(head.size):
        if label[head[i]] < 0:
            label[head[i]] = count
            count += 1
    number = np.empty(head.size, np.int32)
    for i in range(head.size):
        number[i] = label[head[i]]
    return number


@compiled
def quotient(graph: Neighbours, label: Int32, k: int) -> Neighbours:
    """Return the undirected graph of k clusters: transfers within a cluster vanish, parallel ones add up."""
    n = label.size
    member_ptr = np.zeros(k + 1, np.int64)
    for i in range(n):
        member_ptr[label[i] + 1] += 1
    member_ptr = np.cumsum(member_ptr)
    member = np.empty(n, np.int32)
    filled = member_ptr[:-1].copy()
    for i in range(n):
        member[filled[label[i]]] = i
        filled[label[i]] += 1
    ptr = np.zeros(k + 1, np.int64)
    neighbour = np.empty(graph.neighbour.size, np.int32)
    transfer_s = np.empty(graph.neighbour.size, np.float64)
    place = np.full(k, -1, np.int64)  # where a neighbour of the cluster at hand stands
    end = 0
    for c in range(k):
        begin = end
        for m in range(member_ptr[c], member_ptr[c + 1]):
            i = member[m]
            for e in range(graph.ptr[i], graph.ptr[i + 1]):
                d = label[graph.neighbour[e]]
                if d == c:
                    continue
                if place[d] < begin:
                    place[d] = end
                    neighbour[end] = d
                    transfer_s[end] = 0.0
                    end += 1
                transfer_s[place[d]] += graph.transfer_s[e]
        ptr[c + 1] = end
    return Neighbours(ptr, neighbour[:end].copy(), transfer_s[:end].copy())
