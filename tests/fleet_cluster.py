"""A Dask cluster of processes on this machine: a scheduler and workers that tests may kill."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import distributed

ROOT = Path(__file__).parent.parent
PATIENCE_S = 120.0  # how long a test waits for something that takes seconds on an idle machine
LOOPBACK = ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]


@dataclass
class Cluster:
    """A scheduler and its workers, which have one thread each and are not started again when they die."""

    folder: Path
    scheduler: subprocess.Popen[bytes] = field(init=False)
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = self._start("dask_scheduler", "--port", "0", *LOOPBACK, "--scheduler-file", str(self.file))
        self.address = self._address()

    @property
    def file(self) -> Path:
        """Return the file in which the scheduler says where it is."""
        return self.folder / "scheduler.json"

    @property
    def log(self) -> Path:
        """Return the file in which tests.fleet_worker counts."""
        return self.folder / "log"

    def add(self, name: str, *, fault: str = "", **environment: str) -> None:
        """Start a worker."""
        own = {"FLEET_LOG": str(self.log), "FLEET_WORKER": name, "FLEET_FAULT": fault, **environment}
        arguments = [self.address, *LOOPBACK, "--no-nanny", "--nthreads", "1", "--name", name]
        self.workers[name] = self._start("dask_worker", *arguments, **own)

    def gather(self) -> None:
        """Return when all workers have come."""
        with distributed.Client(self.address, set_as_default=False, timeout=PATIENCE_S) as client:
            client.wait_for_workers(len(self.workers), timeout=PATIENCE_S)

    def made(self) -> Counter[tuple[str, str]]:
        """Return how often which (stage, key) was made."""
        return Counter((stage, key) for _, what, stage, *key_ in self._lines() if what == "made" for key in key_)

    def by(self, worker: str) -> list[str]:
        """Return what a worker noted, in order: made, failed."""
        return [what for who, what, *_ in self._lines() if who == worker]

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def _start(self, module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
            env={**os.environ, "CI": "true", "PYTHONPATH": str(ROOT), **environment},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _address(self) -> str:
        await_true(lambda: self.file.exists() and self.file.stat().st_size > 0)
        address: str = json.loads(self.file.read_text())["address"]
        return address

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers.values(), self.scheduler):
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Give a scheduler without workers."""
    folder.mkdir(exist_ok=True)
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.close()


def await_true(moment: Callable[[], bool]) -> None:
    """Return when a moment has come; fail when it has not in a long time."""
    end = time.monotonic() + PATIENCE_S
    while not moment():
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.02)
