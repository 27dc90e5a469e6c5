"""What is wanted of the source of a model, as it is told to the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ResultsOrder:
    """What is wanted of a source.

    source: its file. folder: with the normalised model and `CHECKS`. operations: of the normalised model. paths: the
    file to write for each kind of inputs: outputs under the kind `OUTPUTS`, results under "0", "1" .., by operation.
    """

    source: str
    folder: str
    operations: Sequence[str]
    paths: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)
