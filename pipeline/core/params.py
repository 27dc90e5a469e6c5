"""How an implementation states its parameters."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any


def param(default: Any, text: str, *, file: bool = False, least: float = 0.0) -> Any:
    """Return a dataclass field with a default and the help text that the command line shows for it.

    file: the value is the path of a file, whose content then belongs to the cache key. least: what a number must be at
    least; users cannot set it to less, nor to what is not finite.
    """
    return field(default=default, metadata={"help": text, "file": file, "least": least})


def canonical(implementation: Any) -> dict[str, Any]:
    """Return the parameters of a built implementation as plain JSON values, for its cache key."""
    return asdict(implementation)
