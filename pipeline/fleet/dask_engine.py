"""The engine for many machines: workers of a Dask scheduler, or a few that are started here.

Dask carries commands to workers and tells who comes and goes; who gets what is decided by the dispatcher, so that no
command waits for a worker that is gone and Dask tries nothing again by itself. On a worker, resident processes execute
them as on one machine. Commands and answers are JSON; Dask itself pickles the name of the function it is to call, and
what couriers send and fetch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import platform
import queue
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import distributed

from pipeline.core.errors import DeviceError, PlacewrightError, UsageError, error_document, listed, told_error
from pipeline.fleet.courier import Courier
from pipeline.fleet.engine import Command, FleetWorker, Reply, Say
from pipeline.fleet.member import machine_of, refusal, remarks, traits
from pipeline.fleet.residents import Residents, exchange, execute, rest
from pipeline.stages.host import HostMachine
from pipeline.store.store import Store, write_text
from pipeline.system.workers import Answer

MEMBER = "pipeline.fleet.member"  # the module whose process tells what a worker is
CONNECT_S = 10.0
JOIN_S = 60.0  # how long workers have to tell what they are before the first command goes out
LOOK_EVERY_S = 1.0  # how often the connection is looked at while nothing happens


class _Asked(NamedTuple):
    """A command on its way. command: None where the worker is asked about itself. doing: the step begun last."""

    name: str
    worker: str
    future: Any
    command: Command | None
    doing: str = ""


class _Event(NamedTuple):
    """What the threads of Dask's client tell: an answer or the step before it, a failed attempt, workers' comings."""

    kind: str
    about: str
    answer: Answer


class Fleet:
    """Workers of a Dask scheduler that run the same version of this program.

    Those that do not see the store have one of their own: what they need is sent to it, what they make is fetched.

    scheduler: gives the address of one. join_s: how long workers may take to tell what they are before the first
    command goes out. TLS is set up as everywhere in Dask, by its configuration.
    """

    retries = True

    def __init__(
        self, scheduler: AbstractContextManager[str], *, module: str, store: Store, say: Say, join_s: float = JOIN_S
    ) -> None:
        self._scheduler, self._join_s = scheduler, join_s
        self._module, self._store, self.say = module, store, say
        self._topic = f"placewright-{secrets.token_hex(8)}"
        self._mark_text = secrets.token_hex(16)
        self._attempts = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._workers: dict[str, FleetWorker] = {}
        self._addresses: dict[str, str] = {}  # of all workers, those that cannot be used as well
        self._slots: dict[str, int] = {}
        self._unusable: dict[str, str] = {}
        self._couriers: dict[str, Courier] = {}  # of the workers that have a store of their own
        self._early: list[Reply] = []
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):  # a worker that is gone has no process left
                self._client.run(rest, on_error="ignore")
        self._asked.clear()
        self._open.close()

    def _begin(self) -> None:
        self._mark = self._open.enter_context(self._store.scratch()) / "fleet"
        write_text(self._mark, self._mark_text)
        self._open.enter_context(_quiet_logs())
        self._address = self._open.enter_context(self._scheduler)
        _check_certificates(self._address)
        try:
            self._client = distributed.Client(self._address, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:
            raise DeviceError(
                f"No Dask scheduler answers at {self._address}.", "Start `dask scheduler` there, or correct --on."
            ) from error
        self._open.callback(self._client.close, timeout=CONNECT_S)
        self._client.register_plugin(Residents())
        self._client.subscribe_topic(self._topic, self._answered)
        self._client.subscribe_topic("all", self._roster_changed)
        for address in self._client.scheduler_info(n_workers=-1)["workers"]:
            self._introduce(address)
        end = time.monotonic() + self._join_s
        while (self._strangers() or not self._addresses) and time.monotonic() < end:
            self._early += self.wait(end - time.monotonic())
        if not self._workers:
            told = [f"{name}: {why}" for name, why in sorted(self._unusable.items())]
            raise DeviceError(
                f"No worker of {self._address} can be used" + (f": {listed(told)}." if told else "."),
                "Start `dask worker` in the same environment; docs/fleet.md.",
            )

    def workers(self) -> Sequence[FleetWorker]:
        """Return the workers that can be used, by name."""
        return tuple(self._workers[name] for name in sorted(self._workers))

    def machines(self, devices: Sequence[str]) -> Sequence[HostMachine]:
        """Return one machine per kind of hardware, this one's kind first."""
        kinds: dict[str, FleetWorker] = {}
        for worker in sorted(self._workers.values(), key=lambda w: (w.node != platform.node(), w.name)):
            kinds.setdefault(worker.fingerprint, worker)
        told = [self._call(worker.name, {"devices": list(devices)}) for worker in kinds.values()]
        machines = [machine_of(t["machine"]) for t in told if "error" not in t]
        if not machines:
            raise told_error(told[0]["error"], DeviceError)
        return machines

    def ask(self, worker: str, command: Command) -> None:
        """Send a command to a worker, and before it what it needs of this store."""
        courier, document = self._couriers.get(worker), command.document
        if courier is not None:
            try:
                document = courier.deliver(command)
            except (PlacewrightError, OSError) as error:
                self._early.append(_undelivered(command, worker, error))
                return
        self._send(worker, self._module, command.name, document, command)

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Return what was answered; nothing if workers came or went, or time is up."""
        if self._early:
            early, self._early = self._early, []
            return early
        end = time.monotonic() + patience_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, min(LOOK_EVERY_S, end - time.monotonic())))
            except queue.Empty:
                self._check_scheduler()
                if time.monotonic() >= end:
                    return []
                continue
            known = dict(self._workers)
            replies = self._heard(event)
            if replies or known != self._workers or not self._strangers():
                return replies

    def _strangers(self) -> set[str]:
        """Return the workers that have not told yet what they are."""
        return self._addresses.keys() - self._workers.keys() - self._unusable.keys()

    def _call(self, worker: str, document: dict[str, Any]) -> Answer:
        """Return what a worker tells about itself."""
        attempt = self._send(worker, MEMBER, f"about-{worker}", document)
        while True:
            for reply in self.wait(JOIN_S):
                if reply.name == f"about-{worker}":
                    return reply.answer
                self._early.append(reply)
            if attempt not in self._asked:
                return {"error": {"cause": f"The worker {worker} is gone.", "remedy": ""}}

    def _send(
        self, worker: str, module: str, name: str, document: Mapping[str, Any], command: Command | None = None
    ) -> int:
        attempt = next(self._attempts)
        asked = {"topic": self._topic, "attempt": attempt, "module": module, "name": name, "document": document}
        future = self._client.submit(
            execute,
            json.dumps(asked),
            key=f"{name}-{self._topic}-{attempt}",
            workers=[self._addresses[worker]],
            pure=False,
        )
        self._asked[attempt] = _Asked(name, worker, future, command)
        future.add_done_callback(partial(self._ended, attempt))
        return attempt

    # What follows is called by threads of Dask's client, and only files events.

    def _answered(self, event: Any) -> None:
        self._events.put(_Event("answer", "", json.loads(event[1])))

    def _roster_changed(self, event: Any) -> None:
        if event[1].get("action") in ("add-worker", "remove-worker"):
            self._events.put(_Event(event[1]["action"], event[1]["worker"], {}))

    def _ended(self, attempt: int, future: Any) -> None:
        if future.status == "error":  # Dask could not call our function, or the process of the worker is broken
            cause = f"Dask says: {future.exception()!r}."
            error = {"error": {"cause": cause, "remedy": "Install placewright where Dask's workers run."}}
            self._events.put(_Event("answer", "", {"attempt": attempt, "answer": error}))
        elif future.status in ("cancelled", "lost"):
            self._events.put(_Event("cut", "", {"attempt": attempt}))

    # What follows is called by the thread that waits.

    def _heard(self, event: _Event) -> list[Reply]:
        """Return the replies that an event brings."""
        if event.kind == "add-worker":
            self._introduce(event.about)
        elif event.kind == "remove-worker":
            return self._left(event.about)
        elif event.kind == "cut" and event.answer["attempt"] in self._asked:
            raise self._gone()
        elif "begun" in event.answer and event.answer["attempt"] in self._asked:
            attempt = event.answer["attempt"]
            self._asked[attempt] = self._asked[attempt]._replace(doing=event.answer["begun"])
        elif "answer" in event.answer:
            asked = self._asked.pop(event.answer["attempt"], None)
            if asked is not None:  # not of a worker that was gone and came back
                return self._reply(asked, event.answer["answer"])
        return []

    def _reply(self, asked: _Asked, answer: Answer) -> list[Reply]:
        if asked.name == f"joins-{asked.worker}":
            self._join(asked.worker, answer)
            return []
        courier = self._couriers.get(asked.worker)
        if courier is not None and asked.command is not None:
            try:
                courier.collect(asked.command)
            except (PlacewrightError, OSError) as error:
                return [_undelivered(asked.command, asked.worker, error)]
        return [Reply(asked.name, asked.worker, answer, "died" in answer)]

    def _introduce(self, address: str) -> None:
        """Ask a worker what it is."""
        told = self._client.scheduler_info(n_workers=-1)["workers"].get(address)
        if told is None or address in self._addresses.values():
            return
        name = str(told["name"])
        self._addresses[name] = address
        self._unusable.pop(name, None)
        self._slots[name] = int(told["nthreads"])
        self._send(name, MEMBER, f"joins-{name}", {"mark": str(self._mark), "text": self._mark_text})

    def _join(self, name: str, told: Answer) -> None:
        own = traits()
        why = refusal(told, own)
        if why:
            self._unusable[name] = why
            self.say(f"{name} is not used: {why}")
            return
        for remark in remarks(told, own):
            self.say(f"{name} on {told['node']} differs: {remark}")
        self._couriers.pop(name, None)
        if told["store"]:
            self.say(f"{name} on {told['node']} does not see the store: artifacts are sent to {told['store']} there")
            call = partial(self._exchange, self._addresses[name])
            self._couriers[name] = Courier(self._store, Path(told["store"]), call, self._mark_text)
        self._workers[name] = FleetWorker(name, told["node"], told["fingerprint"], self._slots[name])

    def _exchange(self, address: str, request: Mapping[str, Any]) -> Answer:
        """Return what the store of a worker answers.

        Raises:
            OSError: the worker is gone.
        """
        answer: Answer = self._client.run(exchange, dict(request), workers=[address])[address]
        return answer

    def _left(self, address: str) -> list[Reply]:
        """Return the replies that a worker which is gone will not give."""
        name = next((n for n, a in self._addresses.items() if a == address), None)
        if name is None:
            return []
        del self._addresses[name]
        self._workers.pop(name, None)
        self._unusable.pop(name, None)
        gone = {"error": {"cause": f"The worker {name} is gone.", "remedy": ""}, "died": True}
        lost = [attempt for attempt, asked in self._asked.items() if asked.worker == name]
        return [
            Reply(asked.name, name, {**gone, "doing": asked.doing}, died=True) for asked in map(self._asked.pop, lost)
        ]

    def _check_scheduler(self) -> None:
        if self._client.status != "running":
            raise self._gone()

    def _gone(self) -> PlacewrightError:
        return DeviceError(
            f"The scheduler {self._address} is gone.",
            "Start it and its workers again, and run the same command: what is finished is in the store.",
        )


def _undelivered(command: Command, worker: str, error: PlacewrightError | OSError) -> Reply:
    """Return the reply where artifacts could not travel: the worker is gone, or one of the stores cannot be used."""
    if isinstance(error, PlacewrightError):
        return Reply(command.name, worker, {"error": error_document(error)})
    gone = {"error": {"cause": f"The worker {worker} is gone: {error}.", "remedy": ""}, "died": True}
    return Reply(command.name, worker, gone, died=True)


def _check_certificates(address: str) -> None:
    """Check that Dask's configuration names certificates where an address demands them.

    Raises:
        UsageError: it does not.
    """
    security = distributed.Security()
    given = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
    if address.startswith("tls://") and None in given:
        raise UsageError(
            f"{address} needs certificates, and Dask's configuration names none.",
            "Set DASK_DISTRIBUTED__COMM__TLS__CA_FILE and the like, as docs/fleet.md shows.",
        )


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep Dask from logging what is said in our words, unless everything is to be logged."""
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        yield
        return
    levels = {log: log.level for log in map(logging.getLogger, ("distributed", "distributed.client"))}
    try:
        for log in levels:
            log.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
