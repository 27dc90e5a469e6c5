"""One search by many workers: placers and seeds side by side, one incumbent, one bound.

The best placement of all is the answer, and what one has proven holds for all: they search for placements of one
problem. When an answer is proven optimal, nobody goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pipeline.core.errors import MeasurementError, error_from_document
from pipeline.core.figures import gap_of
from pipeline.core.stages import is_proven
from pipeline.fleet.dispatch import FleetDispatcher
from pipeline.fleet.engine import Command, Engine, Say
from pipeline.offline.records import MemberRecord, MembersDocument, SearchDocument
from pipeline.offline.scenario import Scenario, load
from pipeline.offline.search import Effort
from pipeline.offline.worker import files_of, to_command
from pipeline.settings import registry

SEARCHER = "pipeline.offline.worker"  # the module whose processes search


def search_on(
    engine: Engine, scenario: Scenario, effort: Effort, placers: Sequence[str], *, progress: Say
) -> MembersDocument:
    """Return the best of as many searches as the workers have room for, at least one per placer.

    effort: of each search. Its seeds count up from the scenario's, after every round of the placers. progress: told
    what is started, and what each found.

    Raises:
        PlacewrightError: the question is wrong; nothing was started.
        MeasurementError: every search failed.
        DeviceError: the engine is gone.
    """
    for name in placers:
        registry.build_implementation("place", name, scenario.parameters("place", name))
    load(scenario)
    room = max(len(placers), sum(worker.slots for worker in engine.workers()))
    dispatcher = FleetDispatcher(engine, progress)
    for i in range(room):
        placer, seed = placers[i % len(placers)], scenario.seed + i // len(placers)
        asked = to_command(replace(scenario, seed=seed), replace(effort, placer=placer))
        dispatcher.add(
            Command(f"{placer}, seed {seed}", f"{placer}, seed {seed}", asked, rank=i, files=files_of(asked))
        )
    answers: dict[str, SearchDocument] = {}
    why: Mapping[str, Any] = {"cause": "No search was made.", "remedy": ""}
    for settled in dispatcher.settle():
        if "error" in settled.answer:
            why = settled.answer["error"]
            engine.say(f"{settled.name}: failed: {why['cause']}")
            continue
        answers[settled.name] = cast(SearchDocument, settled.answer["found"])
        progress(f"{settled.name}: {answers[settled.name]['value_s']:.6g} s")
        if combine_answers(list(answers.values()))["proven"]:
            break
    if not answers:
        raise error_from_document(why, MeasurementError)
    return combine_answers(list(answers.values()))


def combine_answers(documents: Sequence[SearchDocument]) -> MembersDocument:
    """Return the answer with the best placement and the best bound; of equal ones the first by placer and seed."""
    ordered = sorted(documents, key=lambda d: (d["placer"], d["seed"]))
    best = min(ordered, key=lambda d: d["value_s"])
    bound = max(ordered, key=lambda d: d["lower_bound_s"])
    value_s, bound_s = best["value_s"], min(best["value_s"], bound["lower_bound_s"])
    members = [
        MemberRecord(
            placer=d["placer"],
            seed=d["seed"],
            value_s=d["value_s"],
            lower_bound_s=d["lower_bound_s"],
            evaluations=d["evaluations"],
            seconds=d["seconds"],
        )
        for d in ordered
    ]
    together: MembersDocument = {**best, "members": members}
    together["lower_bound_s"] = bound_s
    together["bound_by"] = bound["bound_by"]
    together["gap"] = gap_of(value_s, bound_s)
    together["proven"] = is_proven(value_s, bound_s)
    together["evaluations"] = sum(d["evaluations"] for d in ordered)
    together["seconds"] = max(d["seconds"] for d in ordered)
    return together
