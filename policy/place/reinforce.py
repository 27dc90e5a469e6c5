"""A policy-gradient agent: encoder, grouper and device choice trained together on one graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, PolicyInputs, Problem, ProgressHook
from pipeline.core.stages import Answer, Encoder, Evaluator, GroupModel, GroupSample
from pipeline.torch_tools import load_weights, seeded
from policy.learn.leave_one_out import LeaveOneOut
from policy.place.search import Search, placeable

EXTRAS = 2  # group size and mean time
FAILED = 2.0  # a placement that failed counts as so many times the slowest one that did not


@dataclass(frozen=True, slots=True)
class Reinforce:
    """Samples a grouping and a device for each group, asks what that costs, and makes the faster samples likelier.

        z = encoder(features),  groups ~ grouper(z),  device of group g ~ softmax(MLP(mean of z over g, size, time))

    One step draws `batch` samples from one pass of the encoder and ends in one Adam step on all parameters; samples
    seen before teach too and cost nothing. When a policy has settled, and so draws nothing new, its most likely
    placement is evaluated and the rest of the budget goes to a fresh policy, until one finds nothing new at all. The
    best placement seen is the answer. The problem's own grouping is not looked at: the grouper draws new ones.

    Source: Duan et al., NeurIPS 2024 (HSDAG). Deliberate differences: an advantage for each
    sample (see `LeaveOneOut`) on the logarithm of the time; the grouping has a log-probability and is learned; group
    features are means; entropy bonus; gradient clipping; single devices are candidates.
    """

    version: ClassVar[int] = 1

    batch: int = param(8, "samples per update")
    learning_rate: float = param(3e-3, "step size of Adam")
    hidden: int = param(64, "width of the network that chooses devices")
    entropy: float = param(0.3, "weight of the entropy bonus at the start; it falls to 0 with the budget")
    patience: int = param(5, "start anew after so many updates without a placement that is new")

    def __post_init__(self) -> None:
        counts = min(self.batch, self.hidden, self.patience)
        if counts < 1 or not self.learning_rate > 0 or self.entropy < 0:
            raise UsageError(f"{self} cannot learn.", "Use counts of at least 1, a positive rate, no negative entropy.")

    def place(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, *, seed: int, progress: ProgressHook
    ) -> Answer:
        """Return the best placements seen while learning.

        Raises:
            UsageError: the problem has no policy inputs, or weights that do not fit them.
            DeviceError: no placement fits the devices.
        """
        if problem.policy is None:
            raise UsageError(
                "The placer 'reinforce' learns on features and groups, and there are none.",
                "Run it with an embed and a group stage.",
            )
        search = Search(problem, evaluator, budget, progress, author="reinforce")
        lives = np.random.SeedSequence(seed)
        while search.left > 1:
            spent, life = search.spent, int(lives.spawn(1)[0].generate_state(1)[0])
            with seeded(life):  # dropout draws from torch's own generator
                self._learn(search, Agent(problem, problem.policy, hidden=self.hidden, seed=life))
            if search.spent == spent:
                break
        return search.answer()

    def _learn(self, search: Search, agent: Agent) -> None:
        learner = LeaveOneOut(entropy=self.entropy)
        optimiser = torch.optim.Adam(agent.parameters(), lr=self.learning_rate)
        agent.train()
        idle, slowest_s = 0, search.best_s if np.isfinite(search.best_s) else 0.0
        while search.left > 1 and idle < self.patience:
            spent = search.spent
            rollout = agent.sample(min(self.batch, search.left - 1))
            value_s = search.evaluate(rollout.placements)
            idle = idle + 1 if search.spent == spent else 0
            known = value_s[np.isfinite(value_s)]
            slowest_s = max(slowest_s, float(known.max(initial=0.0)))
            if slowest_s == 0.0 or np.isnan(value_s).any():
                continue  # nothing to compare with, or out of time
            times = torch.tensor(np.where(np.isinf(value_s), FAILED * slowest_s, value_s), dtype=torch.float32)
            share = min(1.0, search.spent / search.budget.evaluations)
            loss = learner.loss(rollout.log_prob, rollout.entropy, times, progress=share)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optimiser.step()
        agent.eval()
        search.evaluate([agent.decode()])


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """r sampled placements, with the logarithm of their probability and the entropy they were drawn with.

    log_prob, entropy: float32 [r], with gradient.
    """

    placements: list[Placement]
    log_prob: Tensor
    entropy: Tensor


class Agent(nn.Module):
    """The encoder, the grouper, and the network that chooses a device for each group of one problem."""

    def __init__(self, problem: Problem, policy: PolicyInputs, *, hidden: int, seed: int) -> None:
        super().__init__()
        self.problem = problem
        self.features = torch.tensor(policy.features)
        self.edges = torch.tensor(problem.graph.edges, dtype=torch.int64)
        seeds = np.random.SeedSequence(seed).generate_state(5).tolist()
        self.encoder: Encoder = policy.embedder.encoder(policy.features.shape[1], seed=seeds[0])
        self.grouper: GroupModel = policy.grouper.build(self.encoder.width, seed=seeds[1])
        load_weights(self.encoder.module, policy.encoder_weights)
        load_weights(self.grouper.module, policy.grouper_weights)
        with seeded(seeds[2]):
            self.head = _head(self.encoder.width + EXTRAS, hidden, problem.topology.p)
        # A Protocol is no nn.Module to torch: registered under these names, they are found by parameters() and train().
        self.encoder_module, self.grouper_module = self.encoder.module, self.grouper.module
        self.log_time = _log_mean_time(problem)
        self.rng = np.random.default_rng(seeds[3])
        self.generator = torch.Generator().manual_seed(seeds[4])

    def sample(self, r: int) -> Rollout:
        """Return r draws."""
        nodes = self.encoder(self.features, self.edges)
        drawn = self._groupings(nodes, r)
        groupings = [placeable(self.problem, sample.grouping) for sample in drawn]
        log_p = self._log_probs(nodes, groupings)  # [K, p], the groups of all samples below one another
        device = torch.multinomial(log_p.detach().exp(), 1, generator=self.generator).squeeze(1)
        owner = torch.arange(r).repeat_interleave(torch.tensor([grouping.k for grouping in groupings]))
        chosen = log_p.gather(1, device[:, None]).squeeze(1)
        spread = -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(dim=1)
        zero = log_p.new_zeros(r)
        return Rollout(
            self._placements(groupings, device),
            torch.stack([sample.log_prob for sample in drawn]) + zero.index_add(0, owner, chosen),
            torch.stack([sample.entropy for sample in drawn]) + zero.index_add(0, owner, spread),
        )

    @torch.no_grad()
    def decode(self) -> Placement:
        """Return the placement of the most likely grouping with the most likely device for each group."""
        nodes = self.encoder(self.features, self.edges)
        sample = self.grouper.group(nodes, self.problem.graph, rng=self.rng, greedy=True)
        grouping = placeable(self.problem, sample.grouping)
        return self._placements([grouping], self._log_probs(nodes, [grouping]).argmax(dim=1))[0]

    def _groupings(self, nodes: Tensor, r: int) -> list[GroupSample]:
        first = self.grouper.group(nodes, self.problem.graph, rng=self.rng, greedy=False)
        if first.choice.numel() == 0:
            return [first] * r  # nothing was drawn: the others would be the same
        draw = self.grouper.group
        return [first, *(draw(nodes, self.problem.graph, rng=self.rng, greedy=False) for _ in range(r - 1))]

    def _log_probs(self, nodes: Tensor, groupings: list[Grouping]) -> Tensor:
        """Return float32 [K, p], log-probabilities of the devices of all groups of all groupings; -inf if not allowed.

        nodes: float32 [n, h].
        """
        first = np.cumsum([0, *(grouping.k for grouping in groupings)])
        stacked = np.concatenate([g.group + at for g, at in zip(groupings, first[:-1].tolist(), strict=True)])  # [r n]
        group = torch.tensor(stacked, dtype=torch.int64)
        r, total = len(groupings), int(first[-1])
        size = torch.bincount(group, minlength=total)[:, None]
        known = torch.cat([nodes, self.log_time], dim=1).repeat(r, 1)  # [r n, h + 1]
        mean = known.new_zeros(total, known.shape[1]).index_add(0, group, known) / size
        logits = self.head(torch.cat([mean, size.log().to(mean.dtype)], dim=1))
        allowed = np.concatenate([self.problem.group_allowed(grouping) for grouping in groupings])
        return torch.log_softmax(logits.masked_fill(torch.tensor(~allowed), -torch.inf), dim=1)

    def _placements(self, groupings: list[Grouping], device: Tensor) -> list[Placement]:
        """Return a placement of the nodes for each grouping, from the devices of all groups, int64 [K]."""
        names, bounds = self.problem.topology.names, np.cumsum([grouping.k for grouping in groupings])[:-1]
        parts = np.split(device.numpy(), bounds)
        return [Placement(part, names).lift(grouping) for part, grouping in zip(parts, groupings, strict=True)]


def _head(width: int, hidden: int, p: int) -> nn.Sequential:
    """Return the network from group features to device logits; it starts out nearly indifferent."""
    last = nn.Linear(hidden, p)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), last)


def _log_mean_time(problem: Problem) -> Tensor:
    """Return float32 [n, 1], log mean time of each node over its devices, standardised; 0 where nothing is known."""
    if problem.costs is None:
        return torch.zeros(problem.graph.n, 1)
    supported = problem.costs.supported
    mean_s: Float64 = np.where(supported, problem.costs.op_s, 0.0).sum(axis=1) / np.maximum(supported.sum(axis=1), 1)
    logs = np.log1p(mean_s * 1e6)
    return torch.tensor((logs - logs.mean()) / max(float(logs.std()), 1e-9), dtype=torch.float32)[:, None]
