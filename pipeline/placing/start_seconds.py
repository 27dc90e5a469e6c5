"""What the variants of a contest take, in seconds that agree with how they compare.

Seconds of different moments are not comparable: a machine that others use changes its speed by a factor of two within
tenths of a second. So the seconds of the control are those of its own turns in the final, of one run, and every other
variant's are the control's divided by how many times as fast it is. Whatever is faster then takes fewer milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.placing.records import SlowStartsRecord

if TYPE_CHECKING:
    from runtime.measuring.contest.contest import Contest
    from runtime.measuring.contest.pair_bench import Start

Key = TypeVar("Key", str, int)

SLOW = math.log(1.5)  # beyond the usual log seconds of a configuration, where a start is told to be slow
ROUNDS = 5  # of medians over starts and variants in turn; they settle after two or three


@dataclass(frozen=True, slots=True)
class OwnSeconds:
    """What a variant takes.

    samples_s: one value per start, as it was measured, of the last run that measured any. each_s: one value per start
    in units of the control; of a first sight one alone. starts: those that tell of latencies, memory and processor
    time. scaled_s: their latencies in units of the control.
    """

    samples_s: list[float]
    each_s: list[float]
    starts: Sequence[Start]
    scaled_s: list[float]


def own_seconds(contest: Contest, name: str) -> OwnSeconds:
    """Return what a variant takes that has had a start."""
    from runtime.measuring.contest.statistics import TWIN

    entry = contest.entries[name]
    control_s = control_seconds(contest)
    middle_s = math.exp(float(np.mean(np.log(control_s))))
    is_control = name == contest.control
    numbers = contest.between(name, contest.control) if not is_control else {}
    of_twin = is_control and not entry.final and TWIN in contest.entries  # which is the control once more
    final = contest.entries[TWIN].final if of_twin else entry.final
    starts = [start for _, start in sorted(final.items())] or list(entry.screened.values())
    if is_control:
        each_s, samples_s = control_s, control_s
    elif numbers:
        each_s = [middle_s / math.exp(ratio) for ratio in numbers.values()]
        samples_s = [start.value_s for start in of_last_run(starts)]
    else:
        each_s = [middle_s / math.exp(contest.standing(name))]
        samples_s = [start.value_s for start in of_last_run(starts)]
    units = {i: middle_s / math.exp(ratio) for i, ratio in numbers.items()}
    own_s = math.exp(float(np.mean(np.log(each_s))))
    scaled = [
        sample * units.get(number, own_s) / start.value_s
        for number, start in (sorted(final.items()) or sorted(entry.screened.items()))
        for sample in start.samples_s
    ]
    return OwnSeconds(samples_s, each_s, starts, scaled)


def size_log_gains(contest: Contest, name: str) -> list[float]:
    """Return by size the log of how many times as fast as the control a variant that has had a start is.

    By the starts of the final that both had, or at first sight alone; empty where there is one size.
    """
    beside = contest.beside or contest.control

    def at(other: str, number: int) -> Sequence[float]:
        return contest.entries[other].final[number].size_log_ratios if other != beside else (0.0,)

    def at_first_sight(other: str) -> Float64:
        screened = contest.entries[other].screened.values()
        return np.asarray(np.median([start.size_log_ratios for start in screened], axis=0), np.float64)

    starts = own_seconds(contest, name).starts
    sizes = len(starts[0].size_log_ratios)
    if not sizes or name == contest.control:
        return [0.0] * sizes
    numbers = contest.between(name, contest.control)
    gains = [np.subtract(at(name, int(number)), at(contest.control, int(number))) for number in numbers]
    found = np.mean(gains, axis=0) if gains else at_first_sight(name) - at_first_sight(contest.control)
    return list(np.broadcast_to(found, (sizes,)).tolist())


def size_seconds(contest: Contest, name: str) -> list[float]:
    """Return by size what a variant takes, in units of the control; empty where there is one size."""
    starts = own_seconds(contest, contest.control).starts
    control_s = np.exp(np.mean(np.log([start.sizes_s for start in starts]), axis=0))
    return list((control_s / np.exp(size_log_gains(contest, name))).tolist())


def control_seconds(contest: Contest) -> list[float]:
    """Return what the control took, one value per start: by its turns in the final if there was one; of one run."""
    entry = contest.entries[contest.control]
    rounds: dict[int, list[Start]] = {}
    for other in contest.entries.values():
        for number, start in other.final.items():
            rounds.setdefault(number, []).append(start)
    if contest.control == contest.beside and rounds:
        last = max(start.run for starts in rounds.values() for start in starts)
        kept = [[s for s in rounds[number] if s.run == last] for number in sorted(rounds)]
        return [float(np.median(np.concatenate([s.control_s for s in starts]))) for starts in kept if starts]
    return [start.value_s for start in of_last_run(list((entry.final or entry.screened).values()))]


def of_last_run(starts: Sequence[Start]) -> list[Start]:
    """Return the starts that the last of several runs measured: seconds of two runs are not comparable."""
    last = max(start.run for start in starts)
    return [start for start in starts if start.run == last]


def slow_starts(contest: Contest) -> dict[str, SlowStartsRecord]:
    """Return, of every configuration with a start, how many it had, how many were slow, and how slow they were.

    The control is loaded once for a round of starts, and once for the screening: what all variants of a round share is
    the control's. What is usual is told by the screening and by the final apart: the machine changes between them.
    """
    from runtime.measuring.contest.statistics import TWIN

    screened: list[tuple[str, int, float]] = []  # configuration, round, log ratio
    final: list[tuple[str, int, float]] = []
    for name, entry in contest.entries.items():
        if entry.failed is None and not entry.same_as:  # starts of what is one with another are among that one's
            own = contest.beside if name == TWIN else name
            screened += [(own, 0, start.log_ratio) for start in entry.screened.values()]
            final += [(own, number, start.log_ratio) for number, start in entry.final.items()]
    late: dict[str, list[float]] = {}
    for table in (screened, final):
        for name, value in _latenesses(table, contest.beside):
            late.setdefault(name, []).append(value)
    return {name: _slow_row(values) for name, values in late.items()}


def _latenesses(table: Sequence[tuple[str, int, float]], beside: str) -> list[tuple[str, float]]:
    """Return, of every start and of every round of the control, by how much it is beyond what is usual, as a logarithm.

    table: configuration, number of its round, log ratio to the control of that round.

    Source: Tukey, Exploratory Data Analysis (1977), median polish.
    """
    usual: dict[str, float] = {}
    shared: dict[int, float] = {}
    for _ in range(ROUNDS):
        usual = _medians_by_key([(name, ratio - shared.get(i, 0.0)) for name, i, ratio in table])
        shared = _medians_by_key([(i, ratio - usual[name]) for name, i, ratio in table])
    fast = _medians_by_key(
        [(name, ratio - shared[i]) for name, i, ratio in table], "higher"
    )  # of two starts the faster
    late = [(name, fast[name] - (ratio - shared[i])) for name, i, ratio in table]
    usual_control = float(np.quantile(list(shared.values()), 0.5, method="lower")) if shared else 0.0
    return late + [(beside, value - usual_control) for value in shared.values()]


def _medians_by_key(
    values: Sequence[tuple[Key, float]], method: Literal["linear", "higher"] = "linear"
) -> dict[Key, float]:
    """Return the median of the values of each key; method: what it is of an even number."""
    of: dict[Key, list[float]] = {}
    for key, value in values:
        of.setdefault(key, []).append(value)
    return {key: float(np.quantile(each, 0.5, method=method)) for key, each in of.items()}


def _slow_row(late: Sequence[float]) -> SlowStartsRecord:
    """Return the row of a configuration whose starts took so much longer than usual, as logarithms."""
    slow = [value for value in late if value > SLOW]
    return SlowStartsRecord(len(late), len(slow), math.exp(float(np.median(slow))) if slow else 1.0)
