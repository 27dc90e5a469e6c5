"""Cells of a simulator's cases, as many at a time as there are workers for them.

in   {"model", "path", "evaluator", "method", "seed", "evaluations", "store"}
out  {"record"} or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.bench.cases import BenchCase, simulated
from pipeline.bench.cells import BenchCell, CellRecord, run_cell
from pipeline.bench.methods import chosen
from pipeline.core.errors import told_error
from pipeline.fleet.dispatch import FleetDispatcher, Settled
from pipeline.fleet.engine import Command, Engine, silent
from pipeline.placing.rehearsal import CALLING, rehearse
from pipeline.store.store import Store, write_json
from pipeline.store.task import Progress
from pipeline.system.workers import serve


def on_one_thread(cell: BenchCell) -> bool:
    """Return whether a cell computes on one thread: it learns, and no other placer searches for it."""
    return cell.method.learned and cell.method.placer not in CALLING


def run_beside(
    cells: Sequence[BenchCell],
    paths: Mapping[str, Path],
    folder: Path,
    store: Store,
    *,
    engine: Engine,
    progress: Progress,
) -> Iterator[CellRecord]:
    """Yield the records of cells as they are done, each written to its file in a folder as well.

    A cell of several threads has a machine to itself. paths: model -> its file.

    Raises:
        PlacewrightError: a cell could not be run.
    """
    by_name = {cell.title: cell for cell in cells}
    commands = [
        Command(
            name,
            f"{name} ({i + 1} of {len(by_name)} side by side)",
            _document(cell, paths[cell.case.model], store),
            alone=not on_one_thread(cell),
            rank=i,
            files=(str(paths[cell.case.model].absolute()),),
        )
        for i, (name, cell) in enumerate(by_name.items())
    ]
    for settled in answers_beside(commands, engine=engine, progress=progress):
        record: CellRecord = settled.answer["record"]
        write_json(by_name[settled.name].file(folder), record)
        yield record


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
            raise told_error(settled.answer["error"], where=settled.name)
        yield settled


def _document(cell: BenchCell, path: Path, store: Store) -> dict[str, Any]:
    return {
        "model": cell.case.model,
        "path": str(path.absolute()),
        "evaluator": cell.case.evaluator,
        "method": cell.method.name,
        "seed": cell.seed,
        "evaluations": cell.evaluations,
        "store": str(store.root),
    }


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    case, single_s = _case(*(command[key] for key in ("model", "path", "evaluator", "store")))
    (method,) = chosen([command["method"]])
    rehearse((method.placer,), case.measurer_name, case.subject.graph.n, say=silent)
    cell = BenchCell(case, method, method.build(), command["evaluations"], command["seed"])
    return {"record": run_cell(cell, None, single_s, go_on)}


@cache
def _case(model: str, path: str, evaluator: str, store: str) -> tuple[BenchCase, dict[str, float]]:
    case = simulated(model, Path(path), Store(Path(store)), silent, evaluator=evaluator)
    return case, case.alone()


def go_on() -> None:
    """Never end a cell early: the process is ended instead."""


if __name__ == "__main__":
    serve({"method": lambda command, _: answer(command)})
