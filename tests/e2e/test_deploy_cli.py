"""emit, where and compare on the run directory that tune leaves: what they print, write and end with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_model, save_model
from pipeline.cli.main import run_command_line
from pipeline.deploy.emit import TARGETS
from pipeline.result.result import Result
from tests.deployments import deployed, halves, measured, write
from tests.e2e.conftest import Warm
from tests.models import dynamic, through_file, two_towers
from tests.onnx_models import convolution_onnx
from tests.two_cpus import two_cpus

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]
STEADY = np.linspace(0.99e-3, 1.01e-3, 12)  # seconds


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, which must end with a code, and gives what it tells people."""

    def command(code: int, *arguments: str) -> str:
        capsys.readouterr()
        found = run_command_line(list(arguments))
        out, err = capsys.readouterr()
        assert found == code, err
        return str(out + err)

    return command


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `where` average over a moment only."""
    monkeypatch.setattr("pipeline.deploy.where.SECONDS", 0.05)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Return the directory of a run that splits two towers over A and B."""
    model = through_file(two_towers(2, width=16), tmp_path)
    return deployed(tmp_path / "split", model, two_cpus(), placement=halves(model))


def test_what_emit_writes_of_a_tuned_run_gives_the_outputs_of_its_result(copy: Warm, tmp_path: Path, ran: Ran) -> None:
    document = ran("emit", str(copy.run), "--to", "python")
    folder = Path(document["folder"])
    assert folder == copy.run / "emit" / "python"
    assert "run.py" in document["files"]
    assert all((folder / name).is_file() for name in document["files"])
    program = (folder / "run.py").read_text(encoding="utf-8").replace("SECONDS = 1, 3.0", "SECONDS = 1, 0.2")
    (folder / "run.py").write_text(program, encoding="utf-8")
    x = np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    told = subprocess.run(
        [sys.executable, str(folder / "run.py"), "in.npz", "out.npz"],
        cwd=tmp_path,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    result = Result.load(copy.run)
    assert told.stdout.startswith(f"{result.best.name}: median latency ")
    expected = result.compile()(x)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["output_0"], expected[0], rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_emit_writes_for_every_target_and_says_what(target: str, tmp_path: Path, says: Callable[..., str]) -> None:
    source, (device, _) = convolution_onnx(tmp_path / "net.onnx"), two_cpus()
    model, sha256 = read_model(source), model_sha256(source)
    placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "A")
    here = {"source": str(source), "sha256": sha256, "target": device.openvino_name}
    single = deployed(tmp_path / "run", model, [device], placement=placement, **here)
    said = says(0, "emit", str(single), "--to", target, "--out", str(tmp_path / "out"))
    assert said.startswith(f"Written to {tmp_path / 'out'}: ")
    assert (tmp_path / "out").is_dir()
    assert not (single / "emit").exists()


def test_emitting_twice_leaves_the_same_files(split: Path, ran: Ran) -> None:
    first = ran("emit", str(split), "--to", "cpp")
    before = {name: (split / "emit" / "cpp" / name).read_bytes() for name in first["files"]}
    assert ran("emit", str(split), "--to", "cpp") == first
    assert {name: (split / "emit" / "cpp" / name).read_bytes() for name in first["files"]} == before
    assert {p.name for p in (split / "emit" / "cpp").iterdir()} == set(first["files"])


def test_where_tells_of_a_model_what_runs_on_the_device(model: Path, ran: Ran, says: Callable[..., str]) -> None:
    document = ran("where", str(model))
    assert document["schema"] == "placewright.where/1"
    assert document["executed_on"] == ["CPU"]
    rows = {row["operation"]: row for row in document["operations"]}
    assert {"x", "left0", "left0.relu", "right1", "sum", "out"} <= set(rows)
    assert rows["left0.relu"]["why"] == "fused into left0"
    seconds = [row["seconds"] for row in document["operations"]]
    assert seconds == sorted(seconds, reverse=True)
    (total,) = document["devices"]
    assert total["seconds"] == pytest.approx(sum(seconds))
    said = says(0, "where", str(model), "--all")
    assert said.index("share") < said.index("precision")  # the sums come first
    assert "CPU ran on CPU" in said
    assert "--all" not in said


def test_where_shows_the_slowest_operations_unless_all_are_wanted(
    model: Path, monkeypatch: pytest.MonkeyPatch, says: Callable[..., str]
) -> None:
    monkeypatch.setattr("pipeline.cli.deploy.SLOWEST", 3)
    said = says(0, "where", str(model), "--device", "A=CPU{INFERENCE_NUM_THREADS=1}")
    assert "faster ones not shown; use --all." in said
    assert sum(line.rstrip().endswith(("asked for", "an input", "folded")) for line in said.splitlines()) <= 3


def test_where_tells_of_a_run_that_all_is_where_it_was_placed(split: Path, ran: Ran) -> None:
    placement = json.loads((split / "placement.json").read_text(encoding="utf-8"))["placement"]
    document = ran("where", "--run", str(split))
    executed = {r["operation"]: r["device"] for r in document["operations"] if r["why"] == "placed there"}
    assert executed
    assert executed.items() <= placement.items()
    assert {total["device"] for total in document["devices"]} == {"A", "B"}


def test_where_tells_of_a_tuned_run_and_of_its_model(copy: Warm, ran: Ran) -> None:
    document = ran("where", str(copy.model), "--run", str(copy.run))
    assert document["model"] == str(copy.run / "placed.xml")
    assert not any(row["fallback"] for row in document["operations"])


def test_where_sizes_dynamic_inputs_as_it_is_told(tmp_path: Path, ran: Ran) -> None:
    save_model(dynamic(), tmp_path / "dynamic.xml")
    document = ran("where", str(tmp_path / "dynamic.xml"), "--shape", "x=4x3x4", "--device", "AUTO:CPU")
    assert document["target"] == "AUTO:CPU"
    assert any(row["operation"] == "product" for row in document["operations"])


def test_auto_that_takes_another_device_than_when_it_was_measured_ends_with_6(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = deployed(
        measured(tmp_path / "auto", [1e-3]),
        two_towers(),
        two_cpus(),
        target="AUTO:CPU_A,CPU_B",
        properties={"ENABLE_STARTUP_FALLBACK": "NO"},
    )
    document = json.loads((auto / "result.json").read_text(encoding="utf-8"))
    for measured_on, code in (("A", 0), ("B", 6)):
        document["candidates"][0]["devices_used"] = [measured_on]
        write(auto / "result.json", document)
        assert run_command_line(["where", "--run", str(auto), "--json"]) == code
        out, err = capsys.readouterr()
        assert json.loads(out)["executed_on"] == ["A"]  # what it says is printed in any case
    assert "placed on B ran on A: " in err
    assert "Traceback" not in err


def test_compare_ends_with_0_or_7_and_says_why(tmp_path: Path, ran: Ran, says: Callable[..., str]) -> None:
    a, b = measured(tmp_path / "a", STEADY.tolist()), measured(tmp_path / "b", (1.2 * STEADY).tolist())
    said = says(7, "compare", str(a), str(b))
    assert said.count("error:") == 1
    assert "is slower: it takes 1.200 times as long (1." in said
    assert "unpaired" in said
    document = ran("compare", str(b), str(a))
    assert (document["verdict"], document["paired"]) == ("faster", False)
    assert document["interval"]["high"] < 1
    assert "is no slower by more than 30 %" in says(0, "compare", str(a), str(b), "--least", "30%")


def test_compare_prints_its_document_when_the_run_is_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = measured(tmp_path / "a", STEADY.tolist()), measured(tmp_path / "b", (1.2 * STEADY).tolist())
    assert run_command_line(["compare", str(a), str(b), "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["verdict"] == "slower"
