"""The stage `group`: embeddings -> groups, the grouper's weights; only if a placer learns, or it was chosen."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.core.graph import contract
from pipeline.settings import registry
from pipeline.shared import payload
from pipeline.stages.choices import Choice, choice_of
from pipeline.stages.inputs import read_graph, read_grouping
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext


@dataclass(frozen=True, slots=True)
class GroupParams:
    """The grouper."""

    use: Choice


def plan_group(run: RunPlan) -> PlannedStage:
    """Return what decides the groups."""
    name = run.settings.group.use
    params = GroupParams(choice_of(run.settings, "group", name))
    return PlannedStage(params=params, inputs=("read", "coarsen", "embed"), uses=[("group", name)])


def group(work: StepContext) -> None:
    """Write grouping.npz, grouper.safetensors and recipe.json: the most likely grouping of the coarse nodes."""
    from policy.group.group_stage import group_once

    coarse = contract(read_graph(work), read_grouping(work))
    name, values = params_of(GroupParams, work).use
    nodes = payload.load_arrays(work.read("embed", "embedding.npz"))["nodes"]
    groups, weights = group_once(
        registry.build_implementation("group", name, values), nodes, coarse, seed=work.task.seed
    )
    payload.save_grouping(work.out / "grouping.npz", groups)
    payload.save_weights(work.out / "grouper.safetensors", weights)
    write_json(work.out / "recipe.json", {"grouper": name, "params": values, "groups": groups.k})


GROUP = RunStage(name="group", version=2, plan=plan_group, execute=group, seeded=None, partitions=True)
