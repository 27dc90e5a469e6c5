"""A placement problem as tensors, times in units of a mean operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Float64
from pipeline.core.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """n nodes, m edges and p devices.

    unit_s: seconds of a unit of time, the mean time of a node over devices and nodes.
    op: float32 [n, p], units; 0 where a device may not run a node. mean: float32 [n], over the allowed devices.
    source, target: int64 [m]. size: float32 [m], bytes of each edge.
    latency, per_byte: float32 [p + 1, p + 1], units and units per byte of each link; the last row and column, of a
    device not known yet, are 0.
    allowed: bool [n, p]. weight: float32 [n], bytes. capacity: float32 [p], bytes, inf where any number fits.
    speed: float32 [p], mean log time of a device's operations over the mean of all devices.
    """

    unit_s: float
    op: Tensor
    mean: Tensor
    source: Tensor
    target: Tensor
    size: Tensor
    latency: Tensor
    per_byte: Tensor
    allowed: Tensor
    weight: Tensor
    capacity: Tensor
    speed: Tensor

    @classmethod
    def of(cls, problem: Problem) -> World:
        """Return the tensors of a problem; without costs every operation takes no time."""
        n, p = problem.graph.n, problem.topology.p
        op_s = np.zeros((n, p)) if problem.costs is None else np.where(problem.allowed, problem.costs.op_s, 0.0)
        op_s = np.where(np.isfinite(op_s), op_s, 0.0)
        mean_s = op_s.sum(axis=1) / problem.allowed.sum(axis=1)
        link = ~np.eye(p, dtype=bool)
        per_byte_s = np.divide(1.0, problem.topology.link_bytes_per_s, where=link, out=np.zeros((p, p)))
        sent_s = problem.topology.mean_transfer_s(problem.graph.edge_bytes)
        unit_s = float(mean_s.mean()) or float(sent_s.sum()) / max(1, sent_s.size) or 1.0
        memory = np.array([d.memory_bytes or np.inf for d in problem.topology.devices])
        edges = torch.tensor(problem.graph.edges, dtype=torch.int64)
        return cls(
            unit_s=unit_s,
            op=_tensor(op_s / unit_s),
            mean=_tensor(mean_s / unit_s),
            source=edges[0],
            target=edges[1],
            size=_tensor(problem.graph.edge_bytes.astype(np.float64)),
            latency=_padded(problem.topology.link_latency_s / unit_s),
            per_byte=_padded(per_byte_s / unit_s),
            allowed=torch.tensor(problem.allowed),
            weight=_tensor(problem.graph.weight_bytes.astype(np.float64)),
            capacity=_tensor(memory),
            speed=_tensor(_speed(op_s, problem.allowed)),
        )

    @property
    def n(self) -> int:
        """Return the number of nodes."""
        return self.op.shape[0]

    @property
    def p(self) -> int:
        """Return the number of devices."""
        return self.op.shape[1]

    def transfer(self, source: Tensor, target: Tensor) -> Tensor:
        """Return float32 [..., m], units that the edges take between devices int64 [..., m]; p is an unknown one."""
        return self.latency[source, target] + self.size * self.per_byte[source, target]


def _speed(op_s: Float64, allowed: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Float64:
    timed = allowed & (op_s > 0)
    logs = np.log(op_s, where=timed, out=np.zeros(op_s.shape))
    mean = logs.sum(axis=0) / np.maximum(timed.sum(axis=0), 1)
    speed: Float64 = np.where(timed.any(axis=0), mean - mean.mean(), 0.0)
    return speed


def _padded(values: Float64) -> Tensor:
    return _tensor(np.pad(values, ((0, 1), (0, 1))))


def _tensor(values: Float64) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
