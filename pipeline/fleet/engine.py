"""What executes commands: the one interface of the pool of this machine and of the engines for many machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from pipeline.stages.host import HostMachine
from pipeline.system.workers import Answer

Say = Callable[[str], None]

ANY = ""  # fingerprint: of a command that any machine can execute, of a worker whose machine is the one planned for


def silent(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A worker and the room it has.

    name: stays the same when its process is started again. node: the machine's name; workers of one node measure in
    turn. fingerprint: of the hardware. slots: commands it executes at a time.
    """

    name: str
    node: str
    fingerprint: str
    slots: int


@dataclass(frozen=True, slots=True)
class Command:
    """Something to be executed: plain JSON values, whose answer is the same wherever it is executed.

    name: unique among all that are waiting or executed. title: what it is, for people. subject: what it is done for, if
    it has steps, of which a failure then names the one that failed. document: what the worker's
    process is handed. fingerprint: the hardware it must run on, ANY for all. alone: whether it measures, and needs the
    machine to itself. rank: what has the smaller one is started first.

    For workers that do not see the store: reads, makes: keys of the artifacts that it needs and leaves there. forgets:
    keys of artifacts, and of series, that are to be made again. files: what else it reads, as absolute paths that stand
    in the document; of a model the file that is named.
    """

    name: str
    title: str
    document: dict[str, Any]
    fingerprint: str = ANY
    alone: bool = False
    rank: int = 0
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    forgets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker answered to a command. died: its process ended instead; the answer holds its last words."""

    name: str
    worker: str
    answer: Answer
    died: bool = False


class Engine(Protocol):
    """Executes commands on workers. Use it as a context manager; leaving it ends what it started.

    Order of calls: `workers` and `machines` at any time; `ask` while a worker has room; `wait` while something is
    executed, or no worker is there that could.
    """

    retries: bool  # whether what failed is tried on other workers, and what died again
    say: Say  # told what is wrong with workers, and with what they do

    def workers(self) -> Sequence[FleetWorker]:
        """Return the workers that are there now, by name."""
        ...

    def machines(self, devices: Sequence[str]) -> Sequence[HostMachine]:
        """Return the machines, one per kind of hardware, with the devices asked for; all they have if none are.

        Raises:
            PlacewrightError: no machine has them; the reason of the first.
        """
        ...

    def ask(self, worker: str, command: Command) -> None:
        """Hand a command to a worker."""
        ...

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Return what was answered, as soon as there is something; nothing if workers came or went, or time is up.

        Raises:
            DeviceError: the engine itself is gone.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
