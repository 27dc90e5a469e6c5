"""Several sizes of a model's open inputs that one answer is to serve, as files beside the normalised model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = "sizes.json"
ARRAYS = "inputs_"  # what the npz files of sizes begin with


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """One of several sizes: the shapes of inputs, its share of what is measured, and the npz file of all inputs."""

    shapes: Mapping[str, Sequence[int]]
    weight: float
    arrays: str

    def __str__(self) -> str:
        """Return the shapes as --shape takes them."""
        return " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items())


def save_sizes(sizes: Sequence[MeasuredSize], folder: Path) -> None:
    """Write which sizes there are into a folder."""
    (folder / SIZES).write_text(json.dumps([asdict(size) for size in sizes]), encoding="utf-8")


def load_sizes(path: Path) -> list[MeasuredSize]:
    """Return the sizes that a file has."""
    return [MeasuredSize(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def measured_at(sizes: Sequence[MeasuredSize]) -> str:
    """Return in a sentence at which sizes an answer was measured."""
    each = ", ".join(f"{size} ({100 * size.weight:.0f} %)" for size in sizes)
    return (
        f"Measured at several sizes: {each}. A ratio is the weighted geometric mean of those at the sizes, and so are "
        "milliseconds; percentiles are of the inferences at all sizes. The placed model leaves these dimensions open."
    )
