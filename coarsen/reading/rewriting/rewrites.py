"""What may be rewritten in a model only if asked for: exactly, so that it has branches, or with rounded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UnknownNameError, UsageError, list_some
from pipeline.core.settings import CoarsenSettings

WEIGHTS_INT8 = "weights-int8"
ALLOWED = (WEIGHTS_INT8,)  # rewrites that round
REWRITTEN = "rewritten.json"  # `Rewritten`s as JSON values, beside the graph; absent if nothing was asked for


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Which rewrites are asked for; see `CoarsenSettings`."""

    directions: bool = CoarsenSettings().split_directions
    groups: bool = CoarsenSettings().split_groups
    weights_int8: bool = False

    @classmethod
    def of(cls, settings: CoarsenSettings) -> Rewrites:
        """Return the rewrites that were set.

        Raises:
            UnknownNameError: one that is to be allowed does not exist.
        """
        unknown = next((name for name in settings.allow if name not in ALLOWED), None)
        if unknown is not None:
            raise UnknownNameError("rewrite", unknown, ALLOWED)
        return cls(settings.split_directions, settings.split_groups, WEIGHTS_INT8 in settings.allow)

    @property
    def splits(self) -> bool:
        """Return whether operations are to become several."""
        return self.directions or self.groups

    def refuse(self, graph: str) -> None:
        """Check that nothing is to be rewritten in a graph that is not a model.

        Raises:
            UsageError: something is.
        """
        if self != Rewrites():
            raise UsageError(
                f"{graph} is a graph, not a model: it cannot be rewritten.",
                "Remove coarsen.split_directions, split_groups and allow.",
            )


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An operation of the model that became several: its name, and theirs in the model that is placed."""

    name: str
    parts: tuple[str, ...]


def rewrite_notes(rewritten: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in sentences what was rewritten; rewritten: `Rewritten`s as JSON values, [] if nothing could be."""
    if not rewritten:
        return ["The model has no operation to split."]
    each = list_some([f"{row['name']} is now {' and '.join(row['parts'])}" for row in rewritten])
    return [f"Operations split, also in the placed model: {each}."]
