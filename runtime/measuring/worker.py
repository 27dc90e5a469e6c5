"""The measuring child: one process that holds one compiled model and answers commands.

It is started by `child` through `launch` and speaks one JSON object per line: a command on standard input, an answer on
standard output. Whatever native code prints goes to standard error. A fault is an answer,
{"error": {kind, message}}; only here is every exception caught, because a device may raise anything.

    load     {variant}                        -> {compile_s, executed_on, subgraphs, precisions, threads,
                                                  int8_kernels}
    outputs  {path}                           -> {} and writes the outputs of one inference as npz
    run      {seconds, minimum, realtime}     -> {samples_s, run_delay_s, runnable_s}
    realtime {}                               -> {allowed}
    kernels  {count}                          -> {kernels: [[operation names], seconds], latency_s, mean_s, unmapped_s}
    support  {model, device}                  -> {refused: operation names}
    fusion   {model, device}                  -> {groups: [operation names]}
    link     {a, b, count}                    -> see `runtime.measuring.links`
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import openvino as ov
import psutil

from pipeline.core.devices import DeviceSpec
from pipeline.core.process import die_with_parent
from pipeline.shared.runtime_words import in_words
from runtime.machines.devices import PRECISION, core_for, precision_name
from runtime.measuring import kernels, links
from runtime.measuring.affinity import set_affinities
from runtime.measuring.child import MEMORY_LIMIT, speaks_of_memory
from runtime.measuring.inputs import inputs_of

HEADROOM_BYTES = 32 << 20  # with less address space left than this, whatever failed failed for want of memory


class Session:
    """One compiled model and its request."""

    def __init__(self) -> None:
        self.request: ov.InferRequest | None = None
        self.compiled: ov.CompiledModel | None = None
        self.model: ov.Model | None = None
        self.stateful = False

    def load(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Read, place and compile the variant, and set its inputs."""
        core = core_for([DeviceSpec(**d) for d in command["devices"]])
        self.model = core.read_model(command["model"])
        if command["affinity"]:
            set_affinities(self.model, command["affinity"])
        # Asked of the model: AUTO over several devices refuses to say whether a request has state.
        self.stateful = bool(self.model.get_variables())
        start = time.perf_counter()
        self.compiled = core.compile_model(self.model, command["target"], dict(command["properties"]))
        compile_s = time.perf_counter() - start
        self.request = self.compiled.create_infer_request()
        path, size = Path(command["model"]), command["dynamic_size"]
        inputs = inputs_of(self.model, path, seed=command["seed"], dynamic_size=size)
        for port, value in zip(self.compiled.inputs, inputs, strict=True):
            self.request.set_tensor(port, ov.Tensor(value))
        return {"compile_s": compile_s, **_describe(self.compiled)}

    def outputs(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run one inference and write its outputs."""
        request = self._request()
        self._reset(request)
        request.infer()
        arrays: dict[str, Any] = {f"output_{i}": np.array(t.data) for i, t in enumerate(request.output_tensors)}
        np.savez(command["path"], **arrays)
        return {}

    def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run inferences one after another for `seconds`, at least `minimum` of them, and time each."""
        request = self._request()
        samples: list[float] = []
        before = _scheduled_ns()
        with _Realtime(command["realtime"]):
            end = time.perf_counter() + command["seconds"]
            while time.perf_counter() < end or len(samples) < command["minimum"]:
                self._reset(request)
                start = time.perf_counter()
                request.infer()
                samples.append(time.perf_counter() - start)
        return {"samples_s": samples, **waited_between(before, _scheduled_ns())}

    def kernels(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return what every kernel of the compiled model takes and which operations it runs."""
        request = self._request()
        samples = self.run({"seconds": 0.0, "minimum": command["count"], "realtime": False})["samples_s"]
        if self.compiled is None or self.model is None:
            raise RuntimeError("kernels before load")
        found = kernels.kernel_times(self.model, self.compiled, request)
        return {**found, "latency_s": float(np.median(samples)), "mean_s": float(np.mean(samples))}

    def _request(self) -> ov.InferRequest:
        if self.request is None:
            raise RuntimeError("a command before load")
        return self.request

    def _reset(self, request: ov.InferRequest) -> None:
        if self.stateful:
            request.reset_state()


def realtime(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether this process may run under real-time scheduling."""
    try:
        with _Realtime(True):
            return {"allowed": True}
    except (PermissionError, AttributeError):  # not every system knows SCHED_RR
        return {"allowed": False}


def support(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations of a model that one device refuses."""
    device = DeviceSpec(**command["device"])
    core = core_for([device])
    model = core.read_model(command["model"])
    taken = core.query_model(model, device.openvino_name)
    return {
        "refused": [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_friendly_name() not in taken]
    }


def fusion(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations that run as one kernel when one device compiles the model; inputs may stay dynamic."""
    device = DeviceSpec(**command["device"])
    core = core_for([device])
    model = core.read_model(command["model"])
    compiled = core.compile_model(model, device.openvino_name)
    return {"groups": kernels.kernel_groups(model, compiled)}


def _describe(compiled: ov.CompiledModel) -> dict[str, Any]:
    """Return on which devices, in how many sub-models, precisions and threads the model really runs.

    int8_kernels: names of what runs in int8; None where other plug-ins than the CPU's run it, which name nothing alike.
    """
    known = set(compiled.get_property("SUPPORTED_PROPERTIES"))
    executed = list(compiled.get_property("EXECUTION_DEVICES"))
    parts = "HETERO_NUMBER_OF_SUBMODELS"
    subgraphs = int(compiled.get_property(parts)) if parts in known else 1
    by_device: Mapping[str, Any] = compiled.get_property("DEVICE_PROPERTIES") if "DEVICE_PROPERTIES" in known else {}
    if not by_device and len(executed) == 1:
        names = (PRECISION, "INFERENCE_NUM_THREADS")
        by_device = {executed[0]: {key: compiled.get_property(key) for key in names if key in known}}
    return {
        "executed_on": executed,
        "subgraphs": subgraphs,
        "precisions": {d: precision_name(p[PRECISION]) for d, p in by_device.items() if PRECISION in p},
        "int8_kernels": kernels.int8_kernels(compiled) if all(d.startswith("CPU") for d in executed) else None,
        "threads": {d: int(p["INFERENCE_NUM_THREADS"]) for d, p in by_device.items() if "INFERENCE_NUM_THREADS" in p},
    }


class _Realtime:
    """Runs all threads of this process under SCHED_RR while inside, if asked."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def __enter__(self) -> None:
        if self.wanted:
            _schedule(os.SCHED_RR, 1)

    def __exit__(self, *_: object) -> None:
        if self.wanted:
            _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for task in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


def _scheduled_ns() -> dict[str, tuple[int, int]]:
    """Return how long each thread of this process has run and has waited for a processor; {} where nobody says."""
    found: dict[str, tuple[int, int]] = {}
    for stat in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            ran, waited, _ = stat.read_text(encoding="ascii").split()
            found[stat.parent.name] = int(ran), int(waited)
    return found


def waited_between(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return how long the threads waited for a processor, and how long they wanted one: waiting or running."""
    ran = waited = 0
    for thread, (ran_ns, waited_ns) in after.items():
        first_ran_ns, first_waited_ns = before.get(thread, (0, 0))
        ran, waited = ran + ran_ns - first_ran_ns, waited + waited_ns - first_waited_ns
    return {"run_delay_s": waited * 1e-9, "runnable_s": (ran + waited) * 1e-9}


def _limit_memory(limit_bytes: int) -> None:
    if limit_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _fault(error: Exception) -> dict[str, Any]:
    message = " ".join(str(error).split())
    if isinstance(error, MemoryError) or speaks_of_memory(message):
        return {"error": {"kind": "out_of_memory", "message": message or "memory exhausted"}}
    message = in_words(str(error))
    limit, used = int(os.environ.get(MEMORY_LIMIT, "0")), psutil.Process().memory_info().vms
    if limit and used > limit - HEADROOM_BYTES:
        said = f"{used >> 20} MiB of address space are in use, {limit >> 20} MiB are allowed; then: {message}"
        return {"error": {"kind": "out_of_memory", "message": said}}
    return {"error": {"kind": "refused", "message": message}}


def _answer(session: Session, command: Mapping[str, Any]) -> dict[str, Any]:
    handlers = {
        "load": session.load,
        "outputs": session.outputs,
        "run": session.run,
        "kernels": session.kernels,
        "realtime": realtime,
        "support": support,
        "fusion": fusion,
        "link": links.measure_link,
    }
    try:
        return handlers[command["do"]](command)
    except Exception as error:  # noqa: BLE001  a device may raise anything; it becomes an answer
        return _fault(error)


def serve(answers: TextIO) -> None:
    """Write one answer per command until standard input ends."""
    die_with_parent()
    _limit_memory(int(os.environ.get(MEMORY_LIMIT, "0")))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    session = Session()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(session, json.loads(line))) + "\n")
        answers.flush()
