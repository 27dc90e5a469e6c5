"""Where two runs of a model depart, operation by operation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import numpy_helper

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import save_model, to_graph
from coarsen.reading.model.results_order import ResultsOrder
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.reference import source_results
from coarsen.reading.reference.reference import AS_READ
from coarsen.reading.reference.source_results import write_source_results
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.cli.main import run_command_line
from pipeline.core.deadline import Deadline
from pipeline.core.errors import ModelError, OutputMismatchError, StoreError
from pipeline.core.graph import Graph
from pipeline.deploy.departures import (
    Allowed,
    Comparison,
    operations_behind,
    producers_of,
    result_sizes,
    split_by_bytes,
)
from pipeline.deploy.two_runs import SOURCE
from pipeline.deploy.where_outputs import (
    ComparisonLimits,
    DepartingRecord,
    OutputRecord,
    WhereOutputsRecord,
    departing_model,
    departing_run,
    first_sentence,
    not_known,
    refuse_departure,
)
from pipeline.shared.checks import CHECKS, ReferenceOrder, load_by_kind
from pipeline.shared.first_departure import FirstDeparture, first_departure_before
from pipeline.shared.model_inputs import GIVEN_KIND
from pipeline.shared.model_outputs import expose_ports
from tests.deployments import deployed, halves
from tests.models import chain, through_file, two_towers, with_state
from tests.source_models import cancelling, masked_attention, perceptron
from tests.two_cpus import two_cpus

F32, BF16 = "CPU{INFERENCE_PRECISION_HINT=f32}", "CPU{INFERENCE_PRECISION_HINT=bf16}"
needs_bf16 = pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU does not compute in bf16"
)
NEVER = Deadline.after(None)


@dataclass
class Made:
    """A run whose results are 1, or what they are made, depending on what is exposed with them."""

    name: str = "made"
    wrong: Callable[[str, Sequence[str]], float] = lambda name, exposed: 0.0
    without: Sequence[str] = ()
    refuses: Sequence[str] = ()
    asked: list[list[str]] = field(default_factory=list)

    def results(self, kind: str, operations: Sequence[str], *, within_s: float) -> Mapping[str, Any]:
        self.asked.append(list(operations))
        if set(operations) & set(self.refuses):
            raise ModelError("It cannot be an output.")
        return {
            name: {"0": np.full(4, 1.0 + self.wrong(name, operations))}
            for name in operations
            if name not in self.without
        }


def graph() -> Graph:
    """Return a chain x -> op0 -> ... -> op7 -> out."""
    return to_graph(chain(8), source="0" * 64)


def comparison(ours: Made, theirs: Made | None = None, *, deadline: Deadline = NEVER, **more: Any) -> Comparison:
    sizes = more.pop("sizes", result_sizes(graph(), 1))
    return Comparison(
        ours, theirs or Made("other"), kind="noise", sizes=sizes, allowed=Allowed(1e-3, 0.05), deadline=deadline
    )


def from_op(first: int) -> Callable[[str, Sequence[str]], float]:
    """Return a fault of all operations of the chain from one on."""
    return lambda name, exposed: 0.5 if int(name[2:]) >= first else 0.0


def only_alone(first: int) -> Callable[[str, Sequence[str]], float]:
    """Return the same fault, which other exposed results mend."""
    return lambda name, exposed: from_op(first)(name, exposed) if len(exposed) == 1 else 0.0


@pytest.mark.parametrize("first", range(8))
def test_a_path_is_bisected_to_the_first_that_departs(first: int) -> None:
    compared = comparison(Made(wrong=only_alone(first)))
    assert compared.first_before("op7", graph()) == FirstDeparture(f"op{first}", certain=True)


def test_the_path_goes_on_in_another_branch() -> None:
    towers = to_graph(two_towers(6), source="0" * 64)
    producers, asked = producers_of(towers), list[str]()
    wrong = {"sum", "out"} | {f"right{i}{suffix}" for i in range(3, 6) for suffix in ("", ".relu")}

    def departs(name: str) -> bool:
        asked.append(name)
        return name in wrong

    found = first_departure_before("sum", producers, departs, lambda: True)
    assert found == FirstDeparture("right3", certain=True)
    assert len(asked) == len(set(asked))


def test_operations_of_which_nothing_is_known_are_passed_over() -> None:
    compared = comparison(Made(wrong=from_op(4)), Made("other", without=("op3", "op4")))
    assert compared.first_before("op7", graph()) == FirstDeparture("op5", certain=True)
    assert compared.not_compared() == {"no counterpart in other": ["op4", "op3"]}


def test_time_that_is_up_leaves_the_first_in_doubt() -> None:
    now = [0.0]

    def wrong(name: str, exposed: Sequence[str]) -> float:
        now[0] += 1.0
        return from_op(0)(name, exposed)

    compared = comparison(Made(wrong=wrong), deadline=Deadline.after(2.0, clock=lambda: now[0]))
    found = compared.first_before("op7", graph())
    assert not found.certain
    assert len(compared.rows) == 2


def test_results_are_compared_as_many_at_a_time_as_may_be_held() -> None:
    ours = Made(wrong=from_op(5))
    compared = comparison(ours, sizes={f"op{i}": 10 if i != 2 else 99 for i in range(8)})
    compared.compare_many(30)
    assert ours.asked == [["op0", "op1", "op3"], ["op4", "op5", "op6"], ["op7"]]
    assert [name for name, row in compared.rows.items() if row.departs] == ["op5", "op6", "op7"]
    assert compared.not_compared() == {"one result takes more than 30 B": ["op2"]}
    assert list(split_by_bytes({"a": 1, "b": 1}, 0)) == [["a"], ["b"]]


def test_what_cannot_be_exposed_is_named_and_the_others_are_compared() -> None:
    compared = comparison(Made(refuses=("op3",)))
    compared.compare_many(1000)
    assert compared.not_compared() == {"It cannot be an output.": ["op3"]}
    assert len(compared.rows) == 7


def test_half_of_the_time_is_kept_for_single_results() -> None:
    now = [0.0]

    def wrong(name: str, exposed: Sequence[str]) -> float:
        now[0] += 1.0
        return 0.0

    compared = comparison(
        Made(wrong=wrong),
        sizes=dict.fromkeys([f"op{i}" for i in range(8)], 1),
        deadline=Deadline.after(8.0, lambda: now[0]),
    )
    compared.compare_many(1)
    assert compared.not_compared() == {"the time was up": ["op4", "op5", "op6", "op7"]}
    assert compared.departs_alone("op6") is False


def test_a_result_that_departs_among_others_alone_is_not_the_first() -> None:
    compared = comparison(Made(wrong=lambda name, exposed: 0.5 if name == "op1" and len(exposed) > 1 else 0.0))
    compared.compare_many(1000)
    assert compared.first_alone() is None


def test_what_follows_an_operation_comes_in_the_order_of_the_data_flow() -> None:
    towers = to_graph(two_towers(2), source="0" * 64)
    assert operations_behind(towers, "left1") == ["left1.relu", "sum", "out"]


def test_constants_and_what_follows_from_them_are_not_compared() -> None:
    sizes = result_sizes(to_graph(two_towers(1), source="0" * 64), 1)
    assert set(sizes) == {"left0", "left0.relu", "right0", "right0.relu", "sum"}
    assert sizes["sum"] == 8 * 4


def found_in(model: ov.Model, folder: Path, device: str, against: str, **limits: Any) -> WhereOutputsRecord:
    save_model(model, folder / "m.xml")
    return departing_model(folder / "m.xml", device, against, InputShapes(), ComparisonLimits(**limits))


@needs_bf16
def test_the_operation_that_cancels_in_bf16_is_the_first(tmp_path: Path) -> None:
    found = found_in(cancelling(), tmp_path, BF16, F32)
    assert (found.first, found.certain) == ("cancelled", True)
    assert [row.operation for row in found.operations] == ["cancelled", "last"]
    assert found.operations[0].device == "CPU"
    assert found.compared == 5
    assert first_sentence(found).startswith("The first operation that differs is cancelled (Subtract, on CPU in f32)")
    with pytest.raises(OutputMismatchError, match=r"output_0 is .* off .*4 % allowed") as caught:
        refuse_departure(found)
    assert caught.value.exit_code == 6


def test_attention_that_openvino_computes_wrongly_departs_from_onnx_runtime_where_its_mask_is_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = masked_attention(tmp_path / "m.onnx")
    shapes = ["--shape", "input_ids=1x12", "--shape", "attention_mask=1x12"]
    code = run_command_line(["where", str(path), "--outputs", "--device", F32, "--json", *shapes])
    document = json.loads(capsys.readouterr().out)
    assert document["against"].startswith("ONNX Runtime")
    if code == 0:
        pytest.skip("this version of OpenVINO computes the attention rightly")
    assert code == 6
    assert document["first"] in {"position_bias", "logits", "shares", "masked", "scores"}
    assert document["certain"]
    assert {"y", document["first"]} <= {row["operation"] for row in document["operations"]}
    assert {row["seen"] for row in document["operations"]} == {"alone"}
    assert "what is fused otherwise" in " ".join(document["notes"])


def test_a_placed_run_is_compared_with_its_source_and_with_a_device(tmp_path: Path) -> None:
    save_model(two_towers(1), tmp_path / "m.xml")
    model = through_file(two_towers(1), tmp_path)
    alike: dict[str, Any] = {"placement": halves(model), "source": str(tmp_path / "m.xml")}
    run = deployed(tmp_path / "run", model, two_cpus(), sha256=model_sha256(tmp_path / "m.xml"), **alike)
    for found in (
        departing_run(run, None, SOURCE),
        departing_model(tmp_path / "m.xml", F32, str(run), InputShapes()),
    ):
        assert (found.first, found.compared, found.not_compared) == ("", 5, [])
        refuse_departure(found)


def test_a_run_of_another_model_is_refused(tmp_path: Path) -> None:
    save_model(chain(2), tmp_path / "m.xml")
    run = deployed(tmp_path / "run", chain(2), two_cpus()[:1], source=str(tmp_path / "m.xml"))
    with pytest.raises(StoreError, match="run of another model"):
        departing_model(tmp_path / "m.xml", F32, str(run), InputShapes())
    with pytest.raises(StoreError, match="is not the file that"):
        departing_run(run, None, SOURCE)
    gone = deployed(tmp_path / "gone", chain(2), two_cpus()[:1], source=str(tmp_path / "gone.xml"))
    with pytest.raises(StoreError, match="is not there"):
        departing_run(gone, None, SOURCE)


def test_of_a_model_with_state_the_first_inference_is_compared(tmp_path: Path) -> None:
    found = found_in(with_state(), tmp_path, F32, SOURCE)
    assert (found.first, found.compared) == ("", 4)
    assert "the first inference of a sequence" in " ".join(not_known(found))


def test_arrays_that_a_user_gives_are_what_is_compared_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(chain(2), tmp_path / "m.xml")
    np.savez(tmp_path / "in.npz", x=np.ones((1, 8), np.float32))
    options = ["--input", str(tmp_path / "in.npz"), "--json"]
    assert run_command_line(["where", str(tmp_path / "m.xml"), "--outputs", "--against", F32, *options]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == GIVEN_KIND


def test_time_that_is_up_is_said(tmp_path: Path) -> None:
    found = found_in(chain(4), tmp_path, F32, SOURCE, seconds=1e-6)
    assert (found.first, found.compared, found.certain) == ("", 0, False)
    assert first_sentence(found).startswith("No operation differs, as far as was compared")
    assert "Not compared: 4 operation(s), op0, op1, op2, op3: the time was up." in not_known(found)


def record(**changes: Any) -> WhereOutputsRecord:
    """Return a record of two runs whose outputs are the same, and of one operation that departs among others."""
    row = DepartingRecord("a", "Add", "indices", 0.5, 0.25, "CPU", "f32", "jit", "among others")
    same = OutputRecord("output_0", "y", "values", 0.0, 0.0, 1e-3, False, "noise")
    alike: dict[str, Any] = {"model": "m", "run": "CPU", "against": "B", "inputs": "noise", "first": "", "notes": []}
    alike |= {"certain": True, "allowed": 1e-3, "allowed_entries": 0.05, "outputs": [same], "operations": [row]}
    alike |= {"schema": "placewright.where-outputs/1", "compared": 3, "not_compared": [], "seconds": 1.0}
    return WhereOutputsRecord(**{**alike, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "No output differs. 1 operation(s) differ when further results are exposed, but none with only its own",
        ),
        ({"certain": False}, "and the time limit was reached"),
        (
            {"first": "a"},
            "No output differs. The first operation that differs is a (Add, on CPU in f32): 50 % of its entries",
        ),
        ({"operations": []}, "No operation differs: the results of 3 operation(s) of CPU are those of B within 0.1 %."),
        ({"operations": [], "compared": 0}, "No operation differs, as far as was compared"),
    ],
)
def test_what_departs_is_said_in_one_line(changes: dict[str, Any], said: str) -> None:
    assert said in first_sentence(record(**changes))
    refuse_departure(record(**changes))


def test_what_is_infinitely_far_is_the_worst() -> None:
    outputs = [
        OutputRecord(f"output_{i}", "y", "values", far, 0.0, 1e-3, True, "noise") for i, far in enumerate((9.0, None))
    ]
    with pytest.raises(OutputMismatchError, match=r"2 of 2 output.*output_1 is infinitely far off"):
        refuse_departure(record(outputs=outputs))


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--outputs", "--against", "GPU.7"], 4, "Unknown device GPU.7"),
        (["--outputs", "--device", "CPU{INFERENCE_PRECISION_HINT=f99}"], 2, "does not accept"),
        (["--against", "CPU"], 2, "--against needs --outputs"),
        (["--outputs", "--budget", "soon"], 2, "not a duration"),
    ],
)
def test_mistakes_are_answered_in_two_lines(
    options: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(chain(2), tmp_path / "m.xml")
    assert run_command_line(["where", str(tmp_path / "m.xml"), *options]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 2


def test_a_source_that_does_not_run_is_answered_with_another_run_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: ov.Model, inferences: int) -> Any:
        raise RuntimeError("Invalid graph status")

    monkeypatch.setattr(source_results, "on_cpu", fails)
    save_model(chain(2), tmp_path / "m.xml")
    with pytest.raises(
        ModelError, match=r"does not run as it is read: Invalid graph status\. Name another run: --against"
    ):
        ordered(tmp_path, tmp_path / "m.xml", "op0")


def test_what_is_an_output_already_keeps_its_place() -> None:
    model = two_towers(1)
    ports = {op.get_friendly_name(): op.output(0) for op in model.get_ordered_ops() if op.get_output_size()}
    assert expose_ports(model, [ports["left0"], ports["sum"], ports["right0"]]) == [1, 0, 2]
    assert expose_ports(model, [ports["right0"]]) == [2]
    assert len(model.outputs) == 3


def ordered(folder: Path, path: Path, *operations: str) -> dict[str, Any]:
    """Return what the source of a model read into a folder gives for operations, and what is told of that."""
    read_in_process(
        path, folder, source=model_sha256(path), limits=ReadLimits(), reference=ReferenceOrder(False, 5, 9, 1)
    )
    told = write_source_results(ResultsOrder(str(path), str(folder), operations, {"noise": str(folder / "r.npz")}))
    return told | {"found": load_by_kind(folder / "r.npz")}


def test_results_of_onnx_runtime_are_joined_by_the_names_of_tensors(tmp_path: Path) -> None:
    told = ordered(tmp_path, perceptron(tmp_path / "m.onnx"), "product1", "relu0")
    x = load_by_kind(tmp_path / CHECKS)["noise"]["x"]
    weights = {c.name: numpy_helper.to_array(c) for c in onnx.load(tmp_path / "m.onnx").graph.initializer}
    relu = np.maximum(x @ weights["w0"], 0)
    assert told["executor"].startswith("ONNX Runtime")
    np.testing.assert_allclose(told["found"]["0"]["relu0"], relu, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(told["found"]["0"]["product1"], relu @ weights["w1"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_the_source_is_run_as_it_is_read(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = perceptron(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, package, None)
    told = ordered(tmp_path, path, "relu0", "relu1")
    assert told["executor"] == AS_READ
    assert f"pip install {package}" in " ".join(told["why_not"])
    assert set(told["found"]["0"]) == {"relu0", "relu1"}
    assert list(told["found"]["outputs"]) == ["output_0"]


def test_runs_that_agree_are_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = perceptron(tmp_path / "m.onnx", layers=6)
    assert run_command_line(["where", str(path), "--outputs", "--device", F32]) == 0
    said = capsys.readouterr().out
    assert "No operation differs: the results of 13 operation(s)" in said
    assert "Not compared" not in said
