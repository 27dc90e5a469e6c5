"""Mixed-integer programming: the best pipeline of a small graph, with proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.params import param
from pipeline.core.problem import Problem
from pipeline.shared.contiguity import forward_edges
from policy.place.base.groups import UNLIMITED, Groups, mostly_on
from policy.place.base.parallel import run_apart
from policy.place.base.search import Method, Search
from policy.place.exact.pipelined.cpsat_pipeline import Pieces
from policy.place.exact.pipelined.dpl import begin_with_orders
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.proofs import is_finest, prove_bound

INFEASIBLE = 2  # scipy's status
TOLERANCE = 1e-6  # the share by which the solver may be off


class SolverEffort(NamedTuple):
    """What a solver may take: seconds, inf for any; nodes of its search, None for any."""

    seconds: float
    nodes: int | None


class LoadsSolved(NamedTuple):
    """What a solver says: the device of every piece, int32 [k], None without a solution; what nothing falls below.

    complete: whether it would find nothing better with more effort.
    """

    device: Int32 | None
    bound_s: float
    complete: bool


class _Terms:
    """Rows of a matrix under construction."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.factor: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        """Add a row: low <= sum of factors times variables <= high."""
        self.row += [len(self.low)] * len(terms)
        self.column += [column for column, _ in terms]
        self.factor += [factor for _, factor in terms]
        self.low.append(low)
        self.high.append(high)


def solve_loads(
    problem: Problem, pieces: Pieces, value_s: float, bound_s: float, effort: SolverEffort, *, convex: bool
) -> LoadsSolved:
    """Return what HiGHS finds and proves of placements with loads of `value_s` at most; bound_s: proven before.

    Variables: where pieces are, 0 or 1; whether a device pays for a net, at least 0; the largest load, in shares of
    value_s. Of devices that are alike the largest pieces use the first ones. Bounds known before, and covers, would
    only keep the solver from its own cuts.

    Source: Tarnawski et al., NeurIPS 2020, sections 4.1 and 5.2, with one variable per net and device.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    group_s = pieces.group_s
    k, p = group_s.shape
    scale = value_s if math.isfinite(value_s) and value_s > 0 else float(pieces.charges.work_s.min(axis=1).sum()) or 1.0
    rows = _Terms()
    most, free = k * p, [k * p + 1]  # the variable of the largest load, and the next one that is free
    load = [[(g * p + d, group_s[g, d] / scale) for g in range(k) if 0 < group_s[g, d] < math.inf] for d in range(p)]
    for g in range(k):
        rows.add([(g * p + d, 1.0) for d in range(p)], 1.0, 1.0)
    _add_nets(rows, pieces, load, free, scale)
    for terms in load:
        rows.add([*terms, (most, -1.0)], -np.inf, 0.0)
    room = pieces.groups.room_bytes
    for d in np.flatnonzero(room < UNLIMITED).tolist():
        held = [(g * p + d, float(b) / float(room[d])) for g, b in enumerate(pieces.groups.held_bytes.tolist()) if b]
        rows.add(held, 0.0, 1.0)
    if pieces.pigeonhole is not None:
        pigeonhole = [(g * p + pieces.pigeonhole.device, 1.0) for g in pieces.pigeonhole.members]
        rows.add(pigeonhole, float(pieces.pigeonhole.least), np.inf)
    if convex:
        _add_convexity(rows, problem, pieces, free)
    upper = np.ones(free[0])
    upper[: k * p] = _usable(pieces)
    upper[most] = value_s / scale if math.isfinite(value_s) else np.inf
    whole = np.zeros(free[0])
    whole[: k * p] = 1
    cost = np.zeros(free[0])
    cost[most] = 1.0
    options: dict[str, float | int] = {"mip_rel_gap": TOLERANCE}
    if math.isfinite(effort.seconds):
        options["time_limit"] = max(effort.seconds, 0.01)
    if effort.nodes is not None:
        options["node_limit"] = effort.nodes
    matrix = coo_array((rows.factor, (rows.row, rows.column)), shape=(len(rows.low), free[0])).tocsr()
    solved = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        constraints=LinearConstraint(matrix, np.array(rows.low), np.array(rows.high)),
        options=options,
    )
    if solved.status == INFEASIBLE and math.isfinite(value_s):
        return LoadsSolved(None, max(bound_s, value_s * (1 - TOLERANCE)), complete=True)
    device = None if solved.x is None else solved.x[: k * p].reshape(k, p).argmax(axis=1).astype(np.int32)
    proved = solved.mip_dual_bound
    if proved is not None and math.isfinite(proved):
        bound_s = max(bound_s, proved * scale * (1 - TOLERANCE))
    return LoadsSolved(device, bound_s, complete=solved.status in (0, INFEASIBLE))


def _add_nets(rows: _Terms, pieces: Pieces, load: list[list[tuple[int, float]]], free: list[int], scale: float) -> None:
    """Let devices pay for nets that they hold partly."""
    charges, p = pieces.charges, pieces.group_s.shape[1]
    for i, (first, *others) in enumerate(pieces.members if charges.size.size else []):
        for d in range(p):
            pays = float(charges.pay_s[i, pieces.kind[d]]) / scale
            if pays > 0:
                part = free[0]
                free[0] += 1
                load[d].append((part, pays))
                for r in others:
                    rows.add([(part, 1.0), (r * p + d, -1.0), (first * p + d, 1.0)], 0.0, np.inf)
                    rows.add([(part, 1.0), (r * p + d, 1.0), (first * p + d, -1.0)], 0.0, np.inf)


def _add_convexity(rows: _Terms, problem: Problem, pieces: Pieces, free: list[int]) -> None:
    """Let no path of the forward pass leave a device and come back; see `cpsat_pipeline.pipelined`."""
    group, p = pieces.groups.grouping.group, pieces.group_s.shape[1]
    edges = forward_edges(problem.graph).T.tolist()
    inner = sorted({i for edge in edges for i in edge})
    for d in range(p):
        before = {i: free[0] + at for at, i in enumerate(inner)}
        free[0] += len(inner)
        for i in inner:
            rows.add([(before[i], 1.0), (int(group[i]) * p + d, -1.0)], 0.0, np.inf)
        for u, v in edges:
            rows.add([(before[v], 1.0), (before[u], -1.0)], 0.0, np.inf)
            if group[u] != group[v]:
                here, there = int(group[u]) * p + d, int(group[v]) * p + d
                rows.add([(before[u], 1.0), (there, 1.0), (here, -1.0)], -np.inf, 1.0)


def _usable(pieces: Pieces) -> Float64:
    """Return float64 [k p], 1 where a piece may go: of devices alike, the largest pieces use the first ones."""
    usable = np.isfinite(pieces.group_s).astype(float)
    largest_first = np.argsort(-pieces.group_s.min(axis=1), kind="stable")
    for members in pieces.alike:
        for rank, g in enumerate(largest_first[: len(members)].tolist()):
            usable[g, members[rank + 1 :]] = 0.0
    return usable.ravel()


SLICE_S = 10.0  # seconds of a first try; every further one takes twice as long
MARGIN = 0.95  # the share of the time left that the solver may use


@dataclass(frozen=True, slots=True)
class Milp(Method):
    """Solves the division of operations into stages of least largest load as a mixed-integer program, by HiGHS.

    The rules are those of the simulator `pipelined`, contiguity included; under any other the answer is as good as its
    evaluator finds it. The solver looks for what is better than the incumbent, with all operations as one that nothing
    better parts. It is asked again and again, each time for longer, as it says what it has only when it ends.

    Programs above `largest` are left alone. Without a time limit the effort is counted in nodes of the solver's search,
    in proportion to the evaluations left, so that equal seeds give equal answers.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    4.1 and 5.2; Huangfu and Hall, Mathematical Programming Computation 10, 2018 (HiGHS).
    """

    version: ClassVar[int] = 1
    placers: ClassVar[tuple[str, ...]] = ("dpl",)

    largest: int = param(20_000, "programs of more variables are skipped")
    effort: float = param(
        1.0, "without a time limit: nodes of the solver's search per evaluation left", within="(0, inf)"
    )

    def run(self, search: Search, *, seed: int) -> None:
        """Note the bound, and ask about everything that the solver finds."""
        problem = search.problem
        if search.left <= 0 or problem.costs is None:
            return
        groups = problem.derived(Groups.of)
        if search.best is None:  # no device holds everything
            search.evaluate([groups.placement(groups.repaired(groups.devices_of(mostly_on(problem, 0))))])
        if search.execution is not None and search.execution.stage_rules is not None:
            begin_with_orders(search, seed=0)
        run_apart(search, partial(self._run_solver, bound_s=prove_bound(search)))

    def _run_solver(self, search: Search, *, bound_s: float) -> None:
        """Ask the solver again and again, each time for longer; it does not look at the clock throughout."""
        seconds = SLICE_S
        while not search.done and not search.stopped():
            left_s = MARGIN * search.left_s
            given_s = left_s if left_s < 2 * seconds else seconds
            if self._solved(search, bound_s, given_s) or math.isinf(left_s):
                return
            seconds *= 2

    def _solved(self, search: Search, bound_s: float, seconds: float) -> bool:
        """Let the solver look once; return whether there is nothing left to find."""
        problem = search.problem
        rules = None if search.execution is None else search.execution.stage_rules
        groups = problem.derived(leaves_folded)
        device = None if search.best is None else groups.devices_of(search.best)
        known_s = math.inf if rules is None else search.best_s
        pieces = Pieces.of(problem, groups, device, known_s)
        if pieces.group_s.size + pieces.charges.size.size * problem.topology.p > self.largest:
            return True
        convex = rules is not None and rules.contiguity != "free"
        effort = SolverEffort(seconds, math.ceil(self.effort * search.left) if math.isinf(search.left_s) else None)
        solved = solve_loads(problem, pieces, known_s, bound_s, effort, convex=convex)
        if solved.device is not None:
            search.evaluate([pieces.groups.placement(solved.device)])
        if rules is not None and is_finest(search):
            search.prove(solved.bound_s * (1 - SAFETY), "milp")
        return solved.complete
