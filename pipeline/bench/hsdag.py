"""The benchmark after HSDAG's tables: three networks, two devices, equal budgets, and what the tables lacked.

Source: Duan et al., NeurIPS 2024 (HSDAG). Different: random placements, partitions and the exact minimum cut stand
beside the learned methods, all have one budget and several seeds, and single devices are candidates for all of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coarsen.reading.model.files import is_written_as_path
from pipeline.api import model_path
from pipeline.bench import methods as table
from pipeline.bench import paper_tables
from pipeline.bench.beside import on_one_thread, run_beside
from pipeline.bench.cases import LINKS, PUBLISHED, SIMULATOR, BenchCase, plain_settings, real, simulated
from pipeline.bench.cells import BenchCell, CellRecord, Optimum, cells_of, finished, optimum, run_cell
from pipeline.bench.finals import final
from pipeline.bench.methods import BenchMethod
from pipeline.bench.summary import over_models, rows_of
from pipeline.core.errors import DeviceError, UnknownNameError, UsageError
from pipeline.fleet.engine import Engine
from pipeline.fleet.pool import PoolEngine
from pipeline.placing.rehearsal import rehearse
from pipeline.progress.interruption import apart
from pipeline.progress.notice import tell_of_compiling
from pipeline.progress.trace import check_writable
from pipeline.settings.config import Settings
from pipeline.stages.host import look_at_machine
from pipeline.store.store import Store, write_json, write_text
from pipeline.store.task import Progress
from pipeline.system.machine_lock import measuring_alone

SCHEMA = "placewright.bench/2"
WORKER = "pipeline.bench.beside"  # the module whose processes run cells
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
class Question:
    """What is compared on what; names as the user gives them, none for all.

    tables: whether the rows of the paper's tables 2 and 3 are; names choose among their networks, evaluators and rows.
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
        from runtime import zoo

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
class _Run:
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


def bench(
    question: Question,
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
    run = _Run(out, store, settings or plain_settings(), effort, progress, [], {}, [], [], {}, [], fleet)
    if not question.methods and table.missing():
        run.notes.append(f"Not registered, and so left out: {', '.join(table.missing())}.")
    paths = {model: model_path(f"zoo:{model}" if _in_zoo(model) else model, store) for model in models}
    cases = [
        simulated(model, paths[model], store, progress, evaluator=evaluator)
        for evaluator in LINKS
        for model in models
        if evaluator in evaluators
    ]
    _side_by_side(run, cases, paths, methods)
    for case in cases:
        _simulate(run, case, methods)
    if REAL in evaluators:
        _measure(run, paths, methods)
    document = _document(run, asked)
    if question.tables:
        document["tables"] = paper_tables.tables_of(document, question.methods)
        write_text(out / "tables.md", paper_tables.page(document))
    _write(run, document)
    return document


def _in_zoo(model: str) -> bool:
    from runtime import zoo

    return model in zoo.names()


def _side_by_side(
    run: _Run, cases: Sequence[BenchCase], paths: Mapping[str, Path], methods: Sequence[BenchMethod]
) -> None:
    """Run the cells that are not on file and compute on one thread, or all searches on a fleet, several at a time."""
    folder, effort = run.out / "cells", run.effort
    cells = [
        cell
        for case in cases
        for method in methods
        for cell in cells_of(case, method, effort.seeds, effort.evaluations)
        if (on_one_thread(cell) or (run.fleet is not None and not cell.device)) and finished(cell, folder) is None
    ]
    if run.fleet is None and (effort.workers == 1 or len(cells) < 2):
        return

    if run.fleet is None:
        tell_of_compiling(run.progress)
    run.progress("starting processes, which load kernels first")
    cells.sort(key=lambda cell: cell.case.subject.graph.n, reverse=True)  # what takes long is not left for the end
    with contextlib.ExitStack() as own:
        engine = run.fleet or own.enter_context(PoolEngine(effort.workers, WORKER))
        for record in run_beside(cells, paths, folder, run.store, engine=engine, progress=run.progress):
            run.done[record["key"]] = record


def _simulate(run: _Run, case: BenchCase, methods: Sequence[BenchMethod]) -> None:
    optimal = optimum(case, EXACT)
    if optimal is not None:
        run.optima[case.model, case.evaluator] = optimal
    _cells(run, case, methods, run.effort.seeds, run.effort.evaluations)


def _measure(run: _Run, paths: Mapping[str, Path], methods: Sequence[BenchMethod]) -> None:
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
            _cells(run, case, methods, seeds, measurements)
            continue
        with measuring_alone(run.progress):
            records = _cells(run, case, methods, seeds, measurements)
            run.finals.append(final(case, records, run.settings.measure, run.out / "finals", run.progress))


def _cells(
    run: _Run, case: BenchCase, methods: Sequence[BenchMethod], seeds: int, evaluations: int
) -> list[CellRecord]:
    """Return the records of all cells of a case; those on file are not run again."""
    cells = [cell for method in methods for cell in cells_of(case, method, seeds, evaluations)]
    run.progress(f"{case.model}, {case.evaluator}: every device alone")
    single_s = apart(lambda _: case.alone())
    run.cases.append(_facts(run, case, single_s))
    records = []
    for i, cell in enumerate(cells):
        record = run.done.get(cell.key) or finished(cell, run.out / "cells")
        if record is None:
            run.progress(f"{cell.title} ({i + 1} of {len(cells)})")
            record = apart(_work(run, cell, single_s))
        records.append(record)
    run.records += records
    return records


def _work(run: _Run, cell: BenchCell, single_s: Mapping[str, float]) -> Callable[[Callable[[], None]], CellRecord]:
    def work(check: Callable[[], None]) -> CellRecord:
        rehearse((cell.method.placer,), cell.case.measurer_name, cell.case.subject.graph.n, say=run.progress)
        return run_cell(cell, run.out / "cells", single_s, check)

    return work


def _facts(run: _Run, case: BenchCase, single_s: Mapping[str, float]) -> dict[str, Any]:
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


def _document(run: _Run, asked: Mapping[str, Any]) -> dict[str, Any]:
    from pipeline.result.result import versions

    machine = look_at_machine(())
    summary = []
    for case in run.cases:
        records = _of(run.records, case["model"], case["evaluator"])
        best = run.optima.get((case["model"], case["evaluator"]))
        rows = [asdict(row) for row in rows_of(records, best)]
        summary += [{"model": case["model"], "evaluator": case["evaluator"], **row} for row in rows]
    return {
        "schema": SCHEMA,
        "suite": "hsdag",
        "settings": {**asked, "stages": run.settings.to_json()},
        "hardware": dict(machine.facts),
        "fingerprint": machine.fingerprint,
        "versions": versions(),
        "notes": run.notes,
        "cases": run.cases,
        "summary": summary,
        "all_models": _over_models(run),
        "finals": run.finals,
        "cells": [{k: v for k, v in r.items() if k != "placement"} for r in run.records],
    }


def _over_models(run: _Run) -> list[dict[str, Any]]:
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


def _of(records: Sequence[CellRecord], model: str, evaluator: str) -> list[CellRecord]:
    return [r for r in records if (r["model"], r["evaluator"]) == (model, evaluator)]


def _write(run: _Run, document: Mapping[str, Any]) -> None:
    from pipeline.bench.intervals import of_cases
    from pipeline.bench.pages import curve_rows, page
    from pipeline.progress.curve import plot
    from pipeline.report.comparison import write_comparisons

    write_json(run.out / "results.json", document)
    compared = of_cases(document)
    write_comparisons(run.out, compared)
    write_text(run.out / "results.md", page(document, pictures=[(each.title, each.file) for each in compared]))
    for case in document["cases"]:
        if case["evaluator"] != REAL:
            records = _of(run.records, case["model"], case["evaluator"])
            rows = curve_rows(records, case, run.effort.evaluations)
            if rows:
                name = re.sub("[^A-Za-z0-9_.-]", "_", Path(case["model"]).stem)
                plot(rows, run.out / f"curves-{case['evaluator']}-{name}.svg")
