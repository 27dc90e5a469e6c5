"""What placements are made for: a graph or a model, its devices, and what says what a placement takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.graph import Grouping
from pipeline.core.measurement import seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Evaluator, Measurer, Subject
from pipeline.placing.journal import Journal, Remembered

SIMULATOR = "sequential"  # registered name of the measurer where an identity holds none


@dataclass(frozen=True, slots=True, eq=False)
class BenchCase:
    """A model and devices, and what says what a placement on them takes.

    model: what the user calls it. subject: its operations, one by one, weights among them. journal: where
    measurements are kept; None where a simulator is asked. identity: what every figure depends on, as JSON values.
    problem: what methods without a recipe are given; None where their coarsening makes it of the subject.
    """

    model: str
    measurer: Measurer
    subject: Subject
    identity: Mapping[str, Any]
    journal: Journal | None = None
    problem: Problem | None = None

    @property
    def evaluator(self) -> str:
        """Return the name of what is asked."""
        return str(self.identity["evaluator"])

    @property
    def measurer_name(self) -> str:
        """Return the name under which what is asked is registered."""
        return str(self.identity.get("measurer", SIMULATOR))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices."""
        return self.subject.topology.names

    def bind(self, grouping: Grouping) -> Evaluator:
        """Return an evaluator of placements of a grouping's nodes, its count at 0."""
        subject = replace(self.subject, grouping=grouping)
        return self.measurer.bind(subject) if self.journal is None else Remembered(self.journal, subject)

    def alone(self) -> dict[str, float]:
        """Return device -> seconds of all operations on it; inf where that cannot be."""
        n, names = self.subject.graph.n, self.devices
        singles = [Placement.single(n, d, names) for d in range(len(names))]
        results = self.bind(Grouping.identity(n)).evaluate(singles)
        return {d: seconds_of(r) for d, r in zip(names, results, strict=True)}
