"""What fails for a moment, or on one device, does not spoil a run, nor the runs after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import runtime.measuring.profile.profile
from pipeline.core.devices import DeviceSpec
from pipeline.core.graph import Graph
from pipeline.core.measurement import FailureKind, MeasurementFailed
from runtime.measuring.contest.hetero import Hetero
from runtime.measuring.profile.left_out import COMPILE, LeftOut
from runtime.measuring.profile.profile import Profile
from tests.e2e.conftest import Warm, options
from tests.e2e.test_calibrate import Lazy

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]


def leaving_out(monkeypatch: pytest.MonkeyPatch, kind: FailureKind, message: str) -> None:
    """Let device B fail while the made-up profile is taken."""
    made_up = runtime.measuring.profile.profile.profile_model

    def profile(model: Path, graph: Graph, devices: Sequence[DeviceSpec], *rest: Any, **named: Any) -> Profile:
        found = made_up(model, graph, [d for d in devices if d.name != "B"], *rest, **named)
        gone = {"B": LeftOut(kind, message, COMPILE)}
        return Profile(found.costs, found.topology, found.latency_s, found.covered, found.refused, gone)

    monkeypatch.setattr(runtime.measuring.profile.profile, "profile_model", profile)


def stages_run(document: Any) -> list[str]:
    return [s["stage"] for s in document["stages"] if s["ran"]]


@pytest.fixture
def tune(model: Path, tmp_path: Path, ran: Ran, made_up_profile: None) -> Ran:
    """Return a function that tunes the model in one store and run directory, and gives the result."""
    arguments = ["tune", str(model), "--run", str(tmp_path / "run"), *options(tmp_path / "store")]
    return lambda *more: ran(*arguments, *more)


def test_later_stages_see_only_the_devices_that_are_left_and_the_result_says_who_is_not(
    tune: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving_out(monkeypatch, "refused", "no such layer")
    document = tune()
    assert document["notes"][-1:] == ["B is left out: it cannot compile the model (no such layer)."]
    assert [d["name"] for d in document["devices"]] == ["A"]
    assert all(c["devices_used"] == ["A"] for c in document["candidates"])
    assert stages_run(tune()) == []  # a refusal is final


def test_a_device_that_was_disturbed_is_back_in_the_next_run(tune: Ran) -> None:
    with pytest.MonkeyPatch.context() as patch:
        leaving_out(patch, "out_of_memory", "std::bad_alloc")
        document = tune()
    reason = "it ran out of memory when it tried to compile the model (std::bad_alloc)"
    assert document["notes"][-2:] == [
        f"B is left out: {reason}.",
        f"Measurements were disturbed; the next run repeats them: B: {reason}.",
    ]
    document = tune()
    assert stages_run(document) == ["profile", "embed", "group", "place", "measure"]
    why = {s["stage"]: s["why"] for s in document["stages"]}
    assert why["profile"] == why["place"] == f"the last measurement was disturbed: B: {reason}"
    assert [d["name"] for d in document["devices"]] == ["A", "B"]
    assert not [note for note in document["notes"] if "B is left out" in note or "disturbed" in note]
    assert stages_run(tune()) == []


def test_tune_place_and_measure_take_measurements_again_when_told_to(
    copy: Warm, ran: Ran, made_up_profile: None
) -> None:
    at = ["--run", str(copy.run), "--store", str(copy.store)]
    document = ran("measure", *at, "--remeasure")
    assert {"profile", "place", "measure"} <= set(stages_run(document))
    assert {"read", "kernels", "coarsen"}.isdisjoint(stages_run(document))
    assert ran("place", *at, "--remeasure")["ran"]
    rows = ran("tune", str(copy.model), "--dry-run", "--remeasure", *at[:2], *options(copy.store))
    assert {row["stage"] for row in rows if row["why"] == "--remeasure"} == {
        row["stage"] for row in rows if row["would_run"]
    }
    assert not ran("place", *at)["ran"]


def test_a_candidate_that_was_disturbed_is_measured_again_in_the_next_run(copy: Warm, tmp_path: Path, ran: Ran) -> None:
    operations = json.loads((copy.run / "placement.json").read_text(encoding="utf-8"))["placement"]
    results = {"A": {"samples_s": [1e-3] * 5}, "B": {"failed": {"kind": "timeout", "message": "no answer"}}}
    records = [{"placement": dict.fromkeys(operations, d), **result} for d, result in results.items()]
    (tmp_path / "records.json").write_text(json.dumps({"records": records}), encoding="utf-8")
    replayed = {"measure__use": "replay", "measure__replay__path": tmp_path / "records.json", "place__use": "single"}
    arguments = ["tune", str(copy.model), "--run", str(tmp_path / "new"), *options(copy.store, **replayed)]
    words = "B failed twice (timeout: no answer)"
    for _ in range(2):
        document = ran(*arguments, "--reward", "simulated")
        assert document["notes"][-1:] == [f"Measurements were disturbed; the next run repeats them: {words}."]
        assert stages_run(document)[-1] == "measure"
    assert stages_run(document) == ["measure"]
    assert document["stages"][-1]["why"] == f"the last measurement was disturbed: {words}"


def test_a_search_whose_measurements_were_disturbed_is_made_again_in_the_next_run(
    copy: Warm, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Lazy()
    monkeypatch.setattr(Hetero, "bind", lambda _, subject: devices.bind(subject))
    arguments = ["place", "--run", str(copy.run), "--store", str(copy.store), "--set", "measure.use=hetero"]
    arguments += ["--reward", "measured", "--set", "place.evaluations=7"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            devices, "evaluate", lambda placements: [MeasurementFailed("crashed", "gone") for _ in placements]
        )
        assert ran(*arguments)["ran"]
    again = ran(*arguments)
    assert again["ran"]
    assert again["why"] == "the last measurement was disturbed: a placement failed twice (crashed: gone)"
    assert not ran(*arguments)["ran"]
