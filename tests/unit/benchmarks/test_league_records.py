"""The records that the league's page is made of: what anyone finds who runs their cells again."""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.bench.cells import run_cell
from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.entries import list_entries
from pipeline.bench.league.protocol import FULL, list_instances
from pipeline.bench.league.records import Line, place_of, read_lines
from pipeline.bench.league.rounds import LeagueCell, cells_of_round, list_rounds
from tests import ROOT

RECORDS = ROOT / "benchmarks" / "league.jsonl.gz"


@cache
def lines() -> dict[str, Line]:
    return {line["key"]: line for line in read_lines(RECORDS)}


def test_no_two_records_are_of_one_cell() -> None:
    kept = read_lines(RECORDS)
    assert len(kept) == len({place_of(line) for line in kept}) == len(lines())


@pytest.mark.parametrize("name", ["heft", "m_etf", "anneal"])
def test_a_cell_that_is_run_again_gives_the_answer_on_record(name: str) -> None:
    instances = list_instances(FULL, ["layered-3"])
    equal, _ = list_rounds(["search"], instances, FULL)
    entries, _ = list_entries(["anneal", name])
    cells: list[LeagueCell] = cells_of_round(equal, entries, FULL, {})
    mine = next(c for c in cells if c.entry.name == name and c.budget == equal.budget)
    line = lines().get(mine.cell.key)
    if line is None:
        pytest.skip(f"the records are of another version of {name}")
    record = run_cell(mine.cell, None, load_arena(mine.instance).single_s, lambda: None)
    assert record["value_s"] == pytest.approx(line["value_s"], rel=1e-9)
    assert (record["evaluations"], record["planned"]) == (line["evaluations"], line["planned"])
