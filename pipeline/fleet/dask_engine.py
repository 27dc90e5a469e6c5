"""The engine for many machines: workers of a Dask scheduler, or a few that are started here.

Dask carries commands to workers and tells which come and go; which worker gets what is decided by the dispatcher, so
that no command waits for a worker that is gone and Dask tries nothing again by itself (docs/fleet.md says why). On a
worker, resident processes execute them as on one machine. Commands and answers are JSON; Dask itself pickles the name
of the function it is to call, and the pieces of artifacts that are transferred.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import distributed

from pipeline.core.errors import (
    DeviceError,
    PlacewrightError,
    UsageError,
    error_document,
    error_from_document,
    list_some,
)
from pipeline.fleet.engine import Command, FleetWorker, Reply, Say
from pipeline.fleet.member import compare_traits, explain_refusal, read_machine, read_traits
from pipeline.fleet.residents import ask_store, end_idle_processes, execute_command, prepare_worker
from pipeline.fleet.transfer import ArtifactTransfer
from pipeline.stages.host import HostMachine
from pipeline.store.store import Store, write_text
from pipeline.system.workers import Answer

MEMBER = "pipeline.fleet.member"  # the module whose process describes a worker
CONNECT_S = 10.0
JOIN_S = 60.0  # how long workers have to describe themselves before the first command goes out
LOOK_EVERY_S = 1.0  # how often the connection is looked at while nothing happens


class _Asked(NamedTuple):
    """A question to a worker. take: gets the answer, and returns the reply to a command. doing: the step begun last."""

    name: str
    worker: str
    future: Any
    take: Callable[[Answer], list[Reply]]
    doing: str = ""


class Fleet:
    """Workers of a Dask scheduler that run the same version of this program.

    Those that do not see the store have one of their own: artifacts are sent to it and fetched from it.

    scheduler: gives the address of one. join_s: how long workers may take to describe themselves before the first
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
        self._unusable: dict[str, str] = {}
        self._transfers: dict[str, ArtifactTransfer] = {}  # of the workers that have a store of their own
        self._early: list[Reply] = []
        # What threads of Dask's client have heard, as calls for the thread that waits.
        self._events: queue.SimpleQueue[Callable[[], list[Reply]]] = queue.SimpleQueue()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._connect()
            self._await_workers()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):  # a worker that is gone has no process left
                self._run_on_workers(end_idle_processes, on_error="ignore")
        self._asked.clear()
        self._open.close()

    def _run_on_workers(self, function: Callable[..., Any], **how: Any) -> Any:
        """Return what Dask's `Client.run` does, which waits for ever where a connection was lost in the middle.

        Raises:
            TimeoutError: not all have answered in time.
        """
        return self._client.sync(self._client._run, function, callback_timeout=self._join_s, **how)

    def _connect(self) -> None:
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
        self._client.subscribe_topic(self._topic, self._hear_worker)
        self._client.subscribe_topic("all", self._hear_scheduler)

    def _await_workers(self) -> None:
        """Return when all workers that are there have described themselves, or had the time for it."""
        for address in self._client.scheduler_info(n_workers=-1)["workers"]:
            self._introduce(address)
        end = time.monotonic() + self._join_s
        while (self._strangers() or not self._addresses) and time.monotonic() < end:
            self._listen(end - time.monotonic())
        if not self._workers:
            told = [f"{name}: {why}" for name, why in sorted(self._unusable.items())]
            raise DeviceError(
                f"No worker of {self._address} can be used" + (f": {list_some(told)}." if told else "."),
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
        told: dict[str, Answer] = {}

        def note(kind: str, answer: Answer) -> list[Reply]:
            told[kind] = answer
            return []

        for kind, worker in kinds.items():
            self._send(worker.name, MEMBER, "describe", {"devices": list(devices)}, partial(note, kind))
        while len(told) < len(kinds):
            self._early += self._listen(LOOK_EVERY_S)
        machines = [read_machine(told[kind]["machine"]) for kind in kinds if "error" not in told[kind]]
        if not machines:
            raise error_from_document(told[next(iter(kinds))]["error"], DeviceError)
        return machines

    def ask(self, worker: str, command: Command) -> None:
        """Send a command to a worker, and before it what it needs of this store."""
        transfer, document = self._transfers.get(worker), command.document
        if transfer is not None:
            try:
                document = transfer.deliver(command)
            except (PlacewrightError, OSError) as error:
                self._early.append(_undelivered(command, worker, error))
                return
        self._send(worker, self._module, command.name, document, partial(self._collect, worker, command))

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Return what was answered; nothing if workers came or went, or time is up."""
        early, self._early = self._early, []
        return early or self._listen(patience_s)

    def _listen(self, patience_s: float) -> list[Reply]:
        end = time.monotonic() + patience_s
        while True:
            try:
                hear = self._events.get(timeout=max(0.0, min(LOOK_EVERY_S, end - time.monotonic())))
            except queue.Empty:
                if self._client.status != "running":
                    raise self._scheduler_gone() from None
                if time.monotonic() >= end:
                    return []
                continue
            known = dict(self._workers)
            replies = hear()
            if replies or known != self._workers or not self._strangers():
                return replies

    def _strangers(self) -> set[str]:
        """Return the workers that have not described themselves yet."""
        return self._addresses.keys() - self._workers.keys() - self._unusable.keys()

    def _send(
        self, worker: str, module: str, name: str, document: Mapping[str, Any], take: Callable[[Answer], list[Reply]]
    ) -> None:
        attempt = next(self._attempts)
        asked = {"topic": self._topic, "attempt": attempt, "module": module, "name": name, "document": document}
        future = self._client.submit(
            execute_command,
            json.dumps(asked),
            key=f"{name}-{self._topic}-{attempt}",
            workers=[self._addresses[worker]],
            pure=False,
        )
        self._asked[attempt] = _Asked(name, worker, future, take)
        future.add_done_callback(partial(self._hear_end, attempt))

    # What follows is called by threads of Dask's client, and only files events.

    def _hear_worker(self, event: Any) -> None:
        self._events.put(partial(self._take, **json.loads(event[1])))

    def _hear_scheduler(self, event: Any) -> None:
        take = {"add-worker": self._introduce, "remove-worker": self._dismiss}.get(event[1].get("action"))
        if take is not None:
            self._events.put(partial(take, event[1]["worker"]))

    def _hear_end(self, attempt: int, future: Any) -> None:
        if future.status == "error":  # Dask could not call our function, or the process of the worker is broken
            error = {
                "cause": f"Dask says: {future.exception()!r}.",
                "remedy": "Install placewright where Dask's workers run.",
            }
            self._events.put(partial(self._take, attempt, answer={"error": error}))
        elif future.status in ("cancelled", "lost"):
            self._events.put(partial(self._take, attempt, lost=True))

    # What follows is called by the thread that waits.

    def _take(
        self, attempt: int, *, begun: str | None = None, answer: Answer | None = None, lost: bool = False
    ) -> list[Reply]:
        """Return the reply that news of an attempt brings: a step begun, the answer, or that Dask lost it."""
        asked = self._asked.get(attempt)
        if asked is None:  # of a worker that was gone and came back
            return []
        if lost:
            raise self._scheduler_gone()
        if answer is None:
            self._asked[attempt] = asked._replace(doing=begun or "")
            return []
        del self._asked[attempt]
        return asked.take(answer)

    def _collect(self, worker: str, command: Command, answer: Answer) -> list[Reply]:
        """Return the reply to a command, once what it made is here."""
        transfer = self._transfers.get(worker)
        if transfer is not None and not answer.get("gone"):
            try:
                transfer.collect(command)
            except (PlacewrightError, OSError) as error:
                return [_undelivered(command, worker, error)]
        return [Reply(command.name, worker, answer, "died" in answer)]

    def _introduce(self, address: str) -> list[Reply]:
        """Ask a worker to describe itself."""
        told = self._client.scheduler_info(n_workers=-1)["workers"].get(address)
        if told is not None and address not in self._addresses.values():
            name, slots = str(told["name"]), int(told["nthreads"])
            self._addresses[name] = address
            self._unusable.pop(name, None)
            try:
                fault = self._run_on_workers(prepare_worker, workers=[address], on_error="return").get(address)
            except TimeoutError:
                self._refuse(name, "it does not answer")
                return []
            if isinstance(fault, Exception):
                if not isinstance(fault, OSError):  # that one is gone again, as the scheduler will tell
                    self._refuse(name, f"it cannot run placewright: {fault}")
                return []
            mark = {"mark": str(self._mark), "text": self._mark_text}
            self._send(name, MEMBER, "describe", mark, partial(self._join, name, slots))
        return []

    def _join(self, name: str, slots: int, told: Answer) -> list[Reply]:
        """Take a worker in that has described itself."""
        if told.get("gone"):
            return []
        own = read_traits()
        why = explain_refusal(told, own)
        if why:
            self._refuse(name, why)
            return []
        for difference in compare_traits(told, own):
            self.say(f"{name} on {told['node']} differs: {difference}")
        self._transfers.pop(name, None)
        if told["store"]:
            self.say(f"{name} on {told['node']} does not see the store: artifacts are sent to {told['store']} there")
            call = partial(self._ask_store, self._addresses[name])
            self._transfers[name] = ArtifactTransfer(self._store, Path(told["store"]), call, self._mark_text)
        self._workers[name] = FleetWorker(name, told["node"], told["fingerprint"], slots)
        return []

    def _refuse(self, name: str, why: str) -> None:
        self._unusable[name] = why
        self.say(f"{name} is not used: {why}")

    def _ask_store(self, address: str, request: Mapping[str, Any]) -> Answer:
        """Return what the store of a worker answers.

        Raises:
            OSError: the worker is gone.
        """
        answer: Answer = self._client.run(ask_store, dict(request), workers=[address])[address]
        return answer

    def _dismiss(self, address: str) -> list[Reply]:
        """Return the replies that a worker which is gone will not give."""
        name = next((n for n, a in self._addresses.items() if a == address), None)
        if name is None:
            return []
        for known in (self._addresses, self._workers, self._unusable):
            known.pop(name, None)
        lost = [self._asked.pop(attempt) for attempt, asked in [*self._asked.items()] if asked.worker == name]
        gone = {"error": {"cause": f"The worker {name} is gone.", "remedy": ""}, "died": True, "gone": True}
        return [reply for asked in lost for reply in asked.take({**gone, "doing": asked.doing})]

    def _scheduler_gone(self) -> PlacewrightError:
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
