"""Cells of the league, as many at a time as there are workers for them.

in   {"instance", "method", "evaluations", "seconds", "seed", "lesson"}
out  {"record"} or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.beside import answers_beside, go_on
from pipeline.bench.cells import BenchCell, CellRecord, Lesson, run_cell
from pipeline.bench.league.arena import arena
from pipeline.bench.league.parts import LeagueCell
from pipeline.bench.league.protocol import GraphRef, LeagueInstance
from pipeline.bench.methods import BenchMethod
from pipeline.fleet.engine import Command, Engine, silent
from pipeline.placing.rehearsal import rehearse
from pipeline.store.checkpoint import read_policy
from pipeline.store.store import write_json
from pipeline.store.task import Progress
from pipeline.system.workers import serve


def run_beside(
    cells: Sequence[LeagueCell], folder: Path, *, engine: Engine, fingerprint: str, progress: Progress
) -> Iterator[CellRecord]:
    """Yield the records of cells as they are done, each written to its file below a folder as well.

    fingerprint: of the machines on which the clock ends cells; each has such a machine to itself.

    Raises:
        PlacewrightError: a cell could not be run.
    """
    by_name = {f"{c.cell.title}, {c.budget.name}": c for c in cells}
    commands = []
    for i, (name, cell) in enumerate(by_name.items()):
        document, timed = _document(cell), cell.budget.seconds is not None
        commands.append(
            Command(
                name,
                f"{name} ({i + 1} of {len(by_name)} cells)",
                document,
                fingerprint=fingerprint if timed else "",
                alone=timed,
                rank=i,
                files=_files(document),
            )
        )
    for settled in answers_beside(commands, engine=engine, progress=progress):
        record: CellRecord = settled.answer["record"]
        cell = by_name[settled.name]
        write_json(cell.cell.file(folder / cell.folder), record)
        yield record


def _document(cell: LeagueCell) -> dict[str, Any]:
    known, instance = cell.cell.lesson, asdict(cell.instance)
    if Path(cell.instance.graph.text).is_file():
        instance["graph"]["text"] = str(Path(cell.instance.graph.text).absolute())
    return {
        "instance": instance,
        "method": asdict(cell.entry.method),
        "evaluations": cell.cell.evaluations,
        "seconds": cell.cell.seconds,
        "seed": cell.cell.seed,
        "lesson": None if known is None else [known.key, known.seconds, str(known.folder.absolute())],
    }


def _files(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that a document names: of a user's graph, and of the policy of a lesson."""
    named = [document["instance"]["graph"]["text"], *(document["lesson"] or ())[2:]]
    return tuple(path for path in named if Path(path).is_absolute())


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    instance = LeagueInstance(**{**command["instance"], "graph": GraphRef(**command["instance"]["graph"])})
    method = BenchMethod(**{**command["method"], "coarsen": tuple(command["method"]["coarsen"])})
    here = arena(instance)
    rehearse((method.placer,), here.case.measurer_name, here.n, say=silent)
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
    return {"record": run_cell(cell, None, here.single_s, go_on)}


if __name__ == "__main__":
    serve({"method": lambda command, _: answer(command)})
