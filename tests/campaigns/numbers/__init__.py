"""Contests on simulated machines whose truth is known, and the same contests told differently: claims must follow.

Of each drawn machine the contest is held as it is, with all times halved (a clock of double speed), with the contenders
called otherwise, and with a contender more that takes three times as long, which must never be claimed. False claims
are counted: of all cases without a gain, there may be 5 %.

Starts that were recorded of identical variants on a loaded machine are drawn again with either sign, with or without a
gain of the first, and judged as they are, in another order, under other names, beside a slow contender, and twice over,
which must not take a claim away.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.false_claims import BASELINES, GAIN, KINDS, NAMES, QUIET, Machine, contest_on
from runtime.measuring.contest.statistics import TWIN, Judgement, Rules, judge_starts
from tests.campaigns.runner import Campaign, Case, Judge, require

RECORDED = json.loads(Path(__file__).with_name("recorded_starts.json").read_text(encoding="utf-8"))
Floats = np.ndarray[Any, np.dtype[np.float64]]
BUDGETS_S = (15.0, 45.0)
SLOW = "slow twin"


def claims_of(machine: Machine, seconds: float, names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Return what is claimed of a contest."""
    judgement = contest_on(machine, seconds, names).judgement
    return judgement.claimed if judgement else ()


def judge_recorded(case: Case) -> str:
    """Hold the claims of recorded starts against those of the same starts told differently."""
    rng = case.rng
    record = np.array(RECORDED[rng.integers(len(RECORDED))])
    rows = record[rng.integers(record.shape[0], size=int(rng.integers(3, 16)))]
    rows = (rows * rng.choice([-1, 1], size=(rows.shape[0], 1)))[:, rng.permutation(rows.shape[1])]
    gain = float(rng.choice([0.0, GAIN]))
    names = [*(f"copy {i}" for i in range(rows.shape[1] - 1)), TWIN]
    table = {name: rows[:, i] + (math.log1p(gain) if i == 0 else 0.0) for i, name in enumerate(names)}

    def judged(starts: Mapping[str, Floats]) -> Judgement:
        return judge_starts({name: list(logs) for name, logs in starts.items()}, Rules(), contenders=len(starts) - 1)

    found = judged(table)
    order = rng.permutation(rows.shape[0])
    mixed = judged({name: table[name][order] for name in reversed(table)})
    require(mixed.claimed == found.claimed, f"{found.claimed}, in another order {mixed.claimed}")
    called = {name: name if name == TWIN else f"z{i}" for i, name in enumerate(names)}
    renamed = judged({called[name]: logs for name, logs in table.items()}).claimed
    require(renamed == tuple(called[n] for n in found.claimed), f"{found.claimed}, renamed {renamed}")
    slow = judged({**table, SLOW: table[names[0]] - math.log(3)})
    require(SLOW not in slow.claimed, "a slow twin is claimed")
    twice = judged({name: np.tile(logs, 2) for name, logs in table.items()})
    kept = twice.disturbed or set(found.claimed) <= set(twice.claimed)
    require(kept, f"{found.claimed}, and {twice.claimed} of the same starts twice over")
    if set(found.claimed) - ({names[0]} if gain else set()):
        return "recorded: false claim"
    return "recorded: no false claim" if not gain else f"recorded: gain {'found' if found.claimed else 'missed'}"


def judge_simulated(case: Case) -> str:
    """Hold a contest and its variations against one another."""
    kind, seconds = str(case.rng.choice(KINDS)), float(case.rng.choice(BUDGETS_S))
    gain = GAIN if kind == QUIET and case.rng.random() < 0.5 else 0.0
    number = int(case.rng.integers(2**31))

    def drawn() -> Machine:
        return Machine.drawn(kind, number, gain)

    machine = drawn()
    claimed = claims_of(machine, seconds)
    fast = drawn()
    fast.seconds = {name: value / 2 for name, value in fast.seconds.items()}
    require(claims_of(fast, seconds) == claimed, f"{kind}, {number}: a clock of double speed claims otherwise")
    called = dict(zip(NAMES, [f"z{i}" for i in range(len(NAMES))], strict=True))
    other = drawn()
    other.seconds = {called.get(name, name): value for name, value in other.seconds.items()}
    other.settings = {called.get(n, n): called.get(value, value) for n, value in other.settings.items()}
    renamed = claims_of(other, seconds, list(called.values()))
    require(renamed == tuple(called.get(n, n) for n in claimed), f"{kind}, {number}: {claimed}, renamed {renamed}")
    more = drawn()
    more.seconds = {**more.seconds, SLOW: 3 * max(more.seconds.values())}
    more.settings = {**more.settings, SLOW: SLOW}
    require(SLOW not in claims_of(more, seconds, (*NAMES, SLOW)), f"{kind}, {number}: a slow twin is claimed")
    best_s = min(machine.seconds[name] for name in BASELINES)
    if any(machine.seconds[name] >= best_s for name in claimed):
        return "false claim"
    return "no false claim" if not gain else "gain found" if claimed else "gain missed"


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what holds contests, and what judges recorded starts."""
    yield lambda case: (judge_simulated, judge_recorded)[case.seed % 2](case)


def conclude(became: Mapping[str, int]) -> str:
    """Return how often claims were false, and gains found; requires that they are false in at most 5 %."""
    told = []
    for where in ("", "recorded: "):
        false, right = became.get(f"{where}false claim", 0), became.get(f"{where}no false claim", 0)
        found, missed = became.get(f"{where}gain found", 0), became.get(f"{where}gain missed", 0)
        require(false <= most_false(false + right), f"{where}{false} of {false + right} claims are false")
        told.append(
            f"{where}false claims {false} of {false + right}, gains of {GAIN:.0%} found {found} of {found + missed}"
        )
    return "; ".join(told)


def most_false(cases: int) -> int:
    """Return how many false claims there may be if one case in twenty has one; by chance more in one of 10,000."""
    return math.ceil(0.05 * cases + 3.7 * math.sqrt(0.05 * 0.95 * cases))


CAMPAIGN = Campaign("numbers", 0.5, begin, conclude)
