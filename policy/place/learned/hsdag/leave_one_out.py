"""REINFORCE with the mean of the other samples as baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST_S = 1e-12  # a simulator may say 0, which has no logarithm
SAME = 1e-9  # log times closer together differ by rounding alone


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Raises the probability of samples that were faster than the others of their batch.

        R_i = -log t_i
        A_i = (R_i - mean_{j != i} R_j) / std(R)
        loss = -mean_i A_i log p_i  -  entropy_coef (1 - progress) mean_i H_i

    The baseline of a sample is independent of it, so it leaves the gradient's expectation as it is; dividing by the
    deviation makes the step size independent of how much times differ. A batch of one sample, or of equal times,
    teaches nothing but entropy.

    entropy_coef: weight of the entropy bonus at the start; it falls to 0 with the budget.

    Source: Williams, "Simple statistical gradient-following algorithms", Machine Learning 8, 1992; Kool et al., "Buy 4
    REINFORCE samples, get a baseline for free!", 2019.
    """

    entropy_coef: float

    def loss(self, log_prob: Tensor, entropy: Tensor, value_s: Tensor, *, progress: float) -> Tensor:
        """Return the scalar to minimise for r samples.

        log_prob, entropy: float32 [r], with gradient. value_s: float32 [r], their times in seconds, finite.
        progress: the share of the budget spent, in [0, 1].
        """
        gain = (advantage(value_s) * log_prob).mean()
        return -gain - self.entropy_coef * (1.0 - progress) * entropy.mean()


def advantage(value_s: Tensor) -> Tensor:
    """Return A, float32 [r], of times float32 [r] in seconds; 0 where there is nothing to compare with."""
    reward = -value_s.detach().double().clamp(min=SHORTEST_S).log()
    r = reward.numel()
    spread = float(reward.std(correction=0)) if r > 1 else 0.0
    if spread < SAME:
        return torch.zeros(r)
    others = (reward.sum() - reward) / (r - 1)
    return ((reward - others) / spread).float()
