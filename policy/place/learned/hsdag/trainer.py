"""Draws of groups and scores, and what is learned from how long their schedules take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from pipeline.core.arrays import Float32, Float64, Int32, Int64
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import GroupSample, PolicyInputs, Snapshot, prefixed
from pipeline.shared.torch_tools import load_weights
from policy.place.base.history import stacked
from policy.place.base.search import Search
from policy.place.base.training import Adam, spent_share
from policy.place.learned.hsdag.agent import FAILED, AgentHyperparameters, Episode, PlacementAgent, advantages
from policy.place.learned.neural_list.constructing import Scores
from policy.place.learned.neural_list.instances import ListInstance, list_instances
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.sampling import WIDTH, Noise, Sample, Sampler, asked, drafts, ways_of
from policy.place.lists.baechi import holdable
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.submit import submit


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
    return torch.from_numpy(advantages(value_s.detach().double().numpy())).float()


PARSED_AGAIN = (
    0.5  # share of the samples in the way of a parsed one that are parsed again, in place of taking its groups
)
CLIP_NORM = 1.0  # greatest norm of a gradient
WINDOW = 0.125  # share of the budget in which draws must gain something

Way = tuple[ListInstance | None, int]
"""An instance, None where the graph is parsed for it, and how many ready operations are compared."""


class Draw(NamedTuple):
    """A schedule that is to be constructed: by scores around a centre, with the noise of a seed."""

    instance: ListInstance
    width: int
    centre: Scores
    seed: int


class DrawnSchedule(NamedTuple):
    """A schedule that was constructed, by which scores, and how the agent came to it, None without one."""

    draw: Draw
    scores: Scores
    schedule: PartialSchedule
    episode: Episode | None


@dataclass(frozen=True, slots=True)
class HsdagHyperparameters:
    """How an agent learns; `policy.place.learned.hsdag.hsdag.Hsdag` says what most fields mean.

    until: share of the budget after which nothing more is drawn. agent: None where weights alone are learned.
    """

    batch: int
    workers: int
    least_gain: float
    learns: bool
    learning_rate: float
    entropy_coef: float
    noise: Noise
    until: float
    agent: AgentHyperparameters | None


class Parser(nn.Module):
    """Encoder and grouper, as the stages before left them: what parses the graph."""

    def __init__(self, inputs: PolicyInputs, graph: Graph, *, seed: int) -> None:
        super().__init__()
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        self.encoder = inputs.embedder.encoder(inputs.features.shape[1], seed=seeds[0])
        self.grouper = inputs.grouper.build(self.encoder.width, seed=seeds[1])
        load_weights(self.encoder.module, inputs.encoder_weights)
        load_weights(self.grouper.module, inputs.grouper_weights)
        # A Protocol is no nn.Module to torch: registered under these names, they are found by parameters().
        self.encoder_module, self.grouper_module = self.encoder.module, self.grouper.module
        self.graph, self.features = graph, torch.tensor(inputs.features)

    def draws(self, r: int, rng: np.random.Generator) -> list[GroupSample]:
        """Return r draws of groupings, with the gradients of their log-probabilities."""
        nodes = self.encoder(self.features, torch.tensor(self.graph.edges, dtype=torch.int64))
        return self.grouper.draws(nodes, self.graph, r, rng=rng)

    def vector(self) -> Float32:
        """Return float32 [q], all parameters one after another."""
        return _joined([value.detach() for value in self.parameters()])

    def slopes(self, loss: Tensor) -> Float32:
        """Return float32 [q], the gradient of a loss."""
        self.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return _joined([torch.zeros_like(v) if v.grad is None else v.grad for v in self.parameters()])

    def take(self, vector: Float32) -> None:
        """Put parameters, float32 [q], in place."""
        vector_to_parameters(torch.from_numpy(vector.copy()), self.parameters())


def _joined(values: list[Tensor]) -> Float32:
    joined: Float32 = torch.cat([torch.zeros(0), *(value.reshape(-1) for value in values)]).numpy()
    return joined


class HsdagTrainer:
    """Draws groupings and scores for one search, and follows those whose schedules were fastest.

    policy: what it began with. instances: with groups that are not parsed. sampler: draws scores around the best.
    agent: adds tables of logits, None where there are none. updates: how many there were; idle: of these, the last ones
    in a row that asked about nothing. annealed: whether annealing met nothing new. warm_up: what searches before the
    first draw; begun_s: the best seconds then, nan before it. marks: after each update, the share of the budget spent
    and the best seconds.
    """

    def __init__(
        self,
        search: Search,
        parser: Parser,
        policy: ListPolicy,
        hyper: HsdagHyperparameters,
        warm_up: Callable[[Search], None],
        *,
        seed: int,
    ) -> None:
        self.search, self.parser, self.policy, self.hyper, self.warm_up = search, parser, policy, hyper, warm_up
        self.rng = np.random.default_rng(seed)
        self.adam = Adam(parser.vector())
        self.learner = LeaveOneOut(entropy_coef=hyper.entropy_coef)
        self.instances = list_instances(search)
        ways: list[Way] = [*ways_of(self.instances), (None, 1), (None, WIDTH)]
        scores = policy.scores(self.instances[0].context)
        self.sampler = Sampler(scores, ways, self.rng)
        self.agent = (
            None if hyper.agent is None else PlacementAgent(scores, self.instances[0], search.problem, hyper.agent)
        )
        self.updates = self.idle = 0
        self.annealed = False
        self.begun_s = math.nan
        self.marks: list[tuple[float, float]] = []

    @property
    def done(self) -> bool:
        """Return whether the share of the budget that draws may take is spent, or they gain too little for it."""
        return self.search.done or spent_share(self.search) >= self.hyper.until or self.stalled

    @property
    def stalled(self) -> bool:
        """Return whether the draws of the last eighth of the budget have gained less than is asked of so much of it."""
        since = spent_share(self.search) - WINDOW
        before_s = next((best_s for share, best_s in reversed(self.marks) if share <= since), math.nan)
        return before_s - self.search.best_s < self.hyper.least_gain * self.search.best_s

    def update(self, *, greedy: bool = False) -> None:
        """Draw, ask and learn once; the first time, or greedily: warm up, then schedules without noise."""
        spent = self.search.spent
        self.updates += 1
        if greedy or self.updates == 1:
            self.warm_up(self.search)
            self.begun_s = self.search.best_s if math.isnan(self.begun_s) else self.begun_s
            self.search.expect("batch of schedules", self.hyper.batch)
            for draft in drafts(self.policy, ways_of(self.instances), self.hyper.noise, self.rng, sweeps=1):
                submit(self.search, draft.instance.work, (), (draft.schedule,))
        else:
            self._draw()
        self.marks.append((spent_share(self.search), self.search.best_s))
        self.idle = 0 if self.search.spent > spent else self.idle + 1

    def _draw(self) -> None:
        """Ask about a batch of schedules; groups parsed again are compared under the same scores."""
        room = math.ceil(self.hyper.until * (self.search.spent + self.search.left)) - self.search.spent
        ways = [self._way() for _ in range(max(1, min(self.hyper.batch, room)))]
        centre, seeds = self.sampler.centre, self.rng.integers(2**63, size=len(ways)).tolist()
        drawn = list(zip(ways, seeds, strict=True))
        self._ask([Draw(instance, width, centre, seed) for (instance, width), seed in drawn if instance is not None])
        parsed = [(width, seed) for (instance, width), seed in drawn if instance is None]
        if parsed and not self.done:
            self._parse(len(parsed), *parsed[0])
        self._update_agent()
        self.search.reached()

    def _way(self) -> Way:
        instance, width = self.sampler.way()
        parsed = instance is not None and all(instance is not other for other in self.instances)
        return (None, width) if parsed and self.rng.random() < PARSED_AGAIN else (instance, width)

    def _parse(self, r: int, width: int, seed: int) -> None:
        """Ask about r groupings, drawn again, under the same scores; learn which were good."""
        samples, centre, whole = self.parser.draws(r, self.rng), self.sampler.centre, self.instances[0]
        grouped = [whole.on(self.search, holdable(self.search.problem, sample.grouping)) for sample in samples]
        value_s = self._ask([Draw(instance, width, centre, seed) for instance in grouped])
        self._learn(samples[: len(value_s)], np.array(value_s))

    def _ask(self, draws: Sequence[Draw]) -> list[float]:
        """Return the seconds of schedules, several constructed at a time, until draws have had their share; note them.

        What is asked about does not depend on how many are constructed at a time.
        """
        value_s, r = list[float](), self.hyper.workers
        with ThreadPoolExecutor(r) as pool:
            for first in range(0, len(draws), r):
                if self.done:
                    break
                for drawn in pool.map(self._drawn, draws[first : first + r]):
                    if not self.done:
                        value_s.append(self._ask_one(drawn))
        return value_s

    def _drawn(self, draw: Draw) -> DrawnSchedule:
        """Return the schedule of a draw; nothing is noted, as this runs on a thread."""
        rng = np.random.default_rng(draw.seed)
        scores = self.hyper.noise.on(draw.centre, draw.instance, rng)
        if self.agent is None:
            return DrawnSchedule(draw, scores, draw.instance.schedule(scores, width=draw.width), None)
        scores = self.agent.drawn(scores, rng)
        schedule, episode = self.agent.scheduled(draw.instance, scores, width=draw.width)
        return DrawnSchedule(draw, scores, schedule, episode)

    def _ask_one(self, drawn: DrawnSchedule) -> float:
        """Return the seconds of a schedule, and note them."""
        draw, scores = drawn.draw, drawn.scores
        seconds = asked(self.search, draw.instance, drawn.schedule)
        if self.agent is not None and drawn.episode is not None:
            scores = self.agent.undrawn(scores)
            if self.hyper.learns:
                self.agent.observe(drawn.episode, seconds)
        if self.hyper.learns:
            self.sampler.note(seconds, scores, (draw.instance, draw.width))
        return seconds

    def _update_agent(self) -> None:
        """Let the agent learn from the batch and from the incumbent."""
        if self.agent is None or not self.hyper.learns:
            return
        if self.search.best is not None:
            self.agent.admit(self.search.best_s, self.search.best.device.astype(np.int64))
        self.agent.learn(progress=min(1.0, spent_share(self.search) / self.hyper.until))
        if self.agent.hyper.rate > 0:
            self.sampler.centre = self.agent.scores

    def _learn(self, samples: list[GroupSample], value_s: Float64) -> None:
        """Make groupings likelier whose schedules were faster than those of the others."""
        if not np.isfinite(value_s).any():
            return
        decisions = torch.tensor([max(1, sample.choice.numel()) for sample in samples])
        entropy = torch.stack([sample.entropy for sample in samples]) / decisions
        groups = float(np.mean([sample.grouping.k for sample in samples]))
        self.search.details |= {
            "entropy": float(entropy.detach().mean()),
            "groups": groups,
            "update": float(self.updates),
        }
        times = np.where(np.isfinite(value_s), value_s, FAILED * value_s[np.isfinite(value_s)].max())
        log_prob = torch.stack([sample.log_prob for sample in samples])
        share = min(1.0, spent_share(self.search) / self.hyper.until)
        loss = self.learner.loss(log_prob, entropy, torch.tensor(times, dtype=torch.float32), progress=share)
        if self.hyper.learns and loss.requires_grad:
            self.adam.step(self.parser.slopes(loss), rate=self.hyper.learning_rate, most=CLIP_NORM)
            self.parser.take(self.adam.weights)

    @property
    def learned(self) -> ListPolicy:
        """Return the policy whose scores in this search's context are those that samples are drawn around."""
        return self.policy.adapted(self.instances[0].context, self.sampler.centre)

    def state(self) -> Snapshot:
        """Return everything on which the next update depends."""
        search, n = self.search.state(), self.search.problem.graph.n
        best, centre = self.sampler.best, self.sampler.centre
        arrays = prefixed("search.", search.arrays) | prefixed("adam.", self.adam.state())
        arrays |= {"torch_rng": torch.get_rng_state().numpy().copy(), "device": centre.device, "key": centre.key}
        arrays |= {
            "best.seconds": np.array([sample.seconds for sample in best]),
            "best.device": stacked([sample.scores.device for sample in best], centre.device.size, np.float64),
            "best.key": stacked([sample.scores.key for sample in best], centre.key.size, np.float64),
            "best.group": stacked([self._group(sample.way[0]) for sample in best], n, np.int32),
            "best.way": np.array([(self._number(s.way[0]), s.way[1]) for s in best], np.int64).reshape(-1, 2),
        }
        facts = {
            "search": search.facts,
            "rng": self.rng.bit_generator.state,
            "counts": [self.updates, self.idle, self.sampler.count],
            "annealed": self.annealed,
            "begun_s": self.begun_s if math.isfinite(self.begun_s) else None,
            "marks": [(share, best_s) for share, best_s in self.marks if math.isfinite(best_s)],
        }
        if self.agent is not None:
            arrays |= prefixed("agent.", self.agent.state())
        return Snapshot(arrays, facts)

    def resume(self, state: Snapshot) -> None:
        """Bring a new trainer of the same search to a state."""
        arrays, facts = state.arrays, state.facts
        self.search.resume(Snapshot(state.part("search."), facts["search"]))
        self.adam.resume(state.part("adam."))
        self.parser.take(self.adam.weights)
        torch.default_generator.set_state(torch.tensor(arrays["torch_rng"]))
        self.sampler.centre = self.sampler.centre._replace(device=arrays["device"], key=arrays["key"])
        self.rng.bit_generator.state = facts["rng"]
        self.updates, self.idle, self.sampler.count = facts["counts"]
        if self.agent is not None:
            self.agent.resume(state.part("agent."))
        self.annealed = facts["annealed"]
        begun_s = facts.get("begun_s")  # states of earlier versions have none
        self.begun_s = math.nan if begun_s is None else begun_s
        self.marks = [(share, best_s) for share, best_s in facts.get("marks", ())]
        best = state.part("best.")
        self.sampler.best = [
            Sample(
                seconds,
                self.sampler.centre._replace(device=best["device"][i], key=best["key"][i]),
                (self._instance(int(best["way"][i, 0]), best["group"][i]), int(best["way"][i, 1])),
            )
            for i, seconds in enumerate(best["seconds"].tolist())
        ]

    def _number(self, instance: ListInstance | None) -> int:
        """Return which of the instances that are not parsed this is; -1 if it is none of them."""
        return next((i for i, other in enumerate(self.instances) if other is instance), -1)

    def _group(self, instance: ListInstance | None) -> Int64:
        """Return the groups of a sample's instance, int64 [n]."""
        return self.instances[0].work.group if instance is None else instance.work.group

    def _instance(self, number: int, group: Int32) -> ListInstance:
        return self.instances[number] if number >= 0 else self.instances[0].on(self.search, Grouping(group))
