"""The agent learns known optima by the exact policy gradient, and by imitation; with the sign flipped it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.core.arrays import Int64
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.learned.hsdag.agent import ELITES, AgentHyperparameters, PlacementAgent, advantages
from policy.place.learned.neural_list.constructing import FIGURES, KEY_FIGURES, Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.sampling import Noise
from policy.place.lists.work import work_of
from tests.toys import BRANCHES_OPTIMUM_S, CHAIN_OPTIMUM_S, ToyEvaluator, branches_problem, chain_problem

UNIFORM = Scores(np.zeros(FIGURES), np.zeros(len(KEY_FIGURES)), np.zeros((0, 0)))
CHAIN_OPTIMUM = np.repeat([1, 0], 6)


def agent_of(problem: Problem, **values: Any) -> PlacementAgent:
    given = {"rate": 0.0, "table_rate": 0.0, "imitation_coef": 0.0, "entropy_coef": 0.0, "ordered": False, **values}
    return PlacementAgent(
        UNIFORM, ListInstance.of(work_of(problem)), problem, AgentHyperparameters(Noise(0.0, 1.0), **given)
    )


def value_s(problem: Problem, device: Int64) -> float:
    return ToyEvaluator.of(problem).value_s(Placement(device, problem.topology.names))


def learn(agent: PlacementAgent, problem: Problem, updates: int) -> list[float]:
    """Return the mean time of the draws of each update."""
    rng, means = np.random.default_rng(0), list[float]()
    for _ in range(updates):
        seconds = list[float]()
        for _ in range(32):
            schedule, episode = agent.scheduled(agent.instance, agent.drawn(agent.scores, rng), width=1)
            seconds.append(value_s(problem, schedule.homes.device))
            agent.observe(episode, seconds[-1])
        agent.learn(progress=0.0)
        means.append(float(np.mean(seconds)))
    return means


def most_likely_s(agent: PlacementAgent, problem: Problem) -> float:
    schedule = agent.instance.schedule(agent.scores._replace(noise=agent.unit * agent.table))
    return value_s(problem, schedule.homes.device)


def test_tables_learn_the_optimum_of_a_chain():
    problem = chain_problem()
    agent = agent_of(problem, table_rate=1.0)
    learn(agent, problem, 60)
    assert most_likely_s(agent, problem) == pytest.approx(CHAIN_OPTIMUM_S)


def test_weights_learn_which_device_is_fast():
    problem = branches_problem()
    agent = agent_of(problem, rate=0.05)
    means = learn(agent, problem, 60)
    assert np.mean(means[-5:]) < 0.8 * np.mean(means[:5])
    assert np.mean(means[-5:]) > BRANCHES_OPTIMUM_S


def test_what_is_imitated_becomes_the_most_likely():
    problem = chain_problem()
    agent = agent_of(problem, imitation_coef=0.5)
    agent.admit(CHAIN_OPTIMUM_S, CHAIN_OPTIMUM)
    agent.admit(10 * CHAIN_OPTIMUM_S, np.zeros(12, np.int64))
    for _ in range(20):
        agent.elites = agent.elites[:1]
        agent.learn(progress=0.0)
    assert most_likely_s(agent, problem) == pytest.approx(CHAIN_OPTIMUM_S)


def test_elites_are_the_fastest_and_differ():
    agent = agent_of(chain_problem())
    for seconds in (5.0, 3.0, 4.0, 1.0, 2.0, np.inf):
        agent.admit(seconds, np.arange(12) % 2 if seconds == 1.0 else np.repeat([0, 1], 6) ^ (int(min(seconds, 9)) % 2))
    assert [seconds for seconds, _ in agent.elites] == sorted(seconds for seconds, _ in agent.elites)
    assert len(agent.elites) <= ELITES
    assert len({device.tobytes() for _, device in agent.elites}) == len(agent.elites)
    assert agent.elites[0][0] == 1.0


def test_devices_that_are_alike_are_renamed_like_the_fastest():
    problem = chain_problem()
    agent = agent_of(problem)
    agent._alike[:] = True
    agent.admit(1.0, np.repeat([0, 1], 6))
    agent.admit(2.0, np.repeat([1, 0], [5, 7]))
    assert agent.elites[1][1].tolist() == np.repeat([0, 1], [5, 7]).tolist()


def test_advantages_of_three_times():
    # Rewards 0, -1, -2 in groups of log 10; without itself the means are -1.5, -1, -0.5; deviation sqrt(2 / 3).
    assert advantages(np.array([1.0, 10.0, 100.0])).tolist() == pytest.approx([1.5 * 1.5**0.5, 0.0, -1.5 * 1.5**0.5])
    assert advantages(np.array([1.0, np.inf])).tolist() == pytest.approx([2.0, -2.0])
    for equal in ([1.0], [2.0, 2.0], [np.inf, np.inf]):
        assert advantages(np.array(equal)).tolist() == [0.0] * len(equal)


def test_keys_are_drawn_as_logits_and_noted_in_their_own_units():
    agent = agent_of(chain_problem(), ordered=True)
    agent.unit = 0.5
    drawn = agent.drawn(UNIFORM._replace(key=np.full(len(KEY_FIGURES), 3.0)), np.random.default_rng(0))
    assert drawn.key[0] == 6.0
    assert drawn.turn.shape == (12,)
    assert agent.undrawn(drawn).key[0] == 3.0
    assert agent.undrawn(drawn).turn.size == 0


def test_an_agent_goes_on_from_its_state():
    problem = chain_problem()
    first, again = (agent_of(problem, table_rate=1.0, rate=0.1, imitation_coef=0.1) for _ in range(2))
    first.admit(CHAIN_OPTIMUM_S, CHAIN_OPTIMUM)
    learn(first, problem, 3)
    again.resume(first.state())
    learn(first, problem, 2)
    learn(again, problem, 2)
    assert all(np.array_equal(values, again.state()[name]) for name, values in first.state().items())
