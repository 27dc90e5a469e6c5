"""Every placement of a problem that has only few: the optimum, or the certainty that nothing fits."""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.arrays import Bool, Int32
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import finest_grouping
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.exact.shared.cpsat_models import Alike, alike_devices

WORK = 2_000_000  # operations simulated at most, well under a second
BATCH = 1024  # placements between two looks at the clock
ORDERED = 0.25  # share of the budget that devices alone may take where the order counts as well


def enumerated(search: Search) -> bool:
    """Have every placement evaluated, if budget and time allow; return whether there is nothing left to search.

    Of placements that differ by the names of interchangeable devices one is enough; where the order of events on
    equal times depends on the number of a device, all are taken if they fit the budget. What was
    enumerated in full is proven, unless orders count as well or groups are coarser than the problem demands.
    """
    problem, execution = search.problem, search.execution
    if search.proven:
        return True
    if execution is None or problem.graph.n == 0 or search.left <= 0:
        return False
    groups = problem.derived(Groups.of)
    count = math.prod(groups.allowed.sum(axis=1).tolist())
    limit = min(search.left, WORK // problem.graph.n)
    limit = int(ORDERED * limit) if problem.ordered else limit
    if count > limit * math.factorial(min(problem.topology.p, 8)) or count > WORK // problem.graph.n:
        return False
    device = placements(groups.allowed)
    exact = execution.anonymous or count <= limit
    if count > limit or execution.anonymous:
        device = device[one_of_each(device, interchangeable(problem))]
    if len(device) > limit:
        return False
    for begin in range(0, len(device), BATCH):
        if search.left < len(device) - begin:
            return False
        search.simulate(device[begin : begin + BATCH][:, groups.grouping.group], author="enumeration")
    complete = exact and not problem.ordered
    if complete and search.best is not None and groups.k == finest_grouping(problem).k:
        search.prove(search.best_s, "enumeration")
    return complete


def placements(allowed: Bool) -> Int32:
    """Return int32 [c, k], every choice of an allowed device for each of k groups, bool [k, p]; all have one.

    >>> placements(np.array([[True, True], [False, True]])).tolist()
    [[0, 1], [1, 1]]
    """
    choices = allowed.sum(axis=1)
    run = choices[::-1].cumprod()[::-1]  # rows after which the choices of a group and those behind it repeat
    number = np.arange(run[0])[:, None] % run // (run // choices)  # [c, k], of the device among those allowed
    homes = np.argsort(~allowed, axis=1, kind="stable").astype(np.int32)  # those allowed come first
    device: Int32 = homes[np.arange(choices.size), number]
    return device


def one_of_each(device: Int32, alike: Alike) -> Bool:
    """Return bool [c], which placements int32 [c, k] stand for those that differ by names of devices alike.

    Of devices alike, those of lower number are used first.
    """
    k = device.shape[1]
    chosen = np.ones(len(device), bool)
    for members in alike:
        used = [device == d for d in members]
        first = np.stack([np.where(on.any(axis=1), on.argmax(axis=1), k) for on in used])  # [members, c]
        chosen &= np.all(first[:-1] <= first[1:], axis=0)
    return chosen


def interchangeable(problem: Problem) -> Alike:
    """Return sets of two or more devices that can swap names without any time or limit changing."""
    costs = problem.costs
    times_s = np.zeros((1, problem.topology.p)) if costs is None else np.vstack([costs.op_s, costs.launch_s])
    return alike_devices(problem, problem.derived(Groups.of), times_s)
