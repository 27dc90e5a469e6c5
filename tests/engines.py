"""Engines of tests: this very process stands for workers, of one kind of machine or of several."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.errors import DeviceError
from pipeline.fleet.engine import Command, FleetWorker, Reply, Say
from pipeline.stages.host import HostMachine, look_at_machine
from pipeline.system.workers import Answer, answer_command


@dataclass
class ProcessEngine:
    """Executes commands one after another, when they are waited for.

    answer: of the workers' process. kinds: of machines, one worker each, by fingerprint, with the processor's name;
    this machine's own if there are none. lacking: those that have no devices.
    """

    answer: Callable[[Any], Answer]
    kinds: Mapping[str, str] = field(default_factory=dict)
    lacking: Sequence[str] = ()
    asked: list[tuple[str, Command]] = field(default_factory=list)
    waiting: list[tuple[str, Command]] = field(default_factory=list)
    retries: bool = True
    say: Say = lambda _: None

    def workers(self) -> Sequence[FleetWorker]:
        """Return a worker per kind of machine."""
        own = [look_at_machine(()).fingerprint] if not self.kinds else []
        return [FleetWorker(f"w-{kind}", f"node-{kind}", kind, 1) for kind in (*self.kinds, *own)]

    def machines(self, devices: Sequence[str]) -> Sequence[HostMachine]:
        """Return a machine per kind that has devices."""
        here = look_at_machine(devices)
        if not self.kinds:
            return [here]
        able = [kind for kind in self.kinds if kind not in self.lacking]
        if not able:
            raise DeviceError("There is no such device.", "Ask for others.")
        return [replace(here, fingerprint=kind, facts={**here.facts, "cpu": self.kinds[kind]}) for kind in able]

    def ask(self, worker: str, command: Command) -> None:
        """Take a command in."""
        self.asked.append((worker, command))
        self.waiting.append((worker, command))

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Return the answer to the first command that waits."""
        if not self.waiting:
            return []
        worker, command = self.waiting.pop(0)
        return [Reply(command.name, worker, answer_here(self.answer, command.document))]

    def __enter__(self) -> ProcessEngine:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def answer_here(answer: Callable[[Any], Answer], document: Mapping[str, Any]) -> Answer:
    """Return what a worker's process would answer to a command, as JSON values."""
    handlers = {next(iter(document)): lambda command, _: answer(command)}
    found: Answer = json.loads(json.dumps(answer_command(handlers, json.loads(json.dumps(document)))))
    return found


def failing(stage: str, answer: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Return what answers as before, but for tasks of a stage, at which commands fail."""

    def found(command: dict[str, Any]) -> Answer:
        stages = [task["stage"] for task in command["tasks"]]
        if stage not in stages:
            return answer(command)
        before = dict(answer({**command, "tasks": command["tasks"][: stages.index(stage)]}))
        return before | {"error": {"cause": f"The stage {stage} is broken.", "remedy": "Mend it."}}

    return found
