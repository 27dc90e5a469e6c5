"""Every error placewright raises on purpose.

    PlacewrightError
    ├── UsageError              a wrong option, key, name or budget         exit 2
    │   ├── UnknownNameError    a name nobody knows; offers the nearest
    │   └── MissingPackageError a package that what was asked for needs
    ├── ModelError              a model that cannot be read or is not valid  exit 3
    │   └── CyclicGraphError    an order was asked of a graph with a cycle
    ├── DeviceError             a device is missing or refuses the model    exit 4
    ├── MeasurementError        not one candidate could be measured         exit 5
    ├── OutputMismatchError     outputs differ from the reference           exit 6
    ├── FallbackError           operations ran elsewhere than asked for     exit 6
    ├── SlowerError             a run is slower than the one before         exit 7
    ├── StoreError              the store or a run directory cannot be used  exit 2
    │   └── DamagedEntryError   a stored file differs from its hash
    └── ShadowedPackageError    another package carries one of our names    exit 2

A message has two parts: the cause in one line and the remedy in one line.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# What keeps a process from its files that is no fault of its own: broken, full, forbidden, too many are open.
OF_THE_SYSTEM = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EFBIG", "EACCES", "EPERM", "EMFILE", "ENFILE", "ESTALE")
    if hasattr(errno, name)
)
NAMED = 5  # names that a message lists
CHOICES = 12  # names to choose from that a message lists
OPTION = re.compile(r"--([a-z][a-z0-9-]*)")
ARGUMENTS = {  # of options that are not called so in Python
    "no-memory": "memory=False",
    "no-ties": "ties=False",
    "budget": "budget_s",
    "mode": "ordered",
    "contiguous": 'contiguity="ordered"',
    "set": "settings",
}
UNPARSABLE = (
    ValueError,
    RecursionError,
)  # what parsers raise; the second if nested a thousand deep


class PlacewrightError(Exception):
    """Something a user can act on: `cause` says what was wrong, `remedy` what to do."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".strip()


def in_arguments(text: str) -> str:
    """Return a message in terms of Python's arguments instead of options; commands in backticks stay as they are.

    >>> in_arguments("pass --cost-scale, or run `placewright list --json`; --no-memory helps")
    'pass cost_scale, or run `placewright list --json`; memory=False helps'
    """
    parts = text.split("`")
    parts[::2] = [OPTION.sub(lambda m: ARGUMENTS.get(m[1], m[1].replace("-", "_")), part) for part in parts[::2]]
    return "`".join(parts)


def error_document(error: PlacewrightError) -> dict[str, Any]:
    """Return an error as JSON values, for another process; `error_from_document` makes it again."""
    return {"cause": error.cause, "remedy": error.remedy, "exit_code": error.exit_code}


def error_from_document(
    document: Mapping[str, Any], kind: type[PlacewrightError] = PlacewrightError, *, where: str = ""
) -> PlacewrightError:
    """Return the error of another process, with the exit code that it has there; where: it came up, put before it.

    kind: what it is where that is not known, as where the process died.
    """
    error = kind(f"{where}: {document['cause']}" if where else document["cause"], document["remedy"])
    error.exit_code = document.get("exit_code", kind.exit_code)
    return error


class UsageError(PlacewrightError, ValueError):
    """A wrong option, configuration key, name or budget."""

    exit_code = 2


class UnknownNameError(UsageError, LookupError):
    """A name that is not registered; where: what lists all that are, for when there are many."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        plural = "Known" if " " in kind else f"{kind.capitalize().removesuffix('y')}{'ies' if kind[-1] == 'y' else 's'}"
        super().__init__(f"Unknown {kind} {name!r}.", suggest_name(name, known, where, plural))


class MissingPackageError(UsageError, ImportError):
    """A package that what was asked for needs, and that is not installed."""

    def __init__(self, what: str, package: str | None, more: str = "") -> None:
        super().__init__(
            f"{what} the package {package}, which is not installed.", f"Install it: pip install {package}.{more}"
        )


class ModelError(PlacewrightError, ValueError):
    """A model file that is missing, damaged, empty or not supported."""

    exit_code = 3


class CyclicGraphError(ModelError):
    """A topological order was asked of a graph that has a cycle."""


class DeviceError(PlacewrightError, LookupError):
    """A device that is not there, or that refuses the model."""

    exit_code = 4


class MeasurementError(PlacewrightError, RuntimeError):
    """No candidate could be measured."""

    exit_code = 5


class OutputMismatchError(PlacewrightError, RuntimeError):
    """The outputs of a placed model differ from the reference by more than the tolerance."""

    exit_code = 6


class FallbackError(PlacewrightError, RuntimeError):
    """Operations ran on another device than the one they were asked for on, and nobody said so."""

    exit_code = 6


class SlowerError(PlacewrightError, RuntimeError):
    """A run is slower than the one it is compared with, by more than is allowed and beyond its interval."""

    exit_code = 7


class StoreError(PlacewrightError, OSError):
    """The store or a run directory cannot be read or written."""

    exit_code = 2


class DamagedEntryError(StoreError):
    """A file of the store differs from the hash it was stored under."""


class ShadowedPackageError(PlacewrightError, ImportError):
    """Another installed package carries the name of one of our folders."""

    exit_code = 2


def suggest_name(name: str, known: Iterable[str], where: str = "", plural: str = "Known") -> str:
    """Return which of known names was meant, or what there is: all of few, the first of many and where the others are.

    >>> suggest_name("gready", ["greedy", "heft"]), suggest_name("x", ["greedy", "heft"])
    ("Did you mean 'greedy'?", 'Known: greedy, heft.')
    """
    choices = sorted(set(known))
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    if len(choices) <= CHOICES:
        return f"{plural}: {', '.join(choices) or 'none'}."
    more = f"and {len(choices) - CHOICES} more"
    return f"{plural}: {', '.join(choices[:CHOICES])} {more}{f'; see {where}' if where else ''}."


def list_some(names: Sequence[str]) -> str:
    """Return the first names for a message, and whether there are more."""
    return ", ".join(names[:NAMED]) + (" ..." if len(names) > NAMED else "")
