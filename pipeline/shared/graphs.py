"""Orders and paths of graphs: one home for what several stages ask of them.

The topological order of an acyclic graph is `pipeline.core.graph.topological_order`, what undirected pairs join are
`pipeline.core.graph.components`, what lies on cycles tells `pipeline.shared.cycles`, which loads no compiled code.
"""

from __future__ import annotations

import heapq

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Graph, adjacency, row_ptr
from pipeline.shared.compiled import compiled
from pipeline.shared.heaps import new_heap, pop, push


@compiled
def least_index_first(ptr: Int64, node: Int64, waiting: Int64) -> Int64:
    """Return the operations in topological order, those on or behind cycles left out; uses `waiting` up."""
    n = ptr.size - 1
    order, done, heap = np.empty(n, np.int64), 0, new_heap(n)
    for i in range(n):
        if waiting[i] == 0:
            push(heap, 0.0, i)
    while heap.size[0] > 0:
        i = pop(heap)
        order[done] = i
        done += 1
        for e in range(ptr[i], ptr[i + 1]):
            waiting[node[e]] -= 1
            if waiting[node[e]] == 0:
                push(heap, 0.0, node[e])
    return order[:done]


def visit_order(graph: Graph) -> Int32:
    """Return int32 [n], producers before consumers as far as cycles allow.

    Where only nodes on or behind cycles are left, the one waiting for the fewest producers comes next; among equals
    the smallest index.
    """
    ptr, consumers = adjacency(graph)
    waiting = graph.in_degree.tolist()
    queue = [(count, i) for i, count in enumerate(waiting)]
    heapq.heapify(queue)
    order: list[int] = []
    visited = [False] * graph.n
    while queue:
        count, i = heapq.heappop(queue)
        if visited[i] or count != waiting[i]:
            continue  # an entry from before another producer was visited
        visited[i] = True
        order.append(i)
        for j in consumers[ptr[i] : ptr[i + 1]].tolist():
            waiting[j] -= 1
            heapq.heappush(queue, (waiting[j], j))
    return np.array(order, dtype=np.int32)


@compiled
def longest_paths(order: Int64, ptr: Int64, node: Int64, step_s: Float64, own_s: Float64) -> Float64:
    """Return float64 [n], the longest path from each node along the edges of `ptr`, its own time included.

    order: targets of edges come later. step_s: float64 [m], seconds of each edge. own_s: float64 [n].

    Source: Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, equations 2 to 5: the upward rank, along what nodes feed; the
    downward rank plus the node's own time, along what they read, in reverse order.
    """
    path_s = own_s.copy()
    for at in range(order.size - 1, -1, -1):
        i = order[at]
        best_s = 0.0
        for e in range(ptr[i], ptr[i + 1]):
            best_s = max(best_s, step_s[e] + path_s[node[e]])
        path_s[i] += best_s
    return path_s


def edge_depths(graph: Graph, *, reverse: bool = False) -> Int32:
    """Return int32 [n], the most edges on a path from any operation to each; operations on cycles have depth 0.

    reverse: follow the edges against their direction.
    """
    return breadth_first(*adjacency(graph, reverse=reverse))[1]


def forward_depths(graph: Graph) -> Int32:
    """Return int32 [n], the depths of a graph without the edges that close its cycles; `edge_depths` where it has none.

    Merging colocated operations makes cycles, as between a weight and what updates it, and behind a cycle `edge_depths`
    tells nothing apart. Left out are the edges that go back in `visit_order`.
    """
    order, depth = breadth_first(*adjacency(graph))
    if order.size == graph.n:
        return depth
    place = np.empty(graph.n, np.int64)
    place[visit_order(graph)] = np.arange(graph.n)
    source, target = graph.edges[:, place[graph.edges[0]] < place[graph.edges[1]]]
    return breadth_first(row_ptr(source, graph.n), target[np.argsort(source, kind="stable")])[1]


@compiled
def connected_count(edges: Int32, label: Int32) -> int:
    """Return how many connected components n nodes have, joined by the edges int32 [2, m] between equal labels [n]."""
    head, count = np.arange(label.size), label.size
    for e in range(edges.shape[1]):
        a, b = edges[0, e], edges[1, e]
        if label[a] != label[b]:
            continue
        while head[a] != a:
            head[a] = head[head[a]]
            a = head[a]
        while head[b] != b:
            head[b] = head[head[b]]
            b = head[b]
        if a != b:
            head[max(a, b)] = min(a, b)
            count -= 1
    return count


@compiled
def breadth_first(ptr: Int64, consumer: Int32) -> tuple[Int32, Int32]:
    """Return a topological order, int32, by breadth, and the depth of each node, int32 [n].

    Nodes on cycles, or behind one, are left out of the order, and what is behind a cycle alone has depth 0.
    ptr: int64 [n + 1]; consumer: int32: node i feeds consumer[ptr[i]:ptr[i + 1]].
    """
    n = ptr.size - 1
    depth, waiting, order = np.zeros(n, np.int32), np.zeros(n, np.int32), np.empty(n, np.int32)
    for j in consumer:
        waiting[j] += 1
    tail = 0
    for i in range(n):
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    while head < tail:
        i = order[head]
        head += 1
        for e in range(ptr[i], ptr[i + 1]):
            j = consumer[e]
            depth[j] = max(depth[j], depth[i] + 1)
            waiting[j] -= 1
            if waiting[j] == 0:
                order[tail] = j
                tail += 1
    return order[:tail], depth
