"""The planner of PipeDream: branches merged until a line of blocks is left, which is divided into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Grouping, components, row_ptr
from policy.place.base.search import Method, Search
from policy.place.exact.shared.elements import Elements
from policy.place.exact.shared.proofs import prove_bound
from policy.place.exact.shared.stages import Replication, StageProgram, order_of, placement_of, stage_program


@dataclass(frozen=True, slots=True)
class Pipedream(Method):
    """Divides a line of blocks into stages in the best way, each stage on a device of its own.

    In every biconnected component of the graph, direction left aside, all operations that read from another one of it
    are one block: what remains has no branches that join again, and is put in one depth-first order. What counts is the
    largest load of a device, transfers included, as in the simulator `pipelined`. Nothing is random.

    Source: Narayanan et al., PipeDream, SOSP 2019, for the dynamic program, which is given a line of layers; Tarnawski
    et al., NeurIPS 2020, code, for how a graph becomes a line. Loads are those of the simulator, transfers added; a
    placement has no replicas: `search --replicate` tells the best stages with them.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Note the bound, and ask about the best division of the line."""
        prove_bound(search)
        if search.left <= 0 or search.problem.derived(stage_program, Replication()) is None:
            return
        elements = search.problem.derived(Elements.of)
        line = elements.merged(line_of(elements.k, elements.edges))
        program = StageProgram.of(line, Replication())
        if program is None:
            return
        stages = program.of_order(order_of(line, -np.arange(float(line.k))), lambda: search.left_s > 0)
        if stages:
            search.evaluate([placement_of(line, stages)])


def line_of(k: int, edges: Int32) -> Grouping:
    """Return k elements in blocks: of each biconnected component all that an edge of it, int32 [2, e], leads to.

    The quotient is acyclic if the graph is: a way from a block back into it would be of the same component.
    """
    component = biconnected(k, edges)
    _, first = np.unique(component, return_index=True)
    return components(k, edges[1], edges[1, first[component]])


def biconnected(k: int, edges: Int32) -> Int64:
    """Return int64 [e], from 0, the biconnected component of each edge between k nodes; direction does not matter.

    Source: Hopcroft, Tarjan, Algorithm 447, Communications of the ACM 16, 1973.
    """
    count = edges.shape[1]
    ends = np.concatenate([edges, edges[::-1]], axis=1)
    by_end = np.argsort(ends[0], kind="stable")
    ptr, other, which = row_ptr(ends[0], k).tolist(), ends[1, by_end].tolist(), (by_end % max(count, 1)).tolist()
    component, number = np.full(count, -1, np.int64), 0
    follow, turn, low, clock = ptr[:-1], [-1] * k, [0] * k, 0  # low: the earliest turn that leads back to
    entered: list[int] = []  # edges whose component is not known yet
    for root in range(k):
        way = [(root, -1)] if turn[root] < 0 else []  # nodes, and the edges that led to them
        while way:
            v, came = way[-1]
            if turn[v] < 0:
                turn[v] = low[v] = clock
                clock += 1
            if follow[v] < ptr[v + 1]:
                w, e = other[follow[v]], which[follow[v]]
                follow[v] += 1
                if turn[w] < 0:
                    entered.append(e)
                    way.append((w, e))
                elif e != came and turn[w] < turn[v]:
                    entered.append(e)
                    low[v] = min(low[v], turn[w])
                continue
            way.pop()
            u = way[-1][0] if way else root
            low[u] = min(low[u], low[v])
            if way and low[v] >= turn[u]:
                while component[came] < 0:
                    component[entered.pop()] = number
                number += 1
    return component
