"""How an implementation states its parameters."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def param(default: Any, text: str, *, file: bool = False) -> Any:
    """Return a dataclass field with a default and the help text that the command line shows for it.

    file: the value is the path of a file, whose content then belongs to the cache key.
    """
    return field(default=default, metadata={"help": text, "file": file})
