"""One method on one case with one seed: running it, and keeping what came out in a file of its own."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from pipeline.bench.cases import BenchCase
from pipeline.bench.methods import SINGLE, BenchMethod, policy_of, prepared, versions_of
from pipeline.core.errors import DeviceError, PlacewrightError
from pipeline.core.figures import times_as_fast
from pipeline.core.learning import Snapshot
from pipeline.core.params import canonical
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Progress
from pipeline.core.stages import Placer
from pipeline.placing.setup import recipe_of
from pipeline.shared import payload
from pipeline.store.store import json_digest, write_json
from pipeline.system.processors import processor_seconds

SCHEMA = "placewright.bench-cell/1"
VERSION = 1  # raised when cells come out differently for equal settings
UNTIL_DONE_S = 1e6  # a limit that never ends, but lets placements be measured, and told of, one by one

Point = tuple[int, float, float]  # evaluations, seconds, the best value so far in seconds


@dataclass(frozen=True, slots=True, eq=False)
class LearnedPolicy:
    """A policy that was learned on other cases.

    key: a digest of all that decided what was learned. seconds: what learning took. folder: where the policy lies.
    """

    key: str
    policy: Snapshot
    seconds: float
    folder: Path


@dataclass(frozen=True, slots=True, eq=False)
class BenchCell:
    """What is to be run: a method on a case with a budget and a seed.

    evaluations, seconds: the budget, whichever ends first; None is no limit. device: the one that a single device's
    cell is about, "" for all other methods. policy: what the method has learned before, on other cases.
    """

    case: BenchCase
    method: BenchMethod
    placer: Placer
    evaluations: int | None
    seed: int
    device: str = ""
    seconds: float | None = None
    policy: LearnedPolicy | None = None

    @property
    def name(self) -> str:
        """Return what tables call the method."""
        return f"{SINGLE} {self.device}" if self.device else self.method.name

    @property
    def title(self) -> str:
        """Return what people are told that is run."""
        return f"{self.case.model}, {self.case.evaluator}: {self.name}, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """Return everything that decides what comes out, as JSON values."""
        recipe = recipe_of(self.placer)
        return {
            "bench": VERSION,
            "model": self.case.model,
            "source": self.case.subject.graph.source,
            "case": dict(self.case.identity),
            "placer": self.method.placer,
            "params": canonical(self.placer),
            "versions": versions_of(self.method, self.placer),
            "coarsen": list(self.method.coarsen) if recipe is None else None,
            "recipe": None if recipe is None else asdict(recipe),
            "policy": policy_of(self.placer) if recipe is None else None,
            "device": self.device,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "lesson": None if self.policy is None else self.policy.key,
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        """Return the digest of the settings."""
        return json_digest(self.settings)

    def file(self, folder: Path) -> Path:
        """Return the path of the cell's record."""
        words = (Path(self.case.model).stem, self.case.evaluator, self.name, f"seed{self.seed}")
        return folder / (re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(words)) + ".json")


class CellOutcome(TypedDict):
    """What a method came to on a case.

    failed: why there is no value, else None. infeasible: whether no placement fits. nodes: how many it placed. curve:
    [evaluations, seconds, best value so far in seconds] whenever that fell. planned: schedules and estimates of the
    placer's own, which are no evaluations. placement, priority: of the operations.
    """

    failed: str | None
    value_s: float | None
    infeasible: bool
    evaluations: NotRequired[int]
    planned: NotRequired[int]
    nodes: NotRequired[int]
    found_by: NotRequired[str]
    proven: NotRequired[bool]
    curve: NotRequired[list[list[float]]]
    placement: NotRequired[dict[str, str]]
    priority: NotRequired[dict[str, float] | None]


class CellRecord(CellOutcome):
    """A cell as its file holds it: what was run, what came of it, and what that took.

    single_s: the best single device's; None where there is none. ratio: that over the value.
    """

    schema: str
    key: str
    model: str
    evaluator: str
    method: str
    seed: int
    learned: bool
    seeded: bool
    single_s: float | None
    ratio: float | None
    seconds: float
    cpu_s: float
    settings: dict[str, Any]


def on_file(path: Path, schema: str, key: str) -> dict[str, Any] | None:
    """Return the document of a file that was written for a key; None where it is absent, torn, or another's."""
    try:
        document: dict[str, Any] = payload.read_json(path)
        return document if (document["schema"], document["key"]) == (schema, key) else None
    except (OSError, ValueError, KeyError, TypeError):  # it is written again
        return None


def finished(cell: BenchCell, folder: Path) -> CellRecord | None:
    """Return the record of a cell that was run with these very settings; None if there is none, or it failed."""
    record = cast(CellRecord | None, on_file(cell.file(folder), SCHEMA, cell.key))
    return record if record is not None and is_answered(record) else None


def is_answered(record: Mapping[str, Any]) -> bool:
    """Return whether a cell did not fail; that no placement fits is an answer."""
    return record["failed"] is None or bool(record["infeasible"])


def run_cell(
    cell: BenchCell, folder: Path | None, single_s: Mapping[str, float], check: Callable[[], None]
) -> CellRecord:
    """Return the record of a cell, run now and written to its file, unless its measurements were disturbed.

    folder: of the file; None where whoever asked writes it. single_s: device -> seconds of everything on it. check:
    raises where the run is to end.
    """
    begun, begun_cpu, disturbed = time.monotonic(), processor_seconds(), _count_disturbed(cell)
    try:
        outcome = _single_outcome(cell, single_s) if cell.device else _search_outcome(cell, check)
    except PlacewrightError as error:
        infeasible = isinstance(error, DeviceError) and cell.case.journal is None  # devices may be there again
        outcome = {"failed": str(error), "value_s": None, "infeasible": infeasible}
    best_single_s, ratio = beside_single(outcome["value_s"], single_s)
    record: CellRecord = {
        "schema": SCHEMA,
        "key": cell.key,
        "model": cell.case.model,
        "evaluator": cell.case.evaluator,
        "method": cell.name,
        "seed": cell.seed,
        "learned": cell.method.learned,
        "seeded": cell.method.seeded,
        "single_s": best_single_s,
        **outcome,
        "ratio": ratio,
        "seconds": time.monotonic() - begun,
        "cpu_s": processor_seconds() - begun_cpu,
        "settings": cell.settings,
    }
    if folder is not None and _count_disturbed(cell) == disturbed:
        write_json(cell.file(folder), record)
    return record


def beside_single(value_s: float | None, single_s: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return the seconds of the best single device, and how many times as fast a value is; None where not known."""
    best_s = min(single_s.values())
    if not math.isfinite(best_s):
        return None, None
    return best_s, times_as_fast(value_s, best_s) if value_s else None


def _count_disturbed(cell: BenchCell) -> int:
    """Return how many placements of the case could not be measured for reasons that may pass."""
    return 0 if cell.case.journal is None else len(cell.case.journal.disturbed)


def _single_outcome(cell: BenchCell, single_s: Mapping[str, float]) -> CellOutcome:
    value_s = single_s[cell.device]
    if not math.isfinite(value_s):
        return {"failed": f"{cell.device} cannot run everything.", "value_s": None, "infeasible": False}
    graph, devices = cell.case.subject.graph, cell.case.devices
    placement = Placement.single(graph.n, devices.index(cell.device), devices)
    return {
        "failed": None,
        "value_s": value_s,
        "infeasible": False,
        "evaluations": 1,
        "planned": 0,
        "nodes": 1,
        "found_by": SINGLE,
        "proven": False,
        "curve": [[1, 0.0, value_s]],
        **placement.to_document(graph.names),
    }


def _search_outcome(cell: BenchCell, check: Callable[[], None]) -> CellOutcome:
    """Return what a placer found, and its way there; its preparation counts among the seconds."""
    curve = Improvements()

    def hook(progress: Progress) -> None:
        check()
        curve.add(progress.done, progress.value_s)

    grouping, problem = prepared(cell.method, cell.placer, cell.case, seed=cell.seed)
    if cell.policy is not None and problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, learned=cell.policy.policy))
    evaluator = cell.case.bind(grouping)
    seconds = cell.seconds if cell.case.journal is None else UNTIL_DONE_S
    answer = cell.placer.place(problem, evaluator, Budget(cell.evaluations, seconds), seed=cell.seed, progress=hook)
    curve.add(evaluator.evaluations, answer.value_s)
    ran = math.isfinite(answer.value_s)
    return {
        "failed": None if ran else "no placement ran",
        "infeasible": not ran and cell.case.journal is None,
        "value_s": answer.value_s if ran else None,
        "evaluations": evaluator.evaluations,
        "planned": answer.planned,
        "nodes": grouping.k,
        "found_by": answer.best.found_by,
        "proven": answer.proven and grouping.k == cell.case.subject.graph.n,  # of the operations, not of nodes alone
        "curve": [list(point) for point in curve.points],
        **answer.best.placement.lift(grouping).to_document(cell.case.subject.graph.names),
    }


@dataclass(slots=True)
class Improvements:
    """The moments at which the best value fell: evaluations, seconds since this was made, and the value."""

    begun_s: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)

    def add(self, done: int, value_s: float) -> None:
        """Note the best value so far; one that is no better than the last, or not finite, is left out."""
        if math.isfinite(value_s) and (not self.points or value_s < self.points[-1][2]):
            self.points.append((done, time.monotonic() - self.begun_s, value_s))
