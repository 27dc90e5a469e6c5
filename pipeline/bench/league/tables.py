"""The tables of every part, made of the cells: standings, curves, noise, transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.disturbed import RerunRow, rerun, with_noise
from pipeline.bench.league.protocol import NOISE, REFERENCE, LeagueEffort
from pipeline.bench.league.ranks import ranked
from pipeline.bench.league.rounds import LeagueRound, Policies
from pipeline.bench.league.standings import (
    Baselines,
    LeagueRow,
    Valued,
    Values,
    beside_controls,
    break_even,
    by_instance,
    rank_placers,
    ratios_after,
    seconds_to,
)
from pipeline.bench.summary import geometric_mean
from pipeline.offline.curriculum import seen_by

EVALUATIONS = (1, 10, 100, 300, 1000, 3000, 10_000, 100_000)
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 6.0, 10.0, 60.0)


def table_of(
    asked: LeagueRound,
    records: Sequence[LeagueRow],
    references: Sequence[LeagueRow],
    known: Values,
    effort: LeagueEffort,
) -> dict[str, Any]:
    """Return the document of one round: who stands where, and the curves of a search.

    records: of all cells of the round. references: those of the reference at its own budget, on the same instances.
    known: the best that any search has found, by instance.
    """
    floors = {i.name: load_arena(i).floor_s for i in asked.instances}
    baselines = Baselines.of(records, references, floors, known)
    unseen = {i.name for i in asked.instances if not seen_by(i.graph.text)}
    rows = rank_placers(records, baselines)
    ranks = ranked(records, [row.placer for row in rows if not row.control_of])
    document: dict[str, Any] = {
        "part": asked.part,
        "title": asked.title,
        "budget": {
            "evaluations": asked.budget.evaluations,
            "seconds": asked.budget.seconds,
            "name": asked.budget.name,
        },
        "instances": [i.name for i in asked.instances],
        "standings": [asdict(row) for row in rows],
        "unseen": [asdict(row) for row in rank_placers([r for r in records if r["model"] in unseen], baselines)],
        "controls": [{**asdict(pair), "verdict": pair.verdict} for pair in beside_controls(records)],
        "ranks": None if ranks is None else asdict(ranks),
    }
    if asked.part == "search":
        document["curve"] = _curve_document(asked, records, baselines)
    if asked.part == "noise":
        document["noise"] = _noise_rows(asked, records, references, effort.draws)
    if asked.part == "levels":
        document["in_T2"] = _rows_in_t2(asked, records)
    return document


def _curve_document(asked: LeagueRound, records: Sequence[LeagueRow], baselines: Baselines) -> dict[str, Any]:
    """Return the ratios after ever more evaluations, or seconds where these are what is limited."""
    timed = asked.budget.seconds is not None
    most = asked.budget.seconds or asked.budget.evaluations or 0
    limits = sorted({*(limit for limit in (SECONDS if timed else EVALUATIONS) if limit < most), most})
    ratios = ratios_after(records, baselines.reference, limits, seconds=timed)
    return {"by": "seconds" if timed else "evaluations", "limits": limits, "ratios": ratios}


def _noise_rows(
    asked: LeagueRound, records: Sequence[LeagueRow], references: Sequence[LeagueRow], draws: int
) -> list[dict[str, Any]]:
    """Return a row per placer: the ratio to the reference under noise, and how much slower than promised it is."""
    noisy: dict[float, tuple[list[RerunRow], list[RerunRow]]] = {}
    for sd in NOISE:
        mine, theirs = noisy.setdefault(sd, ([], []))
        for instance in asked.instances:
            case = load_arena(instance).case
            mine += with_noise(case, _records_of_instance(records, instance.name), sd, draws)
            theirs += with_noise(case, _records_of_instance(references, instance.name), sd, draws)
    rows = []
    for name in dict.fromkeys(r["method"] for r in records):
        row: dict[str, Any] = {"placer": name}
        for sd, (mine, theirs) in noisy.items():
            own = [r for r in mine if r["method"] == name]
            row[f"ratio_{round(100 * sd)}"] = _ratio_of_means(own, theirs)
            promised = _promised_values(own)
            row[f"over_promise_{round(100 * sd)}"] = _ratio_of_means(own, promised)
        rows.append(row)
    return sorted(rows, key=lambda row: _order_key(row[f"ratio_{round(100 * NOISE[-1])}"]))


def _rows_in_t2(asked: LeagueRound, records: Sequence[LeagueRow]) -> list[dict[str, Any]]:
    """Return what placements found in a simpler simulator take in T2, over what that simulator promised."""
    ratios: list[RerunRow] = []
    for instance in asked.instances:
        case = load_arena(replace(instance, level="T2")).case
        ratios += rerun(case, _records_of_instance(records, instance.name))
    rows = []
    for name in dict.fromkeys(r["method"] for r in records):
        own = [r for r in ratios if r["method"] == name]
        promised = _promised_values(own)
        theirs = [r for r in ratios if r["method"] == REFERENCE]
        rows.append(
            {"placer": name, "ratio": _ratio_of_means(own, theirs), "over_promise": _ratio_of_means(own, promised)}
        )
    return sorted(rows, key=lambda row: _order_key(row["ratio"]))


def _promised_values(rows: Sequence[RerunRow]) -> list[Valued]:
    return [{"model": row["model"], "value_s": row["found_s"]} for row in rows]


def _records_of_instance(records: Sequence[LeagueRow], instance: str) -> list[LeagueRow]:
    return [r for r in records if r["model"] == instance]


def _order_key(ratio: Mapping[str, float] | None) -> float:
    return float("inf") if ratio is None else ratio["median"]


def _ratio_of_means(records: Sequence[Valued], others: Sequence[Valued]) -> dict[str, float] | None:
    """Return the ratio of two lots of records, geometric mean over the instances that both have."""
    ours, theirs = by_instance(records), by_instance(others)
    both = [ours[i] / theirs[i] for i in ours if i in theirs]
    return asdict(geometric_mean([np.array(both)])) if both else None


def repaid_rows(
    records: Sequence[LeagueRow], references: Sequence[LeagueRow], policies: Policies
) -> list[dict[str, Any]]:
    """Return per taught placer what learning took, and after how many graphs annealing of equal quality repays it.

    Where annealing never got there, its whole search counts, so that the number is too high rather than too low.
    records: of one budget, of taught placers among others.
    """
    rows = []
    for (placer, without), known in policies.items():
        if without:
            continue
        saved = []
        for r in records:
            if r["lesson"] == known.key and r["value_s"] is not None:
                theirs = [o for o in references if (o["model"], o["seed"]) == (r["model"], r["seed"])]
                saved += [_annealing_s(o, r["value_s"]) - r["seconds"] for o in theirs]
        row = {"placer": placer, "lesson_s": known.seconds, "graphs": break_even(known.seconds, saved)}
        rows.append({**row, "cells": len(saved)})
    return rows


def _annealing_s(reference: LeagueRow, value_s: float) -> float:
    reached = seconds_to(reference["curve"], value_s)
    return float(reference["seconds"]) if reached is None else reached
