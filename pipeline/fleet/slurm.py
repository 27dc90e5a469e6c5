"""Workers that a batch system starts: the file that says how many and with what, and submitting them with submitit.

host = "10.0.0.1"            # where this machine listens for them; required, and all that can reach it is trusted
workers = 4                  # jobs, each with one worker
threads = 1                  # stages at once that do not measure, of each
cluster = "slurm"            # or another of submitit's: "local" runs them on this machine
folder = "logs"              # what the jobs say; beside the file unless given
wait = "10m"                 # for the first of them to begin

[parameters]                 # submitit's, as they stand
timeout_min = 240
slurm_partition = "bench"
slurm_exclusive = true
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.settings.config import parse_time, read_toml

EXAMPLES: Mapping[str, str] = {
    "host": '"10.0.0.1"',
    "workers": "4",
    "threads": "1",
    "cluster": '"slurm"',
    "folder": '"logs"',
    "wait": '"10m"',
    "parameters": "{ timeout_min = 240 }",
}


@dataclass(frozen=True, slots=True)
class SlurmFile:
    """What such a file says. wait_s: how long the first worker may take to come."""

    host: str
    folder: Path
    workers: int = 1
    threads: int = 1
    cluster: str = "slurm"
    wait_s: float = 600.0
    parameters: Mapping[str, Any] = field(default_factory=dict)


def read_slurm(path: Path) -> SlurmFile:
    """Return what a file of workers says.

    Raises:
        UsageError: it cannot be read, or a key is missing, unknown or wrong.
    """
    given = read_toml(path)
    for key, value in given.items():
        if key not in EXAMPLES:
            raise UnknownNameError("key of a file of workers", key, EXAMPLES)
        fits = {"workers": _counts, "threads": _counts, "parameters": _is_table}.get(key, _is_text)
        if not fits(value):
            raise UsageError(f"`{key}` of {path} is {value!r}.", f"Write {key} = {EXAMPLES[key]}.")
    if "host" not in given:
        raise UsageError(
            f"{path} does not say where this machine listens for workers.",
            f"Write host = {EXAMPLES['host']}: an address that the machines of the batch system can reach.",
        )
    wait_s = parse_time(given.pop("wait", "600s"), "wait", EXAMPLES["wait"])
    folder = path.parent / given.pop("folder", f"{path.stem}-logs")
    return SlurmFile(**given, folder=folder.absolute(), wait_s=wait_s)


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


@contextlib.contextmanager
def submitted(file: SlurmFile, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Submit a job per command, and cancel those that are left in the end.

    Raises:
        UsageError: submitit is not installed, or refuses what the file says.
    """
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("--on slurm:FILE needs submitit.", "Run `pip install 'placewright[slurm]'`.")
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=file.folder, cluster=file.cluster)
        executor.update_parameters(name="placewright", **file.parameters)
        jobs = [executor.submit(become, list(command)) for command in commands]
    except (
        RuntimeError,
        ValueError,
        TypeError,
        NameError,
        OSError,
    ) as error:  # all that submitit raises of a wrong file
        raise UsageError(
            f"submitit cannot submit to {file.cluster}: {error}.", "Correct the file of --on slurm:FILE; docs/fleet.md."
        ) from error
    try:
        yield
    finally:
        for job in jobs:
            job.cancel(check=False)


def become(command: Sequence[str]) -> None:
    """Execute a command in place of this process, so that what the batch system tells this one is told the command."""
    os.execv(command[0], list(command))
