"""The stage `profile`: seconds per operation and device, and the links between devices; measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.shared import payload
from pipeline.stages.choices import COMPARED_ALIKE
from pipeline.stages.inputs import (
    ALONE_SHARE,
    check_time_left,
    read_graph,
    read_model,
    read_tried_precisions,
    within_share,
)
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext

PROFILE_SHARE = 0.15  # of what is left of the budget


@dataclass(frozen=True, slots=True)
class ProfileParams:
    """How which devices are profiled.

    open_names: devices whose precision nobody asked for. measuring: of the settings of the measure stage, those by
    which outputs are compared. company: whether devices are also profiled while others work. whole: devices that take
    the place of the others where all of these run the model wrongly.
    """

    settings: ProfileSettings
    devices: tuple[dict[str, Any], ...]
    open_names: tuple[str, ...]
    measuring: dict[str, Any]
    company: bool
    whole: tuple[dict[str, Any], ...] = ()


def plan_profile(run: RunPlan) -> PlannedStage:
    """Return what decides the profile."""
    machine, measure = run.known_machine, run.settings.measure
    params = ProfileParams(
        run.settings.profile,
        tuple(map(dict, machine.devices)),
        machine.open_names,
        {name: getattr(measure, name) for name in COMPARED_ALIKE},
        measure.runtime != "hetero",
        tuple(map(dict, machine.whole)),
    )
    inputs = ("read", "precisions") if machine.open_names else ("read",)
    return PlannedStage(params=params, inputs=inputs, measured=True)


def profile(work: StepContext) -> None:
    """Write profile.npz and profile.json: what operations cost on the devices, and the links."""
    from runtime.measuring.contest.variant import known_reference
    from runtime.measuring.profile.left_out import left_out_to_json
    from runtime.measuring.profile.profile import profile_model as measure_profile
    from runtime.measuring.profile.profile import profile_slowdown

    check_time_left(work)
    params = params_of(ProfileParams, work)
    settings = within_share(params.settings, work, ALONE_SHARE if len(params.devices) == 1 else PROFILE_SHARE)
    graph, model = read_graph(work), read_model(work)
    alike: Mapping[str, Any] = {
        "measuring": MeasureSettings(**params.measuring),
        "seed": work.task.seed,
        "progress": work.progress,
    }
    tried = "precisions" in work.inputs
    ran = payload.read_json(work.read("precisions", "ran.json")) if tried else None
    timed = payload.read_json(work.read("precisions", "kernels.json")) if tried else {}
    reference = known_reference(model, ran)
    devices, whole = (raised_devices(work, params, each) for each in (params.devices, params.whole))
    if not devices:
        raise DeviceError("The run has no devices.", "Give --devices.")
    profiled = measure_profile(
        model, graph, devices, settings, reference=reference, otherwise=whole, timed=timed, **alike
    )
    slower = profile_slowdown(model, profiled, settings, **alike) if params.company else {}
    payload.save_profile(work.out / "profile.npz", profiled.costs, profiled.topology)
    write_json(
        work.out / "profile.json",
        {
            "latency_s": dict(profiled.latency_s),
            "covered": dict(profiled.covered),
            "refused": {k: list(v) for k, v in profiled.refused.items()},
            "left_out": left_out_to_json(profiled.left_out),
            "slowdown": None if slower is None else dict(slower),
            "nan": dict(profiled.nan),
            "empty": list(profiled.empty),
            "ran": None if profiled.reference is None else profiled.reference.ran,
        },
    )
    work.disturbed.extend([f"{name}: {reason.words}" for name, reason in profiled.left_out.items() if reason.transient])


def raised_devices(
    work: StepContext, params: ProfileParams, documents: Sequence[Mapping[str, Any]]
) -> tuple[DeviceSpec, ...]:
    """Return the devices of documents; what nobody asked for is raised to f32 where the model needs it."""
    devices = tuple(DeviceSpec(**d) for d in documents)
    if not devices or "precisions" not in work.inputs:
        return devices
    from runtime.machines.devices import discover_plugins
    from runtime.measuring.profile.precisions import raise_precisions

    return raise_precisions(devices, params.open_names, read_tried_precisions(work), discover_plugins())


PROFILE = RunStage(name="profile", version=9, plan=plan_profile, execute=profile, seeded=False)
