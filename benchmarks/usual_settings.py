"""Whether what `tune` answers is at least as fast as the settings that people usually try, on a dozen models.

Each model is tuned within a budget; then its answer is the control in a contest with the six usual settings: the
latency, throughput and cumulative hints, one thread, all threads, AUTO. None may be faster for certain.

python -m benchmarks.usual_settings [latency | throughput] [budget in seconds] [seconds of each contest]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import Figure, figure, say, silent, timed
from pipeline import api
from pipeline.core.deadline import Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.settings import MeasureSettings
from pipeline.result.result import Result
from pipeline.settings.config import Settings
from pipeline.shared.payload import read_json
from pipeline.store.store import Store
from pipeline.system.process import cpu_count
from runtime import zoo
from runtime.measuring.contest.contest import Contest, run_contest
from runtime.measuring.contest.pair_bench import PairBench
from runtime.measuring.contest.variant import Variant
from tests.exported_models import EXPORTED

BUDGET_S = 40.0
CONTEST_S = 25.0
NETWORKS = ("inception-v3",)
EXPORTS = (
    "dynamic_batch_cnn",
    "detector",
    "text_detector",
    "text_recogniser",
    "lstm_states_as_inputs",
    "nms_detector",
    "text_classifier",
    "qdq_cnn",
    "uint8_images",
    "fp16_weights",
    "lstm_with_state",
)
THREADS, STREAMS, HINT = "INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT"


def figures(objective: str = "latency", budget_s: float = BUDGET_S, contest_s: float = CONTEST_S) -> Iterator[Figure]:
    """Yield for every model how fast the best usual setting is beside the answer, and the seconds; then the sums."""
    lost, gains, longest = [], 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, make in models().items():
            place = Path(folder) / name
            place.mkdir()
            path = make(place)
            try:
                spent_s, result = timed(lambda path=path, place=place: tuned(path, place, objective, budget_s))  # type: ignore[misc]
            except UsageError as error:  # the budget did not suffice for an answer
                lost.append(name)
                yield figure(
                    f"usual_settings.{objective}.{name}", None, "of the answer's speed", str(error), target=1.02
                )
                continue
            found = against_usual(result, whole_model(result, place), objective, contest_s)
            ratios = [] if found.judgement is None else [r.ratio for r in found.judgement.ratios.values()]
            best = max(ratios, default=None)
            faster = found.judgement.claimed if found.judgement else ()
            lost += [name] if faster else []
            gains += best is not None and best <= 1 / 1.1
            longest = max(longest, spent_s)
            splits = sum(c.kind == "split" and c.latency_s is not None for c in result.record.candidates)
            how = f"{objective}: answer {result.record.best}; {splits} splits measured; {result.verdict}"
            yield figure(f"usual_settings.{objective}.{name}", best, "of the answer's speed", how, target=1.02)
            yield figure(f"usual_settings.{objective}.{name}.seconds", spent_s, "s", f"--budget {budget_s:g}s")
    of = f"of {len(models())}, where a usual setting was faster for certain, or there was no answer"
    how = f"{of}: {', '.join(lost) or 'none'}"
    yield figure(f"usual_settings.{objective}.lost", len(lost), "models", how, target=1)
    yield figure(
        f"usual_settings.{objective}.tenth", gains, "models", "whose answer is 1.1 times the best usual setting"
    )
    yield figure(f"usual_settings.{objective}.longest", longest, "s", "of tuning", target=1.1 * budget_s + 5)


def models() -> Mapping[str, Callable[[Path], Path]]:
    """Return what makes each model in a folder."""

    def of_zoo(name: str) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            zoo.export(name, folder / f"{name}.xml")
            return folder / f"{name}.xml"

        return make

    return {name: of_zoo(name) for name in NETWORKS} | {name: EXPORTED[name] for name in EXPORTS}


def tuned(path: Path, folder: Path, objective: str, budget_s: float) -> Result:
    """Return what tuning a model comes to, from an empty store."""
    settings = Settings().updated({"budget": budget_s, "measure.objective": objective}, "the benchmark")
    found = api.advance_run(path, settings, folder / "run", Store(folder / "store"), upto="measure", progress=silent)
    if found.result is None:
        raise RuntimeError("a run up to measure has a result")
    return found.result


def whole_model(result: Result, folder: Path) -> Path:
    """Return the model as it was read, before any batch, from the store in a folder."""
    read = next(stage for stage in result.record.stages if stage.stage == "read")
    entry = Store(folder / "store").find(read.key)
    if entry is None:
        raise RuntimeError("a run that has just ended has its model in the store")
    return entry.path("model.xml")


def against_usual(result: Result, model: Path, objective: str, seconds: float) -> Contest:
    """Return the contest of a run's answer, as its control, with the usual settings; those are what is searched."""
    settings = MeasureSettings(objective="throughput" if objective == "throughput" else "latency", alone_s=0.0)
    control = answer(read_json(result.path / "placement.json"))
    variants = [control, *usual(objective, result.best.precision)]
    with PairBench(model, settings, result.record.seed) as bench:
        return run_contest(variants, lambda _: [], bench, settings, Deadline.after(seconds), say=silent, everyone=True)


def answer(document: Mapping[str, Any]) -> Variant:
    """Return the variant that a placement.json describes."""
    devices = tuple(
        DeviceSpec(name, d["plugin"], d["openvino_name"], d["properties"], "cpu")
        for name, d in document["devices"].items()
    )
    split = document["target"].startswith("HETERO") and document["placement"]
    known = {d.name: d.openvino_name for d in devices}
    affinity = {op: known[d] for op, d in document["placement"].items()} if split else None
    how = (document["target"], devices, document["properties"], affinity)
    many = {"requests": document["requests"], "batch": document["batch"]}
    return Variant("answer", "answer", *how, single=True, kind="default", **many)


def usual(objective: str, precision: str) -> list[Variant]:
    """Return what people usually try, in the answer's precision where that is one."""
    requests = 0 if objective == "throughput" else 1
    pinned = {"INFERENCE_PRECISION_HINT": precision} if precision in ("f32", "bf16", "f16") else {}

    def variant(name: str, target: str = "CPU", **properties: str) -> Variant:
        device = DeviceSpec("CPU", "CPU", "CPU", pinned | (properties if target == "CPU" else {}), "cpu")
        of_target = {} if target == "CPU" else properties
        return Variant(name, "usual", target, (device,), of_target, None, True, "settings", requests)

    found = [
        variant("latency hint", **{HINT: "LATENCY"}),
        variant("throughput hint", **{HINT: "THROUGHPUT"}),
        variant("cumulative", "AUTO:CPU", **{HINT: "CUMULATIVE_THROUGHPUT"}),
        variant("one thread", **{THREADS: "1"}),
        variant("all threads", **{THREADS: str(cpu_count())}),
        variant("AUTO", "AUTO:CPU", ENABLE_STARTUP_FALLBACK="NO"),
    ]
    return [replace(v, name=f"usual {v.name}") for v in found]


if __name__ == "__main__":
    say(figures(*(kind(text) for kind, text in zip((str, float, float), sys.argv[1:], strict=False))))
