"""Draws of the agent: their probabilities, entropy and gradient against an enumeration of all it could choose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import chain, product

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.core.devices import CostTable
from pipeline.core.graph import Grouping
from pipeline.core.learning import GroupSample
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Subject
from pipeline.registry import build
from policy.place.agent.net import Policy
from policy.place.agent.proposal import Options, options, propose
from policy.place.agent.rollout import Actor, Base, Rollout, dice, likeliest
from policy.place.agent.schedule import Schedule
from policy.place.agent.world import World
from tests.slow import slow_where
from tests.toys import ToyEvaluator, toy_graph, toy_problem

N, P = 4, 2
PLAN = np.array([0, 0, 1, 0])
ROUNDING = 2e-4
MOVES, REACH = 1.5, 2.0


def small_problem(*, ordered: bool = False, allowed: np.ndarray | None = None) -> Problem:
    """Return four operations on two devices: 0 before 1 and 2, 2 before 3."""
    graph = toy_graph(N, [(0, 1), (0, 2), (2, 3)])
    op_s = np.random.default_rng(1).uniform(0.2e-3, 2e-3, (N, P))
    return dataclasses.replace(toy_problem(graph, op_s, allowed=allowed), ordered=ordered)


def actor_of(problem: Problem, *, passes: int, rounds: int = 1) -> Actor:
    """Return an actor whose policy is far from uniform."""
    assert problem.policy is not None
    inputs = dataclasses.replace(
        problem.policy,
        embedder=build("embed", "directed", {"width": 4, "layers": 1}),
        grouper=build("group", "edge_score", {"rounds": rounds, "hidden": 4}),
    )
    policy = Policy(inputs, hidden=4, execution=None, seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in chain(*(part.parameters() for part in (policy.making, policy.changing, policy.grouper.module))):
            value.add_(0.3 * torch.randn(value.shape, generator=generator))
    return Actor(problem, World.of(problem), policy, torch.tensor(inputs.features), passes)


def base_of(problem: Problem, kind: str) -> Base:
    """Return a plan to change, or nothing if it is `fresh`; a `scheduled` one with its timeline."""
    order = np.array([1.0, 0.0, 3.0, 2.0]) if problem.ordered else None
    if kind == "fresh":
        return Base(None, 3.0, order=order)
    plan = Placement(PLAN, problem.topology.names, order)
    if kind == "changed":
        return Base(plan, 3.0, order=order)
    assert isinstance(problem.costs, CostTable)
    subject = Subject(None, problem.graph, Grouping.identity(N), problem.topology, problem.costs, 0)
    timeline = build("measure", "listsched", {"level": "T0"}).bind(subject).timeline(plan)
    return Base(plan, 3.0, Schedule.of(timeline, problem.graph, World.of(problem)), order)


def every_grouping(actor: Actor, nodes: Tensor) -> list[GroupSample]:
    """Return each grouping that may be drawn, by all its ways: drawn until their probabilities add up to one."""
    drawn = actor.policy.grouper.draws(nodes, actor.problem.graph, 800, rng=np.random.default_rng(0))
    found = list({tuple(sample.choice.tolist()): sample for sample in drawn}.values())
    assert sum(math.exp(float(s.log_prob.detach())) for s in found) == pytest.approx(1.0, abs=ROUNDING)
    return found


@dataclasses.dataclass
class Replay:
    """Chooses as rows int64 [r, steps, k] say; where that is barred something else, and the row is void."""

    rows: Tensor
    void: Tensor
    step: int = 0

    def __call__(self, log_p: Tensor) -> Tensor:
        r = len(self.rows)
        wanted = self.rows[:, self.step].reshape(-1)
        self.step += 1
        forbidden = torch.isinf(log_p.detach().gather(1, wanted[:, None])[:, 0])
        self.void |= forbidden.reshape(r, -1).any(dim=1)
        return torch.where(forbidden, likeliest(log_p), wanted)


@dataclasses.dataclass(frozen=True)
class Table:
    """Everything that may be drawn: key -> row of log_prob, entropy (of a whole draw), both [x], and placements."""

    row: dict[tuple[int, ...], int]
    log_prob: Tensor
    entropy: Tensor
    placements: list[Placement]

    @property
    def p(self) -> Tensor:
        return self.log_prob.double().exp()


def enumerated(actor: Actor, base: Base) -> Table:
    """Return all draws, by trying every grouping and all that its groups can choose."""
    nodes = actor.nodes()
    ordered = base.order is not None
    row: dict[tuple[int, ...], int] = {}
    log_prob, entropy, placements = [], [], []
    for sample in every_grouping(actor, nodes):
        k = sample.grouping.k
        steps = [P + 1] * actor.passes + [3] * ordered
        rows = torch.tensor(list(product(*(range(t) for t in steps for _ in range(k))))).reshape(-1, len(steps), k)
        r = len(rows)
        replay = Replay(rows, torch.zeros(r, dtype=torch.bool))
        # A void draw has made something else of it, which another row counts.
        found = rolled(actor, nodes, [base] * r, [sample] * r, replay)
        decisions = max(1, sample.choice.numel()) + k * len(steps)
        for i in torch.nonzero(~replay.void).flatten().tolist():
            row[(*sample.choice.tolist(), *rows[i].flatten().tolist())] = len(row)
            placements.append(found.placements[i])
        log_prob.append(found.log_prob[~replay.void])
        entropy.append(found.entropy[~replay.void] * decisions)
    return Table(row, torch.cat(log_prob), torch.cat(entropy), placements)


def rolled(actor: Actor, nodes: Tensor, bases: Sequence[Base], samples: Sequence[GroupSample], choose) -> Rollout:
    some = np.ones(len(bases))
    return actor.rollout(nodes, bases, samples, choose, moves=MOVES * some, reach=REACH * some)


def drawn(actor: Actor, base: Base, r: int, rng: np.random.Generator) -> tuple[Rollout, list[tuple[int, ...]]]:
    """Return r draws and the key of each in the table."""
    nodes = actor.nodes()
    samples = actor.policy.grouper.draws(nodes, actor.problem.graph, r, rng=rng)
    steps: list[Tensor] = []
    roll = dice(rng)

    def choose(log_p: Tensor) -> Tensor:
        steps.append(roll(log_p))
        return steps[-1]

    found = rolled(actor, nodes, [base] * r, samples, choose)
    parts = [torch.split(step, found.groups) for step in steps]
    keys = [(*s.choice.tolist(), *(int(c) for part in parts for c in part[i])) for i, s in enumerate(samples)]
    return found, keys


CASES = [("changed", 2, False), ("changed", 1, True), ("fresh", 2, False), ("scheduled", 2, False), ("fresh", 1, True)]
cases = pytest.mark.parametrize(("kind", "passes", "ordered"), slow_where(CASES, CASES[2:]))


@cases
@torch.no_grad()
def test_probabilities_of_all_draws_add_up_to_one_and_entropy_is_theirs(kind: str, passes: int, ordered: bool):
    problem = small_problem(ordered=ordered)
    table = enumerated(actor_of(problem, passes=passes), base_of(problem, kind))
    assert len(table.row) > 20
    assert float(table.p.sum()) == pytest.approx(1.0, abs=ROUNDING)
    expected = -float((table.p * table.log_prob).sum())
    assert float((table.p * table.entropy).sum()) == pytest.approx(expected, rel=ROUNDING)
    assert expected < 0.9 * math.log(len(table.row))  # far from uniform, so that mistakes show


@cases
@torch.no_grad()
def test_a_draw_counts_its_own_probability_and_comes_as_often_as_that_says(kind: str, passes: int, ordered: bool):
    problem, r = small_problem(ordered=ordered), 3000
    actor, base = actor_of(problem, passes=passes), base_of(small_problem(ordered=ordered), kind)
    table = enumerated(actor, base)
    found, keys = drawn(actor, base, r, np.random.default_rng(0))
    rows = [table.row[key] for key in keys]
    assert torch.allclose(found.log_prob, table.log_prob[rows], atol=1e-4)
    assert [p.key() for p in found.placements] == [table.placements[i].key() for i in rows]
    p = table.p.numpy()
    plans = [placement.key() for placement in table.placements]
    for plan in set(plans):
        expected = p[[key == plan for key in plans]].sum()
        share = np.mean([placement.key() == plan for placement in found.placements])
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / r) + 2 / r)


def test_more_rounds_of_merging_are_counted_as_well():
    problem = small_problem()
    actor = actor_of(problem, passes=1, rounds=2)
    with torch.no_grad():
        table = enumerated(actor, base_of(problem, "changed"))
    assert float(table.p.sum()) == pytest.approx(1.0, abs=ROUNDING)
    assert float((table.p * (table.entropy + table.log_prob)).sum()) == pytest.approx(0.0, abs=1e-3)


def some_parameters(actor: Actor, part: str) -> list[Tensor]:
    """Return parameters of the heads and the encoder, or of the grouper; so few that estimates are sharp."""
    policy = actor.policy
    if part == "grouper":
        named = dict(policy.grouper.module.named_parameters())
        return [named["b"], named["phi.3.weight"]]
    heads = [value for head in (policy.making, policy.changing) for value in (head.v, head.out.weight)]
    return [*heads, list(policy.encoder.module.parameters())[-1]]


def fast(problem: Problem, placement: Placement) -> float:
    return -1e3 * ToyEvaluator.of(problem).value_s(placement)


def together(_: Problem, placement: Placement) -> float:
    return float(np.ptp(placement.device) == 0)  # which one group is for certain


@pytest.mark.parametrize(
    ("kind", "passes", "part", "reward"),
    [
        pytest.param("fresh", 1, "heads", fast, marks=pytest.mark.slow),
        pytest.param("changed", 2, "heads", fast, marks=pytest.mark.slow),
        ("fresh", 1, "grouper", together),
    ],
)
def test_the_gradient_estimated_from_draws_is_that_of_the_expected_reward(kind: str, passes: int, part: str, reward):
    problem = small_problem()
    actor, base = actor_of(problem, passes=passes), base_of(problem, kind)
    parameters = some_parameters(actor, part)

    def gradient(value: Tensor) -> Tensor:
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters, materialize_grads=True)])

    def rewards(placements: list[Placement]) -> Tensor:
        return torch.tensor([known[p.key()] for p in placements], dtype=torch.float32)

    table = enumerated(actor, base)
    known = {p.key(): reward(problem, p) for p in {p.key(): p for p in table.placements}.values()}
    mean = (table.log_prob.exp() * rewards(table.placements)).sum()
    exact = gradient(mean)
    rng, estimates = np.random.default_rng(0), []
    for _ in range(120):
        found, _ = drawn(actor, base, 40, rng)
        estimates.append(gradient((found.log_prob * (rewards(found.placements) - mean.detach())).mean()))
    made = torch.stack(estimates)
    error = made.std(dim=0) / math.sqrt(len(estimates))
    assert float(exact.norm()) > 3 * float(error.norm())  # else anything would pass
    assert bool(((made.mean(dim=0) - exact).abs() <= 4 * error + 1e-5).all())


def test_the_likeliest_draw_is_decoded():
    problem = small_problem()
    actor, base = actor_of(problem, passes=1), base_of(problem, "fresh")
    with torch.no_grad():
        nodes = actor.nodes()
        made = actor.decode(nodes, base)
        greedy = actor.policy.grouper.group(nodes, problem.graph, rng=np.random.default_rng(0), greedy=True)
        rows = torch.tensor(list(product(range(P), repeat=greedy.grouping.k)))[:, None]
        replay = Replay(rows, torch.zeros(len(rows), dtype=torch.bool))
        found = rolled(actor, nodes, [base] * len(rows), [greedy] * len(rows), replay)
    best = int(found.log_prob.argmax())
    assert made.placements[0].key() == found.placements[best].key()
    assert float(made.log_prob) == pytest.approx(float(found.log_prob[best]), abs=1e-5)


@pytest.mark.parametrize("moves", [1.0, 2.0, 5.0])
@torch.no_grad()
def test_about_as_many_groups_move_as_asked_if_all_targets_are_alike(moves: float):
    n, p, r = 60, 3, 200
    problem = toy_problem(toy_graph(n, []), np.ones((n, p)))
    assert problem.policy is not None
    policy = Policy(problem.policy, hidden=4, execution=None, seed=0)
    for value in policy.changing.parameters():
        value.zero_()
    actor = Actor(problem, World.of(problem), policy, torch.tensor(problem.policy.features), 1)
    plan = Placement(np.zeros(n), problem.topology.names)
    asked = np.full(r, moves)
    found = actor.draw(actor.nodes(), [Base(plan, 1.0)] * r, moves=asked, reach=asked, rng=np.random.default_rng(0))
    count = np.mean([np.sum(q.device != plan.device) for q in found.placements])
    expected = n * moves / (n + moves)  # a little less than asked: p_move = moves / (n + moves)
    assert count == pytest.approx(expected, abs=4 * math.sqrt(moves / r))


@torch.no_grad()
def test_groups_shift_in_the_order_by_their_reach_and_ties_keep_it():
    problem = small_problem(ordered=True)
    actor = actor_of(problem, passes=1)
    base = base_of(problem, "changed")  # places 1, 0, 3, 2
    sample = GroupSample(Grouping.identity(N), torch.zeros(0), torch.zeros(()), torch.zeros(()))

    def order(shifts: list[int], reach: float) -> list[float]:
        steps = iter([torch.full((N,), P), torch.tensor(shifts)])
        one = np.ones(1)
        found = actor.rollout(
            actor.nodes(), [base], [sample], lambda _: next(steps), moves=one, reach=reach * one
        ).placements[0]
        assert found.device.tolist() == PLAN.tolist()
        assert found.priority is not None
        return found.priority.tolist()  # type: ignore[no-any-return]

    assert order([1, 1, 1, 1], 9.0) == [1, 0, 3, 2]
    assert order([1, 1, 0, 1], 9.0) == [2, 1, 0, 3]
    assert order([1, 2, 1, 1], 1.5) == [0, 1, 3, 2]
    assert order([1, 1, 1, 0], 1.0) == [1, 0, 3, 2]  # 2 - 1 ties with 1, which came first


def test_tied_operations_and_groups_without_a_common_device_are_drawn_apart():
    allowed = np.array([[True, False], [False, True], [True, True], [True, True]])
    problem = small_problem(allowed=allowed)
    actor = actor_of(problem, passes=2, rounds=2)
    with torch.no_grad():
        found, _ = drawn(actor, base_of(problem, "fresh"), 60, np.random.default_rng(0))
    assert all(problem.fits(placement) for placement in found.placements)


# Single moves


def options_of(actor: Actor, base: Base, r: int = 6) -> Options:
    assert base.plan is not None
    return options(actor, actor.nodes(), base, base.plan, r=r, rng=np.random.default_rng(5))


@pytest.mark.parametrize("ordered", [False, True])
@torch.no_grad()
def test_options_add_up_to_one_for_each_grouping_and_their_entropy_is_the_distributions(ordered: bool):
    problem = small_problem(ordered=ordered)
    found = options_of(actor_of(problem, passes=1), base_of(problem, "changed"))
    assert len(set(found.groups.k.tolist())) > 1
    for i, part in enumerate(torch.split(found.log_p, found.groups.k.tolist())):
        p = part.double().exp()
        assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
        assert bool((p[:, P:] > 0).all()) == ordered
        entropy = -float((p * torch.where(p > 0, part.double(), 0.0)).sum())
        assert float(found.entropy[i]) == pytest.approx(entropy / math.log(part.numel()), abs=1e-5)


@torch.no_grad()
def test_the_odds_of_a_move_are_its_score_over_that_of_staying():
    problem = small_problem(ordered=True)
    actor, base = actor_of(problem, passes=1), base_of(problem, "changed")
    found = options_of(actor, base)
    head = actor.policy.changing
    seen: list[tuple[Tensor, Tensor]] = []
    net, head_scores = type(head), type(head).scores

    def spy(self, z, at):  # what the head was asked
        seen.append((head_scores(self, z, at), actor.policy.ordering(z)))
        return seen[-1][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net, "scores", spy)
        options_of(actor, base)
    score, shift = seen[0]
    odds = torch.cat([score[:, :P] - score[:, P:], shift[:, [0, 2]] - shift[:, 1:2]], dim=1)
    for log_p, expected in zip(
        torch.split(found.log_p, found.groups.k.tolist()), torch.split(odds, found.groups.k.tolist()), strict=True
    ):
        difference = (log_p - expected)[torch.isfinite(expected)]
        assert difference.tolist() == pytest.approx([float(difference[0])] * len(difference), abs=1e-5)


@torch.no_grad()
def test_a_proposed_move_is_as_likely_as_its_grouping_and_its_option_and_moves_all_members():
    problem = small_problem(ordered=True)
    actor, base = actor_of(problem, passes=1), base_of(problem, "changed")
    found = options_of(actor, base)
    group, option = found.drawn(3, np.random.default_rng(7))
    proposal = propose(found, each=3, reach=2.5, rng=np.random.default_rng(7))
    assert proposal is not None
    moves = proposal.moves
    assert moves.r == group.size == 3 * 6
    assert set(option.tolist()) == set(range(P + 2))  # else the shifts were not looked at
    for i, (g, o) in enumerate(zip(group.tolist(), option.tolist(), strict=True)):
        grouping = int(found.groups.owner[g])
        members = np.flatnonzero(found.groups.label[grouping].numpy() == g)
        assert moves.node[moves.ptr[i] : moves.ptr[i + 1]].tolist() == members.tolist()
        expected = {P: (-1, -2.5), P + 1: (-1, 2.5)}.get(o, (o, 0.0))
        assert (int(moves.device[i]), float(moves.shift[i])) == expected
        log_p = float(found.log_p[g, o]) + float(found.log_prob[grouping])
        assert float(proposal.log_prob[i]) == pytest.approx(log_p, abs=1e-6)
        assert float(proposal.entropy[i]) == pytest.approx(float(found.entropy[grouping]), abs=1e-6)
    pairs = list(zip(group.tolist(), option.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


@torch.no_grad()
def test_a_single_move_comes_as_often_as_its_probability_says():
    problem = small_problem(ordered=True)
    found = options_of(actor_of(problem, passes=1), base_of(problem, "changed"), r=1)
    rng, r = np.random.default_rng(0), 4000
    count = np.zeros(found.log_p.shape)
    for _ in range(r):
        group, option = found.drawn(1, rng)
        count[group, option] += 1
    p = found.log_p.double().exp().numpy()
    assert (np.abs(count / r - p) <= 4 * np.sqrt(p * (1 - p) / r)).all()
    assert p[p > 0].min() < 0.5 * p.max()  # where a draw from another distribution would show


def test_a_grouping_that_can_move_nowhere_spoils_no_gradient():
    # 0 must run on A: where all four are one group on A, it stays there; other groupings can still move the rest.
    problem = small_problem(allowed=np.array([[True, False], [True, True], [True, True], [True, True]]))
    actor = actor_of(problem, passes=1, rounds=3)
    base = Base(Placement.single(N, 0, problem.topology.names), 3.0)
    found = options_of(actor, base, r=30)
    assert found.groups.k.min() == 1 < found.groups.k.max()
    proposal = propose(found, each=4, reach=1.0, rng=np.random.default_rng(0))
    assert proposal is not None
    assert bool((proposal.moves.device == 1).all())
    (proposal.log_prob.sum() + proposal.entropy.sum()).backward()
    gradients = [value.grad for value in actor.policy.parameters() if value.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_nothing_is_proposed_where_nothing_can_move():
    problem = small_problem(allowed=np.array([[True, False]] * N))
    found = options_of(actor_of(problem, passes=1), Base(Placement.single(N, 0, problem.topology.names), 3.0))
    assert propose(found, each=4, reach=1.0, rng=np.random.default_rng(0)) is None
