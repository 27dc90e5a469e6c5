"""tune with ONNX Runtime beside OpenVINO: what it says unasked, and what it leaves where ONNX Runtime is the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.cli.main import run_command_line
from runtime.executor.onnx_session import OnnxModel
from tests.e2e.conftest import options
from tests.unit.pipeline.deploy.test_annotated import small_onnx

pytestmark = pytest.mark.usefixtures("read_here", "made_up_profile")

Ran = Callable[..., Any]
BRIEF = {"measure__use": "hetero", "measure__alone_s": 0.05, "measure__start_s": 0.1, "measure__turn_s": 0.001}
BRIEF |= {"measure__starts": 3, "measure__seconds": 12, "measure__finalists": 1, "place__reward": "simulated"}


@pytest.fixture
def tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that tunes a small ONNX file with some runtimes, and gives the document of its result."""
    model = small_onnx(tmp_path / "small.onnx")

    def tune(*runtimes: str, **more: Any) -> Any:
        asked = ["--runtimes", ",".join(runtimes)] if runtimes else []
        folder = tmp_path / "-".join(("run", *runtimes))
        given = ["--devices", "CPU", *options(tmp_path / "store", **BRIEF, **more)[2:]]
        assert run_command_line(["tune", str(model), "--out", str(folder), "--json", *asked, *given]) == 0, (
            capsys.readouterr().err
        )
        return json.loads(capsys.readouterr().out)

    return tune


def row_of(document: Any, name: str) -> Any:
    return next(row for row in document["candidates"] if row["name"] == name)


@pytest.mark.slow
def test_unasked_its_default_is_a_row_and_never_the_answer(tuned: Callable[..., Any]) -> None:
    document = tuned(measure__settings="false")
    row = row_of(document, "ONNX Runtime default")
    assert (row["kind"], row["runtime"], row["failed"]) == ("other runtime", "onnxruntime", None)
    assert row["times_as_fast"] > 0
    assert row["accuracy"]["why_not"] == ""
    assert document["best"] != row["name"]
    assert row["name"] not in document["contest"]["claimed"]
    assert [c["name"] for c in document["candidates"] if c["runtime"] == "onnxruntime"] == [row["name"]]


def test_asked_for_it_is_a_candidate_like_any_other(tuned: Callable[..., Any]) -> None:
    document = tuned("openvino", "onnxruntime", measure__settings="false")
    row = row_of(document, "ONNX Runtime default")
    assert (row["kind"], row["baseline"], row["target"]) == ("settings", False, "CPUExecutionProvider")
    assert row["times_as_fast"] > 0
    assert {c["runtime"] for c in document["candidates"]} == {"openvino", "onnxruntime"}
    assert document["contest"]["control"] != row["name"]


def test_alone_its_answer_is_loaded_emitted_located_and_reported(
    tuned: Callable[..., Any], ran: Ran, tmp_path: Path
) -> None:
    document = tuned("onnxruntime", measure__settings="false")
    assert {c["runtime"] for c in document["candidates"]} == {"onnxruntime"}
    assert document["contest"]["default"] == "ONNX Runtime default"
    folder = tmp_path / "run-onnxruntime"
    assert document["files"]["model"] == "onnx/model.onnx"
    loaded = pipeline.load(folder)
    assert isinstance(loaded, OnnxModel)
    with loaded as model:
        assert np.isfinite(model.infer(np.ones((1, 3, 8, 8), np.float32))[0]).all()
    assert set(ran("emit", str(folder), "--to", "python")["files"]) == {"run.py", "session.json", "model.onnx"}
    assert ran("where", "--run", str(folder))["executed_on"] == ["CPUExecutionProvider"]
    assert run_command_line(["report", str(folder)]) == 0
    assert "ONNX Runtime default" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow  # of starts beside other tests, a comparison cannot tell
def test_its_answer_compared_with_itself_is_the_same(tuned: Callable[..., Any], ran: Ran, tmp_path: Path) -> None:
    tuned("onnxruntime", measure__settings="false")
    folder = str(tmp_path / "run-onnxruntime")
    assert ran("compare", folder, folder, "--least", "50%")["verdict"] == "same"
