"""How fast dynamically quantised models become by rewriting, beside the plug-in's default and ONNX Runtime.

Each generated model is read; every rewritten form is tried with the settings that a run tries first. The fastest takes
turns with the plug-in's default and with ONNX Runtime on as many threads, each in a fresh process, three times. Turns
run under real-time scheduling where that is allowed, for both runtimes alike, so that other processes do not decide.

python -m benchmarks.rewrites [transformer | narrow | conv | lstm | gru]...
python -m benchmarks.rewrites MODEL.onnx ...                    any other dynamically quantised model
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common import Figure, figure, say
from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from pipeline.core.devices import DeviceSpec
from pipeline.core.settings import MeasureSettings
from pipeline.shared.model_forms import FORMS, ModelForm
from pipeline.shared.model_inputs import input_name
from pipeline.shared.payload import read_json
from pipeline.system.process import cpu_count
from runtime.machines.devices import discover_plugins
from runtime.measuring.contest.baselines import list_baselines
from runtime.measuring.contest.pair_bench import REST_AFTER_REALTIME
from runtime.measuring.contest.space import Space
from runtime.measuring.contest.variant import Variant, outputs_of, start_child
from runtime.measuring.outputs.inputs import inputs_of
from runtime.measuring.process.child import ChildError
from runtime.measuring.process.worker import RealtimeScheduling, check_realtime
from tests.quantised_models import convolutions, quantised, recurrent, transformer

STARTS, ROUNDS, TURN_S = 3, 12, 0.05
SCREEN_ROUNDS = 4
SETTINGS = MeasureSettings()
Turn = Callable[[], float]  # runs inferences for a moment and returns the median seconds of one

MODELS: Mapping[str, tuple[Callable[[Path], Path], str, float]] = {
    "transformer": (lambda p: transformer(p, width=384, length=128, layers=6, heads=6), "int8 per channel", 2.5),
    "narrow": (lambda p: transformer(p, width=256, length=64, layers=4, heads=4), "uint8 per tensor", 2.5),
    "conv": (lambda p: convolutions(p, channels=48, pixels=64, layers=6), "uint8 per tensor", 1.5),
    "lstm": (lambda p: recurrent(p, "LSTM", width=128, hidden=256, steps=64), "int8 per tensor", 1.5),
    "gru": (lambda p: recurrent(p, "GRU", width=128, hidden=256, steps=64), "int8 per tensor", 1.5),
}


class RefusedError(RuntimeError):
    """The plug-in does not compile a variant."""


def figures(names: Sequence[str]) -> Iterator[Figure]:
    """Yield for every model the time of its best rewritten form over the default's, and over ONNX Runtime's."""
    slower = 0
    for name in names:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            if name in MODELS:
                make, way, least = MODELS[name]
                path = quantised(make(folder / f"{name}.onnx"), way)
            else:
                path, least = Path(name), math.nan
            read_in_process(path, folder, source=model_sha256(path), limits=ReadLimits())
            default, tried = variants(folder)
            best = screened([default, *tried], folder)
            times = in_turn([default, best], path, folder)
        over = {other: statistics.median(b / o for b, o in zip(times[1], times[i], strict=True)) for i, other in OTHERS}
        how = f"{best.name}, {statistics.median(times[1]) * 1e3:.3g} ms; {STARTS} fresh starts, {ROUNDS} turns each"
        key = f"rewrites.{Path(name).stem}"
        target = None if math.isnan(least) else 1 / least
        yield figure(f"{key}.over_default", over["default"], "of its time", how, target=target)
        yield figure(f"{key}.over_onnxruntime", over["ONNX Runtime"], "of its time", how, target=1.0)
        slower += over["ONNX Runtime"] >= 1
    yield figure("rewrites.slower", slower, "models", f"of {len(names)}, slower than ONNX Runtime", target=2)


OTHERS = ((0, "default"), (2, "ONNX Runtime"))  # positions in what `in_turn` returns


def variants(folder: Path) -> tuple[Variant, list[Variant]]:
    """Return the plug-in's default, and the rewritten forms with the settings that a run tries first."""
    forms = [ModelForm.from_json(row) for row in read_json(folder / FORMS)]
    devices = [DeviceSpec("CPU", "CPU", "CPU", {}, "cpu")]
    plugins = {"CPU": discover_plugins()["CPU"]}
    (default,) = (v for v in list_baselines(devices, plugins, "latency") if v.kind == "default")
    return default, [v for v in Space.of(devices, plugins, "latency", forms).first() if v.rewrite]


def screened(every: Sequence[Variant], folder: Path) -> Variant:
    """Return the fastest of the rewritten variants by a short look at each beside the first one.

    What the plug-in refuses, as int8 kernels of LSTMs in f16, is told and left out.
    """
    control, *tried = every
    ratios: dict[str, float] = {}
    for variant in tried:
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(by_openvino(control, folder))
            try:
                ours = stack.enter_context(by_openvino(variant, folder))
            except RefusedError as error:
                print(error, file=sys.stderr)
                continue
            ratios[variant.name] = statistics.median(ours() / theirs() for _ in range(SCREEN_ROUNDS))
    return min((v for v in tried if v.name in ratios), key=lambda v: ratios[v.name])


def in_turn(chosen: Sequence[Variant], path: Path, folder: Path) -> list[list[float]]:
    """Return the seconds of an inference of each variant, and of ONNX Runtime behind them, by start."""
    seconds: list[list[float]] = [[] for _ in range(len(chosen) + 1)]
    for _ in range(STARTS):
        with contextlib.ExitStack() as stack:
            turns = [stack.enter_context(by_openvino(variant, folder)) for variant in chosen]
            turns.append(stack.enter_context(by_onnxruntime(path, folder)))
            samples: list[list[float]] = [[] for _ in turns]
            for number in range(ROUNDS):
                for i in range(len(turns))[:: 1 if number % 2 else -1]:
                    samples[i].append(turns[i]())
        for mine, taken in zip(seconds, samples, strict=True):
            mine.append(statistics.median(taken))
    return seconds


@contextlib.contextmanager
def by_openvino(variant: Variant, folder: Path) -> Iterator[Turn]:
    """Give what runs a variant in a process of its own."""
    try:
        child, _ = start_child(variant, folder / "model.xml", SETTINGS, seed=0)
    except ChildError as error:
        raise RefusedError(f"{variant.name} does not run: {error.failed.message}") from error
    with child:
        outputs_of(child)
        realtime = child.ask("realtime")["allowed"]
        yield lambda: rested(child.ask("run", seconds=TURN_S, minimum=2, realtime=realtime)["samples_s"])


@contextlib.contextmanager
def by_onnxruntime(path: Path, folder: Path) -> Iterator[Turn]:
    """Give what runs the ONNX file in a process of its own, with the same inputs."""
    model = ov.Core().read_model(folder / "model.xml")
    arrays = inputs_of(model, folder / "model.xml", seed=0, dynamic_size=SETTINGS.dynamic_size)
    named: dict[str, Any] = {
        n: a for port, a in zip(model.inputs, arrays, strict=True) for n in (port.get_names() or {input_name(port)})
    }
    np.savez(folder / "feed.npz", **named)
    command = [sys.executable, "-m", "benchmarks.rewrites", "--serve", str(path), str(folder / "feed.npz")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process with pipes has them")
        asked, answers = process.stdin, process.stdout

        def turn() -> float:
            asked.write("run\n")
            asked.flush()
            return rested([float(json.loads(answers.readline()))])

        turn()
        yield turn
        asked.close()


def rested(samples_s: Sequence[float]) -> float:
    """Return the median, after a pause in which other processes get on."""
    time.sleep(REST_AFTER_REALTIME * TURN_S)
    return statistics.median(samples_s)


def serve(path: str, feed: str) -> None:
    """Answer every line on standard input with the median seconds of ONNX Runtime's inferences of one turn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cpu_count()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with np.load(feed) as arrays:
        given: dict[str, Any] = {port.name: arrays[port.name] for port in session.get_inputs()}
    for _ in sys.stdin:
        samples: list[float] = []
        with RealtimeScheduling(check_realtime({})["allowed"]):
            end = time.perf_counter() + TURN_S
            while time.perf_counter() < end or len(samples) < 2:
                begun = time.perf_counter()
                session.run(None, given)
                samples.append(time.perf_counter() - begun)
        print(statistics.median(samples), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        say(figures(sys.argv[1:] or list(MODELS)))
