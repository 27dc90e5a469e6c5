"""Where placewright keeps what it can make again: code and answers that belong to one installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs

KERNELS = "kernels"  # the cache of compiled code


def own_cache(name: str) -> Path:
    """Return a folder of the environment placewright runs in, or of the user where that cannot be written."""
    environment = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(environment, os.W_OK):
        return environment / "var" / "cache" / "placewright" / name
    return Path(platformdirs.user_cache_dir("placewright")) / name
