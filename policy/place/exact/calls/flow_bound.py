"""What one inference takes at least, over all ways to divide a graph into calls one after another.

Whatever the placement, its calls, and operations on CPUs, can be put in an order, so that each is the difference of two
ideals. A path through the graph takes what the calls that it meets take, and its operations on CPUs. For a flow of many
paths, each with its share, the mean of that is a sum over calls, and a dynamic program over the ideals finds the
least: no placement is faster. The flow is made by playing against it: the path that takes longest under the answer
gets a share, and the program is solved again.

Source: our own, for the problem of Tarnawski et al., NeurIPS 2020, section 4.2; fictitious play: Brown, 1951.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.figures import MB
from pipeline.core.graph import row_ptr, topological_order
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import breadth_first
from policy.place.base.groups import Groups
from policy.place.exact.calls.latency_bound import leads_to
from policy.place.exact.calls.series import SeriesPlacement, SeriesProgram
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.stages import Ideals, all_ideals

MEMORY_MB = 1000
ROUNDS = 200
PATIENCE = 12  # rounds in which the bound need not rise
CLOSE = 1e-6  # share by which the answer may take longer than the bound


@dataclass(slots=True, eq=False)
class Flow:
    """A flow through k elements: share float64 [k], edge float64 [e], what goes through each, and along each edge."""

    share: Float64
    edge: Float64

    def mixed(self, other: Flow, weight: float) -> Flow:
        """Return this flow with some of it going as another goes."""
        return Flow((1 - weight) * self.share + weight * other.share, (1 - weight) * self.edge + weight * other.edge)


@dataclass(frozen=True, slots=True, eq=False)
class FlowGame:
    """The elements of a problem, the program of dividing them, and the paths through them."""

    program: SeriesProgram
    ideals: Ideals
    order: Int64

    @classmethod
    def of(cls, problem: Problem, goes_on: Callable[[], bool]) -> FlowGame | None:
        """Return the game of a problem; None where it has none, or one that is too large, or takes too long."""
        program = SeriesProgram.of(problem)
        if program is None or not _passed_through(problem, program):
            return None
        elements = program.stages.elements
        if elements.k < problem.derived(leaves_folded).k:  # of what is on a cycle, CPUs may have a part
            return None
        ideals = all_ideals(program.stages, int(MEMORY_MB * MB), goes_on)
        if ideals is None:
            return None
        charges = elements.charges
        through_s = charges.work_s.copy()
        cpu = np.flatnonzero(program.cpu)
        through_s[:, cpu] = _through_s(problem, program)[:, cpu]
        quick = replace(elements, charges=charges._replace(work_s=through_s))
        program = replace(program, stages=replace(program.stages, elements=quick))
        order, _ = breadth_first(row_ptr(elements.edges[0], elements.k), elements.edges[1])
        return cls(program, ideals, order.astype(np.int64))

    def longest(self, staged: SeriesPlacement) -> tuple[float, Flow]:
        """Return (what the path that takes longest under an answer takes, that path)."""
        elements = self.program.stages.elements
        k, edges = elements.k, elements.edges
        ptr = row_ptr(edges[0], k)
        came = np.full(k, -1, np.int64)
        best_s = staged.block_s.copy()  # the longest path up to and with each element
        for e in self.order.tolist():
            for x in range(ptr[e], ptr[e + 1]):
                f = int(edges[1, x])
                value_s = best_s[e] + (0.0 if staged.block[e] == staged.block[f] else staged.block_s[f])
                if value_s > best_s[f]:
                    best_s[f], came[f] = value_s, x
        flow = Flow(np.zeros(k), np.zeros(edges.shape[1]))
        at = int(best_s.argmax())
        length_s = float(best_s[at])
        flow.share[at] = 1.0
        while came[at] >= 0:
            flow.edge[came[at]] = 1.0
            at = int(edges[0, came[at]])
            flow.share[at] = 1.0
        return length_s, flow

    def first_path(self) -> Flow:
        """Return the path that takes longest if everything runs where it is fastest."""
        elements = self.program.stages.elements
        least_s = elements.charges.work_s.min(axis=1)
        return self.longest(SeriesPlacement(np.arange(elements.k), least_s, np.zeros(elements.k, np.int32), 0.0))[1]


def game_of(problem: Problem, goes_on: Callable[[], bool]) -> FlowGame | None:
    """Return the game of a problem, made once; None where it has none, or where there is no time to make it."""
    known = problem.derived(_no_games)
    if not known:
        game = FlowGame.of(problem, goes_on)
        if game is None and not goes_on():
            return None
        known.append(game)
    return known[0]


def _no_games(problem: Problem) -> list[FlowGame | None]:
    """Return where the game of a problem is noted once it is known."""
    return []


def rounds_of(game: FlowGame, goes_on: Callable[[], bool]) -> Iterator[tuple[float, SeriesPlacement]]:
    """Yield (seconds that no placement falls below, the answer to the flow so far), round after round.

    Ends where the answer takes no longer than the bound, where the bound rises no more, and where there is no answer.
    goes_on: asked before each round, and within it.
    """
    flow, bound_s, risen = game.first_path(), 0.0, 0
    for number in range(1, ROUNDS + 1):
        staged = game.program.least_sum(game.ideals, goes_on, (flow.share, flow.edge)) if goes_on() else None
        if staged is None:
            return
        if staged.value_s > bound_s * (1 + CLOSE):
            risen = number
        bound_s = max(bound_s, staged.value_s)
        yield bound_s, staged
        length_s, path = game.longest(staged)
        if length_s <= bound_s * (1 + CLOSE) or number - risen >= PATIENCE:
            return
        flow = flow.mixed(path, 1 / (number + 1))


def flow_bound(problem: Problem, *, seconds: float) -> float:
    """Return seconds that no placement falls below, if each accelerator is called once; 0 if unknown."""
    until = time.monotonic() + seconds
    finest = problem.derived(Groups.of).k == finest_grouping(problem).k
    game = game_of(problem, lambda: time.monotonic() < until) if finest else None
    if game is None:
        return 0.0
    return max((bound_s for bound_s, _ in rounds_of(game, lambda: time.monotonic() < until)), default=0.0)


def _passed_through(problem: Problem, program: SeriesProgram) -> bool:
    """Return whether, in every element, all that comes in leads to all that goes out.

    On CPUs, where operations of an element run one by one, others may else run between them.
    """
    graph, group = problem.graph, program.stages.elements.groups.grouping.group
    if np.bincount(group).max() == 1:
        return True
    leads = leads_to(graph.n, graph.edges, topological_order(graph))
    apart = group[graph.edges[0]] != group[graph.edges[1]]
    enters, leaves = np.zeros(graph.n, bool), np.zeros(graph.n, bool)
    leaves[graph.edges[0, apart]], enters[graph.edges[1, apart]] = True, True
    for g in np.flatnonzero(np.bincount(group) > 1).tolist():
        inside = group == g
        if not leads[np.ix_(inside & enters, inside & leaves)].all():
            return False
    return True


def _through_s(problem: Problem, program: SeriesProgram) -> Float64:
    """Return float64 [k, K], what a path needs at least to pass through each element on a CPU; inf where not allowed.

    From any operation that something comes in at to any that something goes out from; at ends of the graph, from or to
    that which makes most of it.
    """
    elements = program.stages.elements
    graph, group = problem.graph, elements.groups.grouping.group
    through_s = elements.charges.work_s.copy()
    if problem.costs is None:
        return through_s
    apart = group[graph.edges[0]] != group[graph.edges[1]]
    enters, leaves = np.zeros(graph.n, bool), np.zeros(graph.n, bool)
    leaves[graph.edges[0, apart]], enters[graph.edges[1, apart]] = True, True
    inner: dict[int, list[int]] = {}
    for a, b in graph.edges[:, ~apart].T.tolist():
        inner.setdefault(b, []).append(a)
    order = topological_order(graph).tolist()
    for q in np.flatnonzero(program.cpu).tolist():
        op_s = problem.costs.op_s[:, elements.kinds[q][0]]
        for g in np.flatnonzero((np.bincount(group) > 1) & np.isfinite(through_s[:, q])).tolist():
            mine = [i for i in order if group[i] == g]
            begins = [i for i in mine if enters[i]]
            ends = [i for i in mine if leaves[i]] or mine
            lengths = [_longest_s(mine, inner, op_s, [i]) for i in begins] or [_longest_s(mine, inner, op_s, mine)]
            at_ends = [[length[i] for i in ends if i in length] for length in lengths]
            pick = min if any(leaves[i] for i in mine) else max
            through_s[g, q] = min((pick(values, default=0.0) for values in at_ends), default=0.0)
    return through_s


def _longest_s(mine: list[int], inner: dict[int, list[int]], op_s: Float64, begins: list[int]) -> dict[int, float]:
    """Return the longest paths inside an element from some operations to those that they lead to."""
    longest_s: dict[int, float] = {}
    for i in mine:
        before = [longest_s[j] for j in inner.get(i, ()) if j in longest_s]
        if before or i in begins:
            longest_s[i] = float(op_s[i]) + max(before, default=0.0)
    return longest_s
