"""A network of the zoo with branches, tuned on two halves of the CPU from its name to what runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import pipeline
from pipeline.shared.model_inputs import make_inputs
from tests.e2e.conftest import DEVICES

pytestmark = pytest.mark.slow


def test_a_stack_of_split_directions_is_tuned_and_runs_as_its_result_says(
    tmp_path: Path, ran: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    common = ("--devices", DEVICES, "--store", str(tmp_path / "store"), "--out", str(run), "--budget", "90s")
    document = ran("tune", "zoo:bilstm-128", "--split-directions", *common)
    assert any("layer0 is now layer0/forward and layer0/reverse" in note for note in document["notes"])
    best = next(c for c in document["candidates"] if c["name"] == document["best"])
    assert best["latency_s"] is not None
    assert document["speedup_over_best_single"]["high"] >= 1  # nothing that is slower for certain
    model = ov.Core().read_model(run / "placed.xml")
    feed = make_inputs(model, seed=0, dynamic_size=8)
    expected = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feed)
    found = pipeline.Result.load(run).compile()(feed)
    for name in ("states", "last"):
        assert np.linalg.norm(found[name] - expected[name]) <= 5e-2 * np.linalg.norm(expected[name])  # low_tolerance
    assert ran("emit", str(run), "--to", "python")["files"][0] == "run.py"
