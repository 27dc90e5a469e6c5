"""Which command goes to which worker, and what happens when one fails.

A command that measures goes to a machine of its fingerprint on which nothing else runs, all others anywhere; those come
first, so that a machine is quiet when it measures. An answer that is an error is believed when several workers agree,
or when there is no other; a command whose worker died is tried again, on another worker as long as there is one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.core.errors import list_some
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
    """The final answer to a command."""

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

    def add(self, command: Command) -> None:
        """Take a command in; it is started by `settle`."""
        self._commands[command.name] = command
        self._enqueue(command)

    def settle(self) -> Iterator[Settled]:
        """Execute all commands, also those that are added meanwhile, and yield their final answers as they come.

        Raises:
            DeviceError: the engine is gone.
        """
        while self._commands:
            self._start()
            if not self._at:  # no other worker is left
                self._start(last_resort=True)
            before = [w.name for w in self._engine.workers()]
            replies = self._engine.wait(PATIENCE_S)
            for reply in replies:
                command = self._commands.get(reply.name)
                if command is not None and self._is_final(command, reply):
                    yield self._finish(reply)
            if not replies and not self._at and before == [w.name for w in self._engine.workers()]:
                yield from self._give_up()

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
        running = Counter(w.name for w in self._at.values())
        on_node = Counter(w.node for w in self._at.values())
        measuring = {w.node for name, w in self._at.items() if self._commands[name].alone}
        shut = self._health.quarantined
        trusted = [w for w in self._engine.workers() if self._health.is_trusted(w.name)]
        workers = [w for w in self._engine.workers() if w.name not in shut] if last_resort else trusted

        def has_room(worker: FleetWorker, *, alone: bool) -> bool:
            busy = running[worker.name] >= worker.slots or worker.node in measuring
            return not busy and not (alone and on_node[worker.node])

        for needs in sorted(self._waiting, key=lambda n: (n.alone, self._waiting[n][0])):
            heap = self._waiting[needs]
            able = [w for w in workers if _fits(w, needs.fingerprint) and (last_resort or w.name not in needs.avoid)]
            while heap and (free := [w for w in able if has_room(w, alone=needs.alone)]):
                worker = min(free, key=lambda w: (w.name in needs.avoid, running[w.name] / w.slots))
                command = self._commands[heapq.heappop(heap)[1]]
                self._at[command.name] = worker
                running[worker.name] += 1
                on_node[worker.node] += 1
                if command.alone:
                    measuring.add(worker.node)
                self._progress(f"{command.title} on {worker.name}" if self._engine.retries else command.title)
                self._engine.ask(worker.name, command)
            if not heap:
                del self._waiting[needs]

    def _is_final(self, command: Command, reply: Reply) -> bool:
        """Return whether a reply settles its command; one that does not is tried again."""
        self._at.pop(reply.name, None)
        if "error" not in reply.answer:
            for worker in self._health.succeeded(reply.name, reply.worker):
                self._engine.say(
                    f"{worker} is given no more work: it failed several times on what {reply.worker} then did"
                )
            return True
        self._health.failed(reply.name, reply.worker)
        self._deaths[reply.name] += reply.died
        self._errors[reply.name] += not reply.died
        if reply.died:
            open_ = self._deaths[reply.name] < DEATHS
        else:
            others = self._able(command, self._health.failed_on(reply.name))
            open_ = self._errors[reply.name] < AGREE and bool(others)
        if not open_ or not self._engine.retries:
            self._health.confirmed(reply.name)
            return True
        doing = reply.answer.get("doing") if command.subject else None
        during = f" during `{doing}`" if doing else ""
        ended = (
            f"{reply.worker} died{during}; retrying"
            if reply.died
            else f"{reply.worker} failed{during}; retrying elsewhere"
        )
        self._engine.say(f"{command.subject if doing else command.title}: {ended}: {reply.answer['error']['cause']}")
        self._enqueue(command)
        return False

    def _finish(self, reply: Reply) -> Settled:
        del self._commands[reply.name]
        self._deaths.pop(reply.name, None)
        self._errors.pop(reply.name, None)
        return Settled(reply.name, reply.answer)

    def _give_up(self) -> Iterator[Settled]:
        """Yield an error for every command that waits for a worker that has not come."""
        names = [name for heap in self._waiting.values() for _, name in heap]
        self._waiting.clear()
        shut = sorted(self._health.quarantined)
        cause = "No worker that is there can execute this" + (
            f", and {list_some(shut)} failed too often." if shut else "."
        )
        remedy = "Start a worker on a machine with these devices, and run the same command again."
        for name in names:
            yield self._finish(Reply(name, "", {"error": {"cause": cause, "remedy": remedy}}))


def _fits(worker: FleetWorker, fingerprint: str) -> bool:
    return fingerprint == ANY or worker.fingerprint in (ANY, fingerprint)
