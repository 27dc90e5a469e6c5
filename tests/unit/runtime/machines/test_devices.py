"""Devices as the command line and files write them, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.core.errors import DeviceError, UnknownNameError, UsageError
from pipeline.stages.host import look_at_machine
from runtime.machines import devices
from runtime.machines.devices import (
    Plugin,
    check_properties,
    core_for,
    default_devices,
    discover_plugins,
    make_spec,
    parse_devices,
    precision_name,
)
from tests.openvino_calls import RecordingCore

CPU = Plugin(
    name="CPU",
    full_name="A processor",
    driver="1",
    memory_bytes=2**34,
    precisions=("f32", "bf16"),
    default_precision="bf16",
    settable=frozenset({"INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", "ENABLE_CPU_PINNING"}),
)
GPU = replace(CPU, name="GPU.0", settable=CPU.settable | {"DEVICE_ID"})
PLUGINS = {"CPU": CPU, "GPU.0": GPU, "GPU.1": replace(GPU, name="GPU.1")}


def test_a_plain_device_is_itself_with_its_precision_pinned() -> None:
    (cpu,) = parse_devices(["CPU"], PLUGINS)
    assert (cpu.name, cpu.plugin, cpu.openvino_name, cpu.kind) == ("CPU", "CPU", "CPU", "cpu")
    assert not cpu.is_alias
    assert dict(cpu.properties) == {"INFERENCE_PRECISION_HINT": "bf16"}
    assert cpu.memory_bytes == 2**34


def test_named_devices_carry_their_properties() -> None:
    a, b, gpu = parse_devices(
        ["A=CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}, B=CPU{ENABLE_CPU_PINNING=YES},GPU.1"], PLUGINS
    )
    assert [d.name for d in (a, b, gpu)] == ["A", "B", "GPU.1"]
    assert dict(a.properties) == {
        "ENABLE_CPU_PINNING": "NO",
        "INFERENCE_NUM_THREADS": "1",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    assert dict(b.properties) == {"ENABLE_CPU_PINNING": "YES", "INFERENCE_PRECISION_HINT": "bf16"}
    assert len({a.fingerprint, b.fingerprint, gpu.fingerprint}) == 3


def test_another_driver_or_precision_is_another_device_to_what_was_measured() -> None:
    def fingerprint(plugin: Plugin, **properties: str) -> str:
        return make_spec("A", "CPU", properties, {"CPU": plugin}).fingerprint

    others = [replace(CPU, driver="2"), replace(CPU, full_name="Another"), replace(CPU, default_precision="f32")]
    found = [fingerprint(CPU), *map(fingerprint, others), fingerprint(CPU, INFERENCE_NUM_THREADS="1")]
    assert len(set(found)) == 5
    assert fingerprint(replace(CPU, memory_bytes=1)) == fingerprint(CPU)


@pytest.mark.parametrize("name", ["A", "fast-one", "my_cpu", "CPU"])
def test_an_alias_contains_its_plugin_and_no_dot(name: str) -> None:
    (spec,) = parse_devices([f"{name}=CPU{{INFERENCE_NUM_THREADS=1}}"], PLUGINS)
    assert spec.is_alias
    assert "CPU" in spec.openvino_name
    assert spec.openvino_name.replace("_", "").isalnum()


def test_gpu_without_a_number_is_the_first_itself_and_no_alias() -> None:
    (gpu,) = parse_devices(["GPU"], PLUGINS)
    assert (gpu.name, gpu.plugin, gpu.openvino_name) == ("GPU", "GPU.0", "GPU.0")
    assert not gpu.is_alias


def test_the_only_gpu_may_be_given_with_its_number() -> None:
    only = {"CPU": CPU, "GPU": replace(CPU, name="GPU")}
    (gpu,) = parse_devices(["GPU.0"], only)
    assert (gpu.name, gpu.plugin, gpu.openvino_name) == ("GPU.0", "GPU", "GPU")
    with pytest.raises(DeviceError, match=r"Unknown device GPU\.1"):
        parse_devices(["GPU.1"], only)


@pytest.mark.parametrize(
    ("text", "plugin", "number"),
    [
        ("B=GPU.1{ENABLE_CPU_PINNING=NO}", "GPU.1", "1"),
        ("B=GPU.0", "GPU.0", "0"),
        ("B=GPU", "GPU.0", "0"),
        ("B=CPU", "CPU", None),
    ],
)
def test_a_named_device_says_which_of_several_it_is(text: str, plugin: str, number: str | None) -> None:
    (named,) = parse_devices([text], PLUGINS)
    assert (named.plugin, named.openvino_name) == (plugin, f"{plugin.split('.')[0]}_B")
    assert named.properties.get("DEVICE_ID") == number


def test_the_calls_that_register_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.ov, "Core", RecordingCore)
    core = core_for(parse_devices(["B=GPU.1{ENABLE_CPU_PINNING=NO},GPU,GPU.1"], PLUGINS))
    assert core.calls == [
        ("register_plugin", "openvino_intel_gpu_plugin", "GPU_B"),
        (
            "set_property",
            "GPU_B",
            {"DEVICE_ID": "1", "ENABLE_CPU_PINNING": "NO", "INFERENCE_PRECISION_HINT": "bf16"},
        ),
        ("set_property", "GPU.0", {"INFERENCE_PRECISION_HINT": "bf16"}),
        ("set_property", "GPU.1", {"INFERENCE_PRECISION_HINT": "bf16"}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu", "'cpu' is not a valid device"),
        ("A=", "'A=' is not a valid device"),
        ("A=CPU{INFERENCE_NUM_THREADS=1", "is not a valid device"),
        ("1=CPU", "is not a valid device"),
        ("CPU{INFERENCE_NUM_THREADS=1}", "has properties but no name.*A=CPU"),
        ("A=CPU{INFERENCE_NUM_THREADS}", "is not KEY=VALUE"),
        ("A=CPU{INFERENCE_NUM_THREADS=}", "is not KEY=VALUE"),
        ("A=CPU{=1}", "is not KEY=VALUE"),
        ("CPU,CPU", "named twice: CPU"),
        ("A=CPU,B=CPU,A=GPU.0", "named twice: A"),
        ("a-b=CPU,a_b=CPU", "too alike: a-b, a_b"),
        ("GPU,CPU,GPU.0", "too alike: GPU, GPU.0"),
        ("A=GPU.0{DEVICE_ID=1}", "DEVICE_ID.*A=GPU.1"),
        ("", "empty"),
        (" , ", "empty"),
    ],
)
def test_what_is_no_list_of_devices_is_said(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_devices([text], PLUGINS)


def test_an_unknown_property_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"INFERENCE_NUM_THREAD'.*INFERENCE_NUM_THREADS"):
        parse_devices(["A=CPU{INFERENCE_NUM_THREAD=1}"], PLUGINS)


def test_a_missing_device_is_answered_with_those_there_are() -> None:
    with pytest.raises(DeviceError, match=r"Unknown device NPU.*CPU, GPU\.0, GPU\.1"):
        parse_devices(["A=CPU,NPU"], PLUGINS)


def test_a_toml_file_names_devices(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        '[devices.A]\nplugin = "CPU"\n[devices.A.properties]\nINFERENCE_NUM_THREADS = 1\nENABLE_CPU_PINNING = true\n'
        '[devices.g]\nplugin = "GPU.1"\n'
    )
    a, g, cpu = parse_devices([str(path), "CPU"], PLUGINS)
    assert (a.name, g.name, g.plugin, cpu.name) == ("A", "g", "GPU.1", "CPU")
    assert a.properties["INFERENCE_NUM_THREADS"] == "1"
    assert a.properties["ENABLE_CPU_PINNING"] == "YES"
    assert a.properties["INFERENCE_PRECISION_HINT"] == "bf16"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[devices.A", "is not valid TOML"),
        ("", r"no \[devices.NAME\] table"),
        ("devices = 3", r"no \[devices.NAME\] table"),
        ("[devices]\nA = 'CPU'", "Device 'A'.*needs `plugin`"),
        ("[devices.A]\nproperties = {}", "needs `plugin`"),
        ("[devices.A]\nplugin = 'CPU'\nproperties = 'x'", "may have `properties`"),
        ("[devices.A]\nplugin = 'CPU'\nthreads = 1", "needs `plugin`"),
    ],
)
def test_a_wrong_devices_file_is_said(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        parse_devices([str(path)], PLUGINS)


def test_a_missing_devices_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        parse_devices([str(tmp_path / "none.toml")], PLUGINS)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        parse_devices([str(tmp_path / "folder.toml")], PLUGINS)


def test_a_machine_with_a_cpu_alone_is_two_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_count", lambda: 7)
    a, b = default_devices({"CPU": CPU})
    assert (a.name, b.name, a.plugin, b.plugin) == ("A", "B", "CPU", "CPU")
    assert a.properties["INFERENCE_NUM_THREADS"] == b.properties["INFERENCE_NUM_THREADS"] == "3"
    assert a.properties["INFERENCE_PRECISION_HINT"] == b.properties["INFERENCE_PRECISION_HINT"] == CPU.default_precision


def test_other_machines_are_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_count", lambda: 1)
    assert [d.name for d in default_devices({"CPU": CPU})] == ["CPU"]
    monkeypatch.setattr(devices, "cpu_count", lambda: 8)
    assert [d.name for d in default_devices(PLUGINS)] == ["CPU", "GPU.0", "GPU.1"]
    with pytest.raises(DeviceError, match="no device"):
        default_devices({})


@pytest.mark.parametrize(
    ("said", "name"),
    [("<Type: 'float32'>", "f32"), ("<Type: 'bfloat16'>", "bf16"), ("<Type: 'float16'>", "f16"), ("f32", "f32")],
)
def test_precisions_have_short_names(said: str, name: str) -> None:
    assert precision_name(said) == name


def test_this_machine_has_a_cpu_whose_aliases_keep_their_properties() -> None:
    found = devices.discover_plugins()
    assert found["CPU"].precisions[0] == "f32"
    assert found["CPU"].memory_bytes > 0
    specs = parse_devices(["A=CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32},B=CPU"], found)
    core = core_for(specs)
    assert core.get_property("CPU_A", "INFERENCE_NUM_THREADS") == 1
    assert precision_name(core.get_property("CPU_A", "INFERENCE_PRECISION_HINT")) == "f32"
    assert core.get_property("CPU_B", "ENABLE_CPU_PINNING") is False


def test_a_device_that_cannot_tell_its_properties_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Core:
        available_devices: ClassVar[list[str]] = ["CPU", "GPU", "NPU"]

        def get_property(self, name: str, key: str) -> dict[str, str]:
            if name == "NPU":
                raise RuntimeError("Exception from plugin:\n no driver")
            return {}

    monkeypatch.setattr(devices.ov, "Core", Core)
    found = devices.discover_plugins()
    assert list(found) == ["CPU", "GPU"]
    assert found["CPU"].memory_bytes > 0
    assert found["GPU"].memory_bytes == 0  # it does not tell, and the host's is not its own
    assert caplog.messages == ["NPU is left out: it cannot tell its properties (Exception from plugin: no driver)"]


def test_an_alias_of_an_unknown_plugin_is_refused() -> None:
    spec = make_spec("A", "TPU", {}, {"TPU": replace(CPU, name="TPU")})
    with pytest.raises(DeviceError, match="no way to register one"):
        core_for([spec])


def test_equal_hardware_facts_have_equal_digests() -> None:
    facts = {"cpu": "x", "processors": 2}
    assert devices.hardware_fingerprint(facts) == devices.hardware_fingerprint(dict(reversed(facts.items())))
    assert devices.hardware_fingerprint(facts) != devices.hardware_fingerprint(facts | {"processors": 3})
    assert devices.hardware_facts()["devices"].keys() == devices.discover_plugins().keys()


def test_values_that_a_plug_in_does_not_take_are_told_before_anything_runs() -> None:
    plugins = discover_plugins()
    check_properties([make_spec("A", "CPU", {"INFERENCE_NUM_THREADS": "1"}, plugins)])
    with pytest.raises(UsageError) as raised:
        look_at_machine(["A=CPU{INFERENCE_NUM_THREADS=two}"])
    assert "A does not accept" in raised.value.cause
    assert raised.value.cause.endswith(
        ": Wrong value for property key INFERENCE_NUM_THREADS. Expected only non negative integer numbers."
    )
