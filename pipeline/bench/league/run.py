"""The league: every registered placer on the protocol, cell by cell, and the results of all cells."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.bench.cells import CellRecord, Lesson, finished, run_cell
from pipeline.bench.league.arena import Arena, arena
from pipeline.bench.league.beside import run_beside
from pipeline.bench.league.entries import LeagueEntry, entries
from pipeline.bench.league.lessons import lesson
from pipeline.bench.league.parts import Heat, LeagueCell, cells_of_heat, heats
from pipeline.bench.league.protocol import REFERENCE, LeagueEffort, lessons_of, searched
from pipeline.bench.league.standings import LeagueRow, is_disturbed
from pipeline.bench.league.tables import repaid, table_of
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.problem import Budget
from pipeline.fleet.engine import Engine
from pipeline.fleet.pool import PoolEngine
from pipeline.placing.rehearsal import rehearse
from pipeline.progress.interruption import apart
from pipeline.progress.notice import tell_of_compiling
from pipeline.progress.trace import check_writable
from pipeline.stages.host import HostMachine, look_at_machine
from pipeline.store.store import write_json
from pipeline.store.task import Progress

SCHEMA = "placewright.league/1"
WORKER = "pipeline.bench.league.beside"  # the module whose processes run cells


@dataclass(frozen=True, slots=True)
class LeagueQuestion:
    """Who is compared on what; names as the user gives them, none for all."""

    placers: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _League:
    """A league that goes on: what is asked, where things lie, and what is known so far.

    fleet: what runs the cells, already entered; None for this machine. machine: the one that cells of equal seconds run
    on. records: of cells, by their keys. wanted: the cells of each heat.
    """

    out: Path
    effort: LeagueEffort
    progress: Progress
    entries: list[LeagueEntry]
    shown: frozenset[str]
    heats: list[Heat]
    notes: list[str]
    retry: bool
    fleet: Engine | None
    machine: HostMachine
    lessons: dict[tuple[str, str], Lesson] = field(default_factory=dict)
    records: dict[str, CellRecord] = field(default_factory=dict)
    wanted: list[tuple[Heat, list[LeagueCell]]] = field(default_factory=list)


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
    from pipeline.bench.league.pages import comparisons, write_pages
    from pipeline.report.comparison import write_record

    instances = searched(effort, question.instances)
    taking_part, notes = entries(question.placers)
    shown = frozenset(e.name for e in taking_part)
    if REFERENCE not in shown:  # everybody is divided by it
        taking_part += entries([REFERENCE])[0]
    asked = heats(effort.parts, instances, effort)
    pages = [out / "league.md", *([] if page is None else [page])]
    for path in (out / "league.json", *pages):
        check_writable(path)
    machine = look_at_machine(()) if fleet is None else fleet.machines(())[0]
    run = _League(out, effort, progress, taking_part, shown, asked, notes, retry, fleet, machine)
    _learn(run)
    _run(run)
    document = _document(run)
    write_json(out / "league.json", document)
    write_record(out, comparisons(document, pages[0].stem))
    for path in pages:
        write_pages(document, path)
    return document


def _learn(run: _League) -> None:
    """Let placers that keep policies learn: of all families, and for every family that is asked about without it."""
    asked = [i for heat in run.heats if heat.taught for i in heat.instances]
    if not asked:
        return
    taught = {i.family for i in lessons_of(run.effort)}
    left_out = ["", *dict.fromkeys(i.family for i in asked if i.family in taught)]
    for entry in run.entries:
        for without in left_out if entry.keeps else ():
            run.progress(f"{entry.name} learns" + (f" without {without}" if without else ""))
            try:
                learned = apart(_lesson(run, entry, without))
            except (UsageError, DeviceError) as error:
                run.notes.append(f"{entry.name} could not learn: {error}")
                continue
            if learned is not None:
                run.lessons[entry.name, without] = learned
            elif not without:
                run.notes.append(f"{entry.name} leaves no policy on a graph that it learns from.")


def _lesson(run: _League, entry: LeagueEntry, without: str) -> Callable[[Callable[[], None]], Lesson | None]:
    def work(check: Callable[[], None]) -> Lesson | None:
        graphs = lessons_of(run.effort, without=without)
        budget = Budget(run.effort.evaluations, run.effort.patience)
        return lesson(entry, graphs, budget, run.out / "policies", check)

    return work


def _run(run: _League) -> None:
    """Run the cells that are not on file: those of evaluations side by side, those of seconds on a machine each."""
    folder = run.out / "cells"
    for heat in run.heats:
        run.progress(f"{heat.part}: {heat.title}, loading {len(heat.instances)} instances")
        run.wanted.append((heat, cells_of_heat(heat, run.entries, run.effort, run.lessons)))
    waiting: dict[str, LeagueCell] = {}
    for _, cells in run.wanted:
        for cell in cells:
            known = finished(cell.cell, folder / cell.folder)
            if known is None or (run.retry and is_disturbed(known, cell.cell.seconds)):
                waiting.setdefault(cell.cell.key, cell)
            else:
                run.records[cell.cell.key] = known
    beside = [c for c in waiting.values() if run.fleet is not None or c.budget.seconds is None]
    if run.fleet is not None or (run.effort.workers > 1 and len(beside) > 1):
        if run.fleet is None:
            tell_of_compiling(run.progress)
        with contextlib.ExitStack() as own:
            engine = run.fleet or own.enter_context(PoolEngine(run.effort.workers, WORKER))
            mark = run.machine.fingerprint
            for record in run_beside(beside, folder, engine=engine, fingerprint=mark, progress=run.progress):
                run.records[record["key"]] = record
    alone = [c for key, c in waiting.items() if key not in run.records]
    for i, cell in enumerate(alone):
        run.progress(f"{cell.cell.title}, {cell.budget.name} ({i + 1} of {len(alone)} that run alone)")
        run.records[cell.cell.key] = apart(_work(run, cell, folder / cell.folder))


def _work(run: _League, cell: LeagueCell, folder: Path) -> Callable[[Callable[[], None]], CellRecord]:
    def work(check: Callable[[], None]) -> CellRecord:
        here = arena(cell.instance)
        rehearse((cell.entry.method.placer,), here.case.measurer_name, here.n, say=run.progress)
        return run_cell(cell.cell, folder, here.single_s, check)

    return work


def _rows(run: _League, heat: Heat, cells: Sequence[LeagueCell]) -> tuple[list[LeagueRow], list[LeagueRow]]:
    """Return the records of a heat's own cells, and those of the reference, with what tables ask of them."""
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
            "lesson": None if cell.cell.lesson is None else cell.cell.lesson.key,
        }
        if cell.budget == heat.budget and (cell.entry.name in run.shown or cell.entry.control_of):
            mine.append(row)
        if cell.entry.name == REFERENCE and cell.budget.evaluations == run.effort.reference:
            theirs.append(row)
    return mine, theirs


def _document(run: _League) -> dict[str, Any]:
    from pipeline.result.result import versions

    tables, lessons = [], []
    for heat, cells in run.wanted:
        mine, theirs = _rows(run, heat, cells)
        tables.append(table_of(heat, mine, theirs, run.effort))
        if heat.taught and not heat.budget.per_device:
            lessons = repaid(mine, theirs, run.lessons)
    distinct = {cell.cell.key: cell for _, cells in run.wanted for cell in cells}
    arenas = [arena(i) for i in dict.fromkeys(i for heat in run.heats for i in heat.instances)]
    return {
        "schema": SCHEMA,
        "settings": asdict(run.effort),
        "reference": REFERENCE,
        "hardware": dict(run.machine.facts),
        "fingerprint": run.machine.fingerprint,
        "versions": versions(),
        "notes": run.notes,
        "instances": [_facts(here) for here in arenas],
        "placers": [_about(entry) for entry in run.entries],
        "tables": tables,
        "lessons": lessons,
        "cells": [_short(cell, run.records[key]) for key, cell in distinct.items()],
    }


def _short(cell: LeagueCell, record: CellRecord) -> dict[str, Any]:
    """Return a cell's record without its placement, which lies in the file of the cell."""
    kept = ("key", "model", "method", "seed", "value_s", "evaluations", "seconds", "cpu_s", "infeasible", "failed")
    return {"budget": cell.budget.name, **{name: record.get(name) for name in kept}, "curve": record.get("curve", [])}


def _about(entry: LeagueEntry) -> dict[str, Any]:
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


def _facts(here: Arena) -> dict[str, Any]:
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
