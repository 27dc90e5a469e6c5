"""What groupers share that draw nothing."""

from __future__ import annotations

import torch

from pipeline.core.graph import Grouping
from pipeline.core.learning import GroupSample


def certain_sample(grouping: Grouping) -> GroupSample:
    """Return the grouping as the one possible draw: an empty choice, log-probability and entropy 0."""
    return GroupSample(grouping, torch.zeros(0, dtype=torch.int64), torch.zeros(()), torch.zeros(()))
