"""What a league comes to: the document of its results, and the files that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.bench.cells import CellRecord
from pipeline.bench.league.arena import Arena, load_arena
from pipeline.bench.league.entries import LeagueEntry
from pipeline.bench.league.pages import drawn_comparisons, write_pages
from pipeline.bench.league.protocol import REFERENCE
from pipeline.bench.league.rounds import LeagueCell, LeagueRound
from pipeline.bench.league.standings import LeagueRow, least_values
from pipeline.bench.league.tables import repaid_rows, table_of
from pipeline.offline.curriculum import seen_by
from pipeline.report.comparison import write_record
from pipeline.result.result import read_versions
from pipeline.store.store import write_json

if TYPE_CHECKING:
    from pipeline.bench.league.run import League

SCHEMA = "placewright.league/1"
RESULTS = "league.json"
PAGE = Path("league.md")


def write_results(document: dict[str, Any], out: Path, brief: Path | None) -> None:
    """Write the document, the page and, where asked for, a brief one, with pictures beside each, and the intervals.

    Raises:
        StoreError: one cannot be written.
    """
    write_json(out / RESULTS, document)
    write_record(out, drawn_comparisons(document, PAGE.stem))
    write_pages(document, out / PAGE)
    if brief is not None:
        write_pages(document, brief, brief=True)


def _round_rows(
    run: League, asked: LeagueRound, cells: Sequence[LeagueCell]
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


def league_document(run: League) -> dict[str, Any]:

    tables, lessons = [], []
    known = least_values(run.records.values())
    for each, cells in run.wanted:
        mine, theirs = _round_rows(run, each, cells)
        tables.append(table_of(each, mine, theirs, known, run.effort))
        if each.taught and not each.budget.per_device:
            lessons = repaid_rows(mine, theirs, run.policies)
    distinct = {cell.cell.key: cell for _, cells in run.wanted for cell in cells}
    arenas = [load_arena(i) for i in dict.fromkeys(i for each in run.rounds for i in each.instances)]
    return {
        "schema": SCHEMA,
        "settings": asdict(run.effort),
        "question": asdict(run.question),
        "reference": REFERENCE,
        "hardware": dict(run.machine.facts),
        "machines": sorted({run.machine_of(cell) for cell in distinct.values()}),
        "fingerprint": run.machine.fingerprint,
        "versions": read_versions(),
        "notes": run.notes,
        "instances": [_instance_facts(here) for here in arenas],
        "placers": [_placer_facts(entry) for entry in run.entries],
        "tables": tables,
        "lessons": lessons,
        "cells": [_short_record(cell, run.records[key]) for key, cell in distinct.items()],
    }


def _short_record(cell: LeagueCell, record: CellRecord) -> dict[str, Any]:
    """Return a cell's record without its placement, which lies in the file of the cell."""
    kept = (
        "key",
        "model",
        "method",
        "seed",
        "value_s",
        "evaluations",
        "planned",
        "seconds",
        "cpu_s",
        "infeasible",
        "failed",
    )
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
        "seen_by": list(seen_by(instance.graph.text)),
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
