"""What `--on` says: which engine does the work."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import UsageError
from pipeline.fleet.engine import Engine, Say
from pipeline.fleet.pool import PoolEngine
from pipeline.store.store import Store
from pipeline.system.process import cpu_count

if TYPE_CHECKING:
    from pipeline.fleet.dask_engine import Fleet

LOCAL, SLURM, DASK = "local", "slurm", "dask"
PROTOCOLS = {"dask": "tcp", "tcp": "tcp", "tls": "tls"}  # as users write them, and as Dask does
FORMS = "local:3, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE"


def engine_for(on: str | None, module: str, store: Store, *, workers: int | None, say: Say) -> Engine:
    """Return the engine that a user asks for; the pool of this machine if none is named.

    module: what the workers' processes run. workers: most that the pool does at a time; one per processor if None.

    Raises:
        UsageError: it is not written as it should be, or Dask is not installed.
        DeviceError: there is no scheduler, or no worker that can be used.
    """
    if on is None:
        return PoolEngine(workers or cpu_count(), module, say)
    if workers is not None:
        raise UsageError("--workers and --on exclude each other.", "Write --on local:N for N workers.")
    return open_fleet(on, module, store, say)


def open_fleet(on: str, module: str, store: Store, say: Say) -> Fleet:
    """Return the Dask engine that a user asks for.

    Raises:
        UsageError: it is not written as it should be, or Dask is not installed.
    """
    kind, where = parse_target(on)
    if importlib.util.find_spec("distributed") is None:
        raise UsageError("--on needs Dask's distributed.", "Run `pip install 'placewright[fleet]'`.")
    from pipeline.fleet import clusters
    from pipeline.fleet.dask_engine import JOIN_S, Fleet
    from pipeline.fleet.slurm import read_slurm

    scheduler: contextlib.AbstractContextManager[str] = contextlib.nullcontext(where)
    join_s = JOIN_S
    if kind == LOCAL:
        scheduler = clusters.start_local_cluster(int(where))
    elif kind == SLURM:
        file = read_slurm(Path(where))
        scheduler, join_s = clusters.start_slurm_cluster(file), file.wait_s
    return Fleet(scheduler, module=module, store=store, say=say, join_s=join_s)


def parse_target(on: str) -> tuple[str, str]:
    """Return which sort of fleet is meant, and the rest: how many workers, a scheduler's address, or a file.

    Raises:
        UsageError: it is none.

    >>> parse_target("local:3"), parse_target("dask://farm:8786"), parse_target("slurm:farm.toml")
    (('local', '3'), ('dask', 'tcp://farm:8786'), ('slurm', 'farm.toml'))
    """
    kind, _, rest = on.partition(":")
    if kind == LOCAL and rest.isascii() and rest.isdigit() and int(rest) > 0:
        return LOCAL, rest
    if kind == SLURM and rest:
        return SLURM, rest
    host, _, port = rest.removeprefix("//").rpartition(":")
    if kind in PROTOCOLS and rest.startswith("//") and host and port.isascii() and port.isdigit():
        return DASK, f"{PROTOCOLS[kind]}://{host}:{port}"
    raise UsageError(f"--on {on} names no engine.", f"Write {FORMS}.")
