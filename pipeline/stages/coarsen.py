"""The stage `coarsen`: the graph -> fewer nodes, which are placed as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.core.graph import Grouping, contract
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.shared.partition import colocation_grouping, join_groupings
from pipeline.stages.choices import Choice, choices_of
from pipeline.stages.inputs import read_graph
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext


@dataclass(frozen=True, slots=True)
class CoarsenParams:
    """The coarseners, one after another."""

    use: tuple[Choice, ...]


def coarseners_of(settings: Settings) -> list[str]:
    """Return the names of the coarseners of a run; weights are folded into what uses them unless `raw` is set."""
    use = settings.coarsen.use
    return [*(() if settings.coarsen.raw or "fold" in use else ("fold",)), *use]


def plan_coarsen(run: RunPlan) -> PlannedStage:
    """Return what decides the nodes."""
    names = coarseners_of(run.settings)
    params = CoarsenParams(choices_of(run.settings, "coarsen", names))
    return PlannedStage(params=params, inputs=("read", "kernels"), uses=[("coarsen", name) for name in names])


def coarsen(work: StepContext) -> None:
    """Write grouping.npz and steps.json: each coarsener on what the one before left, then colocation."""
    graph = read_graph(work)
    if "kernels" in work.inputs:
        graph = replace(graph, kernel=payload.load_arrays(work.read("kernels", "kernels.npz"))["kernel"])
    grouping, coarse = Grouping.identity(graph.n), graph
    counts = [{"name": "raw", "nodes": graph.n, "edges": graph.m}]
    for name, values in params_of(CoarsenParams, work).use:
        grouping = grouping.then(
            registry.build_implementation("coarsen", name, values).coarsen(coarse, seed=work.task.seed)
        )
        coarse = contract(graph, grouping)
        counts.append({"name": name, "nodes": coarse.n, "edges": coarse.m})
    grouping = join_groupings(grouping, colocation_grouping(graph))
    payload.save_grouping(work.out / "grouping.npz", grouping)
    write_json(work.out / "steps.json", counts)


COARSEN = RunStage(name="coarsen", version=2, plan=plan_coarsen, execute=coarsen, seeded=None, partitions=True)
