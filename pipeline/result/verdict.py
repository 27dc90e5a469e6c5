"""The answer of a run: what to use, and what may be said of it.

On devices it rests on the starts of a contest (`runtime.measuring.contest`): a gain is claimed over the best baseline
of one device or not at all. Without devices there is only what a simulator predicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.core.estimates import RatioEstimate
from pipeline.core.figures import bytes_text
from pipeline.placing.records import ContestRecord
from pipeline.result.accuracy import both_answers
from pipeline.result.records import CandidateRecord
from pipeline.result.result_text import is_untried
from runtime.measuring.contest.statistics import TWIN, mean_interval

NONE = RatioEstimate(1.0, 1.0, 1.0)
MANY = 5  # starts in all of which a split must be faster than one device to go before it
LEVEL = 0.95  # of the interval of a difference between two variants that are both claimed
PINNING = "ENABLE_CPU_PINNING"
ENOUGH = 3  # starts that tell more than a first sight
RUNTIMES: Mapping[str, str] = {"onnxruntime": "ONNX Runtime"}  # what people call them
STRIKING = 1.2  # times as fast as the control, above which a first sight is worth a word


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to use.

    best: the name of the answer. text: the verdict in a sentence or two. gain: over the best baseline of one device; 1
    where that is the answer. notes: what else there is to say of it.
    """

    best: str
    text: str
    gain: RatioEstimate
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the answer must keep to; 0 for no limit. Seconds, inferences per second, bytes."""

    p99_s: float = 0.0
    min_rate: float = 0.0
    max_memory_bytes: int = 0
    max_load_s: float = 0.0

    def broken_by(self, candidate: CandidateRecord) -> str:
        """Return in words which limits a candidate that ran does not keep; "" if it keeps them all."""
        c, broken = candidate, []
        share = max((s for s in c.percentiles if float(s) <= 99), key=float, default="")  # few latencies tell no p99
        if self.p99_s and share and c.percentiles[share] > self.p99_s:
            broken.append(f"p{share} is {c.percentiles[share] * 1e3:.2f} ms, {self.p99_s * 1e3:g} ms allowed for p99")
        if self.min_rate and c.rate is not None and c.rate < self.min_rate:
            broken.append(f"{c.rate:.1f} inferences per second, {self.min_rate:g} wanted")
        if self.max_memory_bytes and c.peak_bytes is not None and c.peak_bytes > self.max_memory_bytes:
            broken.append(f"{bytes_text(c.peak_bytes)} of memory, {bytes_text(self.max_memory_bytes)} allowed")
        if self.max_load_s and c.compile_s is not None and c.compile_s > self.max_load_s:
            broken.append(f"loads in {c.compile_s:.2f} s, {self.max_load_s:g} s allowed")
        return "; ".join(broken)

    def unmeasured(self, candidate: CandidateRecord) -> tuple[str, ...]:
        """Return a sentence on a limit of which too few latencies were seen to tell whether it is kept."""
        if not self.p99_s or "99" in candidate.percentiles:
            return ()
        return (f"Too few latencies of {candidate.name} were measured for its p99. Use a larger --budget.",)


def decide_predicted(rows: Sequence[CandidateRecord]) -> Verdict:
    """Return the verdict on what a simulator, or a file of records, says: numbers without noise.

    rows: fastest first; at least one ran.
    """
    alive = [r for r in rows if r.latency_s is not None]
    best, single = alive[0], next((r for r in alive if r.single), None)
    if single is None:
        return Verdict(best.name, f"No single device can run the model; use {best.name}.", NONE)
    ratio = _median_s(single) / _median_s(best) if _median_s(best) else 1.0
    if best.single or ratio <= 1:
        return Verdict(
            single.name, f"No placement is predicted to be faster than the best single device. Use {single.name}.", NONE
        )
    text = f"{best.name} is predicted to be {ratio:.3f} times as fast as the best single device, {single.name}."
    return Verdict(best.name, text, RatioEstimate(ratio, ratio, ratio))


def _median_s(row: CandidateRecord) -> float:
    return row.latency_s.median if row.latency_s is not None else math.inf


def decide_contest(rows: Sequence[CandidateRecord], contest: ContestRecord, limits: Limits) -> Verdict:
    """Return the verdict on a contest: the fastest claimed variant that keeps the limits, or the best baseline.

    Of claimed variants that may be equally fast the simplest wins.
    """
    known = {r.name: r for r in rows}
    broken = {r.name: limits.broken_by(r) for r in rows if r.latency_s is not None}
    allowed = [name for name in contest.claimed if not broken.get(name)]
    kept = [r.name for r in rows if r.latency_s is not None and not r.reported_only and not broken[r.name]]
    if allowed:
        verdict = _claim_verdict(_simplest_claimed(allowed, known, contest.least), known, contest)
    elif not broken.get(contest.control):
        verdict = _no_claim(contest, known)
    elif kept:  # the fastest that keeps the limits, whatever may be said of its speed
        why = f"{contest.control} is not: {broken[contest.control]}"
        verdict = Verdict(kept[0], f"Use {kept[0]}, the fastest candidate within the limits; {why}.", NONE)
    else:
        text = f"No candidate is within the limits. {contest.control}: {broken[contest.control]}."
        verdict = Verdict(contest.control, text, NONE)
    text = verdict.text + _by_size(known[verdict.best], contest.control) + condition_text(contest)
    verdict = replace(verdict, text=text)
    more = (*both_answers(verdict.best, known, contest), *limits.unmeasured(known[verdict.best]))
    more += _other_runtime(known[verdict.best], [row for row in rows if row.reported_only and not row.limit], contest)
    return replace(verdict, notes=(*verdict.notes, *more))


def condition_text(contest: ContestRecord) -> str:
    """Return a sentence on the condition under which was measured; "" for none in particular."""
    if contest.condition == "shared":
        threads = f"{contest.load_threads} busy thread{'' if contest.load_threads == 1 else 's'}"
        return f" Measured on a shared machine: beside {threads} that placewright kept running."
    return " Measured without real-time scheduling." if contest.condition else ""


def _by_size(best: CandidateRecord, control: str) -> str:
    """Return a sentence on the sizes that the answer is for, and what it gains at each; "" where there is one."""
    if not best.sizes:
        return ""
    if best.name == control:
        return f" All of this is for {', '.join(f'{s.shapes} ({100 * s.weight:.0f} %)' for s in best.sizes)} together."
    each = (f"{s.times_as_fast:.3f} times at {s.shapes} ({100 * s.weight:.0f} %)" for s in best.sizes)
    return f" By size that is {', '.join(each)}."


def _simplest_claimed(allowed: Sequence[str], known: Mapping[str, CandidateRecord], least: float) -> str:
    """Return the simplest of the claimed variants that may be as fast as the fastest, which comes first."""
    first = known[allowed[0]]
    tied = [first, *(known[name] for name in allowed[1:] if _may_equal(known[name], first, least))]
    return min(tied, key=_complexity_key).name


def _may_equal(other: CandidateRecord, fastest: CandidateRecord, least: float) -> bool:
    """Return whether a variant may be as fast as the fastest, by the starts that both had.

    A split is the faster one only if it was faster in every one of many starts; else a difference counts that is worth
    `least` and certain by Student's interval.
    """
    shared = fastest.log_ratios.keys() & other.log_ratios.keys()
    ahead = [fastest.log_ratios[number] - other.log_ratios[number] for number in sorted(shared)]
    if not ahead:
        return not fastest.single and other.single
    if other.single and not fastest.single:
        return min(ahead) <= 0 or len(ahead) < MANY  # the sign test at 1/32 or less
    mean, low, _ = mean_interval(ahead, LEVEL)
    return other.single == fastest.single and (mean < math.log1p(least) or low <= 0)


def _other_runtime(
    answer: CandidateRecord, others: Sequence[CandidateRecord], contest: ContestRecord
) -> tuple[str, ...]:
    """Return a sentence on a runtime that nobody asked for and that is faster than the answer, if one is.

    Few starts tell that it seems to be; else the whole interval must lie above 1, and its middle by `least`.
    """
    told: list[str] = []
    for other in others:
        name, how = RUNTIMES[other.runtime], f"--runtimes openvino,{other.runtime}"
        ours, theirs = answer.log_ratios, other.log_ratios
        common = theirs if answer.name == contest.control else {n: r - ours[n] for n, r in theirs.items() if n in ours}
        mean, low, high = mean_interval(list(common.values()) or [0.0], LEVEL)
        if len(common) >= ENOUGH:
            if low > 0 and mean >= max(math.log1p(contest.least), contest.noise or 0.0):
                ratio, interval = math.exp(mean), f"{math.exp(low):.2f} to {math.exp(high):.2f}"
                told.append(f"{name} is {ratio:.2f} times as fast as {answer.name} ({interval}): {how}.")
        elif (times := (other.times_as_fast or 0.0) / (answer.times_as_fast or 1.0)) >= STRIKING:
            told.append(f"At first sight {name} is about {times:.1f} times as fast: {how}.")
    return tuple(told)


def _complexity_key(candidate: CandidateRecord) -> tuple[bool, bool, bool, int]:
    """Return what the simplest has least of: a split, threads that are not pinned, pinning asked for, properties."""
    given = [item for properties in candidate.settings.values() for item in properties.items()]
    return not candidate.single, (PINNING, "NO") in given, (PINNING, "YES") in given, len(given)


def _claim_verdict(best: str, known: Mapping[str, CandidateRecord], contest: ContestRecord) -> Verdict:
    ratio = contest.ratios[best]
    others = (
        _describe_speedup(best, contest.over_default, "the plug-in defaults", contest.default, contest.control),
        _describe_speedup(best, contest.over_hint, "the best hint", contest.hint, contest.control),
    )
    text = (
        f"Use {best}: {ratio.ratio:.3f} times {_better_text(contest)} as the best baseline, {contest.control} "
        f"({_format_interval(ratio)}, {100 * contest.level:g} % confidence for all candidates together)"
    )
    gain = ratio
    text = "; ".join([text, *(words for words in others if words)]) + "."
    return Verdict(best, text, gain)


def _better_text(contest: ContestRecord) -> str:
    return "as fast" if contest.objective == "latency" else "as many inferences per second"


def _describe_speedup(best: str, ratios: Mapping[str, RatioEstimate], what: str, name: str, control: str) -> str:
    """Return how much faster than another baseline the answer is; "" where that is the best baseline or unknown."""
    if best not in ratios or name in (control, ""):
        return ""
    return f"{ratios[best].ratio:.3f} times {what}, {name} ({_format_interval(ratios[best])})"


def _format_interval(ratio: RatioEstimate) -> str:
    return f"{ratio.low:.3f} to {ratio.high:.3f}"


def _at_first_sight(known: Mapping[str, CandidateRecord], contest: ContestRecord) -> str:
    """Return a sentence on what seems much faster than the control by too few starts; "" if nothing does."""
    told = {name for name, ratio in contest.ratios.items() if ratio.starts >= ENOUGH}
    there = {n: c for n, c in known.items() if n not in told and not (c.same_as or c.reported_only)}
    seen = {n: c.times_as_fast or 0.0 for n, c in there.items()}
    best = max(seen, key=lambda name: seen[name], default="")
    if not best or seen[best] < STRIKING:
        return ""
    return f" In the screening {best} was about {seen[best]:.1f} times as fast; confirm it with a larger --budget."


def gain_over_default(contest: ContestRecord) -> RatioEstimate | None:
    """Return how many times as fast as the plug-in's default the control is; None where that cannot be claimed."""
    ratio = contest.ratios.get(contest.default)
    if ratio is None or ratio.starts < ENOUGH or contest.disturbed or contest.control == contest.default:
        return None
    if ratio.high >= 1 or -math.log(ratio.ratio) <= max(math.log1p(contest.least), contest.noise or 0.0):
        return None
    return RatioEstimate(1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low if ratio.low > 0 else math.inf, ratio.starts)


def possible_gain(contest: ContestRecord, known: Mapping[str, CandidateRecord]) -> float:
    """Return by what share a compared candidate may still be faster than the control, by the ends of intervals."""
    return max((r.high - 1 for n, r in contest.ratios.items() if not known[n].baseline and r.high > 1), default=0.0)


def _no_claim(contest: ContestRecord, known: Mapping[str, CandidateRecord]) -> Verdict:
    name = contest.control
    single = "" if known[name].single else " No single device can run the model."
    searched = [n for n in contest.ratios if not known[n].baseline]
    waiting = [c for c in known.values() if not (c.baseline or c.same_as or c.failed or c.log_ratios)]
    if not searched and waiting:
        text = (
            f"No time was left to compare candidates with {name}, the fastest baseline of the screening. Use it. "
            f"Add at least {max(1, math.ceil(contest.missing_s))} s to --budget.{_at_first_sight(known, contest)}"
        )
    elif not searched and not contest.ratios:
        text = f"Every candidate that runs is equivalent to {name}. Use it."
    elif contest.disturbed:
        text = (
            f"No decision: other processes disturb this machine so much that two runs of {name} differ by up to "
            f"{100 * math.expm1(contest.noise or 0.0):.1f} %. Use {name}; measure again when the machine is quiet."
        )
    else:
        most = possible_gain(contest, known)
        level = f"{100 * contest.level:g} % confidence"
        baselines = max((r.high - 1 for n, r in contest.ratios.items() if known[n].baseline and n != TWIN), default=0.0)
        tried = " of what was searched" * (baselines > most)  # a baseline that scatters may be more
        tried = " of what was tried" if any(map(is_untried, known.values())) else tried
        bound = f"; at most {100 * most:.1f} % is possible{tried}" if most < 1 else ""
        least = f"{100 * contest.least:g} %"
        sight = _at_first_sight(known, contest)
        text = f"No significant speed-up of {least} or more over {name} ({level}{bound}). Use {name}.{sight}"
        if (over := gain_over_default(contest)) is not None:
            rest = (
                f"Nothing searched is significantly faster, by {least} or more, than {name}{bound.replace(';', ':')}."
                if searched
                else "Everything searched is equivalent to a baseline."
            )
            text = (
                f"Use {name}, the best baseline: {over.ratio:.3f} times {_better_text(contest)} as the plug-in "
                f"defaults, {contest.default} ({_format_interval(over)}, {level}). {rest}{sight}"
            )
    return Verdict(name, text + single, NONE)
