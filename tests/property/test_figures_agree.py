"""The columns of a verdict's table, of simulated noisy contests: none contradicts another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.false_claims import KINDS, NAMES, Machine, contest_on
from pipeline.core.settings import MeasureSettings
from pipeline.placing import comparison
from pipeline.placing.records import ContestRecord, MeasuredRow
from pipeline.placing.start_seconds import control_seconds, slow_starts
from pipeline.result.records import CandidateRecord
from pipeline.result.result import candidate_records
from pipeline.result.result_text import format_milliseconds, format_speedup, is_first_sight
from pipeline.result.verdict import Limits, decide_contest
from runtime.measuring.contest.contest import Contest
from runtime.measuring.contest.pair_bench import Start
from tests.models import two_towers
from tests.two_cpus import subject_of, write

SECONDS = ("variant_s", "control_s", "samples_s")
ALMOST = 1 + 1e-9  # rounding of logarithms


class Drifting(Machine):
    """The same; the machine's speed drifts by a factor of two and more, and starts of two runs stand side by side."""

    def start(self, *variants: Any, **how: Any) -> Any:
        found = super().start(*variants, **how)
        speed = float(np.exp(self.rng.normal(0, 0.5)))
        return replace(
            found,
            **{
                name: tuple(speed * s for s in getattr(found, name)) for name in ("variant_s", "control_s", "samples_s")
            },
            run=str(self.rng.integers(2)),
            cpu_s=speed,
        )


def table_of(found: Contest, graph: Any) -> tuple[list[CandidateRecord], ContestRecord, list[MeasuredRow]]:
    """Return the candidates of a result, and the contest's record."""
    settings = MeasureSettings()
    rows = [comparison._contender_row(found, name, None, graph, {}, settings) for name in found.entries]
    contest = comparison.contest_record(found, settings, checks_s=0.0)
    return candidate_records(rows, "latency"), contest, rows


def ratio_and_seconds(candidate: CandidateRecord) -> tuple[float, float]:
    """Return how many times as fast as the control a candidate is said to be, and what it is said to take."""
    assert candidate.latency_s is not None
    assert candidate.times_as_fast is not None
    return candidate.times_as_fast, candidate.latency_s.median


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return subject_of(*write(two_towers(), tmp_path_factory.mktemp("model"))).graph


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [4.0, 12.0, 45.0])
def test_no_two_columns_contradict_each_other(kind: str, seconds: float, graph: Any) -> None:
    for seed in range(4):
        drawn = Machine.drawn(kind, seed, gain=0.05 * (seed % 2))
        machine = Drifting(drawn.seconds, drawn.settings, drawn.rng, drawn.scatter, drawn.slow, drawn.in_final)
        found = contest_on(machine, seconds)
        candidates, contest, _ = table_of(found, graph)
        shown = [c for c in candidates if format_milliseconds(c, contest)[0]]
        assert found.control in {c.name for c in shown}
        for a, b in itertools.combinations(shown, 2):
            (fast, one_s), (slow, other_s) = ratio_and_seconds(a), ratio_and_seconds(b)
            assert fast >= slow  # the order of the table
            assert one_s <= other_s * ALMOST
            assert (a.rate or 0.0) * ALMOST >= (b.rate or 0.0)
            assert other_s / one_s == pytest.approx(fast / slow)
        for c in shown:
            (times, median_s), latency, told = ratio_and_seconds(c), c.latency_s, contest.ratios.get(c.name)
            if told is not None and c.name != found.control:
                assert times == pytest.approx(told.ratio)
                assert format_speedup(c, contest).startswith(f"{times:.3f} (")
            for low, high in ((latency.fastest, latency.slowest), (latency.low, latency.high)) if latency else ():
                assert (low or 0.0) <= median_s * ALMOST
                assert high is None or median_s <= high * ALMOST
        for c in candidates:
            assert is_first_sight(c, contest) == format_speedup(c, contest).startswith("about")
        verdict = decide_contest(candidates, contest, Limits())
        answer, control = (next(c for c in candidates if c.name == name) for name in (verdict.best, found.control))
        assert verdict.gain.ratio == pytest.approx(ratio_and_seconds(control)[1] / ratio_and_seconds(answer)[1])


def test_the_seconds_of_the_control_are_of_its_own_turns_in_the_last_run(graph: Any) -> None:
    drawn = Machine.drawn("quiet", 3, gain=0.0)
    found = contest_on(drawn, 45.0)
    entries = {name: replace(e, final=_in_runs(e.final)) for name, e in found.entries.items()}
    mixed = replace(found, entries=entries)
    last = [s.control_s for e in entries.values() for i, s in e.final.items() if i > 3]
    assert found.control == found.beside
    assert control_seconds(mixed) != control_seconds(found)
    assert len(control_seconds(mixed)) == max(i for e in entries.values() for i in e.final) - 3
    assert min(map(min, last)) <= min(control_seconds(mixed)) <= max(map(max, last))
    assert [r["samples_s"] for r in table_of(mixed, graph)[2] if r["name"] == found.control] == [control_seconds(mixed)]


def _in_runs(starts: dict[int, Start]) -> dict[int, Start]:
    """Return starts of two runs; the first three were measured when the machine was ten times slower."""
    slow = {
        i: replace(s, control_s=tuple(10 * x for x in s.control_s), variant_s=tuple(10 * x for x in s.variant_s))
        for i, s in starts.items()
    }
    return {i: replace(slow[i] if i <= 3 else s, run="a" if i <= 3 else "b") for i, s in starts.items()}


def test_starts_that_are_slow_as_a_whole_are_counted_by_configuration(graph: Any) -> None:
    for seed in range(6):
        drawn = Machine.drawn("quiet", seed, gain=0.0)
        assert all(row.slow == 0 for row in slow_starts(contest_on(drawn, 45.0)).values())
    found = contest_on(Machine.drawn("quiet", 1, gain=0.05), 45.0)
    name = NAMES[0]
    entry = found.entries[name]
    slow = replace(entry.final[2], variant_s=tuple(1.8 * s for s in entry.final[2].variant_s))
    entries = {**found.entries, name: replace(entry, final={**entry.final, 2: slow})}
    table = slow_starts(replace(found, entries=entries))
    assert (table[name].slow, table[name].times) == (1, pytest.approx(1.8, rel=0.1))
    assert table[name].starts == len(entry.screened) + len(entry.final)
    assert sum(row.slow for row in table.values()) == 1
    # A bad start of the control makes all of its round seem faster.
    entries = {
        n: replace(e, final={i: _beside_slow(s) if i == 2 else s for i, s in e.final.items()})
        for n, e in found.entries.items()
    }
    table = slow_starts(replace(found, entries=entries))
    assert {n for n, row in table.items() if row.slow} == {found.beside}
    assert contest_row_starts(replace(found, entries=entries)) == table


def _beside_slow(start: Start) -> Start:
    return replace(start, control_s=tuple(1.8 * s for s in start.control_s))


def contest_row_starts(found: Contest) -> Any:
    return comparison.contest_record(found, MeasureSettings(), checks_s=0.0).starts
