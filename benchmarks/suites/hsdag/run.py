"""The benchmark after HSDAG's tables: three networks, two devices, equal budgets, and what the tables lacked.

Source: Duan et al., NeurIPS 2024 (HSDAG). Different: random placements, partitions and the exact minimum cut stand
beside the learned methods, all have one budget and several seeds, and single devices are candidates for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.suites.hsdag import methods as table
from benchmarks.suites.hsdag import paper_tables
from benchmarks.suites.hsdag.cases import LINKS, PUBLISHED, plain_settings, real, simulated
from benchmarks.suites.hsdag.finals import measure_final
from benchmarks.suites.hsdag.methods import Optimum, cells_of, find_optimum
from benchmarks.suites.hsdag.pages import case_sentences, curve_rows, results_page
from benchmarks.suites.hsdag.summary import over_models, rows_of
from benchmarks.suites.intervals import comparisons_of_cases
from coarsen.reading.model.files import is_written_as_path
from pipeline.api import model_path
from pipeline.bench.cases import SIMULATOR, BenchCase
from pipeline.bench.cells import CellRecord, finished
from pipeline.bench.methods import BenchMethod
from pipeline.bench.running import CellTask, answer_cell, run_beside, run_here
from pipeline.bench.suites import BenchRequest, TextTable
from pipeline.core.errors import DeviceError, UnknownNameError, UsageError
from pipeline.core.figures import gap_text
from pipeline.fleet.engine import Engine, silent
from pipeline.placing.compile_kernels import CALLING
from pipeline.progress.curve import plot_curve
from pipeline.progress.interruption import run_interruptible
from pipeline.progress.perfetto import check_writable
from pipeline.report.comparison import write_comparisons
from pipeline.result.result import read_versions
from pipeline.settings.config import Settings, parse_assignment
from pipeline.stages.host import look_at_machine
from pipeline.store.store import Store, write_json, write_text
from pipeline.store.task import Progress
from pipeline.system.machine_lock import measuring_alone
from runtime import zoo

SCHEMA = "placewright.bench/2"
READS = frozenset({"models", "evaluators", "tables", "evaluations", "seeds", "measurements", "workers", "assignments"})
REAL = "hetero"
EVALUATORS = (*LINKS, REAL)
PAPER_DEVICES = ("CPU", "GPU")
EXACT = BenchMethod("min_cut", "min_cut")  # on two devices that run one after another


@dataclass(frozen=True, slots=True)
class BenchEffort:
    """How much is spent.

    seeds: of every method that draws. evaluations: per cell in the simulator. measurements: per cell on the devices.
    real_seeds, real_models: how many seeds, and how many of the models, are searched on the devices. workers: how many
    cells of a simulator run at a time where each computes on one thread.
    """

    quick: bool = False
    seeds: int = 5
    evaluations: int = 2000
    measurements: int = 60
    real_seeds: int = 3
    real_models: int = 1000
    workers: int = 1


FULL = BenchEffort()
QUICK = BenchEffort(quick=True, seeds=2, evaluations=300, measurements=6, real_seeds=1, real_models=1)


@dataclass(frozen=True, slots=True)
class HsdagQuestion:
    """What is compared on what; names as the user gives them, none for all.

    tables: whether the rows of the paper's tables are; names choose among their networks, evaluators and rows.
    """

    models: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    tables: bool = False

    def checked(self) -> tuple[list[str], list[str], list[BenchMethod]]:
        """Return the models, evaluators and methods.

        Raises:
            UsageError: a name is unknown, not of the tables that are asked for, or two files of models share one name.
        """
        models = list(dict.fromkeys(_model_name(m, zoo.names()) for m in self.models or PUBLISHED))
        stems = [Path(model).stem for model in models]
        alike = [model for model, stem in zip(models, stems, strict=True) if stems.count(stem) > 1]
        if alike:
            raise UsageError(
                f"Several models have the same name: {', '.join(alike)}.", "Rename files, or compare in two folders."
            )
        for name in self.evaluators:
            if name not in EVALUATORS:
                raise UnknownNameError("evaluator of this benchmark", name, EVALUATORS)
        usual = (SIMULATOR, REAL) if self.tables else EVALUATORS
        evaluators = [name for name in EVALUATORS if name in (self.evaluators or usual)]
        methods = table.chosen(self.methods or (table.of_the_paper() if self.tables else ()))
        if self.tables:
            paper_tables.check_rows(models, [method.name for method in methods])
        return models, evaluators, methods


def _model_name(text: str, known: Sequence[str]) -> str:
    """Return the name of a network of the zoo, or the path of a model."""
    name = text.removeprefix("zoo:")
    if name in known:
        return name
    if text.startswith("zoo:") or not is_written_as_path(text):
        raise UnknownNameError("model", name, known)
    return text


@dataclass(slots=True, eq=False)
class _HsdagRun:
    """A benchmark that goes on: where things lie, and what is known so far."""

    out: Path
    store: Store
    settings: Settings
    effort: BenchEffort
    progress: Progress
    records: list[CellRecord]
    optima: dict[tuple[str, str], Optimum]  # by model and evaluator
    finals: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    done: dict[str, CellRecord]  # records of cells that ran side by side, by the cells' keys
    notes: list[str]
    fleet: Engine | None  # what runs the cells of simulators, already entered; None for this machine


def compare(
    question: HsdagQuestion,
    effort: BenchEffort,
    out: Path,
    store: Store,
    *,
    settings: Settings | None = None,
    fleet: Engine | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Return what `out`/results.json holds, once every cell that is not on file has been run.

    Writes results.json, results.md and figures per model; one file per cell, from which an interrupted benchmark
    goes on. fleet: whose workers run the cells of simulators, already entered; None for processes of this machine.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    models, evaluators, methods = question.checked()
    if question.tables:
        settings = replace(settings or plain_settings(), devices=PAPER_DEVICES)
    asked = {"models": models, "evaluators": evaluators, "methods": [m.name for m in methods], **asdict(effort)}
    check_writable(out / "results.json")
    run = _HsdagRun(out, store, settings or plain_settings(), effort, progress, [], {}, [], [], {}, [], fleet)
    if not question.methods and table.missing():
        run.notes.append(f"Not registered, and so left out: {', '.join(table.missing())}.")
    paths = {model: model_path(f"zoo:{model}" if _in_zoo(model) else model, store) for model in models}
    cases = [
        simulated(model, paths[model], store, progress, evaluator=evaluator)
        for evaluator in LINKS
        for model in models
        if evaluator in evaluators
    ]
    _run_beside(run, cases, paths, methods)
    for case in cases:
        optimal = find_optimum(case, EXACT)
        if optimal is not None:
            run.optima[case.model, case.evaluator] = optimal
        _run_cells(run, case, methods, effort.seeds, effort.evaluations)
    if REAL in evaluators:
        _measure_on_devices(run, paths, methods)
    document = _results_document(run, asked)
    if question.tables:
        document["tables"] = paper_tables.tables_of(document, question.methods)
        write_text(out / "tables.md", paper_tables.tables_page(document))
    _write_results(run, document)
    return document


def _in_zoo(model: str) -> bool:
    return model in zoo.names()


def _run_beside(
    run: _HsdagRun, cases: Sequence[BenchCase], paths: Mapping[str, Path], methods: Sequence[BenchMethod]
) -> None:
    """Run the cells that are not on file and compute on one thread, or all searches on a fleet, several at a time."""
    folder, effort = run.out / "cells", run.effort
    tasks = [
        CellTask(
            name=cell.title,
            cell=cell,
            suite="hsdag",
            case={
                "model": case.model,
                "path": str(paths[case.model].absolute()),
                "evaluator": case.evaluator,
                "store": str(run.store.root),
            },
            files=(str(paths[case.model].absolute()),),
            file=cell.file(folder),
            alone=not _is_on_one_thread(method),
        )
        for case in sorted(cases, key=lambda case: case.subject.graph.n, reverse=True)  # what takes long comes first
        for method in methods
        for cell in cells_of(case, method, effort.seeds, effort.evaluations)
        if (_is_on_one_thread(method) or (run.fleet is not None and not cell.device)) and finished(cell, folder) is None
    ]
    run.done |= run_beside(tasks, fleet=run.fleet, workers=effort.workers, progress=run.progress)


def _is_on_one_thread(method: BenchMethod) -> bool:
    """Return whether cells of a method compute on one thread: it learns, and no other placer searches for it."""
    return method.learned and method.placer not in CALLING


def _measure_on_devices(run: _HsdagRun, paths: Mapping[str, Path], methods: Sequence[BenchMethod]) -> None:
    """Search on the devices themselves, and let the placements run against one another; a machine without them is
    noted.
    """
    try:
        look_at_machine(run.settings.devices)
    except (DeviceError, UsageError) as error:
        run.notes.append(f"Nothing was measured on devices: {error}")
        return
    models = list(paths)[: run.effort.real_models]
    if len(models) < len(paths):
        run.notes.append(f"On devices only {', '.join(models)} was searched.")
    for model in models:
        journal = run.out / "measured" / f"{Path(model).stem}.jsonl"
        case = real(model, paths[model], run.settings, run.store, journal, run.progress)
        seeds, measurements = min(run.effort.seeds, run.effort.real_seeds), run.effort.measurements
        if not case.measurer.real:
            _run_cells(run, case, methods, seeds, measurements)
            continue
        with measuring_alone(run.progress):
            records = _run_cells(run, case, methods, seeds, measurements)
            run.finals.append(measure_final(case, records, run.settings.measure, run.out / "finals", run.progress))


def _run_cells(
    run: _HsdagRun, case: BenchCase, methods: Sequence[BenchMethod], seeds: int, evaluations: int
) -> list[CellRecord]:
    """Return the records of all cells of a case; those on file are not run again."""
    cells = [cell for method in methods for cell in cells_of(case, method, seeds, evaluations)]
    run.progress(f"{case.model}, {case.evaluator}: every device alone")
    single_s = run_interruptible(lambda _: case.alone())
    run.cases.append(_case_facts(run, case, single_s))
    records = []
    for i, cell in enumerate(cells):
        record = run.done.get(cell.key) or finished(cell, run.out / "cells")
        if record is None:
            run.progress(f"{cell.title} ({i + 1} of {len(cells)})")
            record = run_here(cell, run.out / "cells", single_s, run.progress)
        records.append(record)
    run.records += records
    return records


def _case_facts(run: _HsdagRun, case: BenchCase, single_s: Mapping[str, float]) -> dict[str, Any]:
    """Return what a case is: its size, what every device takes alone, and what is known of the optimum."""
    graph = case.subject.graph
    published = PUBLISHED.get(case.model) if case.journal is None else None
    best = run.optima.get((case.model, case.evaluator))
    return {
        "model": case.model,
        "evaluator": case.evaluator,
        "operations": graph.n,
        "edges": graph.m,
        "source": graph.source,
        "identity": dict(case.identity),
        "single_s": {d: s if s < float("inf") else None for d, s in single_s.items()},
        "published_s": None if published is None else published._asdict(),
        "optimum": None if best is None else asdict(best),
    }


def _results_document(run: _HsdagRun, asked: Mapping[str, Any]) -> dict[str, Any]:
    machine = look_at_machine(())
    summary = []
    for case in run.cases:
        records = _records_of(run.records, case["model"], case["evaluator"])
        best = run.optima.get((case["model"], case["evaluator"]))
        rows = [asdict(row) for row in rows_of(records, best)]
        summary += [{"model": case["model"], "evaluator": case["evaluator"], **row} for row in rows]
    return {
        "schema": SCHEMA,
        "suite": "hsdag",
        "settings": {**asked, "stages": run.settings.to_json()},
        "hardware": dict(machine.facts),
        "fingerprint": machine.fingerprint,
        "versions": read_versions(),
        "notes": run.notes,
        "cases": run.cases,
        "summary": summary,
        "all_models": _over_models(run),
        "finals": run.finals,
        "cells": [{k: v for k, v in r.items() if k != "placement"} for r in run.records],
    }


def _over_models(run: _HsdagRun) -> list[dict[str, Any]]:
    """Return per evaluator and method the mean ratio over all models; single devices left out, they differ by model."""
    rows = []
    for evaluator in dict.fromkeys(case["evaluator"] for case in run.cases):
        records = [r for r in run.records if r["evaluator"] == evaluator]
        models = [case["model"] for case in run.cases if case["evaluator"] == evaluator]
        for method in dict.fromkeys(r["method"] for r in records):
            mean = over_models(records, method, models)
            ratio = None if mean is None else asdict(mean)
            rows.append({"evaluator": evaluator, "method": method, "ratio": ratio})
    return rows


def _records_of(records: Sequence[CellRecord], model: str, evaluator: str) -> list[CellRecord]:
    return [r for r in records if (r["model"], r["evaluator"]) == (model, evaluator)]


def _write_results(run: _HsdagRun, document: Mapping[str, Any]) -> None:
    write_json(run.out / "results.json", document)
    compared = comparisons_of_cases(document)
    write_comparisons(run.out, compared)
    pictures = [(each.title, each.file) for each in compared]
    write_text(run.out / "results.md", results_page(document, pictures=pictures))
    for case in document["cases"]:
        if case["evaluator"] != REAL:
            records = _records_of(run.records, case["model"], case["evaluator"])
            rows = curve_rows(records, case, run.effort.evaluations)
            if rows:
                name = re.sub("[^A-Za-z0-9_.-]", "_", Path(case["model"]).stem)
                plot_curve(rows, run.out / f"curves-{case['evaluator']}-{name}.svg")


def run(asked: BenchRequest) -> dict[str, Any]:
    """Run the suite; see `compare`."""
    models, evaluators, methods = (asked.names(key) for key in ("models", "evaluators", "methods"))
    question = HsdagQuestion(models, evaluators, methods, tables=asked.options["tables"])
    effort, settings = asked.effort(FULL, QUICK), _settings_of(asked.options["assignments"])
    store = asked.open_store()
    with asked.open_workers() as (fleet, progress):
        return compare(question, effort, asked.out, store, settings=settings, fleet=fleet, progress=progress)


def _settings_of(assignments: Sequence[str]) -> Settings:
    """Return the settings of the stages.

    Raises:
        UsageError: a key is unknown, its value wrong, or it is of a stage that a benchmark does not leave open.
    """
    values = dict(parse_assignment(text) for text in assignments)
    unknown = [key for key in values if key.split(".")[0] not in ("profile", "measure")]
    if unknown:
        raise UsageError(
            f"A benchmark does not use {', '.join(unknown)}.",
            "Set profile.KEY and measure.KEY; options and the table of methods stand for the rest.",
        )
    return plain_settings().updated(values, "--set")


def texts(document: Mapping[str, Any], out: Path) -> Iterator[str | TextTable]:
    """Yield a table per case, and what is said of all."""
    header = ["method", "times as fast as best single", "gap", "evaluations to 1 %", "s"]
    for case in document["cases"]:
        rows = [
            [
                row["method"],
                "-" if row["ratio"] is None else f"{row['ratio']['median']:.4f}",
                "-" if row["gap"] is None else gap_text(row["gap"]),
                "-" if row["near_evaluations"] is None else f"{row['near_evaluations']:g}",
                "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            ]
            for row in document["summary"]
            if (row["model"], row["evaluator"]) == (case["model"], case["evaluator"])
        ]
        yield TextTable(f"{case['model']}, {case['evaluator']}", header, rows)
    yield from case_sentences(document)
    yield from paper_tables.missing_rows(document.get("tables", ()))
    yield from document["notes"]
    yield f"Written to {out}: results.md, results.json and figures"


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a cell, as a worker's process is asked for it."""
    return answer_cell(*_loaded_case(**command["case"]), command)


@cache
def _loaded_case(model: str, path: str, evaluator: str, store: str) -> tuple[BenchCase, dict[str, float]]:
    """Return a case, and what every device takes alone."""
    case = simulated(model, Path(path), Store(Path(store)), silent, evaluator=evaluator)
    return case, case.alone()
