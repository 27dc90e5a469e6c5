"""A finished scenario, loaded, written for other tools and shown: its models run as the answer says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline import api
from pipeline.cli.main import run_command_line
from pipeline.core.errors import StoreError, UnknownNameError, UsageError
from pipeline.core.estimates import RatioEstimate
from pipeline.deploy.several import ScenarioDeployment, emit_run, is_scenario_run
from pipeline.deploy.split import load
from pipeline.report.scenario_page import scenario_page
from pipeline.result.records import RegisteredRecord
from pipeline.scenario.records import (
    CheckRecord,
    ConfigurationRecord,
    ConfiguredModel,
    ModelLoadRecord,
    ScenarioContest,
    ScenarioLimits,
    ScenarioResult,
    ServedFigures,
    ServedRequest,
)
from pipeline.settings.config import Settings
from pipeline.store.store import Store
from tests.deployments import deployed
from tests.models import through_file
from tests.unit.pipeline.deploy.test_emit import executed, flat_model, one_cpu, quick, said_of_mistake

NAMES = ("small", "large")


def configured(name: str) -> ConfiguredModel:
    return ConfiguredModel(
        name, "CPU", {"CPU": RegisteredRecord("CPU", "CPU", {"INFERENCE_NUM_THREADS": "1"})}, {}, 1, "CPU 1 thread"
    )


def served(name: str, *, holds: bool | None = True) -> ServedFigures:
    told = {"50": 0.001, "90": 0.002, "99": 0.003}
    return ServedFigures(name, 1.5, 20.0, 19.5, 400, 0, 0.003, told, 0.0125, holds)


def result_of(**more: object) -> ScenarioResult:
    """Return a result in which the large model is compiled first."""
    answer = ConfigurationRecord(
        "one thread each",
        "searched",
        [configured(name) for name in reversed(NAMES)],
        "process",
        value=1.9,
        between=(1.7, 2.1),
        log_ratios={"1": 0.4, "2": 0.5},
        over_control=RatioEstimate(1.58, 1.4, 1.8, 2),
        figures=[served(name) for name in NAMES],
    )
    control = replace(
        answer, name="plug-in defaults", kind="defaults", value=1.2, over_control=None, log_ratios={}, sight=1.0
    )
    loads = [
        ModelLoadRecord(n, f"{n}.onnx", "0" * 64, n, [], 10.0, 0, "poisson", 0.06, 99.0, 1.0, "queue", "", 1.0, [])
        for n in NAMES
    ]
    contest = ScenarioContest(control.name, 0.95, 0.02, [answer.name], 0.01, False)
    fields: dict[str, object] = {
        "schema": "placewright.scenario/1",
        "source": "box.toml",
        "objective": "load",
        "isolation": "process",
        "limits": ScenarioLimits(),
        "models": loads,
        "devices": [],
        "fingerprint": "f",
        "hardware": {},
        "versions": {},
        "seed": 0,
        "stages": [],
        "configurations": [answer, control],
        "best": answer.name,
        "verdict": "The machine holds 1.9 times the stated load.",
        "speedup": RatioEstimate(1.58, 1.4, 1.8, 2),
        "contest": contest,
        "check": CheckRecord(1.8, [served("small")], [served("small", holds=False)], True),
    }
    return ScenarioResult(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the run directory of a scenario of two models."""
    folder = tmp_path / "box"
    for name, requests in zip(NAMES, (1, 2), strict=True):
        model = through_file(flat_model(), tmp_path)
        everywhere = {op.get_friendly_name(): "A" for op in model.get_ops()}
        deployed(folder / name, model, one_cpu(), target="CPU_A", placement=everywhere, requests=requests)
    (folder / "result.json").write_text(json.dumps(result_of().to_json()), encoding="utf-8")
    return folder


def test_a_scenario_that_ran_has_its_report_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "plan_scenario_file", lambda *_: None)
    monkeypatch.setattr("pipeline.scenario.run.run_scenario", lambda *_, **__: result_of())
    api.advance_scenario(None, Settings(), run, Store(run / "store"), progress=print)
    assert "The machine holds 1.9 times the stated load." in (run / "report.html").read_text(encoding="utf-8")


def test_models_are_loaded_by_name_in_the_order_of_compiling(run: Path) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    with load(run) as models:
        assert list(models) == ["large", "small"]
        assert models["large"].requests == 2
        for model in models.values():
            np.testing.assert_allclose(model({"x": x})[0], np.exp(x), rtol=1e-5)
    with pytest.raises(UsageError, match="holds several models"):
        load(run, requests=2)


def test_phases_in_one_copy_are_loaded_once_by_the_name_of_their_model(run: Path) -> None:
    loads = [replace(load, name=f"small-{load.name}", folder="small") for load in result_of().models]
    answer = replace(result_of().answer, models=[configured(load.name) for load in loads], shared=["small"])
    shared = result_of(models=loads, configurations=[answer])
    (run / "result.json").write_text(json.dumps(shared.to_json()), encoding="utf-8")
    with load(run) as models:
        assert list(models) == ["small"]


def test_one_program_runs_all_models_and_writes_their_outputs(run: Path, tmp_path: Path) -> None:
    folder, written = emit_run(run, "python")
    assert {p.relative_to(folder).as_posix() for p in written} == {
        "run.py",
        *(f"{name}/model.{end}" for name in NAMES for end in ("xml", "bin")),
    }
    quick(folder / "run.py")
    x = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    np.savez(tmp_path / "x.npz", x=x)
    said = executed(
        [sys.executable, str(folder / "run.py"), f"small={tmp_path / 'x.npz'}", "--outputs", str(tmp_path / "out")],
        folder,
    )
    assert [line.split(":")[0] for line in said.splitlines()] == ["one thread each, all models busy", "large", "small"]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "small.npz")["output_0"], np.exp(x), rtol=1e-5)
    assert "NAME is one of large, small" in said_of_mistake(folder, "tiny=x.npz")
    assert "--outputs needs a folder" in said_of_mistake(folder, "--outputs")


def test_one_configuration_of_a_server_lists_all_models_in_the_order_of_compiling(run: Path) -> None:
    folder, _ = emit_run(run, "ovms")
    entries = [e["config"] for e in json.loads((folder / "config.json").read_text())["model_config_list"]]
    assert [(e["name"], e["nireq"]) for e in entries] == [("large", 2), ("small", 1)]
    assert all((folder / e["base_path"] / "1" / "model.xml").is_file() for e in entries)


def test_what_several_models_cannot_be_written_for_is_told(run: Path) -> None:
    with pytest.raises(UsageError, match="runs one model"):
        emit_run(run, "cpp")
    with pytest.raises(UnknownNameError, match="cobol"):
        emit_run(run, "cobol")
    apart = result_of()
    answer = replace(apart.configurations[0], isolation="processes")
    document = replace(apart, configurations=[answer, *apart.configurations[1:]]).to_json()
    (run / "result.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match="process of its own"):
        emit_run(run, "python")
    (run / "result.json").write_text('{"schema": "placewright.scenario/1"}', encoding="utf-8")
    with pytest.raises(StoreError, match="is damaged"):
        ScenarioDeployment.load(run)
    assert not is_scenario_run(run / "small")


def test_emit_says_of_each_model_how_far_its_outputs_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["emit", str(run), "--to", "python"]) == 0
    assert "small: Outputs were not compared" in capsys.readouterr().out


def test_the_page_draws_a_second_under_load_with_what_was_late_or_dropped() -> None:
    rows = [ServedRequest("small", 0.1, 0.12), ServedRequest("small", 0.11, 0.2), ServedRequest("large", 0.5, None)]
    page = scenario_page(result_of(check=CheckRecord(1.8, [], [], True, rows)), Path("box"))
    assert "A second under load" in page
    assert "small: due at 100 ms, took 20 ms<" in page
    assert "small: due at 110 ms, took 90 ms (late)<" in page
    assert "large: due at 500 ms, dropped<" in page
    assert page.count('class="critical"') == 2
    assert "A second under load" not in scenario_page(result_of(), Path("box"))


def test_the_page_tells_gain_deadlines_and_the_check(run: Path) -> None:
    page = scenario_page(result_of(), Path("box"))
    for words in (
        "The machine holds 1.9 times the stated load.",
        "1.58 times plug-in defaults (1.4 to 1.8)",
        "2 starts beside plug-in defaults. In fresh processes all deadlines hold at 1.8 times the stated load.",
        "60 ms at p99 holds",
        "60 ms at p99 missed",
        "placewright emit box --to python",
    ):
        assert words in page, words
    assert run_command_line(["report", str(run)]) == 0
    assert "one thread each" in (run / "report.html").read_text(encoding="utf-8")
