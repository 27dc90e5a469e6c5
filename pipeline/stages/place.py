"""The stage `place`: groups -> candidate placements of every placer, best first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.core.deadline import Deadline
from pipeline.core.errors import UsageError
from pipeline.core.figures import finite_or_none
from pipeline.core.graph import Graph, Grouping, weight_side
from pipeline.core.learning import PolicyInputs
from pipeline.core.measurement import Evaluation, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.settings import WORTH_S
from pipeline.core.stages import Answer, Candidate, Evaluator, Measurer, Placer, Predictor, Subject
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.placing.journal import Journal, Remembered
from pipeline.placing.near import EARLIER, Near, devices_of
from pipeline.placing.recipes import for_placer
from pipeline.placing.records import RoundRecord, SearchRecord
from pipeline.placing.searchers import Bind, Searcher, SearchOutcome, in_turn
from pipeline.placing.segment_variants import fewer_segments
from pipeline.placing.setup import coarse_problem, problem_of
from pipeline.placing.shortlist import FinalistRow, shortlist_candidates
from pipeline.progress.interruption import run_interruptible
from pipeline.progress.watchers import CURVE, TENSORBOARD, Watcher, open_watcher
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import read_declaration
from pipeline.shared import payload
from pipeline.shared.json_object import read_object
from pipeline.stages.choices import (
    Choice,
    brought_by_placers,
    choice_of,
    choices_of,
    evaluators_of,
    is_learned,
    measurer_of,
    placers_of,
    search_settings,
    settings_first,
)
from pipeline.stages.inputs import LEAST_S, check_time_left, read_grouping, read_profile, read_subject, stage_deadline
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.checkpoint import collect_policies
from pipeline.store.store import write_json
from pipeline.store.task import Outcome, StepContext

if TYPE_CHECKING:
    from pipeline.placing.calibrated_rounds import Proposal, Round, Rounds
    from pipeline.placing.worth import WorthRecord

OF_LEFT = OF_WHOLE = 0.35  # of the budget that is left; of all of it where the stage runs apart from a deadline
MOST_PLACING = 0.5  # of what is left, for which the first round's least is measured
FIRST_MEASUREMENT_S = 3.0  # that it takes: two processes begin, and one of them runs the reference
SETTINGS_FIRST = 0.1  # of the time for placing, where settings are decided before any split
ONE_PLUGIN = 0.6  # of the time for placing, where HETERO can only take turns with itself, or no split can pay
JUDGING = 0.02  # of the time for placing, to prove that none can
REPAIR_S = 2.0  # most that a finalist is given to come to fewer segments
# What a tensor between segments of two devices costs beyond its bytes: a thread that is woken, kernels that are not
# fused, layouts that are changed. Measured on a 2-core machine; docs/executor.md.
BOUNDARY_S = 5e-5


@dataclass(frozen=True, slots=True)
class PlaceParams:
    """Which placers search, what they ask, and for how long.

    use: the placers. evaluator: what they ask. devices: what measures, where they are calibrated to it round by round.
    real: whether anything is measured. segments: whether splits are run as segments, and not by HETERO.
    settings_first: why settings are tried before any split, "" if they are not. near: a file with an earlier placement,
    "" for none; moves, move_price_s: most operations that move, and what each must gain.
    """

    use: tuple[Choice, ...]
    embedder: Choice | None  # this and the next: None where no placer learns
    grouper: Choice | None
    evaluator: Choice
    devices: Choice | None
    reward: Literal["simulated", "measured", "hybrid"]
    real: bool
    evaluations: int
    rounds: int
    measurements: int
    finalists: int
    budget_s: float
    segments: bool
    settings_first: str
    near: str
    moves: int | None
    move_price_s: float


def plan_place(run: RunPlan) -> PlannedStage:
    """Return what decides the placements.

    Raises:
        UsageError: there is no earlier placement where one is named, or none is named and moves are counted.
    """
    settings = search_settings(run.settings)
    if settings.place.near:
        _earlier(settings.place.near)
    elif (settings.place.moves, settings.place.move_price_s) != (None, 0.0):
        raise UsageError(
            "place.moves and place.move_price_s count operations of an earlier placement.", "Set place.near."
        )
    place, placers, asked = settings.place, placers_of(settings), evaluators_of(settings)
    real = any(read_declaration("measure", name).real for name in asked)
    rounds, learned = len(asked) > 1, is_learned(settings)
    params = PlaceParams(
        use=choices_of(settings, "place", placers),
        embedder=choice_of(settings, "embed", settings.embed.use) if learned else None,
        grouper=choice_of(settings, "group", settings.group.use) if learned else None,
        evaluator=measurer_of(settings, asked[0]),
        devices=measurer_of(settings, asked[1]) if rounds else None,
        reward="hybrid" if rounds else "measured" if read_declaration("measure", asked[0]).real else "simulated",
        real=real,
        evaluations=place.evaluations,
        rounds=place.rounds if rounds else 0,
        measurements=place.measurements if rounds else 0,
        finalists=place.finalists,
        budget_s=settings.budget_s,
        segments=settings.measure.runtime != "hetero",
        settings_first=settings_first(settings, run.machine),
        near=place.near,
        moves=place.moves,
        move_price_s=place.move_price_s,
    )
    return PlannedStage(
        params=params,
        inputs=("read", "coarsen", "profile", "embed", "group"),
        uses=[*(("place", name) for name in placers), *(("measure", name) for name in asked)],
        called=brought_by_placers(settings),
        measured=real,
    )


def judge_profile(
    outcomes: Mapping[str, Outcome], settings: Settings, devices: Sequence[str], *, least: float, seconds: float
) -> WorthRecord:
    """Return what the bounds of a profile say of all placements, by the simulator that placers would ask first.

    outcomes: of the stages read and profile.
    """
    from pipeline.placing.worth import judge_worth

    chosen = search_settings(settings)
    asked = next((name for name in evaluators_of(chosen) if not read_declaration("measure", name).real), "sequential")
    segments = settings.measure.runtime != "hetero"
    costs, topology = read_profile(outcomes["profile"].entry, boundary_s=BOUNDARY_S if segments else 0.0, slowed=True)
    graph = payload.load_graph(outcomes["read"].entry.path("graph.npz"))
    measurer: Predictor = registry.build_implementation("measure", *measurer_of(chosen, asked))
    subject = Subject(None, graph, Grouping.identity(graph.n), topology, costs, 0)
    figures = judge_worth(problem_of(graph, topology, costs), measurer.bind(subject), least=least, seconds=seconds)
    return {
        "schema": "placewright.worth/1",
        "graph": graph.source,
        "topology": ",".join(devices),
        "evaluator": asked,
        "operations": graph.n,
        "edges": graph.m,
        "devices": list(topology.names),
        "costs": dict(zip(costs.devices, costs.origin, strict=True)),
        **figures,
    }


def place(work: StepContext) -> None:
    """Write candidates.json, every placer's placements, best first, and searches.json, what each search came to.

    Also curve.jsonl, how they went, and policy.safetensors and policy.json if a placer has learned one.
    """
    check_time_left(work)
    params = params_of(PlaceParams, work)
    subject = read_subject(work, boundary_s=BOUNDARY_S if params.segments else 0.0, slowed=True)
    placers = [name for name, _ in params.use]
    if params.settings_first and placers == ["single"]:
        rows, searches = rows_without_search(params, subject)
        write_json(work.out / "candidates.json", rows)
        write_json(work.out / "searches.json", searches)
        return
    search = _place_in_rounds if params.reward == "hybrid" else _one_level
    compiled_s = run_interruptible(
        lambda _: compile_kernels(placers, params.evaluator[0], subject.graph.n, say=work.progress)
    )
    work.compiled_s.append(compiled_s)
    work = replace(work, deadline=work.deadline.later(compiled_s))
    with open_watcher(work.out / CURVE, work.task.context.get(TENSORBOARD)) as watch:
        rows, searches = search(work, params, subject, watch)
    collect_policies(work.partial, placers, work.out)
    write_json(work.out / "candidates.json", rows)
    write_json(work.out / "searches.json", searches)


Found = tuple[list[FinalistRow], list[SearchRecord]]


def _one_level(work: StepContext, params: PlaceParams, subject: Subject, watch: Watcher) -> Found:
    """Return the rows of the candidates and of the searches where placers ask the simulator, or the devices, alone."""
    measured = params.reward == "measured"
    measurer: Measurer = registry.build_implementation("measure", *params.evaluator)
    bind = partial(Remembered, _open_journal(work, measurer.bind(subject))) if measured else measurer.bind
    searchers = _make_searchers(work, params, subject, bind, watch)
    seconds = _deadline(work, params, subject).left_s / len(searchers)
    budget = Budget(params.evaluations, max(LEAST_S, seconds))
    rows, searches = list[FinalistRow](), list[SearchRecord]()
    for outcome in in_turn(searchers, subject, None, budget, seed=work.task.seed, say=work.progress):
        short = shortlist_candidates(outcome.answer.candidates, params.finalists)
        if params.segments and not measured and not params.near:
            predicting = measurer.bind(subject)
            short = [fewer_segments(subject, predicting, c, Deadline.after(REPAIR_S)) for c in short]
        for rank, c in enumerate(short):
            placer, at = outcome.placer, rank
            if c.found_by == EARLIER:
                placer, at = EARLIER, sum(row["placer"] == EARLIER for row in rows)
            rows.append(finalist_row(placer, at, c, subject.graph, measured=measured))
        row = _search_record(outcome, params, outcome.evaluations)
        row["measurements"] = outcome.evaluations if measured else 0
        row["measured_s"] = row["value_s"] if measured else None
        searches.append(row)
    return rows, searches


def rows_without_search(params: PlaceParams, subject: Subject) -> Found:
    """Return the rows of the single devices and of their bound, where devices that take turns leave nothing to search.

    What `sequential` predicts of one device is a sum. No placement takes less than if every operation ran on the device
    that runs it fastest, nothing had to be sent, and one sub-graph were launched.
    """
    costs, topology = subject.costs, subject.topology
    if costs is None:
        raise ValueError("devices are compared by their costs")
    alone_s = costs.op_s.sum(axis=0) + costs.launch_s  # [p]
    bound_s = float(costs.op_s.min(axis=1).sum() + costs.launch_s.min())
    singles = [
        Candidate(Placement.single(subject.graph.n, d, topology.names), Prediction(float(alone_s[d])), "single")
        for d in np.argsort(alone_s, kind="stable")
        if math.isfinite(alone_s[d])
    ]
    answer = Answer(tuple(singles), bound_s, "the fastest device of every operation")
    short = shortlist_candidates(singles, params.finalists)
    rows = [finalist_row("single", rank, c, subject.graph, measured=False) for rank, c in enumerate(short)]
    row = _search_record(SearchOutcome("single", answer, len(singles)), params, len(singles))
    row["measurements"], row["measured_s"] = 0, None
    return rows, [row]


def rounds_within(params: PlaceParams, seconds: float, left_s: float) -> Rounds:
    """Return the rounds of a hybrid search that has so many seconds, of a budget of which `left_s` are left.

    Nothing is measured where not even a first measurement leaves as much time for the comparison as it takes.
    """
    from pipeline.placing.calibrated_rounds import Rounds

    latest_s = MOST_PLACING * left_s
    measurements = params.measurements if latest_s >= FIRST_MEASUREMENT_S else 0
    return Rounds(params.rounds, measurements, params.evaluations, seconds, latest_s)


def _place_in_rounds(work: StepContext, params: PlaceParams, subject: Subject, watch: Watcher) -> Found:
    """Return the rows of the candidates and of the searches where a few placements are measured in between.

    Ranks count over the placers: the placement that is measured to be the best comes first.
    """
    from pipeline.placing.calibrated_rounds import alternate_with_measuring, every_best_first

    if params.devices is None:
        raise ValueError("a hybrid search measures, and nothing is named that does")
    simulator: Measurer = registry.build_implementation("measure", *params.evaluator)
    devices: Measurer = registry.build_implementation("measure", *params.devices)
    searchers = _make_searchers(work, params, subject, simulator.bind, watch)
    rounds = rounds_within(params, _deadline(work, params, subject).left_s, work.deadline.left_s)
    journal = _open_journal(work, devices.bind(subject))
    hybrid = alternate_with_measuring(
        subject, searchers, simulator, journal.ask, rounds, seed=work.task.seed, say=work.progress
    )
    searches = []
    for outcome in hybrid.last:
        row = _search_record(outcome, params, hybrid.evaluations[outcome.placer])
        _add_proposals(row, hybrid.of(outcome.placer))
        row["used"], row["refused"] = hybrid.used, hybrid.refusal
        row["rounds"] = [_round_record(each) for each in hybrid.rounds]
        searches.append(row)
    proposals = every_best_first(hybrid.proposals, [searcher.name for searcher in searchers])
    short = shortlist_candidates([p.candidate for p in proposals], params.finalists)
    rows = [
        finalist_row(p.placer, rank, c, subject.graph, measured=p.measured is not None)
        for rank, (p, c) in enumerate(zip(proposals, short, strict=False))
    ]
    return rows, searches


def _make_searchers(
    work: StepContext, params: PlaceParams, subject: Subject, bind: Bind, watch: Watcher
) -> list[Searcher]:
    """Return the placers that were chosen, each with its problem: that of the stages before, or of its own recipe."""
    given = read_grouping(work)
    problem = _problem(work, params, subject, given)
    whole = problem_of(subject.graph, subject.topology, subject.costs)
    near = _near_of(params, whole) if params.near else None
    searchers = []
    for name, values in params.use:
        placer: Placer = registry.build_implementation("place", name, values)
        grouping, own = for_placer(placer, whole, lambda: (given, problem), seed=work.task.seed)
        searchers.append(Searcher(name, placer, own, grouping, bind, watch, work.partial, near))
    return searchers


def _near_of(params: PlaceParams, whole: Problem) -> Near:
    """Return the earlier placement that searches stay near; where weights lie follows from who reads them.

    Raises:
        UsageError: it is of another model or other devices.
    """
    near = Near.of(_earlier(params.near), whole, limit=params.moves, price_s=params.move_price_s)
    return near.without(weight_side(whole.graph), whole.graph.names)


def _earlier(near: str) -> Mapping[str, str]:
    """Return {operation: device} of a file with an earlier placement.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    return devices_of(read_object(Path(near), "a placement"), near)


def _problem(work: StepContext, params: PlaceParams, subject: Subject, grouping: Grouping) -> Problem:
    """Return the problem of placing what the stages before have left."""
    problem = coarse_problem(subject.graph, subject.topology, subject.costs, grouping)
    if params.embedder is None or params.grouper is None:
        return problem
    embedding = payload.load_arrays(work.read("embed", "embedding.npz"))
    policy = PolicyInputs(
        features=embedding["features"],
        embedder=registry.build_implementation("embed", *params.embedder),
        grouper=registry.build_implementation("group", *params.grouper),
        encoder_weights=payload.read_weights(work.read("embed", "encoder.safetensors")),
        grouper_weights=payload.read_weights(work.read("group", "grouper.safetensors")),
    )
    groups = payload.load_grouping(work.read("group", "grouping.npz"))
    return replace(problem.on(grouping=groups), policy=policy)


def _deadline(work: StepContext, params: PlaceParams, subject: Subject) -> Deadline:
    """Return when placing is to end: sooner where settings promise more.

    That is where all devices are of one plug-in, and where the profile proves that no split can pay.
    """
    until = stage_deadline(work, of_left=OF_LEFT, of_whole=OF_WHOLE, budget_s=params.budget_s)
    if params.settings_first and params.reward == "simulated":
        return until.share(SETTINGS_FIRST)
    several = len({d.plugin for d in subject.topology.devices}) > 1
    return until if several and _split_may_pay(params, subject, JUDGING * until.left_s) else until.share(ONE_PLUGIN)


def _split_may_pay(params: PlaceParams, subject: Subject, seconds: float) -> bool:
    """Return whether it is open, by the profile, that a split pays: measured or not, see `placewright worth`."""
    from pipeline.placing.worth import split_may_pay

    measurer: Measurer = registry.build_implementation("measure", *params.evaluator)
    if not isinstance(measurer, Predictor) or subject.costs is None:
        return True
    problem = problem_of(subject.graph, subject.topology, subject.costs)
    operations = replace(subject, grouping=Grouping.identity(subject.graph.n))
    return split_may_pay(problem, measurer.bind(operations), min(seconds, WORTH_S))


def _open_journal(work: StepContext, devices: Evaluator) -> Journal:
    """Return the journal of what the stage measures, with what it holds of an interrupted run."""
    context = f"{work.task.seed} {devices.fingerprint}"
    return Journal.of(work.series / "measured.jsonl", context, devices, work.disturbed)


def finalist_row(placer: str, rank: int, candidate: Candidate, graph: Graph, *, measured: bool) -> FinalistRow:
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


def _search_record(outcome: SearchOutcome, params: PlaceParams, evaluations: int) -> SearchRecord:
    answer = outcome.answer
    return {
        "placer": outcome.placer,
        "reward": params.reward,
        "evaluator": params.evaluator[0],
        "evaluations": evaluations,
        "found_by": answer.best.found_by,
        "value_s": finite_or_none(answer.value_s),
        "lower_bound_s": answer.lower_bound_s,
        "gap": answer.gap,
        "proven": answer.proven,
        "bound_by": answer.bound_by,
        "notes": list(answer.notes),
    }


def _add_proposals(row: SearchRecord, own: Sequence[Proposal]) -> None:
    """Add to a search's record what is said of the placements that are the placer's own, best first."""
    row["measurements"] = sum(p.measured is not None for p in own)
    row["measured_s"] = row["predicted_s"] = None
    if own and not math.isinf(own[0].rank[1]):
        row["found_by"] = own[0].found_by
        row["measured_s"], row["predicted_s"] = finite_or_none(own[0].measured_s), finite_or_none(own[0].predicted_s)


def _round_record(each: Round) -> RoundRecord:
    return {
        "evaluations": each.evaluations,
        "measurements": each.measurements,
        "failed": each.failed,
        "error": each.error,
    }


PLACE = RunStage(name="place", version=13, plan=plan_place, execute=place, sampled=True, partitions=True)
