"""Event files for TensorBoard: a run per placer, scalars over evaluations."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.progress.curve import Row

EVERY_S = 0.5  # between two events at which nothing got better
NOT_DRAWN = ("placer", "done")


class EventFiles:
    """Writes rows of curves into `folder`/PLACER while placers search; `close` writes what is left.

    Every better placement is written, and otherwise an event every half second, so that a fast placer costs nothing.

    Raises:
        UsageError: tensorboardX is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._library: Any = importlib.import_module("tensorboardX")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"Files for TensorBoard need the package {error.name!r}, which is not installed.",
                "Install the extra: pip install placewright[tensorboard].",
            ) from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written: {error.strerror}.", "Choose another folder.") from error
        self._folder = folder
        self._files: dict[str, _EventFile] = {}

    def note(self, row: Row) -> None:
        """Take the row of an event that has just happened."""
        self._run(row["placer"]).note(row)

    def replay(self, rows: Sequence[Row]) -> None:
        """Write the rows of a curve, of a search that is over."""
        for row in rows:
            self._run(row["placer"]).write(row)

    def close(self) -> None:
        """Write what has not been written, and end the files."""
        for run in self._files.values():
            run.close()
        self._files.clear()

    def _run(self, placer: str) -> _EventFile:
        if placer not in self._files:
            self._files[placer] = _EventFile(self._library.SummaryWriter(str(self._folder / placer), flush_secs=2))
        return self._files[placer]


class _EventFile:
    """The event file of one placer."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._best_s = math.inf
        self._written_s = -math.inf
        self._waiting: Row | None = None

    def note(self, row: Row) -> None:
        """Write a row now, or remember it as the last."""
        now_s = row["seconds"]
        value_s = math.inf if row["value_s"] is None else row["value_s"]
        if value_s < self._best_s or now_s - self._written_s >= EVERY_S:
            self._best_s, self._written_s = min(self._best_s, value_s), now_s
            self.write(row)
        else:
            self._waiting = row

    def write(self, row: Row) -> None:
        """Write a scalar for every number of a row that is known."""
        self._waiting = None
        for name, value in row.items():
            if name not in NOT_DRAWN and value is not None:
                self._writer.add_scalar(name, value, row["done"])

    def close(self) -> None:
        """Write the last row, and end the file."""
        if self._waiting is not None:
            self.write(self._waiting)
        self._writer.close()
