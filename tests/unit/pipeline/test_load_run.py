"""A finished run in segments: its placed model keeps the shapes that it was placed with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import pipeline
from pipeline.core.devices import DeviceSpec
from tests.deployments import deployed, halves
from tests.models import chain, dynamic, through_file
from tests.two_cpus import two_cpus


def test_a_run_whose_model_is_dynamic_stays_dynamic_in_segments(tmp_path: Path) -> None:
    model = through_file(dynamic(), tmp_path)
    names = [op.get_friendly_name() for op in model.get_ordered_ops()]
    placement = dict.fromkeys(names, "A") | {"product": "B", "weight": "B", "out": "B"}
    run = deployed(tmp_path / "run", model, two_cpus(), placement=placement)
    with pipeline.load(run) as loaded:
        for rows in (5, 2):
            x = np.arange(rows * 12, dtype=np.float32).reshape(rows, 3, 4)
            np.testing.assert_array_equal(loaded({"x": x})[0], x.reshape(rows, 12) @ np.ones((12, 5), np.float32))


def test_one_core_compiles_what_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(4)
    run = deployed(tmp_path / "run", model, two_cpus(), placement=halves(model))
    made: list[ov.Core] = []
    core = ov.Core

    def counted() -> ov.Core:
        made.append(core())
        return made[-1]

    monkeypatch.setattr(ov, "Core", counted)
    with pipeline.load(run, requests=2, runner="pipeline") as loaded:
        assert (loaded.runner_name, loaded.manifest.requests) == ("pipeline", 2)
        x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
        np.testing.assert_allclose(loaded(x)[0], np.tanh(np.maximum(np.tanh(np.maximum(x, 0)), 0)), rtol=1e-4)
    assert len(made) == 1


def test_requests_that_were_measured_together_are_computed_together(tmp_path: Path) -> None:
    model, device = chain(2), DeviceSpec("CPU", "CPU", "CPU", {"INFERENCE_NUM_THREADS": "1"}, "cpu")
    placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "CPU")
    waits = {"AUTO_BATCH_TIMEOUT": "1"}
    run = deployed(
        tmp_path / "run",
        model,
        (device,),
        placement=placement,
        target="BATCH:CPU(4)",
        properties=waits,
        requests=8,
    )
    inputs = np.random.default_rng(0).standard_normal((20, 1, 8)).astype(np.float32)
    with pipeline.load(run) as loaded, ThreadPoolExecutor(8) as pool:
        known = loaded.manifest.devices["CPU"]
        assert (known.openvino_name, known.library) == ("BATCH:CPU(4)", "")
        assert known.properties.items() >= {"INFERENCE_NUM_THREADS": "1", **waits}.items()
        told = list(pool.map(lambda x: loaded(x)[0], inputs))
    np.testing.assert_allclose(told, np.tanh(np.maximum(inputs, 0)), rtol=1e-4, atol=1e-6)
