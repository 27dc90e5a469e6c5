"""What stages read of those before them, and how long they may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.core.deadline import Deadline
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.settings import ProfileSettings
from pipeline.core.stages import Subject
from pipeline.shared import payload
from pipeline.shared.checks import CHECKS, FLOAT, NORMALISED, REFERENCE, SHAKEN
from pipeline.shared.measured_sizes import SIZES
from pipeline.shared.model_forms import FORMS, ModelForm, form_file
from pipeline.shared.model_inputs import GIVEN
from pipeline.store.store import Entry
from pipeline.store.task import StepContext

ALONE_SHARE = 0.04  # of what is left of the budget, for profiling a device alone: that is for the report
LEAST_S = 1e-3  # what a stage has if all time is spent: it then does the least it can do


def read_model(work: StepContext) -> Path:
    """Return the normalised model, its files checked, and the arrays beside it."""
    work.read("read", "model.bin")
    for name in work.inputs["read"].files:
        if name in (GIVEN, SIZES, CHECKS, REFERENCE, FLOAT, SHAKEN, NORMALISED):
            work.read("read", name)
    return work.read("read", "model.xml")


def read_forms(work: StepContext) -> list[ModelForm]:
    """Return the forms of the model that may be measured, their files checked."""
    forms = [ModelForm.from_json(row) for row in payload.read_json(work.read("read", FORMS))]
    for form in forms:
        xml = form_file(Path("model.xml"), form.rewrite)
        for file in (xml, xml.with_suffix(".bin")):
            work.read("read", file.name)
    return forms


def read_graph(work: StepContext) -> Graph:
    """Return the graph of the model's operations."""
    return payload.load_graph(work.read("read", "graph.npz"))


def read_grouping(work: StepContext) -> Grouping:
    """Return what the operations were coarsened to."""
    return payload.load_grouping(work.read("coarsen", "grouping.npz"))


def read_subject(work: StepContext, *, boundary_s: float = 0.0, slowed: bool = False) -> Subject:
    """Return what is placed and measured: the model, its graph, the devices and what operations cost on them.

    boundary_s: what every link takes on top. slowed: whether costs are those of devices that work at the same time.
    """
    costs, topology = read_profile(work.inputs["profile"], boundary_s=boundary_s, slowed=slowed)
    graph = read_graph(work)
    return Subject(read_model(work), graph, Grouping.identity(graph.n), topology, costs, work.task.seed)


def read_profile(profile: Entry, *, boundary_s: float, slowed: bool) -> tuple[CostTable, Topology]:
    """Return what operations cost on the devices of a profile, and their links; see `read_subject`."""
    costs, topology = payload.load_profile(profile.path("profile.npz"))
    topology = topology.later(boundary_s)
    if slowed:
        costs = costs.slower(payload.load_slowdown(profile.path("profile.json"), topology))
    return costs, topology


def read_tried_precisions(work: StepContext) -> list[Mapping[str, Any]]:
    """Return what became of the model in low precisions; nothing where none was in question."""
    if "precisions" not in work.inputs:
        return []
    tried: list[Mapping[str, Any]] = payload.read_json(work.read("precisions", "precisions.json"))
    return tried


def check_time_left(work: StepContext) -> None:
    """Check that the budget is not used up before a stage has begun that comes before the comparison.

    Raises:
        UsageError: it is; what is done so far is kept.
    """
    if work.deadline.passed:
        raise UsageError(
            f"The budget was used up before `{work.task.stage}` began.",
            "Run the same command again: the stages before it are done. A larger --budget does all at once.",
        )


def stage_deadline(
    work: StepContext, *, of_left: float, of_whole: float, budget_s: float, seconds: float = 0.0
) -> Deadline:
    """Return when a stage is to end.

    of_left: share of what is left of the budget. of_whole: share of the whole, where the stage runs apart from a run's
    deadline. seconds: set for the stage instead; 0 for the share.
    """
    if seconds or math.isinf(work.deadline.at_s):
        return Deadline.after(seconds or of_whole * budget_s)
    return work.deadline.share(of_left)


def within_share(settings: ProfileSettings, work: StepContext, share: float) -> ProfileSettings:
    """Return how devices are profiled, within a share of what is left of the budget unless seconds are set."""
    left_s = work.deadline.share(share).left_s
    return (
        replace(settings, seconds=max(left_s, LEAST_S)) if not settings.seconds and math.isfinite(left_s) else settings
    )
