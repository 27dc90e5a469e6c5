"""The stage `embed`: nodes -> features, embeddings, the encoder's weights; only if a placer learns, or it is chosen."""

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
class EmbedParams:
    """The embedder, and the blocks of features that it reads."""

    use: Choice
    blocks: tuple[str, ...]


def plan_embed(run: RunPlan) -> PlannedStage:
    """Return what decides the embedding."""
    from embed.features import needs_costs

    settings = run.settings.embed
    params = EmbedParams(choice_of(run.settings, "embed", settings.use), settings.blocks)
    inputs = ("read", "coarsen", "profile") if needs_costs(settings.blocks) else ("read", "coarsen")
    return PlannedStage(params=params, inputs=inputs, uses=[("embed", settings.use)])


def embed(work: StepContext) -> None:
    """Write embedding.npz, encoder.safetensors and recipe.json."""
    from embed.features import node_features

    params, graph, grouping = params_of(EmbedParams, work), read_graph(work), read_grouping(work)
    costs = payload.load_profile(work.read("profile", "profile.npz"))[0] if "profile" in work.inputs else None
    features = node_features(graph, grouping, costs, blocks=params.blocks)
    name, values = params.use
    embedder = registry.build_implementation("embed", name, values)
    embedding = embedder.embed(features.values, contract(graph, grouping), seed=work.task.seed)
    payload.save_arrays(work.out / "embedding.npz", {"features": features.values, "nodes": embedding.nodes})
    payload.save_weights(work.out / "encoder.safetensors", embedding.weights)
    write_json(work.out / "recipe.json", {"embedder": name, "params": values, "columns": list(features.columns)})


EMBED = RunStage(name="embed", version=3, plan=plan_embed, execute=embed, seeded=None)
