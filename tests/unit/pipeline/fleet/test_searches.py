"""One search by many workers: the best placement of all, the best bound, and an end as soon as it is proven."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.errors import MeasurementError, UnknownNameError
from pipeline.fleet import searches
from pipeline.fleet.engine import Command, FleetWorker, Reply
from pipeline.fleet.searches import combine_answers, search_on
from pipeline.offline import worker
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search
from tests.engines import answer_here

GRAPH = {
    "operations": [{"name": n, "time_s": {"*": 1.0}} for n in "abcd"],
    "edges": [{"from": "a", "to": "b"}, {"from": "c", "to": "d"}],
}


class InProcess:
    """Executes commands in this process when they are waited for."""

    retries = True

    def __init__(self, slots: int) -> None:
        self.here = FleetWorker("here", "here", "", slots)
        self.asked: list[Command] = []
        self.done = 0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def workers(self) -> Sequence[FleetWorker]:
        return (self.here,)

    def machines(self, devices: Sequence[str]) -> Any:
        raise NotImplementedError

    def ask(self, worker: str, command: Command) -> None:
        self.asked.append(command)

    def wait(self, patience_s: float) -> list[Reply]:
        command = self.asked[self.done]
        self.done += 1
        return [Reply(command.name, "here", answer_here(worker.search_scenario, command.document))]

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    return Scenario(str(tmp_path / "graph.json"), "equal:2", seed=3)


def test_placers_take_turns_and_seeds_count_up(scenario: Scenario) -> None:
    engine = InProcess(5)
    found = search_on(engine, scenario, Effort(evaluations=5), ("random", "heft"), progress=lambda _: None)
    asked = [(c.document["effort"]["placer"], c.document["scenario"]["seed"]) for c in engine.asked]
    assert asked == [("random", 3), ("heft", 3), ("random", 4), ("heft", 4), ("random", 5)]
    alone = [search(Scenario(scenario.graph, "equal:2", seed=s), Effort(p, evaluations=5)) for p, s in asked]
    members = found["members"]
    assert [(m["placer"], m["seed"]) for m in members] == sorted(set(asked[: engine.done]))
    assert found["value_s"] == min(m["value_s"] for m in members)
    assert {m["value_s"] for m in members} <= {a["value_s"] for a in alone}


def test_nobody_goes_on_once_it_is_proven(scenario: Scenario) -> None:
    engine = InProcess(4)
    found = search_on(engine, scenario, Effort(evaluations=500), ("portfolio",), progress=lambda _: None)
    assert found["proven"]
    assert engine.done == 1
    assert len(found["members"]) == 1


def test_the_best_of_all_is_the_answer_and_the_best_bound_holds_for_it(scenario: Scenario) -> None:
    one = search(scenario, Effort("heft", evaluations=5))
    worse, better = one.copy(), one.copy()
    worse |= {"value_s": 4.0, "lower_bound_s": 1.5, "bound_by": "a proof", "seed": 1, "evaluations": 7, "seconds": 9.0}
    better |= {"value_s": 2.0, "lower_bound_s": 1.0, "bound_by": "another", "seed": 2, "evaluations": 5, "seconds": 1.0}
    found = combine_answers([worse, better])
    assert (found["value_s"], found["lower_bound_s"], found["bound_by"], found["gap"]) == (2.0, 1.5, "a proof", 0.25)
    assert (found["seed"], found["evaluations"], found["seconds"], found["proven"]) == (2, 12, 9.0, False)
    assert combine_answers([better, worse]) == found
    assert combine_answers([worse, better | {"value_s": 1.5}])["proven"]


def test_a_wrong_question_is_refused_before_anything_is_started(scenario: Scenario) -> None:
    engine = InProcess(1)
    with pytest.raises(UnknownNameError):
        search_on(engine, scenario, Effort(), ("heft", "hefty"), progress=lambda _: None)
    assert not engine.asked


def test_when_every_search_fails_the_last_cause_is_told(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        searches,
        "to_command",
        lambda scenario, effort: {"scenario": {"graph": "gone.json", "settings": {}}, "effort": {}},
    )
    engine = InProcess(2)
    with pytest.raises(MeasurementError, match=r"gone\.json"):
        search_on(engine, scenario, Effort(), ("heft",), progress=lambda _: None)
    assert [line.partition(":")[0] for line in engine.said] == ["heft, seed 3", "heft, seed 4"]


def test_files_that_settings_name_are_sent_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").write_text("")
    given = {"place.neural_list.weights": "weights", "place.anneal.rounds": 3, "coarsen.keep_dynamic": True}
    asked = worker.to_command(Scenario("zoo:rnnlm2", settings=given), Effort())
    assert asked["scenario"]["settings"] == given | {"place.neural_list.weights": str(tmp_path / "weights")}
    assert worker.files_of(asked) == (str(tmp_path / "weights"),)


def test_files_that_tell_of_one_search_are_refused(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["search", scenario.graph, "--on", "local:2", "--curve", "curve.svg"]) == 2
    assert "--on and --curve exclude each other" in capsys.readouterr().err
