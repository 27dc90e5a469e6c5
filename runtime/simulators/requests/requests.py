"""What becomes of the requests of several models that share a machine, by simulation.

It stands beside the execution models of placements, not among them. Those say how long one placement of one graph's
operations takes, and what searches over placements need of that: moves, bounds, a timeline of operations. Here nothing
is placed: the answer is a distribution for each model, and what is varied are settings, rates and servers. Which
device whole models go to is a placement, with each model as one operation without edges whose time is its share of a
device, and the largest load is what the execution model `pipelined` counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64, frozen
from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.shared.arrivals import arrival_times, generator_of
from runtime.simulators.requests import kernels
from runtime.simulators.requests.kernels import QueueNetwork, QueueState, RequestTable

IDLE_S = np.array([0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1])  # at which it is known what requests take after them
ROOM = 4096  # requests that a table holds beyond those with arrivals of their own, at first


@dataclass(frozen=True, slots=True, eq=False)
class ServiceModel:
    """How long requests take, and how those in flight slow one another down: n models.

    alone_s: of each model, seconds of requests that ran alone; of these a request takes one at random. servers: int64
    [n], how many requests of a model are in flight at a time; the others queue. slowdown: float64 [n, n]: a request of
    model i goes at the speed 1 / (1 + sum over j of slowdown[i, j] n[j]), where n[j] other requests of model j are in
    flight. after_idle: float64 [n, k], times its work that a request takes which begins when its model has had none in
    flight for `IDLE_S[k]`, linear in between and constant beyond: caches are cold by then, and processors asleep.
    beside: float64 [n, n, q], times its work, 1 on average, that a request of model i takes which begins beside some of
    model j, one of q at random: the system gives processors in slices. Of several models what each adds counts.

    Raises:
        ValueError: a model has no sample, a time is negative or no number, or a slowdown is, or a
            factor not above 0.
    """

    names: tuple[str, ...]
    alone_s: tuple[Float64, ...]
    servers: Int64
    slowdown: Float64
    after_idle: Float64 = field(default_factory=lambda: np.ones((0, IDLE_S.size)))
    beside: Float64 = field(default_factory=lambda: np.ones((0, 0, 1)))

    def __post_init__(self) -> None:
        n = len(self.names)
        alone_s = tuple(np.sort(frozen(s, np.float64, (None,), "alone_s")) for s in self.alone_s)
        if len(alone_s) != n or not all(s.size and s[0] >= 0 and math.isfinite(s[-1]) for s in alone_s):
            raise ValueError(f"alone_s must hold seconds of each of {self.names}")
        object.__setattr__(self, "alone_s", tuple(frozen(s, np.float64, (None,), "alone_s") for s in alone_s))
        object.__setattr__(self, "servers", frozen(self.servers, np.int64, (n,), "servers"))
        object.__setattr__(self, "slowdown", frozen(self.slowdown, np.float64, (n, n), "slowdown"))
        after_idle = self.after_idle if self.after_idle.size else np.ones((n, IDLE_S.size))
        object.__setattr__(self, "after_idle", frozen(after_idle, np.float64, (n, IDLE_S.size), "after_idle"))
        beside = self.beside if self.beside.size else np.ones((n, n, 1))
        object.__setattr__(self, "beside", frozen(beside, np.float64, (n, n, None), "beside"))
        if (self.servers < 1).any():
            raise ValueError(f"servers must be at least 1, has {self.servers.min()}")
        if not (np.isfinite(self.slowdown) & (self.slowdown >= 0)).all():
            raise ValueError("slowdown must be finite and at least 0")
        for name, factors in (("after_idle", self.after_idle), ("beside", self.beside)):
            if not (np.isfinite(factors) & (factors > 0)).all():
                raise ValueError(f"{name} must be finite and above 0")

    def of(self, names: Sequence[str]) -> ServiceModel:
        """Return the same of some of the models, in their order."""
        at = [self.names.index(name) for name in names]
        return ServiceModel(
            tuple(names),
            tuple(self.alone_s[i] for i in at),
            self.servers[at],
            self.slowdown[np.ix_(at, at)],
            self.after_idle[at],
            self.beside[np.ix_(at, at)],
        )


def simulate_requests(
    scenario: LoadScenario, service: ServiceModel, *, seconds: float, seed: int, warm_up_s: float
) -> dict[str, RequestLog]:
    """Return what becomes of all requests, model -> log.

    The load lasts `warm_up_s`, `seconds`, and `warm_up_s` again; chains that begin in the middle part count. After it
    all that is under way ends. Equal arguments, equal logs; each model draws arrivals, work and calls of its own, and
    its k-th request draws the same place among the samples whatever the scenario and the other models are.

    Requests of a model queue in the order in which they were due. Where `late` is "drop", one that has waited beyond
    the deadline since its chain began is dropped when it would be next. A result causes `calls` requests of each model
    that comes after: one of the two nearest numbers, `calls` on average. A closed loop goes on when all that its
    request has caused has ended. Phases, devices and limits of a scenario are not looked at.
    """
    service = service.of([load.name for load in scenario.models])
    until_s = seconds + 2 * warm_up_s
    due_s, model = _arrivals(scenario.models, until_s, seed)
    net = _network(scenario.models, service, until_s, seed)
    state, table = _new_state(net), _new_table(due_s.size + net.most + ROOM)
    while not kernels.serve(net, state, table, due_s, model):
        table = _new_table(2 * table.model.size, table)
    begun = int(state.tally[kernels.BEGUN])
    origin_s = table.due_s[table.first[:begun]]
    measured = (origin_s >= warm_up_s) & (origin_s < warm_up_s + seconds)
    logs = {}
    for i, load in enumerate(scenario.models):
        mine = np.flatnonzero(table.model[:begun] == i)
        logs[load.name] = RequestLog(table.due_s[mine], origin_s[mine], table.end_s[mine], measured[mine])
    return logs


def _arrivals(models: Sequence[ModelLoad], until_s: float, seed: int) -> tuple[Float64, Int32]:
    """Return when first requests of chains are due, rising, and whose they are; closed loops begin at once."""
    times = [np.zeros(m.concurrency) if m.closed else arrival_times(m, until_s, seed) for m in models]
    due_s = np.concatenate(times)
    order = np.argsort(due_s, kind="stable")
    return due_s[order], np.repeat(np.arange(len(models), dtype=np.int32), [t.size for t in times])[order]


def _network(models: Sequence[ModelLoad], service: ServiceModel, until_s: float, seed: int) -> QueueNetwork:
    caused = [[j for j, other in enumerate(models) if other.after == load.name] for load in models]
    after = [j for js in caused for j in js]
    calls = np.array([models[j].calls for j in after], np.float64)
    drawn = [(load.name, "work") for load in models] + [(models[j].name, "calls") for j in after]
    drawn += [(load.name, "beside") for load in models]
    return QueueNetwork(
        service_ptr=np.cumsum([0, *(s.size for s in service.alone_s)]),
        service_s=np.concatenate(service.alone_s),
        servers=service.servers.copy(),
        effect=service.slowdown.T.copy(),
        idle_s=IDLE_S,
        after_idle=service.after_idle.copy(),
        beside=service.beside.copy(),
        patience_s=np.array([m.deadline_s if m.late == "drop" else math.inf for m in models]),
        loops=np.array([int(m.closed) for m in models]),
        next_ptr=np.cumsum([0, *map(len, caused)]),
        next_model=np.array(after, np.int64),
        calls=calls,
        stream=np.array([generator_of(seed, *of).integers(2**62) for of in drawn], np.int64),
        until_s=float(until_s),
        most=1 + int(np.ceil(calls).sum()) + sum(m.concurrency for m in models),
    )


def _new_state(net: QueueNetwork) -> QueueState:
    n = net.servers.size
    return QueueState(
        busy=np.zeros(n, np.int64),
        served=np.zeros(n, np.int64),
        clock_s=np.zeros(n),
        at_s=np.zeros(n),
        stretch=1.0 - net.effect.diagonal(),
        end_s=np.full(n, math.inf),
        rested_s=np.full(n, -math.inf),
        entered=np.zeros(n, np.int64),
        root=np.full(n, -1, np.int32),
        head=np.full(n, -1, np.int32),
        tail=np.full(n, -1, np.int32),
        decided=np.zeros(net.calls.size, np.int64),
        tally=np.zeros(2, np.int64),
    )


def _new_table(size: int, begun: RequestTable | None = None) -> RequestTable:
    """Return a table of a size, with the requests of a smaller one."""
    ints, floats = np.empty((5, size), np.int32), np.empty((3, size))
    table = RequestTable(ints[0], ints[1], *floats, *ints[2:])
    if begun is not None:
        for name in RequestTable._fields:
            getattr(table, name)[: begun.model.size] = getattr(begun, name)
    return table
