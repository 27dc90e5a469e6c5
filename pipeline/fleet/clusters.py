"""Schedulers and workers that are started here: on this machine, or through Slurm."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import distributed

from pipeline.core.errors import DeviceError
from pipeline.fleet.slurm import SlurmFile, submit_jobs

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def start_local_cluster(workers: int) -> Iterator[str]:
    """Start a scheduler in this process and workers of one thread each beside it, all on loopback; give its address.

    Raises:
        DeviceError: a worker has died as it started.
    """
    with _scheduler(LOOPBACK, workers) as cluster:
        yield cluster.scheduler_address


@contextlib.contextmanager
def start_slurm_cluster(file: SlurmFile) -> Iterator[str]:
    """Start a scheduler in this process, and a worker in every job that is submitted; give its address.

    The jobs are cancelled in the end, whether they have begun or not.

    Raises:
        UsageError: the jobs cannot be submitted.
    """
    with _scheduler(file.host, 0) as cluster:
        address = cluster.scheduler_address
        with submit_jobs(file, [_worker(file, address, i) for i in range(file.workers)]):
            yield address


def _worker(file: SlurmFile, address: str, number: int) -> list[str]:
    """Return the command of a worker."""
    options = ["--no-nanny", "--nthreads", str(file.threads), "--name", f"job{number + 1}"]
    listening = [*(["--host", file.host] if file.cluster != "slurm" else []), "--dashboard-address", f"{LOOPBACK}:0"]
    return [sys.executable, "-m", "distributed.cli.dask_worker", address, *options, *listening]


@contextlib.contextmanager
def _scheduler(host: str, workers: int) -> Iterator[Any]:
    import dask.config

    # Dask's nanny would set these for its workers, and everything measured there would differ from a run by hand.
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {}}), contextlib.ExitStack() as started:
        try:
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host=host,
                dashboard_address=f"{LOOPBACK}:0",  # its port, which is opened without a dashboard as well
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                silence_logs=logging.CRITICAL,
            )
        except RuntimeError as error:  # so Dask tells that a worker's process ended before it was ready
            raise DeviceError(f"A worker cannot be started: {error}", "Run the same command again.") from error
        yield started.enter_context(cluster)
