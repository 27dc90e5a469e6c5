"""Placements that were found, run where they were not looked for: under other costs, and in another simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.bench.cases import BenchCase
from pipeline.bench.league.standings import LeagueRow
from pipeline.core.devices import CostTable
from pipeline.core.errors import UsageError
from pipeline.core.figures import finite_or_none
from pipeline.core.graph import Grouping
from pipeline.core.measurement import seconds_of
from pipeline.core.placement import Placement
from pipeline.placing.robust import disturbed_costs


class RerunRow(LeagueRow):
    """A record whose placement ran elsewhere: draw is the seed of the disturbance, found_s what the search said."""

    draw: int
    found_s: float | None


def with_noise(case: BenchCase, records: Sequence[LeagueRow], sd: float, draws: int) -> list[RerunRow]:
    """Return the records of a case with the values of their placements under disturbed costs, a record per draw.

    The logarithm of every operation's seconds moves by a normal error, the same for all placements of a draw and for
    all devices of a kind, so that equal devices stay equal. sd: its standard deviation; the mean time stays.
    """
    costs = costs_of(case)
    rows: list[RerunRow] = []
    for draw in range(draws):
        drawn = disturbed_costs(costs, case.subject.topology, sd, seed=draw)
        disturbed = replace(case, subject=replace(case.subject, costs=drawn))
        rows += rerun(disturbed, records, seed=draw)
    return rows


def rerun(case: BenchCase, records: Sequence[LeagueRow], *, seed: int = 0) -> list[RerunRow]:
    """Return the records with what their placements take in a case of the same graph and devices; failed ones stay.

    seed: of the disturbance, counted among the seeds of a record.
    """
    names, devices = case.subject.graph.names, case.devices
    alive = [r for r in records if r["value_s"] is not None]
    placements = [Placement.from_document(r, names, devices) for r in alive]
    evaluator = case.bind(Grouping.identity(case.subject.graph.n))
    values = [seconds_of(result) for result in evaluator.evaluate(placements)]
    known = {id(r): v for r, v in zip(alive, values, strict=True)}
    return [
        {**r, "model": case.model, "draw": seed, "found_s": r["value_s"], "value_s": finite_or_none(known.get(id(r)))}
        for r in records
    ]


def costs_of(case: BenchCase) -> CostTable:
    """Return the seconds of a case's operations.

    Raises:
        UsageError: nothing is known of them.
    """
    if case.subject.costs is None:
        raise UsageError(f"The operations of {case.model} have no times.", "Give a graph with times.")
    return case.subject.costs
