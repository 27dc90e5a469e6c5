"""How an implementation states its parameters."""

from __future__ import annotations

import math
from dataclasses import asdict, field, fields
from typing import Any

from pipeline.core.errors import UsageError


def param(default: Any, text: str, *, file: bool = False, least: float = 0.0, within: str = "") -> Any:
    """Return a dataclass field with a default and the help text that the command line shows for it.

    file: the value is the path of a file, whose content then belongs to the cache key. within: where a number must
    lie, an interval such as "(0, 1]"; least: its lower end where nothing else is asked. A number must be finite.
    """
    within = within or f"[{least:g}, inf)"
    return field(default=default, metadata={"help": text, "file": file, "within": within, "least": _ends(within)[0]})


def check_params(implementation: Any) -> None:
    """Check that the numbers among the parameters of an implementation lie where they must.

    Raises:
        UsageError: one does not.
    """
    for f in fields(implementation):
        value, within = getattr(implementation, f.name), f.metadata.get("within", "")
        if within and isinstance(value, int | float) and not isinstance(value, bool):
            least, most = _ends(within)
            at_open_end = (value == least and within[0] == "(") or (value == most and within[-1] == ")")
            if not (least <= value <= most and math.isfinite(value)) or at_open_end:
                raise UsageError(
                    f"{f.name} of {type(implementation).__name__} is {value}, out of range.",
                    f"It must lie in {within}.",
                )


def _ends(interval: str) -> tuple[float, float]:
    least, most = interval[1:-1].split(",")
    return float(least), float(most)


def canonical(implementation: Any) -> dict[str, Any]:
    """Return the parameters of a built implementation as plain JSON values, for its cache key."""
    return asdict(implementation)
