"""ONNX Runtime beside OpenVINO: what is tried of it, what it gives, what may be claimed of it, and what runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
import pytest
from onnx import TensorProto, helper

import pipeline
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_shaped, save_model
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.deadline import Deadline
from pipeline.core.errors import DeviceError, MissingPackageError, ModelError, UsageError
from pipeline.core.estimates import RatioEstimate
from pipeline.core.settings import MeasureSettings
from pipeline.deploy.emit import emit
from pipeline.deploy.where import Wanted, record_of, where_model, where_run
from pipeline.placing.comparison import Conditions, _with_onnxruntime, order_variants
from pipeline.placing.shortlist import check_something_ran
from pipeline.result.deployment import Deployment
from pipeline.result.records import CandidateRecord
from pipeline.result.result import Result, write_placed
from pipeline.result.verdict import Limits, decide_contest
from pipeline.settings.config import Settings
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks
from pipeline.store.store import Entry, file_digest
from runtime.executor.onnx_session import OnnxModel, assigned, session_of
from runtime.executor.placed import PlacedInputError
from runtime.measuring.contest.onnx_space import OnnxSpace
from runtime.measuring.contest.variant import InOnnxRuntime, Variant, VariantKind, outputs_of, start_child
from runtime.measuring.process.child import Child, ChildError
from tests.reports import READ_STAGE, accuracy
from tests.unit.pipeline.result.test_verdict import FREE, HALF, candidate, contest
from tests.unit.runtime.measuring.contest.test_contest import DEFAULT, DEVICE, Truth, compete, variant

SETTINGS = MeasureSettings(turn_s=0.002, timeout_s=60)
WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def written(path: Path, *, rows: int | str = "rows") -> Path:
    """Write a model of two inputs, of which the first has a dimension open, and two outputs in an order of its own."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, WEIGHTS.shape, WEIGHTS.ravel())
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="multiply"),
        helper.make_node("Add", ["product", "shift"], ["late"], name="add"),
        helper.make_node("Relu", ["product"], ["early"], name="relu"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 8]) for n in ("x", "early", "late")]
    shift = helper.make_tensor_value_info("shift", TensorProto.FLOAT, [8])
    graph = helper.make_graph(nodes, "g", [ports[0], shift], [ports[2], ports[1]], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def read(source: Path, folder: Path) -> Path:
    """Return an ONNX file as the read stage leaves it in a folder, with five rows."""
    folder.mkdir(parents=True, exist_ok=True)
    model, _ = read_shaped(source, InputShapes(("x=5x8",)))
    save_model(model, folder / "model.xml")
    (folder / "shapes.json").write_text(json.dumps([{"name": "x", "shape": "[5,8]"}]), encoding="utf-8")
    return folder / "model.xml"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "two.onnx")


def expected(x: Any, shift: Any) -> dict[str, Any]:
    return {"output_0": x @ WEIGHTS + shift, "output_1": np.maximum(x @ WEIGHTS, 0)}


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.measuring.contest.onnx_space.cpu_count", lambda: 2)


# What is tried


def space(objective: str = "latency", *providers: str) -> OnnxSpace:
    return OnnxSpace(InOnnxRuntime(Path("a.onnx"), "1.31"), objective, ("CPUExecutionProvider", *providers))


@pytest.mark.usefixtures("two_processors")
def test_its_default_other_providers_and_numbers_of_threads_are_tried_and_then_one_option_after_another() -> None:
    default = space().default()
    assert (default.name, default.kind, default.baseline) == ("ONNX Runtime default", "settings", False)
    names = [v.name for v in space("latency", "CUDAExecutionProvider").first()]
    assert names == ["ONNX Runtime CUDA default", "ONNX Runtime 2 threads", "ONNX Runtime 1 thread"]
    near = [v.name for v in space().around(space().first()[0])]
    assert near == [
        "ONNX Runtime 2 threads not spinning",
        "ONNX Runtime 2 threads parallel",
        "ONNX Runtime 2 threads extended graph",
        "ONNX Runtime 2 threads basic graph",
        "ONNX Runtime 1 thread",
    ]
    back = space().around(space().around(default)[0])
    assert any(v.identity == default.identity for v in back)


@pytest.mark.usefixtures("two_processors")
def test_for_throughput_callers_share_a_session() -> None:
    assert space("throughput").default().requests == 2
    found = {v.name: v.requests for v in space("throughput").first()}
    assert found == {"ONNX Runtime 1 thread 2 requests": 2, "ONNX Runtime 2 threads": 1}
    assert {v.requests for v in space("throughput").around(space("throughput").first()[0])} == {1, 2, 4}


def test_another_version_is_another_variant() -> None:
    other = OnnxSpace(InOnnxRuntime(Path("b.onnx"), "1.32"), "latency").default()
    moved = OnnxSpace(InOnnxRuntime(Path("b.onnx"), "1.31"), "latency").default()
    assert space().default().identity == moved.identity != other.identity


@pytest.mark.parametrize(
    ("runtimes", "kinds", "plug_in"),
    [
        ((), {"other runtime"}, True),
        (("openvino", "onnxruntime"), {"settings"}, True),
        (("onnxruntime",), {"default", "settings"}, False),
    ],
)
def test_its_default_is_told_of_or_a_candidate_or_the_baseline(
    runtimes: tuple[str, ...], kinds: set[str], plug_in: bool
) -> None:
    terms = Conditions(MeasureSettings(runtimes=runtimes), Deadline.after(None), onnx=(Path("a.onnx"), "1.31"))
    found, around = _with_onnxruntime([DEFAULT, variant("fast")], lambda v: [DEVICE], terms)
    ours = [v for v in found if v.onnx is not None]
    assert {v.kind for v in ours} == kinds
    assert (DEFAULT in found) == plug_in
    assert list(around(DEFAULT)) == [DEVICE]
    if runtimes:
        assert all(v.onnx is not None for v in around(ours[-1]))


def test_what_nobody_asked_for_comes_behind_the_first_settings() -> None:
    kinds: list[VariantKind] = ["other runtime", "settings", "hint", "default"]
    known = [Variant(kind, "test", "CPU", (), kind=kind) for kind in kinds]
    assert [v.kind for v in order_variants(known, [])] == ["default", "settings", "other runtime", "hint"]


def test_the_default_that_was_asked_for_comes_before_all_settings_and_its_own_settings_behind_a_few() -> None:
    terms = Conditions(
        MeasureSettings(runtimes=("openvino", "onnxruntime")), Deadline.after(None), onnx=(Path("a.onnx"), "1.31")
    )
    found, _ = _with_onnxruntime([DEFAULT, *(variant(f"v{i}") for i in range(4))], lambda _: [], terms)
    places = [i for i, v in enumerate(found) if v.onnx is not None]
    assert (found[0], places[0], found[places[0]].name) == (DEFAULT, 1, "ONNX Runtime default")
    assert [v.name for v in found[2:4]] == ["v0", "v1"]
    assert places[1:] == list(range(4, 4 + len(places) - 1))


# What it gives


@pytest.fixture
def default(source: Path) -> Variant:
    return OnnxSpace.of(source, "1.31", "latency").default()


@pytest.fixture
def loaded(default: Variant, source: Path, tmp_path: Path) -> Iterator[Child]:
    child, _ = start_child(default, read(source, tmp_path / "read"), SETTINGS, seed=0)
    with child:
        yield child


def test_it_computes_the_source_with_the_inputs_of_the_run_and_the_outputs_in_the_models_order(
    loaded: Child, source: Path, tmp_path: Path
) -> None:
    from runtime.measuring.outputs.inputs import inputs_of

    model = ov.Core().read_model(tmp_path / "read" / "model.xml")
    x, shift = inputs_of(model, tmp_path / "read" / "model.xml", seed=0, dynamic_size=8)
    found = outputs_of(loaded)
    assert {name: array.shape for name, array in found.items()} == {"output_0": (5, 8), "output_1": (5, 8)}
    for name, array in expected(x, shift).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_an_output_of_another_rank_than_the_file_declares_is_measured(default: Variant, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node(
            "ConstantOfShape", ["one"], ["first"], value=helper.make_tensor("of", TensorProto.INT64, [1], [1])
        ),  # so that nobody knows the rank before it runs
        helper.make_node("Concat", ["first", "shape"], ["longer"], axis=0),
        helper.make_node("Reshape", ["x", "longer"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["c", "d"])
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [one]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    onnx.save(model, tmp_path / "two.onnx")  # the file of `default`
    child, _ = start_child(default, read(tmp_path / "two.onnx", tmp_path / "read"), SETTINGS, seed=0)
    with child:
        assert {array.shape for array in outputs_of(child).values()} == {(1, 5, 8)}
        assert len(child.ask("run", seconds=0.0, minimum=2, realtime=False)["samples_s"]) == 2


def stands_still(child: Child, *, wanted: bool) -> bool:
    """Return whether a process comes to stand still, or goes on, within a few seconds."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        state = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        if (state == "T") == wanted:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes tell their state elsewhere")
def test_its_process_stands_still_while_others_have_their_turn(
    loaded: Child, default: Variant, source: Path, tmp_path: Path
) -> None:
    turn = loaded.ask("run", seconds=0.0, minimum=3, realtime=False)
    assert len(turn["samples_s"]) == 3
    assert stands_still(loaded, wanted=True)
    assert loaded.ask("memory")["peak_bytes"] > 0
    from runtime.measuring.contest.baselines import reference_variant
    from runtime.measuring.contest.variant import load_variant

    load_variant(loaded, reference_variant(), tmp_path / "read" / "model.xml", SETTINGS, seed=0)
    assert stands_still(loaded, wanted=False)
    assert not loaded.rests


def test_requests_at_the_same_time_each_end(source: Path, tmp_path: Path) -> None:
    several = OnnxSpace.of(source, "1.31", "throughput")._variant({}, 3)
    child, told = start_child(several, read(source, tmp_path / "read"), SETTINGS, seed=0)
    with child:
        assert told["requests"] == 3
        assert len(child.ask("run", seconds=0.0, minimum=2, realtime=False)["samples_s"]) >= 6
        assert len(child.ask("burst", seconds=0.0)["samples_s"]) == 1


def test_options_reach_the_session(source: Path) -> None:
    options = {
        "intra_op_num_threads": "1",
        "execution_mode": "ORT_PARALLEL",
        "graph_optimization_level": "ORT_ENABLE_BASIC",
        "session.intra_op.allow_spinning": "0",
    }
    made = session_of(source, options, ["CPUExecutionProvider"]).get_session_options()
    assert made.intra_op_num_threads == 1
    assert made.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert made.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert made.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_what_it_does_not_run_is_refused_in_its_own_words(default: Variant, source: Path, tmp_path: Path) -> None:
    model = read(source, tmp_path / "read")
    source.write_bytes(b"no model")
    with pytest.raises(ChildError) as raised:
        start_child(default, model, SETTINGS, seed=0)
    assert raised.value.failed.kind == "refused"
    assert "two.onnx" in raised.value.failed.message
    assert "ONNXRuntimeError" not in raised.value.failed.message


def test_a_provider_that_takes_nothing_is_refused_instead_of_the_cpu_in_its_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.measuring.process.onnx_executable import OnnxExecutable

    def fallen_back(path: Path, options: Mapping[str, str], providers: Any) -> Any:
        return session_of(path, options, ["CPUExecutionProvider"])

    monkeypatch.setattr("runtime.measuring.process.onnx_executable.session_of", fallen_back)
    model = ov.Core().read_model(read(source, tmp_path / "read"))
    command = {"onnx": {"source": str(source), "options": {}}, "target": "CUDAExecutionProvider", "requests": 1}
    with pytest.raises(ValueError, match="nothing of the model runs on CUDAExecutionProvider here, but all on CPU"):
        OnnxExecutable.of(command, model)


def test_a_provider_that_is_not_installed_is_a_device_that_is_missing(source: Path) -> None:
    with pytest.raises(DeviceError, match="This ONNX Runtime has no CUDAExecutionProvider"):
        OnnxModel(source, {}, ["CUDAExecutionProvider"])


def test_ports_that_go_by_other_names_are_refused(source: Path, tmp_path: Path) -> None:
    from runtime.measuring.process.onnx_executable import ports_of

    session = session_of(source, {}, ["CPUExecutionProvider"])
    model = ov.Core().read_model(read(source, tmp_path / "read"))
    assert ports_of(session, model) == ({"x": 0, "shift": 1}, ["late", "early"])
    turned = SimpleNamespace(get_inputs=session.get_inputs, get_outputs=lambda: session.get_outputs()[::-1])
    assert ports_of(turned, model) == ({"x": 0, "shift": 1}, ["late", "early"])
    model.inputs[0].set_names({"other"})
    model.inputs[0].get_node().set_friendly_name("other")
    with pytest.raises(ValueError, match="the input x goes by another name"):
        ports_of(session, model)


# What is said of it

TOLD = variant("ort", "other runtime")


def test_a_runtime_nobody_asked_for_has_one_row_and_decides_nothing() -> None:
    truth = Truth({"default": 1.0, "half": 2.0, "fast": 0.8, "slow": 1.5, "ort": 0.3})
    found = compete(truth, DEFAULT, DEVICE, TOLD, variant("fast"), variant("slow"))
    assert found.judgement is not None
    assert (found.control, found.judgement.claimed) == ("default", ("fast",))
    assert found.judgement.ratios["ort"].ratio == pytest.approx(1 / 0.3, rel=0.05)
    assert truth.count("ort", "screening") == 1
    assert truth.count("ort", "final") <= truth.count("fast", "final")
    without = compete(Truth(dict(truth.seconds)), DEFAULT, DEVICE, variant("fast"), variant("slow"))
    assert without.judgement is not None
    assert without.judgement.claimed == ("fast",)


def test_it_is_no_control_even_where_nothing_else_runs() -> None:
    from pipeline.core.measurement import MeasurementFailed

    refused = MeasurementFailed("refused", "not this model")
    truth = Truth({"ort": 0.3, "default": 1.0}, fails={"default": [refused, refused]})
    assert compete(truth, DEFAULT, TOLD).control == ""
    truth = Truth({"ort": 0.3, "default": 1.0, "fast": 0.8}, fails={"default": [refused, refused]})
    assert compete(truth, DEFAULT, TOLD, variant("fast")).control == "fast"
    assert [name for _, _, name, _ in truth.calls if name != "default"][:2] == ["fast", "ort"]


def test_a_slower_one_has_no_place_in_the_final() -> None:
    truth = Truth({"default": 1.0, "half": 2.0, "fast": 0.8, "ort": 0.9})
    compete(truth, DEFAULT, DEVICE, TOLD, variant("fast"))
    assert truth.count("ort", "final") == 0


def test_where_time_is_short_it_goes_first() -> None:
    truth = Truth({"default": 1.0, "fast": 0.5, "ort": 0.3}, cost_s=1.0)
    found = compete(truth, DEFAULT, TOLD, variant("fast"), seconds=13.0)
    assert found.judgement is not None
    assert found.judgement.claimed == ("fast",)
    assert found.entries["ort"].left == "not compared within the budget"


def test_it_is_not_even_screened_once_the_time_is_up() -> None:
    truth = Truth({"default": 1.0, "fast": 0.5, "ort": 0.3}, cost_s=1.0)
    found = compete(truth, DEFAULT, TOLD, variant("fast"), seconds=2.0)
    assert found.entries["ort"].left == "not tried within the budget"
    assert truth.count("fast", "screening") == 1


def other(**more: Any) -> CandidateRecord:
    known = {"kind": "other runtime", "baseline": True, "runtime": "onnxruntime", "times_as_fast": 3.0}
    return candidate("ONNX Runtime default", 0.7, **(known | more))


STARTS = {str(i): 1.0 + 0.01 * (i % 2) for i in range(1, 5)}


@pytest.mark.parametrize(
    ("ratios", "note"),
    [
        (STARTS, ("ONNX Runtime is 2.73 times as fast as half (2.71 to 2.76): --runtimes openvino,onnxruntime.",)),
        ({}, ("At first sight ONNX Runtime is about 3.0 times as fast: --runtimes openvino,onnxruntime.",)),
        ({str(i): 0.005 for i in range(1, 5)}, ()),  # worth less than is claimed of anything
    ],
)
def test_a_faster_one_is_told_and_not_the_answer(ratios: Mapping[str, float], note: tuple[str, ...]) -> None:
    found = contest([], {"ONNX Runtime default": RatioEstimate(2.7, 2.6, 2.8, 4)} if ratios else {})
    verdict = decide_contest([other(log_ratios=ratios), HALF], found, FREE)
    assert verdict.best == "half"
    assert verdict.notes == note


def test_no_sentence_but_its_own_takes_it_for_an_answer() -> None:
    exact, rounded = accuracy(), replace(accuracy(), exact=False)
    half = replace(HALF, accuracy=rounded)
    found = decide_contest([other(accuracy=exact), half], contest([], {}), FREE)
    assert "ONNX Runtime" not in found.text
    assert [note for note in found.notes if "ONNX Runtime" in note] == [
        "At first sight ONNX Runtime is about 3.0 times as fast: --runtimes openvino,onnxruntime."
    ]
    untried = candidate("untried", latency_s=None)
    assert "ONNX Runtime" not in decide_contest([other(), half, untried], contest([], {}), FREE).text
    heavy, light = replace(half, peak_bytes=200), candidate("light", 3.0, peak_bytes=50)
    limited = decide_contest([other(peak_bytes=50), heavy, light], contest([], {}), Limits(max_memory_bytes=100))
    assert limited.best == "light"


def test_it_is_compared_with_the_answer_by_the_starts_that_both_had() -> None:
    fast = candidate("fast", 1.0, times_as_fast=2.0, log_ratios=dict.fromkeys(STARTS, 0.7))
    found = contest(["fast"], {"fast": RatioEstimate(2.0, 1.9, 2.1, 4)})
    verdict = decide_contest([other(log_ratios=STARTS), fast, HALF], found, FREE)
    assert verdict.best == "fast"
    assert verdict.notes == (
        "ONNX Runtime is 1.36 times as fast as fast (1.34 to 1.37): --runtimes openvino,onnxruntime.",
    )


# Who may ask for it


def asked(path: str, **measure: Any) -> dict[str, Any]:
    settings = Settings().updated({f"measure.{k}": v for k, v in measure.items()}, "the test")
    tasks = plan_tasks(ModelFile(Path(path), "0" * 64), settings, HostMachine((), {}, "here"))
    return {t.stage: t for t in tasks}["measure"].params


def test_the_key_of_what_is_measured_says_which_version_may_run_the_model() -> None:
    known = {"model_sha256": "0" * 64, "version": ort.__version__}
    assert asked("a.onnx")["onnxruntime"] == known == asked("a.onnx", runtimes="onnxruntime")["onnxruntime"]
    assert asked("a.onnx", runtimes="openvino")["onnxruntime"] is None
    assert asked("a.xml")["onnxruntime"] is None
    assert asked("a.onnx", use="sequential")["onnxruntime"] is None


def test_a_special_build_counts_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        return "1.30" if name == "onnxruntime-gpu" else "not installed"

    monkeypatch.setattr("pipeline.stages.host.installed_version", installed)
    assert asked("a.onnx")["onnxruntime"]["version"] == "1.30 (onnxruntime-gpu)"


@pytest.mark.parametrize(
    ("path", "more", "cause"),
    [
        ("a.xml", {}, "ONNX Runtime runs ONNX files, and a.xml is none."),
        ("a.onnx", {"use": "sequential"}, "measure.use is sequential, which knows nothing of ONNX Runtime."),
    ],
)
def test_it_cannot_be_asked_for_in_vain(path: str, more: Mapping[str, str], cause: str) -> None:
    with pytest.raises(UsageError) as raised:
        asked(path, runtimes="openvino,onnxruntime", **more)
    assert raised.value.cause == cause
    assert raised.value.exit_code == 2


def test_where_it_is_not_installed_nothing_is_told_and_asking_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.host.installed_version", lambda name: "not installed")
    assert asked("a.onnx")["onnxruntime"] is None
    with pytest.raises(MissingPackageError) as raised:
        asked("a.onnx", runtimes="onnxruntime")
    assert raised.value.remedy == "Install it: pip install onnxruntime."


def test_a_model_that_it_alone_was_to_run_and_does_not_is_one_that_is_not_supported() -> None:
    row: Any = {"name": "ONNX Runtime default", "runtime": "onnxruntime", "samples_s": []}
    row["failed"] = {"kind": "refused", "message": "no such operator"}
    with pytest.raises(ModelError) as raised:
        check_something_ran([row])
    assert raised.value.cause == "ONNX Runtime does not run the model: no such operator."
    assert raised.value.exit_code == 3


# After a run


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    """Return the folder of a run that ONNX Runtime won, in the place of one that OpenVINO had won before."""
    folder, model = tmp_path / "run", read(source, tmp_path / "read")
    folder.mkdir()
    for name in ("placed.xml", "placed.bin"):
        (folder / name).write_text("of an earlier answer", encoding="utf-8")
    chosen = OnnxSpace.of(source, "1.31", "latency")._variant({"intra_op_num_threads": "1"}, 1)
    row: Any = {"name": chosen.name, "target": chosen.target, "properties": {}, "placement": None}
    row |= {"devices": [d.to_json() for d in chosen.devices], "runtime": "onnxruntime"}
    entry = Entry(model.parent, "0" * 64, {}, {}, {p.name: file_digest(p) for p in model.parent.iterdir()})
    files = write_placed(folder, entry, ["multiply"], row, model_sha256(source), onnx=source)
    assert files["model"] == "onnx/model.onnx"
    assert "weights" not in files
    manifest = {"schema": 1, "model": {"path": str(source), "sha256": model_sha256(source)}, "settings": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"stages": {"read": READ_STAGE}}), encoding="utf-8")
    return folder


def test_the_run_folder_holds_the_file_and_its_options_and_nothing_of_openvinos(run: Path, source: Path) -> None:
    source.unlink()
    assert not (run / "placed.xml").exists()
    deployment = Deployment.load(run)
    assert deployment.in_onnxruntime
    assert deployment.onnx_options == {"intra_op_num_threads": "1"}
    assert deployment.record.placement == {}
    x, shift = np.ones((3, 8), np.float32), np.ones(8, np.float32)
    loaded = pipeline.load(run)
    assert isinstance(loaded, OnnxModel)
    with loaded:
        assert loaded.session.get_session_options().intra_op_num_threads == 1
        found = loaded.infer({"x": x, "shift": shift})
        np.testing.assert_allclose(found["late"], expected(x, shift)["output_0"], rtol=1e-5)
        np.testing.assert_allclose(loaded([x, shift])[1], expected(x, shift)["output_1"], rtol=1e-5)
        with pytest.raises(PlacedInputError, match="no value for the input shift"):
            loaded.infer({"x": x})


@pytest.mark.parametrize("target", ["python", "onnxruntime"])
def test_the_program_that_is_emitted_runs_it_with_its_options_and_sizes(run: Path, target: str) -> None:
    out, _ = emit(run, target)
    session = json.loads((out / "session.json").read_text(encoding="utf-8"))
    assert session["options"] == {"intra_op_num_threads": 1}
    assert session["providers"] == ["CPUExecutionProvider"]
    text = (out / "run.py").read_text(encoding="utf-8")
    (out / "run.py").write_text(text.replace("SECONDS = 3.0", "SECONDS = 0.01"), encoding="utf-8")
    told = subprocess.run([sys.executable, str(out / "run.py")], capture_output=True, text=True, check=True)
    assert "taken as [5, 8]" in told.stdout
    assert "CPUExecutionProvider 3" in told.stdout


@pytest.mark.parametrize("target", ["cpp", "ovms", "ovms-dag", "benchmark-app", "olive"])
def test_what_knows_openvino_alone_is_refused(run: Path, target: str) -> None:
    with pytest.raises(UsageError, match="runs the model by ONNX Runtime, and not by OpenVINO"):
        emit(run, target)


def test_a_compiled_model_of_openvino_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="by ONNX Runtime"):
        Result(run, None).compile()  # type: ignore[arg-type]


def test_where_reads_which_provider_has_which_node_and_what_it_takes(
    run: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.deploy.where.SECONDS", 0.01)
    for found in (where_run(run), where_model(source, "onnxruntime", InputShapes())):
        assert (found.target, found.executed_on) == ("ONNX Runtime", ["CPUExecutionProvider"])
        rows = {row.operation: row for row in found.operations}
        assert {"multiply", "add", "relu"} <= rows.keys()
        assert rows["multiply"].type == "MatMul"
        assert rows["multiply"].device == "CPUExecutionProvider"
        assert rows["multiply"].why == "assigned by ONNX Runtime"
        assert sum(row.seconds for row in found.operations) > 0
        assert [total.device for total in found.devices] == ["CPUExecutionProvider"]


def test_a_node_that_onnxruntime_has_made_of_several_is_told_by_its_provider() -> None:
    node = {"name": "reorder", "operations": [], "type": "ReorderInput", "kernel": "", "precision": "", "part": None}
    answer = {"operations": [["multiply", "MatMul", False]], "nodes": [node | {"seconds": 1e-3, "executed": True}]}
    answer |= {"assigned": {"multiply": "CUDAExecutionProvider", "reorder": "CPUExecutionProvider"}, "refused": {}}
    answer |= {"executed_on": ["CUDAExecutionProvider", "CPUExecutionProvider"], "latency_s": 1e-3, "mean_s": 1e-3}
    found = record_of(answer, Wanted("CUDAExecutionProvider", (), onnx=Path("a.onnx")), model="a.onnx")
    assert [(row.operation, row.device) for row in found.operations if row.seconds] == [
        ("reorder", "CPUExecutionProvider")
    ]


def test_nodes_are_told_by_the_provider_that_has_them(source: Path) -> None:
    found = assigned(session_of(source, {}, ["CPUExecutionProvider"]))
    assert {name: [node.name for node in nodes] for name, nodes in found.items()} == {
        "CPUExecutionProvider": ["multiply", "add", "relu"]
    } or sorted(node.name for node in found["CPUExecutionProvider"]) == ["add", "multiply", "relu"]
