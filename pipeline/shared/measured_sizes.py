"""Several sizes of a model's open inputs that one answer is to serve, as a file beside the normalised model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = "sizes.json"


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """One of several sizes: the shapes of inputs, its share of what is measured, and the kind of inputs that has it.

    Arrays of that kind lie in `checks.CHECKS`, and what the source gives for them in `checks.REFERENCE`.
    """

    shapes: Mapping[str, Sequence[int]]
    weight: float
    kind: str

    def __str__(self) -> str:
        """Return the shapes as --shape takes them."""
        return " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items())


def save_sizes(sizes: Sequence[MeasuredSize], folder: Path) -> None:
    """Write which sizes there are into a folder."""
    (folder / SIZES).write_text(json.dumps([asdict(size) for size in sizes]), encoding="utf-8")


def load_sizes(folder: Path) -> list[MeasuredSize]:
    """Return the sizes that a folder tells of; none where there is one size alone."""
    path = folder / SIZES
    if not path.is_file():
        return []
    return [MeasuredSize(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def measured_at(sizes: Sequence[MeasuredSize]) -> str:
    """Return in a sentence at which sizes an answer was measured."""
    each = ", ".join(f"{size} ({100 * size.weight:.0f} %)" for size in sizes)
    return (
        f"Measured at several sizes: {each}. A ratio is the weighted geometric mean of those at the sizes, and so are "
        "milliseconds; percentiles are of the inferences at all sizes. The placed model leaves these dimensions open."
    )
