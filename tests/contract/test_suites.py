"""The suites of `pipeline.testing` find implementations that break a promise."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from embed.gcn import Gcn
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Measurement
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.stages import Answer
from pipeline.testing import embedders, placers, promises, simulated
from pipeline.testing.coarseners import check_coarsener
from pipeline.testing.groupers import check_grouper
from pipeline.testing.measurers import check_measurer
from pipeline.testing.promises import check_declaration, global_state_unchanged
from policy.group.edge_score import EdgeScore
from policy.place.base.search import Method, Search
from policy.place.rules.random import Random
from runtime.simulators.sequential.sequential import Sequential, SequentialEvaluator


@dataclass(frozen=True, slots=True)
class Halves:
    """Merges the first half of the operations, and the second, whatever the edges."""

    version: ClassVar[int] = 1
    acyclic: ClassVar[bool] = True

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        return Grouping.of_labels(np.arange(graph.n) // max(1, (graph.n + 1) // 2))


@dataclass(frozen=True, slots=True)
class Unseeded(Halves):
    """Merges nothing; draws from NumPy's own generator."""

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        return Grouping.of_labels(np.argsort(np.random.rand(graph.n)))  # noqa: NPY002


def test_a_coarsener_that_closes_cycles_against_its_promise_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Halves\(\) promises acyclic quotients and makes a cyclic one"):
        check_coarsener(Halves())


def test_a_coarsener_that_draws_from_a_global_generator_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Unseeded\(\) changes the generator of numpy.random"):
        check_coarsener(Unseeded())


@dataclass(frozen=True, slots=True)
class Wide:
    """Builds encoders that claim one column more than they give."""

    version: ClassVar[int] = 1

    def encoder(self, features: int, *, seed: int) -> Any:
        encoder = Gcn(pretrain_epochs=0).encoder(features, seed=seed)

        class Claiming:
            module, width = encoder.module, encoder.width + 1

            def __call__(self, *inputs: Any) -> Any:
                return encoder(*inputs)

        return Claiming()

    def embed(self, features: Any, graph: Graph, *, seed: int) -> Any:
        return Gcn(pretrain_epochs=0).embed(features, graph, seed=0)  # whatever the seed


def test_an_embedder_of_the_wrong_width_or_of_one_seed_is_found() -> None:
    with pytest.raises(AssertionError, match=r"gives rows of shape \(1, \d+\), not \(1, \d+\)"):
        embedders.check_embedder(Wide())
    with pytest.raises(AssertionError, match="has weights that no seed changes"):
        embedders.check_seeds(Wide())


@dataclass(frozen=True, slots=True)
class Forgetful:
    """Builds models that are never greedy."""

    version: ClassVar[int] = 1

    def build(self, width: int, *, seed: int) -> Any:
        model = EdgeScore().build(width, seed=seed)

        class Drawing:
            module, draws, log_prob = model.module, model.draws, model.log_prob

            def group(self, nodes: Any, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> Any:
                return model.group(nodes, graph, rng=rng, greedy=False)

        return Drawing()


def test_a_grouper_that_is_never_greedy_is_found() -> None:
    with pytest.raises(AssertionError, match="draws at random although `greedy` asks"):
        check_grouper(Forgetful())


@dataclass(frozen=True, slots=True)
class Doubled:
    """A simulator whose batches take twice as long as its single placements."""

    version: ClassVar[int] = 1
    real: ClassVar[bool] = False

    def bind(self, subject: Any) -> Any:
        class Evaluator(SequentialEvaluator):
            def simulate(self, device: Any, priority: Any = None) -> Any:
                answer = super().simulate(device, priority)
                return replace(answer, value_s=2 * answer.value_s)

        evaluator = Sequential().bind(subject)
        evaluator.__class__ = Evaluator
        return evaluator


def test_a_simulator_that_tells_two_times_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Doubled\(\) says .* s and .* s of one placement"):
        check_measurer(Doubled())


@dataclass(frozen=True, slots=True)
class Faulty(Method):
    """Asks about one placement, and then breaks a promise of placers."""

    version: ClassVar[int] = 1

    fault: str = param("", "which promise it breaks")

    def run(self, search: Search, *, seed: int) -> None:
        if self.fault in ("", "order"):
            Random().run(search, seed=seed)
        if self.fault == "drawn":
            np.random.seed(0)  # noqa: NPY002
        if self.fault == "seed":
            Random().run(search, seed=int(np.random.default_rng().integers(99)))
        if self.fault == "split":
            n = search.problem.graph.n
            search.evaluate([Placement(np.arange(n) % search.problem.topology.p, search.problem.topology.names)])
        if self.fault == "memory":
            search._fits = lambda placement: True  # type: ignore[method-assign]
            search.evaluate([Placement.single(search.problem.graph.n, 0, search.problem.topology.names)])

    def place(self, *arguments: Any, **options: Any) -> Answer:
        answer = Method.place(self, *arguments, **options)
        if self.fault == "order" and len(answer.candidates) > 1:
            return replace(answer, candidates=answer.candidates[::-1])
        if self.fault == "value":
            made_up = replace(answer.best, result=Measurement(np.array([1e-9])))
            return replace(answer, candidates=(made_up,))
        if self.fault == "bound":
            return replace(answer, lower_bound_s=2 * answer.value_s)
        return answer


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("order", placers.check_answers, "does not give the best placement first on"),
        ("value", placers.check_answers, "changes what the evaluator said"),
        ("seed", placers.check_seeds, "asks about other placements for an equal seed"),
        ("drawn", placers.check_global_state, "changes the generator of numpy.random"),
        ("split", placers.check_groups, "gives two devices to the operations of one group"),
        ("split", placers.check_colocation, "gives two devices to operations that must share one"),
        ("memory", placers.check_memory, "gives devices more weights than they can hold"),
        ("bound", simulated.check_on_every_simulator, "finds a placement faster than its lower bound"),
    ],
)
def test_a_placer_that_breaks_a_promise_is_found(fault: str, check: Callable[[Any], None], message: str) -> None:
    with pytest.raises(AssertionError, match=rf"Faulty\(fault='{fault}'\) {re.escape(message)}"):
        check(Faulty(fault))


def test_a_placer_without_a_fault_is_none() -> None:
    placers.check_placer(Faulty())


def test_what_an_implementation_must_declare_is_told() -> None:
    @dataclass(frozen=True, slots=True)
    class Silent:
        """Does nothing."""

        version: ClassVar[int] = 1
        batch: int = 3

    with pytest.raises(AssertionError, match="has no help text for batch; use param"):
        check_declaration(Silent())
    with pytest.raises(AssertionError, match="has the version None, not 1 or more"):
        check_declaration(object())


def test_a_global_state_that_stays_is_no_fault() -> None:
    with global_state_unchanged("it"):
        np.random.default_rng(0).random()


ENOUGH = threading.Event()  # ends what never ends by itself


@dataclass(frozen=True, slots=True)
class Endless(Method):
    """Asks for draws until the budget is spent, which it never is where every placement has been asked about."""

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        rng, problem = np.random.default_rng(seed), search.problem
        while not search.done and not ENOUGH.is_set():
            device = rng.integers(problem.topology.p, size=problem.graph.n)
            search.evaluate([Placement(device, problem.topology.names)])


@dataclass(frozen=True, slots=True)
class Undecided(Halves):
    """Merges nothing, and never says so."""

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        while not ENOUGH.is_set():
            pass
        return Grouping.identity(graph.n)


@pytest.mark.parametrize(
    ("check", "implementation", "more"),
    [(placers.check_placer, Endless(), ".*patience"), (check_coarsener, Undecided(), r"\.$")],
)
def test_an_implementation_that_never_ends_is_found_and_told_where_it_hangs(
    check: Callable[[Any], None], implementation: Any, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "LIMIT_S", 1.0)
    ENOUGH.clear()
    where = rf"has not ended after 1 s; it is in line \d+ of {re.escape(__file__)}"
    try:
        with pytest.raises(AssertionError, match=where + more):
            check(implementation)
    finally:
        ENOUGH.set()


@dataclass(frozen=True, slots=True)
class Secretive(Halves):
    """Draws two groups, and says that no seed matters."""

    seeded: ClassVar[bool] = False
    acyclic: ClassVar[bool] = False

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        return Grouping.of_labels(np.random.default_rng(seed).integers(0, 2, graph.n))


@dataclass(frozen=True, slots=True)
class SecretiveGcn(Gcn):
    """Draws its weights, and says that no seed matters."""

    seeded: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SecretiveEdgeScore(EdgeScore):
    """Draws its weights, and says that no seed matters."""

    seeded: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("check", "implementation"),
    [
        (check_coarsener, Secretive()),
        (embedders.check_seeds, SecretiveGcn(pretrain_epochs=0)),
        (check_grouper, SecretiveEdgeScore()),
    ],
)
def test_an_implementation_whose_seed_matters_though_it_says_otherwise_is_found(
    check: Callable[[Any], None], implementation: Any
) -> None:
    with pytest.raises(AssertionError, match="says that it is not seeded, and "):
        check(implementation)
