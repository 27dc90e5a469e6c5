"""The engine of one machine: a few resident processes, and this process holds the machine for those that measure."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pipeline.fleet.engine import ANY, Command, FleetWorker, Reply, Say, silent
from pipeline.stages.host import HostMachine, look_at_machine
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.workers import Workers


class PoolEngine:
    """At most `most` resident processes of a module, started when something has to run.

    From the first command that needs the machine to itself on, nobody else measures on this machine.
    """

    retries = False

    def __init__(self, most: int, module: str, say: Say = silent) -> None:
        self.say = say
        self._here = FleetWorker("this machine", platform.node(), ANY, most)
        self._held = contextlib.ExitStack()
        self._pool = Workers(most, module)

    def __enter__(self) -> Self:
        self._held.enter_context(self._pool)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._held.close()

    def workers(self) -> Sequence[FleetWorker]:
        """Return this machine alone."""
        return (self._here,)

    def machines(self, devices: Sequence[str]) -> Sequence[HostMachine]:
        """Return this machine with the devices asked for."""
        return (look_at_machine(devices),)

    def ask(self, worker: str, command: Command) -> None:
        """Hand a command to an idle process, or to a new one."""
        if command.alone:
            self._held.enter_context(measuring_alone(lambda text: None))  # whom it waits for is logged
        self._pool.ask(command.name, {**command.document, "alone": command.alone})

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Return what is done, as soon as there is something."""
        return [Reply(name, self._here.name, answer, "died" in answer) for name, answer in self._pool.wait()]
