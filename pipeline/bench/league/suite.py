"""The league as a suite of `placewright bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.pages import league_sentences
from pipeline.bench.league.protocol import FULL, QUICK, GraphRef, LeagueInstance
from pipeline.bench.league.run import LeagueFiles, LeagueQuestion, league
from pipeline.bench.running import answer_cell
from pipeline.bench.suites import BenchRequest

READS = frozenset(
    {"instances", "parts", "evaluations", "seeds", "seconds", "workers", "page", "records", "retry_disturbed"}
)


def run(asked: BenchRequest) -> dict[str, Any]:
    """Run the suite; see `league`."""
    question = LeagueQuestion(asked.names("methods"), asked.names("instances"))
    effort = asked.effort(FULL, QUICK)
    effort = replace(effort, parts=asked.names("parts") or effort.parts)
    files, retry = (
        LeagueFiles(asked.out, asked.options["page"], asked.options["records"]),
        asked.options["retry_disturbed"],
    )
    with asked.open_workers() as (fleet, progress):
        return league(question, effort, files, retry=retry, fleet=fleet, progress=progress)


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield what the league says in words."""
    yield from league_sentences(document)
    yield from document["notes"]
    yield f"Written to {out}: league.md, league.json and figures"


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a cell, as a worker's process is asked for it."""
    case = command["case"]
    here = load_arena(LeagueInstance(**{**case, "graph": GraphRef(**case["graph"])}))
    return answer_cell(here.case, here.single_s, command)
