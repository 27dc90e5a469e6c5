"""An evaluator that answers from a file: the shipped fake, and a way to search recorded measurements again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from pipeline.core.errors import UNPARSABLE, UsageError
from pipeline.core.measurement import FailureKind, Measurement, MeasurementFailed
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject


@dataclass(frozen=True, slots=True)
class Replay:
    """Answers from a JSON file of records.

    The file: {"records": [{"placement": {operation: device}, "samples_s": [...]}, ...], "otherwise_s": seconds}. A
    record may hold "failed": {"kind", "message"} instead of samples. A placement without a record takes
    "otherwise_s", or is refused where that is missing.
    """

    version: ClassVar[int] = 1
    real: ClassVar[bool] = False

    path: str = param("", "JSON file of recorded measurements", file=True)

    def bind(self, subject: Subject) -> ReplayEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the file is missing or not of this form.
        """
        try:
            text = Path(self.path).read_text(encoding="utf-8")
            document = json.loads(text)
            records = {_placement_key(r["placement"]): _recorded_answer(r) for r in document["records"]}
            otherwise_s = document.get("otherwise_s")
            otherwise = None if otherwise_s is None else Measurement(np.array([otherwise_s], dtype=np.float64))
        except (OSError, KeyError, TypeError, AttributeError, *UNPARSABLE) as error:
            raise UsageError(
                f"The recorded measurements {self.path!r} cannot be read: {error!r}.",
                'Give measure.replay.path a JSON file of the form {"records": [...]}.',
            ) from error
        return ReplayEvaluator(subject, records, otherwise, hashlib.sha256(text.encode()).hexdigest())


def _placement_key(placement: Mapping[str, str]) -> str:
    return json.dumps(dict(placement), sort_keys=True)


def _recorded_answer(record: Mapping[str, Any]) -> Measurement | MeasurementFailed:
    if record.get("failed"):
        kind, message = record["failed"]["kind"], record["failed"]["message"]
        if kind not in get_args(FailureKind):
            raise ValueError(f"{kind!r} is not a kind of failure; there are {', '.join(get_args(FailureKind))}")
        return MeasurementFailed(kind, message)
    return Measurement(np.array(record["samples_s"], dtype=np.float64))


@dataclass(slots=True)
class ReplayEvaluator:
    """Looks placements up."""

    subject: Subject
    records: Mapping[str, Measurement | MeasurementFailed]
    otherwise: Measurement | None
    fingerprint: str
    evaluations: int = 0

    def evaluate(self, placements: Sequence[Placement]) -> list[Measurement | MeasurementFailed]:
        """Return the recorded answer to each placement."""
        return [self._look_up(p) for p in placements]

    def _look_up(self, placement: Placement) -> Measurement | MeasurementFailed:
        self.evaluations += 1
        recorded = self.records.get(
            _placement_key(placement.lift(self.subject.grouping).to_json(self.subject.graph.names))
        )
        if recorded is not None:
            return recorded
        if self.otherwise is not None:
            return self.otherwise
        return MeasurementFailed("refused", "no record of this placement")
