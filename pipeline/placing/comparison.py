"""The final comparison: finalists, baselines and settings against one another, on the devices or in a simulator."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipeline.core.accuracy import Accuracy
from pipeline.core.deadline import Deadline
from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.core.stages import Measurer, Subject
from pipeline.placing.near import EARLIER
from pipeline.placing.records import Compared, ComparedRow, ContestRecord, MeasuredRow, VariantRow
from pipeline.placing.segment_variants import segment_variants
from pipeline.placing.shortlist import FinalistRow, candidate_name
from pipeline.placing.start_seconds import own_seconds, size_log_gains, size_seconds, slow_starts
from pipeline.shared import payload
from pipeline.shared.measured_sizes import MeasuredSize, load_sizes
from pipeline.shared.model_forms import ModelForm
from pipeline.shared.payload import EvaluationDocument
from pipeline.store.store import file_digest

if TYPE_CHECKING:
    from runtime.measuring.contest.contenders import Contender
    from runtime.measuring.contest.contest import Contest, Explore
    from runtime.measuring.contest.pair_bench import PairBench
    from runtime.measuring.contest.variant import Variant

ENOUGH_STARTS = 3  # for an interval
MEDIAN = 50.0  # the percentile of which the rate of one request is the inverse
PROMISING = 2  # settings that are tried before any split
# Settings that the figures of a start depend on, or whether it counts.
TOLD_BY_STARTS = (
    *("objective", "percentile", "turn_s", "realtime", "condition", "decode_steps", "dynamic_size"),
    *("accuracy", "tolerance", "low_tolerance", "metric", "metric_drop", "memory_bytes"),
)
CHECKS_SHARE, LEAST_CHECKS_S = 0.1, 1.0  # of the time that comparing outputs takes at most, and seconds it may take
PERCENTILES: Mapping[str, int] = {"50": 1, "90": 100, "99": 1000, "99.9": 10_000}  # and how many latencies tell them


@dataclass(frozen=True, slots=True)
class Conditions:
    """On what terms variants are compared.

    tried: what became of the model in low precisions; nothing is tried in those it does not tolerate. everyone: compare
    all finalists with the best of the devices alone, and let none of them leave. settings_first: no split is tried
    before all settings. forms: of the model, that settings are tried with. ran: what running the reference said of
    itself, if that is known; see `known_reference`. onnx: the source and ONNX Runtime's version, where that is
    measured, too.
    """

    settings: MeasureSettings
    deadline: Deadline
    tried: Sequence[Mapping[str, Any]] = ()
    everyone: bool = False
    settings_first: bool = False
    forms: Sequence[ModelForm] = (ModelForm(),)
    ran: Mapping[str, Any] | None = None
    onnx: tuple[Path, str] | None = None


def on_devices(
    subject: Subject,
    finalists: Sequence[FinalistRow],
    terms: Conditions,
    *,
    journal: Path,
    progress: Callable[[str], None],
) -> Compared:
    """Return what a contest of baselines, settings and finalists has come to.

    journal: a JSON Lines file of starts, of this contest or of one before it.

    Raises:
        ChildError: the reference cannot be run on the CPU.
    """
    from runtime.measuring.contest.contest import run_contest
    from runtime.measuring.contest.pair_bench import PairBench
    from runtime.measuring.contest.start_log import Written
    from runtime.measuring.contest.variant import known_reference
    from runtime.measuring.process.load import beside_load, load_threads

    if subject.model is None:
        raise ValueError("a graph alone cannot be measured")
    settings, deadline = terms.settings, terms.deadline
    variants, explore = _in_question(subject, terms)
    own = finalists if "openvino" in (settings.runtimes or ("openvino",)) else ()
    splits, placements = _split_variants(subject, own, settings.objective, settings.runtime)
    variants = order_variants(variants, splits, settings_first=terms.settings_first)
    checks_s = max(LEAST_CHECKS_S, CHECKS_SHARE * deadline.left_s)
    known = known_reference(subject.model, terms.ran)
    threads = load_threads(settings)
    sizes = load_sizes(subject.model.parent)
    bench_here = PairBench(subject.model, settings, subject.seed, known, checks_s=checks_s, sizes=sizes)
    with beside_load(threads), bench_here as bench:
        written = Written.of(bench, journal, _conditions_digest(subject, settings))
        outcome = run_contest(variants, explore, written, settings, deadline, everyone=terms.everyone, say=progress)
        alone = _latencies_alone(outcome, bench, settings, deadline, progress)
    rows = [
        _contender_row(outcome, name, placements.get(name), subject.graph, alone, settings, sizes)
        for name in outcome.entries
    ]
    record = contest_record(outcome, settings, checks_s=bench.checked_s, load_threads=threads)
    return {"rows": rows, "contest": asdict(record)}


def _in_question(subject: Subject, terms: Conditions) -> tuple[list[Variant], Explore]:
    """Return the baselines and the settings to try, and what gives the neighbours of settings."""
    from runtime.machines.devices import discover_plugins
    from runtime.measuring.contest.baselines import list_baselines
    from runtime.measuring.contest.space import Space
    from runtime.measuring.profile.precisions import without_untolerated

    settings = terms.settings
    plugins = without_untolerated(discover_plugins(), terms.tried)
    variants = list_baselines(subject.topology.devices, plugins, settings.objective)
    if terms.everyone:
        return [v for v in variants if v.kind == "device"], _nothing_around
    if not settings.settings:
        return _with_onnxruntime(variants, _nothing_around, terms)
    types = subject.graph.type_names
    attends = "ReadValue" in types and "ScaledDotProductAttention" in types
    space = Space.of(subject.topology.devices, plugins, settings.objective, terms.forms, keeps_keys=attends)
    known = {v.name for v in variants}
    return _with_onnxruntime([*variants, *(v for v in space.first() if v.name not in known)], space.around, terms)


def _with_onnxruntime(variants: Sequence[Variant], around: Explore, terms: Conditions) -> tuple[list[Variant], Explore]:
    """Return variants with those of ONNX Runtime, as far as it was asked for, and what gives the neighbours of each.

    Its default is a candidate beside OpenVINO's, before all settings as somebody may run that anyway; the baseline
    without them, and told of alone where nobody asked.
    """
    from runtime.measuring.contest.onnx_space import OnnxSpace

    if terms.onnx is None:
        return list(variants), around
    settings, asked = terms.settings, terms.settings.runtimes
    space = OnnxSpace.of(*terms.onnx, settings.objective)
    if "onnxruntime" not in asked:
        return [*variants, space.default("other runtime")], around
    more = space.first() if settings.settings else []

    def near(variant: Variant) -> Sequence[Variant]:
        return around(variant) if variant.onnx is None else space.around(variant)

    if "openvino" not in asked:
        return [space.default("default"), *more], near
    first = sum(v.baseline for v in variants)
    early = first + PROMISING
    return [*variants[:first], space.default(), *variants[first:early], *more, *variants[early:]], near


def order_variants(
    known: Sequence[Variant], splits: Sequence[Variant], *, settings_first: bool = False
) -> list[Variant]:
    """Return all variants in the order in which they are worth trying.

    Plug-in defaults are first, as something must be the control; then an earlier placement, which the user has; then
    settings and hints, the most promising first, and after a few settings a runtime that is reported alone, and the
    best split; what is left to the runtime's choice is last. settings_first: other splits come after all settings and
    devices.
    """
    earlier, splits = ([v for v in splits if (v.placer == EARLIER) == first] for first in (True, False))
    default, other, settings, hints, devices, own = (
        [v for v in known if v.kind == kind]
        for kind in ("default", "other runtime", "settings", "hint", "device", "own choice")
    )
    early = [*default, *earlier, *settings[:PROMISING], *other]
    if settings_first:
        return [*early, *settings[PROMISING:], *hints, *devices, *splits, *own]
    return [*early, *splits[:1], *settings[PROMISING:], *hints, *splits[1:], *devices, *own]


def _split_variants(
    subject: Subject, finalists: Sequence[FinalistRow], objective: str, runtime: str = "hetero"
) -> tuple[list[Variant], dict[str, Placement]]:
    """Return the variants that run the finalists, and by name the placements as they are deployed.

    runtime: "hetero", "dataflow" for segments, or "auto" for both.
    """
    variants, placements = [], {}
    for rank, row in enumerate(finalists):
        placement = Placement.from_document(row, subject.graph.names, subject.topology.names)
        segmented = [] if runtime == "hetero" else segment_variants(subject, row, placement, objective, first=rank == 0)
        segmented += [] if runtime == "dataflow" else [_by_hetero(subject, row, placement, objective)]
        for variant, deployed in segmented:
            variants.append(variant)
            placements[variant.name] = deployed
    return variants, placements


def _by_hetero(subject: Subject, row: FinalistRow, placement: Placement, objective: str) -> tuple[Variant, Placement]:
    """Return the variant by which HETERO runs a finalist, and the placement as it is deployed.

    Where throughput counts, as many requests are in flight as the runtime advises.
    """
    from runtime.measuring.contest.variant import hetero_variant
    from runtime.measuring.process.affinity import affinities_of, normalise_placement

    graph, devices = subject.graph, subject.topology.devices
    variant = hetero_variant(candidate_name(row), row["placer"], devices, affinities_of(graph, placement, devices))
    return replace(variant, requests=0 if objective == "throughput" else 1), normalise_placement(graph, placement)


def _nothing_around(variant: Variant) -> list[Variant]:
    return []


def _conditions_digest(subject: Subject, settings: MeasureSettings) -> str:
    """Return a digest of what the figures of a start depend on beside its variants."""
    from runtime.measuring.outputs.quality import metric_file
    from runtime.measuring.process.load import load_threads

    told: dict[str, Any] = {"seed": subject.seed, "source": subject.graph.source, "load": load_threads(settings)}
    told |= {name: getattr(settings, name) for name in TOLD_BY_STARTS}
    if settings.metric:
        told["metric"] = file_digest(metric_file(settings.metric))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _latencies_alone(
    contest: Contest,
    bench: PairBench,
    settings: MeasureSettings,
    deadline: Deadline,
    progress: Callable[[str], None],
) -> dict[str, list[float]]:
    """Return the latencies of the likely answer and of the control, running on their own; none of whoever fails."""
    from runtime.measuring.process.child import ChildError

    claimed = contest.judgement.claimed if contest.judgement is not None else ()
    names = [name for name in dict.fromkeys((*claimed[:1], contest.control)) if name]
    latencies: dict[str, list[float]] = {}
    for name in names:
        seconds = min(settings.alone_s, deadline.left_s / 2)
        if seconds > 0:
            progress(f"running {name} alone")
            try:
                latencies[name] = list(bench.alone(contest.entries[name].variant, seconds))
            except ChildError as error:  # it ran beside others, which is what counts
                progress(f"{name} failed to run alone: {error.failed.message}")
    return latencies


def _contender_row(
    contest: Contest,
    name: str,
    placement: Placement | None,
    graph: Graph,
    alone: Mapping[str, Sequence[float]],
    settings: MeasureSettings,
    sizes: Sequence[MeasuredSize] = (),
) -> MeasuredRow:
    """Return the row of a variant."""
    from runtime.measuring.contest.hetero import measurement_of

    entry, result = contest.entries[name], contest.entries[name].failed
    if result is not None or not entry.starts:
        said: EvaluationDocument = payload.result_to_json(result) if result else {"failed": None, "samples_s": []}
        what = _variant_row(entry.variant, placement, graph)
        return _measured_row(
            what, said, {"left": entry.left, "same_as": entry.same_as, "requests": entry.variant.requests}
        )
    own = own_seconds(contest, name)
    starts, log_ratio = own.starts, contest.standing(name)
    measurement = measurement_of(entry.variant, starts[-1], np.array(own.samples_s))
    latency = latency_of(own.each_s)
    counted = settings.objective == "throughput" or settings.percentile == MEDIAN
    alone_s = list(alone.get(entry.variant.name, ()))
    accuracy = _accuracy_of(entry)
    standing: ComparedRow = {
        "left": entry.left,
        "same_as": entry.same_as,
        "requests": starts[-1].loaded["requests"],
        "times_as_fast": math.exp(log_ratio) if math.isfinite(log_ratio) else None,
        "log_ratios": {
            str(number): ratio
            for number, ratio in (contest.between(name, contest.control) if name != contest.control else {}).items()
        },
        "latency_s": asdict(latency),
        "rate": 1 / (latency.median if counted else float(np.mean(own.scaled_s))),
        "latencies_s": [s for start in starts for s in start.samples_s],
        "percentiles": percentiles_of(own.scaled_s),
        "alone_s": alone_s,
        "alone": percentiles_of(alone_s),
        "alone_between": intervals_of(alone_s),
        "cpu_s": float(np.median([s.cpu_s for s in starts])),
        "peak_bytes": max(s.peak_bytes for s in starts),
        "difference": accuracy.worst,
        "accuracy": accuracy.to_json(),
        "sizes": [
            {"shapes": str(size), "weight": size.weight, "times_as_fast": math.exp(gain), "latency_s": seconds}
            for size, gain, seconds in zip(
                sizes, size_log_gains(contest, name), size_seconds(contest, name), strict=True
            )
        ]
        if sizes
        else [],
    }
    said = payload.result_to_json(measurement)
    said["compile_s"] = float(np.median([s.loaded["compile_s"] for s in starts]))
    return _measured_row(_variant_row(entry.variant, placement, graph), said, standing)


def _accuracy_of(entry: Contender) -> Accuracy:
    """Return how far the outputs of a variant are from the reference's, by the start that compared most of them."""
    known = [Accuracy.from_json(s.loaded["accuracy"]) for s in (*entry.screened.values(), *entry.final.values())]
    return max(known, key=lambda accuracy: len(accuracy.kinds))


def _measured_row(variant: VariantRow, said: EvaluationDocument, standing: ComparedRow) -> MeasuredRow:
    return cast("MeasuredRow", {**variant, **said, **standing})


def latency_of(samples_s: Sequence[float]) -> LatencyEstimate:
    """Return the geometric mean of what the starts gave, with its interval if there are enough of them."""
    from runtime.measuring.contest.statistics import mean_interval

    mean, low, high = mean_interval(np.log(np.maximum(samples_s, 1e-12)).tolist(), 0.95)
    enough = len(samples_s) >= ENOUGH_STARTS
    return LatencyEstimate(
        median=math.exp(mean),
        low=math.exp(low) if enough else None,
        high=math.exp(high) if enough else None,
        fastest=min(samples_s) if len(samples_s) > 1 else None,
        slowest=max(samples_s) if len(samples_s) > 1 else None,
    )


def percentiles_of(latencies_s: Sequence[float]) -> dict[str, float]:
    """Return the percentiles that so many latencies can tell: ten of them lie beyond the 90th of a hundred."""
    n = len(latencies_s)
    told = [share for share, least in PERCENTILES.items() if n >= least]
    return {share: float(np.percentile(latencies_s, float(share))) for share in told}


def intervals_of(latencies_s: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Return the exact 95 % intervals of the percentiles that so many latencies can tell, where they have one.

    They hold for latencies that do not depend on one another.
    """
    from runtime.measuring.contest.statistics import quantile_interval

    intervals = {s: quantile_interval(latencies_s, float(s) / 100, 0.95) for s in percentiles_of(latencies_s)}
    return {share: ends for share, ends in intervals.items() if ends is not None}


def contest_record(
    contest: Contest, settings: MeasureSettings, *, checks_s: float = 0.0, load_threads: int = 0
) -> ContestRecord:
    """Return what was found out about the contest as a whole."""
    judgement = contest.judgement
    return ContestRecord(
        objective=settings.objective,
        percentile=settings.percentile,
        control=contest.control,
        default=contest.default,
        hint=contest.hint,
        level=settings.level,
        least=settings.least,
        claimed=list(judgement.claimed) if judgement else [],
        noise=judgement.noise if judgement and math.isfinite(judgement.noise) else None,
        disturbed=bool(judgement and judgement.disturbed),
        ratios={n: r for n, r in judgement.ratios.items() if r.starts > 1} if judgement else {},
        over_default=_ratios_over(contest, contest.default),
        over_hint=_ratios_over(contest, contest.hint),
        missing_s=contest.missing_s,
        metric=settings.metric.rpartition(":")[2],
        checks_s=checks_s,
        starts=slow_starts(contest),
        condition=settings.condition,
        load_threads=load_threads,
    )


def _ratios_over(contest: Contest, reference: str) -> dict[str, RatioEstimate]:
    """Return how many times as fast as a reference every variant of the final is, with an interval."""
    from runtime.measuring.contest.statistics import ratio_of

    if not reference or contest.judgement is None:
        return {}
    names = [n for n in contest.judgement.ratios if n != reference]
    logs = {name: list(contest.between(name, reference).values()) for name in names}
    level = 1 - (1 - contest.rules.level) / max(1, len(names))
    return {name: ratio_of(log, level) for name, log in logs.items() if len(log) > 1}


def in_simulator(subject: Subject, measurer: Measurer, finalists: Sequence[FinalistRow]) -> Compared:
    """Return the rows of the single devices and the finalists, as an evaluator without hardware sees them.

    See `on_devices`; there is no contest.
    """
    from runtime.measuring.contest.variant import Variant
    from runtime.measuring.process.affinity import HETERO_PROPERTIES, normalise_placement

    graph, topology = subject.graph, subject.topology
    asked: list[tuple[Variant, Placement, Placement | None]] = []
    for j, d in enumerate(topology.devices):
        alone = Variant(d.name, "baseline", f"HETERO:{d.openvino_name}", (d,), {}, single=True)
        asked.append((alone, Placement.single(graph.n, j, topology.names), None))
    for row in finalists:
        placement = Placement.from_document(row, graph.names, topology.names)
        used = tuple(d for d in topology.devices if d.name in placement.devices_used)
        target = "HETERO:" + ",".join(d.openvino_name for d in used)
        properties = HETERO_PROPERTIES if len(used) > 1 else {}
        variant = Variant(candidate_name(row), row["placer"], target, used, properties, kind="split")
        asked.append((variant, placement, normalise_placement(graph, placement)))
    results = measurer.bind(subject).evaluate([placement for _, placement, _ in asked])
    pairs = zip(asked, results, strict=True)
    rows = [
        _measured_row(_variant_row(v, moved, graph), payload.result_to_json(said), {}) for (v, _, moved), said in pairs
    ]
    return {"rows": rows, "contest": None}


def _variant_row(variant: Variant, placement: Placement | None, graph: Graph) -> VariantRow:
    """Return what a variant is."""
    return {
        "name": variant.name,
        "placer": variant.placer,
        "kind": variant.kind,
        "runtime": "openvino" if variant.onnx is None else "onnxruntime",
        "baseline": variant.baseline,
        "single": variant.single,
        "target": variant.target,
        "devices": [d.to_json() for d in variant.devices],
        "properties": dict(variant.properties),
        "batch": variant.batch,
        "rewrite": variant.rewrite,
        "runner": "" if variant.segments is None else variant.segments.runner,
        "placement": None if placement is None else placement.to_json(graph.names),
        "priority": None if placement is None else placement.order_json(graph.names),
    }
