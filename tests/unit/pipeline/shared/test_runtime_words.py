"""What OpenVINO says, in words."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from pipeline.shared.runtime_words import LONGEST, refusal_in_words
from tests.exported_models import text_detector, text_recogniser

CUT = """Exception from src/inference/src/cpp/compiled_model.cpp:128:
Check 'shape.compatible(ov::PartialShape(tensor->get_shape()))' failed at src/plugins/intel_cpu/infer_request.cpp:385:
Can't set the input tensor with index: 1, because the model input (shape=[?,16,1..,1..]) and the tensor \
(shape=(0.16.0.0)) are incompatible

"""
ELTWISE = """Exception from src/inference/src/cpp/infer_request.cpp:224:
Exception from src/plugins/intel_cpu/src/node.cpp:794:
[CPU] Add node with name '/Add_7' Check 'input_shape[j] == 1' failed at src/plugins/intel_cpu/src/x/eltwise.cpp:52:
Eltwise shape infer input shapes dim index: 1 mismatch

"""
PARTED = """Exception from src/inference/src/cpp/core.cpp:117:
Exception from src/inference/src/dev/plugin.cpp:54:
Check 'unregistered_parameters.str().empty()' failed at src/core/src/model.cpp:58:
Model references undeclared parameters: opset1::Parameter x () -> (f32[?,?,8])
"""
LOST_INPUT = """Exception from src/inference/src/cpp/core.cpp:117:
Check 'runtime_graph->inputs().size() == inputs().size()' failed at src/plugins/hetero/src/compiled_model.cpp:405
"""
SAME_INPUT = """Exception from src/inference/src/cpp/core.cpp:117:
add_parameters(): Tried to add parameter (index in array 4) but Model already have the same parameter with index 0
"""
OTHER_SIZE = CUT.replace("(0.16.0.0)", "(1.16.10.20)")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (CUT, "it is cut through a dynamic tensor, whose size is known only while it runs"),
        (ELTWISE, "at /Add_7, its inputs differ in dimension 1"),
        (PARTED, "it is cut so that a part of it lacks the input x"),
        (LOST_INPUT, "HETERO cannot join its parts, of which several read the same input"),
        (SAME_INPUT, "HETERO cannot join its parts, of which several read the same input"),
        ("Check 'x' failed at b.cpp:2", "no reason given"),
        ("Exception from a.cpp:1:\nCheck 'x' failed at b.cpp:2:\n\n", "no reason given"),
        ('Device with "NOPE" name is not registered in the OpenVINO Runtime', "there is no device NOPE"),
        ("no source lines at all", "no source lines at all"),
    ],
)
def test_messages_by_hand(message: str, words: str) -> None:
    assert refusal_in_words(message) == words
    assert refusal_in_words(" ".join(message.split())) == words


def test_a_tensor_of_another_size_is_no_dynamic_cut() -> None:
    assert refusal_in_words(OTHER_SIZE).startswith("Can't set the input tensor with index: 1")


def test_long_messages_are_cut() -> None:
    assert refusal_in_words("x" * 1000) == "x" * LONGEST + " ..."


@pytest.mark.parametrize(("build", "at"), [(text_detector, "at /Add_"), (text_recogniser, "at /Reshape_")])
def test_what_openvino_says_today_has_no_source_lines(tmp_path: Path, build, at: str) -> None:
    model = ov.Core().read_model(build(tmp_path))
    (port,) = model.inputs
    wrong = [1, 3, 48 if port.get_partial_shape()[2].is_static else 211, 211]
    with pytest.raises(RuntimeError) as raised:
        model.reshape({port: wrong})
    words = refusal_in_words(str(raised.value))
    assert words.startswith(at)
    assert not any(noise in words for noise in (".hpp", ".cpp", "Check '", "Exception", "While validating"))
