"""Reading a model in a process of its own: the same model, and every way of dying said."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading import read_in_process as read_apart
from coarsen.reading.model import constant_growth as growth
from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import RUNNING, model_sha256
from coarsen.reading.model.read import read_model, save_model, to_graph
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import ModelError, UsageError
from pipeline.shared.payload import load_graph, save_graph
from tests.models import broadcast_model, dynamic, quantised, two_towers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_model(quantised(), tmp_path / "model.xml")
    return tmp_path / "model.xml"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def refusal(path: Path, out: Path, limits: ReadLimits | None = None) -> ModelError:
    with pytest.raises(ModelError) as raised:
        read_apart.read_in_process(path, out, source=model_sha256(path), limits=limits or ReadLimits())
    assert str(path) in raised.value.cause
    assert "\n" not in str(raised.value)
    return raised.value


def test_what_is_written_is_what_reading_here_gives(path: Path, out: Path) -> None:
    source = model_sha256(path)
    read_apart.read_in_process(path, out, source=source, limits=ReadLimits())
    model = read_model(path)
    save_model(model, path.parent / "here.xml")
    save_graph(path.parent / "here.npz", to_graph(model, source=source))
    for name, here in (("model.xml", "here.xml"), ("model.bin", "here.bin"), ("graph.npz", "here.npz")):
        assert (out / name).read_bytes() == (path.parent / here).read_bytes()


def test_the_graph_alone_is_enough_for_a_search(path: Path, out: Path) -> None:
    source = model_sha256(path)
    read_apart.read_in_process(path, out, source=source, limits=ReadLimits(), save=False)
    assert sorted(p.name for p in out.iterdir()) == ["graph.npz", "shapes.json"]
    assert load_graph(out / "graph.npz").source == source


@pytest.mark.parametrize("read_before_it_changes", [True, False])
def test_a_model_that_is_exported_anew_meanwhile_is_refused(
    path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, read_before_it_changes: bool
) -> None:
    def ask(*given: Any) -> dict[str, Any]:
        if read_before_it_changes:
            original(*given)
        save_model(two_towers(), path)
        return {"said": []} if read_before_it_changes else original(*given)

    original = read_apart._run_command
    monkeypatch.setattr(read_apart, "_run_command", ask)
    assert "changed while it was being read" in refusal(path, out).cause


def test_warnings_of_the_process_are_given_here(tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = quantised()
    for o in model.get_ordered_ops()[:3]:
        o.set_friendly_name("same")
    ov.save_model(model, tmp_path / "twins.xml", compress_to_fp16=False)
    with caplog.at_level(logging.WARNING):
        source = model_sha256(tmp_path / "twins.xml")
        read_apart.read_in_process(tmp_path / "twins.xml", out, source=source, limits=ReadLimits())
    assert "had the name of another one" in caplog.text


def test_constants_that_grow_are_refused_before_they_are_folded(tmp_path: Path, out: Path) -> None:
    save_model(broadcast_model(12000), tmp_path / "bomb.xml")
    error = refusal(tmp_path / "bomb.xml", out)
    assert "576 MB" in error.cause
    assert "268.5 MB" in error.cause
    assert error.exit_code == 3
    assert list(out.iterdir()) == []


def test_constants_may_grow_as_far_as_the_setting_says(tmp_path: Path, out: Path) -> None:
    save_model(broadcast_model(300), tmp_path / "small.xml")
    assert "allowed are 23." in refusal(tmp_path / "small.xml", out, ReadLimits(growth_bytes=0)).cause
    source = model_sha256(tmp_path / "small.xml")
    read_apart.read_in_process(tmp_path / "small.xml", out, source=source, limits=ReadLimits(growth_bytes=360_016))


def test_a_model_that_takes_too_long_is_named(path: Path, out: Path) -> None:
    error = refusal(path, out, ReadLimits(timeout_s=1e-3))
    assert "longer than 0.001 s" in error.cause
    assert "coarsen.read_timeout_s=0.01" in error.remedy


def test_a_model_that_takes_too_much_memory_is_named(path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "ROOM_BYTES", 8 << 20)  # less than Python itself
    monkeypatch.setattr(growth, "TRIAL_BYTES", 0)
    error = refusal(path, out, ReadLimits(growth_bytes=0))
    assert "of memory" in error.cause
    assert "coarsen.growth_bytes" in error.remedy


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "failed: its process was killed by SIGSEGV"),
        ("os.write(2, b'broken\\n  pipe'); os._exit(7)", "ended with status 7; it last said: broken pipe"),
        ("os._exit(0)", "ended with status 0"),
    ],
)
def test_a_reader_that_dies_is_an_error_of_the_model(
    does: str, words: str, path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python runs sitecustomize first; the finder does what a reader might, as soon as OpenVINO is imported.
    (path.parent / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Dies:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'openvino':\n"
        f"            {does}\n"
        "sys.meta_path.insert(0, Dies())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(path.parent))
    error = refusal(path, out)
    assert words in error.cause
    assert error.exit_code == 3


def dies_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers die when they are about to run what a text speaks of."""
    (folder / "sitecustomize.py").write_text(
        "import logging, os, signal\n"
        "class Dying(logging.StreamHandler):\n"
        "    def emit(self, record):\n"
        "        super().emit(record)\n"
        f"        if {text!r} in record.getMessage():\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "logging.StreamHandler = Dying\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_device_that_dies_of_the_only_sizes_is_told_from_a_damaged_file(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(dynamic(), tmp_path / "model.xml")
    dies_of("x [1, 3, 4]", tmp_path, monkeypatch)
    error = refusal(tmp_path / "model.xml", out)
    assert "with x [1,3,4]: the process that ran it was killed by SIGSEGV" in error.cause
    assert "Pass the sizes it was made for" in error.remedy


def test_a_device_that_dies_after_the_trial_is_told_from_a_damaged_file() -> None:
    fault, file = (read_apart._death_error(Path("m.xml"), words, "") for words in (f"died; {RUNNING} x", "died"))
    assert "a fault of OpenVINO's CPU plug-in" in fault.remedy
    assert "Check that the file is whole" in file.remedy


def test_sizes_of_which_the_device_dies_are_followed_by_others(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="x")
    save_model(ov.Model([op.result(op.relu(x, name="relu"))], [x]), tmp_path / "model.xml")
    dies_of("128", tmp_path, monkeypatch)
    read_apart.read_in_process(
        tmp_path / "model.xml", out, source=model_sha256(tmp_path / "model.xml"), limits=ReadLimits()
    )
    (chosen,) = json.loads((out / "shapes.json").read_text())
    assert chosen["shape"] == "[1,64,4]"


def test_given_sizes_of_which_the_device_dies_are_an_error_of_the_user(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(dynamic(), tmp_path / "model.xml")
    dies_of("x [2, 3, 4]", tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=r"does not run with x \[2,3,4\]: the process .* by SIGSEGV"):
        read_apart.read_in_process(
            tmp_path / "model.xml",
            out,
            source=model_sha256(tmp_path / "model.xml"),
            limits=ReadLimits(),
            shapes=InputShapes(("x=2x3x4",)),
        )


def test_sizes_that_take_too_much_memory_are_followed_by_others(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    save_model(ov.Model([op.result(op.relu(x, name="relu"))], [x]), tmp_path / "model.xml")
    read = [read_apart._EndedError("", "", "took more than 1 MB of memory")]
    original = read_apart._run_command

    def ask(command: dict[str, Any], *given: Any) -> dict[str, Any]:
        if read:
            read_apart.Tries(Path(command["tries"])).begin("x [1,128]")
            raise read.pop()
        return original(command, *given)

    monkeypatch.setattr(read_apart, "_run_command", ask)
    read_apart.read_in_process(
        tmp_path / "model.xml", out, source=model_sha256(tmp_path / "model.xml"), limits=ReadLimits()
    )
    (chosen,) = json.loads((out / "shapes.json").read_text())
    assert chosen["shape"] == "[1,64]"


def test_a_disk_without_room_is_no_fault_of_the_model(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"graph\.npz"):
        read_apart.read_in_process(path, tmp_path / "gone", source=model_sha256(path), limits=ReadLimits(), save=False)
