"""Placement as Placeto sees it: a decision process in which every step places one node again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Bool, Float32, Float64, Int32, Int64
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.base.training import unit_s
from policy.place.published.placeto.network import FIXED, PlacetoNetwork
from policy.place.published.placeto.nodes import node_graph

Initial = Literal["random", "fresh", "first", "best"]
Order = Literal["topological", "shuffled"]
Reward = Literal["dense", "terminal"]
Control = Literal["", "frozen", "uniform"]
GIGABYTE = 1e9
MEMORY_SHARE = 8  # the published penalty is per GB beyond 8 GB: an eighth of a device's memory counts as a GB


@dataclass(frozen=True, slots=True)
class ProcessRules:
    """What an episode is; `policy.place.published.placeto.placeto.Placeto` says what each field means."""

    initial: Initial
    order: Order
    steps: int
    reward: Reward
    penalty: float
    cap: float
    seconds: bool
    control: Control


@dataclass(frozen=True, slots=True, eq=False)
class Episodes:
    """Passes of w workers over the n nodes of one graph, t steps each.

    device: int16 [t, w, n], before every step; start: float32 [t, w, n], when nodes start in that placement. action:
    int64 [t, w]. log_p: float32 [t, w], of the actions when they were drawn. cost: float64 [t + 1, w].
    """

    device: np.ndarray[tuple[int, int, int], np.dtype[np.int16]]
    start: Float32
    action: Int64
    log_p: Float32
    cost: Float64


class Process:
    """One search as a decision process.

    unit_s: the seconds that costs are counted in. first: int32 [n], the devices of nodes that episodes begin with.
    visit: int64 [t], the node placed in each step.
    """

    def __init__(
        self, search: Search, network: PlacetoNetwork, rules: ProcessRules, *, rng: np.random.Generator
    ) -> None:
        self.search, self.network, self.rules = search, network, rules
        self.groups = Groups.of(search.problem)
        self.graph = node_graph(self.groups, network.network, sweep=network.rounds == 0)
        self.allowed: Bool = self.groups.allowed[self.graph.group]
        self.forbidden = torch.from_numpy(np.where(self.allowed, 0.0, -np.inf).astype(np.float32))
        self.unit_s = 1.0 if rules.seconds else unit_s(search)
        visit = self.graph.visit if rules.order == "topological" else rng.permutation(self.graph.n)
        self.visit: Int64 = np.resize(visit, rules.steps or visit.size)
        self.first = self.drawn(rng)

    def drawn(self, rng: np.random.Generator) -> Int32:
        """Return devices of nodes drawn at random, int32 [n]; moved where weights exceed memory."""
        allowed = self.groups.allowed
        draw = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
        return self.groups.repaired(draw.astype(np.int32))[self.graph.group]

    def beginning(self, rng: np.random.Generator) -> Int32:
        """Return the devices that the next episode begins with, int32 [n]."""
        if self.rules.initial == "fresh":
            return self.drawn(rng)
        if self.rules.initial == "best" and self.search.best is not None:
            device = self.groups.devices_of(self.search.best)[self.graph.group]
            return np.where(self.allowed[np.arange(device.size), device], device, self.first)
        if self.rules.initial == "first":
            lowest: Int32 = self.allowed.argmax(axis=1).astype(np.int32)
            return lowest
        return self.first

    @property
    def asks(self) -> int:
        """Return how many placements an episode asks about at most."""
        return 2 if self.rules.reward == "terminal" else 1 + self.visit.size

    def episodes(self, workers: int, rng: np.random.Generator, *, greedy: bool) -> Episodes | None:
        """Return passes of some workers, step by step at the same time; None if the budget ends before they do."""
        t, n = self.visit.size, self.graph.n
        device = np.stack([self.beginning(rng) for _ in range(workers)])  # [w, n]
        asked = self._ask(device)
        if asked is None:
            return None
        cost, start = asked
        devices, starts = np.zeros((t, workers, n), np.int16), np.zeros((t, workers, n), np.float32)
        action, log_p, costs = np.zeros((t, workers), np.int64), np.zeros((t, workers), np.float32), [cost]
        for i, v in enumerate(self.visit.tolist()):
            devices[i], starts[i] = device, start
            action[i], log_p[i] = self._drawn_actions(device, start, i, rng, greedy=greedy)
            moved = action[i] != device[:, v]
            device[:, v] = action[i]
            if self.rules.reward == "terminal":
                moved[:] = i == t - 1
            if moved.any():
                asked = self._ask(device[moved])
                if asked is None:
                    return None
                cost, start = cost.copy(), start.copy()
                cost[moved], start[moved] = asked
            costs.append(cost)
        return Episodes(devices, starts, action, log_p, np.stack(costs))

    def scores(self, steps: Int64, device: Int32, start: Float32) -> Tensor:
        """Return float32 [c, w, p], log-probabilities of devices in steps int64 [c].

        device: int [c, w, n], start: float32 [c, w, n], before each step.
        """
        nodes = self.visit[steps]
        x = torch.from_numpy(self.features(steps, device, start))
        logits: Tensor = self.network(self.graph, x, nodes.tolist())
        return torch.log_softmax(logits + self.forbidden[torch.from_numpy(nodes)][:, None], dim=2)

    def features(self, steps: Int64, device: Int32, start: Float32) -> Float32:
        """Return float32 [n, c, w, d + 1], what the network is told of every node; arguments as in `scores`.

        Columns: time, bytes put out, times placed in this episode, in hand, start from that of the node in hand over
        the greatest distance from it; bytes held, if the network wants them; the device, one-hot; 1.
        """
        graph, memory, (c, w, n) = self.graph, self.network.memory, device.shape
        x = np.zeros((n, c, w, self.network.features + 1), np.float32)
        x[..., -1] = 1.0
        x[..., :2] = graph.figures[:, None, None, :2]
        for i, step in enumerate(steps.tolist()):
            v = self.visit[step]
            x[:, i, :, 2] = np.bincount(self.visit[:step], minlength=n)[:, None]
            x[v, i, :, 3] = 1.0
            apart = start[i] - start[i, :, v, None]  # [w, n]
            most = np.abs(apart).max(axis=1, keepdims=True)
            x[:, i, :, 4] = (apart / np.where(most > 0, most, 1.0)).T
        if memory:
            x[..., FIXED] = graph.figures[:, None, None, 2]
        on = device.transpose(2, 0, 1)[..., None].astype(np.int64)
        np.put_along_axis(x[..., FIXED + memory : -1], on, 1.0, axis=3)
        return x

    def _drawn_actions(
        self, device: Int32, start: Float32, step: int, rng: np.random.Generator, *, greedy: bool
    ) -> tuple[Int64, Float32]:
        """Return a device for the node in hand of each worker, int64 [w], and its log-probability."""
        v, w = self.visit[step], device.shape[0]
        if self.rules.control == "uniform":
            log_p = np.where(self.allowed[v], -math.log(self.allowed[v].sum()), -np.inf).repeat(w).reshape(-1, w).T
        else:
            with torch.no_grad():
                log_p = self.scores(np.array([step]), device[None], start[None])[0].numpy()
        if greedy:
            action = log_p.argmax(axis=1)
        else:
            below = np.cumsum(np.exp(log_p.astype(np.float64)), axis=1)
            last = int(np.flatnonzero(self.allowed[v])[-1])  # rounding must not end behind it
            action = np.minimum((rng.random((w, 1)) * below[:, -1:] >= below).sum(axis=1), last)
        return action, log_p[np.arange(w), action]

    def _ask(self, device: Int32) -> tuple[Float64, Float32] | None:
        """Return what placements of nodes cost, int32 [b, n] -> float64 [b], and when nodes start, float32 [b, n].

            min(cap, seconds / unit_s + penalty * excess),   excess in GB, or in eighths of the device's memory

        None if the budget ends before.
        """
        search, rules, groups = self.search, self.rules, self.groups
        if search.done:
            return None
        placed = np.empty_like(device)
        placed[:, self.graph.group] = device
        if search.simulator is None:
            value_s = search.evaluate([groups.placement(row) for row in placed])
            return (
                None
                if np.isnan(value_s).any()
                else (
                    np.minimum(value_s / self.unit_s, rules.cap),
                    np.zeros(device.shape, np.float32),
                )
            )
        found, start_s = search.simulate_starts(placed[:, groups.grouping.group])
        if found.value_s.size < len(device):
            return None
        cost = found.value_s / self.unit_s
        if found.over_bytes.any():
            over = np.where(found.over_bytes[:, None] > 0, found.peak_bytes - groups.room_bytes, 0)
            share = GIGABYTE if rules.seconds else groups.room_bytes / MEMORY_SHARE
            cost = cost + rules.penalty * np.maximum(over / share, 0.0).max(axis=1)
        return np.minimum(cost, rules.cap), self._starts(start_s, device.shape)

    def _starts(self, start_s: Float64 | None, shape: tuple[int, ...]) -> Float32:
        """Return float32 [b, n], when the first operation of each node starts, in units of time."""
        if start_s is None:
            return np.zeros(shape, np.float32)
        begins = np.full(shape, np.inf)
        np.minimum.at(begins.T, self.groups.grouping.group, start_s.T)
        return np.ascontiguousarray(begins[:, self.graph.group] / self.unit_s, np.float32)


def returns(cost: Float64, reward: Reward, gamma: float) -> Float64:
    """Return float64 [t, w], the discounted sum of rewards from each step on.

    cost: float64 [t + 1, w]. The reward of a step is by how much it lowers the cost; or, at the end alone, minus the
    cost.
    """
    rewards = cost[:-1] - cost[1:]
    if reward == "terminal":
        rewards = np.zeros_like(rewards)
        rewards[-1] = -cost[-1]
    total, found = np.zeros(cost.shape[1]), np.empty_like(rewards)
    for i in range(len(rewards) - 1, -1, -1):
        total = rewards[i] + gamma * total
        found[i] = total
    return found
