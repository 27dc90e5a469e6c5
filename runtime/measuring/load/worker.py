"""What the measuring child does that holds several models at once; see `runtime.measuring.process.worker`.

admit    {name, variant, cache, beside, kind} -> LoadAnswer; the model is compiled after those that are there, or runs
                                    in the copy of the one that it is beside; kind: of its inputs, "" for what is timed
dismiss  {}                      -> {}; all models are let go
drive    {scenario, times, seed, begin_s, path} -> {processor_s, measured_s, failed}; writes all requests
memory   {}                      -> {peak_bytes} since the last model was loaded
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from pipeline.core.scenario import LoadScenario, RequestLog
from runtime.measuring.load.drive import Drive, LoadTimes
from runtime.measuring.process.answers import LoadAnswer
from runtime.measuring.process.worker import Handlers, Session, fault_answer

FIELDS = ("due_s", "origin_s", "end_s", "measured")


class SeveralModels:
    """The models of this process, by their names in the scenario, in the order in which they were compiled."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}

    def admit(self, command: Mapping[str, Any]) -> LoadAnswer:
        """Compile one more model, and run an inference of each of its requests: the first takes longer."""
        session = Session()
        answer = session.share(self.sessions[command["beside"]]) if command["beside"] else session.load(command)
        if command["kind"]:
            session.feed(command)
        self.sessions[command["name"]] = session
        for i in range(len(session.requests)):
            _infer(session, i)
        return answer

    def dismiss(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Let go all models, and the processors that they have reserved."""
        for session in self.sessions.values():
            if session.loaded is not None:
                session.loaded.close()
        self.sessions = {}
        gc.collect()
        return {}

    def drive(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Put all models under load at once."""
        scenario = TypeAdapter(LoadScenario).validate_python(command["scenario"])
        times = LoadTimes(**command["times"])
        servers = {n: [partial(_infer, s, i) for i in range(len(s.requests))] for n, s in self.sessions.items()}
        drive = Drive(servers, scenario, times, command["seed"])
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        logs, errors = drive.run(command["begin_s"])
        processor_s = (time.process_time() - cpu_s) / (time.perf_counter() - begun_s)
        save_logs(Path(command["path"]), logs)
        failed = {name: fault_of_model(error) for name, error in errors.items()}
        return {"processor_s": processor_s, "measured_s": drive.measured_s, "failed": failed}

    def memory(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return the most memory that this process has had since the last model was loaded."""
        return Session().memory(command)


def fault_of_model(error: Exception) -> dict[str, str]:
    """Return the kind and the words of what went wrong in a model under load."""
    if isinstance(error, TimeoutError):
        return {"kind": "timeout", "message": str(error)}
    told: dict[str, str] = fault_answer(error)["error"]
    return told


def _infer(session: Session, i: int) -> None:
    session.step(i)
    session.requests[i].infer()


def save_logs(path: Path, logs: Mapping[str, RequestLog]) -> None:
    """Write the requests of every model as npz."""
    np.savez(path, **{f"{i}_{f}": getattr(log, f) for i, log in enumerate(logs.values()) for f in FIELDS})


def load_logs(path: Path, names: list[str]) -> dict[str, RequestLog]:
    """Return what `save_logs` wrote of these models, in their order."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: RequestLog(*(arrays[f"{i}_{f}"] for f in FIELDS)) for i, name in enumerate(names)}


def command_handlers() -> Handlers:
    """Return what answers the commands on several models."""
    several = SeveralModels()
    return {
        "admit": several.admit,
        "dismiss": several.dismiss,
        "drive": several.drive,
        "memory": several.memory,
    }
