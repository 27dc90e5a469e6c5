"""The benchmark of exact placement: every method on every graph in the format of Tarnawski et al. that is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pipeline.artifacts.declared import declared, placers_called
from pipeline.artifacts.store import digest, file_digest, write_json
from pipeline.bench.cells import on_file
from pipeline.bench.intervals import over_graphs
from pipeline.bench.pages import pictures_of
from pipeline.core.errors import PlacewrightError, UnknownNameError, UsageError
from pipeline.core.private import write_whole
from pipeline.offline.scenario import Scenario, read_object
from pipeline.offline.search import Effort, search
from pipeline.progress.trace import check_writable
from pipeline.report.comparison import DrawnComparison, write_comparisons

SCHEMA = "placewright.bench-exact/1"
RESULTS, PAGE = "results.json", "results.md"
SCOTCH = "Scotch"  # the partitioner of the paper; METIS, which also cuts few bytes in equal parts, stands for it
LATENCY = "latency"  # what the folder of a file is called that is meant for latency
MS, MB = 1e3, 1e6


class ExactMethod(NamedTuple):
    """A row of the table: a placer, of pipelines which stages count, and the method of the paper that it stands for."""

    placer: str
    contiguity: str = ""
    stands_for: str = ""

    @property
    def name(self) -> str:
        """Return what tables call it."""
        words = (self.placer, self.contiguity, f"(for {self.stands_for})" if self.stands_for else "")
        return " ".join(filter(None, words))


METHODS: Mapping[str, tuple[ExactMethod, ...]] = {
    "pipelined": (
        *(ExactMethod(name, "ordered") for name in ("pipedream", "dpl", "dp")),
        ExactMethod("cpsat", "convex"),
        ExactMethod("metis", "free", SCOTCH),
        *(ExactMethod(name, "free") for name in ("expert", "anneal", "milp", "cpsat", "portfolio")),
    ),
    "latency": (
        ExactMethod("metis", stands_for=SCOTCH),
        *(ExactMethod(name) for name in ("dpl", "expert", "anneal", "latency_dp", "cpsat", "portfolio")),
    ),
}


@dataclass(frozen=True, slots=True)
class ExactCell:
    """A method on a file, with so many seconds. name: of the file within its folder."""

    path: Path
    name: str
    evaluator: str
    method: ExactMethod
    seconds: float

    @property
    def settings(self) -> dict[str, Any]:
        """Return everything that decides what comes out, as JSON values."""
        placers = [self.method.placer, *placers_called(self.method.placer, {})]
        return {
            "graph": file_digest(self.path),
            "evaluator": [self.evaluator, declared("measure", self.evaluator).version],
            "method": [self.method.placer, self.method.contiguity],
            "versions": {name: declared("place", name).version for name in placers},
            "seconds": self.seconds,
        }

    def file(self, folder: Path) -> Path:
        """Return the path of the cell's record."""
        words = (*Path(self.name).with_suffix("").parts, self.evaluator, self.method.placer, self.method.contiguity)
        return folder / f"{'-'.join(filter(None, words))}.json"


class ExactRow(NamedTuple):
    """What came of a cell; memory_bytes: of the process at the end; failed: why there is no value, or ""."""

    graph: str
    evaluator: str
    method: str
    operations: int = 0
    value_s: float | None = None
    lower_bound_s: float = 0.0
    gap: float = 1.0
    proven: bool = False
    found_by: str = ""
    bound_by: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0
    failed: str = ""


def cells(inputs: Path, methods: Sequence[str], seconds: float) -> list[ExactCell]:
    """Return the cells of all graphs in a folder and those below.

    A file is placed for latency if a folder on its way says so, else for the largest load. methods: placers to leave
    in; all if empty.

    Raises:
        UsageError: there is no such graph.
        UnknownNameError: no row has a placer of that name.
    """
    known = {method.placer for rows in METHODS.values() for method in rows}
    for name in methods:
        if name not in known:
            raise UnknownNameError("method", name, sorted(known))
    paths = [path for path in sorted(inputs.glob("**/*.json")) if _is_graph(path)]
    if not paths:
        raise UsageError(
            f"{inputs} holds no graph in the format of Tarnawski et al.", "Give the folder of their inputs."
        )
    found = []
    for path in paths:
        name = str(path.relative_to(inputs))
        evaluator = "latency" if any(LATENCY in part for part in path.resolve().parts[:-1]) else "pipelined"
        found += [
            ExactCell(path, name, evaluator, method, seconds)
            for method in METHODS[evaluator]
            if not methods or method.placer in methods
        ]
    return found


def run(asked: Sequence[ExactCell], out: Path, progress: Callable[[str], None]) -> Iterator[ExactRow]:
    """Yield the rows of cells: those that are in a folder, and the others, which are run and written there.

    Raises:
        StoreError: the folder cannot be written.
    """
    check_writable(out / "cells" / RESULTS)
    for cell in asked:
        path, key = cell.file(out / "cells"), digest(cell.settings)
        known = on_file(path, SCHEMA, key)
        if known is not None and not known["row"]["failed"]:
            yield ExactRow(**known["row"])
            continue
        progress(f"{cell.name}: {cell.method.name}")
        row = answered(cell)
        write_json(path, {"schema": SCHEMA, "key": key, "settings": cell.settings, "row": row._asdict()})
        yield row


def answered(cell: ExactCell) -> ExactRow:
    """Return what a method comes to; an error of its own is a row that says so."""
    scenario = Scenario(str(cell.path), evaluator=cell.evaluator, contiguity=cell.method.contiguity)
    first = (cell.name, cell.evaluator, cell.method.name)
    try:
        found = search(scenario, Effort(cell.method.placer, budget_s=cell.seconds))
    except PlacewrightError as error:
        return ExactRow(*first, failed=error.cause)
    kept = ("operations", "value_s", "lower_bound_s", "gap", "proven", "found_by", "bound_by", "seconds")
    memory = psutil.Process().memory_info().rss
    return ExactRow(*first, **{key: found[key] for key in kept}, memory_bytes=memory)  # type: ignore[literal-required]


def write(rows: Sequence[ExactRow], out: Path) -> dict[str, Any]:
    """Write the rows of a benchmark as JSON, as a page and as pictures, and return the document."""
    document = {"schema": SCHEMA, "rows": [row._asdict() for row in rows]}
    write_json(out / RESULTS, document)
    compared = comparisons(rows)
    write_comparisons(out, compared)
    pictures = pictures_of([(each.title, each.file) for each in compared])
    write_whole(out / PAGE, "\n".join([page(rows), *pictures]).encode())
    return document


def page(rows: Sequence[ExactRow]) -> str:
    """Return the rows as one table in Markdown."""
    lines = ["| graph | objective | method | value ms | bound ms | gap | s | MB |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join((row.graph, row.evaluator, row.method, *figures(row)))} |" for row in rows]
    return "\n".join(lines) + "\n"


def comparisons(rows: Sequence[ExactRow]) -> list[DrawnComparison]:
    """Return how methods compare over graphs, for each objective."""
    found = []
    for evaluator in dict.fromkeys(row.evaluator for row in rows):
        values: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.evaluator == evaluator and row.value_s:
                values.setdefault(row.method, {})[row.graph] = row.value_s
        found.append(over_graphs(values, evaluator=evaluator))
    return [each for each in found if each is not None]


def figures(row: ExactRow) -> tuple[str, str, str, str, str]:
    """Return value, bound, gap, seconds and memory as people read them."""
    if row.value_s is None:
        return row.failed, "", "", "", ""
    gap = "proven" if row.proven else f"{row.gap:.2%}"
    value, bound = f"{row.value_s * MS:.4f}", f"{row.lower_bound_s * MS:.4f}"
    return value, bound, gap, f"{row.seconds:.1f}", f"{row.memory_bytes / MB:.0f}"


def _is_graph(path: Path) -> bool:
    from coarsen.reading.msr import is_msr

    try:
        return is_msr(read_object(path, "a graph"))
    except UsageError:
        return False
