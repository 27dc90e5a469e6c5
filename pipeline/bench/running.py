"""Cells, run in this process or in those of workers, which run this very module.

in   {"suite", ...}: the suite whose `answer` is asked, and what it is told; of a cell see `CellTask`
out  what the suite answers, of a cell {"record"}, or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.bench.cases import BenchCase
from pipeline.bench.cells import BenchCell, CellRecord, LearnedPolicy, run_cell
from pipeline.bench.methods import BenchMethod
from pipeline.bench.suites import SuiteWithCells, suite_of
from pipeline.core.errors import error_from_document
from pipeline.fleet.dispatch import FleetDispatcher, Settled
from pipeline.fleet.engine import ANY, Command, Engine, silent
from pipeline.fleet.pool import PoolEngine
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.progress.compile_notice import tell_of_compiling
from pipeline.progress.interruption import run_interruptible
from pipeline.store.checkpoint import read_policy
from pipeline.store.store import write_json
from pipeline.store.task import Progress
from pipeline.system.workers import serve_commands

WORKER = "pipeline.bench.running"  # the module whose processes run cells


@dataclass(frozen=True, slots=True, eq=False)
class CellTask:
    """A cell that a worker's process can run.

    name: unique among all. case: what the suite makes the cell's case of. files: absolute paths that stand in it.
    file: of the record. alone: whether it has a machine to itself, of the kind of the fingerprint.
    """

    name: str
    cell: BenchCell
    suite: str
    case: Mapping[str, Any]
    files: tuple[str, ...]
    file: Path
    alone: bool
    fingerprint: str = ANY

    def command(self, rank: int, count: int) -> Command:
        """Return what a worker is asked; count: how many cells there are."""
        policy = self.cell.policy
        folder = () if policy is None else (str(policy.folder.absolute()),)
        document = {
            "suite": self.suite,
            "case": dict(self.case),
            "method": self.cell.method.to_document(),
            "evaluations": self.cell.evaluations,
            "seconds": self.cell.seconds,
            "seed": self.cell.seed,
            "policy": None if policy is None else [policy.key, policy.seconds, *folder],
        }
        title = f"{self.name} ({rank + 1} of {count} cells)"
        return Command(self.name, title, document, self.fingerprint, self.alone, rank, files=(*self.files, *folder))


def run_beside(
    tasks: Sequence[CellTask], *, fleet: Engine | None, workers: int, progress: Progress
) -> dict[str, CellRecord]:
    """Return key -> record of cells that workers have run, each written to its file as it came.

    fleet: whose workers, already entered; None for processes of this machine, which run nothing where one is enough.

    Raises:
        PlacewrightError: a cell could not be run.
    """
    if fleet is None and (workers == 1 or len(tasks) < 2):
        return {}
    if fleet is None:
        tell_of_compiling(progress)
        progress("starting processes, which load kernels first")
    by_name = {task.name: task for task in tasks}
    commands = [task.command(i, len(by_name)) for i, task in enumerate(by_name.values())]
    records = {}
    with contextlib.ExitStack() as own:
        engine = fleet or own.enter_context(PoolEngine(workers, WORKER))
        for settled in answers_beside(commands, engine=engine, progress=progress):
            record: CellRecord = settled.answer["record"]
            write_json(by_name[settled.name].file, record)
            records[record["key"]] = record
    return records


def answers_beside(commands: Sequence[Command], *, engine: Engine, progress: Progress) -> Iterator[Settled]:
    """Yield the answers to commands as they come.

    Raises:
        PlacewrightError: the answer to one is an error.
        DeviceError: the engine is gone.
    """
    dispatcher = FleetDispatcher(engine, progress)
    for command in commands:
        dispatcher.add(command)
    for settled in dispatcher.settle():
        if "error" in settled.answer:
            raise error_from_document(settled.answer["error"], where=settled.name)
        yield settled


def run_here(cell: BenchCell, folder: Path, single_s: Mapping[str, float], progress: Progress) -> CellRecord:
    """Return the record of a cell, run in this process and written to its folder; see `run_cell`."""

    def work(check: Callable[[], None]) -> CellRecord:
        compile_kernels((cell.method.placer,), cell.case.measurer_name, cell.case.subject.graph.n, say=progress)
        return run_cell(cell, folder, single_s, check)

    return run_interruptible(work)


def answer_cell(case: BenchCase, single_s: Mapping[str, float], command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a cell of a case that a worker's process has made, as it is asked for it."""
    method = BenchMethod.from_document(command["method"])
    compile_kernels((method.placer,), case.measurer_name, case.subject.graph.n, say=silent)
    policy = None
    if command["policy"] is not None:
        key, seconds, folder = command["policy"]
        policy = LearnedPolicy(key, read_policy(Path(folder)), seconds, Path(folder))
    limits = command["evaluations"], command["seed"]
    cell = BenchCell(case, method, method.build(), *limits, seconds=command["seconds"], policy=policy)
    return {"record": run_cell(cell, None, single_s, _never_end)}


def _never_end() -> None:
    """Never end a cell early: the process is ended instead."""


def answer_suite(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the suite of a command answers."""
    suite = cast(SuiteWithCells, suite_of(command["suite"]))  # which has asked for it
    return suite.answer(command)


if __name__ == "__main__":
    serve_commands({"suite": lambda command, _: answer_suite(command)})
