"""What may be rewritten in a model so that it has branches, exactly and only if asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UsageError, listed
from pipeline.core.settings import CoarsenSettings

REWRITTEN = "rewritten.json"  # `Rewritten`s as JSON values, beside the graph; absent if nothing was asked for


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Which rewrites are asked for; see `CoarsenSettings`."""

    directions: bool = CoarsenSettings().split_directions
    groups: bool = CoarsenSettings().split_groups

    @classmethod
    def of(cls, settings: CoarsenSettings) -> Rewrites:
        """Return the rewrites that were set."""
        return cls(settings.split_directions, settings.split_groups)

    def refuse(self, graph: str) -> None:
        """Check that nothing is to be rewritten in a graph that is not a model.

        Raises:
            UsageError: something is.
        """
        if self != Rewrites():
            raise UsageError(
                f"{graph} is not a model: it has no operations to split.",
                "Leave coarsen.split_directions and split_groups out.",
            )


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An operation of the model that became several: its name, and theirs in the model that is placed."""

    name: str
    parts: tuple[str, ...]


def notes_of(rewritten: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in sentences what was rewritten; rewritten: `Rewritten`s as JSON values, [] if nothing could be."""
    if not rewritten:
        return ["The model has no operation that was to be split into parts."]
    each = listed([f"{row['name']} is now {' and '.join(row['parts'])}" for row in rewritten])
    return [f"Operations were split into parts, in the placed model as well: {each}."]
