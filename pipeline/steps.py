"""What each stage does: reads its inputs' files, calls one implementation, writes its payload.

Every step is a function of the artifacts it names and of its parameters, and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import payload, registry
from pipeline.apart import apart
from pipeline.core.devices import CostTable, DeviceSpec, Topology, contract_costs
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.problem import Budget, PolicyInputs, Problem, Progress, allowed_devices
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.core.stages import Answer, Candidate, Evaluator, Placer, Subject
from pipeline.finals import check_something_ran, distinct_finalists, in_simulator, on_devices, shortlist
from pipeline.partition import join, tied
from pipeline.store import write_json
from pipeline.task import Work


def read(work: Work) -> None:
    """Write graph.npz and the normalised model: constants folded, names unique."""
    from coarsen import read as reader

    model = reader.read_model(Path(work.task.context["model"]))
    reader.save_model(model, work.out / "model.xml")
    payload.save_graph(work.out / "graph.npz", reader.to_graph(model, source=work.task.params["model_sha256"]))


def kernels(work: Work) -> None:
    """Write kernels.npz: which operations the CPU runtime runs as one kernel."""
    from runtime.fusion import cpu_kernels

    graph = payload.load_graph(work.read("read", "graph.npz"))
    payload.save_arrays(work.out / "kernels.npz", {"kernel": cpu_kernels(_model(work), graph)})


def profile(work: Work) -> None:
    """Write profile.npz and profile.json: what operations cost on the devices, and the links."""
    from runtime.profile import profile as measure_profile

    graph = payload.load_graph(work.read("read", "graph.npz"))
    found = measure_profile(
        _model(work),
        graph,
        _devices(work),
        ProfileSettings(**work.task.params["settings"]),
        dynamic_size=work.task.params["dynamic_size"],
        seed=work.task.seed,
        progress=work.progress,
    )
    payload.save_profile(work.out / "profile.npz", found.costs, found.topology)
    write_json(
        work.out / "profile.json",
        {
            "latency_s": dict(found.latency_s),
            "covered": dict(found.covered),
            "refused": {k: list(v) for k, v in found.refused.items()},
        },
    )


def coarsen(work: Work) -> None:
    """Write grouping.npz and steps.json: each coarsener on what the one before left, then the ties."""
    graph = payload.load_graph(work.read("read", "graph.npz"))
    if "kernels" in work.inputs:
        graph = replace(graph, kernel=payload.load_arrays(work.read("kernels", "kernels.npz"))["kernel"])
    grouping, coarse = Grouping.identity(graph.n), graph
    counts = [{"name": "raw", "nodes": graph.n, "edges": graph.m}]
    for name, values in work.task.params["use"]:
        grouping = grouping.then(registry.build("coarsen", name, values).coarsen(coarse, seed=work.task.seed))
        coarse = contract(graph, grouping)
        counts.append({"name": name, "nodes": coarse.n, "edges": coarse.m})
    grouping = join(grouping, tied(graph))
    payload.save_grouping(work.out / "grouping.npz", grouping)
    write_json(work.out / "steps.json", counts)


def embed(work: Work) -> None:
    """Write embedding.npz, encoder.safetensors and recipe.json."""
    from embed.features import node_features

    graph, grouping = _graph_and_grouping(work)
    costs = payload.load_profile(work.read("profile", "profile.npz"))[0] if "profile" in work.inputs else None
    features = node_features(graph, grouping, costs)
    name, values = work.task.params["use"]
    embedder = registry.build("embed", name, values)
    embedding = embedder.embed(features.values, contract(graph, grouping), seed=work.task.seed)
    payload.save_arrays(work.out / "embedding.npz", {"features": features.values, "nodes": embedding.nodes})
    payload.save_weights(work.out / "encoder.safetensors", embedding.weights)
    write_json(work.out / "recipe.json", {"embedder": name, "params": values, "columns": list(features.columns)})


def group(work: Work) -> None:
    """Write grouping.npz, grouper.safetensors and recipe.json: the most likely grouping of the coarse nodes."""
    from policy.group.once import group_once

    graph, grouping = _graph_and_grouping(work)
    name, values = work.task.params["use"]
    nodes = payload.load_arrays(work.read("embed", "embedding.npz"))["nodes"]
    found, weights = group_once(
        registry.build("group", name, values), nodes, contract(graph, grouping), seed=work.task.seed
    )
    payload.save_grouping(work.out / "grouping.npz", found)
    payload.save_weights(work.out / "grouper.safetensors", weights)
    write_json(work.out / "recipe.json", {"grouper": name, "params": values, "groups": found.k})


def place(work: Work) -> None:
    """Write candidates.json, every placer's placements, best first, and searches.json, what each search proved."""
    params = work.task.params
    graph, grouping = _graph_and_grouping(work)
    costs, topology = payload.load_profile(work.read("profile", "profile.npz"))
    problem = _problem(work, graph, grouping, costs, topology)
    subject = Subject(_model(work), graph, grouping, topology, costs, work.task.seed)
    budget = Budget(params["evaluations"], params["seconds"])
    rows: list[dict[str, Any]] = []
    searches: list[dict[str, Any]] = []
    for name, values in params["use"]:
        evaluator: Evaluator = registry.build("measure", *params["evaluator"]).bind(subject)
        placer: Placer = registry.build("place", name, values)
        ask = partial(placer.place, problem, evaluator, budget, seed=work.task.seed)
        found = apart(partial(_interruptible, ask, name, work.progress))
        rows += [
            _row(name, rank, c, grouping, graph)
            for rank, c in enumerate(shortlist(found.candidates, params["finalists"]))
        ]
        searches.append(_search_row(name, params["evaluator"][0], found, evaluator.evaluations))
    write_json(work.out / "candidates.json", rows)
    write_json(work.out / "searches.json", searches)


def measure(work: Work) -> None:
    """Write measurements.json: the finalists and the baselines, measured against one another."""
    graph = payload.load_graph(work.read("read", "graph.npz"))
    rows = payload.read_json(work.read("place", "candidates.json"))
    finalists = distinct_finalists(rows, work.task.params["finalists"])
    settings = MeasureSettings(**work.task.params["settings"])
    costs, topology = payload.load_profile(work.read("profile", "profile.npz"))
    subject = Subject(_model(work), graph, Grouping.identity(graph.n), topology, costs, work.task.seed)
    if settings.use == "hetero":
        journal = work.partial / "rounds.jsonl"
        measured = on_devices(subject, finalists, settings, journal=journal, progress=work.progress)
    else:
        measured = in_simulator(subject, registry.build("measure", *work.task.params["evaluator"]), finalists)
    check_something_ran(measured)
    write_json(work.out / "measurements.json", measured)


STEPS: Mapping[str, Callable[[Work], None]] = {
    "read": read,
    "kernels": kernels,
    "profile": profile,
    "coarsen": coarsen,
    "embed": embed,
    "group": group,
    "place": place,
    "measure": measure,
}


def _problem(work: Work, graph: Graph, grouping: Grouping, costs: CostTable, topology: Topology) -> Problem:
    coarse = contract(graph, grouping)
    coarse_costs = contract_costs(costs, coarse, grouping)
    embedding = payload.load_arrays(work.read("embed", "embedding.npz"))
    policy = PolicyInputs(
        features=embedding["features"],
        embedder=registry.build("embed", *work.task.params["embedder"]),
        grouper=registry.build("group", *work.task.params["grouper"]),
        encoder_weights=payload.load_weights(work.read("embed", "encoder.safetensors")),
        grouper_weights=payload.load_weights(work.read("group", "grouper.safetensors")),
    )
    return Problem(
        graph=coarse,
        topology=topology,
        grouping=payload.load_grouping(work.read("group", "grouping.npz")),
        costs=coarse_costs,
        allowed=allowed_devices(coarse, topology, coarse_costs, {}),
        policy=policy,
    )


def _row(placer: str, rank: int, candidate: Candidate, grouping: Grouping, graph: Graph) -> dict[str, Any]:
    result: Measurement | MeasurementFailed = candidate.result
    return {
        "placer": placer,
        "rank": rank,
        "value_s": result.median_s if isinstance(result, Measurement) else None,
        "failed": None if isinstance(result, Measurement) else asdict(result),
        "placement": candidate.placement.lift(grouping).to_json(graph.names),
    }


def _search_row(placer: str, evaluator: str, found: Answer, evaluations: int) -> dict[str, Any]:
    return {
        "placer": placer,
        "evaluator": evaluator,
        "evaluations": evaluations,
        "found_by": found.best.found_by,
        "value_s": found.value_s if math.isfinite(found.value_s) else None,
        "lower_bound_s": found.lower_bound_s,
        "gap": found.gap,
        "proven": found.proven,
        "bound_by": found.bound_by,
    }


def _interruptible(
    ask: Callable[..., Answer], placer: str, say: Callable[[str], None], check: Callable[[], None]
) -> Answer:
    """Return a placer's answer; wherever it tells its progress, `check` may end it."""

    def hook(p: Progress) -> None:
        check()
        say(f"{placer}: {p.done} of {p.total} placements, best {p.value_s * 1e3:.3f} ms")

    return ask(progress=hook)


def _model(work: Work) -> Path:
    """Return the normalised model, both of its files checked."""
    work.read("read", "model.bin")
    return work.read("read", "model.xml")


def _devices(work: Work) -> tuple[DeviceSpec, ...]:
    devices = tuple(DeviceSpec(**d) for d in work.task.params["devices"])
    if not devices:
        raise DeviceError("The run has no devices.", "Give --devices.")
    return devices


def _graph_and_grouping(work: Work) -> tuple[Graph, Grouping]:
    graph = payload.load_graph(work.read("read", "graph.npz"))
    return graph, payload.load_grouping(work.read("coarsen", "grouping.npz"))
