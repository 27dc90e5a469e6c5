"""Numbers and names as the page shows them; nothing a name holds can steer what stands around it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from typing import Any

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
LAYOUT = "\n\t"  # the only controls that may reach a page


def make_visible(text: str) -> str:
    r"""Return text with every control character, and every mark that turns the direction of text, made visible.

    >>> make_visible("a\u202eb\x00")
    'a⟨U+202E⟩b⟨U+0000⟩'
    """
    if text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else f"⟨U+{ord(c):04X}⟩" for c in text)


def _is_harmless(character: str) -> bool:
    return character in LAYOUT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def shorten(text: str, most: int) -> str:
    """Return text of at most `most` characters, the middle left out.

    >>> shorten("layer/1/conv/weights", 9)
    'laye…ghts'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def seconds_text(seconds: float | None) -> str:
    """Return seconds in the unit in which people read them, four digits.

    >>> seconds_text(0.01234567), seconds_text(2e-6), seconds_text(0.0), seconds_text(None)
    ('12.35 ms', '2 µs', '0 s', '')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    for unit, name in UNITS:
        if abs(seconds) >= unit:
            return f"{seconds / unit:.4g} {name}"
    return "0 s" if seconds == 0 else f"{seconds:.2g} s"


def change_text(new: float | None, old: float | None) -> str:
    """Return by how much a figure changes.

    >>> change_text(90.0, 100.0), change_text(101.0, 100.0), change_text(1.0, None)
    ('-10.0 %', '+1.0 %', '')
    """
    if new is None or not old:
        return ""
    return f"{100 * (new / old - 1):+.1f} %"


def interval_text(low: float | None, high: float | None, write: Callable[[float], str]) -> str:
    """Return the ends of an interval, "" if there is none."""
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"


def count_text(number: int, thing: str) -> str:
    """Return how many of something there are.

    >>> count_text(1, "operation"), count_text(84000, "operation")
    ('1 operation', '84,000 operations')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def value_text(value: Any) -> str:
    """Return a value of a record as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(value_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {value_text(each)}" for key, each in value.items())
    return str(value)
