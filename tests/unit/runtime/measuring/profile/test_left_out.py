"""Devices that fail leave with their reason, and the profile is of those that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError, MeasurementError, OutputMismatchError
from pipeline.core.graph import Graph
from pipeline.core.measurement import FailureKind, MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.shared.model_inputs import TIMED
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.child import ChildError
from runtime.measuring.profile import profile as module
from runtime.measuring.profile.left_out import COMPILE, RUN, LeftOut, UnfitError, left_out_notes, left_out_to_json
from runtime.measuring.profile.profile import Profile, profile_model
from tests.models import two_towers
from tests.strategies import graph_of
from tests.two_cpus import two_cpus, write

CPU = DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")
NPU = DeviceSpec("NPU", "NPU", "NPU", {}, "npu")
GPU = DeviceSpec("GPU", "GPU", "GPU", {}, "gpu")
GRAPH = graph_of(2, [(0, 1)])
EXPECTED = {"output_0": np.ones(2)}


def failed(kind: FailureKind = "refused", message: str = "no such layer") -> MeasurementFailed:
    return MeasurementFailed(kind, message)


@dataclass
class Machine:
    """Stands for the measuring children of CPU, GPU and NPU.

    support, kernels, links: what fails, by device or pair of devices, taken one after another. refused: operations by
    device. outputs: by device, where they are not as expected. tried: what was asked, in order.
    """

    support: dict[str, list[MeasurementFailed]] = field(default_factory=dict)
    kernels: dict[str, list[MeasurementFailed]] = field(default_factory=dict)
    links: dict[frozenset[str], list[MeasurementFailed]] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)

    def ask_support(self, model: Path, device: DeviceSpec, settings: ProfileSettings) -> tuple[str, ...]:
        if self.support.get(device.name):
            raise ChildError(self.support[device.name].pop(0))
        return self.refused.get(device.name, ())

    def ask_kernels(
        self, model: Path, device: DeviceSpec, devices: Sequence[DeviceSpec], *_: object, **__: object
    ) -> dict[str, Any]:
        self.tried.append(f"{device.name} with {','.join(d.name for d in devices)}")
        if self.kernels.get(device.name):
            raise UnfitError(self.kernels[device.name].pop(0), COMPILE)
        figures = {"kernels": [[["op0", "op1"], 1.0]], "latency_s": 1.0, "mean_s": 1.0, "precisions": {}}
        return {**figures, "outputs": {TIMED: self.outputs.get(device.name, EXPECTED)}}

    def ask_link(self, a: DeviceSpec, b: DeviceSpec, settings: ProfileSettings) -> tuple[float, float]:
        waiting = self.links.get(frozenset((a.name, b.name)))
        if waiting:
            raise UnfitError(waiting.pop(0), f"exchange tensors with {a.name}")
        return 1e-6, 1e9

    def profile(self, *devices: DeviceSpec, graph: Graph = GRAPH, otherwise: Sequence[DeviceSpec] = ()) -> Profile:
        return profile_model(
            Path("m.xml"),
            graph,
            devices or (NPU, CPU, GPU),
            ProfileSettings(),
            measuring=MeasureSettings(),
            seed=0,
            progress=lambda text: None,
            otherwise=otherwise,
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(module, "_refused_by_device", found.ask_support)
    monkeypatch.setattr(module, "_time_kernels", found.ask_kernels)
    monkeypatch.setattr(module, "_measure_link", found.ask_link)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: Reference({TIMED: EXPECTED}))
    return found


def test_a_device_that_cannot_compile_the_model_leaves_and_the_others_stay(machine: Machine) -> None:
    machine.kernels = {"NPU": [failed()]}
    found = machine.profile()
    assert found.left_out == {"NPU": LeftOut("refused", "no such layer", COMPILE)}
    assert found.costs.devices == found.topology.names == ("CPU", "GPU")
    assert found.topology.devices == (CPU, GPU)
    assert set(found.latency_s) == set(found.covered) == set(found.refused) == {"CPU", "GPU"}
    assert found.costs.op_s.shape == (2, 2)
    assert left_out_notes(left_out_to_json(found.left_out)) == [
        "NPU is left out: it cannot compile the model (no such layer)."
    ]


def test_a_device_that_cannot_even_say_what_it_supports_leaves(machine: Machine) -> None:
    machine.support = {"GPU": [failed("refused", "no driver")]}
    found = machine.profile()
    assert found.left_out == {"GPU": LeftOut("refused", "no driver", COMPILE)}
    assert machine.tried == ["NPU with NPU,CPU", "CPU with NPU,CPU"]


def test_a_device_with_wrong_outputs_leaves(machine: Machine) -> None:
    machine.outputs = {"GPU": {"output_0": np.array([1.0, 1.5])}}
    found = machine.profile()
    assert found.topology.names == ("NPU", "CPU")
    assert found.left_out["GPU"].words == (
        "its outputs are wrong (outputs differ by 35.4 % from the reference (0.1 % allowed; output_0))"
    )


def test_a_model_whose_reference_differs_from_itself_is_told_as_such(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.outputs = {name: {"output_0": np.array([1.0, 1.5])} for name in ("CPU", "GPU", "NPU")}
    with pytest.raises(OutputMismatchError, match="No device gives the reference outputs"):
        machine.profile()
    graph = replace(GRAPH, type_names=("RandomUniform", *GRAPH.type_names[1:]))
    with pytest.raises(OutputMismatchError, match=r"are random: op0, op1 draw random numbers"):
        machine.profile(graph=graph)
    drawn = iter((1.0, 1.3))
    monkeypatch.setattr(
        module, "reference_outputs", lambda *_, **__: Reference({TIMED: {"output_0": np.full(2, next(drawn))}})
    )
    with pytest.raises(OutputMismatchError, match=r"are random: two inferences .*by 30 %.*--metric"):
        machine.profile()


def test_outputs_that_are_nan_in_the_reference_are_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.profile().nan == {}
    outputs = {"output_0": np.array([1.0, np.nan]), "output_1": np.zeros((0, 4))}
    machine.outputs = dict.fromkeys(("CPU", "GPU", "NPU"), outputs)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: Reference({TIMED: outputs}))
    assert machine.profile().nan == {"output_0": 0.5}
    assert machine.profile().empty == ["output_1"]


def test_a_device_that_needs_others_is_tried_with_those_that_have_proved_to_run(machine: Machine) -> None:
    machine.refused = {"NPU": ("op1",)}
    machine.kernels = {"GPU": [failed()]}
    found = machine.profile()
    assert machine.tried == ["CPU with NPU,CPU,GPU", "GPU with NPU,CPU,GPU", "NPU with NPU,CPU"]
    assert found.topology.names == ("NPU", "CPU")
    assert np.isinf(found.costs.op_s).tolist() == [[False, False], [True, False]]


def test_a_device_that_exchanges_no_tensors_leaves_before_the_cpu(machine: Machine) -> None:
    machine.links = {frozenset(("NPU", "CPU")): [failed("refused", "no layout")]}
    found = machine.profile()
    assert found.topology.names == ("CPU", "GPU")
    assert left_out_notes(left_out_to_json(found.left_out)) == [
        "NPU is left out: it cannot exchange tensors with CPU (no layout)."
    ]
    assert found.topology.link_bytes_per_s[0, 1] == 1e9


def test_operations_that_only_a_device_left_out_runs_are_said_with_its_reason(machine: Machine) -> None:
    machine.refused = {"CPU": ("op1",)}
    machine.kernels = {"NPU": [failed()]}
    with pytest.raises(DeviceError, match=r"op1\. NPU is left out: it cannot compile the model \(no such layer\)"):
        machine.profile(NPU, CPU)


def test_where_all_fail_every_reason_is_named(machine: Machine) -> None:
    machine.support = {"NPU": [failed("refused", "no driver")]}
    machine.kernels = {"CPU": [failed()]}
    machine.outputs = {"GPU": {"output_0": np.zeros(2)}}
    with pytest.raises(MeasurementError) as caught:
        machine.profile()
    assert caught.value.exit_code == 5
    for words in (
        "NPU: it cannot compile the model (no driver)",
        "CPU: it cannot compile the model (no such layer)",
        "GPU: its outputs are wrong",
    ):
        assert words in caught.value.cause


def test_where_none_says_what_it_supports_every_reason_is_named(machine: Machine) -> None:
    machine.support = {name: [failed("refused", f"no {name}")] for name in ("NPU", "CPU")}
    with pytest.raises(MeasurementError, match=r"no NPU.*no CPU"):
        machine.profile(NPU, CPU)


def test_where_all_outputs_are_wrong_that_is_the_error(machine: Machine) -> None:
    machine.outputs = {name: {"output_0": np.zeros(2)} for name in ("NPU", "CPU", "GPU")}
    with pytest.raises(OutputMismatchError, match="pin f32"):
        machine.profile()


def test_the_whole_device_takes_the_place_of_parts_that_are_all_wrong(machine: Machine) -> None:
    machine.outputs = {name: {"output_0": np.zeros(2)} for name in ("NPU", "GPU")}
    found = machine.profile(NPU, GPU, otherwise=(CPU,))
    assert found.topology.names == found.costs.devices == ("CPU",)
    assert {name: reason.kind for name, reason in found.left_out.items()} == dict.fromkeys(
        ("NPU", "GPU"), "wrong_output"
    )
    (note,) = left_out_notes(left_out_to_json(found.left_out), ["CPU"])
    assert note.startswith("CPU as a whole took the place of its parts, which nobody named (NPU: its outputs are wrong")
    machine.outputs["CPU"] = {"output_0": np.zeros(2)}
    with pytest.raises(OutputMismatchError, match="CPU: its outputs are wrong"):
        machine.profile(NPU, GPU, otherwise=(CPU,))


def test_of_equal_devices_one_is_asked_whether_it_is_right(machine: Machine) -> None:
    twins = [replace(CPU, name=name, fingerprint="half") for name in ("A", "B")]
    machine.outputs = {name: {"output_0": np.zeros(2)} for name in ("A", "B")}
    found = machine.profile(*twins, otherwise=(CPU,))
    assert machine.tried == ["A with A,B", "CPU with CPU"]
    assert found.left_out["A"] == found.left_out["B"]


def test_one_part_that_is_right_is_enough(machine: Machine) -> None:
    machine.outputs = {"GPU": {"output_0": np.zeros(2)}}
    assert machine.profile(NPU, GPU, otherwise=(CPU,)).topology.names == ("NPU",)


@pytest.mark.parametrize("kind", ["crashed", "timeout", "out_of_memory"])
def test_what_was_disturbed_is_tried_once_more(machine: Machine, kind: FailureKind) -> None:
    machine.support = {"NPU": [failed(kind)]}
    machine.kernels = {"CPU": [failed(kind)]}
    machine.links = {frozenset(("NPU", "CPU")): [failed(kind)]}
    assert machine.profile().left_out == {}
    machine.kernels = {"GPU": [failed(kind), failed(kind, "again")]}
    assert machine.profile().left_out == {"GPU": LeftOut(kind, "again", COMPILE)}
    assert machine.profile().left_out == {}


@pytest.mark.parametrize("kind", ["refused", "wrong_output"])
def test_what_fails_for_good_is_not_tried_again(machine: Machine, kind: FailureKind) -> None:
    machine.kernels = {"GPU": [failed(kind), failed(kind)]}
    assert set(machine.profile().left_out) == {"GPU"}
    assert len(machine.kernels["GPU"]) == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (LeftOut("refused", "x", RUN), "it cannot run the model (x)"),
        (LeftOut("timeout", "no answer within 9 s", RUN), "it took too long to run the model (no answer within 9 s)"),
        (
            LeftOut("crashed", "it was killed", COMPILE),
            "its process ended when it tried to compile the model (it was killed)",
        ),
        (LeftOut("out_of_memory", "x", COMPILE), "it ran out of memory when it tried to compile the model (x)"),
        (LeftOut("refused", "y" + "x" * 300, RUN), f"it cannot run the model (... {'x' * 300})"),
    ],
)
def test_reasons_read_as_sentences(reason: LeftOut, words: str) -> None:
    assert reason.words == words


def test_a_real_device_that_cannot_compile_leaves(tmp_path: Path) -> None:
    written: tuple[Path, Graph] = write(two_towers(), tmp_path)
    a, _ = two_cpus()
    refusing = DeviceSpec("X", "CPU", "CPU_X", {"NO_SUCH_PROPERTY": "1"}, "cpu")
    settings = ProfileSettings(inferences=3, link_inferences=3)
    found = profile_model(
        *written, (refusing, a), settings, measuring=MeasureSettings(), seed=0, progress=lambda text: None
    )
    assert found.topology.names == found.costs.devices == ("A",)
    assert "NO_SUCH_PROPERTY" in found.left_out["X"].words
