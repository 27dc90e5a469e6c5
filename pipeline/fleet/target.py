"""What `--on` says: which engine does the work."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from pipeline.artifacts.store import Store
from pipeline.core.errors import UsageError
from pipeline.core.process import cpu_count
from pipeline.fleet.dispatch import Say
from pipeline.fleet.engine import Engine
from pipeline.fleet.pool import PoolEngine

if TYPE_CHECKING:
    from pipeline.fleet.dask_engine import Fleet

LOCAL = "local"
PROTOCOLS = {"dask": "tcp", "tcp": "tcp", "tls": "tls"}  # as users write them, and as Dask does
FORMS = "local:3, dask://HOST:PORT or tls://HOST:PORT"


def engine_for(on: str | None, module: str, store: Store, *, workers: int | None, say: Say) -> Engine:
    """Return the engine that a user asks for; the pool of this machine if none is named.

    module: what the workers' processes run. workers: most that the pool does at a time; one per processor if None.

    Raises:
        UsageError: it is not written as it should be, or Dask is not installed.
        DeviceError: there is no scheduler, or no worker that can be used.
    """
    if on is None:
        return PoolEngine(workers or cpu_count(), module)
    if workers is not None:
        raise UsageError("--workers and --on exclude each other.", "Write --on local:N for N workers.")
    return open_fleet(on, module, store, say)


def open_fleet(on: str, module: str, store: Store, say: Say) -> Fleet:
    """Return the Dask engine that a user asks for.

    Raises:
        UsageError: it is not written as it should be, or Dask is not installed.
    """
    local, address = parse_target(on)
    if importlib.util.find_spec("distributed") is None:
        raise UsageError("--on needs Dask's distributed.", "Run `pip install 'placewright[fleet]'`.")
    from pipeline.fleet.dask_engine import Fleet

    return Fleet(local, address, module=module, store=store, say=say)


def parse_target(on: str) -> tuple[int, str]:
    """Return how many workers are to be started here, or 0 and the address of a scheduler.

    Raises:
        UsageError: it is neither.

    >>> parse_target("local:3"), parse_target("dask://farm:8786")
    ((3, ''), (0, 'tcp://farm:8786'))
    """
    kind, _, rest = on.partition(":")
    if kind == LOCAL and rest.isascii() and rest.isdigit() and int(rest) > 0:
        return int(rest), ""
    host, _, port = rest.removeprefix("//").rpartition(":")
    if kind in PROTOCOLS and rest.startswith("//") and host and port.isascii() and port.isdigit():
        return 0, f"{PROTOCOLS[kind]}://{host}:{port}"
    remedy = f"Write {FORMS}."
    if kind == "slurm":
        remedy = "Start Dask's workers with srun and write dask://HOST:PORT; docs/fleet.md shows how."
    raise UsageError(f"--on {on} names no engine.", remedy)
