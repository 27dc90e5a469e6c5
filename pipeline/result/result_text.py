"""What a result says to people: candidates, failures and searches in words, from the records of result.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.core.devices import CostTable
from pipeline.core.estimates import LatencyEstimate
from pipeline.core.figures import bytes_text, number_text, share_text, shares_of
from pipeline.core.graph import Graph
from pipeline.placing.records import ContestRecord, MeasuredRow, SearchRecord
from pipeline.placing.shortlist import CALIBRATION
from pipeline.result.records import CandidateRecord, ResultRecord

KINDS: Mapping[str, str] = {
    "refused": "refused: ",
    "out_of_memory": "out of memory: ",
    "timeout": "took too long: ",
    "crashed": "crashed: ",
    "wrong_output": "",  # the message says it all
}
PIPELINED = "pipelined"  # the simulator of the largest load, which is the time from one inference to the next
MOST_NAMED = 4  # candidates in a sentence
DISTURBED = 0.1  # share of the threads' time spent waiting for a processor above which a person should know
METHODS: Mapping[str, str] = {
    "single": "a single device",
    "start": "where the search began",
    "drawn": "drawn at random",
}


def model_name(path: str) -> str:
    """Return a model as a person named it: a network of the zoo is not the file in the store that it was written to.

    >>> model_name("/cache/placewright/zoo/1/bilstm-128.xml"), model_name("models/net.xml")
    ('zoo:bilstm-128', 'models/net.xml')
    """
    parts = Path(path).parts
    return f"zoo:{Path(path).stem}" if parts[-3:-2] == ("zoo",) and parts[-2].isdigit() else path


def failure_text(kind: str, message: str) -> str:
    """Return why a candidate has no latency.

    >>> failure_text("timeout", "no answer within 120 s")
    'took too long: no answer within 120 s'
    """
    return KINDS[kind] + message


def refusal_text(refused: str) -> str:
    """Return a search's "kind: message" as people read it."""
    kind, _, message = refused.partition(": ")
    return failure_text(kind, message) if kind in KINDS else refused


def time_shares(placement: Mapping[str, str], graph: Graph, costs: CostTable) -> dict[str, float]:
    """Return by device the share of all operations' profiled seconds that a placement gives it, the largest first."""
    row = {name: i for i, name in enumerate(costs.names)}
    column = {name: j for j, name in enumerate(costs.devices)}
    total: dict[str, float] = {}
    for name in graph.names:
        device = placement[name]
        seconds = float(costs.op_s[row[name], column[device]])
        total[device] = total.get(device, 0.0) + (seconds if np.isfinite(seconds) else 0.0)
    return shares_of(total)


def is_first_sight(candidate: CandidateRecord, contest: ContestRecord | None) -> bool:
    """Return whether all that is known of a candidate's speed is a start of the screening, which has no milliseconds.

    >>> is_first_sight(CandidateRecord("a", "settings", False, True, [], 1, times_as_fast=1.2), None)
    False
    """
    if contest is None or candidate.latency_s is None or candidate.times_as_fast is None:
        return False
    return not candidate.log_ratios and candidate.name != contest.control


def format_milliseconds(candidate: CandidateRecord, contest: ContestRecord | None) -> tuple[str, str]:
    """Return what an inference takes, and from which to which over starts; "" where that is unknown.

    It is what the control took in the final, divided by how many times as fast as the control the candidate is.
    """
    latency = candidate.latency_s
    if latency is None or is_first_sight(candidate, contest):
        return "", ""
    ends = [number_text(s * 1e3) for s in (latency.fastest, latency.slowest) if s is not None]
    about = "about " if contest is not None and not ends else ""  # how far starts scatter is unknown of one
    return f"{about}{number_text(latency.median * 1e3)}", " to ".join(ends)


def format_speedup(candidate: CandidateRecord, contest: ContestRecord | None) -> str:
    """Return how many times as fast as the control a candidate is, with the interval; "about" what is a first sight.

    Of a single start in the final no interval is known.
    """
    if contest is None or candidate.times_as_fast is None:
        return ""
    if candidate.name == contest.control:
        return "1"
    ratio = contest.ratios.get(candidate.name)
    if ratio is None and not candidate.log_ratios:
        return f"about {candidate.times_as_fast:.2f}"
    if ratio is None:  # the control's twin, or a single start
        return f"{candidate.times_as_fast:.3f}"
    return f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def disturbed_text(result: ResultRecord) -> str:
    """Return a warning where the threads of a measurement waited for processors that nobody asked to share; else ""."""
    waited = max((c.waited_share or 0.0 for c in result.candidates), default=0.0)
    if waited <= DISTURBED or (result.contest is not None and result.contest.condition == "shared"):
        return ""
    return (
        "Other processes disturbed the measurement: threads spent up to "
        f"{waited:.0%} of their time waiting for a processor. Measure again while the machine is quiet."
    )


def realtime_text(candidates: Sequence[CandidateRecord]) -> str:
    """Return in one sentence that turns ran under real-time scheduling; "" if they did not."""
    if not any(c.realtime for c in candidates):
        return ""
    return (
        "Candidates were compared under real-time scheduling, which keeps other processes away. Expect the latency of "
        "the answer alone in your own program."
    )


def reader_warnings(result: ResultRecord) -> list[str]:
    """Return in sentences all that a reader of a result must know beside its verdict, the same wherever it is shown."""
    candidates = result.candidates
    told = [untried_text(candidates), alike_text(candidates), slow_starts_text(result.contest)]
    told.append(realtime_text(candidates))
    return [line for line in (*told, *result.notes, disturbed_text(result)) if line]


def alike_text(candidates: Sequence[CandidateRecord]) -> str:
    """Return in one sentence which candidates are one with others; "" if none are."""
    names = [f"{c.name} ({c.same_as})" for c in candidates if c.same_as]
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"Duplicates, which the plug-in runs as the candidate in brackets: {', '.join(names[:MOST_NAMED])}{more}."


def slow_starts_text(contest: ContestRecord | None) -> str:
    """Return how often whole starts of a candidate were slow, how slow, and what avoids it; "" if none were."""
    if contest is None:
        return ""
    slow = {name: told for name, told in contest.starts.items() if told.slow and name in _figure_names(contest)}
    if not slow:
        return ""
    lines = [
        f"{told.slow} of {_count_of(told.starts, 'start')} of {name} took about {told.times:.1f} times as long as usual"
        for name, told in sorted(slow.items(), key=lambda item: -item[1].slow)
    ]
    steady = [n for n, told in contest.starts.items() if n in contest.ratios and not told.slow and told.starts > 2]
    avoided = "no compared setting is known to avoid it"
    if steady:
        name = max(steady, key=lambda n: contest.starts[n].starts)
        avoided = f"none of the {contest.starts[name].starts} starts of {name} was slow"
    return f"{', '.join(lines[:MOST_NAMED])}, for the whole start; {avoided}."


def _figure_names(contest: ContestRecord) -> set[str]:
    """Return the names of the candidates of the final, and of the baselines."""
    return {*contest.ratios, contest.control, contest.default, contest.hint}


def untried_text(candidates: Sequence[CandidateRecord]) -> str:
    """Return in one sentence what there was no time for; "" if everything was tried."""
    names = [c.name for c in candidates if is_untried(c)]
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"Not tried within the budget: {', '.join(names[:MOST_NAMED])}{more}. A larger --budget continues from here."


def is_untried(candidate: CandidateRecord) -> bool:
    """Return whether there was no time to run a candidate at all, and nothing that is one with it ran instead."""
    return candidate.latency_s is None and candidate.failed is None and not candidate.same_as


def describe_candidate(row: MeasuredRow, shares: Mapping[str, float]) -> str:
    """Return in words what a candidate is, from its record of the measure stage and the shares of its devices."""
    from runtime.measuring.contest.baselines import HINT
    from runtime.measuring.contest.space import settings_words

    kind, parts = row.get("kind"), row.get("subgraphs") or 1
    pieces = f", {parts} sub-graphs" if parts > 1 else ""
    if shares:
        runner = f", in segments by {row['runner']}" if row.get("runner") else ""
        return ", ".join(f"{device} {share_text(share)}" for device, share in shares.items()) + pieces + runner
    if row.get("runtime", "openvino") != "openvino":
        options = [f"{name}={value}" for name, value in row["devices"][0]["properties"].items()]
        return ", ".join([row["target"], *(options or ["default options"])])
    if kind in ("default", "hint") and row["devices"]:
        device, precision = row["devices"][0], row.get("precision", "")
        hint = device["properties"].get(HINT, "")
        return f"{device['plugin']} plug-in {f'with the {hint} hint' if kind == 'hint' else 'defaults'}, {precision}"
    if row["single"] and row["devices"]:
        device = row["devices"][0]
        how = row.get("requests", 1), row.get("batch", 1), row.get("rewrite", "")
        return ", ".join(settings_words(device["plugin"], device["properties"], *how))
    ran = " and ".join(row.get("executed_on", ()))
    how_chosen = " ".join(filter(None, (row.get("target", "OpenVINO"), row.get("properties", {}).get(HINT, ""))))
    return f"chosen by {how_chosen}{f': {ran}' if ran else ''}{pieces}"


def winner_text(candidates: Sequence[CandidateRecord]) -> str:
    """Return in one sentence how fast each placer's fastest placement is; "" where none of them ran.

    candidates: of the result, fastest first; what was in the screening alone has no milliseconds.
    """
    best: dict[str, LatencyEstimate] = {}
    for c in candidates:
        if c.baseline or c.kind == "settings" or c.placer == CALIBRATION:
            continue
        if c.latency_s is not None and (c.log_ratios or c.times_as_fast is None):  # else it is a first sight
            best.setdefault(c.placer, c.latency_s)
    if not best:
        return ""
    words = [f"{placer} {latency.median * 1e3:.2f} ms" for placer, latency in best.items()]
    return f"Fastest split by placer: {', '.join(words)}."


def pipelines_text(searches: Sequence[SearchRecord], candidates: Sequence[CandidateRecord]) -> str:
    """Return how many inferences a second the best pipeline of each placer was predicted to make, and made; "" if none.

    The first finalist of a placer is the one of which its search tells.
    """
    rates = {c.name: c.rate for c in candidates if c.rate and (c.log_ratios or c.times_as_fast is None)}
    lines = []
    for search in searches:
        name = f"{search['placer']} 1 pipeline"
        if search["evaluator"] == PIPELINED and search["value_s"] and name in rates:
            lines.append(f"{name} {rates[name]:.4g} (predicted: {1 / search['value_s']:.4g})")
    return f"Inferences per second: {', '.join(lines)}." if lines else ""


def alone_text(candidates: Sequence[CandidateRecord], best: str) -> str:
    """Return what the answer takes when it runs alone: percentiles, memory, loading; "" if that is unknown."""
    c = next(c for c in candidates if c.name == best)
    words = [
        f"p{share} {seconds * 1e3:.2f} ms{_format_range(c.alone_between.get(share))}"
        for share, seconds in c.alone.items()
    ]
    if not words:
        return ""
    if c.cpu_s is not None:
        words.append(f"{c.cpu_s * 1e3:.2f} ms of processor time per inference")
    if c.peak_bytes is not None:
        words.append(f"peak memory {bytes_text(c.peak_bytes)}")
    if c.compile_s is not None:
        words.append(f"loads in {c.compile_s:.2f} s")
    plain = ", without real-time scheduling" if c.realtime else ""
    return f"{c.name} alone{plain}: {', '.join(words)}."


def sizes_text(c: CandidateRecord) -> str:
    """Return what a candidate takes at each of several sizes of the inputs; "" where there is one."""
    each = (f"{number_text(s.latency_s * 1e3)} ms at {s.shapes}, {s.times_as_fast:.3f} times as fast" for s in c.sizes)
    return f"{c.name} by size: {'; '.join(each)}." if c.sizes else ""


def _format_range(ends: tuple[float, float] | None) -> str:
    return f" ({ends[0] * 1e3:.2f} to {ends[1] * 1e3:.2f})" if ends else ""


def search_text(search: SearchRecord) -> str:
    """Return in a few sentences what a placer's search came to."""
    tried, asked = search["evaluations"], search["measurements"]
    done = f"{search['placer']} simulated {_count_of(tried, 'placement')}"
    if search["reward"] == "measured":
        done = f"{search['placer']} measured {_count_of(tried, 'placement')}"
    elif search["reward"] == "hybrid":
        done += f", of which {asked or 'none'} {'was' if asked == 1 else 'were'} measured"
    sentences = [done, _best_text(search), *_calibration_text(search)]
    return " ".join([*(f"{s}." for s in sentences if s), *search.get("notes", ())])


def _best_text(search: SearchRecord) -> str:
    measured_s: float | None = search["measured_s"]
    hybrid = search["reward"] == "hybrid"
    if hybrid and measured_s is None and search["predicted_s"] is None and search["value_s"] is not None:
        return "It found no new placement"
    predicted_s: float | None = search["predicted_s"] if hybrid else search["value_s"]
    if search["reward"] == "measured":
        predicted_s = None
    method = METHODS.get(search["found_by"], f"found by {search['found_by']}")
    if measured_s is not None:
        predicted = "" if predicted_s is None else f" (predicted: {predicted_s * 1e3:.2f} ms)"
        takes = f"took {measured_s * 1e3:.2f} ms{predicted}"
    elif predicted_s is not None:
        takes = f"is predicted to take {predicted_s * 1e3:.2f} ms"
    else:
        return "None of them is feasible"
    text = f"The best, {method}, {takes}"
    if not search["lower_bound_s"] or hybrid:  # whose simulator changes with every measurement
        return text
    if search["proven"]:
        return f"{text}, proven optimal in the simulator"
    return f"{text}; lower bound in the simulator {search['lower_bound_s'] * 1e3:.2f} ms"


def _calibration_text(search: SearchRecord) -> list[str]:
    refused = search.get("refused")
    if refused and not search["used"]:
        return [f"The simulator could not be calibrated to measurements: {refusal_text(refused)}"]
    errors = [r["error"] for r in search.get("rounds", ()) if r["error"] is not None]
    if not errors:
        return []
    listed = ", then ".join(f"{100 * e:.1f} %" for e in errors)
    return [f"Median prediction error before each calibration of the simulator: {listed}"]


def _count_of(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
