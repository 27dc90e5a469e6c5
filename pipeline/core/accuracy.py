"""How far the outputs of a candidate are from the reference's, and how far they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

AccuracyLevel = Literal["strict", "usual", "loose"]

# What an output may differ by, relative in L2 norm, where something is computed in a precision below f32.
LOW_TOLERANCE: Mapping[AccuracyLevel, float] = {"strict": 0.0, "usual": 0.05, "loose": 0.2}
INDICES, ROWS, FLIPS = 2.0, 4.0, 2.0  # what else may differ, over what an output may


@dataclass(frozen=True, slots=True)
class AccuracyLimits:
    """What is allowed at most, as shares.

    output: relative L2 norm of an output. indices: of an output of indices, entries that differ. rows: of an output,
    those that only one of the two has. flips: decisions that differ, of those on one kind of inputs.
    """

    output: float
    indices: float
    rows: float
    flips: float

    @classmethod
    def of(cls, tolerance: float) -> AccuracyLimits:
        """Return the limits that go with what an output may differ by.

        >>> AccuracyLimits.of(0.05)
        AccuracyLimits(output=0.05, indices=0.1, rows=0.2, flips=0.1)
        """
        return cls(tolerance, INDICES * tolerance, ROWS * tolerance, FLIPS * tolerance)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far outputs are from the reference's, unweighted, over all outputs and kinds of inputs.

    output, kind: the output that is nearest to its limit, or furthest beyond, and the inputs on which it is; ""
    where there are no outputs. difference: the largest of an output, relative in L2 norm, channels of another size
    apart; as the next two, None where entries that are NaN or infinite differ. mean: over all outputs of numbers.
    channel, channel_difference: the channel that differs most, as "output_0[4]"; "" where no output has channels.
    indices: largest share of the entries of an output of indices that differ. rows: largest share of rows without a
    match. flips, decisions: how many decisions differ, and of how many, over all kinds. flip_share: the largest on
    one kind, where there are enough to tell. exact: whether all of this is within what f32 may differ by, by no
    other rule. kinds: of inputs that were compared. limits: what was allowed; rule: in words, why `difference` may
    be more. from_float: how far from the outputs of the same model without rounded activations, where these are
    known, and reference_from_float, how far the reference is itself. lost: share by which the user's metric falls,
    None without one. why_not: what is beyond its limit, in words; "" where nothing is.
    """

    output: str
    kind: str
    difference: float | None
    mean: float | None
    channel: str
    channel_difference: float | None
    indices: float
    rows: float
    flips: int
    decisions: int
    flip_share: float
    exact: bool
    kinds: tuple[str, ...]
    limits: AccuracyLimits
    from_float: float | None = None
    reference_from_float: float | None = None
    lost: float | None = None
    rule: str = ""
    why_not: str = ""

    @property
    def worst(self) -> float | None:
        """Return the one figure that stands for all: what the metric loses, or else the largest share of those above.

        None where entries that are NaN or infinite differ.
        """
        if self.lost is not None:
            return self.lost
        return None if self.difference is None else max(self.difference, self.indices)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"kinds": list(self.kinds)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Accuracy:
        """Return what `to_json` described."""
        kinds, limits = tuple(document["kinds"]), AccuracyLimits(**document["limits"])
        return cls(**{**document, "kinds": kinds, "limits": limits})
