"""The compiled simulator of requests against the plain one, on drawn scenarios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.scenario import LoadScenario, ModelLoad
from runtime.simulators.requests.requests import IDLE_S, ServiceModel, simulate_requests
from tests.plain_requests import simulate_plainly

KINDS = ("poisson", "periodic", "trace", "closed", "after", "none")


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[LoadScenario, ServiceModel]:
    """Draw one to four models: open, closed, caused by others, without requests; some that drop what is late."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    models: list[ModelLoad] = []
    for i in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS if models else KINDS[:4]))
        drops = draw(st.booleans())
        models.append(
            ModelLoad(
                f"m{i}",
                rate=float(rng.uniform(1, 12)) if kind in KINDS[:3] else 0.0,
                concurrency=int(rng.integers(1, 4)) if kind == "closed" else 0,
                arrivals=kind if kind in ("periodic", "trace") else "poisson",
                trace_s=tuple(rng.uniform(0, 3, 5)) if kind == "trace" else (),
                after=f"m{rng.integers(i)}" if kind == "after" else "",
                calls=float(rng.choice([0.3, 1.0, 2.6])),
                deadline_s=float(rng.uniform(0.05, 0.5)) if drops else np.inf,
                late="drop" if drops else "queue",
            )
        )
    n = len(models)
    slowdown = rng.uniform(0, 1.5, (n, n)) * (rng.random((n, n)) < 0.7)
    alone_s = tuple(rng.uniform(0.01, 0.2, rng.integers(1, 6)) for _ in models)
    after_idle = np.cumsum(rng.uniform(0.1, 0.6, (n, IDLE_S.size)), axis=1)
    beside = rng.uniform(0.3, 3.0, (n, n, rng.integers(1, 5)))
    names = tuple(m.name for m in models)
    service = ServiceModel(names, alone_s, rng.integers(1, 5, n), slowdown, after_idle, beside)
    return LoadScenario(tuple(rng.permutation(np.array(models, object)))), service


@given(scenarios(), st.integers(0, 100))
def test_the_compiled_simulator_is_the_plain_one(drawn: tuple[LoadScenario, ServiceModel], seed: int) -> None:
    scenario, service = drawn
    found = simulate_requests(scenario, service, seconds=4.0, seed=seed, warm_up_s=0.5)
    wanted = simulate_plainly(scenario, service, seconds=4.0, seed=seed, warm_up_s=0.5)
    assert list(found) == [m.name for m in scenario.models]
    for name, log in wanted.items():
        assert log.due_s.size == found[name].due_s.size
        for field in ("due_s", "origin_s", "end_s", "measured"):
            values = getattr(found[name], field), getattr(log, field)
            assert values[0] == pytest.approx(values[1], abs=1e-9, nan_ok=True)  # sums in another order


@given(scenarios(), st.integers(0, 100))
def test_no_request_is_lost(drawn: tuple[LoadScenario, ServiceModel], seed: int) -> None:
    scenario, service = drawn
    logs = simulate_requests(scenario, service, seconds=3.0, seed=seed, warm_up_s=0.0)
    for load in scenario.models:
        log = logs[load.name]
        assert (np.diff(log.due_s) >= 0).all()
        assert ((log.end_s > log.due_s) | np.isnan(log.end_s)).all()
        if load.late == "queue":
            assert not np.isnan(log.end_s).any()
        if load.after:
            served = np.isfinite(logs[load.after].end_s).sum()
            assert int(load.calls) * served <= log.due_s.size <= np.ceil(load.calls) * served
