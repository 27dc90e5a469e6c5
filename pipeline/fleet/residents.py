"""What the Dask engine runs on workers: resident processes for commands, and requests to a store of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import distributed

from pipeline.fleet.transfer import handle_request
from pipeline.system.workers import Answer, Begin, Workers

RESIDENTS = "_placewright"  # the attribute of Dask's worker that holds its resident processes


class Residents:
    """The resident processes of a Dask worker, as many as it has threads; they end with it.

    No plug-in of Dask's: a worker that cannot import one, because placewright is not installed there, ends the client.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Workers]] = []

    def end_idle(self) -> None:
        """End the processes that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, pool in idle:
            pool.__exit__(None, None, None)

    def ask_process(self, module: str, name: str, document: Any, begun: Begin) -> Answer:
        """Return the answer of a process of the module, or how it ended; begun: told of every step that begins."""
        pool = self._take_process(module)
        pool.ask(name, document)
        [(_, reply)] = pool.wait(begun)
        with self._lock:
            self._idle.append((module, pool))
        return reply

    def _take_process(self, module: str) -> Workers:
        """Return an idle process of a module, or room for one: it takes the place of another's."""
        with self._lock:
            at = next((i for i, (kind, _) in enumerate(self._idle) if kind == module), None)
            other = self._idle.pop(at if at is not None else 0) if self._idle else None
        if other is not None and at is None:
            other[1].__exit__(None, None, None)
        return other[1] if other is not None and at is not None else Workers(1, module)


def prepare_worker(dask_worker: Any) -> None:
    """Make room for processes; it fails where placewright is not installed, and a task would end Dask's worker."""
    vars(dask_worker).setdefault(RESIDENTS, Residents())


def execute_command(text: str) -> None:
    """Execute a command on a worker; the answer goes back as an event, which needs no second connection.

    So do the steps that it begins: when the worker dies, no other process knows in which of them.
    """
    asked, worker = json.loads(text), distributed.get_worker()

    def tell(**what: Any) -> None:
        worker.log_event(asked["topic"], json.dumps({"attempt": asked["attempt"], **what}))

    residents: Residents = getattr(worker, RESIDENTS)
    tell(answer=residents.ask_process(asked["module"], asked["name"], asked["document"], lambda step: tell(begun=step)))


def end_idle_processes(dask_worker: Any) -> None:
    """Let a worker keep no idle process."""
    getattr(dask_worker, RESIDENTS).end_idle()


async def ask_store(request: dict[str, Any]) -> Answer:
    """Return what the worker's store answers to a request, while the worker goes on with what else it does."""
    return await asyncio.to_thread(handle_request, request)
