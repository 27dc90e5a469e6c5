"""Which edges carry the same tensor, one operation after another; the reference for `tensors_read`."""

from __future__ import annotations

from pipeline.core.graph import Graph


def tensor_of(graph: Graph) -> list[int]:
    """Return for every edge the first edge that carries its tensor."""
    producer, size = graph.edges[0].tolist(), graph.edge_bytes.tolist()
    found = [-1] * graph.m
    for u in range(graph.n):
        largest_first = sorted((e for e in range(graph.m) if producer[e] == u), key=lambda e: (-size[e], e))
        room, outputs = int(graph.out_bytes[u]), dict[int, int]()
        for e in largest_first:
            if e == largest_first[0] or 0 < size[e] <= room:
                found[e], room = e, room - size[e]
                outputs.setdefault(size[e], e)
            else:
                found[e] = outputs.get(size[e], largest_first[0])
    return found
