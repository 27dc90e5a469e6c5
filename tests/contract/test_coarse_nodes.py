"""Placers on nodes that are several operations of the simulator each: with little memory, and with orders."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.protocol import GraphRef, LeagueInstance
from pipeline.core.problem import Budget
from pipeline.placing.setup import coarse_problem, with_policy
from pipeline.settings.registry import build_implementation
from tests.toys import ignore_progress

NODES = 64


@pytest.mark.parametrize(("share", "ordered"), [(2.0, False), (None, True)])
@pytest.mark.parametrize("placer", ["anneal", "multilevel", "portfolio", "hsdag"])
def test_nodes_of_several_operations_are_placed(placer: str, share: float | None, ordered: bool) -> None:
    arena = load_arena(LeagueInstance("nas-nmt", GraphRef("nas-nmt", "nas-nmt?index=5"), share=share))
    subject = arena.case.subject
    nodes = build_implementation("coarsen", "metis", {"parts": NODES, "acyclic": True}).coarsen(subject.graph, seed=0)
    coarse = coarse_problem(subject.graph, subject.topology, subject.costs, nodes)
    problem = with_policy(dataclasses.replace(coarse, ordered=ordered))
    assert problem.graph.n < subject.graph.n
    answer = build_implementation("place", placer, {}).place(
        problem, arena.case.bind(nodes), Budget(400), seed=0, progress=ignore_progress
    )
    assert answer.value_s < min(arena.single_s.values())
    assert (answer.best.placement.priority is not None) == ordered or answer.best.found_by == "single"
