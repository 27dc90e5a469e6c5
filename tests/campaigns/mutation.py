"""Mutations of documents that know their structure, and of bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HOSTILE_NAMES = (
    "",
    " ",
    "../../../../etc/passwd",
    "/dev/full",
    "a\x00b",
    "\x1b[31mred\x1b]0;title\x07",
    "[bold]markup[/bold] :smile:",
    "<script>alert(1)</script>",
    "</script><!--",
    "%s%n%x{0}{1!r}${HOME}$(id)`id`",
    "a\nb\r\nc",
    "\u202eright to left",
    "\ud800",  # half of a surrogate pair: JSON can write it, UTF-8 cannot
    "ü" * 300,
    "x" * 100_000,
    "CON",
    "-o",
    "=cmd|' /C calc'!A0",
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**400,
    -(2**63) - 1,
    0.0,
    -0.0,
    1e-320,
    1e308,
    -1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    0.5,
    [],
    {},
    [[]],
    [None],
    {"": None},
)
BYTES = (b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"1e999", b"{", b"[" * 2000)
LETTERS = ("", "x", "\x1b", ".", "0", "é", "\x00", "/")
Slot = tuple[Any, Any]  # a list or dictionary, and an index or key of it


def list_slots(value: Any) -> list[Slot]:
    """Return every place of a document that holds something."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [slot for key, inner in items for slot in ((value, key), *list_slots(inner))]


def mutate_document(rng: np.random.Generator, document: Any, times: int, names: Sequence[str] = HOSTILE_NAMES) -> Any:
    """Return a copy of a JSON-like document that was changed so many times in places drawn at random."""
    changed = copy.deepcopy(document)
    for _ in range(times):
        slots = list_slots(changed)
        if not slots:
            break
        holder, key = slots[rng.integers(len(slots))]
        _CHANGES[rng.integers(len(_CHANGES))](rng, slots, holder, key, names)
    return changed


def _replace_by_scalar(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    holder[key] = copy.deepcopy(SCALARS[rng.integers(len(SCALARS))])


def _replace_by_name(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    holder[key] = names[rng.integers(len(names))]


def _remove(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    del holder[key]


def _replace_by_other(rng: np.random.Generator, slots: list[Slot], holder: Any, key: Any, names: Sequence[str]) -> None:
    other, where = slots[rng.integers(len(slots))]
    holder[key] = copy.deepcopy(other[where])


def _repeat(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    if isinstance(holder, list):
        holder.insert(int(rng.integers(len(holder) + 1)), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}2"] = copy.deepcopy(holder[key])


def _rename(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    if isinstance(holder, dict):
        holder[names[rng.integers(len(names))]] = holder.pop(key)


def _scale(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    value = holder[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        holder[key] = value * float(rng.choice([-1, 0.5, 2, 1e6, 1e-6, 1e12, 1e18]))


def _alter_text(rng: np.random.Generator, _: Any, holder: Any, key: Any, names: Sequence[str]) -> None:
    if isinstance(holder[key], str) and holder[key]:
        at = int(rng.integers(len(holder[key])))
        holder[key] = holder[key][:at] + LETTERS[rng.integers(len(LETTERS))] + holder[key][at + 1 :]


_CHANGES: tuple[Callable[..., None], ...] = (
    _replace_by_scalar,
    _replace_by_name,
    _remove,
    _replace_by_other,
    _repeat,
    _rename,
    _scale,
    _alter_text,
)


def mutate_bytes(rng: np.random.Generator, content: bytes, times: int) -> bytes:
    """Return bytes of which some were flipped, cut off, put in or put twice."""
    changed = bytearray(content)
    for _ in range(times):
        at = int(rng.integers(len(changed) + 1))
        match rng.integers(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << int(rng.integers(8))
            case 1:
                del changed[at : at + int(rng.integers(1, 40))]
            case 2:
                changed[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), np.uint8))
            case 3:
                changed[at:at] = changed[at : at + int(rng.integers(1, 40))]
            case 4:
                del changed[at:]
            case _:
                changed[at:at] = BYTES[rng.integers(len(BYTES))]
    return bytes(changed)
