"""Which implementations a run uses, with all their parameters: what its settings say, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from pipeline.core.errors import MissingPackageError, UsageError
from pipeline.core.settings import CoarsenSettings, EmbedSettings, GroupSettings, PlaceSettings
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import placers_called, read_declaration
from pipeline.shared.partition import tell_once
from pipeline.stages.host import HostMachine

Choice = tuple[str, dict[str, Any]]  # the name of an implementation, and all its parameters

# Settings of the measure stage that hold wherever outputs are compared, and wherever a placement is measured.
COMPARED_ALIKE = ("accuracy", "tolerance", "low_tolerance", "metric", "metric_drop", "dynamic_size", "decode_steps")
MEASURED_ALIKE = ("timeout_s", *COMPARED_ALIKE, "memory_bytes")
HALVES = "the devices are halves of one CPU that nobody asked for"
NO_SPLIT = "no split is measured"
LEARNING_PACKAGES = ("torch", "torch_geometric")
LEARNING_BUDGET_S = 90.0  # below it a placer that learns gets no further than being loaded


def choice_of(settings: Settings, stage: str, name: str) -> Choice:
    """Return an implementation of a stage, defaults filled in."""
    return name, dict(read_declaration(stage, name, settings.params_of(stage, name)).params)


def choices_of(settings: Settings, stage: str, names: Sequence[str]) -> tuple[Choice, ...]:
    """Return implementations of a stage.

    Raises:
        UsageError: there are none.
    """
    if not names:
        raise UsageError(
            f"{stage}.use is empty.", f"Name at least one of {', '.join(registry.implementation_table(stage))}."
        )
    return tuple(choice_of(settings, stage, name) for name in names)


def measurer_of(settings: Settings, name: str) -> Choice:
    """Return an evaluator; what is set of the last measurement holds for it as well."""
    known = read_declaration("measure", name).params
    shared = {field: getattr(settings.measure, field) for field in MEASURED_ALIKE if field in known}
    return name, dict(read_declaration("measure", name, {**shared, **settings.params_of("measure", name)}).params)


def placers_of(settings: Settings) -> tuple[str, ...]:
    """Return the placers of a run: those chosen; of the defaults, learners only where budget and packages let them."""
    chosen = settings.place.use
    if chosen != PlaceSettings().use:
        return chosen
    learned = settings.budget_s >= LEARNING_BUDGET_S
    return tuple(name for name in chosen if _is_possible_default(name, learned=learned))


def _is_possible_default(name: str, *, learned: bool) -> bool:
    """Return whether a placer takes part unasked; learned: whether those that learn do."""
    missing = next((package for package in LEARNING_PACKAGES if find_spec(package) is None), None)
    if missing is None:
        return learned or not read_declaration("place", name).learns
    try:
        learns = read_declaration("place", name).learns
    except MissingPackageError:
        learns = True
    if learns and learned:
        tell_once(f"The placer {name} is left out: it needs the package {missing}, which is not installed.")
    return not learns


def brought_by_placers(settings: Settings) -> list[tuple[str, str]]:
    """Return (stage, implementation) of all that placers bring along instead of what the stages have made, or call."""
    called: list[tuple[str, str]] = []
    for name in placers_of(settings):
        values = settings.params_of("place", name)
        called += [(stage, used) for stage, used in read_declaration("place", name, values).recipe]
        called += [("place", placer) for placer in placers_called(name, values)]
    return called


def is_learned(settings: Settings) -> bool:
    """Return whether a placer learns, or the stages that make what it learns from were chosen for themselves."""
    return is_learned_by_choice(settings) or any(
        read_declaration("place", name).learns for name in placers_of(settings)
    )


def is_learned_by_choice(settings: Settings) -> bool:
    """Return whether the stages that make what a placer learns from were chosen for themselves."""
    chosen = settings.embed != EmbedSettings() or settings.group != GroupSettings()
    return chosen or any(settings.params.get(stage) for stage in ("embed", "group"))


def settings_first(settings: Settings, machine: HostMachine | None) -> str:
    """Return why settings are tried before any split, "" if they are not: `HALVES` or `NO_SPLIT`."""
    measure = settings.measure
    if not (measure.use == "hetero" and measure.runtime == "hetero" and measure.settings):
        return ""
    if measure.runtimes == ("onnxruntime",):
        return NO_SPLIT
    return HALVES if machine is not None and machine.halves else ""


def placing_settings(settings: Settings, machine: HostMachine | None) -> Settings:
    """Return the settings of a run on a machine: on halves of one CPU nothing is searched or fused for it.

    HETERO runs the two one after another, so that no split of equal halves can pay: what a search would take goes to
    the comparison. Whoever has chosen placers, or how placements are valued, gets a search.
    """
    place, usual = settings.place, PlaceSettings()
    if not settings_first(settings, machine):
        return settings
    if (place.evaluator, place.reward) == (usual.evaluator, usual.reward):
        place = replace(place, reward="simulated")
    if place != replace(usual, reward="simulated") or settings.params.get("place") or is_learned_by_choice(settings):
        return replace(settings, place=place)
    fused = settings.coarsen.use == CoarsenSettings().use
    coarsen = replace(settings.coarsen, use=()) if fused else settings.coarsen
    return replace(settings, place=replace(place, use=("single",)), coarsen=coarsen)


def placing_machine(settings: Settings, machine: HostMachine | None) -> HostMachine | None:
    """Return the machine of a run with such settings: the CPU whole where nothing is placed on halves of it.

    settings: as `placing_settings` returns them.
    """
    if machine is None or not machine.whole or settings_first(settings, machine) != HALVES:
        return machine
    return replace(machine, devices=machine.whole, whole=()) if settings.place.use == ("single",) else machine


def search_settings(settings: Settings) -> Settings:
    """Return the settings with what the placers ask, where the user left that open.

    The usual simulator, and the calibration to measurements, know no two devices that work at the same time: for
    segments that do, the default is the simulator of a dataflow machine alone, and where throughput counts, that of a
    pipeline in its steady state. Near an earlier placement it is the simulator alone as well.
    """
    place, usual = settings.place, PlaceSettings()
    if settings.measure.runtime != "hetero" and (place.evaluator, place.reward) == (usual.evaluator, usual.reward):
        evaluator = "pipelined" if settings.measure.objective == "throughput" else "listsched"
        place = replace(place, evaluator=evaluator, reward="simulated")
    if place.near and place.reward == usual.reward:  # what is drawn for calibration is near nothing
        place = replace(place, reward="simulated")
    return replace(settings, place=place)


def evaluators_of(settings: Settings) -> tuple[str, ...]:
    """Return what the placers ask, and behind it, where they are calibrated to it round by round, what measures."""
    place, devices = settings.place, settings.measure.use
    if place.reward == "measured" and devices == "hetero" and settings.measure.runtime != "hetero":
        devices = "dataflow"
    if place.reward == "simulated" or read_declaration("measure", place.evaluator).real:
        return (place.evaluator,)
    return (devices,) if place.reward == "measured" else (place.evaluator, devices)
