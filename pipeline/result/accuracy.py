"""How right the answers of a run are, in words: the fastest exact and the fastest allowed one, and what was judged."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.accuracy import Accuracy
from pipeline.placing.records import ContestRecord
from pipeline.result.records import CandidateRecord
from pipeline.result.result_text import format_speedup
from pipeline.shared.model_inputs import NOISE, TIMED, describe_kinds, first_samples


def share_of_outputs(share: float | None) -> str:
    """Return a share by which outputs differ.

    >>> share_of_outputs(0.0), share_of_outputs(1.24e-7), share_of_outputs(0.0419), share_of_outputs(None)
    ('0 %', '1.2e-05 %', '4.2 %', 'infinitely much')
    """
    return "infinitely much" if share is None else f"{100 * share:.2g} %"


def accuracy_cell(candidate: CandidateRecord) -> str:
    """Return by how much a candidate's outputs differ, for a table; "" where nobody knows.

    What was only screened was compared on the first kind of inputs alone, which is then named.
    """
    if candidate.accuracy is None:
        return "" if candidate.difference is None else share_of_outputs(candidate.difference)
    alone = " on noise" if candidate.accuracy.kinds == (NOISE,) else ""
    return share_of_outputs(candidate.accuracy.worst) + alone


def accuracy_text(candidate: CandidateRecord, metric: str = "") -> str:
    """Return all that is known of how right a candidate is; "" where that is nothing.

    metric: name of the user's own measure of quality, if there is one.
    """
    accuracy = candidate.accuracy
    if accuracy is None:
        return ""
    limits = accuracy.limits
    parts = []
    if metric and accuracy.lost is not None:
        parts.append(f"{metric} falls by {share_of_outputs(accuracy.lost)} from the reference")
    where = f", {accuracy.output}" if accuracy.output else ""
    rule = f"; {accuracy.rule}" if accuracy.rule else ""
    allowed = "" if metric else f" ({share_of_outputs(limits.output)} allowed{where}{rule})"
    parts.append(f"outputs differ by {share_of_outputs(accuracy.difference)} from the reference{allowed}")
    if accuracy.difference:
        parts.append(f"by {share_of_outputs(accuracy.mean)} in the mean")
        parts += [f"{accuracy.channel} by {share_of_outputs(accuracy.channel_difference)}"] if accuracy.channel else []
    if accuracy.indices:
        parts.append(
            f"{share_of_outputs(accuracy.indices)} of indices differ ({share_of_outputs(limits.indices)} allowed)"
        )
    if accuracy.rows:
        parts.append(
            f"{share_of_outputs(accuracy.rows)} of rows have no match ({share_of_outputs(limits.rows)} allowed)"
        )
    if accuracy.flips:
        parts.append(f"{accuracy.flips} of {accuracy.decisions} decisions flip")
    if accuracy.from_float is not None:
        own = share_of_outputs(accuracy.reference_from_float)
        parts.append(f"from the model in float by {share_of_outputs(accuracy.from_float)}, the reference by {own}")
    kinds = f"; compared on {describe_kinds(accuracy.kinds)}" if len(accuracy.kinds) > 1 else ""
    return f"{candidate.name}, {candidate.precision}: {', '.join(parts)}{kinds}."


def checks_text(contest: ContestRecord) -> str:
    """Return how long comparing outputs took beside measuring; "" where nothing was compared."""
    return (
        f"Comparing outputs took {contest.checks_s:.1f} s while candidates were measured." if contest.checks_s else ""
    )


def both_answers(best: str, known: Mapping[str, CandidateRecord], contest: ContestRecord) -> tuple[str, ...]:
    """Return the fastest exact answer and the fastest allowed one, a sentence each; none where they are the same.

    best: the answer. Exact is what differs by no more than f32 may, on all kinds of inputs that the answer was compared
    on. What was compared with an interval goes before what was only seen at first sight.
    """
    answer = known[best].accuracy
    if answer is None or answer.exact:
        return ()
    there = [c for c in known.values() if c.latency_s is not None and not c.reported_only]
    told = [c for c in there if c.accuracy is not None and set(c.accuracy.kinds) >= set(first_samples(answer.kinds))]
    exact = [c for c in told if c.accuracy is not None and c.accuracy.exact]
    exact.sort(key=lambda c: _standing_key(c, contest))
    none = "No candidate that was compared on all inputs is exact."
    words = [f"Fastest exact answer: {_answer_text(exact[0], contest)}." if exact else none]
    allowed = share_of_outputs(answer.limits.output) + (f"; {answer.rule}" if answer.rule else "")
    return (*words, f"Fastest answer within the tolerance ({allowed}): {_answer_text(known[best], contest)}.")


def _standing_key(candidate: CandidateRecord, contest: ContestRecord) -> tuple[int, float]:
    """Return what candidates are sorted by: those claimed, then those compared, then those seen, the fastest first."""
    if candidate.name in contest.claimed:
        return 0, contest.claimed.index(candidate.name)
    if candidate.name == contest.control:
        return 1, -1.0
    ratio = contest.ratios.get(candidate.name)
    return (1, -ratio.ratio) if ratio is not None else (2, -(candidate.times_as_fast or 0.0))


def _answer_text(candidate: CandidateRecord, contest: ContestRecord) -> str:
    accuracy: Accuracy | None = candidate.accuracy
    speed = format_speedup(candidate, contest)
    beside = "the best baseline" if candidate.name == contest.control else f"{speed} times as fast as {contest.control}"
    differs = share_of_outputs(accuracy.worst) if accuracy is not None else ""
    return f"{candidate.name}, {candidate.precision}, {beside}; outputs differ by {differs}"


def accuracy_inputs(candidate: CandidateRecord, *, given: bool) -> str:
    """Return what accuracy was judged on as long as no user gave inputs; "" where some were given, or none judged."""
    if given or candidate.accuracy is None:
        return ""
    if candidate.accuracy.kinds == (TIMED,):
        return "The source was not run: outputs were compared with this model's own on the CPU in f32, on one input."
    return "Accuracy was checked on generated inputs; pass your own with --input."
