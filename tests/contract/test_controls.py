"""Controls know nothing that was learned anywhere: no weights that ship change what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from pipeline.core.arrays import Float64
from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget
from pipeline.core.stages import AblatedPlacer, Answer, ControlledPlacer, LearningPlacer
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.recipes import for_placer, lift_answer
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.shared.contraction.edge_network import weight_shapes
from policy.place.base import contraction
from policy.place.learned.neural_list import list_policy, neural_list
from policy.place.learned.neural_list.list_policy import ListPolicy
from tests.contract.test_placers import PUBLISHED, QUICK
from tests.slow import slow_where
from tests.toys import ignore_progress

EVALUATIONS = 300


def listed(kind: str) -> Iterator[tuple[str, str]]:
    """Yield every placer with each of its controls, or its ablations."""
    for name in sorted(implementation_table("place")):
        placer = build_implementation("place", name)
        if isinstance(placer, ControlledPlacer) and kind == "controls":
            yield from ((name, control) for control in placer.controls)
        if isinstance(placer, AblatedPlacer) and kind == "ablations":
            yield from ((name, ablation) for ablation in placer.ablations)


@cache
def case() -> LoadedScenario:
    return load(Scenario("zoo:layered?n=120&ccr=3", "equal:4"))  # of so many operations clusters are moved as well


def answer_of(name: str, values: dict[str, Any]) -> Answer:
    placer = build_implementation("place", name, {**QUICK.get(name, {}), **values})
    loaded = case().with_policy() if isinstance(placer, LearningPlacer) else case()
    alone = Grouping.identity(loaded.graph.n)
    grouping, problem = for_placer(placer, loaded.problem, lambda: (alone, loaded.problem), seed=0)
    budget = Budget(EVALUATIONS)
    return lift_answer(
        placer.place(problem, loaded.simulator(grouping), budget, seed=0, progress=ignore_progress), grouping
    )


def other_weights() -> tuple[ListPolicy, ...]:
    rng = np.random.default_rng(7)
    return tuple(ListPolicy.untrained(rng) for _ in list_policy.shipped())


def other_edge_weights() -> dict[str, Float64]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape) for name, shape in weight_shapes().items()}


def is_changed(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, which: tuple[str, ...] = ("scores", "edges")
) -> bool:
    """Return whether other weights in place of those that ship change what a placer answers."""
    before, weights, edges = answer_of(name, values), other_weights(), other_edge_weights()
    if "scores" in which:
        monkeypatch.setattr(neural_list, "shipped", lambda: weights)
    if "edges" in which:
        monkeypatch.setattr(contraction, "shipped_weights", lambda: edges)
    case().problem.forget()  # what was derived by the weights before
    after = answer_of(name, values)
    case().problem.forget()
    found, again = ([c.placement.device.tolist() for c in answer.candidates] for answer in (before, after))
    return found != again


def test_placers_have_controls() -> None:
    controlled = {name for name, _ in listed("controls")}
    assert {"hsdag", "neural_list", "multilevel", "portfolio", "gdp", "placeto", "hdp"} <= controlled
    assert set(listed("ablations")) == {("hsdag", "frozen")}


@pytest.mark.parametrize(
    ("name", "control"),
    slow_where(list(listed("controls")), [pair for pair in listed("controls") if pair[0] in PUBLISHED]),
)
def test_no_weights_that_ship_change_what_a_control_answers(
    name: str, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placer = build_implementation("place", name)
    assert not is_changed(name, dict(placer.controls[control]), monkeypatch)


@pytest.mark.parametrize(
    ("name", "values", "which"),
    [
        ("neural_list", {}, "scores"),
        ("hsdag", {}, "scores"),
        ("hsdag", {"learns": False}, "scores"),
        ("portfolio", {}, "scores"),
        ("portfolio", {}, "edges"),
        ("multilevel", {}, "edges"),
    ],
)
def test_they_change_what_the_placers_themselves_answer(
    name: str, values: dict[str, Any], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_changed(name, values, monkeypatch, (which,))
