"""Contests on simulated machines whose truth is known, and the same contests told differently: claims must follow.

Of each drawn machine the contest is held as it is, with all times halved (a clock of double speed), with the contenders
called otherwise, and with a contender more that takes three times as long, which must never be claimed. False claims
are counted, not judged: there may be up to 5 % of them over all cases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.false_claims import BASELINES, GAIN, KINDS, NAMES, QUIET, Machine, contest_on
from tests.campaigns.runner import Campaign, Case, Judge, require

BUDGETS_S = (15.0, 45.0)
SLOW = "slow twin"


def claims_of(machine: Machine, seconds: float, names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Return what is claimed of a contest."""
    judgement = contest_on(machine, seconds, names).judgement
    return judgement.claimed if judgement else ()


def judge(case: Case) -> str:
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
    """Give what holds contests."""
    yield judge


CAMPAIGN = Campaign("numbers", 0.5, begin)
