"""Batches on a cluster whose network is cut, slow, or tells things twice.

Client and workers reach the scheduler through a proxy on loopback that knows where Dask's messages end. A connection is
cut after so many messages, all are delayed, or messages of ours are sent twice. Then the same batch runs on a network
without faults: it must give what one machine gives, and no stage may have been made twice.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from pipeline.fleet import batch
from tests.campaigns.commands import environment, run_command
from tests.campaigns.kills import batch_answer, batch_arguments, check_made_once
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.fleet_cluster import ROOT, Cluster, cluster
from tests.fleet_worker import MODULE

KINDS = ("cut", "cut", "delayed", "twice", "stalled")
OURS = b"placewright-"  # in all messages of ours: the topic of answers, and keys of commands
HEADER = 8
LOOPBACK = "127.0.0.1"


@dataclass
class Proxy:
    """Forwards connections to a scheduler, message by message, with a fault.

    after: messages of all connections until a connection is cut, or all stall for a while. delay_s: of each message.
    """

    port: int
    kind: str = ""
    after: int = 0
    delay_s: float = 0.0
    seen: int = 0
    struck: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    listener: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.listener = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"{LOOPBACK}:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Accept no more."""
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection((LOOPBACK, self.port))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as messages:
            while len(header := messages.read(HEADER)) == HEADER:
                body = messages.read(struct.unpack("<Q", header)[0])
                times = self._times(body)
                for _ in range(times):
                    sink.sendall(header + body)
                if not times:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _times(self, body: bytes) -> int:
        """Return how often a message is sent: 0 to cut its connection."""
        with self.lock:
            self.seen += 1
            turn = self.seen == self.after
        if self.kind == "delayed":
            self.struck += 1
            time.sleep(self.delay_s)
        if self.kind == "stalled" and turn:
            self.struck += 1
            with self.lock:  # all connections
                time.sleep(self.delay_s * 50)
        if self.kind == "twice" and OURS in body:
            self.struck += 1
            return 2
        if self.kind == "cut" and turn:
            self.struck += 1
            return 0
        return 1


def add_worker(there: Cluster, name: str, address: str) -> None:
    """Start a worker that reaches the scheduler through a proxy."""
    direct, there.address = there.address, f"tcp://{address}"
    there.add(name)
    there.address = direct


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what runs batches over a network with faults."""
    from coarsen.reading.model.read import save_model
    from tests.campaigns.files import toml_text
    from tests.e2e.conftest import DEVICES
    from tests.e2e.test_batch import LIGHT
    from tests.models import chain

    jobs, expected = folder / "jobs.toml", list[Any]()
    save_model(chain(3), folder / "chain.xml")
    jobs.write_text(toml_text({"defaults": LIGHT, "jobs": [{"models": ["chain.xml"], "devices": [DEVICES]}]}), "utf-8")
    paths = {"PLACEWRIGHT_LOCK": str(folder / "lock"), "PLACEWRIGHT_STORE": str(folder / "default")}
    workers = {"FLEET_WORKER": "w", "PYTHONPATH": str(ROOT)}
    with environment(**paths, **workers, CI="true"), patch.object(batch, "WORKER", MODULE):

        def judge(case: Case) -> str:
            if not expected:
                (folder / "whole").mkdir()
                with environment(FLEET_LOG=str(folder / "whole" / "log")):
                    expected.append(run_batch(jobs, folder / "whole"))
            with environment(FLEET_LOG=str(case.folder / "log")):
                return hurt_network(jobs, case, expected[0])

        yield judge


def run_batch(jobs: Path, folder: Path, *where: str) -> Any:
    """Return the rows of a batch, or its exit code if it fails."""
    ended = run_command(*batch_arguments(jobs, folder, *where))
    (folder / "out.txt").write_text(ended.out, encoding="utf-8")
    return batch_answer(folder) if ended.code == 0 else ended.code


def hurt_network(jobs: Path, case: Case, expected: Any) -> str:
    """Run a batch over a network with a fault, then without, and judge both."""
    rng, folder = case.rng, case.folder
    kind = str(rng.choice(KINDS))
    with cluster(folder / "cluster") as there:
        port = int(there.address.rpartition(":")[2])
        proxies = [Proxy(port) for _ in range(3)]
        try:
            for name, proxy in zip(("w0", "w1"), proxies, strict=False):
                add_worker(there, name, proxy.address)
            there.gather()
            hurt = proxies[int(rng.integers(3))]
            hurt.after = hurt.seen + int(np.exp(rng.uniform(0, np.log(120))))
            hurt.kind, hurt.delay_s = kind, float(rng.uniform(0.01, 0.1))
            rows = run_batch(jobs, folder, "--on", f"dask://{proxies[2].address}")
        finally:
            for proxy in proxies:
                proxy.close()
        what = f"{kind}, proxy {proxies.index(hurt)}, after {hurt.after}"
        require(rows in (expected, 4, 5), f"{what}: {rows}, expected {expected}")
    log = folder / "cluster" / "log"
    if log.exists():
        shutil.copyfile(log, folder / "log")
    again = run_batch(jobs, folder)
    require(again == expected, f"{what}: then {again}, expected {expected}")
    check_made_once(folder, what)
    return f"{kind}{'' if hurt.struck else ', not struck'}: {'right' if rows == expected else 'said so'}"


CAMPAIGN = Campaign("network", 1.0, begin)
