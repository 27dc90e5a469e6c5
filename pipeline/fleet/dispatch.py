"""Which command goes to which worker, and what happens when one fails.

A command that measures goes to a machine of its fingerprint on which nothing else runs, all others anywhere; those come
first, so that a machine is quiet when it measures. An answer that is an error is believed when several workers agree,
or when there is no other; a command whose worker died is tried again, on another worker as long as there is one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pipeline.core.errors import listed
from pipeline.fleet.engine import ANY, Command, Engine, FleetWorker, Reply, Say
from pipeline.fleet.health import Health
from pipeline.system.workers import Answer

DEATHS = 4  # of workers on one command, after which the command is at fault
AGREE = 3  # workers that must have answered a command with an error before it is believed
PATIENCE_S = 60.0  # how long commands wait for a worker that can execute them to come, or to come back


class Needs(NamedTuple):
    """What a command asks of a worker, besides room. avoid: workers it has failed on."""

    alone: bool
    fingerprint: str
    avoid: frozenset[str]


class Settled(NamedTuple):
    """The last word on a command."""

    name: str
    answer: Answer


class FleetDispatcher:
    """Commands that wait and that are executed, over an engine.

    progress: told what is started. What goes wrong with workers is said by the engine.
    """

    def __init__(self, engine: Engine, progress: Say) -> None:
        self._engine = engine
        self._progress = progress
        self._health = Health()
        self._waiting: dict[Needs, list[tuple[int, str]]] = {}  # heaps of (rank, name)
        self._commands: dict[str, Command] = {}
        self._deaths: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()  # command -> answers that were errors, each of another worker
        self._at: dict[str, FleetWorker] = {}  # command -> the worker that executes it

    def __contains__(self, name: object) -> bool:
        """Return whether a command of this name waits or is executed."""
        return name in self._commands

    def __len__(self) -> int:
        """Return how many commands wait or are executed."""
        return len(self._commands)

    @property
    def busy(self) -> int:
        """Return how many commands are executed."""
        return len(self._at)

    def add(self, command: Command) -> None:
        """Take a command in; it is started by `wait`."""
        self._commands[command.name] = command
        self._enqueue(command)

    def wait(self) -> list[Settled]:
        """Start what can be started, and return what is settled, as soon as there is something.

        Raises:
            DeviceError: the engine is gone.
        """
        while self._commands:
            self._start()
            if not self._at:  # nobody else is left
                self._start(last_resort=True)
            before = [w.name for w in self._engine.workers()]
            replies = self._engine.wait(PATIENCE_S)
            settled = [s for reply in replies for s in self._take(reply)]
            if settled:
                return settled
            if not replies and not self._at and before == [w.name for w in self._engine.workers()]:
                return self._give_up()
        return []

    def _enqueue(self, command: Command) -> None:
        avoid = self._health.failed_on(command.name)
        if self._deaths[command.name] and not self._able(command, avoid):
            avoid = frozenset()
        needs = Needs(command.alone, command.fingerprint, avoid)
        heapq.heappush(self._waiting.setdefault(needs, []), (command.rank, command.name))

    def _able(self, command: Command, avoid: frozenset[str]) -> list[FleetWorker]:
        """Return the workers that could execute a command if they had room."""
        shut = avoid | self._health.quarantined
        return [w for w in self._engine.workers() if w.name not in shut and _fits(w, command.fingerprint)]

    def _start(self, *, last_resort: bool = False) -> None:
        """Start commands while there is room. last_resort: even on workers that they, or other commands, failed on."""
        room = _Room(self._engine.workers(), self._at, self._commands)
        for needs in sorted(self._waiting, key=lambda n: (n.alone, self._waiting[n][0])):
            heap = self._waiting[needs]
            while heap:
                worker = room.find(needs, partial(self._may, needs=needs, last_resort=last_resort))
                if worker is None:
                    break
                command = self._commands[heapq.heappop(heap)[1]]
                self._at[command.name] = worker
                room.take(worker, alone=command.alone)
                self._progress(f"{command.title} on {worker.name}" if self._engine.retries else command.title)
                self._engine.ask(worker.name, command)
            if not heap:
                del self._waiting[needs]

    def _may(self, worker: str, *, needs: Needs, last_resort: bool) -> bool:
        if last_resort:
            return worker not in self._health.quarantined
        return worker not in needs.avoid and self._health.is_trusted(worker)

    def _take(self, reply: Reply) -> list[Settled]:
        """Return the last word on a command, or nothing where it is tried again."""
        self._at.pop(reply.name, None)
        command = self._commands.get(reply.name)
        if command is None:
            return []
        if "error" not in reply.answer:
            for worker in self._health.succeeded(reply.name, reply.worker):
                self._engine.say(
                    f"{worker} is given no more work: it failed several times on what {reply.worker} then did"
                )
            return [self._settle(reply)]
        self._health.failed(reply.name, reply.worker)
        self._deaths[reply.name] += reply.died
        self._errors[reply.name] += not reply.died
        if self._engine.retries and self._is_open(command, reply):
            again = "again" if reply.died else "elsewhere"
            doing = reply.answer.get("doing")
            failed = f"{command.subject}: {doing}" if command.subject and doing else command.title
            self._engine.say(f"{failed} failed on {reply.worker}, tried {again}: {reply.answer['error']['cause']}")
            self._enqueue(command)
            return []
        self._health.confirmed(reply.name)
        return [self._settle(reply)]

    def _is_open(self, command: Command, reply: Reply) -> bool:
        """Return whether a failure is not the last word on a command."""
        if reply.died:
            return self._deaths[command.name] < DEATHS
        others = self._able(command, self._health.failed_on(command.name))
        return self._errors[command.name] < AGREE and bool(others)

    def _settle(self, reply: Reply) -> Settled:
        del self._commands[reply.name]
        self._deaths.pop(reply.name, None)
        self._errors.pop(reply.name, None)
        return Settled(reply.name, reply.answer)

    def _give_up(self) -> list[Settled]:
        """Return an error for every command that waits for a worker that has not come."""
        names = [name for heap in self._waiting.values() for _, name in heap]
        self._waiting.clear()
        shut = sorted(self._health.quarantined)
        cause = "No worker that is there can execute this" + (
            f", and {listed(shut)} failed too often." if shut else "."
        )
        remedy = "Start a worker on a machine with these devices, and run the same command again."
        return [self._settle(Reply(n, "", {"error": {"cause": cause, "remedy": remedy}})) for n in names]


class _Room:
    """Which workers have room, while commands are started."""

    def __init__(
        self, workers: Sequence[FleetWorker], at: dict[str, FleetWorker], commands: dict[str, Command]
    ) -> None:
        self._workers = workers
        self._running = Counter(w.name for w in at.values())
        self._on_node = Counter(w.node for w in at.values())
        self._quiet = {w.node for name, w in at.items() if commands[name].alone}

    def find(self, needs: Needs, may: Callable[[str], bool]) -> FleetWorker | None:
        """Return the worker with the least to do that can execute a command of these needs now, or None."""
        able = [
            w
            for w in self._workers
            if self._running[w.name] < w.slots
            and w.node not in self._quiet
            and not (needs.alone and self._on_node[w.node])
            and _fits(w, needs.fingerprint)
            and may(w.name)
        ]
        return min(able, key=lambda w: (w.name in needs.avoid, self._running[w.name] / w.slots), default=None)

    def take(self, worker: FleetWorker, *, alone: bool) -> None:
        """Note that a worker was given something."""
        self._running[worker.name] += 1
        self._on_node[worker.node] += 1
        if alone:
            self._quiet.add(worker.node)


def _fits(worker: FleetWorker, fingerprint: str) -> bool:
    return fingerprint == ANY or worker.fingerprint in (ANY, fingerprint)
