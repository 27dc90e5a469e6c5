"""The league: every registered placer on the protocol, cell by cell, and the results of all cells."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.bench.cells import CellRecord, LearnedPolicy, finished, is_answered
from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.entries import LeagueEntry, list_entries
from pipeline.bench.league.policies import learn_policy_interruptible
from pipeline.bench.league.protocol import (
    REFERENCE,
    LeagueEffort,
    list_instances,
    training_cases,
)
from pipeline.bench.league.records import (
    Line,
    line_of,
    machine_text,
    place_of,
    read_lines,
    record_of,
    write_lines,
)
from pipeline.bench.league.results import PAGE, RESULTS, league_document, write_results
from pipeline.bench.league.rounds import LeagueCell, LeagueRound, cells_of_round, list_rounds
from pipeline.bench.league.standings import is_disturbed
from pipeline.bench.running import CellTask, run_beside, run_here
from pipeline.core.errors import DeviceError, UsageError
from pipeline.fleet.engine import ANY, Engine
from pipeline.progress.perfetto import check_writable
from pipeline.stages.host import HostMachine, look_at_machine
from pipeline.store.task import Progress


@dataclass(frozen=True, slots=True)
class LeagueQuestion:
    """Who is compared on what; names as the user gives them, none for all."""

    placers: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeagueFiles:
    """Where a league leaves what it finds, and from what it goes on.

    out: the folder of league.json, league.md and pictures, and of one file per cell, from which an interrupted league
    goes on. page: of a brief page, and of the pictures beside it. records: of the records of all cells, from which it
    goes on as well; see `pipeline.bench.league.records`.
    """

    out: Path
    page: Path | None = None
    records: Path | None = None

    @property
    def written(self) -> tuple[Path, ...]:
        """Return the files that have to be writable."""
        return tuple(path for path in (self.out / RESULTS, self.out / PAGE, self.page, self.records) if path)


@dataclass(slots=True, eq=False)
class League:
    """A league that goes on: what is asked, where things lie, and what is known so far.

    fleet: what runs the cells, already entered; None for this machine. machine: the one that cells of equal seconds run
    on. records: of cells, by their keys; ran_on: their machines, where not this one.
    lines: those of a file, by their keys as well. wanted: the cells of each round.
    """

    question: LeagueQuestion
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
    lines: dict[str, Line] = field(default_factory=dict)
    records: dict[str, CellRecord] = field(default_factory=dict)
    ran_on: dict[str, str] = field(default_factory=dict)
    wanted: list[tuple[LeagueRound, list[LeagueCell]]] = field(default_factory=list)

    def machine_of(self, cell: LeagueCell) -> str:
        """Return what pages call the machine that has run a cell."""
        return self.ran_on.get(cell.cell.key) or machine_text(self.machine.facts)


def league(
    question: LeagueQuestion,
    effort: LeagueEffort,
    files: LeagueFiles,
    *,
    retry: bool = False,
    fleet: Engine | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Return what league.json holds, once every cell that is not on file has been run.

    retry: whether cells run again whose search the clock ended while others had the processor. fleet: whose workers run
    all cells, already entered; None for processes of this machine.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    instances = list_instances(effort, question.instances)
    taking_part, notes = list_entries(question.placers)
    shown = frozenset(e.name for e in taking_part)
    if REFERENCE not in shown:  # everybody is divided by it
        taking_part += list_entries([REFERENCE])[0]
    asked = list_rounds(effort.parts, instances, effort)
    for instance in instances if question.instances else ():
        load_arena(instance)  # a file that cannot be read ends it before anybody learns
    for path in files.written:
        check_writable(path)
    machine = look_at_machine(()) if fleet is None else fleet.machines(())[0]
    run = League(question, files.out, effort, progress, taking_part, shown, asked, notes, retry, fleet, machine)
    if files.records is not None:
        run.lines = {line["key"]: line for line in read_lines(files.records)}
    _learn(run)
    _run_cells(run)
    if files.records is not None:
        _write_records(run, files.records)
    document = league_document(run)
    write_results(document, files.out, files.page)
    return document


def _learn(run: League) -> None:
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
                cases = training_cases(run.effort, without=without)
                budget = run.effort.evaluations, run.effort.learning
                learned = learn_policy_interruptible(entry, cases, budget, run.out / "policies")
            except (UsageError, DeviceError) as error:
                run.notes.append(f"{entry.name} could not learn: {error}")
                continue
            if learned is not None:
                run.policies[entry.name, without] = learned
            elif not without:
                run.notes.append(f"{entry.name} leaves no policy on a graph that it learns from.")


def _run_cells(run: League) -> None:
    """Run the cells that are not on file: those of evaluations side by side, those of seconds on a machine each."""
    folder = run.out / "cells"
    for each in run.rounds:
        run.progress(f"{each.part}: {each.title}, loading {len(each.instances)} instances")
        run.wanted.append((each, cells_of_round(each, run.entries, run.effort, run.policies)))
    waiting: dict[str, LeagueCell] = {}
    for _, cells in run.wanted:
        for cell in cells:
            key, known = cell.cell.key, finished(cell.cell, folder / cell.folder)
            line = run.lines.get(key) if known is None else None
            if line is not None and is_answered(line):
                known = record_of(cell.cell, line, load_arena(cell.instance).single_s)
            if known is None or (run.retry and is_disturbed(known, cell.cell.seconds)):
                waiting.setdefault(key, cell)
                continue
            run.records[key] = known
            if line is not None:
                run.ran_on[key] = line["machine"]
    tasks = [
        _task(cell, folder, run.machine.fingerprint)
        for cell in waiting.values()
        if run.fleet is not None or cell.budget.seconds is None
    ]
    run.records |= run_beside(tasks, fleet=run.fleet, workers=run.effort.workers, progress=run.progress)
    alone = [c for key, c in waiting.items() if key not in run.records]
    for i, cell in enumerate(alone):
        run.progress(f"{cell.cell.title}, {cell.budget.name} ({i + 1} of {len(alone)} that run alone)")
        single_s = load_arena(cell.instance).single_s
        run.records[cell.cell.key] = run_here(cell.cell, folder / cell.folder, single_s, run.progress)


def _write_records(run: League, path: Path) -> None:
    """Write the records of all cells to a file, among those that it has of others."""
    lines = {place_of(line): line for line in run.lines.values()}
    for cell in (cell for _, cells in run.wanted for cell in cells):
        line = line_of(cell.cell, cell.budget.name, run.records[cell.cell.key], run.machine_of(cell))
        lines[place_of(line)] = line
    write_lines(path, lines.values())


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
