"""Every node is a group of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import GroupSample
from policy.group.fixed_sample import certain_sample


class IdentityModel(nn.Module):
    """Groups nothing."""

    @property
    def module(self) -> nn.Module:
        """Return the model itself, which has no parameters."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return each node alone."""
        return certain_sample(Grouping.identity(graph.n))

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return the same grouping r times."""
        return [self.group(nodes, graph, rng=rng, greedy=True)] * r

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros(())


@dataclass(frozen=True, slots=True)
class Identity:
    """Leaves every node alone."""

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False

    def build(self, width: int, *, seed: int) -> IdentityModel:
        """Return the model."""
        return IdentityModel()
