"""The league: every registered placer on the protocol, cell by cell, and the results of all cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.artifacts.store import write_json
from pipeline.artifacts.task import Progress
from pipeline.bench.cells import CellRecord, LearnedPolicy, finished
from pipeline.bench.league.arena import Arena, arena
from pipeline.bench.league.entries import LeagueEntry, entries
from pipeline.bench.league.pages import drawn_comparisons, league_sentences, write_pages
from pipeline.bench.league.policies import learn_policy
from pipeline.bench.league.protocol import (
    FULL,
    QUICK,
    REFERENCE,
    GraphRef,
    LeagueEffort,
    LeagueInstance,
    list_instances,
    training_cases,
)
from pipeline.bench.league.rounds import LeagueCell, LeagueRound, cells_of_round, list_rounds
from pipeline.bench.league.standings import LeagueRow, is_disturbed
from pipeline.bench.league.tables import repaid_rows, table_of
from pipeline.bench.running import CellTask, answer_cell, run_beside, run_here
from pipeline.bench.suites import BenchRequest
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.problem import Budget
from pipeline.fleet.engine import ANY, Engine
from pipeline.progress.interruption import apart
from pipeline.progress.trace import check_writable
from pipeline.report.comparison import write_record
from pipeline.runs.plan import HostMachine, look_at_machine

SCHEMA = "placewright.league/1"
READS = frozenset({"instances", "parts", "evaluations", "seeds", "seconds", "workers", "page", "retry_disturbed"})


@dataclass(frozen=True, slots=True)
class LeagueQuestion:
    """Who is compared on what; names as the user gives them, none for all."""

    placers: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _League:
    """A league that goes on: what is asked, where things lie, and what is known so far.

    fleet: what runs the cells, already entered; None for this machine. machine: the one that cells of equal seconds run
    on. records: of cells, by their keys. wanted: the cells of each round.
    """

    out: Path
    effort: LeagueEffort
    progress: Progress
    entries: list[LeagueEntry]
    shown: frozenset[str]
    rounds: list[LeagueRound]
    notes: list[str]
    retry: bool
    fleet: Engine | None
    machine: HostMachine
    policies: dict[tuple[str, str], LearnedPolicy] = field(default_factory=dict)
    records: dict[str, CellRecord] = field(default_factory=dict)
    wanted: list[tuple[LeagueRound, list[LeagueCell]]] = field(default_factory=list)


def league(
    question: LeagueQuestion,
    effort: LeagueEffort,
    out: Path,
    *,
    page: Path | None = None,
    retry: bool = False,
    fleet: Engine | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Return what `out`/league.json holds, once every cell that is not on file has been run.

    Writes league.json, league.md and pictures; one file per cell, from which an interrupted league goes on. page:
    where to write the page, and the pictures beside it, as well. retry: whether cells run again whose search the clock
    ended while others had the processor. fleet: whose workers run all cells, already entered; None for processes of
    this machine.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    instances = list_instances(effort, question.instances)
    taking_part, notes = entries(question.placers)
    shown = frozenset(e.name for e in taking_part)
    if REFERENCE not in shown:  # everybody is divided by it
        taking_part += entries([REFERENCE])[0]
    asked = list_rounds(effort.parts, instances, effort)
    pages = [out / "league.md", *([] if page is None else [page])]
    for path in (out / "league.json", *pages):
        check_writable(path)
    machine = look_at_machine(()) if fleet is None else fleet.machines(())[0]
    run = _League(out, effort, progress, taking_part, shown, asked, notes, retry, fleet, machine)
    _learn(run)
    _run_cells(run)
    document = _league_document(run)
    write_json(out / "league.json", document)
    write_record(out, drawn_comparisons(document, pages[0].stem))
    for path in pages:
        write_pages(document, path)
    return document


def _learn(run: _League) -> None:
    """Let placers that keep policies learn: of all families, and for every family that is asked about without it."""
    asked = [i for each in run.rounds if each.taught for i in each.instances]
    if not asked:
        return
    taught = {i.family for i in training_cases(run.effort)}
    left_out = ["", *dict.fromkeys(i.family for i in asked if i.family in taught)]
    for entry in run.entries:
        for without in left_out if entry.keeps else ():
            run.progress(f"{entry.name} learns" + (f" without {without}" if without else ""))
            try:
                learned = apart(_learning(run, entry, without))
            except (UsageError, DeviceError) as error:
                run.notes.append(f"{entry.name} could not learn: {error}")
                continue
            if learned is not None:
                run.policies[entry.name, without] = learned
            elif not without:
                run.notes.append(f"{entry.name} leaves no policy on a graph that it learns from.")


def _learning(run: _League, entry: LeagueEntry, without: str) -> Callable[[Callable[[], None]], LearnedPolicy | None]:
    def work(check: Callable[[], None]) -> LearnedPolicy | None:
        graphs = training_cases(run.effort, without=without)
        budget = Budget(run.effort.evaluations, run.effort.patience)
        return learn_policy(entry, graphs, budget, run.out / "policies", check)

    return work


def _run_cells(run: _League) -> None:
    """Run the cells that are not on file: those of evaluations side by side, those of seconds on a machine each."""
    folder = run.out / "cells"
    for each in run.rounds:
        run.progress(f"{each.part}: {each.title}, loading {len(each.instances)} instances")
        run.wanted.append((each, cells_of_round(each, run.entries, run.effort, run.policies)))
    waiting: dict[str, LeagueCell] = {}
    for _, cells in run.wanted:
        for cell in cells:
            known = finished(cell.cell, folder / cell.folder)
            if known is None or (run.retry and is_disturbed(known, cell.cell.seconds)):
                waiting.setdefault(cell.cell.key, cell)
            else:
                run.records[cell.cell.key] = known
    tasks = [
        _task(cell, folder, run.machine.fingerprint)
        for cell in waiting.values()
        if run.fleet is not None or cell.budget.seconds is None
    ]
    run.records |= run_beside(tasks, fleet=run.fleet, workers=run.effort.workers, progress=run.progress)
    alone = [c for key, c in waiting.items() if key not in run.records]
    for i, cell in enumerate(alone):
        run.progress(f"{cell.cell.title}, {cell.budget.name} ({i + 1} of {len(alone)} that run alone)")
        single_s = arena(cell.instance).single_s
        run.records[cell.cell.key] = run_here(cell.cell, folder / cell.folder, single_s, run.progress)


def _task(cell: LeagueCell, folder: Path, fingerprint: str) -> CellTask:
    """Return a cell as workers run it; one that the clock ends has a machine of the fingerprint to itself."""
    timed, case = cell.budget.seconds is not None, asdict(cell.instance)
    path = Path(cell.instance.graph.text)
    if path.is_file():
        case["graph"]["text"] = str(path.absolute())
    return CellTask(
        name=f"{cell.cell.title}, {cell.budget.name}",
        cell=cell.cell,
        suite="league",
        case=case,
        files=(case["graph"]["text"],) if path.is_file() else (),
        file=cell.cell.file(folder / cell.folder),
        alone=timed,
        fingerprint=fingerprint if timed else ANY,
    )


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a cell, as a worker's process is asked for it."""
    case = command["case"]
    here = arena(LeagueInstance(**{**case, "graph": GraphRef(**case["graph"])}))
    return answer_cell(here.case, here.single_s, command)


def _round_rows(
    run: _League, asked: LeagueRound, cells: Sequence[LeagueCell]
) -> tuple[list[LeagueRow], list[LeagueRow]]:
    """Return the records of a round's own cells, and those of the reference, with what tables ask of them."""
    mine, theirs = [], []
    for cell in cells:
        row: LeagueRow = {
            **run.records[cell.cell.key],
            "family": cell.instance.family,
            "kind": cell.entry.kind,
            "rule": cell.entry.is_rule,
            "control_of": cell.entry.control_of,
            "budget": cell.budget.name,
            "limit_s": cell.cell.seconds,
            "lesson": None if cell.cell.policy is None else cell.cell.policy.key,
        }
        if cell.budget == asked.budget and (cell.entry.name in run.shown or cell.entry.control_of):
            mine.append(row)
        if cell.entry.name == REFERENCE and cell.budget.evaluations == run.effort.reference:
            theirs.append(row)
    return mine, theirs


def _league_document(run: _League) -> dict[str, Any]:
    from pipeline.runs.result import versions

    tables, lessons = [], []
    for each, cells in run.wanted:
        mine, theirs = _round_rows(run, each, cells)
        tables.append(table_of(each, mine, theirs, run.effort))
        if each.taught and not each.budget.per_device:
            lessons = repaid_rows(mine, theirs, run.policies)
    distinct = {cell.cell.key: cell for _, cells in run.wanted for cell in cells}
    arenas = [arena(i) for i in dict.fromkeys(i for each in run.rounds for i in each.instances)]
    return {
        "schema": SCHEMA,
        "settings": asdict(run.effort),
        "reference": REFERENCE,
        "hardware": dict(run.machine.facts),
        "fingerprint": run.machine.fingerprint,
        "versions": versions(),
        "notes": run.notes,
        "instances": [_instance_facts(here) for here in arenas],
        "placers": [_placer_facts(entry) for entry in run.entries],
        "tables": tables,
        "lessons": lessons,
        "cells": [_short_record(cell, run.records[key]) for key, cell in distinct.items()],
    }


def _short_record(cell: LeagueCell, record: CellRecord) -> dict[str, Any]:
    """Return a cell's record without its placement, which lies in the file of the cell."""
    kept = ("key", "model", "method", "seed", "value_s", "evaluations", "seconds", "cpu_s", "infeasible", "failed")
    return {"budget": cell.budget.name, **{name: record.get(name) for name in kept}, "curve": record.get("curve", [])}


def _placer_facts(entry: LeagueEntry) -> dict[str, Any]:
    method = entry.method
    return {
        "name": entry.name,
        "placer": method.placer,
        "params": dict(method.params),
        "version": method.build().version,
        "kind": entry.kind,
        "learned": method.learned,
        "draws": method.seeded,
        "control_of": entry.control_of,
    }


def _instance_facts(here: Arena) -> dict[str, Any]:
    """Return what an instance is: its size and machine, what every device takes alone, and what nothing falls below."""
    graph, instance = here.case.subject.graph, here.instance
    return {
        "name": instance.name,
        "family": instance.family,
        "graph": instance.graph.text,
        "seed": instance.graph.seed,
        "topology": instance.topology,
        "level": instance.level,
        "memory_share": instance.share,
        "links": instance.links,
        "ordered": instance.ordered,
        "operations": graph.n,
        "edges": graph.m,
        "devices": len(here.case.devices),
        "single_s": {d: s if s < float("inf") else None for d, s in here.single_s.items()},
        "floor_s": here.floor_s,
        "trivial": here.trivial,
    }


def run(asked: BenchRequest) -> dict[str, Any]:
    """Run the suite; see `league`."""
    question = LeagueQuestion(asked.names("methods"), asked.names("instances"))
    effort = asked.effort(FULL, QUICK)
    effort = replace(effort, parts=asked.names("parts") or effort.parts)
    more = {"page": asked.options["page"], "retry": asked.options["retry_disturbed"]}
    with asked.open_workers() as (fleet, progress):
        return league(question, effort, asked.out, **more, fleet=fleet, progress=progress)


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield what the league says in words."""
    yield from league_sentences(document)
    yield from document["notes"]
    yield f"Written to {out}: league.md, league.json and figures"
