"""HDP's training: a grouping, a few placements of its groups, and one step of Adam per update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Grouping
from pipeline.core.learning import Snapshot, prefixed
from pipeline.core.placement import Placement
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.base.training import Adam, unit_s
from policy.place.published.hdp.features import group_features, operations
from policy.place.published.hdp.network import HdpNetwork, WrittenPlacements

FAILED = 100.0  # seconds that a placement which fails is said to take
DECAY = 0.9  # of the baseline
DECAY_FROM, DECAY_EVERY, DECAY_RATE = 400, 50, 0.95  # of the step size, in updates
FAILURES_UNTIL = 1000  # updates from which failed placements teach nothing


@dataclass(frozen=True, slots=True)
class HdpHyperparameters:
    """How HDP learns; `policy.place.published.hdp.hdp.Hdp` says what each field means."""

    samples: int
    learning_rate: float
    clip_norm: float
    first_baseline: float
    noise: float
    noise_until: int
    stop_sampling: int
    seconds: bool
    raw: bool
    frozen: bool


@dataclass(frozen=True, slots=True, eq=False)
class HdpDraw:
    """A grouping, group int64 [n] of groups in topological order, its log-probability, and placements of its groups."""

    group: Int64
    log_p: Tensor
    written: WrittenPlacements


class HdpTrainer:
    """Trains both networks on one search.

    given: the network's groups, of the problem's operations; None where the network draws them itself. baseline: moving
    mean of the roots of times. best: int64 [1, g], the groups' devices in the best draw; none before.
    """

    def __init__(
        self,
        search: Search,
        network: HdpNetwork,
        types: Sequence[str],
        hyper: HdpHyperparameters,
        *,
        seed: int,
        given: Grouping | None = None,
    ) -> None:
        self.search, self.network, self.hyper, self.given = search, network, hyper, given
        self.groups = Groups.of(search.problem)
        self.known = operations(self.groups, types, raw=hyper.raw)
        self.rng = np.random.default_rng(seed)
        self.adam = Adam(parameters_to_vector(network.parameters()).detach().numpy())
        self.unit_s = 1.0 if hyper.seconds else unit_s(search)
        # int32 [k], the allowed device on which each group takes least time; the first without costs
        groups, costs = self.groups, self.search.problem.costs
        time_s = np.zeros(groups.allowed.shape)
        if costs is not None:
            np.add.at(time_s, groups.grouping.group, costs.op_s)
        self.fastest: Int32 = np.where(groups.allowed, time_s, np.inf).argmin(axis=1).astype(np.int32)
        self.baseline = hyper.first_baseline
        self.best: Int64 = np.zeros((0, network.groups), np.int64)
        self.best_s = math.inf
        self.updates = self.idle = 0

    @property
    def done(self) -> bool:
        """Return whether the budget is spent."""
        return self.search.done

    def update(self, *, greedy: bool = False) -> None:
        """Draw a grouping and placements of it, ask about them, and learn."""
        spent = self.search.spent
        self.updates += 1
        with torch.set_grad_enabled(not (self.hyper.frozen or greedy)):
            drawn = self.draw(greedy=greedy)
        device = drawn.written.device.numpy()
        value_s = self.search.evaluate([self.placement(drawn.group, row) for row in device])
        self.idle = 0 if self.search.spent > spent else self.idle + 1
        if np.isnan(value_s).any():
            return  # the budget is spent
        self.search.reached()
        if value_s.min() < self.best_s:
            self.best_s, self.best = float(value_s.min()), device[value_s.argmin()][None].astype(np.int64)
        self.search.details.update(entropy=float(drawn.written.entropy.detach()), update=float(self.updates))
        if not (self.hyper.frozen or greedy):
            self._learn(drawn, value_s)

    def draw(self, *, greedy: bool) -> HdpDraw:
        """Return a grouping and placements of its groups; greedy: the likeliest grouping and, step by step, devices."""
        net, hyper = self.network, self.hyper
        samples, g, p = 1 if greedy else hyper.samples, net.groups, net.devices
        group, log_p_group = self._grouped(greedy=greedy)
        noise = hyper.noise if self.updates <= hyper.noise_until and not greedy else 0.0
        settled = 0 < hyper.stop_sampling < self.updates and len(self.best) > 0
        written = net.placer(
            torch.from_numpy(group_features(self.known, group, g)),
            torch.from_numpy(self.rng.random((samples, g)).astype(np.float32)),
            torch.from_numpy((noise * self.rng.standard_normal((samples, g, p))).astype(np.float32)),
            torch.from_numpy(self.best).expand(samples, -1) if settled else None,
        )
        return HdpDraw(group, log_p_group, written)

    def _grouped(self, *, greedy: bool) -> tuple[Int64, Tensor]:
        """Return the group of each operation, int64 [n], and the log-probability of all."""
        if self.given is not None:
            own = np.zeros(self.groups.k, np.int64)  # of operations that must share a device one speaks for all
            own[self.groups.grouping.group] = self.given.group
            return own[self.known.group], torch.zeros(())
        log_p = torch.log_softmax(self.network.grouper(torch.from_numpy(self.known.features)), dim=1)  # [n, g]
        chance = torch.from_numpy(self.rng.gumbel(size=log_p.shape).astype(np.float32))
        chosen = (log_p.detach() if greedy else log_p.detach() + chance).argmax(dim=1)
        return chosen.numpy(), log_p.gather(1, chosen[:, None]).sum()

    def placement(self, group: Int64, device: Int32) -> Placement:
        """Return the placement by devices of HDP's groups, int [g]; what is not allowed goes to its fastest device."""
        groups = self.groups
        placed = np.empty(groups.k, np.int32)
        placed[self.known.group] = device[group]
        allowed = groups.allowed[np.arange(groups.k), placed]
        return groups.placement(groups.repaired(np.where(allowed, placed, self.fastest).astype(np.int32)))

    def loss(self, drawn: HdpDraw, value_s: Float64) -> Tensor:
        """Return (R - B) (log p of the grouping + log p of the devices), R = sqrt(time), a mean over the placements."""
        root = torch.from_numpy(self._roots(value_s) - self.baseline).float()
        if self.updates > FAILURES_UNTIL:
            root = root * torch.from_numpy(np.isfinite(value_s)).float()
        return (root * (drawn.log_p + drawn.written.log_p)).mean()

    def _roots(self, value_s: Float64) -> Float64:
        """Return the roots of times in their unit, and of FAILED units for those that failed."""
        return np.sqrt(np.where(np.isfinite(value_s), value_s / self.unit_s, FAILED))

    def _learn(self, drawn: HdpDraw, value_s: Float64) -> None:
        if self.baseline == 0:
            self.baseline = float(self._roots(value_s).mean())
        self.network.zero_grad()
        self.loss(drawn, value_s).backward()  # type: ignore[no-untyped-call]
        slopes = [torch.zeros_like(v) if v.grad is None else v.grad for v in self.network.parameters()]
        rate = self.hyper.learning_rate * DECAY_RATE ** max(0, (self.updates - DECAY_FROM) // DECAY_EVERY)
        self.adam.step(parameters_to_vector(slopes).numpy(), rate=rate, most=self.hyper.clip_norm)
        self.take()
        self.baseline = DECAY * self.baseline + (1 - DECAY) * float(self._roots(value_s).mean())

    def take(self) -> None:
        """Put Adam's parameters into the networks."""
        vector_to_parameters(torch.from_numpy(self.adam.weights.copy()), self.network.parameters())

    def state(self) -> Snapshot:
        """Return everything on which the next update depends."""
        search = self.search.state()
        arrays = prefixed("search.", search.arrays) | prefixed("adam.", self.adam.state()) | {"best": self.best}
        facts = {
            "search": search.facts,
            "rng": self.rng.bit_generator.state,
            "unit_s": self.unit_s,
            "baseline": self.baseline,
            "best_s": self.best_s if math.isfinite(self.best_s) else None,
            "counts": [self.updates, self.idle],
        }
        return Snapshot(arrays, facts)

    def resume(self, state: Snapshot) -> None:
        """Bring a new trainer of the same search to a state."""
        arrays, facts = state.arrays, state.facts
        self.search.resume(Snapshot(state.part("search."), facts["search"]))
        self.adam.resume(state.part("adam."))
        self.take()
        self.best, self.rng.bit_generator.state = np.array(arrays["best"], np.int64), facts["rng"]
        self.unit_s, self.baseline = facts["unit_s"], facts["baseline"]
        self.best_s = math.inf if facts["best_s"] is None else facts["best_s"]
        self.updates, self.idle = facts["counts"]
