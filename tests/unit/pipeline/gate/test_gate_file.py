"""The sides of a gate: environments, interpreters, models, run directories and settings, each against each."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import ModelError, PlacewrightError, UsageError
from pipeline.gate.gate_file import Gate, GateOptions, Side, read_gate
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


@pytest.mark.parametrize(("models", "arrays", "code"), [(("none.xml",), None, 3), (("run/placed.xml",), "x.npz", 2)])
def test_a_model_that_is_missing_ends_as_everywhere(
    folder: Path, models: tuple[str, ...], arrays: str | None, code: int
) -> None:
    with pytest.raises(PlacewrightError, match=r"There is no (model|file)") as caught:
        read_gate(GateOptions(models, ("env",), ("env", "A=1"), input=arrays and Path(arrays)))
    assert caught.value.exit_code == code


def test_a_split_is_refused_as_it_needs_placewright(folder: Path) -> None:
    devices = [DeviceSpec(name, "CPU", f"CPU_{name}", properties={"INFERENCE_NUM_THREADS": "1"}) for name in "AB"]
    placement = {"left0": "A", "right0": "B"}
    deployed(Path("split"), two_towers(), devices, placement=placement)
    with pytest.raises(PlacewrightError) as caught:
        read_gate(GateOptions((), ("split",), ("env",)))
    assert caught.value.remedy


ACCEPT = """
[[accept]]
model = "{}"
what = "latency"
until = 2999-01-01
reason = "known"
"""


def read(text: str, *models: str) -> Gate:
    """Return the gate that a file and models on the command line ask for."""
    Path("gate.toml").write_text(text, encoding="utf-8")
    return read_gate(GateOptions(models, ("NUM_STREAMS=1",), ("NUM_STREAMS=2",), Path("gate.toml")))


def test_an_exception_for_another_model_of_the_file_does_not_matter() -> None:
    text = 'models = ["model.xml", "other.xml"]' + ACCEPT.format("other.xml") + ACCEPT.format("model.xml")
    assert [a.model for a in read(text, "model.xml").accepted] == ["model.xml"]
    assert [a.model for a in read(text).accepted] == ["other.xml", "model.xml"]
    with pytest.raises(UsageError, match="no model of this gate"):
        read('models = ["model.xml"]' + ACCEPT.format("other.xml"), "model.xml")


def same_named(folder: Path) -> str:
    """Return a file of two models that are called the same."""
    entries = []
    for name, limit in (("a", "10%"), ("b", "20%")):
        (folder / name).mkdir()
        make_model(folder / name)
        entries.append(f'[[model]]\npath = "./{name}/model.xml"\nlimits = {{ latency = "{limit}" }}\n')
    return "".join(entries)


def test_models_that_are_called_the_same_have_their_own_limits_and_exceptions(folder: Path) -> None:
    entries = same_named(folder)
    text = entries + ACCEPT.format("./b/model.xml")
    both = read(text)
    assert [model.limits["latency"] for model in both.models] == [0.1, 0.2]
    assert [a.model for a in both.accepted] == [both.models[1].name]
    (alone,) = read(text, "b/model.xml").models
    assert (alone.name, alone.limits["latency"]) == ("model.xml", 0.2)
    assert [a.model for a in read(text, "b/model.xml").accepted] == ["model.xml"]
    assert read(text, "a/model.xml").accepted == ()
    with pytest.raises(UsageError, match="no model of this gate"):
        read(entries + ACCEPT.format("model.xml"))  # of which of them?


def test_a_model_elsewhere_is_described_by_its_name(folder: Path) -> None:
    make_model(folder / "env")
    (model,) = read('[[model]]\npath = "model.xml"\nlimits = { load = "5%" }\n', "env/model.xml").models
    assert model.limits["load"] == 0.05


@pytest.mark.parametrize(
    ("text", "models"),
    [("", ("model.xml", "./model.xml")), ('models = ["model.xml"]\n[[model]]\npath = "model.xml"', ())],
)
def test_a_model_that_is_listed_twice_is_said_so(text: str, models: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"model\.xml is listed twice"):
        read(text, *models)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_names_that_no_file_can_have_are_said_to_be_missing(name: str) -> None:
    with pytest.raises(ModelError, match="There is no model"):
        read_gate(GateOptions((name, "model.xml"), ("NUM_STREAMS=1",)))
    with pytest.raises(UsageError, match="There is no"):
        read_gate(GateOptions(("model.xml",), (name,)))
    long = f"A={name}"
    assert read_gate(GateOptions(("model.xml",), (long,))).before.settings == {"A": name}


@pytest.mark.parametrize("name", ["python_net.onnx", "pypy.onnx", "python3.onnx"])
def test_a_model_that_is_called_after_python_is_a_model(name: str) -> None:
    Path(name).write_bytes(b"")
    gate = read_gate(GateOptions((), (name,), ("env",)))
    assert gate.before.model == Path(name)


@pytest.mark.parametrize("name", ["python", "python3.12", "python3.13t", "Python.exe", "pypy3.10", "pythonw.exe"])
def test_interpreters_are_known_by_their_names(name: str) -> None:
    Path(name).write_bytes(b"")
    assert read_gate(GateOptions(("model.xml",), (name,), ())).before.python == Path(name)
