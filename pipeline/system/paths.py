"""Whether there is a file; no, by a name that no file can have or where none can look: of some, pathlib raises."""

from __future__ import annotations

import os
from pathlib import Path


def path_exists(path: Path) -> bool:
    """Return whether there is something of this name."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Return whether there is a file of this name."""
    return os.path.isfile(path)  # noqa: PTH113
