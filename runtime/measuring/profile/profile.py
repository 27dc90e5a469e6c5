"""Measures what every operation costs on every device, and what the links between devices cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.deadline import Deadline
from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.errors import DeviceError, list_some
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings, ProfileSettings
from runtime.machines.devices import PRECISION
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.variant import Variant, input_kinds, outputs_by_kind, start_child, time_kernels
from runtime.measuring.outputs.outputs import Reference, nan_shares
from runtime.measuring.outputs.quality import accept_outputs
from runtime.measuring.process.affinity import HETERO_PROPERTIES, hetero_target
from runtime.measuring.process.child import Child, ChildError
from runtime.measuring.process.links import fit_link
from runtime.measuring.process.retry import ask_with_retry
from runtime.measuring.profile.left_out import (
    COMPILE,
    RUN,
    LeftOut,
    UnfitError,
    by_chance,
    left_out_notes,
    left_out_to_json,
    nobody_left,
)

LINKING_S = 5.0  # seconds without which a link is measured by few inferences
LEAST_LINKED = 10
COMPANY_S = 2.0  # that devices about run in, alone and beside the others; long beside the ticks that processes count
DRAWING = frozenset({"RandomUniform", "Multinomial"})
BYTES_PER_FLOP = 4.0  # weighs bytes against FLOPs when a kernel's time is shared out among the operations it fuses


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What profiling found; costs and topology are of the devices that are not left out.

    latency_s: whole-model median with counters on, per device. covered: share of that latency the counters explain.
    refused: operations that each device does not run. left_out: why devices are, by their names. nan: output -> share
    of its entries that are NaN in the reference already, of those that have some. empty: outputs without entries there.
    reference: what outputs were compared with.
    """

    costs: CostTable
    topology: Topology
    latency_s: Mapping[str, float]
    covered: Mapping[str, float]
    refused: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    nan: Mapping[str, float] = field(default_factory=dict)
    empty: Sequence[str] = ()
    reference: Reference | None = None


def profile_model(  # noqa: PLR0913  what else is known of a model has names
    model: Path,
    graph: Graph,
    devices: Sequence[DeviceSpec],
    settings: ProfileSettings,
    *,
    measuring: MeasureSettings,
    seed: int,
    progress: Callable[[str], None],
    reference: Reference | None = None,
    otherwise: Sequence[DeviceSpec] = (),
    timed: Mapping[str, Mapping[str, Any]] | None = None,
) -> Profile:
    """Return the measured costs of a model's operations on the devices and of the links between them.

    A device that cannot run the model, or whose outputs differ from the CPU's in f32, is left out.

    measuring: tolerances, and the size of dynamic dimensions. A device has a few inferences whatever the time.
    reference: what outputs are compared with, if that is known; else the model is run for it.
    otherwise: devices that take the place of the others where all of these run the model wrongly. timed: what a single
    device has shown already, by precision; see `try_precisions`.

    Raises:
        DeviceError: operations that no device runs; all are listed.
        MeasurementError: no device can run the model.
        OutputMismatchError: all devices run it wrongly, or its outputs are others at every inference.
        ChildError: the CPU cannot run the model in f32.
    """
    deadline = Deadline.after(settings.seconds or None)
    left_out: dict[str, LeftOut] = {}
    alone = len(devices) == 1  # then there is no other for what it refuses, which only an error tells
    refused = {devices[0].name: ()} if alone else _refused_by(model, devices, settings, left_out)
    _check_every_operation_has_a_home(refused, left_out)
    able = [d for d in devices if d.name in refused]
    of_child = replace(measuring, timeout_s=settings.timeout_s)
    ask = partial(_time_kernels, model, measuring=of_child, seed=seed)
    expected = cache(lambda: reference or ask_with_retry(lambda: reference_outputs(model, of_child, seed=seed)))
    kernels: dict[str, Mapping[str, Any]] = {
        d.name: timed[d.properties[PRECISION]] for d in able if timed and d.properties[PRECISION] in timed
    }
    # Those that run everything come first: once they have, it is clear whose fault it is where another fails with them.
    for device in sorted((d for d in able if d.name not in kernels), key=lambda d: bool(refused[d.name])):
        twin = next((d for d in able if d.name in kernels and _are_alike(d, device, refused)), None)
        if twin is not None:
            kernels[device.name] = kernels[twin.name]
            continue
        wrong_twin = next((d for d in able if d.name in left_out and _are_alike(d, device, refused)), None)
        if wrong_twin is not None and left_out[wrong_twin.name].kind == "wrong_output":
            left_out[device.name] = left_out[wrong_twin.name]
            continue
        progress(f"profiling {device.name}")
        others = [d for d in able if d.name not in left_out]
        share = deadline.share(1 / (len(others) - len(kernels) + (not alone)))  # the links have one, too
        shortened = replace(settings, seconds=share.left_s)
        try:
            answered = ask_with_retry(partial(ask, device, others, refused[device.name], shortened))
        except UnfitError as error:
            left_out[device.name] = error.left_out
            if alone:
                _check_every_operation_has_a_home(_refused_by(model, devices, settings, left_out), {})
            continue
        wrong = accept_outputs(answered["outputs"], expected(), answered["precisions"], measuring)
        if isinstance(wrong, MeasurementFailed):
            left_out[device.name] = LeftOut(wrong.kind, wrong.message, RUN)
        else:
            kernels[device.name] = answered
    if not kernels:
        if all(reason.kind == "wrong_output" for reason in left_out.values()):
            _check_draws_nothing(graph)
            _check_repeats(expected(), ask_with_retry(lambda: reference_outputs(model, of_child, seed=seed)), measuring)
            if otherwise:
                again = replace(settings, seconds=deadline.left_s if settings.seconds else 0.0)
                alike: Mapping[str, Any] = {"measuring": measuring, "seed": seed, "progress": progress}
                instead = profile_model(model, graph, otherwise, again, reference=expected(), **alike)
                return replace(instead, left_out=left_out | dict(instead.left_out))
        raise nobody_left(left_out)
    if deadline.left_s < LINKING_S:
        settings = replace(settings, link_inferences=min(LEAST_LINKED, settings.link_inferences))
    launch_s, topology, unlinked = _measure_links([d for d in able if d.name in kernels], settings, progress)
    left_out |= unlinked
    refused = {name: refused[name] for name in topology.names}
    _check_every_operation_has_a_home(refused, left_out)
    summed_up = _summed_up(graph, topology, launch_s, kernels, refused, left_out)
    outputs = next(iter(expected().outputs.values()), {})
    empty = [name for name, array in outputs.items() if not array.size]
    return replace(summed_up, nan=nan_shares(outputs), empty=empty, reference=expected())


def _check_draws_nothing(graph: Graph) -> None:
    """Check that no operation draws random numbers: with a seed, too, what it draws depends on the number of threads.

    Raises:
        OutputMismatchError: some do.
    """
    types = [graph.type_names[i] for i in graph.op_type]
    drawing = [name for name, kind in zip(graph.names, types, strict=True) if kind in DRAWING]
    if drawing:
        raise by_chance(f"{list_some(drawing)} {'draws' if len(drawing) == 1 else 'draw'} random numbers")


def _check_repeats(first: Reference, second: Reference, measuring: MeasureSettings) -> None:
    """Check that a model gives the same outputs twice.

    Raises:
        OutputMismatchError: it does not, so that there is nothing to compare a device's outputs with.
    """
    differs = accept_outputs(second.outputs, first, {"CPU": "f32"}, measuring)
    if isinstance(differs, MeasurementFailed):
        raise by_chance(f"two inferences on the CPU in f32 differ ({differs.message})")


def profile_slowdown(
    model: Path,
    profiled: Profile,
    settings: ProfileSettings,
    *,
    measuring: MeasureSettings,
    seed: int,
    progress: Callable[[str], None],
) -> Mapping[str, float] | None:
    """Return what a model takes on each device while the others run it, too, over what it takes alone, by name.

    Only devices that run the whole model are asked; a device that has no other beside it is not in the answer. None:
    it cannot be told, because other processes kept the processors busy.

    Raises:
        ChildError: they cannot run it at the same time.
    """
    devices = [d for d in profiled.topology.devices if not profiled.refused[d.name]]
    if len(devices) < 2:
        return {}
    progress(f"running the model on {', '.join(d.name for d in devices)} at the same time")
    factors = ask_with_retry(partial(_measure_in_parallel, model, devices, settings, measuring, seed=seed))
    if factors["slowdown"] is None:
        return None
    return dict(zip((d.name for d in devices), factors["slowdown"], strict=True))


def _measure_in_parallel(
    model: Path, devices: Sequence[DeviceSpec], settings: ProfileSettings, measuring: MeasureSettings, *, seed: int
) -> Mapping[str, Any]:
    with Child(timeout_s=settings.timeout_s) as child:
        answer: Mapping[str, Any] = child.ask(
            "company",
            model=str(model),
            devices=[d.to_json() for d in devices],
            dynamic_size=measuring.dynamic_size,
            seed=seed,
            seconds=COMPANY_S,
        )
        return answer


def _are_alike(one: DeviceSpec, other: DeviceSpec, refused: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether two devices are instances of one, with the same properties."""
    return one.fingerprint == other.fingerprint != "" and not refused[one.name] and not refused[other.name]


def _summed_up(
    graph: Graph,
    topology: Topology,
    launch_s: Float64,
    kernels: Mapping[str, Mapping[str, Any]],
    refused: Mapping[str, tuple[str, ...]],
    left_out: Mapping[str, LeftOut],
) -> Profile:
    """Return the profile of the devices of a topology, from what was measured on each."""
    op_s = np.zeros((graph.n, topology.p))
    covered: dict[str, float] = {}
    for j, name in enumerate(topology.names):
        measured = kernels[name]
        # The counters are means over all inferences, cold and disturbed ones too: brought down to the median one.
        op_s[:, j] = share_out(graph, measured["kernels"]) * (measured["latency_s"] / measured["mean_s"])
        covered[name] = float(op_s[:, j].sum() / measured["latency_s"])
        gone = set(refused[name])
        op_s[[operation in gone for operation in graph.names], j] = np.inf
    origin: tuple[Origin, ...] = tuple("measured" for _ in topology.names)
    costs = CostTable(graph.names, topology.names, op_s, launch_s, origin)
    latency_s = {name: float(kernels[name]["latency_s"]) for name in topology.names}
    return Profile(costs, topology, latency_s, covered, refused, left_out)


def _refused_by(
    model: Path, devices: Sequence[DeviceSpec], settings: ProfileSettings, left_out: dict[str, LeftOut]
) -> dict[str, tuple[str, ...]]:
    """Return the operations that each device refuses; one that cannot even say is added to those left out.

    Raises:
        PlacewrightError: there is none that can.
    """
    refused: dict[str, tuple[str, ...]] = {}
    for device in devices:
        twin = next((d for d in devices if d.name in refused and d.fingerprint == device.fingerprint != ""), None)
        try:
            refused[device.name] = (
                ask_with_retry(partial(_refused_by_device, model, device, settings))
                if twin is None
                else refused[twin.name]
            )
        except ChildError as error:
            left_out[device.name] = LeftOut(error.failed.kind, error.failed.message, COMPILE)
    if not refused:
        raise nobody_left(left_out)
    return refused


def _refused_by_device(model: Path, device: DeviceSpec, settings: ProfileSettings) -> tuple[str, ...]:
    with Child(timeout_s=settings.timeout_s) as child:
        return tuple(child.ask("support", model=str(model), device=device.to_json())["refused"])


def _check_every_operation_has_a_home(refused: Mapping[str, tuple[str, ...]], left_out: Mapping[str, LeftOut]) -> None:
    everywhere = set.intersection(*(set(names) for names in refused.values()))
    if everywhere:
        listed = ", ".join(sorted(everywhere)[:20]) + (" ..." if len(everywhere) > 20 else "")
        gone = "".join(f" {note}" for note in left_out_notes(left_out_to_json(left_out)))
        raise DeviceError(
            f"{len(everywhere)} operation(s) run on none of {', '.join(refused)}: {listed}.{gone}",
            "Add a device that runs them, for example CPU.",
        )


def _time_kernels(
    model: Path,
    device: DeviceSpec,
    devices: Sequence[DeviceSpec],
    refused: tuple[str, ...],
    settings: ProfileSettings,
    measuring: MeasureSettings,
    *,
    seed: int,
) -> dict[str, Any]:
    """Return the kernel times of the model on one device, its outputs and the precisions it really computes in.

    What the device refuses runs on the others meanwhile.

    Raises:
        UnfitError: it cannot compile or run the model.
    """
    if refused:
        order = (device, *(d for d in devices if d.name != device.name))
        variant = Variant(
            device.name, "profile", hetero_target(order), order, {**HETERO_PROPERTIES, "PERF_COUNT": "YES"}
        )
    else:
        variant = Variant(device.name, "profile", device.openvino_name, (device,), {"PERF_COUNT": "YES"})
    try:
        child, loaded = start_child(variant, model, measuring, seed=seed)
    except ChildError as error:
        raise UnfitError(error.failed, COMPILE) from error
    with child:
        try:
            times = time_kernels(child, settings)
            return {**times, "outputs": outputs_by_kind(child, input_kinds(model)), "precisions": loaded["precisions"]}
        except ChildError as error:
            raise UnfitError(error.failed, RUN) from error


def share_out(graph: Graph, kernels: Sequence[tuple[Sequence[str], float]]) -> Float64:
    """Return float64 [n], seconds per operation: each kernel's time shared by FLOPs and bytes among its operations.

    An operation that several kernels run (a decomposed one) gets its share of each.
    """
    index = {name: i for i, name in enumerate(graph.names)}
    weight = graph.flops + BYTES_PER_FLOP * graph.out_bytes + 1.0
    op_s = np.zeros(graph.n)
    for names, seconds in kernels:
        members = np.array([index[name] for name in names])
        op_s[members] += seconds * weight[members] / weight[members].sum()
    return op_s


def kernel_labels(graph: Graph, groups: Sequence[Sequence[str]]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return int32 [n], the number of the kernel that runs each operation, -1 for none; of several the first counts."""
    index = {name: i for i, name in enumerate(graph.names)}
    label = np.full(graph.n, -1, dtype=np.int32)
    for number, names in enumerate(groups):
        for name in names:
            if label[index[name]] < 0:
                label[index[name]] = number
    return label


def _measure_links(
    devices: Sequence[DeviceSpec], settings: ProfileSettings, progress: Callable[[str], None]
) -> tuple[Float64, Topology, dict[str, LeftOut]]:
    """Return what a sub-graph costs on each device, float64 [p], the topology with measured links, and who is left out.

    The constant part of a boundary is booked as the launch of one more sub-graph, the part that grows with the
    tensor as the link's bandwidth. A device that can pass no tensor to another is left out, a CPU last.
    """
    measured: dict[frozenset[str], tuple[float, float]] = {}
    left_out: dict[str, LeftOut] = {}
    kept: list[DeviceSpec] = []
    for device in sorted(devices, key=lambda d: d.kind != "cpu"):
        try:
            for other in kept:
                progress(f"measuring the link {other.name} - {device.name}")
                measured[frozenset((other.name, device.name))] = ask_with_retry(
                    partial(_measure_link, other, device, settings)
                )
        except UnfitError as error:
            left_out[device.name] = error.left_out
        else:
            kept.append(device)
    kept.sort(key=devices.index)
    p = len(kept)
    constant = np.zeros((p, p))
    bytes_per_s = np.full((p, p), np.inf)
    for i, j in itertools.permutations(range(p), 2):
        constant[i, j], bytes_per_s[i, j] = measured[frozenset((kept[i].name, kept[j].name))]
    launch_s = constant.sum(axis=1) / max(p - 1, 1)
    return launch_s, Topology(tuple(kept), bytes_per_s, np.zeros((p, p))), left_out


def _measure_link(a: DeviceSpec, b: DeviceSpec, settings: ProfileSettings) -> tuple[float, float]:
    """Return (seconds per boundary, bytes per second) between two devices.

    Raises:
        UnfitError: no tensor can be passed between them.
    """
    with Child(timeout_s=settings.timeout_s) as child:
        try:
            link = child.ask("link", a=a.to_json(), b=b.to_json(), count=settings.link_inferences)
        except ChildError as error:
            raise UnfitError(error.failed, f"exchange tensors with {a.name}") from error
    return fit_link(link["boundary_s"], link["bytes"])
