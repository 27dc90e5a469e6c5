"""The Python API and the command line mean the same by the same words and the same environment."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import api
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.fleet import member
from pipeline.settings.config import Settings
from pipeline.store.store import Store, default_store

ENVIRONMENT = {"PLACEWRIGHT_STORE": "moved", "PLACEWRIGHT__SEED": "5", "PLACEWRIGHT__BUDGET": "3m"}
Asked = tuple[Path, dict[str, Any], Path, Path]


class AskedError(Exception):
    """Carries what would have been run."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Asked]:
    """Return what calls something and returns the model, settings, folder and store it would run with."""
    seen: list[Asked] = []

    def advance(path: Path, settings: Settings, folder: Path, store: Store, **_: Any) -> api.Advance:
        seen.append((path, asdict(settings), folder, store.root))
        raise AskedError

    def answer(call: Callable[[], Any]) -> Asked:
        with contextlib.suppress(AskedError):
            call()
        return seen.pop()

    monkeypatch.setattr(api, "advance_run", advance)
    return answer


def test_errors_in_python_speak_of_arguments_and_commands_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pipeline.PlacewrightError) as raised:
        pipeline.search(pipeline.Scenario("zoo:nas-nmt", ""))
    assert "pass topology." in str(raised.value)
    assert "--" not in str(raised.value)
    assert run_command_line(["search", "zoo:nas-nmt"]) == 2
    assert "pass --topology." in capsys.readouterr().err


def test_everything_public_is_there() -> None:
    assert set(pipeline.__all__) <= set(dir(pipeline))
    assert all(getattr(pipeline, name).__doc__ for name in pipeline.__all__)


@pytest.mark.parametrize("environment", [{}, ENVIRONMENT, {"PLACEWRIGHT_STORE": ""}])
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, []),
        ({"devices": ["CPU"]}, ["--devices", "CPU"]),
        ({"devices": "A=CPU,B=CPU"}, ["--devices", "A=CPU,B=CPU"]),
        ({"budget_s": 7}, ["--budget", "7s"]),
        ({"seed": 0, "out": "run", "store": "here"}, ["--seed", "0", "--out", "run", "--store", "here"]),
        ({"settings": {"coarsen.metis.parts": 8}}, ["--set", "coarsen.metis.parts=8"]),
        ({"seed": 1, "settings": {"seed": 2}}, ["--seed", "1", "--set", "seed=2"]),
    ],
)
def test_tune_asks_for_what_the_command_line_asks_for(
    arguments: Mapping[str, Any],
    options: list[str],
    environment: Mapping[str, str],
    asked: Callable[[Callable[[], Any]], Asked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    of_command = asked(lambda: run_command_line(["tune", "model.xml", "--quiet", *options]))
    assert asked(lambda: pipeline.tune("model.xml", **arguments)) == of_command


def test_the_environment_moves_the_default_store_for_everyone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "moved"))
    assert default_store() == tmp_path / "moved"
    assert member.describe_worker({"mark": "", "text": "none"})["store"] == str(tmp_path / "moved")
    monkeypatch.setenv("PLACEWRIGHT_STORE", "")
    assert default_store().name == "store"


def test_a_setting_of_the_environment_that_is_unknown_is_named_by_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWRIGHT__COARSEN__METIS__PART", "3")
    with pytest.raises(UsageError, match="In the environment"):
        pipeline.tune("model.xml")


def test_searches_take_paths_as_text(tmp_path: Path) -> None:
    costs, pins, placement = (str(tmp_path / name) for name in ("costs.csv", "pins.json", "placement.json"))
    graph = "zoo:rnnlm2?steps=2"
    plain = pipeline.Scenario(graph, topology="equal:2")
    document = pipeline.search(plain, pipeline.Effort("greedy", evaluations=5))
    first = next(iter(document["placement"]))
    Path(pins).write_text(json.dumps({first: document["placement"][first]}), encoding="utf-8")
    Path(placement).write_text(json.dumps(document["placement"]), encoding="utf-8")
    pipeline.bound(plain, write_costs=costs)
    told = pipeline.simulate(pipeline.Scenario(graph, topology="equal:2", costs=costs, pins=pins), placement)
    assert told["value_s"] == pytest.approx(document["value_s"])
