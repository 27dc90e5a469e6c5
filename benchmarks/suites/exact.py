"""The benchmark of exact placement: every method on every graph in the format of Tarnawski et al. that is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.suites.intervals import comparison_over_graphs
from pipeline.bench.cells import on_file
from pipeline.bench.running import answers_beside
from pipeline.bench.suites import BenchRequest, TextTable
from pipeline.bench.summary import pictures_of
from pipeline.core.errors import PlacewrightError, UnknownNameError, UsageError
from pipeline.core.figures import bytes_text, gap_text
from pipeline.fleet.engine import Command, Engine
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search
from pipeline.progress.perfetto import check_writable
from pipeline.report.comparison import DrawnComparison, write_comparisons
from pipeline.settings.declared import placers_called, read_declaration
from pipeline.shared.json_object import read_object
from pipeline.store.store import file_digest, json_digest, write_json
from pipeline.store.task import Progress
from pipeline.system.private_files import write_whole

SCHEMA = "placewright.bench-exact/1"
READS = frozenset({"seconds", "inputs"})
FULL_S, QUICK_S = 60.0, 5.0  # seconds of a cell
RESULTS, PAGE, CELLS = "results.json", "results.md", "cells"
SCOTCH = "Scotch"  # the partitioner of the paper; METIS, which also cuts few bytes in equal parts, stands for it
LATENCY = "latency"  # what the folder of a file is called that is meant for latency
MS = 1e3


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
            "evaluator": [self.evaluator, read_declaration("measure", self.evaluator).version],
            "method": [self.method.placer, self.method.contiguity],
            "versions": {name: read_declaration("place", name).version for name in placers},
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


class _RowFile(NamedTuple):
    """The file of a cell's row. settings: of the cell, as they were before it was run."""

    path: Path
    settings: dict[str, Any]

    def read(self) -> ExactRow | None:
        """Return the row of a cell that was run with these very settings; None if there is none, or it failed."""
        known = on_file(self.path, SCHEMA, json_digest(self.settings))
        return ExactRow(**known["row"]) if known is not None and not known["row"]["failed"] else None

    def write(self, row: ExactRow) -> ExactRow:
        """Return a row once it is written."""
        document = {
            "schema": SCHEMA,
            "key": json_digest(self.settings),
            "settings": self.settings,
            "row": row._asdict(),
        }
        write_json(self.path, document)
        return row


def list_cells(inputs: Path, methods: Sequence[str], seconds: float) -> list[ExactCell]:
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
    asked = []
    for path in paths:
        name = str(path.relative_to(inputs))
        evaluator = "latency" if any(LATENCY in part for part in path.resolve().parts[:-1]) else "pipelined"
        asked += [
            ExactCell(path, name, evaluator, method, seconds)
            for method in METHODS[evaluator]
            if not methods or method.placer in methods
        ]
    return asked


def run_cells(
    asked: Sequence[ExactCell], out: Path, progress: Progress, fleet: Engine | None = None
) -> Iterator[ExactRow]:
    """Yield the rows of cells: those that are in a folder, and the others, which are run and written there.

    fleet: whose workers run them, already entered; None for this process. The clock ends cells, so each has a machine
    to itself, and all machines are of one kind.

    Raises:
        PlacewrightError: the folder cannot be written, or no worker could run a cell.
    """
    check_writable(out / CELLS / RESULTS)
    records = {cell: _RowFile(cell.file(out / CELLS), cell.settings) for cell in asked}
    rows = {cell: record.read() for cell, record in records.items()}
    if fleet is not None:
        waiting = {cell: records[cell] for cell, row in rows.items() if row is None}
        rows |= _answered_beside(waiting, fleet, progress)
    for cell, row in rows.items():
        if row is None:
            progress(f"{cell.name}: {cell.method.name}")
            row = records[cell].write(search_cell(cell))
        yield row


def _answered_beside(
    records: Mapping[ExactCell, _RowFile], engine: Engine, progress: Progress
) -> dict[ExactCell, ExactRow]:
    """Return the rows of cells that workers have run, each written to its record as it came."""
    by_name = {f"{cell.name}: {cell.method.name}": cell for cell in records}
    fingerprint = engine.machines(())[0].fingerprint
    commands = []
    for i, (name, cell) in enumerate(by_name.items()):
        path = str(cell.path.absolute())
        document = {"suite": "exact", "cell": {**asdict(cell), "path": path}}
        title = f"{name} ({i + 1} of {len(by_name)} cells)"
        commands.append(Command(name, title, document, fingerprint, alone=True, rank=i, files=(path,)))
    rows = {}
    for settled in answers_beside(commands, engine=engine, progress=progress):
        cell = by_name[settled.name]
        rows[cell] = records[cell].write(ExactRow(**settled.answer["row"]))
    return rows


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a cell, as a worker's process is asked for it."""
    cell = command["cell"]
    fields = {"path": Path(cell["path"]), "method": ExactMethod(*cell["method"])}
    return {"row": search_cell(ExactCell(**{**cell, **fields}))._asdict()}


def search_cell(cell: ExactCell) -> ExactRow:
    """Return what a method comes to; an error of its own is a row that says so."""
    scenario = Scenario(str(cell.path), evaluator=cell.evaluator, contiguity=cell.method.contiguity)
    first = (cell.name, cell.evaluator, cell.method.name)
    try:
        document = search(scenario, Effort(cell.method.placer, budget_s=cell.seconds))
    except PlacewrightError as error:
        return ExactRow(*first, failed=error.cause)
    kept = ("operations", "value_s", "lower_bound_s", "gap", "proven", "found_by", "bound_by", "seconds")
    memory = psutil.Process().memory_info().rss
    return ExactRow(*first, **{key: document[key] for key in kept}, memory_bytes=memory)  # type: ignore[literal-required]


def write_results(rows: Sequence[ExactRow], out: Path) -> dict[str, Any]:
    """Write the rows of a benchmark as JSON, as a page and as pictures, and return the document."""
    document = {"schema": SCHEMA, "rows": [row._asdict() for row in rows]}
    write_json(out / RESULTS, document)
    compared = drawn_comparisons(rows)
    write_comparisons(out, compared)
    pictures = pictures_of([(each.title, each.file) for each in compared])
    write_whole(out / PAGE, "\n".join([results_page(rows), *pictures]).encode())
    return document


def results_page(rows: Sequence[ExactRow]) -> str:
    """Return the rows as one table in Markdown."""
    columns = ("graph", "objective", "method", "value ms", "bound ms", "gap", "s", "memory")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join((row.graph, row.evaluator, row.method, *row_figures(row)))} |" for row in rows]
    return "\n".join(lines) + "\n"


def drawn_comparisons(rows: Sequence[ExactRow]) -> list[DrawnComparison]:
    """Return how methods compare over graphs, for each objective."""
    drawn = []
    for evaluator in dict.fromkeys(row.evaluator for row in rows):
        values: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.evaluator == evaluator and row.value_s:
                values.setdefault(row.method, {})[row.graph] = row.value_s
        drawn.append(comparison_over_graphs(values, evaluator=evaluator))
    return [each for each in drawn if each is not None]


def row_figures(row: ExactRow) -> list[str]:
    """Return value, bound, gap, seconds and memory as people read them."""
    if row.value_s is None:
        return [row.failed, "", "", "", ""]
    gap = "proven" if row.proven else f"{gap_text(row.gap)}"
    value, bound = f"{row.value_s * MS:.4f}", f"{row.lower_bound_s * MS:.4f}"
    return [value, bound, gap, f"{row.seconds:.1f}", bytes_text(row.memory_bytes)]


def _is_graph(path: Path) -> bool:
    from coarsen.reading.graph.msr import is_msr

    try:
        return is_msr(read_object(path, "a graph"))
    except UsageError:
        return False


def run(asked: BenchRequest) -> dict[str, Any]:
    """Run the suite.

    Raises:
        UsageError: there are no graphs.
    """
    if asked.options["inputs"] is None:
        raise UsageError("The benchmark exact needs graphs.", "Give their folder with --inputs.")
    seconds = asked.options["seconds"] or (QUICK_S if asked.options["quick"] else FULL_S)
    cells = list_cells(asked.options["inputs"], asked.names("methods"), seconds)
    with asked.open_workers() as (fleet, progress):
        rows = list(run_cells(cells, asked.out, progress, fleet))
    return write_results(rows, asked.out)


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str | TextTable]:
    """Yield a table per graph."""
    rows = [ExactRow(**row) for row in document["rows"]]
    for name in dict.fromkeys(row.graph for row in rows):
        mine = [[row.method, *row_figures(row)] for row in rows if row.graph == name]
        yield TextTable(name, ["method", "value ms", "bound ms", "gap", "s", "memory"], mine)
    yield f"Written to {out}: results.md, results.json and figures"
