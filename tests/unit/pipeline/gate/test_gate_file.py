"""The sides of a gate: environments, interpreters, models, run directories and settings, each against each."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import PlacewrightError
from pipeline.gate.gate_file import GateOptions, Side, read_gate
from tests.deployments import deployed
from tests.gates import make_environment, make_model
from tests.models import two_towers

SIDES = ("env", "env/bin/python", "other.xml", "run", "NUM_STREAMS=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, which holds what all sides name."""
    monkeypatch.chdir(tmp_path)
    make_environment(Path("env"))
    for name in ("model", "other"):
        make_model(Path(), name)
    device = DeviceSpec("CPU", "CPU", "CPU", properties={"INFERENCE_NUM_THREADS": "1"})
    deployed(Path("run"), two_towers(), [device], properties={"INFERENCE_PRECISION_HINT": "f32"})
    return tmp_path


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SIDES, SIDES)))
def test_every_kind_of_side_stands_against_every_kind(before: str, after: str) -> None:
    gate = read_gate(GateOptions(("model.xml",), (before,), (after,)))
    model = gate.models[0]
    for name, side, file in ((before, gate.before, model.before), (after, gate.after, model.after)):
        assert side.python == {"env": Path("env/bin/python"), "env/bin/python": Path("env/bin/python")}.get(name)
        assert file == {"other.xml": Path("other.xml"), "run": Path("run/placed.xml")}.get(name, Path("model.xml"))
        assert bool(side.settings) == (name in ("run", "NUM_STREAMS=1"))


def test_a_run_gives_its_model_and_settings_and_more_can_be_set(folder: Path) -> None:
    gate = read_gate(GateOptions((), ("run",), ("run", "env", "INFERENCE_NUM_THREADS=2")))
    before = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    assert gate.before.settings == before
    assert gate.after == Side(
        "run env INFERENCE_NUM_THREADS=2",
        Path("env/bin/python"),
        Path("run/placed.xml"),
        {**gate.before.settings, "INFERENCE_NUM_THREADS": "2"},
        gate.before.device,
    )
    assert [model.name for model in gate.models] == ["placed.xml"]


def test_a_split_is_refused_as_it_needs_placewright(folder: Path) -> None:
    devices = [DeviceSpec(name, "CPU", f"CPU_{name}", properties={"INFERENCE_NUM_THREADS": "1"}) for name in "AB"]
    placement = {"left0": "A", "right0": "B"}
    deployed(Path("split"), two_towers(), devices, placement=placement)
    with pytest.raises(PlacewrightError) as caught:
        read_gate(GateOptions((), ("split",), ("env",)))
    assert caught.value.remedy
