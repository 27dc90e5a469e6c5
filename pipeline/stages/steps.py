"""What each stage does: reads its inputs' files, calls one implementation, writes its payload.

Every step is a function of the artifacts it names and of its parameters, and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.deadline import Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import PolicyInputs
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.problem import Budget, Problem
from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.core.stages import Candidate, Evaluator, Measurer, Placer, Subject
from pipeline.placing.comparison import Conditions, in_simulator, on_devices
from pipeline.placing.finals import FinalistRow, check_something_ran, distinct_finalists, shortlist
from pipeline.placing.in_segments import fewer_segments
from pipeline.placing.journal import Journal, Remembered, disturbed_rows
from pipeline.placing.recipes import for_placer
from pipeline.placing.rehearsal import rehearse
from pipeline.placing.rows import RoundRecord, SearchRecord
from pipeline.placing.searchers import Bind, Searcher, SearchOutcome, in_turn
from pipeline.placing.setup import coarse_problem, problem_of
from pipeline.progress.interruption import apart
from pipeline.progress.watch import CURVE, TENSORBOARD, Watcher, watching
from pipeline.settings import registry
from pipeline.shared import payload
from pipeline.shared.checks import CHECKS, FLOAT, NORMALISED, REFERENCE, SHAKEN, ReferenceOrder
from pipeline.shared.measured_sizes import ARRAYS, SIZES
from pipeline.shared.model_forms import FORMS, ModelForm, form_file
from pipeline.shared.model_inputs import GIVEN
from pipeline.shared.partition import colocated, join
from pipeline.store.checkpoint import collect_policies
from pipeline.store.store import write_json
from pipeline.store.task import StepContext

if TYPE_CHECKING:
    from pipeline.placing.hybrid import Proposal, Round, Rounds


def read(work: StepContext) -> None:
    """Write graph.npz, shapes.json and the normalised model: shapes concrete, constants folded, names unique.

    Beside it stand checks.npz and reference.npz: what its outputs are compared with, by kind of inputs.
    """
    from coarsen.reading.model.growth import ReadLimits
    from coarsen.reading.rewriting.rewrites import Rewrites
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.stages.faithful import read_faithfully, source_of
    from pipeline.stages.plan import ModelFile

    path, limits = Path(work.task.context["model"]), ReadLimits(**work.task.context["limits"])
    params = work.task.params
    data, digest = work.task.context["input"], params["input_sha256"]
    size = params.get("dynamic_size", 0)
    ranges = tuple(params.get("shape_ranges", ()))
    shapes = InputShapes(tuple(params["shapes"]), params["keep_dynamic"], data, digest, size, ranges)
    rewrites = Rewrites(**params.get("rewrites", {}))
    seconds = max(LEAST_CHECKING_S, CHECKING_SHARE * min(work.deadline.left_s, MOST_CHECKED_S))
    order = ReferenceOrder(True, seconds, CHECKING_LIMIT * seconds, params["decode_steps"])
    model, mending = ModelFile(path, params["model_sha256"]), work.deadline.share(MENDING_SHARE)
    source = source_of(model, limits, locate_s=CHECKING_LIMIT * seconds, deadline=mending, rewrites=rewrites)
    read_faithfully(source, work.out, shapes, order)


def kernels(work: StepContext) -> None:
    """Write kernels.npz: which operations the CPU runtime runs as one kernel."""
    from runtime.measuring.profile.fusion import cpu_kernels

    graph = payload.load_graph(work.read("read", "graph.npz"))
    payload.save_arrays(work.out / "kernels.npz", {"kernel": cpu_kernels(_model(work), graph)})


def precisions(work: StepContext) -> None:
    """Write precisions.json: which low precisions the model tolerates."""
    from runtime.measuring.profile.precisions import to_json, try_precisions

    pairs = [(plugin, precision) for plugin, precision in work.task.params["low"]]
    settings = MeasureSettings(**work.task.params["settings"])
    work.progress(f"comparing the outputs in {', '.join(sorted({p for _, p in pairs}))} with those in f32")
    tried = try_precisions(_model(work), pairs, settings, seed=work.task.seed, deadline=work.deadline)
    work.disturbed.extend([f"{t.precision} on {t.plugin}: {t.why_not}" for t in tried if t.transient])
    write_json(work.out / "precisions.json", to_json(tried))


def profile(work: StepContext) -> None:
    """Write profile.npz and profile.json: what operations cost on the devices, and the links."""
    from runtime.measuring.profile.left_out import to_json
    from runtime.measuring.profile.profile import profile as measure_profile
    from runtime.measuring.profile.profile import slowdown

    _check_time(work)
    settings, left_s = ProfileSettings(**work.task.params["settings"]), work.deadline.share(PROFILE_SHARE).left_s
    if not settings.seconds and math.isfinite(left_s):
        settings = replace(settings, seconds=max(left_s, LEAST_S))
    graph, model = payload.load_graph(work.read("read", "graph.npz")), _model(work)
    alike: Mapping[str, Any] = {
        "measuring": MeasureSettings(**work.task.params["measuring"]),
        "seed": work.task.seed,
        "progress": work.progress,
    }
    profiled = measure_profile(model, graph, _devices(work), settings, **alike)
    slower = slowdown(model, profiled, settings, **alike) if work.task.params.get("company") else {}
    payload.save_profile(work.out / "profile.npz", profiled.costs, profiled.topology)
    write_json(
        work.out / "profile.json",
        {
            "latency_s": dict(profiled.latency_s),
            "covered": dict(profiled.covered),
            "refused": {k: list(v) for k, v in profiled.refused.items()},
            "left_out": to_json(profiled.left_out),
            "slowdown": None if slower is None else dict(slower),
            "nan": dict(profiled.nan),
            "empty": list(profiled.empty),
        },
    )
    work.disturbed.extend([f"{name}: {reason.words}" for name, reason in profiled.left_out.items() if reason.transient])


def coarsen(work: StepContext) -> None:
    """Write grouping.npz and steps.json: each coarsener on what the one before left, then colocation."""
    graph = payload.load_graph(work.read("read", "graph.npz"))
    if "kernels" in work.inputs:
        graph = replace(graph, kernel=payload.load_arrays(work.read("kernels", "kernels.npz"))["kernel"])
    grouping, coarse = Grouping.identity(graph.n), graph
    counts = [{"name": "raw", "nodes": graph.n, "edges": graph.m}]
    for name, values in work.task.params["use"]:
        grouping = grouping.then(registry.build("coarsen", name, values).coarsen(coarse, seed=work.task.seed))
        coarse = contract(graph, grouping)
        counts.append({"name": name, "nodes": coarse.n, "edges": coarse.m})
    grouping = join(grouping, colocated(graph))
    payload.save_grouping(work.out / "grouping.npz", grouping)
    write_json(work.out / "steps.json", counts)


def embed(work: StepContext) -> None:
    """Write embedding.npz, encoder.safetensors and recipe.json."""
    from embed.features import node_features

    graph, grouping = _graph_and_grouping(work)
    costs = payload.load_profile(work.read("profile", "profile.npz"))[0] if "profile" in work.inputs else None
    features = node_features(graph, grouping, costs, blocks=work.task.params["blocks"])
    name, values = work.task.params["use"]
    embedder = registry.build("embed", name, values)
    embedding = embedder.embed(features.values, contract(graph, grouping), seed=work.task.seed)
    payload.save_arrays(work.out / "embedding.npz", {"features": features.values, "nodes": embedding.nodes})
    payload.save_weights(work.out / "encoder.safetensors", embedding.weights)
    write_json(work.out / "recipe.json", {"embedder": name, "params": values, "columns": list(features.columns)})


def group(work: StepContext) -> None:
    """Write grouping.npz, grouper.safetensors and recipe.json: the most likely grouping of the coarse nodes."""
    from policy.group.once import group_once

    graph, grouping = _graph_and_grouping(work)
    name, values = work.task.params["use"]
    nodes = payload.load_arrays(work.read("embed", "embedding.npz"))["nodes"]
    groups, weights = group_once(
        registry.build("group", name, values), nodes, contract(graph, grouping), seed=work.task.seed
    )
    payload.save_grouping(work.out / "grouping.npz", groups)
    payload.save_weights(work.out / "grouper.safetensors", weights)
    write_json(work.out / "recipe.json", {"grouper": name, "params": values, "groups": groups.k})


def place(work: StepContext) -> None:
    """Write candidates.json, every placer's placements, best first, and searches.json, what each search came to.

    Also curve.jsonl, how they went, and policy.safetensors and policy.json if a placer has learned one.
    """
    _check_time(work)
    graph = payload.load_graph(work.read("read", "graph.npz"))
    costs, topology = payload.load_profile(work.read("profile", "profile.npz"))
    topology = topology.later(work.task.params.get("boundary_s", 0.0))
    costs = costs.slower(payload.load_slowdown(work.read("profile", "profile.json"), topology))
    subject = Subject(_model(work), graph, Grouping.identity(graph.n), topology, costs, work.task.seed)
    level = _hybrid if work.task.params["reward"] == "hybrid" else _one_level
    placers = [name for name, _ in work.task.params["use"]]
    compiled_s = apart(lambda _: rehearse(placers, work.task.params["evaluator"][0], graph.n, say=work.progress))
    work.compiled_s.append(compiled_s)
    work = replace(work, deadline=work.deadline.later(compiled_s))
    with watching(work.out / CURVE, work.task.context.get(TENSORBOARD)) as watch:
        rows, searches = level(work, subject, watch)
    collect_policies(work.partial, placers, work.out)
    write_json(work.out / "candidates.json", rows)
    write_json(work.out / "searches.json", searches)


def measure(work: StepContext) -> None:
    """Write measurements.json: finalists, baselines and settings, measured against one another.

    Where the budget is used up, one of them runs all the same: whoever waited that long gets an answer.
    """
    graph = payload.load_graph(work.read("read", "graph.npz"))
    rows = payload.read_json(work.read("place", "candidates.json"))
    settings = MeasureSettings(**work.task.params["settings"])
    finalists = distinct_finalists(
        rows, work.task.params["finalists"], ordered=(settings.use, settings.runtime) != ("hetero", "hetero")
    )
    costs, topology = payload.load_profile(work.read("profile", "profile.npz"))
    subject = Subject(_model(work), graph, Grouping.identity(graph.n), topology, costs, work.task.seed)
    if settings.use == "hetero":
        until, later = _until(work, settings.seconds), "settings_first" in work.task.params
        tried, forms = _tried_precisions(work), _forms(work)
        terms = Conditions(settings, until, tried, settings_first=later, forms=forms)
        journal = work.series / "starts.jsonl"
        measured = on_devices(subject, finalists, terms, journal=journal, progress=work.progress)
    else:
        measured = in_simulator(subject, registry.build("measure", *work.task.params["evaluator"]), finalists)
    check_something_ran(measured["rows"])
    work.disturbed.extend(disturbed_rows(measured["rows"]))
    write_json(work.out / "measurements.json", measured)


STEPS: Mapping[str, Callable[[StepContext], None]] = {
    "read": read,
    "kernels": kernels,
    "precisions": precisions,
    "profile": profile,
    "coarsen": coarsen,
    "embed": embed,
    "group": group,
    "place": place,
    "measure": measure,
}


# Of what the stages before have left of the budget, and of the whole where a stage runs apart from a run's deadline.
SHARE: Mapping[str, tuple[float, float]] = {"place": (0.35, 0.35), "measure": (1.0, 0.5)}
PROFILE_SHARE = 0.15
MOST_PLACING = 0.5  # of what is left, for which the first round's least is measured
FIRST_MEASUREMENT_S = 3.0  # that it takes: two processes begin, and one of them runs the reference
SETTINGS_FIRST = 0.1  # of the time for placing, where settings are decided before any split
ONE_PLUGIN = 0.6  # of the time for placing, where HETERO can only take turns with itself
CHECKING_SHARE, LEAST_CHECKING_S = 0.1, 1.0  # of the budget, and seconds at least, for what outputs are compared with
MOST_CHECKED_S = 100.0  # of a budget that count for it
MENDING_SHARE = 0.5  # of the budget, for reading a model in other ways where its outputs depart
CHECKING_LIMIT = 5.0  # times that share, after which what still runs is ended
REPAIR_S = 2.0  # most that a finalist is given to come to fewer segments
LEAST_S = 1e-3  # what a stage has if all time is spent: it then does the least it can do


def _check_time(work: StepContext) -> None:
    """Check that the budget is not used up before a stage has begun that comes before the comparison.

    Raises:
        UsageError: it is; what is done so far is kept.
    """
    if work.deadline.passed:
        raise UsageError(
            f"The budget ended before `{work.task.stage}` started.",
            "Run the same command again (finished stages are kept), or raise --budget.",
        )


def _until(work: StepContext, seconds: float = 0.0) -> Deadline:
    """Return when a stage is to end: after its share of what is left of the budget, or the seconds set for it."""
    of_left, of_whole = SHARE[work.task.stage]
    if seconds or math.isinf(work.deadline.at_s):
        return Deadline.after(seconds or of_whole * work.task.params["budget_s"])
    return work.deadline.share(of_left)


def _one_level(work: StepContext, subject: Subject, watch: Watcher) -> tuple[list[FinalistRow], list[SearchRecord]]:
    """Return the rows of the candidates and of the searches where placers ask the simulator, or the devices, alone."""
    params, seed = work.task.params, work.task.seed
    measured = params["reward"] == "measured"
    measurer: Measurer = registry.build("measure", *params["evaluator"])
    bind = partial(Remembered, _journal(work, measurer.bind(subject))) if measured else measurer.bind
    searchers = _searchers(work, subject, bind, watch)
    budget = Budget(params["evaluations"], max(LEAST_S, _placing(work, subject).left_s / len(searchers)))
    outcomes = in_turn(searchers, subject, None, budget, seed=seed, say=work.progress)
    rows, searches = list[FinalistRow](), list[SearchRecord]()
    for outcome in outcomes:
        short = shortlist(outcome.answer.candidates, params["finalists"])
        if "boundary_s" in params and not measured:
            predicting = measurer.bind(subject)
            short = [fewer_segments(subject, predicting, c, Deadline.after(REPAIR_S)) for c in short]
        rows += [_row(outcome.placer, rank, c, subject.graph, measured=measured) for rank, c in enumerate(short)]
        row = _search_row(outcome, params, outcome.evaluations)
        row["measurements"] = outcome.evaluations if measured else 0
        row["measured_s"] = row["value_s"] if measured else None
        searches.append(row)
    return rows, searches


def rounds_within(params: Mapping[str, Any], seconds: float, left_s: float) -> Rounds:
    """Return the rounds of a hybrid search that has so many seconds, of a budget of which `left_s` are left.

    Nothing is measured where not even a first measurement leaves as much time for the comparison as it takes.
    """
    from pipeline.placing.hybrid import Rounds

    latest_s = MOST_PLACING * left_s
    measurements = params["measurements"] if latest_s >= FIRST_MEASUREMENT_S else 0
    return Rounds(params["rounds"], measurements, params["evaluations"], seconds, latest_s)


def _hybrid(work: StepContext, subject: Subject, watch: Watcher) -> tuple[list[FinalistRow], list[SearchRecord]]:
    """Return the rows of the candidates and of the searches where a few placements are measured in between.

    Ranks count over the placers: the placement that is measured to be the best comes first.
    """
    from pipeline.placing.hybrid import alternate, every_best_first

    params, seed = work.task.params, work.task.seed
    simulator: Measurer = registry.build("measure", *params["evaluator"])
    devices: Measurer = registry.build("measure", *params["devices"])
    searchers = _searchers(work, subject, simulator.bind, watch)
    rounds = rounds_within(params, _placing(work, subject).left_s, work.deadline.left_s)
    journal = _journal(work, devices.bind(subject))
    hybrid = alternate(subject, searchers, simulator, journal.ask, rounds, seed=seed, say=work.progress)
    searches = []
    for outcome in hybrid.last:
        row = _search_row(outcome, params, hybrid.evaluations[outcome.placer])
        _add_proposals(row, hybrid.of(outcome.placer))
        row["used"], row["refused"] = hybrid.used, hybrid.refusal
        row["rounds"] = [_round_record(each) for each in hybrid.rounds]
        searches.append(row)
    proposals = every_best_first(hybrid.proposals, [searcher.name for searcher in searchers])
    short = shortlist([p.candidate for p in proposals], params["finalists"])
    rows = [
        _row(p.placer, rank, c, subject.graph, measured=p.measured is not None)
        for rank, (p, c) in enumerate(zip(proposals, short, strict=False))
    ]
    return rows, searches


def _add_proposals(row: SearchRecord, own: Sequence[Proposal]) -> None:
    """Add to a search's record what is said of the placements that are the placer's own, best first."""
    row["measurements"] = sum(p.measured is not None for p in own)
    row["measured_s"] = row["predicted_s"] = None
    if own and not math.isinf(own[0].rank[1]):
        row["found_by"] = own[0].found_by
        row["measured_s"], row["predicted_s"] = _finite(own[0].measured_s), _finite(own[0].predicted_s)


def _round_record(each: Round) -> RoundRecord:
    return {
        "evaluations": each.evaluations,
        "measurements": each.measurements,
        "failed": each.failed,
        "error": each.error,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _journal(work: StepContext, devices: Evaluator) -> Journal:
    """Return the journal of what the stage measures, with what it holds of an interrupted run."""
    context = f"{work.task.seed} {devices.fingerprint}"
    return Journal.of(work.series / "measured.jsonl", context, devices, work.disturbed)


def _searchers(work: StepContext, subject: Subject, bind: Bind, watch: Watcher) -> list[Searcher]:
    """Return the placers that were chosen, each with its problem: that of the stages before, or of its own recipe."""
    given = payload.load_grouping(work.read("coarsen", "grouping.npz"))
    problem = _problem(work, subject, given)
    whole = problem_of(subject.graph, subject.topology, subject.costs)
    searchers = []
    for name, values in work.task.params["use"]:
        placer: Placer = registry.build("place", name, values)
        grouping, own = for_placer(placer, whole, lambda: (given, problem), seed=work.task.seed)
        searchers.append(Searcher(name, placer, own, grouping, bind, watch, work.partial))
    return searchers


def _placing(work: StepContext, subject: Subject) -> Deadline:
    """Return when placing is to end: sooner where all devices are of one plug-in, so that settings promise more."""
    until = _until(work)
    if "settings_first" in work.task.params and work.task.params["reward"] == "simulated":
        return until.share(SETTINGS_FIRST)
    return until if len({d.plugin for d in subject.topology.devices}) > 1 else until.share(ONE_PLUGIN)


def _problem(work: StepContext, subject: Subject, grouping: Grouping) -> Problem:
    """Return the problem of placing what the stages before have left."""
    problem = coarse_problem(subject.graph, subject.topology, subject.costs, grouping)
    if "group" not in work.inputs:  # no placer learns
        return problem
    embedding = payload.load_arrays(work.read("embed", "embedding.npz"))
    policy = PolicyInputs(
        features=embedding["features"],
        embedder=registry.build("embed", *work.task.params["embedder"]),
        grouper=registry.build("group", *work.task.params["grouper"]),
        encoder_weights=payload.load_weights(work.read("embed", "encoder.safetensors")),
        grouper_weights=payload.load_weights(work.read("group", "grouper.safetensors")),
    )
    groups = payload.load_grouping(work.read("group", "grouping.npz"))
    return replace(problem.on(grouping=groups), policy=policy)


def _row(placer: str, rank: int, candidate: Candidate, graph: Graph, *, measured: bool) -> FinalistRow:
    """Return the record of a placement of the graph's operations."""
    result: Evaluation = candidate.result
    return {
        "placer": placer,
        "rank": rank,
        "found_by": candidate.found_by,
        "measured": measured,
        "value_s": result.value_s if not isinstance(result, MeasurementFailed) else None,
        "failed": payload.failure_to_json(result) if isinstance(result, MeasurementFailed) else None,
        **candidate.placement.to_document(graph.names),
    }


def _search_row(outcome: SearchOutcome, params: Mapping[str, Any], evaluations: int) -> SearchRecord:
    answer = outcome.answer
    return {
        "placer": outcome.placer,
        "reward": params["reward"],
        "evaluator": params["evaluator"][0],
        "evaluations": evaluations,
        "found_by": answer.best.found_by,
        "value_s": _finite(answer.value_s),
        "lower_bound_s": answer.lower_bound_s,
        "gap": answer.gap,
        "proven": answer.proven,
        "bound_by": answer.bound_by,
    }


def _model(work: StepContext) -> Path:
    """Return the normalised model, its files checked, and the arrays beside it."""
    work.read("read", "model.bin")
    for name in work.inputs["read"].files:
        if name in (GIVEN, SIZES, CHECKS, REFERENCE, FLOAT, SHAKEN, NORMALISED) or name.startswith(ARRAYS):
            work.read("read", name)
    return work.read("read", "model.xml")


def _forms(work: StepContext) -> list[ModelForm]:
    """Return the forms of the model that may be measured, their files checked."""
    forms = [ModelForm.from_json(row) for row in payload.read_json(work.read("read", FORMS))]
    for form in forms:
        xml = form_file(Path("model.xml"), form.rewrite)
        for file in (xml, xml.with_suffix(".bin")):
            work.read("read", file.name)
    return forms


def _devices(work: StepContext) -> tuple[DeviceSpec, ...]:
    """Return the devices to profile; what nobody asked for is raised to f32 where the model needs it."""
    devices = tuple(DeviceSpec(**d) for d in work.task.params["devices"])
    if not devices:
        raise DeviceError("No devices are given.", "Give --devices.")
    if "precisions" not in work.inputs:
        return devices
    from runtime.machines.devices import discover
    from runtime.measuring.profile.precisions import raised

    return raised(devices, work.task.params["open_names"], _tried_precisions(work), discover())


def _tried_precisions(work: StepContext) -> list[Mapping[str, Any]]:
    """Return what became of the model in low precisions; nothing where none was in question."""
    if "precisions" not in work.inputs:
        return []
    tried: list[Mapping[str, Any]] = payload.read_json(work.read("precisions", "precisions.json"))
    return tried


def _graph_and_grouping(work: StepContext) -> tuple[Graph, Grouping]:
    graph = payload.load_graph(work.read("read", "graph.npz"))
    return graph, payload.load_grouping(work.read("coarsen", "grouping.npz"))
