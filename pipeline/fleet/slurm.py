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
from typing import Annotated, Any, Required

from pydantic import Field
from typing_extensions import TypedDict

from pipeline.core.errors import UsageError
from pipeline.settings.config import parse_time, read_toml
from pipeline.shared.validation import Faults, strict_table

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]
REMEDY = (
    'Write host = "10.0.0.1", an address of this machine that those of the batch system can reach, and perhaps '
    'workers = 4, threads = 1, cluster = "slurm", folder = "logs", wait = "10m" and [parameters] for submitit.'
)


@strict_table()
class WorkersFile(TypedDict, total=False):
    """The keys of the file, as above."""

    host: Required[Text]
    workers: Count
    threads: Count
    cluster: Text
    folder: Text
    wait: Text
    parameters: dict[str, Any]


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
    faults = Faults(str(path), UsageError, REMEDY)
    given: dict[str, Any] = {**faults.checked(WorkersFile, read_toml(path))}
    faults.end()
    wait_s = parse_time(given.pop("wait", "600s"), "wait", '"10m"')
    folder = path.parent / given.pop("folder", f"{path.stem}-logs")
    return SlurmFile(**given, folder=folder.absolute(), wait_s=wait_s)


@contextlib.contextmanager
def submit_jobs(file: SlurmFile, commands: Sequence[Sequence[str]]) -> Iterator[None]:
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
    except (RuntimeError, ValueError, TypeError, NameError, OSError) as error:  # what submitit raises of a wrong file
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
