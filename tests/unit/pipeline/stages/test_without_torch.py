"""Without torch: a run plans with the placers that do not learn, and says which one is left out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipeline.core.errors import MissingPackageError
from pipeline.settings.config import Settings
from pipeline.settings.declared import read_declaration
from pipeline.shared import partition
from pipeline.stages import choices
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks

MACHINE = HostMachine(({"name": "A"}, {"name": "B"}), {}, "here")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither torch nor what needs it be found."""

    def declared(stage: str, name: str, *more: object) -> object:
        if name in ("hsdag", "directed", "edge_score"):
            raise MissingPackageError(f"{stage}.{name} needs", "torch")
        return read_declaration(stage, name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(choices, "find_spec", lambda name: None if name == "torch" else object())
    monkeypatch.setattr(choices, "read_declaration", declared)
    partition.tell_once.cache_clear()


def stages(budget: str, **changed: object) -> dict[str, object]:
    settings = Settings().updated({"budget": budget, **changed}, "the test")
    return {t.stage: t.params for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, MACHINE)}


@pytest.mark.usefixtures("no_torch")
def test_the_placer_that_learns_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        planned = stages("300s")
    assert [name for name, _ in planned["place"]["use"]] == ["portfolio"]  # type: ignore[index]
    assert not {"embed", "group"} & planned.keys()
    assert "hsdag is left out: it needs the package torch" in caplog.text


@pytest.mark.usefixtures("no_torch")
def test_a_small_budget_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    assert "place" in stages("30s")
    assert not caplog.text


@pytest.mark.usefixtures("no_torch")
def test_who_asks_for_a_placer_that_learns_is_told_what_is_missing() -> None:
    with pytest.raises(MissingPackageError, match="torch"):
        stages("300s", **{"place.use": ["hsdag"]})


def test_with_torch_the_placer_that_learns_takes_part() -> None:
    assert {"embed", "group"} <= stages("300s").keys()
