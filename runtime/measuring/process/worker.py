"""The measuring child: one process that holds one compiled model, or one in segments, and answers commands.

It is started by `child` through `launch` and speaks one JSON object per line: a command on standard input, an answer on
standard output. A model that is loaded takes the place of the one before. Whatever native code prints goes to standard
error. A fault is an answer, {"error": {kind, message}}; only here is every exception caught, because a device may raise
anything.

    load     {variant, cache}                 -> LoadAnswer; cache: folder of compiled models, "" for none
    feed     {kind}                           -> {}; inferences to come take inputs of this kind, see `check_inputs_of`
    outputs  {path, kinds}                    -> {} and writes the outputs of one inference as npz, by kind of inputs
    run      {seconds, minimum, realtime}     -> RunAnswer; a model with state has it reset, and its last sequence is
                                                 run to its end
    arrive   {seconds, rate, seed}            -> {samples_s}, from the time of arrival
    burst    {seconds}                        -> {samples_s}, from sending one to every request till all have ended
    memory   {}                               -> {peak_bytes} since the model was loaded
    realtime {}                               -> {allowed}
    kernels  {count, seconds}                 -> {kernels: [[operation names], seconds], latency_s, mean_s, unmapped_s}
    support  {model, device}                  -> {refused: operation names}
    fusion   {model, device}                  -> {groups: [operation names]}
    link     {a, b, count}                    -> see `runtime.measuring.process.links`
    company  {model, devices, seed, dynamic_size, seconds} -> see `runtime.measuring.process.slowdown`
    locate   {variant, seconds, minimum}      -> see `runtime.measuring.process.locate_operations`
    results  {variant, checks, operations, paths} -> see `runtime.measuring.process.exposed_outputs`
    segments {folder, checks, paths}          -> see `runtime.measuring.process.segment_outputs`
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import openvino as ov
import psutil

from pipeline.core.devices import DeviceSpec
from pipeline.core.figures import bytes_text
from pipeline.shared.checks import save_by_kind
from pipeline.shared.model_forms import form_file
from pipeline.shared.model_inputs import TIMED
from pipeline.shared.runtime_words import refusal_in_words
from pipeline.system.process import die_with_parent, limit_address_space
from runtime.machines.devices import core_for
from runtime.measuring.outputs.inputs import check_inputs_of, inputs_of, sequence_length
from runtime.measuring.process import (
    batching,
    exposed_outputs,
    kernels,
    links,
    locate_operations,
    segment_outputs,
    slowdown,
)
from runtime.measuring.process.answers import LoadAnswer, RunAnswer
from runtime.measuring.process.child import MEMORY_LIMIT, speaks_of_memory
from runtime.measuring.process.disturbance import read_processor_times, waited_between
from runtime.measuring.process.executable import (
    Arrays,
    CompiledExecutable,
    Executable,
    InferenceRequest,
    KeptSegments,
    compile_executable,
)

LEAST_PROFILED = 3  # inferences that counters are averaged over, however long they take
Handlers = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]  # by what a command says to do
HEADROOM_BYTES = 32 << 20  # with less address space left than this, whatever failed failed for want of memory


class Session:
    """What is loaded, and its requests.

    decode_steps: inferences of a model with state before a request's state is reset. decoded: how many each request has
    behind it since then. batch: inferences that are computed at once. kept: segments compiled for earlier commands.
    """

    def __init__(self) -> None:
        self.requests: Sequence[InferenceRequest] = []
        self.loaded: Executable | None = None
        self.model: ov.Model | None = None
        self.path = Path()
        self.inputs: Arrays = []
        self.fed: dict[str, Arrays] = {}
        self.stateful = False
        self.decode_steps = 1
        self.decoded: list[int] = []
        self.batch = 1
        self.kept = KeptSegments()

    def load(self, command: Mapping[str, Any]) -> LoadAnswer:
        """Read, place and compile the variant, and set its inputs; whatever was loaded before is let go first."""
        if self.loaded is not None:
            self.loaded.close()
        self.requests, self.loaded, self.model = [], None, None
        _forget_peak()
        path = Path(command["model"])
        devices = [DeviceSpec(**d) for d in command["devices"]]
        core = core_for(devices)
        self.model = core.read_model(form_file(path, command["rewrite"]))
        # Inputs follow from how the model takes them, and must be the same for all its forms.
        plain = core.read_model(path) if command["rewrite"] else self.model
        if path != self.path:
            self.path, self.fed = path, {}
        self.inputs = inputs_of(plain, path, seed=command["seed"], dynamic_size=command["dynamic_size"])
        self.batch = command["batch"]
        if self.batch > 1:
            batching.set_batch(self.model, self.batch)
        self.stateful = bool(self.model.get_variables())
        self.loaded = compile_executable(command, self.model, core, devices, self.kept)
        self.requests = self.loaded.requests
        self.decode_steps = sequence_length(path, command["decode_steps"]) if self.stateful else 1
        self._begin_sequences()
        self.loaded.load(self._repeated(self.inputs))
        return {**self.loaded.describe(), "compile_s": self.loaded.compile_s, "requests": len(self.requests)}

    def share(self, other: Session) -> LoadAnswer:
        """Run what another session has compiled, with as many requests of its own."""
        if not isinstance(other.loaded, CompiledExecutable):
            raise RuntimeError("only a model that is compiled as a whole can be shared")
        self.model, self.path, self.fed, self.inputs = other.model, other.path, other.fed, other.inputs
        self.stateful, self.decode_steps, self.batch = other.stateful, other.decode_steps, other.batch
        self.loaded = other.loaded.with_new_requests()
        self.requests = self.loaded.requests
        self._begin_sequences()
        self.loaded.load(self._repeated(self.inputs))
        return {**self.loaded.describe(), "compile_s": 0.0, "requests": len(self.requests)}

    def feed(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Take inputs of another kind, and run one inference of every request: the first of new shapes takes longer."""
        kind, model = command["kind"], self.model
        if kind not in self.fed and model is not None:
            self.fed[kind] = check_inputs_of(model, self.path, kind)
        self.inputs = self.fed[kind]
        self._executable().load(self._repeated(self.inputs))
        self._begin_sequences()
        for i, request in enumerate(self._loaded()):
            self.step(i)
            request.infer()
        return {}

    def outputs(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Write the outputs of one inference, or of the last of a sequence where there is state, by kind of inputs."""
        written = {kind: self._outputs(kind) for kind in command["kinds"]}
        if any(kind != TIMED for kind in written):
            self._executable().load(self._repeated(self.inputs))
        save_by_kind(Path(command["path"]), written)
        return {}

    def _outputs(self, kind: str) -> dict[str, Any]:
        loaded = self._executable()
        if kind != TIMED and self.model is not None:
            loaded.load(self._repeated(check_inputs_of(self.model, self.path, kind)))
        self._begin_sequences()
        for _ in range(self.decode_steps):
            self.step(0)
            loaded.infer()
        return {f"output_{i}": array for i, array in enumerate(loaded.outputs())}

    def _repeated(self, inputs: Arrays) -> Arrays:
        """Return inputs for as many inferences as are computed at once."""
        return [np.repeat(array, self.batch, axis=0) for array in inputs] if self.batch > 1 else inputs

    def run(self, command: Mapping[str, Any]) -> RunAnswer:
        """Run inferences for `seconds`, at least `minimum` of every request, and time each.

        One request runs one inference after another; several are all kept busy. period_s: seconds per inference, of
        several requests while all of them are busy. cpu_s: of all inferences that ran, those that fill and empty the
        requests among them, whose latencies do not count.
        """
        requests = self._loaded()
        self._begin_sequences()
        before, cpu_before_s = read_processor_times(), time.process_time()
        with RealtimeScheduling(command["realtime"]):
            if len(requests) == 1:
                samples = self._one_after_another(command["seconds"], command["minimum"])
                period_s, ran = float(np.mean(samples)), len(samples)
            else:
                samples, period_s, ran = self._all_at_once(requests, command["seconds"], command["minimum"])
        cpu_s = (time.process_time() - cpu_before_s) / ran
        after = read_processor_times()
        return {
            "samples_s": samples,
            "period_s": period_s / self.batch,
            "cpu_s": cpu_s / self.batch,
            "others_s": after.others_s - before.others_s,
            **waited_between(before.threads, after.threads),
        }

    def _one_after_another(self, seconds: float, minimum: int) -> list[float]:
        request, samples = self.requests[0], list[float]()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(samples) < minimum or len(samples) % self.decode_steps:
            self.step(0)
            start = time.perf_counter()
            request.infer()
            samples.append(time.perf_counter() - start)
        return samples

    def _all_at_once(
        self, requests: Sequence[InferenceRequest], seconds: float, minimum: int
    ) -> tuple[list[float], float, int]:
        """Return latencies, the seconds per inference, and how many ran.

        What fills and empties the requests is left out of the first two.
        """
        waiting: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

        def ended(number: int, _: None) -> None:
            waiting.put((number, time.perf_counter()))

        for i, request in enumerate(requests):
            request.set_callback(partial(ended, i), None)
        begun = [0.0] * len(requests)
        finished: list[float] = []
        samples: list[float] = []

        def begin(i: int) -> None:
            self.step(i)
            begun[i] = time.perf_counter()
            requests[i].start_async()

        start = time.perf_counter()
        for i in range(len(requests)):
            begin(i)
        running = len(requests)
        while running:
            i, now = waiting.get()
            if now - start < seconds or len(samples) < (minimum + 1) * len(requests):
                samples.append(now - begun[i])
                finished.append(now)
                begin(i)
            else:
                running -= 1
        for request in requests:
            request.wait()
        first = len(requests)
        ran = len(finished) + len(requests)  # of every request the last is begun before the time is over
        return samples[first:], (finished[-1] - finished[first - 1]) / (len(finished) - first), ran

    def arrive(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Answer requests that arrive at a mean rate, at random (Poisson), and time each from its arrival."""
        requests = self._loaded()
        self._begin_sequences()
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        arrived = [0.0] * len(requests)
        samples: list[float] = []

        def done(number: int, _: None) -> None:
            samples.append(time.perf_counter() - arrived[number])
            waiting.put(number)

        for i, request in enumerate(requests):
            request.set_callback(partial(done, i), None)
            waiting.put(i)
        rng = np.random.default_rng(command["seed"])
        due = start = time.perf_counter()
        while due - start < command["seconds"]:
            time.sleep(max(0.0, due - time.perf_counter()))
            i = waiting.get()
            self.step(i)
            arrived[i] = due
            requests[i].start_async()
            due += float(rng.exponential(self.batch / command["rate"]))
        for request in requests:
            request.wait()
        return {"samples_s": samples}

    def burst(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send an inference to every request at once, wait for all of them, and time that; again and again."""
        requests = self._loaded()
        self._begin_sequences()
        samples: list[float] = []
        end = time.perf_counter() + command["seconds"]
        while time.perf_counter() < end or not samples:
            for i in range(len(requests)):
                self.step(i)
            begun = time.perf_counter()
            for request in requests:
                request.start_async()
            for request in requests:
                request.wait()
            samples.append(time.perf_counter() - begun)
        return {"samples_s": samples}

    def memory(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return the most memory that this process has had since the model was loaded."""
        return {"peak_bytes": _peak_bytes()}

    def kernels(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return what every kernel of the compiled model takes and which operations it runs."""
        self._begin_sequences()
        samples: list[float] = []
        end = time.perf_counter() + command["seconds"]
        while len(samples) < LEAST_PROFILED or (len(samples) < command["count"] and time.perf_counter() < end):
            samples += self._one_after_another(0.0, 1)
        if not isinstance(self.loaded, CompiledExecutable) or self.model is None:
            raise RuntimeError("kernels of what is not one compiled model")
        times = kernels.kernel_times(self.model, self.loaded.compiled, self.loaded.requests[0])
        return {**times, "latency_s": float(np.median(samples)), "mean_s": float(np.mean(samples))}

    def _executable(self) -> Executable:
        if self.loaded is None:
            raise RuntimeError("a command before load")
        return self.loaded

    def _loaded(self) -> Sequence[InferenceRequest]:
        if not self.requests:
            raise RuntimeError("a command before load")
        return self.requests

    def _begin_sequences(self) -> None:
        """Let the next inference of every request begin a new sequence."""
        self.decoded = [0] * len(self.requests)

    def step(self, i: int) -> None:
        """Count an inference of request i; the first of a sequence has its state reset."""
        if self.stateful and self.decoded[i] % self.decode_steps == 0:
            self.requests[i].reset_state()
        self.decoded[i] += 1


def check_realtime(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether this process may run under real-time scheduling."""
    try:
        with RealtimeScheduling(True):
            return {"allowed": True}
    except (OSError, AttributeError):  # not every system knows SCHED_RR, or lets everybody ask for it
        return {"allowed": False}


def list_unsupported(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations of a model that one device refuses."""
    device = DeviceSpec(**command["device"])
    core = core_for([device])
    model = core.read_model(command["model"])
    taken = core.query_model(model, device.openvino_name)
    return {
        "refused": [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_friendly_name() not in taken]
    }


def list_fused(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations that run as one kernel when one device compiles the model; inputs may stay dynamic."""
    device = DeviceSpec(**command["device"])
    core = core_for([device])
    model = core.read_model(command["model"])
    compiled = core.compile_model(model, device.openvino_name)
    return {"groups": kernels.kernel_groups(model, compiled)}


def _forget_peak() -> None:
    """Let the peak of this process's memory begin at zero, where the system knows how."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    """Return the peak of this process's resident memory."""
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="ascii").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return int(psutil.Process().memory_info().rss)


class RealtimeScheduling:
    """Runs all threads of this process under SCHED_RR while inside, if asked."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def __enter__(self) -> None:
        if self.wanted:
            _set_scheduling(os.SCHED_RR, 1)

    def __exit__(self, *_: object) -> None:
        if self.wanted:
            _set_scheduling(os.SCHED_OTHER, 0)


def _set_scheduling(policy: int, priority: int) -> None:
    for task in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


def fault_answer(error: Exception) -> dict[str, Any]:
    """Return the answer to a command at which a device raised this."""
    message = " ".join(str(error).split())
    if isinstance(error, MemoryError) or speaks_of_memory(message):
        return {"error": {"kind": "out_of_memory", "message": message or "memory exhausted"}}
    message = refusal_in_words(str(error))
    limit, used = int(os.environ.get(MEMORY_LIMIT, "0")), psutil.Process().memory_info().vms
    if limit and used > limit - HEADROOM_BYTES:
        said = f"{bytes_text(used)} of address space are in use, {bytes_text(limit)} are allowed; then: {message}"
        return {"error": {"kind": "out_of_memory", "message": said}}
    return {"error": {"kind": "refused", "message": message}}


def command_handlers() -> Handlers:
    """Return what answers the commands on one model, or none."""
    session = Session()
    return {
        "load": session.load,
        "feed": session.feed,
        "outputs": session.outputs,
        "run": session.run,
        "arrive": session.arrive,
        "burst": session.burst,
        "memory": session.memory,
        "kernels": session.kernels,
        "realtime": check_realtime,
        "support": list_unsupported,
        "fusion": list_fused,
        "link": links.measure_link,
        "company": slowdown.measure_company,
        "locate": locate_operations.locate_operations,
        "results": exposed_outputs.write_results,
        "segments": segment_outputs.write_segment_outputs,
    }


def _answer_command(handlers: Handlers, command: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return handlers[command["do"]](command)
    except Exception as error:  # noqa: BLE001  a device may raise anything; it becomes an answer
        return fault_answer(error)


def serve_child(answers: TextIO, handlers: Handlers) -> None:
    """Write one answer per command until standard input ends."""
    die_with_parent()
    if limit := int(os.environ.get(MEMORY_LIMIT, "0")):
        limit_address_space(limit)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    for line in sys.stdin:
        answers.write(json.dumps(_answer_command(handlers, json.loads(line))) + "\n")
        answers.flush()
