"""The measuring child: what goes wrong there comes back as an answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset13 as op

from pipeline.core.accuracy import Accuracy
from pipeline.core.devices import DeviceSpec
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.model_inputs import TIMED
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.variant import (
    Variant,
    check_outputs,
    hetero_variant,
    outputs_of,
    start_child,
    warm_up,
)
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.affinity import HETERO_PROPERTIES
from runtime.measuring.process.child import Child, ChildError, NoReferenceError, speaks_of_memory
from tests.models import two_towers, with_state
from tests.two_cpus import two_cpus, write

SETTINGS = MeasureSettings(timeout_s=60.0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph]:
    return write(two_towers(), tmp_path_factory.mktemp("towers"))


def test_without_a_reference_the_cpu_is_named_and_why(tmp_path: Path) -> None:
    x = op.parameter(ov.PartialShape([-1, 4]), ov.Type.bf16, name="x")
    ov.save_model(ov.Model([op.result(op.relu(x, name="relu"))], [x]), tmp_path / "m.xml", compress_to_fp16=False)
    with pytest.raises(NoReferenceError) as caught:
        reference_outputs(tmp_path / "m.xml", SETTINGS, seed=0)
    assert caught.value.cause.startswith("The CPU cannot run the model in f32, which is the reference of all outputs: ")
    assert "bf16" in caught.value.cause
    assert caught.value.exit_code == 5
    timeout = NoReferenceError(MeasurementFailed("timeout", "no answer within 1 s"))
    assert "it took too long: no answer within 1 s" in timeout.cause
    assert "measure.timeout_s" in timeout.remedy


def towers_apart(graph: Graph, right: str = "CPU_B") -> Variant:
    affinity = {name: right if name.startswith("right") else "CPU_A" for name in graph.names}
    return hetero_variant("apart", "test", two_cpus(), affinity)


Loaded = tuple[Child, Mapping[str, object]]


@pytest.fixture(scope="module")
def split_child(written: tuple[Path, Graph]) -> Iterator[Loaded]:
    child, loaded = start_child(towers_apart(written[1]), written[0], SETTINGS, seed=0)
    with child:
        yield child, loaded


def failure(child: Child, do: str, timeout_s: float | None = None, **command: object) -> MeasurementFailed:
    with pytest.raises(ChildError) as caught:
        child.ask(do, timeout_s=timeout_s, **command)
    return caught.value.failed


def load_failure(variant: Variant, model: Path, settings: MeasureSettings = SETTINGS) -> MeasurementFailed:
    with pytest.raises(ChildError) as caught:
        start_child(variant, model, settings, seed=0)
    return caught.value.failed


def test_a_split_model_runs_on_both_devices_within_their_threads(split_child: Loaded) -> None:
    _, loaded = split_child
    assert sorted(loaded["executed_on"]) == ["CPU_A", "CPU_B"]  # type: ignore[call-overload]
    assert loaded["subgraphs"] == 3
    assert loaded["threads"] == {"CPU_A": 1, "CPU_B": 1}
    assert loaded["precisions"] == {"CPU_A": "f32", "CPU_B": "f32"}
    assert loaded["compile_s"] > 0  # type: ignore[operator]


def test_the_variant_turns_exclusive_requests_off(written: tuple[Path, Graph]) -> None:
    assert towers_apart(written[1]).properties == HETERO_PROPERTIES == {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}


def test_one_device_alone_is_compiled_without_hetero(written: tuple[Path, Graph]) -> None:
    variant = towers_apart(written[1], right="CPU_A")
    assert (variant.target, variant.affinity, [d.name for d in variant.devices]) == ("CPU_A", None, ["A"])


def test_a_run_gives_at_least_the_minimum(split_child: Loaded) -> None:
    child, _ = split_child
    answer = child.ask("run", seconds=0.0, minimum=4, realtime=False)
    assert len(answer["samples_s"]) == 4
    assert min(answer["samples_s"]) > 0
    assert 0 <= answer["run_delay_s"] <= answer["runnable_s"]  # both 0 if the system counted no tick in between
    assert warm_up(child) >= 3


def test_the_child_keeps_openvino_from_reporting_home(split_child: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    child, _ = split_child
    assert psutil.Process(child.pid).environ()["CI"] == "true"


def difference(accuracy: Accuracy | MeasurementFailed) -> float | None:
    """Return by how much outputs that are accepted differ."""
    assert isinstance(accuracy, Accuracy)
    return accuracy.difference


def test_outputs_of_the_split_model_pass_and_wrong_ones_do_not(
    split_child: Loaded, written: tuple[Path, Graph]
) -> None:
    child, loaded = split_child
    variant = towers_apart(written[1])
    expected = outputs_of(child)
    assert [a.shape for a in expected.values()] == [(1, 8)]
    assert difference(check_outputs(variant, loaded, child, Reference({TIMED: expected}), SETTINGS)) == 0.0
    larger = Reference({TIMED: {"output_0": expected["output_0"] / 1.5}})
    wrong = check_outputs(variant, loaded, child, larger, SETTINGS)
    assert wrong == MeasurementFailed(
        "wrong_output", "outputs differ by 50 % from the reference (0.1 % allowed; output_0)"
    )


def test_running_elsewhere_than_asked_is_refused(split_child: Loaded, written: tuple[Path, Graph]) -> None:
    child, loaded = split_child
    elsewhere = dict(loaded) | {"executed_on": ["CPU_A"]}
    found = check_outputs(towers_apart(written[1]), elsewhere, child, {}, SETTINGS)
    assert found == MeasurementFailed("refused", "asked for A, B, ran on A")


def test_a_device_that_refuses_says_why(written: tuple[Path, Graph]) -> None:
    nowhere = DeviceSpec("X", "CPU", "CPU", {"NO_SUCH_PROPERTY": "1"})
    found = load_failure(Variant("x", "test", "CPU", (nowhere,)), written[0])
    assert found.kind == "refused"
    assert "NO_SUCH_PROPERTY" in found.message
    assert "\n" not in found.message


def test_a_fault_leaves_the_child_alive(split_child: Loaded) -> None:
    child, _ = split_child
    assert failure(child, "no such command").kind == "refused"
    assert child.ask("run", seconds=0.0, minimum=1, realtime=False)["samples_s"]


def test_a_killed_child_crashed_by_its_signal() -> None:
    with Child(timeout_s=60.0) as child:
        os.kill(child.pid, signal.SIGKILL)
        assert failure(child, "realtime") == MeasurementFailed("crashed", "it was killed by SIGKILL")
        assert failure(child, "realtime").kind == "crashed"


@pytest.mark.parametrize("length", [1, 10_000_000], ids=["short command", "command longer than a pipe"])
def test_a_child_that_hangs_runs_out_of_time(length: int) -> None:
    with Child(timeout_s=60.0) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert failure(child, "realtime", timeout_s=0.2, text="x" * length) == MeasurementFailed(
            "timeout", "no answer within 0.2 s"
        )


# Too little to read the model, and too little to compile it. With less than about 200 MiB OpenVINO's TensorFlow reader
# waits for ever for a lock whose holder ran out of memory; that ends as a timeout.
@pytest.mark.parametrize("mebibytes", [230, 330])
def test_too_little_memory_is_said(mebibytes: int, tmp_path: Path) -> None:
    path, _ = write(two_towers(1, width=4096), tmp_path)  # two weights of 64 MiB
    found = load_failure(reference_variant(), path, MeasureSettings(timeout_s=60.0, memory_bytes=mebibytes << 20))
    assert found.kind == "out_of_memory"
    assert found.message


@pytest.mark.parametrize("words", ["std::bad_alloc", "MemoryError", "cannot allocate memory", "can't alloc"])
def test_words_for_want_of_memory_are_known(words: str) -> None:
    assert speaks_of_memory(f"it said {words}.")
    assert not speaks_of_memory("no such layer")


def test_what_native_code_prints_is_no_answer(
    written: tuple[Path, Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python runs sitecustomize first; the finder prints as a library does while it is loaded, before and in a command.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Noisy:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('openvino', 'numpy.random', 'numpy.lib.format'):\n"
        "            os.write(1, b'{\"error\": \\ngarbage without end')\n"
        "sys.meta_path.insert(0, Noisy())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child, loaded = start_child(reference_variant(), written[0], SETTINGS, seed=0)
    with child:
        assert loaded["executed_on"] == ["CPU"]
        assert outputs_of(child)["output_0"].shape == (1, 8)
        assert "garbage without end" in child.piped.last_words()


def test_leaving_the_context_ends_the_process() -> None:
    with Child(timeout_s=60.0) as child:
        assert psutil.pid_exists(child.pid)
    assert not psutil.pid_exists(child.pid)


def test_a_low_precision_gets_its_own_tolerance(split_child: Loaded, written: tuple[Path, Graph]) -> None:
    child, loaded = split_child
    expected = Reference({TIMED: {"output_0": outputs_of(child)["output_0"] * 1.01}})
    low = dict(loaded) | {"precisions": {"CPU_A": "f32", "CPU_B": "bf16"}}
    found = difference(check_outputs(towers_apart(written[1]), low, child, expected, SETTINGS))
    assert found == pytest.approx(0.01 / 1.01, rel=1e-3)
    failed = check_outputs(towers_apart(written[1]), loaded, child, expected, SETTINGS)
    assert isinstance(failed, MeasurementFailed)
    assert failed.kind == "wrong_output"


def test_a_split_that_loses_int8_fails_with_the_names_of_the_kernels(
    split_child: Loaded, written: tuple[Path, Graph]
) -> None:
    child, loaded = split_child
    whole = Reference({TIMED: outputs_of(child)}, ("conv1", "conv2", "conv3"))
    quantised = dict(loaded) | {"int8_kernels": ["conv1", "conv3"]}
    failed = check_outputs(towers_apart(written[1]), quantised, child, whole, SETTINGS)
    assert failed == MeasurementFailed("refused", "1 of 3 kernels no longer run in int8: conv2")
    unknown = dict(loaded) | {"int8_kernels": None}
    assert difference(check_outputs(towers_apart(written[1]), unknown, child, whole, SETTINGS)) == 0.0


def test_state_is_reset_before_every_inference(tmp_path: Path) -> None:
    path, _ = write(with_state(), tmp_path)
    child, _ = start_child(reference_variant(), path, MeasureSettings(), seed=0)
    with child:
        first = outputs_of(child)["output_0"]
        child.ask("run", seconds=0.0, minimum=3, realtime=False)
        np.testing.assert_array_equal(outputs_of(child)["output_0"], first)


@pytest.mark.parametrize("line", ["{", "[]", '{"error": "no"}', '{"error": {"kind": "new", "message": ""}}'])
def test_an_answer_that_is_damaged_is_a_crash(line: str) -> None:
    say = [sys.executable, "-c", f"import sys; sys.stdin.readline(); print({line!r}, flush=True); sys.stdin.readline()"]
    with Child(timeout_s=60.0, run=say) as child, pytest.raises(ChildError, match="damaged") as caught:
        child.ask("memory")
    assert caught.value.failed.kind == "crashed"
