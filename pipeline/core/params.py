"""How an implementation states its parameters."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def param(default: Any, text: str) -> Any:
    """Return a dataclass field with a default and the help text that the command line shows for it."""
    return field(default=default, metadata={"help": text})
