"""When segments really run: measured on a model of two branches, read back, and drawn beside the prediction."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from coarsen.reading.model.read import read_model, save_model, to_graph
from pipeline.cli.main import run_command_line
from pipeline.core.devices import DATAFLOW, DeviceSpec
from pipeline.core.placement import Placement
from pipeline.report.timeline import measure_timeline, measured_timeline
from pipeline.result.deployment import SPLIT
from runtime.executor.splitting import how_to_run, split_file
from tests.deployments import deployed, halves
from tests.models import two_towers
from tests.reports import finished

ONE = {"INFERENCE_NUM_THREADS": "1"}
DEVICES = tuple(DeviceSpec(name, "CPU", f"CPU_{name}", ONE) for name in "AB")
CLOCK_S = 1e-6  # by which two clocks of one process may differ; all else follows from the order of events
USAGE, NO_MEASUREMENT = 2, 5  # exit codes


def in_segments(folder: Path, runner: str) -> Path:
    """Write a finished run whose answer runs the two halves of a model in segments; return the folder."""
    finished(folder)
    settings = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["settings"]
    save_model(two_towers(2, width=16), folder / "whole.xml")
    model = read_model(folder / "whole.xml")
    graph, where = to_graph(model, source=""), halves(model)
    deployed(folder, model, DEVICES, placement=where, target=f"{DATAFLOW}:CPU_A,CPU_B")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"settings": settings}), encoding="utf-8")
    placement = Placement.from_json(where, graph.names, ("A", "B"))
    split_file(folder / "placed.xml", graph, placement, DEVICES, folder / SPLIT, how_to_run(runner, 1))
    return folder


@pytest.mark.parametrize("runner", ["serial", "level", "threads"])
def test_every_segment_lies_within_its_inference_and_beside_none_of_its_device(tmp_path: Path, runner: str) -> None:
    folder = in_segments(tmp_path / "run", runner)
    measure_timeline(folder)
    found = measured_timeline(folder)
    assert found is not None
    told = json.loads((folder / SPLIT / "manifest.json").read_text(encoding="utf-8"))["segments"]
    assert sorted(found.names) == sorted(s["id"] for s in told)
    for j in range(len(found.devices)):
        mine = sorted(zip(found.start_s[found.device == j], found.end_s[found.device == j], strict=True))
        assert all(end <= start + CLOCK_S for (_, end), (start, _) in pairwise(mine))
    index = {name: i for i, name in enumerate(found.names)}
    for s in told:
        i = index[s["id"]]
        assert found.devices[found.device[i]] == s["device"]
        assert 0 <= found.start_s[i] <= found.end_s[i] <= found.value_s + CLOCK_S


def test_an_answer_that_runs_as_one_model_has_no_timeline_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(tmp_path / "run")
    for name in ("placed.xml", "placed.bin"):
        (folder / name).touch()
    assert run_command_line(["report", str(folder), "--measure"]) == USAGE
    assert "runs as one compiled model" in capsys.readouterr().err


def test_damaged_segments_are_one_line_of_cause_and_one_of_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = in_segments(tmp_path / "run", "serial")
    (folder / SPLIT / "manifest.json").write_text("{}", encoding="utf-8")
    assert run_command_line(["report", str(folder), "--measure"]) == NO_MEASUREMENT
    err = capsys.readouterr().err
    assert "cannot be run" in err
    assert err.count("\n") == 2
