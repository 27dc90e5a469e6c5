"""HDP's networks: one that groups operations, and one that reads the groups and writes a device for each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from policy.place.published.hdp.features import OPERATION

GROUPER_HIDDEN = 64
SPREAD = 0.1  # parameters are drawn uniformly from [-SPREAD, SPREAD]


class WrittenPlacements(NamedTuple):
    """Devices for g groups in b placements: device int64 [b, g], log_p float32 [b], entropy: mean over all draws."""

    device: Tensor
    log_p: Tensor
    entropy: Tensor


class GroupingNetwork(nn.Sequential):
    """Scores groups for every operation: Linear 46 -> 64, Linear 64 -> g, and nothing between them."""

    def __init__(self, hidden: int, groups: int) -> None:
        super().__init__(nn.Linear(OPERATION, hidden), nn.Linear(hidden, groups))
        _draw_weights(self)


class SequencePlacer(nn.Module):
    """Reads g groups both ways, then writes a device for each, attending to what it has read.

        h_i, c_i = LSTM(embedding(device of group i - 1), h_(i-1), c_(i-1)),   first the encoder's last states
        a_ij = softmax_j(v . tanh(A e_j + B h_i)),   context_i = sum_j a_ij e_j
        logits_i = clip * tanh(W [h_i; context_i] / temperature)

    Source: Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018: clip 5 and temperature 10; its code
    has 1 and 1.
    """

    def __init__(self, width: int, hidden: int, devices: int, *, clip: float, temperature: float) -> None:
        super().__init__()
        self.clip, self.temperature = clip, temperature
        self.encoder = nn.LSTM(width, hidden // 2, bidirectional=True)
        self.decoder = nn.LSTMCell(hidden, hidden)
        self.embedding = nn.Embedding(devices, hidden)
        self.go = nn.Parameter(torch.empty(hidden))
        self.read, self.query = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Parameter(torch.empty(hidden))
        self.out = nn.Linear(2 * hidden, devices)
        _draw_weights(self)

    def forward(
        self, groups: Tensor, uniform: Tensor, noise: Tensor, written: Tensor | None = None
    ) -> WrittenPlacements:
        """Return draws, float32 groups [g, width].

        uniform: float32 [b, g] in [0, 1), which decide; noise: float32 [b, g, p], added to logits in units of their
        root mean square. written: int64 [b, g], devices that are not drawn but given.
        """
        read, (h, c) = self.encoder(groups[:, None])
        memory = read[:, 0]  # [g, hidden]
        keys, b = self.read(memory), uniform.shape[0]
        state = tuple(x.reshape(1, -1).expand(b, -1) for x in (h, c))
        x = self.go.expand(b, -1)
        devices, log_ps, entropies = [], [], []
        for i in range(groups.shape[0]):
            state = self.decoder(x, state)
            logits = self._logits(state[0], memory, keys)
            scale = logits.detach().square().mean(dim=1, keepdim=True).sqrt()
            log_p = torch.log_softmax(logits + noise[:, i] * scale, dim=1)
            if written is None:
                below = log_p.detach().exp().cumsum(dim=1)
                device = (uniform[:, i, None] * below[:, -1:] >= below).sum(dim=1).clamp(max=log_p.shape[1] - 1)
            else:
                device = written[:, i]
            devices.append(device)
            log_ps.append(log_p.gather(1, device[:, None])[:, 0])
            entropies.append(-(log_p.exp() * log_p).sum(dim=1).mean())
            x = self.embedding(device)
        return WrittenPlacements(
            torch.stack(devices, dim=1), torch.stack(log_ps).sum(dim=0), torch.stack(entropies).mean()
        )

    def _logits(self, h: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Return float32 [b, p] from the decoder's state [b, hidden]."""
        scores = torch.tanh(keys[None] + self.query(h)[:, None]) @ self.v  # [b, g]
        context = torch.softmax(scores, dim=1) @ memory
        return self.clip * torch.tanh(self.out(torch.cat([h, context], dim=1)) / self.temperature)


class HdpNetwork(nn.Module):
    """Both networks, which are trained together."""

    def __init__(self, types: int, groups: int, hidden: int, devices: int, *, clip: float, temperature: float) -> None:
        super().__init__()
        self.groups, self.devices = groups, devices
        self.grouper = GroupingNetwork(GROUPER_HIDDEN, groups)
        self.placer = SequencePlacer(2 * groups + types + 1, hidden, devices, clip=clip, temperature=temperature)


def _draw_weights(module: nn.Module) -> None:
    for value in module.parameters():
        nn.init.uniform_(value, -SPREAD, SPREAD)
