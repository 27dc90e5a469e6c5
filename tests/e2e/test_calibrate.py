"""calibrate from a model to tables that a search reads, and going on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from pydantic import TypeAdapter

from coarsen.reading.model.read import to_graph
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.stages import Evaluator, Subject
from pipeline.deploy.calibrate import JOURNAL, Journal, Sampling
from pipeline.result.records import CalibrationRecord
from runtime.calibration.machine_lines import read_machine_lines, rows_of
from runtime.calibration.transfer import predict_seconds
from runtime.machines import devices
from runtime.measuring.contest.dataflow import Dataflow
from runtime.measuring.contest.hetero import Hetero
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.sequential.sequential import Sequential
from tests.e2e.conftest import DEVICES
from tests.models import two_towers
from tests.two_cpus import branchy, subject_of, write

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]


class Lazy:
    """Stands for devices that take twice what was profiled, and refuse every third placement."""

    version = 1
    fingerprint = "lazy"

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.inner: Evaluator | None = None

    def bind(self, subject: Subject) -> Lazy:
        self.inner = Sequential().bind(subject)
        return self

    @property
    def evaluations(self) -> int:
        return len(self.asked)

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        assert self.inner is not None
        self.asked += [placement.key() for placement in placements]
        if len(self.asked) % 3 == 0:
            return [MeasurementFailed("refused", "gone") for _ in placements]
        return [Measurement(2 * a.samples_s) for a in self.inner.evaluate(placements) if isinstance(a, Prediction)]


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch, made_up_profile: None) -> Lazy:
    devices = Lazy()
    monkeypatch.setattr(Hetero, "bind", lambda _, subject: devices.bind(subject))
    return devices


def arguments(model: Path, folder: Path) -> list[str]:
    """Return the command that calibrates a model into a folder, with few measurements."""
    counts = ["--measurements", "9", "--holdout", "3", "--set", "coarsen.use=fold"]
    folders = ["--out", str(folder / "out"), "--store", str(folder / "store")]
    return ["calibrate", str(model), "--devices", DEVICES, *counts, *folders]


def test_a_calibration_goes_on_where_it_stopped(model: Path, tmp_path: Path, ran: Ran, lazy: Lazy) -> None:
    first = ran(*arguments(model, tmp_path))
    assert (first["measurements"], first["holdout"]) == (9, 3)
    assert first["used"] == sum(p["role"] == "fitted" and p["failed"] is None for p in first["placements"]) < 9
    error = first["median_relative_error"]
    assert error["before"]["held out"]["sequential"] == pytest.approx(0.5)
    assert error["after"]["held out"]["sequential"] < 0.05
    assert len(lazy.asked) == len(set(lazy.asked)) == 12
    assert json.loads((tmp_path / "out" / "calibration.json").read_text(encoding="utf-8")) == first
    assert TypeAdapter(CalibrationRecord).validate_python(first, strict=True) == first

    journal = tmp_path / "out" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:6]) + lines[6][:20])  # torn while the seventh was written
    del lazy.asked[:]  # six answers: the third from now on is the ninth
    assert ran(*arguments(model, tmp_path)) == first
    assert len(lazy.asked) == 6
    assert journal.read_bytes() == b"".join(lines)


def test_placements_that_run_in_segments_are_fitted_by_the_simulator_of_devices_that_overlap(
    model: Path, tmp_path: Path, ran: Ran, lazy: Lazy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(_: Dataflow, subject: Subject) -> Lazy:
        lazy.inner = ListSched(memory=False).bind(subject)
        return lazy

    monkeypatch.setattr(Dataflow, "bind", bind)
    found = ran(*arguments(model, tmp_path), "--runtime", "dataflow")
    assert found["runtime"] == "dataflow"
    assert found["median_relative_error"]["before"]["held out"]["listsched"] == pytest.approx(0.5)
    assert found["median_relative_error"]["after"]["held out"]["listsched"] < 0.05


def test_measurements_of_another_machine_do_not_count(
    model: Path, tmp_path: Path, ran: Ran, lazy: Lazy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(*arguments(model, tmp_path))
    del lazy.asked[:]
    facts = devices.hardware_facts()
    monkeypatch.setattr(devices, "hardware_facts", lambda *_: facts | {"cpu": "another"})
    ran(*arguments(model, tmp_path))
    assert len(lazy.asked) == 12


def test_settings_of_measure_hold_and_those_of_the_measurer_before_them(
    model: Path, tmp_path: Path, ran: Ran, lazy: Lazy, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Hetero] = []
    monkeypatch.setattr(Hetero, "bind", lambda self, subject: (built.append(self), lazy.bind(subject))[1])
    shared = ["--set", "measure.low_tolerance=0.3", "--set", "measure.timeout_s=7"]
    ran(*arguments(model, tmp_path), *shared, "--set", "measure.hetero.timeout_s=9")
    assert {(h.low_tolerance, h.timeout_s, h.tolerance) for h in built} == {(0.3, 9.0, 1e-3)}


def test_the_files_of_a_calibration_serve_a_search(model: Path, tmp_path: Path, ran: Ran, lazy: Lazy) -> None:
    found = ran(*arguments(model, tmp_path))
    out = tmp_path / "out"
    tables = ["--topology", str(out / "topology.toml"), "--costs", str(out / "costs.csv")]
    answer = ran(
        "search", str(model), *tables, "--evaluator", "sequential", "--placer", "greedy", "--evaluations", "99"
    )
    assert answer["costs"] == {"A": "given", "B": "given"}
    single = next(p for p in found["placements"] if p["devices"]["B"] == 0)
    assert answer["value_s"] == pytest.approx(single["predicted_s"]["sequential"], rel=1e-9)


def test_the_table_for_people_names_both_simulators(
    model: Path, tmp_path: Path, lazy: Lazy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(arguments(model, tmp_path)) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("sequential", "listsched", "held out", "costs.csv"))


def test_devices_that_always_fail_are_said(
    model: Path, tmp_path: Path, lazy: Lazy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lazy, "evaluate", lambda placements: [MeasurementFailed("refused", "gone") for _ in placements])
    assert run_command_line(arguments(model, tmp_path)) == 5
    assert "refused: gone" in capsys.readouterr().err


def test_it_ends_early_where_every_split_fails(
    model: Path, tmp_path: Path, lazy: Lazy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Placement] = []

    def evaluate(placements: Sequence[Placement]) -> list[Evaluation]:
        asked.extend(placements)
        single = [len(placement.devices_used) == 1 for placement in placements]
        return [Measurement(np.ones(1)) if one else MeasurementFailed("wrong_output", "by inf") for one in single]

    monkeypatch.setattr(lazy, "evaluate", evaluate)
    assert run_command_line([*arguments(model, tmp_path), "--measurements", "40"]) == 5
    assert "wrong_output: by inf" in capsys.readouterr().err
    assert len(asked) < 12


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(
    model: Path, tmp_path: Path, lazy: Lazy, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("", encoding="utf-8")
    assert run_command_line(arguments(model, tmp_path)) == 2
    assert "cannot be made" in capsys.readouterr().err
    assert lazy.asked == []


def test_what_was_measured_otherwise_is_measured_again(tmp_path: Path) -> None:
    subject = subject_of(*write(branchy(1), tmp_path))
    placement = Placement.single(subject.grouping.k, 0, subject.topology.names)
    path = tmp_path / JOURNAL
    first = Journal.of(path, "a", Lazy().bind(subject))
    result = first.ask(placement)
    assert first.ask(placement) is result
    (known,) = Journal.of(path, "a", Lazy()).known.values()
    assert isinstance(result, Measurement)
    assert isinstance(known, Measurement)
    assert np.array_equal(known.samples_s, result.samples_s)
    assert Journal.of(path, "b", Lazy()).known == {}


@pytest.mark.parametrize("sampling", [(0, 3), (4, -1)])
def test_nothing_to_measure_is_refused(sampling: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="at least 1 and 0 are needed"):
        Sampling(*sampling)


def test_the_folder_of_a_calibration_predicts_another_model(
    model: Path, tmp_path: Path, ran: Ran, lazy: Lazy, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(*arguments(model, tmp_path))
    ran(*arguments(model, tmp_path))
    (line,) = read_machine_lines(tmp_path / "out")
    other = tmp_path / "other.xml"
    ov.save_model(two_towers(), other, compress_to_fp16=False)
    (tmp_path / "out").rename(tmp_path / "elsewhere")  # it travels
    capsys.readouterr()
    assert run_command_line(["predict", str(other), "--machine", str(tmp_path / "elsewhere"), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["machines"]
    assert (said["fingerprint"], said["device"]) == (line["fingerprint"], line["device"])
    assert said["prediction"]["seconds"] == predict_seconds([line], rows_of(to_graph(two_towers(), source=""))).seconds
    assert said["prediction"]["low"] is None  # one model has no others to be predicted from


def test_lines_of_a_machine_collect_with_what_was_held_out(model: Path, tmp_path: Path, ran: Ran, lazy: Lazy) -> None:
    machines = tmp_path / "machines"
    ran(*arguments(model, tmp_path), "--machines", str(machines))
    (first,) = read_machine_lines(machines)  # the halves of the CPU are equal devices
    assert (machines / ".gitattributes").read_text(encoding="utf-8") == "*.jsonl merge=union\n"
    assert not (tmp_path / "out" / ".gitattributes").exists()
    assert first["device"] == "CPU{ENABLE_CPU_PINNING=NO,INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}"
    assert first.get("held_out") is None
    again = json.loads((tmp_path / "out" / "calibration.json").read_text(encoding="utf-8"))
    singles = [p["measured_s"] for p in again["placements"] if p["measured_s"] and 0 in p["devices"].values()]
    assert first["latency_s"] in singles
    other = tmp_path / "other.xml"
    ov.save_model(two_towers(), other, compress_to_fp16=False)
    ran(*arguments(other, tmp_path / "second"), "--machines", str(machines))
    assert [line["model"] for line in read_machine_lines(machines)] == [model.name, "other.xml"]
    assert isinstance(read_machine_lines(machines)[1]["held_out"], float)
