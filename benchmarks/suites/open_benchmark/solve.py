"""Searching the instances of the open benchmark: better values and higher bounds than are on file, and never worse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.instances.verify import RefusedError
from benchmarks.suites.open_benchmark.known import (
    FORMAT,
    PROVEN,
    AnswerEntry,
    OpenInstance,
    SubmissionDocument,
    read_index,
    read_submission,
    write_submission,
)
from pipeline.bench.league.records import machine_text
from pipeline.bench.suites import BenchRequest
from pipeline.core.errors import PlacewrightError
from pipeline.core.figures import gap_of
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Progress
from pipeline.offline.scenario import load
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.placing.recipes import for_placer, lift_answer
from pipeline.placing.worth import proven_bound
from pipeline.progress.interruption import run_interruptible
from pipeline.settings import registry
from pipeline.stages.host import look_at_machine
from pipeline.store.task import Progress as Say

READS = frozenset({"instances", "seconds"})
CLOSE = 0.01  # share of the best known value within which a search has come close to it
SCRATCH_S = 3.0  # for which a search from scratch tries to, where none has come close before
BOUND_S = 0.5  # seconds for a bound where a search proves none
SECONDS, QUICK_S = 2.0, 0.5  # that each instance has been searched for in all, when the command ends
PLACER, BY, FILE = "portfolio", "placewright", "placewright.json.gz"


class Found(NamedTuple):
    """What a search came to: an answer, if one fits, and what no placement takes less than."""

    answer: AnswerEntry | None
    lower_bound_s: float
    bound_by: str


def run(asked: BenchRequest) -> dict[str, Any]:
    """Search every instance that was not searched for as long, and keep what is better; see `Suite`."""
    seconds = asked.options["seconds"] or (QUICK_S if asked.options["quick"] else SECONDS)
    placers = asked.names("methods") or (PLACER,)
    index, file = read_index(asked.names("instances")), asked.out / FILE
    asked.out.mkdir(parents=True, exist_ok=True)
    known = read_submission(file) if file.exists() else _nothing()
    known["method"] = (
        f"bench open with {', '.join(placers)}; the seed of a search is the milliseconds of those before it. Last run "
        f"on: {machine_text(look_at_machine(()).facts)}"
    )
    counts = dict.fromkeys(("searched", "better", "bounds", "refused", "proven"), 0)
    notes: list[str] = []
    with asked.open_workers() as (_, progress):
        for turn, (name, instance) in enumerate(index.items()):
            for placer in placers:
                left_s = _seconds_left(known, name, seconds)
                if left_s > 0:
                    progress(f"{name}, {turn + 1} of {len(index)}")
                    counts["searched"] += 1
                    try:
                        found = search_instance(instance, known["answers"].get(name), placer, left_s, progress)
                    except PlacewrightError as error:
                        notes.append(f"{name}: {error.cause}")
                        continue
                    if found.answer is None:
                        notes.append(f"{name}: no placement was found that fits")
                    known = keep_better(known, instance, found, left_s, counts, notes)
                    write_submission(file, known)
    counts["proven"] = sum(_is_proven(known, name) for name in index)
    return {"schema": "placewright.bench-open/1", "instances": len(index), **counts, "notes": notes, "file": str(file)}


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield what has been found; see `Suite`."""
    yield (
        f"{document['searched']} of {document['instances']} instances searched: {document['better']} better values, "
        f"{document['bounds']} higher bounds; {document['proven']} are proven optimal"
    )
    yield from document["notes"]
    yield f"Written to {document['file']}"


def _nothing() -> SubmissionDocument:
    return {"format": FORMAT, "by": BY, "date": datetime.now(UTC).date(), "answers": {}, "bounds": {}}


def _is_proven(known: SubmissionDocument, name: str) -> bool:
    answer, bound = known["answers"].get(name), known.get("bounds", {}).get(name)
    return answer is not None and bound is not None and gap_of(answer["value_s"], bound["lower_bound_s"]) <= PROVEN


def _seconds_left(known: SubmissionDocument, name: str, seconds: float) -> float:
    """Return for how long an instance is searched now.

    That is the rest of what it shall have had in all, 0 if it is proven; more where no search from scratch has tried
    for long enough to come close to its value.
    """
    answer = known["answers"].get(name)
    if answer is None or name not in known.get("bounds", {}):
        return seconds
    left_s = 0.0 if _is_proven(known, name) else max(0.0, seconds - answer.get("searched_s", 0.0))
    return left_s if _has_tried(answer, seconds) else max(left_s, min(seconds, SCRATCH_S))


def _has_tried(answer: AnswerEntry, seconds: float) -> bool:
    """Return whether a search from scratch came close to an answer, or tried to as long as one of so many seconds."""
    return "within_s" in answer or answer.get("scratch_s", 0.0) >= min(seconds, SCRATCH_S)


def search_instance(instance: OpenInstance, before: AnswerEntry | None, placer: str, seconds: float, say: Say) -> Found:
    """Return what a placer finds in so many seconds, from the best that is known.

    Where nobody knows yet how long it takes to come close to that, from scratch.

    Raises:
        PlacewrightError: the search fails.
    """
    case = load(instance.scenario)
    rounds = 0 if before is None else round(1000 * before.get("searched_s", 0.0))  # a search goes on with another seed
    built = registry.build_implementation("place", placer)
    problem = case.problem
    fresh = before is None or not _has_tried(before, seconds)
    if before is not None and not fresh:
        start = Placement.from_document({"priority": None, **before}, case.graph.names, case.topology.names)
        problem = replace(problem, start=start, start_by=before.get("found_by", "start"))
    alone = Grouping.identity(case.graph.n)
    grouping, own = for_placer(built, problem, lambda: (alone, problem), seed=rounds)
    simulator = case.simulator(grouping)

    def work(check: Callable[[], None]) -> Found:
        compile_kernels((placer,), instance.scenario.evaluator, case.graph.n, say=say)

        begun, fell = time.monotonic(), list[tuple[float, float]]()

        def hook(made: Progress) -> None:
            check()
            if not fell or made.value_s < fell[-1][1]:
                fell.append((time.monotonic() - begun, made.value_s))

        answer = built.place(own, simulator, Budget(seconds=seconds), seed=rounds, progress=hook)
        fell.append((time.monotonic() - begun, answer.value_s))  # where no progress told of it
        answer = lift_answer(answer, grouping)
        bound = (answer.lower_bound_s, answer.bound_by)
        if answer.lower_bound_s <= 0:
            bound = proven_bound(case.problem, simulator.execution, BOUND_S)
        if not math.isfinite(answer.value_s):  # nothing fits
            return Found(None, *bound)
        entry: AnswerEntry = {"value_s": answer.value_s, "placement": {}, "found_by": answer.best.found_by}
        close_s = (1 + CLOSE) * min(answer.value_s, math.inf if before is None else before["value_s"])
        reached = [s for s, value_s in fell if value_s <= close_s]
        if fresh:
            entry["scratch_s"] = seconds
        if fresh and reached:
            entry["within_s"] = reached[0]
        placed = answer.best.placement.to_document(case.graph.names)
        return Found({**entry, "placement": placed["placement"], "priority": placed["priority"]}, *bound)

    return run_interruptible(work)


def keep_better(
    known: SubmissionDocument,
    instance: OpenInstance,
    found: Found,
    seconds: float,
    counts: dict[str, int],
    notes: list[str],
) -> SubmissionDocument:
    """Return what is on file with what is better; only what the independent verifier says the same of is kept."""
    name, answers, bounds = instance.name, dict(known["answers"]), dict(known.get("bounds", {}))
    before = answers.get(name)
    searched_s = seconds + (0.0 if before is None else before.get("searched_s", 0.0))
    if found.answer is not None and (before is None or found.answer["value_s"] < before["value_s"]):
        try:
            value_s = instance.checked().check(found.answer)
            if before is None or value_s < before["value_s"]:
                counts["better"] += 1
                before = answers[name] = {**found.answer, "value_s": value_s}
        except RefusedError as error:
            counts["refused"] += 1
            notes.append(f"{name}: the verifier refuses a placement of {found.answer.get('found_by')}: {error}")
    if before is not None:
        answers[name] = {**before, "searched_s": searched_s}
        for told in ("within_s", "scratch_s"):
            if found.answer is not None and told in found.answer:
                answers[name][told] = found.answer[told]
    if found.lower_bound_s > (bounds[name]["lower_bound_s"] if name in bounds else 0.0):
        counts["bounds"] += 1
        bounds[name] = {"lower_bound_s": found.lower_bound_s, "bound_by": found.bound_by}
    return {**known, "date": datetime.now(UTC).date(), "answers": answers, "bounds": bounds}
