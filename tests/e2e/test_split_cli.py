"""placewright split, and tune --runtime: folders of segments, loaded again, and mistakes answered in two lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import pipeline
from coarsen.reading.model.read import save_model, to_graph
from pipeline.cli.main import run_command_line
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.estimates import RatioEstimate
from pipeline.result import result
from pipeline.result.verdict import Verdict
from pipeline.shared.payload import read_json
from tests.deployments import deployed
from tests.e2e.conftest import DEVICES, options
from tests.models import names, through_file, two_towers
from tests.source_models import cancelling
from tests.two_cpus import two_cpus

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]
X = np.linspace(-1, 1, 16, dtype=np.float32)[None]


def by_tower(path: Path, model: Path, **more: Any) -> Path:
    """Write the placement of the right tower on B; inputs and constants are left out."""
    kept = [name for name in names(through_file(two_towers(2, width=16), model.parent)) if "weight" not in name]
    placement = {name: "B" if name.startswith("right") else "A" for name in kept if name not in ("x", "out")}
    path.write_text(json.dumps({"placement": placement, **more} if more else placement), encoding="utf-8")
    return path


def test_a_split_model_is_written_described_and_loaded(model: Path, tmp_path: Path, ran: Ran) -> None:
    placement, out = by_tower(tmp_path / "p.json", model), tmp_path / "split"
    told = ran("split", str(model), "--placement", str(placement), "--out", str(out), "--devices", DEVICES)
    assert [s["device"] for s in told["segments"]].count("B") == 1
    assert told == read_json(out / "manifest.json")
    assert (out / "segment0.xml").is_file()
    with pipeline.load(out, runner="pipeline", requests=2) as whole, pipeline.load(out) as again:
        assert (whole.runner_name, again.runner_name, whole.requests) == ("pipeline", "threads", 2)
        assert np.array_equal(whole(X)[0], again({"x": X})["out"])


@pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU does not compute in bf16"
)
def test_segments_that_compute_something_else_than_the_source_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(cancelling(), tmp_path / "m.xml")
    (tmp_path / "p.json").write_text(
        json.dumps(dict.fromkeys(("first", "shifted", "passed", "cancelled", "last"), "A"))
    )
    command = [
        "split",
        str(tmp_path / "m.xml"),
        "--placement",
        str(tmp_path / "p.json"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert run_command_line([*command, "--devices", "A=CPU{INFERENCE_PRECISION_HINT=bf16}"]) == 6
    assert "outputs of the segments differ from" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run_command_line([*command, "--devices", "A=CPU{INFERENCE_PRECISION_HINT=f32}"]) == 0


def test_an_earlier_split_in_the_folder_is_replaced(model: Path, tmp_path: Path, ran: Ran) -> None:
    out = tmp_path / "split"
    command = ["split", str(model), "--out", str(out), "--devices", DEVICES, "--placement"]
    ran(*command, str(by_tower(tmp_path / "p.json", model)))
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(dict.fromkeys(names(through_file(two_towers(2, width=16), tmp_path)), "A")))
    assert len(ran(*command, str(alone))["segments"]) == 1
    assert len(list(out.glob("segment*.xml"))) == 1


@pytest.mark.parametrize(
    ("content", "more", "code", "words"),
    [
        (None, [], 2, "cannot be read"),
        ("[", [], 2, "is not valid JSON"),
        ("[1]", [], 2, "holds no placement"),
        ("{}", [], 2, "holds no placement of operations"),
        ('{"left0": "A"}', ["--devices", DEVICES], 2, "operations without a device"),
        ('{"left0": "C"}', [], 2, "defines no device C"),
        ('{"left0": "CPU"}', ["--runner", "fast"], 2, "is not one of"),
    ],
)
def test_a_wrong_placement_is_answered_in_two_lines(
    content: str | None, more: list[str], code: int, words: str, model: Path, tmp_path: Path, capfd: Any
) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert (
        run_command_line(["split", str(model), "--placement", str(path), "--out", str(tmp_path / "out"), *more]) == code
    )
    said = capfd.readouterr().err.strip().splitlines()
    assert words in said[0]
    assert said[0].startswith("error: ")
    assert said[1].startswith("  fix: ")
    assert not (tmp_path / "out").exists()


def test_a_finished_run_on_hetero_is_loaded_in_segments(tmp_path: Path) -> None:
    model = through_file(two_towers(2, width=16), tmp_path)
    placement = {name: "B" if name.startswith("right") else "A" for name in names(model)}
    folder = deployed(tmp_path / "run", model, two_cpus(), placement=placement)
    alone = deployed(tmp_path / "alone", model, two_cpus()[:1], placement=dict.fromkeys(placement, "A"), target="CPU_A")
    with pipeline.load(folder) as split, pipeline.load(str(alone)) as whole:
        assert (len(split.manifest.segments), len(whole.manifest.segments)) == (3, 1)
        assert np.allclose(split(X)[0], whole(X)[0], atol=1e-5)


def test_what_is_no_run_or_leaves_the_choice_to_openvino_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a run directory"):
        pipeline.load(tmp_path)
    automatic = deployed(tmp_path / "auto", two_towers(), two_cpus(), target="AUTO:CPU_A,CPU_B")
    with pytest.raises(UsageError, match="lets AUTO"):
        pipeline.load(automatic)
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match="is damaged"):
        pipeline.load(tmp_path)


def in_segments(folder: Path) -> Path:
    """Write a run whose answer runs in segments, as a finished run leaves it; return the folder."""
    model = through_file(two_towers(2, width=16), folder.parent)
    graph = to_graph(model, source="")
    placement = {name: "B" if name.startswith("right") else "A" for name in graph.names}
    target = "DATAFLOW:CPU_A,CPU_B"
    deployed(folder, model, two_cpus(), placement=placement, target=target, properties={})
    best = {"target": target, "devices": [d.to_json() for d in two_cpus()], "runner": "level", "requests": 2}
    assert result.write_segments(folder, graph, best | {"placement": placement}) == {"segments": "split"}
    return folder


def test_a_run_in_segments_is_loaded_as_it_was_measured_and_is_no_compiled_model(tmp_path: Path, capfd: Any) -> None:
    folder = in_segments(tmp_path / "run")
    with pipeline.load(folder) as loaded:
        assert (loaded.runner_name, loaded.requests, loaded(X)[0].shape) == ("level", 2, (1, 16))
    for command in (["emit", str(folder), "--to", "python"], ["where", "--run", str(folder)]):
        assert run_command_line(command) == 2
        assert "runs the model in segments" in capfd.readouterr().err


def test_the_segments_of_an_earlier_answer_are_removed(tmp_path: Path) -> None:
    folder = in_segments(tmp_path / "run")
    graph = to_graph(through_file(two_towers(2, width=16), tmp_path), source="")
    assert result.write_segments(folder, graph, {"target": "CPU"}) == {}
    assert not (folder / "split").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("made_up_profile")
def test_an_answer_in_segments_leaves_them_in_the_run_directory(
    model: Path, tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_in_segments(rows: Any, contest: Any, limits: Any) -> Verdict:
        name = next(r.name for r in rows if r.name.endswith("threads") and r.latency_s is not None)
        return Verdict(name, "Use it.", RatioEstimate(1.0, 1.0, 1.0))

    monkeypatch.setattr(result, "decide_contest", first_in_segments)
    quick = options(tmp_path / "store", measure__use="hetero", measure__settings="false", measure__starts=1)
    folder = tmp_path / "run"
    told = ran("tune", str(model), "--out", str(folder), "--runtime", "dataflow", "--budget", "20s", *quick)
    assert told["files"]["segments"] == "split"
    document = read_json(folder / "placement.json")
    assert (document["target"], document["runner"]) == ("DATAFLOW:CPU_A,CPU_B", "threads")
    with pipeline.load(folder) as loaded:
        assert loaded(X)[0].shape == (1, 16)
