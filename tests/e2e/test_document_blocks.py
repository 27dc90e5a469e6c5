"""The Python blocks of README and docs/: each runs, on one finished run, and gives what its page says.

The one that searches with a placer that learns takes seconds, and is marked slow.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import pytest

import pipeline
from coarsen.reading.model.read import save_model
from pipeline.deploy.split import split
from tests.e2e.conftest import DEVICES, QUICK, Warm
from tests.models import chain
from tests.slow import slow_where
from tests.unit.pipeline.report.test_pages import PAGES, ROOT, blocks

ELSEWHERE = {"docs/api.md", "docs/plugins.md", "docs/tutorials/laptop.md"}  # below; by test_plugin and test_tutorials
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
INPUT = np.linspace(-1, 1, 8, dtype=np.float32)[None]

Names = dict[str, Any]


class Block(NamedTuple):
    """A page's block. less: what is written in it, and what runs in its place. gives: checks what it leaves behind."""

    gives: Callable[[Names], None]
    less: tuple[tuple[str, str], ...] = ()


def tuned(left: Names) -> None:
    assert isinstance(left["compiled"], ov.CompiledModel)
    assert left["result"].record.best == json.loads(Path("run/result.json").read_text(encoding="utf-8"))["best"]


def compiled(left: Names) -> None:
    model = ov.Core().read_model("model.xml")
    x = np.linspace(-1, 1, model.input(0).shape[1], dtype=np.float32)[None]
    expected = ov.Core().compile_model(model, "CPU", F32)(x)[0]
    np.testing.assert_allclose(left["compiled"](x)[0], expected, rtol=1e-5, atol=1e-6)  # other kernels, other rounding


def ran(left: Names) -> None:
    expected = np.maximum(np.tanh(np.maximum(INPUT, 0)), 0)
    for name in ("y", 0):
        np.testing.assert_allclose(left["outputs"][name], expected, rtol=1e-4)  # tanh is approximated


def searched(left: Names) -> None:
    assert left["answer"]["evaluations"] <= 10_000
    assert Path("curve.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert list(Path("events").iterdir())
    assert list(Path("learned").rglob("*.safetensors"))


BLOCKS = {
    "README.md": Block(tuned, (('["CPU", "GPU"]', "DEVICES"), ("budget_s=120", "budget_s=120, settings=QUICK"))),
    "docs/executor.md": Block(ran),
    "docs/result.md": Block(compiled),
    "docs/search.md": Block(searched, (('"hsdag", ', '"hsdag", evaluations=30, '),)),
}


@pytest.fixture(scope="module")
def home(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the pages take for granted: a model, its finished run, and one in segments."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(warm.run, folder / "run")
    shutil.copytree(warm.store, folder / "store")
    for suffix in (".xml", ".bin"):
        shutil.copy(warm.model.with_suffix(suffix), folder / f"model{suffix}")
    named = chain(3)
    named.input(0).tensor.set_names({"x"})
    named.output(0).tensor.set_names({"y"})
    save_model(named, folder / "named.xml")
    (folder / "placement.json").write_text(json.dumps({"op0": "A", "op1": "B", "op2": "A"}), encoding="utf-8")
    split(folder / "named.xml", folder / "placement.json", folder / "split", devices=DEVICES)
    return folder


@pytest.mark.parametrize("page", slow_where(BLOCKS, {"docs/search.md"}))
def test_the_block_of_a_page_runs(page: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(home / "store"))
    (text,) = blocks(ROOT / page, "python")
    for old, new in BLOCKS[page].less:
        assert old in text
        text = text.replace(old, new)
    left: Names = {"array": INPUT, "DEVICES": [DEVICES], "QUICK": QUICK}
    exec(compile(text, page, "exec"), left)
    BLOCKS[page].gives(left)


def test_a_finished_run_loads_in_segments_as_the_page_says(home: Path) -> None:
    with pipeline.load(home / "run") as model:
        outputs = model(np.ones((1, 16), np.float32))
    expected = ov.Core().compile_model(home / "model.xml", "CPU", F32)(np.ones((1, 16), np.float32))[0]
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-6)  # other kernels, other rounding


@pytest.mark.parametrize("i", range(2))
def test_a_script_of_the_api_page_runs(
    i: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(home / "store"))
    text = blocks(ROOT / "docs/api.md", "python")[i]
    quick = text.replace('devices=["CPU"], budget_s=20, out="run"', f'devices="{DEVICES}", settings={QUICK}, out="run"')
    assert (quick != text) == ("tune(" in text)
    exec(compile(quick, "docs/api.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_scripts_of_the_api_page_are_typed(tmp_path: Path) -> None:
    for i, text in enumerate(blocks(ROOT / "docs/api.md", "python")):
        (tmp_path / f"script{i}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_every_block_of_python_runs_here_or_elsewhere() -> None:
    told = {page.relative_to(ROOT).as_posix() for page in PAGES if blocks(page, "python")}
    assert told == BLOCKS.keys() | ELSEWHERE
