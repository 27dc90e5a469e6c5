"""What the source of a model computes, by something else than what is measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino as ov
import pytest
from onnx import numpy_helper
from openvino import opset13

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_with_inputs, save_model
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.reference import reference
from coarsen.reading.reference.first_departure import first_departure
from coarsen.reading.reference.float_model import float_twin
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import ModelError
from pipeline.core.settings import CoarsenSettings
from pipeline.shared.checks import (
    CHECKS,
    EVALUATED,
    FACTS,
    FLOAT,
    NORMALISED,
    REFERENCE,
    SHAKEN,
    ReferenceOrder,
    load_by_kind,
    relative_l2,
    save_by_kind,
)
from tests.exported_models import lstm_with_state, qdq_cnn, scalar_bounds
from tests.source_models import dynamically_quantised, masked_attention, perceptron

ORDER = ReferenceOrder(source=True, seconds=5.0, limit_s=20.0, inferences=4)


def read(path: Path, out: Path, *shapes: str, order: ReferenceOrder = ORDER) -> dict[str, object]:
    """Read a model into a folder, run its source, and return what is said of that."""
    out.mkdir(exist_ok=True)
    limits = ReadLimits.of(CoarsenSettings())
    read_in_process(path, out, source=model_sha256(path), limits=limits, shapes=InputShapes(shapes), reference=order)
    facts: dict[str, object] = json.loads((out / FACTS).read_text(encoding="utf-8"))
    return facts


def by_onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what ONNX Runtime gives with its usual optimisations."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


def test_onnx_is_run_by_onnx_runtime_on_the_inputs_that_are_written(tmp_path: Path) -> None:
    path = masked_attention(tmp_path / "m.onnx")
    facts = read(path, tmp_path / "out", "input_ids=1x12", "attention_mask=1x12")
    assert (facts["executor"], facts["chosen"]) == (f"ONNX Runtime {onnxruntime.__version__}", [])
    checks, found = load_by_kind(tmp_path / "out" / CHECKS), load_by_kind(tmp_path / "out" / REFERENCE)
    assert list(found) == facts["kinds"] == list(checks)
    for kind, inputs in checks.items():
        [expected] = by_onnxruntime(path, inputs)
        assert relative_l2(found[kind]["output_0"], expected) < 1e-5


def test_an_ir_is_run_as_it_is_read_and_by_the_reference_implementation(tmp_path: Path) -> None:
    model = ov.Core().read_model(masked_attention(tmp_path / "m.onnx"))
    save_model(model, tmp_path / "m.xml")
    facts = read(tmp_path / "m.xml", tmp_path / "out", "input_ids=1x12", "attention_mask=1x12")
    assert facts["executor"] == reference.AS_READ
    [kind, *_] = load_by_kind(tmp_path / "out" / EVALUATED)
    arrays = [load_by_kind(tmp_path / "out" / name)[kind]["output_0"] for name in (REFERENCE, EVALUATED)]
    assert relative_l2(*arrays) < 1e-5


def test_inputs_of_a_single_number_keep_their_shape(tmp_path: Path) -> None:
    facts = read(scalar_bounds(tmp_path), tmp_path / "out")
    assert (facts["executor"], facts["why_not"]) == (f"ONNX Runtime {onnxruntime.__version__}", [])
    found = {file: load_by_kind(tmp_path / "out" / file) for file in (REFERENCE, NORMALISED)}
    assert list(found[REFERENCE]) == list(found[NORMALISED]) == facts["kinds"]
    assert "noise" in load_by_kind(tmp_path / "out" / SHAKEN)
    for kind, outputs in found[REFERENCE].items():
        assert relative_l2(found[NORMALISED][kind]["output_0"], outputs["output_0"]) < 1e-5


def test_the_reference_implementation_takes_inputs_of_a_single_number() -> None:
    number, row = opset13.parameter([], np.float32, name="number"), opset13.parameter([2], np.float32, name="row")
    run = reference.by_evaluate(ov.Model([opset13.multiply(row, number)], [number, row], "scaled"))
    assert run({"number": np.array(3, np.float32), "row": np.ones(2, np.float32)})["output_0"].tolist() == [3.0, 3.0]


def test_without_onnx_runtime_its_absence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "onnxruntime.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nowhere"))
    facts = read(perceptron(tmp_path / "m.onnx"), tmp_path / "out")
    assert facts["executor"] == reference.AS_READ
    assert "pip install onnxruntime" in str(facts["why_not"])


def test_what_onnx_runtime_does_not_run_is_run_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path, source: ov.Model) -> reference.Run:
        raise ModelError("no kernel")

    monkeypatch.setattr(reference, "by_onnxruntime", refuses)
    path = perceptron(tmp_path / "m.onnx")
    drawn = reference.CheckInputs({}, 8)
    reference.write_outputs(ov.Core().read_model(path), path, tmp_path, ORDER, drawn, flops=1.0)
    facts = json.loads((tmp_path / FACTS).read_text(encoding="utf-8"))
    assert facts["executor"] == reference.AS_READ
    assert facts["why_not"] == ["ONNX Runtime does not run the model: no kernel"]


def test_what_has_run_the_model_with_its_sizes_gives_its_outputs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = perceptron(tmp_path / "m.onnx")
    found, _ = read_with_inputs(path, InputShapes(("x=3x24",)))
    assert found.request is not None
    monkeypatch.setattr(reference.ov.Core, "compile_model", None)  # it is not compiled again
    order, drawn = replace(ORDER, source=False), reference.CheckInputs({}, 8)
    reference.write_outputs(found.model, path, tmp_path, order, drawn, flops=1.0, request=found.request)
    assert {a["output_0"].shape[0] for a in load_by_kind(tmp_path / NORMALISED).values()} == {3}


def test_a_model_with_state_is_run_through_a_sequence(tmp_path: Path) -> None:
    read(lstm_with_state(tmp_path), tmp_path / "long")
    read(lstm_with_state(tmp_path), tmp_path / "short", order=ReferenceOrder(True, 5.0, 20.0, inferences=1))
    long, short = (load_by_kind(tmp_path / name / REFERENCE) for name in ("long", "short"))
    kind = next(iter(long))
    assert relative_l2(long[kind]["output_0"], short[kind]["output_0"]) > 1e-3
    assert not (tmp_path / "long" / EVALUATED).exists()


def test_time_that_is_up_leaves_the_first_kind_of_inputs(tmp_path: Path) -> None:
    facts = read(perceptron(tmp_path / "m.onnx"), tmp_path / "out", order=ReferenceOrder(True, 0.0, 20.0, 1))
    assert facts["kinds"] == list(load_by_kind(tmp_path / "out" / REFERENCE)) == ["noise"]


def test_the_source_runs_with_further_samples_as_long_as_there_is_time(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "m.onnx")
    facts = read(path, tmp_path / "out", order=replace(ORDER, samples_s=5.0))
    checks, found = (load_by_kind(tmp_path / "out" / name) for name in (CHECKS, REFERENCE))
    assert facts["kinds"] == ["noise", "smooth", "second", "zeros"]
    assert list(found) == list(checks)
    assert list(found)[4:] == [f"{kind} #{n}" for n in (2, 3, 4) for kind in ("noise", "smooth", "second")]
    assert facts["samples"] == 9
    for kind, inputs in checks.items():
        [expected] = by_onnxruntime(path, inputs)
        assert relative_l2(found[kind]["output_0"], expected) < 1e-5
    shaken, ours = (load_by_kind(tmp_path / "out" / name) for name in (SHAKEN, NORMALISED))
    assert (list(shaken), list(ours)) == (list(found), facts["kinds"])
    assert 0 < relative_l2(shaken["noise #3"]["output_0"], found["noise #3"]["output_0"]) < 1e-4
    none = read(path, tmp_path / "none")
    assert (none["samples"], list(load_by_kind(tmp_path / "none" / CHECKS))) == (0, facts["kinds"])


def test_where_the_source_fails_on_a_kind_or_a_sample_the_others_are_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, runs = perceptron(tmp_path / "m.onnx"), reference.OnnxSession.run, list[object]()

    def run(session: reference.OnnxSession, *given: object) -> object:
        runs.append(given)
        if len(runs) in (3, 12):  # the third of four kinds; these, and two samples, are shaken, too
            raise ModelError("indices out of bounds")
        return real(session, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(reference.OnnxSession, "run", run)
    order, drawn = replace(ORDER, samples_s=5.0), reference.CheckInputs({}, 8)
    reference.write_outputs(ov.Core().read_model(path), path, tmp_path, order, drawn, flops=1.0)
    facts = json.loads((tmp_path / FACTS).read_text(encoding="utf-8"))
    assert (facts["executor"], facts["samples"]) == (reference.onnxruntime_name(), 2)
    assert facts["kinds"] == ["noise", "smooth", "zeros"]
    assert facts["why_not"] == ["On the kind second of inputs the source does not run: indices out of bounds"]
    assert list(load_by_kind(tmp_path / REFERENCE)) == [*facts["kinds"], "noise #2", "smooth #2"]
    assert list(load_by_kind(tmp_path / CHECKS)) == ["noise", "smooth", "second", "zeros", "noise #2", "smooth #2"]


def test_the_float_twin_runs_with_further_samples_too(tmp_path: Path) -> None:
    path = dynamically_quantised(perceptron(tmp_path / "plain.onnx"), tmp_path / "m.onnx")
    read(path, tmp_path / "out", order=replace(ORDER, samples_s=5.0))
    assert list(load_by_kind(tmp_path / "out" / FLOAT)) == list(load_by_kind(tmp_path / "out" / REFERENCE))


def test_inputs_are_shaken_by_as_little_as_rounding(tmp_path: Path) -> None:
    read(perceptron(tmp_path / "m.onnx"), tmp_path / "out")
    whole, shaken = (load_by_kind(tmp_path / "out" / name)["noise"]["output_0"] for name in (REFERENCE, SHAKEN))
    assert 0 < relative_l2(shaken, whole) < 1e-4


def test_a_dynamically_quantised_model_has_a_twin_in_floating_point(tmp_path: Path) -> None:
    plain = perceptron(tmp_path / "plain.onnx")
    path = dynamically_quantised(plain, tmp_path / "m.onnx")
    read(path, tmp_path / "out")
    inputs = load_by_kind(tmp_path / "out" / CHECKS)["noise"]
    weights = {c.name: numpy_helper.to_array(c) for c in onnx.load(path).graph.initializer}
    y = inputs["x"].astype(np.float64)
    for i in range(2):  # the weights as they are stored, and nothing rounded
        w, scale, zero = (weights[f"w{i}_{name}"] for name in ("quantized", "scale", "zero_point"))
        y = np.maximum(y @ ((w.astype(np.float64) - zero) * scale), 0)
    found = load_by_kind(tmp_path / "out" / FLOAT)["noise"]["output_0"]
    rounded = load_by_kind(tmp_path / "out" / REFERENCE)["noise"]["output_0"]
    assert relative_l2(found, y) < 1e-5
    assert 1e-4 < relative_l2(rounded, y) < 0.1


def test_the_twin_of_quantised_activations_is_clipped_and_not_rounded(tmp_path: Path) -> None:
    twin = float_twin(qdq_cnn(tmp_path))
    assert twin is not None
    model = onnx.load_from_string(twin)
    kinds = {node.op_type for node in model.graph.node}
    assert "QuantizeLinear" not in kinds
    assert {"Clip", "DequantizeLinear"} <= kinds  # the weights are as they were


def test_a_model_in_floating_point_has_no_twin(tmp_path: Path) -> None:
    assert float_twin(perceptron(tmp_path / "m.onnx")) is None


@pytest.mark.parametrize("known", [True, False])
def test_the_first_operation_that_departs_is_found(tmp_path: Path, *, known: bool) -> None:
    """known: whether ONNX Runtime tells what results should be."""
    source = perceptron(tmp_path / "m.onnx", layers=6)
    right = ov.Core().read_model(source)
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 24)).astype(np.float32)}
    save_by_kind(tmp_path / CHECKS, {"noise": inputs})
    save_by_kind(tmp_path / REFERENCE, {"noise": reference.on_cpu(right, 1)(inputs)})
    wrong = onnx.load(source)
    [weights] = [c for c in wrong.graph.initializer if c.name == "w3"]
    weights.CopyFrom(numpy_helper.from_array(1.5 * numpy_helper.to_array(weights), "w3"))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    save_model(ov.Core().read_model(tmp_path / "wrong.onnx"), tmp_path / "model.xml")
    found = first_departure(tmp_path, source if known else tmp_path / "m.xml", "noise", "output_0", 20.0)
    assert found == ("product3" if known else "")  # nothing else tells: the fault is in the model itself


def test_of_masked_attention_the_first_operation_that_departs_is_found(tmp_path: Path) -> None:
    if not wrong_once_its_shapes_are_concrete(tmp_path):
        pytest.skip("this version of OpenVINO computes masked attention rightly")
    assert attention_departs(tmp_path / "attention") in {"position_bias", "logits", "shares", "masked", "scores"}


def wrong_once_its_shapes_are_concrete(folder: Path) -> bool:
    """Return whether this version of OpenVINO computes masked attention wrongly."""
    folder = folder / "attention"
    read(masked_attention(folder.parent / "a.onnx"), folder, "input_ids=1x12", "attention_mask=1x12")
    ours, theirs = (load_by_kind(folder / name)["noise"]["output_0"] for name in (NORMALISED, REFERENCE))
    return relative_l2(ours, theirs) > 0.01


def attention_departs(folder: Path) -> str:
    """Return the first operation of masked attention that departs."""
    return first_departure(folder, folder.parent / "a.onnx", "noise", "output_0", 20.0)
