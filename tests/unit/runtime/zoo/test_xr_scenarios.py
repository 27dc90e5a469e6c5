"""XRBench's scenarios: seven, with the rates and dependencies that were published, and networks that exist."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import zoo
from runtime.simulators.requests.requests import ServiceModel, simulate_requests
from runtime.zoo.xr_scenarios import STANDS_IN, xr_scenarios


def test_there_are_seven_of_three_to_six_models_at_3_to_60_frames_a_second() -> None:
    scenarios = xr_scenarios()
    assert {name: len(s.models) for name, s in scenarios.items()} == {
        "social interaction A": 4,
        "social interaction B": 3,
        "outdoor activity A": 4,
        "outdoor activity B": 3,
        "AR assistant": 6,
        "AR gaming": 3,
        "VR gaming": 3,
    }
    rates = [load.rate for s in scenarios.values() for load in s.models if not load.after]
    assert (min(rates), max(rates)) == (3.0, 60.0)
    loads = [load for s in scenarios.values() for load in s.models]
    assert {(load.arrivals, load.late, load.percentile) for load in loads} == {("periodic", "drop", 99.0)}
    assert all(load.deadline_s == 1 / load.rate for load in loads if not load.after)


def test_networks_of_the_zoo_stand_in_for_every_task() -> None:
    assert {load.name for s in xr_scenarios().values() for load in s.models} == set(STANDS_IN)
    assert set(STANDS_IN.values()) <= set(zoo.names())


def test_speech_is_recognised_after_as_many_keywords_as_are_said_to_be_probable() -> None:
    scenarios = xr_scenarios()
    assert {name: s.rates()["speech recognition"] for name, s in scenarios.items() if "speech" in str(s)} == (
        pytest.approx({"outdoor activity A": 0.6, "outdoor activity B": 0.6, "AR assistant": 1.5})
    )


@pytest.mark.parametrize("name", xr_scenarios())
def test_each_holds_on_fast_devices_and_drops_requests_on_slow_ones(name: str) -> None:
    scenario = xr_scenarios()[name]
    n = len(scenario.models)
    for part, holds in ((0.1, True), (1.5, False)):
        alone_s = tuple(np.array([part * load.deadline_s / n]) for load in scenario.models)
        service = ServiceModel(tuple(m.name for m in scenario.models), alone_s, np.ones(n, np.int64), np.ones((n, n)))
        logs = simulate_requests(scenario, service, seconds=60.0, seed=0, warm_up_s=1.0)
        late = [logs[m.name].percentile_s(m.percentile) > m.deadline_s for m in scenario.models]
        assert any(late) != holds
