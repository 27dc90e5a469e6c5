"""A run whose placements carry priorities: from the placer to the file that is deployed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime.measuring.profile.profile
from pipeline.core.problem import Problem
from pipeline.result.result import Result
from pipeline.stages import place
from pipeline.store.store import Store
from runtime.measuring.profile.profile import Profile
from tests.e2e.conftest import options

pytestmark = pytest.mark.usefixtures("read_here")

MACHINE = """
[links]
bytes_per_s = 1e9
latency_s = 1e-6
[[device]]
name = "A"
chip = "p100"
[[device]]
name = "B"
chip = "p100"
"""


def payload(store: Path, document: dict[str, Any], stage: str, name: str) -> Any:
    """Return what a stage of a run has stored under a name."""
    entry = Store(store).find(next(s["key"] for s in document["stages"] if s["stage"] == stage))
    assert entry is not None
    return json.loads(entry.path(name).read_bytes())


@pytest.mark.usefixtures("made_up_profile")
def test_priorities_reach_every_file_of_a_run_and_the_simulator_that_measures(
    model: Path, tmp_path: Path, ran: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ordered(*given: Any) -> Problem:
        return replace(original(*given), ordered=True)  # as no run is today

    def alike(*given: Any, **named: Any) -> Profile:
        found: Profile = made_up(*given, **named)
        return replace(found, costs=replace(found.costs, op_s=np.full_like(found.costs.op_s, 1e-4)))

    original, made_up = place.coarse_problem, runtime.measuring.profile.profile.profile_model
    monkeypatch.setattr(runtime.measuring.profile.profile, "profile_model", alike)
    monkeypatch.setattr(place, "coarse_problem", ordered)
    listsched = dict.fromkeys(("place__evaluator", "measure__use"), "listsched")
    chosen = options(tmp_path / "store", place__use="heft", place__reward="simulated", place__finalists=3, **listsched)
    document = ran("tune", str(model), "--run", str(tmp_path / "run"), *chosen)
    candidates = payload(tmp_path / "store", document, "place", "candidates.json")
    found = next(c for c in candidates if c["priority"] and len(set(c["placement"].values())) > 1)
    assert found["priority"].keys() == found["placement"].keys()
    measured = payload(tmp_path / "store", document, "measure", "measurements.json")["rows"]
    row = next(m for m in measured if m["name"] == f"heft {found['rank'] + 1}")
    assert row["priority"] == found["priority"]
    assert row["samples_s"] == [found["value_s"]]
    result = Result.load(tmp_path / "run")
    best = next(m for m in measured if m["name"] == result.best.name)
    assert (result.placement, result.priority) == (best["placement"], best["priority"])
    (tmp_path / "machine.toml").write_text(MACHINE, encoding="utf-8")
    (tmp_path / "row.json").write_text(json.dumps(row), encoding="utf-8")
    given = ["--topology", str(tmp_path / "machine.toml"), "--placement", str(tmp_path / "row.json")]
    assert ran("simulate", str(model), *given)["priority"] == found["priority"]
