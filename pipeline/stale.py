"""A run directory holds the result of its own run or none: results of another are taken away before one begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.payload import read_json

RESULT = "result.json"


def take_away_stale(folder: Path, keys: Mapping[str, str], *, same_settings: bool) -> None:
    """Remove result.json and the files it lists unless they are of a run with these keys.

    keys: stage -> key of what is to run; it may end before the last stage, and then `same_settings` says whether what
    comes after it is as before. The result goes last, so that an interrupted removal is completed the next time.

    Raises:
        StoreError: a file cannot be removed.
    """
    path = folder / RESULT
    if not path.exists():
        return
    known, names = _told(path)
    if (same_settings or keys.keys() == known.keys()) and keys.items() <= known.items():
        return
    try:
        for name in (*names, RESULT):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{error.filename}, of a run before, cannot be removed: {error.strerror}.", "Choose another run directory."
        ) from error


def _told(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return stage -> key of a result and the files it lists in its own folder; nothing if it is damaged."""
    try:
        document: Mapping[str, Any] = read_json(path)
        keys = {s["stage"]: s["key"] for s in document["stages"]}
        return keys, [n for n in document["files"].values() if Path(n).name == n and n != RESULT]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, []
