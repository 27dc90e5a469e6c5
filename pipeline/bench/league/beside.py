"""Cells of a number of evaluations, as many at a time as there are processes for them.

in   {"instance", "method", "evaluations", "seconds", "seed", "lesson", "cells"}
out  the cell's record, or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.artifacts.checkpoint import read_policy
from pipeline.artifacts.task import Progress
from pipeline.bench.beside import answers_beside
from pipeline.bench.cells import BenchCell, Lesson, run_cell
from pipeline.bench.league.arena import arena
from pipeline.bench.league.parts import LeagueCell
from pipeline.bench.league.protocol import GraphRef, LeagueInstance
from pipeline.bench.methods import BenchMethod
from pipeline.core.workers import serve
from pipeline.placing.rehearsal import rehearse


def run_beside(
    cells: Sequence[LeagueCell], folder: Path, *, workers: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the records of cells as they are done, each written to its file below a folder as well.

    Raises:
        PlacewrightError: a process ended early.
    """
    commands = {f"{c.cell.title}, {c.budget.name}": _command(c, folder) for c in cells}
    yield from answers_beside(commands, __name__, "cells", workers=workers, progress=progress)


def _command(cell: LeagueCell, folder: Path) -> dict[str, Any]:
    known = cell.cell.lesson
    return {
        "instance": asdict(cell.instance),
        "method": asdict(cell.entry.method),
        "evaluations": cell.cell.evaluations,
        "seconds": cell.cell.seconds,
        "seed": cell.cell.seed,
        "lesson": None if known is None else [known.key, known.seconds, str(known.folder)],
        "cells": str(folder / cell.folder),
    }


def _answer(command: Mapping[str, Any]) -> dict[str, Any]:
    instance = LeagueInstance(**{**command["instance"], "graph": GraphRef(**command["instance"]["graph"])})
    method = BenchMethod(**{**command["method"], "coarsen": tuple(command["method"]["coarsen"])})
    here = arena(instance)
    rehearse((method.placer,), here.case.measurer_name, here.n, say=_silent)
    known = None
    if command["lesson"] is not None:
        key, seconds, folder = command["lesson"]
        known = Lesson(key, read_policy(Path(folder)), seconds, Path(folder))
    cell = BenchCell(
        here.case,
        method,
        method.build(),
        command["evaluations"],
        command["seed"],
        seconds=command["seconds"],
        lesson=known,
    )
    return run_cell(cell, Path(command["cells"]), here.single_s, _go_on)


def _silent(_: str) -> None:
    """Tell nobody."""


def _go_on() -> None:
    """Never end a cell early: the process is ended instead."""


if __name__ == "__main__":
    serve(_answer)
