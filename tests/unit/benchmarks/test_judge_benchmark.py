"""The judge of answers: what it compares, what it counts, and that it measures without placewright."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from benchmarks import judge as judge_benchmark
from benchmarks.drawn_families import FAMILIES
from benchmarks.drawn_models import Finding, draw, main, table
from benchmarks.judge import (
    ChildFailedError,
    Model,
    baseline_of,
    compared_starts,
    outputs_of,
    ratio_of,
    read_list,
    started,
    usual_setting_of,
)
from benchmarks.judge import counts as counts_of
from benchmarks.judge_child import deployed, recorded_session
from benchmarks.outputs import (
    NORMALISED,
    PADDED,
    PAGE,
    Port,
    apart,
    arrays,
    by_onnxruntime,
    kinds_of,
    moved,
    ports,
    quiet_sizes,
    session,
)
from tests.exported_models import text_classifier, topk_classifier


def test_outputs_are_compared_by_name() -> None:
    a, b = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    gap = apart({"x": a, "y": b}, {"y": b, "x": 2 * a})
    assert (gap.worst, gap.output) == (0.5, "x")


def test_images_are_tried_with_a_page_of_letters_too() -> None:
    image, bands = (Port("x", np.dtype(np.float32), shape) for shape in ((None, 3, None, None), (1, 16, 32, 32)))
    assert PAGE in kinds_of([image])
    assert PAGE not in kinds_of([bands])
    page = arrays([image], {"x": [1, 3, 64, 96]}, PAGE)["x"]
    assert page.shape == (1, 3, 64, 96)
    assert set(np.unique(page)) == {0.0, 1.0}
    assert np.array_equal(arrays([image], {"x": [1, 3, 64, 96]}, NORMALISED)["x"], 4 * page - 2)
    assert 0.02 < (page == 0).mean() < 0.3
    last = arrays([Port("x", np.dtype(np.float32), (1, 64, 96, 3))], {}, PAGE)["x"]
    assert np.array_equal(last, page.transpose(0, 2, 3, 1))


def test_one_wrong_channel_shows_that_the_whole_output_hides() -> None:
    wanted = np.ones((1, 128, 4, 4), np.float32)
    found = wanted.copy()
    found[:, 3] = 0
    gap = apart({"map": found}, {"map": wanted})
    assert gap.worst < 0.1
    assert gap.channel == pytest.approx(1.0)


def test_a_map_that_is_all_but_zero_on_one_kind_of_inputs_is_measured_against_its_size_on_others() -> None:
    shown, hidden = np.full((1, 1, 4, 4), 0.8, np.float32), np.full((1, 1, 4, 4), 1e-5, np.float32)
    quiet = quiet_sizes([{"map": shown}, {"map": hidden}])
    assert quiet == {"map": pytest.approx(0.08)}
    assert apart({"map": 2 * hidden}, {"map": hidden}).worst == pytest.approx(1.0)
    assert apart({"map": 2 * hidden}, {"map": hidden}, quiet).worst == pytest.approx(1e-5 / 0.08)
    assert apart({"map": shown / 2}, {"map": shown}, quiet).worst == pytest.approx(0.5)


def test_indices_count_by_the_share_that_differs() -> None:
    assert apart({"i": np.array([1, 2, 3, 4])}, {"i": np.array([1, 2, 3, 9])}).worst == 0.25 / 2


@pytest.mark.parametrize(
    ("found", "why"),
    [(np.ones(3), "has the shape"), (np.array([np.nan, 1]), "infinite or no number")],
)
def test_what_cannot_be_compared_is_endlessly_far(found: Any, why: str) -> None:
    gap = apart({"x": found.astype(np.float32)}, {"x": np.ones(2, np.float32)})
    assert gap.worst == float("inf")
    assert why in gap.why


def test_what_is_infinite_in_both_is_equal() -> None:
    both = np.array([-np.inf, 1.0, np.nan], np.float32)
    assert apart({"x": both}, {"x": both.copy()}).worst == 0


def test_padding_ends_masks_and_leaves_ids_below_the_vocabulary() -> None:
    inputs = [Port("ids", np.dtype(np.int64), (None, None)), Port("attention_mask", np.dtype(np.int64), (None, None))]
    sizes = {"ids": [1, 9], "attention_mask": [1, 9]}
    assert PADDED in kinds_of(inputs)
    given = arrays(inputs, sizes, PADDED, vocabulary=7)
    assert given["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 0, 0]]
    assert given["ids"].max() < 7


def test_moving_weights_moves_outputs_by_rounding_alone(tmp_path: Path) -> None:
    path = text_classifier(tmp_path)
    sizes = {port.name: [1, 8] for port in ports(path)}
    given = arrays(ports(path), sizes, "noise", vocabulary=100)
    gap = apart(by_onnxruntime(session(moved(path)), given), by_onnxruntime(session(path), given))
    assert 0 < gap.worst < 1e-5


def test_moving_weights_leaves_small_constants(tmp_path: Path) -> None:
    path = text_classifier(tmp_path)
    before = {w.name: w for w in onnx.load(path).graph.initializer}
    after = {w.name: w for w in onnx.load_from_string(moved(path)).graph.initializer}
    small = [name for name, w in before.items() if np.prod(w.dims, dtype=int) <= 8]
    assert small
    assert all(before[name] == after[name] for name in small)


def test_a_child_runs_a_model_without_placewright(tmp_path: Path) -> None:
    path = topk_classifier(tmp_path)
    model = Model("topk", path, {"input": [1, 3, 32, 32]})
    by_ort = outputs_of(model, path, {"by": "onnxruntime", "threads": 1}, tmp_path)
    exact = {"by": "openvino", "properties": {"INFERENCE_PRECISION_HINT": "f32"}}
    by_openvino = outputs_of(model, path, exact, tmp_path)
    assert set(by_ort) == {"noise", "smooth", "zeros", "page", "normalised page"}
    assert apart(by_openvino["noise"], by_ort["noise"]).worst < 1e-4
    with started(model, path, exact) as child:
        assert child.ask(do="turn", seconds=0.0)["inferences"] == 3


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    path = topk_classifier(tmp_path)
    with (
        pytest.raises(ChildFailedError, match="NO_SUCH"),
        started(Model("m", path, {"input": [1, 3, 32, 32]}), path, {"by": "openvino", "properties": {"NO_SUCH": "1"}}),
    ):
        pass


OPTIONS = {
    "intra_op_num_threads": "1",
    "execution_mode": "ORT_PARALLEL",
    "graph_optimization_level": "ORT_ENABLE_BASIC",
    "enable_mem_pattern": "0",
    "session.intra_op.allow_spinning": "0",
}


def won_by_onnxruntime(run: Path, model: bytes) -> dict[str, Any]:
    """Write what the judge reads of a run that ONNX Runtime won; return its placement.json."""
    (run / "onnx").mkdir(parents=True)
    (run / "onnx" / "model.onnx").write_bytes(model)
    provider, name = "CPUExecutionProvider", "ONNX Runtime"
    device = {"plugin": name, "openvino_name": provider, "properties": OPTIONS}
    document = {"runtime": "onnxruntime", "target": provider, "properties": {}, "placement": {}}
    document |= {"model": {"file": "onnx/model.onnx"}, "devices": {name: device}}
    (run / "placement.json").write_text(json.dumps(document), encoding="utf-8")
    return document


def test_an_answer_of_onnxruntime_has_the_options_that_it_was_measured_with(tmp_path: Path) -> None:
    document = won_by_onnxruntime(tmp_path / "run", topk_classifier(tmp_path).read_bytes())
    made = recorded_session(tmp_path / "run", document)
    options = made.get_session_options()
    assert made.get_providers() == ["CPUExecutionProvider"]
    assert options.intra_op_num_threads == 1
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.enable_mem_pattern is False
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_child_runs_the_file_of_an_answer_of_onnxruntime_without_placewright(tmp_path: Path) -> None:
    path, run = topk_classifier(tmp_path), tmp_path / "run"
    other = onnx.load(path)  # the run's own file, and not the source
    for weight in other.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) / 2, weight.name))
    won_by_onnxruntime(run, other.SerializeToString())
    assert deployed(run, path).plain
    model = Model("topk", path, {"input": [1, 3, 32, 32]})
    found = outputs_of(model, path, {"by": "run", "folder": str(run)}, tmp_path)
    given = arrays(ports(path), model.sizes, "noise", seed=1)
    assert apart(found["noise"], by_onnxruntime(session(other.SerializeToString()), given)).worst < 1e-5
    assert apart(found["noise"], by_onnxruntime(session(path), given)).worst > 1e-2


def test_runs_that_either_runtime_may_win_lie_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"name": "a", "path": "a.onnx", "options": ["--seed", "1"]}, {"name": "b", "path": "b.xml"}]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    asked: list[tuple[str, Path, list[str]]] = []

    def judge(model: Model, out: Path, *rest: Any, **how: Any) -> judge_benchmark.Judgement:
        asked.append((model.name, out, list(model.options)))
        return judge_benchmark.Judgement(model.name, 0, runtime="openvino")

    monkeypatch.setattr(judge_benchmark, "judge", judge)
    out = tmp_path / "out"
    for more in ([], ["--runtimes"], ["--runtimes"]):  # what was judged of the one does not count for the other
        judge_benchmark.main(["--models", str(tmp_path / "list.json"), "--out", str(out), *more])
    either = ["--seed", "1", "--runtimes", "openvino,onnxruntime"]
    assert asked == [("a", out, ["--seed", "1"]), ("b", out, []), ("a", out / "runtimes", either)]


@pytest.mark.parametrize(
    ("properties", "more", "expected"),
    [
        ({}, {}, "default"),
        ({"INFERENCE_PRECISION_HINT": "f32"}, {}, "f32"),
        ({"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}, {}, ""),
        ({}, {"rewrite": "int8-weights"}, ""),
        ({}, {"runtime": "onnxruntime"}, ""),
        ({}, {"target": "HETERO:A,B"}, ""),
        ({}, {"properties": {"PERFORMANCE_HINT": "LATENCY"}}, "latency hint"),
    ],
)
def test_an_answer_that_is_a_usual_setting_is_known(properties: Any, more: Any, expected: str) -> None:
    placement = {"runtime": "openvino", "target": "CPU", "properties": {}, "rewrite": ""}
    assert usual_setting_of(placement | {"devices": {"CPU": {"properties": properties}}} | more) == expected


@pytest.mark.parametrize(("precision", "default", "expected"), [("bf16", "d", "default"), ("f32", "", "f32")])
def test_a_claim_is_judged_against_what_it_is_made_over(precision: str, default: str, expected: str) -> None:
    rows = [{"name": "d", "precision": precision}, {"name": "c", "precision": precision}]
    assert baseline_of({"contest": {"default": default, "control": "c"}, "candidates": rows}) == expected


def test_ratios_are_of_pairs_of_starts() -> None:
    noisy = np.array([0.0, 1.0, 2.0])
    ratio = ratio_of(list(noisy + np.log(2)), list(noisy))
    assert (ratio.ratio, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_a_list_has_paths_beside_it(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([{"name": "a", "path": "a.onnx", "float": "b.onnx"}]))
    (model,) = read_list(tmp_path / "list.json")
    assert (model.path, model.float, model.onnx) == (tmp_path / "a.onnx", tmp_path / "b.onnx", True)


def _row(name: str, **changes: Any) -> dict[str, Any]:
    even = {"ratio": 1.0, "low": 0.99, "high": 1.01}
    row = {"model": name, "exit_code": 0, "failed": "", "wrong": False, "confirmed": None, "best": "f32"}
    return {**row, "over": {"f32": even, "onnxruntime": even}, **changes}


def test_counts_name_what_breaks_a_promise() -> None:
    slow = {"ratio": 0.8, "low": 0.7, "high": 0.9}
    rows = [
        _row("good"),
        _row("wrong", wrong=True),
        _row("refused", exit_code=6, over={}),
        _row("slow", over={"f32": slow, "onnxruntime": slow}),
        _row("boast", confirmed=False),
        _row("other", runtime="onnxruntime"),
    ]
    itself = dict(line.split(": ", 1) for line in counts_of([_row("plain", same="f32", over={"f32": slow})]))
    assert itself["worse than the best usual setting by more than 3 %"] == "1 of 1 plain (the same setting)"
    told = dict(line.split(": ", 1) for line in counts_of(rows))
    assert told["right answers handed over"] == "4 of 6"
    assert told["wrong answers handed over"] == "1 of 6 wrong"
    assert told["ended with exit 6"] == "1 of 6 refused"
    assert told["worse than the best usual setting by more than 3 %"] == "1 of 6 slow (for certain)"
    assert told["answers that ONNX Runtime's default is 10 % faster than"] == "1 of 6 slow (for certain)"
    assert told["answers run by ONNX Runtime"] == "1 of 6 other"
    assert told["claims not confirmed"] == "1 of 6 boast"


def finalist(name: str, starts: int, *, baseline: bool = False) -> dict[str, Any]:
    return {"name": name, "baseline": baseline, "log_ratios": dict.fromkeys(map(str, range(starts)), 0.0)}


def test_starts_of_the_default_and_the_two_best_are_counted() -> None:
    twin, default = finalist("twin", 4, baseline=True), finalist("default", 0, baseline=True)
    searched = [finalist("far", 0), finalist("a", 3), finalist("b", 4)]
    run = {"contest": {"control": "default", "default": "default"}, "candidates": [twin, default, *searched]}
    assert compared_starts(run) == [4, 4, 3]
    run["contest"] = {"control": "half", "default": "default"}
    assert compared_starts(run) == [0, 4, 3]
    counted = {"all": [4, 4, 3], "two": [4, 4, 2], "one": [4, 4]}
    rows = [_row("old"), *(_row(name, compared=starts) for name, starts in counted.items())]
    told = dict(line.split(": ", 1) for line in counts_of(rows))
    assert told["compared the default and two settings with three starts"] == "1 of 4 all"


@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_a_drawn_model_runs_and_is_the_same_when_drawn_again(tmp_path: Path, number: int) -> None:
    (tmp_path / "again").mkdir()
    case, twin = draw(0, number, tmp_path), draw(0, number, tmp_path / "again")
    assert (case.name, case.sizes) == (twin.name, twin.sizes)
    model = onnx.load(case.path)
    assert model.graph == onnx.load(twin.path).graph
    given = arrays(ports(case.path), case.sizes, "noise", vocabulary=case.vocabulary)
    assert set(by_onnxruntime(session(case.path), given)) == {output.name for output in model.graph.output}


def test_drawn_models_can_be_judged_beside_what_they_were_quantised_from(tmp_path: Path) -> None:
    main(["--out", str(tmp_path), "--write", "--only", "0", "--only", "5"])
    plain, quantised = read_list(tmp_path / "LIST.json")
    assert (plain.name, plain.float) == ("000-bert", None)
    assert quantised.name == "005-recurrent-dynamic-per-channel"
    assert quantised.float is not None
    for model in (plain, quantised):
        sizes = {port.name: tuple(model.sizes[port.name]) for port in ports(model.path) if None in port.shape}
        given = arrays(ports(model.path), sizes, "noise", vocabulary=model.vocabulary)
        by_onnxruntime(session(model.float or model.path), given)


@pytest.mark.parametrize(("off", "wrong"), [(0.0, False), (0.2, True)])
def test_outputs_alone_are_judged_and_the_run_of_a_right_answer_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, wrong: bool
) -> None:
    model = Model("m", tmp_path / "m.onnx")
    run = tmp_path / "m" / "run"
    run.mkdir(parents=True)
    (tmp_path / "m" / "ended.json").write_text('{"exit_code": 0, "seconds": 1}')
    best = {"name": "a", "precision": "bf16", "difference": 0.0}
    (run / "result.json").write_text(json.dumps({"best": "a", "verdict": "Use a.", "candidates": [best]}))
    told = {"target": "CPU", "runtime": "openvino", "properties": {}, "devices": {"CPU": {"properties": {}}}}
    (run / "placement.json").write_text(json.dumps(told))
    ways: list[Any] = []

    def outputs(model: Model, path: Path, way: dict[str, Any], folder: Path) -> Any:
        ways.append(way)
        return {"noise": {"y": np.ones(4) * (1 + off * (way["by"] == "run"))}}

    monkeypatch.setattr(judge_benchmark, "outputs_of", outputs)
    found = judge_benchmark.judge(model, tmp_path, "8s", 0)
    assert (found.wrong, found.over) == (wrong, {})
    assert not any(way["by"] == "openvino" for way in ways)
    assert run.exists() == wrong


def test_a_usual_setting_that_does_not_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outputs(model: Model, path: Path, way: dict[str, Any], folder: Path) -> dict[str, Any]:
        if way.get("properties") == {}:
            raise ChildFailedError("no suitable implementations")
        return {"noise": {"y": np.ones(8)}}

    asked: list[set[str]] = []

    def one_start(model: Model, ways: dict[str, Any]) -> dict[str, float]:
        asked.append(set(ways))
        return dict.fromkeys(ways, -5.0)

    monkeypatch.setattr(judge_benchmark, "outputs_of", outputs)
    monkeypatch.setattr(judge_benchmark, "one_start", one_start)
    judged = judge_benchmark.Judgement("m", 0)
    run = {"best": "f32", "candidates": [{"name": "f32", "difference": 0.0, "precision": "f32"}]}
    model = Model("m", tmp_path / "m.xml")
    judge_benchmark.compare_outputs(model, run, tmp_path, judge_benchmark.USUAL, judged)
    judge_benchmark.compare_speeds(model, tmp_path, 2, judged)
    assert judged.refused == {"default": "no suitable implementations"}
    assert asked == [{"answer", "f32", "one thread", "latency hint"}] * 2
    assert judged.best in asked[0]


def test_the_table_tells_what_departs() -> None:
    near, far = {"noise": 1e-7}, {"noise": 0.3}
    findings = [
        Finding("bert", {}, {}, 1e-7, {"as read": near, "normalised": near}),
        Finding("t5_encoder", {}, {}, 1e-7, {"as read": near, "normalised": far}),
        Finding("soup", {}, {}, 0.1, {"as read": far, "normalised": far}),  # as the reference from itself
    ]
    told = table(findings)
    assert "normalised: 1 depart" in told
    assert "t5_encoder" in told
    assert "soup" not in told
