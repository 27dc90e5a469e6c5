"""Measurements of placements that outlive an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pipeline.core.measurement import Evaluation, MeasurementFailed, await_retry, is_transient
from pipeline.core.placement import Placement
from pipeline.core.stages import Evaluator, Subject
from pipeline.placing.records import MeasuredRow
from pipeline.shared import payload
from pipeline.system.json_lines import append_line, load_lines


@dataclass(slots=True)
class Journal:
    """Measures placements, and remembers what it measured in a file of JSON Lines.

    What was disturbed (killed, out of time or of memory) is tried once more after a pause. If it fails again it is
    known to this process alone, and whoever opens the file next measures it again.

    context: what the figures depend on beside the placement; lines of another are left alone. known: placement ->
    its answer, in the order of the file. disturbed: gets a sentence part on every answer that is not written down.
    """

    path: Path
    context: str
    evaluator: Evaluator
    known: dict[str, Evaluation] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path, context: str, evaluator: Evaluator, disturbed: list[str] | None = None) -> Journal:
        """Return the journal of a file, with what it holds already; a torn last line is left out."""
        journal = cls(path, context, evaluator, disturbed=[] if disturbed is None else disturbed)
        for document in load_lines(path):
            if document.get("context") == context:
                result = payload.result_from_json(document["result"])
                if not is_transient(result):  # journals of earlier versions hold such lines
                    journal.known[document["placement"]] = result
        return journal

    def ask(self, placement: Placement) -> Evaluation:
        """Return the answer for one placement, measured now unless it is known."""
        key = placement.digest().hex()
        if key not in self.known:
            (result,) = self.evaluator.evaluate([placement])
            if is_transient(result):
                await_retry()
                (result,) = self.evaluator.evaluate([placement])
            self.known[key] = result
            if is_transient(result):
                self.disturbed.append(f"a placement failed twice ({result.kind}: {result.message})")
            else:
                document = payload.result_to_json(result)
                append_line(self.path, {"context": self.context, "placement": key, "result": document})
        return self.known[key]


def disturbed_rows(measured: Sequence[MeasuredRow]) -> list[str]:
    """Return a sentence part on every record of a candidate whose measurement was disturbed."""
    failed = [(row["name"], MeasurementFailed(**row["failed"])) for row in measured if row["failed"]]
    return [f"{name} failed twice ({f.kind}: {f.message})" for name, f in failed if f.transient]


class Remembered:
    """An evaluator of a subject's k nodes that asks a journal of placements of its n operations.

    Placements that are equal once they are normalised are measured once, whatever the grouping.
    """

    version: ClassVar[int] = 1

    def __init__(self, journal: Journal, subject: Subject) -> None:
        self.evaluations = 0
        self._journal, self._subject = journal, subject

    @property
    def fingerprint(self) -> str:
        """Return what the figures of the journal depend on."""
        return self._journal.context

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return the answer for each placement, measured now unless it is known."""
        from runtime.measuring.process.affinity import normalise_placement

        self.evaluations += len(placements)
        graph, grouping = self._subject.graph, self._subject.grouping
        return [self._journal.ask(normalise_placement(graph, placement.lift(grouping))) for placement in placements]
