"""predict, and the lines of machines that it rests on, where the law of the machine is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.read import to_graph
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.deploy.calibrate import device_text
from pipeline.deploy.predict import devices_option
from runtime.calibration.machine_lines import (
    MachineLine,
    Row,
    append_machine_line,
    by_device,
    read_machine_lines,
    rows_of,
)
from runtime.calibration.transfer import left_out_errors, predict_seconds
from runtime.machines.devices import discover_plugins, parse_devices
from runtime.machines.roofline import operation_class
from tests.models import two_towers

KINDS = ("Convolution", "MatMul", "Relu", "Add", "Concat")


def drawn_rows(rng: np.random.Generator, *, speed: float, count: int = 60) -> list[Row]:
    """Return operations of a machine whose larger kernels are the more efficient ones."""
    rows: list[Row] = []
    for name in rng.choice(KINDS, count):
        moved = float(np.exp(rng.uniform(9, 15)))
        flops = moved * float(np.exp(rng.uniform(2, 5))) if name in ("Convolution", "MatMul") else moved / 4
        busy = max(flops / (1e11 * flops / (flops + 1e7)), moved / 1e10)
        rows.append((str(name), flops, moved, moved / 2, (2e-6 + busy) / speed))
    return rows


def drawn_line(seed: int, *, speed: float = 1.0, fingerprint: str = "a" * 16, noise: float = 0.05) -> MachineLine:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, speed=speed)
    latency_s = sum(row[4] for row in rows) * float(np.exp(rng.normal(0, noise)))
    return {
        "schema": "placewright.machine/1",
        "fingerprint": fingerprint,
        "machine": f"machine {fingerprint[0]}",
        "runtime": "openvino",
        "device": "CPU",
        "model": f"m{seed}.xml",
        "sha256": f"{seed:x}",
        "latency_s": latency_s,
        "rows": rows,
    }


def test_models_that_are_left_out_are_predicted_within_a_fifth_and_by_the_interval() -> None:
    lines = [drawn_line(seed) for seed in range(12)]
    errors = np.abs(np.expm1(left_out_errors(lines)))
    assert np.median(errors) < 0.2
    inside = []
    for seed in range(100, 160):
        line = drawn_line(seed)
        said = predict_seconds(lines, line["rows"])
        assert said.low is not None
        assert said.high is not None
        inside.append(said.low <= line["latency_s"] <= said.high)
    assert sum(inside) >= 50  # 54 of 60 are expected


def test_what_was_measured_at_its_size_is_told_from_what_was_not() -> None:
    lines = [drawn_line(seed) for seed in range(4)]
    rows = lines[0]["rows"]
    assert predict_seconds(lines, rows).measured == pytest.approx(1.0)
    huge = predict_seconds(lines, [("MatMul", 1e15, 1e10, 1e10, 0.0), ("Erf", 1e4, 1e4, 1e4, 0.0)])
    assert huge.extrapolated == pytest.approx(1.0)
    assert huge.furthest["MatMul"] is not None
    assert huge.furthest["MatMul"] > 1000
    unknown = predict_seconds(lines, [("Erf", 1e4, 1e4, 1e4, 0.0)])
    assert unknown.furthest == {"Erf": None}


def test_a_recurrent_layer_is_predicted_from_recurrent_ones_rather_than_from_products() -> None:
    lines = [drawn_line(seed) for seed in range(4)]
    lines[0]["rows"] += [("LSTMSequence", 1e8, 1e6, 1e5, 5e-3), ("MatMul", 2e8, 2e6, 2e5, 1e-3)]
    lines[0]["latency_s"] += 6e-3
    said = predict_seconds(lines[:1], [("GRUSequence", 2e8, 2e6, 2e5, 0.0)])
    assert said.seconds == pytest.approx(1e-2, rel=0.2)  # twice the work of the layer that is known


def test_seconds_of_operations_add_up_to_those_of_the_model() -> None:
    line = drawn_line(0)
    doubled: MachineLine = {**line, "latency_s": 2 * line["latency_s"]}
    rows = line["rows"]
    assert predict_seconds([doubled], rows).seconds == pytest.approx(2 * predict_seconds([line], rows).seconds)


def test_too_few_models_give_no_interval() -> None:
    said = predict_seconds([drawn_line(0)], drawn_line(1)["rows"])
    assert (said.low, said.high, said.error, said.models) == (None, None, None, 1)


def machines(tmp_path: Path) -> Path:
    """Return a folder of a machine and one that is twice as fast."""
    folder = tmp_path / "machines"
    for speed, fingerprint in ((1.0, "a" * 16), (2.0, "b" * 16)):
        for seed in range(5):
            append_machine_line(folder, drawn_line(seed, speed=speed, fingerprint=fingerprint))
    return folder


def test_the_last_line_of_a_model_counts_and_folders_merge_by_lines(tmp_path: Path) -> None:
    folder = machines(tmp_path)
    append_machine_line(folder, {**drawn_line(0), "latency_s": 7.0})
    found = by_device(read_machine_lines(folder))
    assert {len(lines) for lines in found.values()} == {5}
    assert [line["latency_s"] for line in found["a" * 16, "CPU"] if line["sha256"] == "0"] == [7.0]


@pytest.mark.parametrize("asked", ["CPU", "A=CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}"])
def test_what_is_printed_to_check_a_device_measures_that_device(asked: str) -> None:
    plugins = discover_plugins()
    (device,) = parse_devices([asked], plugins)
    text = device_text(device)
    (again,) = parse_devices([devices_option(text)], plugins)
    assert device_text(again) == text
    assert (again.plugin, again.properties) == (device.plugin, device.properties)


def test_predict_ranks_machines_and_says_how_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ov.save_model(two_towers(), tmp_path / "model.xml", compress_to_fp16=False)
    folder = machines(tmp_path)
    command = ["predict", str(tmp_path / "model.xml"), "--machines", str(folder)]
    assert run_command_line([*command, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    fast, slow = document["machines"]
    assert (fast["machine"], slow["machine"]) == ("machine b", "machine a")
    assert slow["prediction"]["seconds"] == pytest.approx(2 * fast["prediction"]["seconds"], rel=0.1)
    assert run_command_line(command) == 0
    told = capsys.readouterr().out
    assert "machine b" in told
    assert f"check: placewright calibrate {tmp_path / 'model.xml'} --devices CPU" in told
    one = ["predict", str(tmp_path / "model.xml"), "--machine", str(folder / f"{'a' * 12}.jsonl"), "--json"]
    assert run_command_line([*one, "--shape", "x=1x8"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["machines"]
    assert " --shape x=1x8 " in alone["check"]
    assert alone["check"].endswith(f"--machines {folder}")


def test_calibrations_of_several_folders_count_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ov.save_model(two_towers(), tmp_path / "model.xml", compress_to_fp16=False)
    command = ["predict", str(tmp_path / "model.xml"), "--json"]
    for seed in range(4):
        append_machine_line(tmp_path / f"calibrated{seed}", drawn_line(seed))
        command += ["--machine", str(tmp_path / f"calibrated{seed}")]
    assert run_command_line(command) == 0
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    assert machine["prediction"]["models"] == 4
    assert machine["prediction"]["low"] < machine["prediction"]["seconds"] < machine["prediction"]["high"]
    assert run_command_line([*command, "--machines", str(tmp_path)]) == 2
    assert run_command_line([*command, "--machine", str(tmp_path)]) == 2
    assert "holds no calibration" in capsys.readouterr().err


def test_a_file_that_is_no_calibration_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\nno line\nno end")
    with pytest.raises(UsageError, match="holds no calibration"):
        read_machine_lines(path)
    assert path.read_bytes() == b"\x08\nno line\nno end"


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_machines_is_said_so(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "machines"
    if made:
        folder.mkdir()
    with pytest.raises(UsageError, match=r"There is no|holds no calibration") as caught:
        read_machine_lines(folder)
    assert "placewright calibrate" in caught.value.remedy


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = append_machine_line(tmp_path, {"schema": "placewright.machine/1", "fingerprint": "a" * 16})
    with pytest.raises(UsageError, match=path.name):
        read_machine_lines(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [["MatMul", 1.0, 2.0]]},
        {"rows": [["MatMul", 1.0, 2.0, 3.0, "fast"]]},
        {"rows": [["MatMul", 1.0, 2.0, 3.0, -1.0]]},
        {"rows": [["MatMul", 1.0, 2.0, 3.0, float("nan")]]},
        {"latency_s": 0.0},
    ],
)
def test_a_line_that_cannot_be_read_is_one_line_of_cause_and_one_of_remedy(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    append_machine_line(tmp_path / "machines", {**drawn_line(0), **change})
    assert run_command_line(["predict", "model.xml", "--machines", str(tmp_path / "machines")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "holds a line that is damaged" in lines[0]
    assert len(lines) == 2


def test_lines_without_operations_that_take_time_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ov.save_model(two_towers(), tmp_path / "model.xml", compress_to_fp16=False)
    folder = tmp_path / "machines"
    append_machine_line(folder, {**drawn_line(0), "rows": []})
    append_machine_line(folder, {**drawn_line(1), "rows": [["MatMul", 1.0, 2.0, 3.0, 0.0]]})
    command = ["predict", str(tmp_path / "model.xml"), "--machines", str(folder)]
    assert run_command_line(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "knows no other model than this one whose operations take time" in lines[0]
    assert len(lines) == 2
    append_machine_line(folder, drawn_line(2))
    assert run_command_line(command) == 0


def test_errors_are_those_of_what_is_predicted_and_the_file_tells_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ov.save_model(two_towers(), tmp_path / "my model.xml", compress_to_fp16=False)
    lines = [drawn_line(seed, noise=0.0) for seed in range(6)]
    for i, line in enumerate(lines):
        line["latency_s"] *= 2.0 ** (i % 2)  # half of the models are twice as slow as their operations tell
    said = predict_seconds(lines, lines[0]["rows"])
    apart = []
    for line in lines:
        others = [other for other in lines if other is not line]
        apart.append(abs(predict_seconds(others, line["rows"]).seconds / line["latency_s"] - 1))
    assert said.error == pytest.approx(np.median(apart), rel=0.3)
    assert said.held_out is None
    for line in lines:
        append_machine_line(tmp_path / "machines", {**line, "held_out": float(np.log(1.25))})
    command = ["predict", str(tmp_path / "my model.xml"), "--machines", str(tmp_path / "machines")]
    assert run_command_line(command) == 0
    told = capsys.readouterr().out
    assert "The interval rests on 6 models" in told
    assert "when they were added by 25%" in told
    assert "--out 'my model-calibrated' --machines" in told


def test_one_of_machine_and_machines_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["predict", "model.xml"]) == 2
    assert "either --machine or --machines" in capsys.readouterr().err


def test_what_runs_as_one_kernel_is_one_operation() -> None:
    graph = to_graph(two_towers(), source="")
    op_s = np.arange(1.0, graph.n + 1)
    rows = rows_of(graph, op_s)
    assert [row[0] for row in rows] == ["MatMul"] * 4  # the sum counts to one of the two that it adds
    free = [i for i in range(graph.n) if operation_class(graph.type_names[graph.op_type[i]]) == "free"]
    assert sum(row[4] for row in rows) == pytest.approx(op_s.sum() - op_s[free].sum())
    assert {row[3] for row in rows} == {32.0}  # 8 floats: what passes from operation to operation stays within
    assert sorted(row[2] for row in rows) == [288.0, 288.0, 288.0, 320.0]  # 8 floats, 64 weights, and what is added
