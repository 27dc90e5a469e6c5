"""Cells of a simulator's cases that compute on one thread, as many at a time as there are processes for them.

in   {"model", "path", "evaluator", "method", "seed", "evaluations", "cells", "store"}
out  the cell's record, or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.artifacts.store import Store
from pipeline.artifacts.task import Progress
from pipeline.bench.cases import BenchCase, simulated
from pipeline.bench.cells import BenchCell, run_cell
from pipeline.bench.methods import chosen
from pipeline.core.errors import PlacewrightError
from pipeline.core.workers import Workers, serve
from pipeline.placing.rehearsal import CALLING, rehearse


def on_one_thread(cell: BenchCell) -> bool:
    """Return whether a cell computes on one thread: it learns, and no other placer searches for it."""
    return cell.method.learned and cell.method.placer not in CALLING


def run_beside(
    cells: Sequence[BenchCell],
    paths: Mapping[str, Path],
    folder: Path,
    store: Store,
    *,
    workers: int,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Yield the records of cells as they are done, each written to its file in a folder as well.

    paths: model -> its file. workers: how many cells run at a time.

    Raises:
        PlacewrightError: a process ended early.
    """
    commands = {cell.title: _command(cell, paths[cell.case.model], folder, store) for cell in cells}
    yield from answers_beside(commands, __name__, "that learn", workers=workers, progress=progress)


def answers_beside(
    commands: Mapping[str, Mapping[str, Any]], module: str, what: str, *, workers: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the answers of a module's processes to commands as they come; commands: by what people are told of them.

    what: the sort of cells, in words.

    Raises:
        PlacewrightError: a process ended early.
    """
    waiting = dict(commands)
    with Workers(workers, module) as pool:
        while waiting or pool.busy:
            while waiting and len(pool.busy) < pool.most:
                name = next(iter(waiting))
                command = waiting.pop(name)
                progress(f"{name} ({len(commands) - len(waiting)} of {len(commands)} {what})")
                pool.ask(name, command)
            for name, record in pool.wait():
                if "error" in record:
                    raise PlacewrightError(f"{name}: {record['error']['cause']}", record["error"]["remedy"])
                yield dict(record)


def _command(cell: BenchCell, path: Path, folder: Path, store: Store) -> dict[str, Any]:
    return {
        "model": cell.case.model,
        "path": str(path),
        "evaluator": cell.case.evaluator,
        "method": cell.method.name,
        "seed": cell.seed,
        "evaluations": cell.evaluations,
        "cells": str(folder),
        "store": str(store.root),
    }


def _answer(command: Mapping[str, Any]) -> dict[str, Any]:
    case, single_s = _case(*(command[key] for key in ("model", "path", "evaluator", "store")))
    (method,) = chosen([command["method"]])
    rehearse((method.placer,), case.measurer_name, case.subject.graph.n, say=_silent)
    cell = BenchCell(case, method, method.build(), command["evaluations"], command["seed"])
    return run_cell(cell, Path(command["cells"]), single_s, _go_on)


@cache
def _case(model: str, path: str, evaluator: str, store: str) -> tuple[BenchCase, dict[str, float]]:
    case = simulated(model, Path(path), Store(Path(store)), _silent, evaluator=evaluator)
    return case, case.alone()


def _silent(_: str) -> None:
    """Tell nobody."""


def _go_on() -> None:
    """Never end a cell early: the process is ended instead."""


if __name__ == "__main__":
    serve(_answer)
