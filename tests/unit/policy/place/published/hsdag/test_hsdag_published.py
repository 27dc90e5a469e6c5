"""The two published variants of HSDAG: their recipes, their losses by hand, and what they do with refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embed.features import node_features
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Recipe, Subject
from pipeline.settings.registry import build_implementation
from policy.place.base.search import Search
from policy.place.published.hsdag.agent import Design, ParsingAgent, Step
from policy.place.published.hsdag.episodes import Course, learn
from policy.place.published.hsdag.hsdag_paper import HsdagPaper
from policy.place.published.hsdag.hsdag_released import HsdagReleased
from policy.place.published.hsdag.network import ParsingRounds
from tests.toys import ToyEvaluator, branches_problem, chain_problem, ignore_progress, toy_graph, toy_problem

ONCE = ParsingRounds(to_fixed_point=False, noisy_scores=False, score_layers=0, pool_layers=0, dropout=0.0)
FIXED = ParsingRounds(to_fixed_point=True, noisy_scores=True, score_layers=2, pool_layers=1, dropout=0.2)
PAPER = Design(hidden=16, rounds=ONCE, dropped_edges=0.2, state="embeddings")
RELEASED = Design(hidden=16, rounds=FIXED, dropped_edges=0.0, state="features")
COURSE = Course(
    episodes=1, steps=3, epochs=1, learning_rate=1e-3, gamma=0.5, shared_return=False, refuse_uniform=False, patience=9
)
SHARED = dataclasses.replace(COURSE, shared_return=True)


def prepared_by(problem: Problem, recipe: Recipe) -> Problem:
    """Return the problem with the features and the embedder of a recipe, its nodes as they are."""
    features = node_features(problem.graph, problem.grouping, problem.costs, blocks=recipe.blocks).values
    embedder, grouper = build_implementation("embed", *recipe.embed), build_implementation("group", *recipe.group)
    return dataclasses.replace(problem, policy=PolicyInputs(features, embedder, grouper))


def agent(design: Design, problem: Problem, seed: int = 0) -> ParsingAgent:
    assert problem.policy is not None
    return ParsingAgent(problem, problem.policy, design, seed=seed)


def search_on(problem: Problem, evaluator: ToyEvaluator, evaluations: int = 100) -> Search:
    return Search(problem, evaluator, Budget(evaluations), ignore_progress)


class Scripted(nn.Module):
    """Draws given placements; each has the log-probability of one logit, log sigmoid(logit)."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(0.0))
        self.placements = iter(placements)
        self.starts = 0

    def restart(self) -> None:
        self.starts += 1

    def step(self) -> Step:
        return Step(next(self.placements), self.log_prob(), entropy=0.5, groups=4, again=self.log_prob)

    def log_prob(self) -> Tensor:
        return nn.functional.logsigmoid(self.logit)


def placements(problem: Problem, *first: int) -> list[Placement]:
    """Return a placement for each number: so many nodes on the first device, the others on the second."""
    n = problem.graph.n
    return [Placement((np.arange(n) >= count).astype(np.int32), problem.topology.names) for count in first]


def seconds(problem: Problem, *first: int) -> list[float]:
    evaluator = ToyEvaluator.of(problem)
    return [evaluator.value_s(placement) for placement in placements(problem, *first)]


def gradient(problem: Problem, course: Course, *first: int, refused: Sequence[bytes] = ()) -> float:
    """Return the gradient that one episode of scripted steps leaves at the logit 0, where d log p / d logit = 1/2."""
    scripted = Scripted(placements(problem, *first))
    learn(search_on(problem, ToyEvaluator.of(problem, refused)), scripted, course)
    assert scripted.logit.grad is not None
    return float(scripted.logit.grad)


def test_in_the_paper_every_step_is_credited_with_its_own_discounted_reward():
    assert [COURSE.weight(i, r) for i, r in [(1, 1.0), (2, 2.0), (3, 4.0)]] == [0.5, 0.5, 0.5]
    assert COURSE.scale([1.0, 2.0, 4.0]) == 1.0
    problem = chain_problem()
    a, b, c = seconds(problem, 3, 5, 7)
    expected = -(0.5 / a + 0.25 / b + 0.125 / c) / 2
    assert gradient(problem, COURSE, 3, 5, 7) == pytest.approx(expected, rel=1e-5)


def test_in_the_released_code_the_return_of_the_episode_is_shared():
    assert SHARED.scale([1.0, 2.0, 4.0]) == 4 + 0.5 * 2 + 0.25 * 1
    assert SHARED.weight(2, 5.0) == 1.0
    problem = chain_problem()
    a, b, c = seconds(problem, 3, 5, 7)
    expected = -(1 / c + 0.5 / b + 0.25 / a) * 3 / 2
    assert gradient(problem, SHARED, 3, 5, 7) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("course", [COURSE, SHARED])
def test_every_epoch_learns_from_the_same_draws_under_what_was_learned_by_then(course: Course):
    # d log sigmoid(logit) / d logit = 1 - sigmoid(logit); Adam's steps from here on are by the book.
    problem = chain_problem()
    course = dataclasses.replace(course, epochs=4, learning_rate=0.1)
    rewards = [1 / s for s in seconds(problem, 3, 5, 7)]
    credit = course.scale(rewards) * sum(course.weight(i, r) for i, r in enumerate(rewards, 1))
    logit = m = v = 0.0
    for t in range(1, 5):
        slope = -credit * (1 - 1 / (1 + math.exp(-logit)))
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        logit -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
    evaluator, scripted = ToyEvaluator.of(problem), Scripted(placements(problem, 3, 5, 7))
    search = search_on(problem, evaluator)
    before = search.spent
    learn(search, scripted, course)
    assert float(scripted.logit.detach()) == pytest.approx(logit, rel=1e-4)
    assert search.spent - before == 3  # epochs cost no evaluation


def test_a_draw_has_the_same_probability_again_until_something_is_learned():
    problem = prepared_by(branches_problem(), HsdagPaper(hidden=16).recipe)
    torch.manual_seed(0)
    found = agent(PAPER, problem)
    steps = [found.step() for _ in range(3)]
    before = [float(step.log_prob.detach()) for step in steps]
    for step, known in zip(steps, before, strict=True):
        assert float(step.again().detach()) == pytest.approx(known, rel=1e-6)
    optimiser = torch.optim.Adam(found.parameters(), lr=1e-2)
    steps[1].again().backward()  # log p of one draw is raised
    torch.nn.utils.clip_grad_norm_(found.parameters(), 1.0)
    for group in optimiser.param_groups:
        group["maximize"] = True
    optimiser.step()
    state = found.state.clone()
    assert float(steps[1].again().detach()) > before[1]
    assert torch.equal(found.state, state)


def test_a_draw_whose_clusters_were_taken_apart_has_the_same_probability_again():
    allowed = np.ones((12, 2), bool)
    allowed[2, 0] = allowed[3, 1] = False
    problem = prepared_by(chain_problem(allowed=allowed), HsdagPaper(hidden=16).recipe)
    torch.manual_seed(0)
    found = agent(PAPER, problem)
    for _ in range(10):
        step = found.step()
        assert float(step.again().detach()) == pytest.approx(float(step.log_prob.detach()), rel=1e-6)


def test_a_failed_placement_and_one_that_does_not_fit_have_reward_0():
    problem = chain_problem()
    (b,) = seconds(problem, 5)
    refused = [placements(problem, 3)[0].key()]
    assert gradient(problem, COURSE, 3, 5, 3, refused=refused) == pytest.approx(-0.25 / b / 2, rel=1e-5)
    allowed = np.ones((problem.graph.n, 2), bool)
    allowed[0, 0] = False
    pinned = problem.on(allowed=allowed)
    assert gradient(pinned, COURSE, 3, 5, 7) == 0.0


@pytest.mark.parametrize("refuse", [False, True])
def test_placements_on_one_device_are_refused_only_if_asked_for(refuse: bool):
    problem = chain_problem()
    course = dataclasses.replace(SHARED, refuse_uniform=refuse, gamma=1.0)
    a, b, alone = seconds(problem, 3, 5, 0)
    expected = 1 / a + 1 / b + (1e-10 if refuse else 1 / alone)
    assert gradient(problem, course, 3, 5, 0) == pytest.approx(-expected * 3 / 2, rel=1e-5)


@pytest.mark.parametrize(("refuse", "asked"), [(False, 1), (True, 0)])
def test_a_refused_placement_is_not_sent_to_the_evaluator(refuse: bool, asked: int):
    # The second device is so slow that the search does not begin with it.
    problem = toy_problem(toy_graph(3, [(0, 1), (1, 2)]), np.array([[1e-3, 1.0]] * 3))
    alone = Grouping.identity(3)
    subject = Subject(None, problem.graph, alone, problem.topology, problem.costs, 0)
    simulator = build_implementation("measure", "listsched").bind(subject)
    search = Search(problem, simulator, Budget(100), ignore_progress)
    before = simulator.evaluations
    learn(search, Scripted(placements(problem, 0, 0, 0)), dataclasses.replace(SHARED, refuse_uniform=refuse))
    assert simulator.evaluations - before == asked


def test_learning_ends_when_episodes_bring_nothing_new_or_the_budget_ends():
    problem = chain_problem()
    course = dataclasses.replace(COURSE, episodes=50, patience=2)
    idle = Scripted(placements(problem, *[3] * 150))
    learn(search_on(problem, ToyEvaluator.of(problem)), idle, course)
    assert idle.starts == 3  # in the first episode the placement was new
    evaluator = ToyEvaluator.of(problem)
    learn(search_on(problem, evaluator, 4), Scripted(placements(problem, *range(1, 12))), course)
    assert evaluator.evaluations == 4


def test_the_details_tell_entropy_groups_and_episode():
    problem = chain_problem()
    told: list[Progress] = []
    search = Search(problem, ToyEvaluator.of(problem), Budget(9), told.append)
    learn(search, Scripted(placements(problem, 3, 5, 7)), COURSE)
    assert told[-1].details == {"entropy": 0.5, "groups": 4.0, "episode": 1.0}


DESIGNS = {"paper": (PAPER, HsdagPaper(hidden=16)), "released": (RELEASED, HsdagReleased(hidden=16))}


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_the_gradient_reaches_every_parameter(name: str):
    design, placer = DESIGNS[name]
    problem = prepared_by(branches_problem(), placer.recipe)
    torch.manual_seed(0)
    found = agent(design, problem)
    for _ in range(5):
        found.step().log_prob.backward()
    silent_ones = [n for n, p in found.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert silent_ones == []
    assert any("scorer.phi" in n for n, _ in found.named_parameters())


def test_the_released_network_has_the_size_of_the_original_and_one_normalisation_more():
    # With its 17 features the original has 138,514 parameters before the placer, and 2,562 in it.
    problem, embed = chain_problem(), HsdagReleased().recipe.embed
    policy = PolicyInputs(
        np.zeros((12, 17), np.float32), build_implementation("embed", *embed), build_implementation("group", "identity")
    )
    found = ParsingAgent(problem, policy, dataclasses.replace(RELEASED, hidden=128), seed=0)
    placer = sum(p.numel() for p in found.placer.parameters())
    assert placer == 2562
    assert sum(p.numel() for p in found.parameters()) - placer == 138_514 + 2 * 128


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_nodes_of_one_cluster_get_the_same_state_and_an_episode_forgets_it(name: str):
    design, placer = DESIGNS[name]
    problem = prepared_by(branches_problem(), placer.recipe)
    torch.manual_seed(1)
    found = agent(design, problem)
    step = found.step()
    rows = {tuple(row) for row in found.state.tolist()}
    assert len(rows) == step.groups < problem.graph.n
    assert not found.state.requires_grad
    width = problem.policy.features.shape[1] if name == "released" else 16
    assert found.state.shape == (problem.graph.n, width)
    found.restart()
    assert not bool(found.state.any())


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_long_episodes_stay_finite(name: str):
    design, placer = DESIGNS[name]
    problem = prepared_by(branches_problem(), placer.recipe)
    torch.manual_seed(2)
    found = agent(design, problem)
    found.state += 1e6
    for _ in range(30):
        step = found.step()
        assert math.isfinite(float(step.log_prob.detach()))
        assert math.isfinite(step.entropy)
    step.log_prob.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in found.parameters() if p.grad is not None)


def test_the_paper_hides_a_share_of_the_edges_from_the_encoder():
    seen: list[int] = []

    class Counting(nn.Module):
        width = 4
        module = property(lambda self: self)

        def forward(self, features: Tensor, edges: Tensor) -> Tensor:
            seen.append(edges.shape[1])
            return features[:, :4]

    class Embedder:
        version = 1

        def encoder(self, features: int, *, seed: int) -> Counting:
            return Counting()

    problem = toy_problem(toy_graph(401, [(i, i + 1) for i in range(400)]), np.ones((401, 2)))
    assert problem.policy is not None
    inputs = dataclasses.replace(problem.policy, embedder=Embedder())
    torch.manual_seed(0)
    found = ParsingAgent(problem, inputs, PAPER, seed=0)
    for _ in range(10):
        found.step()
    assert np.mean(seen) == pytest.approx(320, abs=12)  # a standard error of 8 / sqrt(10) edges, four times


def test_devices_that_a_cluster_may_not_use_are_never_drawn():
    allowed = np.ones((12, 2), bool)
    allowed[2, 0] = allowed[9, 1] = False
    problem = chain_problem(allowed=allowed)
    torch.manual_seed(0)
    found = agent(PAPER, problem)
    assert all(problem.fits(found.step().placement) for _ in range(20))


def test_recipes_are_those_of_the_paper_and_of_its_code():
    paper, released = HsdagPaper().recipe, HsdagReleased().recipe
    assert paper.coarsen == (("colocate", {"rule": "paper"}),)
    assert paper.blocks == ("types", "degree_values", "dims", "fractal", "index_encoding")
    assert paper.embed == ("gcn", {"width": 128, "layers": 2, "dropout": 0.0})
    assert released.coarsen == (("colocate", {"rule": "released"}),)
    assert released.blocks == ("types", "index")
    assert released.embed[1]["dropout"] == 0.2


@pytest.mark.parametrize(
    ("without", "left_out"),
    [("", set()), ("shape", {"dims"}), ("id", {"index_encoding"}), ("structure", {"degree_values", "fractal"})],
)
def test_an_ablation_leaves_out_its_features_and_nothing_else(without: str, left_out: set[str]):
    whole, part = HsdagPaper().recipe, build_implementation("place", "hsdag_paper", {"without": without}).recipe
    assert set(whole.blocks) - set(part.blocks) == left_out
    assert part.blocks == tuple(block for block in whole.blocks if block not in left_out)
    assert dataclasses.replace(part, blocks=whole.blocks) == whole


def test_parameters_that_make_no_sense_are_refused():
    with pytest.raises(UnknownNameError, match="ablation"):
        HsdagPaper(without="shapes")  # type: ignore[arg-type]
    for cls in (HsdagPaper, HsdagReleased):
        for wrong in ({"episodes": 0}, {"learning_rate": 0.0}, {"gamma": 1.5}, {"dropout": 1.0}, {"patience": 0}):
            with pytest.raises(UsageError):
                cls(**wrong)
    with pytest.raises(UsageError):
        HsdagPaper(epochs=0)


@pytest.mark.parametrize("name", ["hsdag_paper", "hsdag_released"])
def test_without_features_nothing_is_learned(name: str):
    problem = dataclasses.replace(chain_problem(), policy=None)
    with pytest.raises(UsageError, match=name):
        build_implementation("place", name).place(
            problem, ToyEvaluator.of(problem), Budget(9), seed=0, progress=ignore_progress
        )


SWITCHES = ("refuse_uniform", "to_fixed_point", "noisy_scores", "shared_return")


@pytest.mark.parametrize("off", ["", *SWITCHES])
def test_each_fault_of_the_released_code_is_on_unless_switched_off(off: str, monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, object] = {}

    def look(search: Search, learner: ParsingAgent, course: Course) -> None:
        seen.update(dataclasses.asdict(course) | dataclasses.asdict(learner.design.rounds))

    monkeypatch.setattr("policy.place.published.hsdag.hsdag_released.learn", look)
    problem = prepared_by(chain_problem(), HsdagReleased().recipe)
    placer = HsdagReleased(**({off: False} if off else {}))
    placer.place(problem, ToyEvaluator.of(problem), Budget(9), seed=0, progress=ignore_progress)
    assert {name for name in SWITCHES if not seen[name]} == {off} - {""}
    assert (seen["episodes"], seen["steps"], seen["learning_rate"], seen["gamma"]) == (25, 20, 1e-3, 0.95)
    assert seen["epochs"] == 1


def test_the_paper_parses_once_and_credits_each_step_alone(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[Course, Design]] = []
    monkeypatch.setattr(
        "policy.place.published.hsdag.hsdag_paper.learn", lambda s, a, course: seen.append((course, a.design))
    )
    problem = prepared_by(chain_problem(), HsdagPaper().recipe)
    HsdagPaper().place(problem, ToyEvaluator.of(problem), Budget(9), seed=0, progress=ignore_progress)
    ((course, design),) = seen
    assert (course.episodes, course.steps, course.epochs, course.learning_rate) == (100, 20, 4, 1e-4)
    assert not course.shared_return
    assert not course.refuse_uniform
    assert design == dataclasses.replace(PAPER, hidden=128)


def test_an_evaluator_that_refuses_everything_teaches_nothing_and_breaks_nothing():
    problem = prepared_by(chain_problem(), HsdagPaper().recipe)

    class Refusing(ToyEvaluator):
        def evaluate(self, placements):
            self.asked.extend(placements)
            return [MeasurementFailed("refused", "no") for _ in placements]

    evaluator = Refusing.of(problem)
    answer = HsdagPaper(hidden=16, episodes=2).place(problem, evaluator, Budget(30), seed=0, progress=ignore_progress)
    assert math.isinf(answer.value_s)
