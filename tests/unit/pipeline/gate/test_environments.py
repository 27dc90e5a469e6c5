"""The interpreters of the two sides: which runtime they have together, and what it can run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import UsageError
from pipeline.gate.environments import Environment, look_at_environments
from tests.gates import gated, make_environment

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.mark.parametrize("swapped", [False, True])
def test_the_runtime_is_one_that_both_have(tmp_path: Path, swapped: bool) -> None:
    both = make_environment(tmp_path / "both", runtimes=["openvino", "onnxruntime"]) / "bin" / "python"
    one = make_environment(tmp_path / "one", runtimes=["onnxruntime"]) / "bin" / "python"
    found = look_at_environments(*((one, both) if swapped else (both, one)), "")
    assert [each.runtime for each in found] == ["onnxruntime", "onnxruntime"]


def test_of_two_runtimes_in_both_openvino_is_taken(tmp_path: Path) -> None:
    both = make_environment(tmp_path / "both", runtimes=["openvino", "onnxruntime"]) / "bin" / "python"
    assert [each.runtime for each in look_at_environments(both, both, "")] == ["openvino", "openvino"]


@pytest.mark.parametrize(
    ("providers", "asked", "device"),
    [
        ((CPU,), "CPU", CPU),
        ((CUDA, CPU), "GPU", CUDA),
        ((CUDA, CPU), "GPU,CPU", f"{CUDA},{CPU}"),
        ((CUDA, CPU), CUDA, CUDA),
    ],
)
def test_a_device_is_a_provider_of_onnx_runtime(providers: tuple[str, ...], asked: str, device: str) -> None:
    environment = Environment("python", "3.12.0", "onnxruntime", "1.31.1", ("onnxruntime",), providers)
    assert environment.device(asked) == device


def test_openvino_takes_a_device_as_it_is() -> None:
    assert Environment("python", "3.12.0", "openvino", "2026.1.0").device("AUTO:GPU,CPU") == "AUTO:GPU,CPU"


@pytest.mark.parametrize("asked", ["GPU", "NPU", CUDA])
def test_a_device_that_onnx_runtime_does_not_have_is_said_so(asked: str) -> None:
    environment = Environment("python", "3.12.0", "onnxruntime", "1.31.1", ("onnxruntime",), (CPU,))
    with pytest.raises(UsageError, match=f"cannot run on {asked}; it has {CPU}"):
        environment.device(asked)


def test_a_gate_on_a_device_that_is_not_there_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        make_environment(tmp_path / name, runtimes=["onnxruntime"], providers=[CPU])
    assert gated(tmp_path, "--device", "GPU") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "cannot run on GPU" in lines[0]
    assert len(lines) == 2
