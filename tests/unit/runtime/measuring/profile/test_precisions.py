"""Low precisions: tried on the model before anything is placed in them, left out where it does not tolerate them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.errors import UsageError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.settings.config import Settings
from pipeline.shared.model_inputs import TIMED
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks
from runtime.machines import devices
from runtime.machines.devices import default_devices, make_spec, with_precision
from runtime.measuring.contest.baselines import list_baselines
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.child import ChildError
from runtime.measuring.profile import precisions
from runtime.measuring.profile.precisions import (
    check_fits,
    low_precisions,
    precision_notes,
    raise_precisions,
    spare_precisions,
    trials_to_json,
    try_precisions,
    without_untolerated,
)
from tests.unit.runtime.machines.test_devices import CPU, PLUGINS

OUT = [
    {
        "plugin": "CPU",
        "precision": "bf16",
        "why_not": "outputs differ by 11.5 % from the reference",
        "setting": "measure.low_tolerance",
    }
]
BORNE = [{"plugin": "CPU", "precision": "bf16", "why_not": ""}]


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> tuple[devices.DeviceSpec, ...]:
    """Return the halves of a CPU, the first in f32 as if somebody had asked for that."""
    monkeypatch.setattr(devices, "cpu_count", lambda: 4)
    a, b = default_devices({"CPU": CPU})
    return with_precision(a, "f32", CPU), b


def test_what_devices_and_their_baselines_compute_in_is_in_question(halves: Any) -> None:
    assert low_precisions(halves, {"CPU": CPU}) == [("CPU", "bf16")]
    gpu = make_spec("GPU.0", "GPU.0", {}, PLUGINS)
    assert low_precisions([gpu], PLUGINS) == [("GPU.0", "bf16")]
    assert low_precisions(halves[:1], {"CPU": replace(CPU, precisions=("f32",))}) == []


def test_a_default_device_computes_in_f32_where_the_model_does_not_bear_its_precision(halves: Any) -> None:
    a, b = raise_precisions(halves, ["B"], OUT, {"CPU": CPU})
    assert a == halves[0]
    assert b.properties == {**halves[1].properties, "INFERENCE_PRECISION_HINT": "f32"}
    assert b.fingerprint not in (halves[1].fingerprint, "")
    assert raise_precisions(halves, ["B"], BORNE, {"CPU": CPU}) == halves


def test_a_device_that_was_asked_for_stays_as_it_is(halves: Any) -> None:
    assert raise_precisions(halves, [], OUT, {"CPU": CPU}) == halves


def test_no_baseline_computes_in_a_precision_that_is_left_out(halves: Any) -> None:
    plugins = {"CPU": replace(CPU, default_precision="bf16")}
    found = list_baselines(raise_precisions(halves, ["B"], OUT, plugins), without_untolerated(plugins, OUT), "latency")
    assert {d.properties["INFERENCE_PRECISION_HINT"] for v in found for d in v.devices} == {"f32"}
    everything = list_baselines(halves, without_untolerated(plugins, BORNE), "latency")
    assert everything[0].devices[0].properties == {}  # the plug-in's own precision


def test_the_notes_say_what_is_left_out_and_what_computes_in_f32_instead(halves: Any) -> None:
    asked = [d.to_json() for d in halves]
    used = [d.to_json() for d in raise_precisions(halves, ["B"], OUT, {"CPU": CPU})]
    assert precision_notes(OUT, asked, used) == [
        "bf16 is left out on CPU: outputs differ by 11.5 % from the reference. measure.low_tolerance may allow more.",
        "B computes in f32 instead.",
    ]
    assert precision_notes(OUT, asked, asked) == precision_notes(OUT, asked, used)[:1]
    assert precision_notes(BORNE, asked, asked) == []


class Told:
    """Stands for a measuring child that has compiled a variant."""

    def __init__(self, output: float) -> None:
        self.output = output

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""


def test_a_precision_is_borne_up_to_the_tolerance_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {"bf16": 1.05, "f16": 1.25}

    def start(variant: Any, *_: Any, **__: Any) -> tuple[Told, dict[str, Any]]:
        precision = variant.devices[0].properties["INFERENCE_PRECISION_HINT"]
        if precision not in outputs:
            raise ChildError(MeasurementFailed("refused", "no such precision"))
        return Told(outputs[precision]), {}

    monkeypatch.setattr(precisions, "reference_outputs", lambda *_, **__: Reference({TIMED: {"output_0": np.ones(1)}}))
    monkeypatch.setattr(precisions, "start_child", start)
    monkeypatch.setattr(precisions, "outputs_by_kind", lambda child, _: {TIMED: {"output_0": np.array([child.output])}})
    pairs = [("CPU", "bf16"), ("CPU", "f16"), ("CPU", "u4")]
    bf16, f16, u4 = trials_to_json(
        try_precisions(Path("m.xml"), pairs, MeasureSettings(low_tolerance=0.06), seed=0).tried
    )
    assert (bf16["why_not"], round(bf16["difference"], 6)) == ("", 0.05)
    assert f16["why_not"] == "outputs differ by 25 % from the reference (6 % allowed; output_0)"
    assert (bf16["accuracy"]["kinds"], u4["accuracy"], u4["setting"]) == ([TIMED], None, "")
    assert (u4["why_not"], u4["difference"]) == ("it does not run (no such precision)", None)


def test_no_setting_allows_what_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "reference_outputs", lambda *_, **__: Reference({TIMED: {"output_0": np.ones(1)}}))
    monkeypatch.setattr(precisions, "start_child", lambda *_, **__: (Told(math.nan), {}))
    monkeypatch.setattr(precisions, "outputs_by_kind", lambda child, _: {TIMED: {"output_0": np.array([child.output])}})
    tried = trials_to_json(try_precisions(Path("m.xml"), [("CPU", "bf16")], MeasureSettings(), seed=0).tried)
    [note] = precision_notes(tried, [], [])
    assert note.startswith("bf16 is left out on CPU: outputs differ by infinitely much")
    assert "may allow more" not in note


def test_no_low_precision_is_tried_where_computed_numbers_choose_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference({"noise": {"output_0": np.ones((3, 4))}}, chosen=["output_0"])
    monkeypatch.setattr(precisions, "reference_outputs", lambda *_, **__: reference)
    monkeypatch.setattr(precisions, "start_child", lambda *_, **__: pytest.fail("a precision was tried"))
    tried = try_precisions(Path("m.xml"), [("CPU", "bf16"), ("CPU", "f16")], MeasureSettings(), seed=0).tried
    [note] = precision_notes(trials_to_json(tried), [], [])
    assert note.startswith("bf16 and f16 are left out on CPU: computed numbers choose the rows of output_0")


def test_what_else_a_cpu_can_is_tried_where_it_does_not_tolerate_the_default(halves: Any) -> None:
    cpu = {"CPU": replace(CPU, precisions=("f32", "bf16", "f16"))}
    low = low_precisions(halves, cpu)
    assert (low, spare_precisions(low, halves, cpu)) == ([("CPU", "bf16")], [("CPU", "f16")])
    plain = {"CPU": replace(cpu["CPU"], default_precision="f32")}
    assert low_precisions(halves[:1], plain) == [("CPU", "bf16"), ("CPU", "f16")]


@pytest.mark.parametrize(("output", "tried"), [(1.0, ["bf16"]), (2.0, ["bf16", "f16"])])
def test_a_spare_precision_is_tried_only_where_no_other_is_accurate(
    output: float, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precisions, "reference_outputs", lambda *_, **__: Reference({TIMED: {"output_0": np.ones(1)}}))
    monkeypatch.setattr(precisions, "start_child", lambda *_, **__: (Told(output), {}))
    monkeypatch.setattr(precisions, "outputs_by_kind", lambda child, _: {TIMED: {"output_0": np.array([child.output])}})
    low, spare = [("CPU", "bf16")], [("CPU", "f16")]
    found = trials_to_json(try_precisions(Path("m.xml"), low, MeasureSettings(), seed=0, spare=spare).tried)
    assert [t["precision"] for t in found] == tried
    plugins = {"CPU": replace(CPU, precisions=("f32", "bf16", "f16")), "GPU": replace(CPU, precisions=("f32", "f16"))}
    left = without_untolerated(plugins, found)
    assert left["CPU"].precisions == (("f32", "bf16") if tried == ["bf16"] else ("f32",))
    assert left["GPU"].precisions == ("f32", "f16")  # nobody tried any of its own


def test_kernels_of_a_single_device_are_timed_meanwhile_and_the_reference_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = {"f32": 1.0, "bf16": 1.0, "f16": 2.0}
    loaded: Any = {"int8_kernels": ["conv"], "compile_s": 2.0}
    known = Reference({"noise": {"output_0": np.ones(1)}, "zeros": {"output_0": np.ones(1)}})

    def start(variant: Any, *_: Any, **__: Any) -> tuple[Told, dict[str, Any]]:
        assert variant.properties == {"PERF_COUNT": "YES"}
        return Told(outputs[variant.devices[0].properties["INFERENCE_PRECISION_HINT"]]), loaded

    def asked(child: Told, kinds: Any) -> dict[str, Any]:
        return {kind: {"output_0": np.array([child.output])} for kind in kinds}

    monkeypatch.setattr(precisions, "known_reference", lambda *_: known)
    monkeypatch.setattr(precisions, "reference_outputs", None)  # it is not asked
    monkeypatch.setattr(precisions, "start_child", start)
    monkeypatch.setattr(precisions, "outputs_by_kind", asked)
    timed: list[float] = []

    def time_kernels(child: Told, _: Any) -> dict[str, float]:
        timed.append(child.output)
        return {"of": child.output}

    monkeypatch.setattr(precisions, "time_kernels", time_kernels)
    pairs, how = [("CPU", "bf16"), ("CPU", "f16")], {"seed": 0, "profiling": ProfileSettings()}
    trials = try_precisions(Path("m.xml"), pairs, MeasureSettings(), **how)
    assert trials.kernels == {"bf16": {"of": 1.0}}
    assert timed == [1.0]  # what is wrong is not timed
    assert trials.ran == {"int8_kernels": ["conv"], "seconds": trials.ran["seconds"], "load_s": 2.0}
    assert [t.accuracy["kinds"] for t in trials.tried if t.accuracy] == [["noise", "zeros"]] * 2
    trials = try_precisions(Path("m.xml"), pairs[1:], MeasureSettings(), spare=pairs[:1], **how)
    assert [t.precision for t in trials.tried] == ["f16", "bf16"]
    assert trials.kernels == {"bf16": {"of": 1.0}, "f32": {"of": 1.0}}  # in which the device computes instead
    with pytest.raises(UsageError, match="loading the model 2 s, and 5 s of the budget are left"):
        try_precisions(Path("m.xml"), pairs, MeasureSettings(), **how, deadline=Deadline.after(5.0, lambda: 0.0))


def test_a_spare_precision_is_not_tried_within_a_short_budget(halves: Any) -> None:
    (device,) = (make_spec("CPU", "CPU", {}, {"CPU": CPU}).to_json(),)
    machine = HostMachine((device,), {}, "here", (("CPU", "bf16"),), spare=(("CPU", "f16"),))
    assert stages(machine, budget="30s")["precisions"].params["spare"] == []
    long = stages(machine, budget="120s")["precisions"].params
    assert (long["spare"], long["profiling"]["inferences"]) == ([["CPU", "f16"]], 60)
    two = HostMachine((device, device), {}, "here", (("CPU", "bf16"),))
    assert stages(two)["precisions"].params.get("profiling") is None


def stages(machine: HostMachine, **settings: Any) -> dict[str, Any]:
    chosen = Settings().updated({key.replace("__", "."): v for key, v in settings.items()}, "the test")
    return {task.stage: task for task in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), chosen, machine)}


def test_precisions_are_tried_before_profiling_only_where_some_are_in_question(halves: Any) -> None:
    listed = tuple(d.to_json() for d in halves)
    default = stages(HostMachine(listed, {}, "here", (("CPU", "bf16"),), ("B",)))
    assert set(default["profile"].inputs) == {"read", "precisions"}
    assert "precisions" in default["measure"].inputs
    asked = stages(HostMachine(listed, {}, "here", (("CPU", "bf16"),)))
    assert set(asked["profile"].inputs) == {"read"}
    assert "precisions" in asked["measure"].inputs
    assert "precisions" not in stages(HostMachine(listed, {}, "here"))
    assert "precisions" not in stages(HostMachine(listed, {}, "here", (("CPU", "bf16"),)), measure__use="sequential")


def test_a_budget_too_small_for_so_slow_a_model_is_told_with_what_would_do() -> None:
    def still() -> float:
        return 0.0

    check_fits(1.0, Deadline.after(30.0, still))
    check_fits(100.0, NEVER)
    with pytest.raises(UsageError, match="An inference takes about 1 s, and 10 s of the budget are left") as raised:
        check_fits(1.0, Deadline.after(10.0, still))
    assert raised.value.remedy == "Add at least 110 s to --budget."
    check_fits(1.0, Deadline.after(60.0, still), load_s=5.0)
    with pytest.raises(UsageError, match=r"An inference takes about 0.1 s, loading the model 5 s, and 30 s") as raised:
        check_fits(0.1, Deadline.after(30.0, still), load_s=5.0)
    assert raised.value.remedy == "Add at least 82 s to --budget."
