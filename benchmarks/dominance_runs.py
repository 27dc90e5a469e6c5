"""How the benchmark `dominance` runs a cell: the portfolio and its members, in processes that live for one cell.

The processes are this very module, and are asked in JSON lines:

in   {"cell", "method", "repeat"}: the fields of a Cell; a placer, or "" to get ready; see `Run`
out  {"run"}: the fields of a Run; {"ready"}: those of an Instance, if the method is ""
"""

from __future__ import annotations

import gc
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import psutil

from benchmarks.dominance_cells import Cell, loaded
from pipeline.core.errors import PlacewrightError
from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget, Progress
from pipeline.core.stages import Answer, Placer
from pipeline.offline.scenario import LoadedScenario
from pipeline.placing.compile_kernels import compile_kernels_of_each
from pipeline.placing.recipes import for_placer, lift_answer
from pipeline.settings import registry
from pipeline.settings.declared import read_declaration
from pipeline.system.process import take_next
from pipeline.system.processors import processor_seconds
from pipeline.system.workers import Worker, serve_commands
from policy.place.portfolio import parts

MODULE = "benchmarks.dominance_runs"  # whose processes run methods
PORTFOLIO = "portfolio"
LATE_SHARE, LATE_S = 0.1, 0.25  # of the limit, and seconds: by how much a method may exceed it
GRACE_S = 30.0  # seconds beyond the limit after which a method is stopped
READY_S = 600.0  # seconds for reading a graph and compiling
CLOSE = 0.05  # share of a value within which methods are told apart by further seeds only
FRESH = 1000  # first repeat of the runs by which alone a cell is judged on which the portfolio seemed worse
FRESH_S, LEAST_FRESH = 9.0, 3  # seconds per method, and seeds, that such a cell is run again with at least
SAME = 1e-9  # share by which two simulations of one placement may differ: the order of their sums

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a method came to on a cell.

    value_s: the best that it had by the limit, lateness that is allowed included; None where nothing was feasible.
    final_s: of its answer, whenever that came. seconds: from the call to the answer; cpu_s: of processors meanwhile,
    so that a run which others disturbed can be told. stopped: whether it was stopped before it answered. failed: why
    there is no answer, in the method's own words, or "". version: of the method. repeat: what is added to the cell's
    seed; from FRESH on, where the cell was run again.
    """

    method: str
    version: int
    seconds: float
    value_s: float | None = None
    final_s: float | None = None
    found_by: str = ""
    proven: bool = False
    evaluations: int = 0
    stopped: bool = False
    failed: str = ""
    cpu_s: float = 0.0
    repeat: int = 0

    @property
    def counted_s(self) -> float:
        """Return the seconds that count for the run: inf where it found nothing, or its answer is at fault."""
        return math.inf if self.value_s is None or self.failed else self.value_s

    def late(self, limit_s: float) -> bool:
        """Return whether it took longer than a limit allows."""
        return self.seconds > allowed_s(limit_s)


@dataclass(frozen=True, slots=True)
class Instance:
    """What a cell stands for: operations, edges, devices, and the placers that the portfolio may call."""

    n: int
    m: int
    p: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A cell that was run. load: the machine's load average of one minute before it."""

    cell: Cell
    instance: Instance
    runs: tuple[Run, ...]
    load: float = 0.0

    @property
    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {"key": self.cell.key, **asdict(self)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Row:
        """Return the row of a document."""
        instance = document["instance"]
        return cls(
            Cell(**document["cell"]),
            Instance(**{**instance, "members": tuple(instance["members"])}),
            tuple(Run(**run) for run in document["runs"]),
            document["load"],
        )


@dataclass(frozen=True, slots=True)
class Lanes:
    """How a cell's methods are run. members: the only ones to run beside the portfolio; empty for all.

    side_by_side: whether two methods of one thread each may run at the same time. seeds: how many seeds the methods get
    that one seed does not tell apart.
    """

    members: tuple[str, ...] = ()
    side_by_side: bool = True
    seeds: int = 1


Known = Mapping[tuple[str, int], Run]  # runs by method and repeat


def allowed_s(limit_s: float) -> float:
    """Return the seconds after which a method with this limit is late."""
    return limit_s + max(LATE_SHARE * limit_s, LATE_S)


def run_cell(cell: Cell, lanes: Lanes, known: Known, say: Say) -> Row:
    """Return what the methods come to on a cell, in an order that its seed draws, each on a problem of its own.

    Those that the first seed leaves close to one another are run with further ones.

    known: runs of members that need not be repeated; what is left of them is run by one process.

    Raises:
        PlacewrightError: the instance cannot be made.
    """
    load, rng = psutil.getloadavg()[0], np.random.default_rng(cell.seed)
    runs: list[Run] = []
    with _Processes(cell, most=2 if lanes.side_by_side and not known else 1) as processes:
        instance = processes.ready()
        methods: Sequence[str] = (PORTFOLIO, *(lanes.members or instance.members))
        for repeat in range(lanes.seeds):
            told = [known[name, repeat] for name in methods if _is_known(name, repeat, known)]
            missing = [name for name in methods if not _is_known(name, repeat, known)]
            order = [missing[i] for i in rng.permutation(len(missing)).tolist()]
            found = {run.method: run for run in told} | processes.runs(order, repeat, say)
            runs += [found[name] for name in methods]
            if not (methods := _close(runs, methods)):
                break
    return Row(cell, instance, tuple(runs), load)


def run_again(row: Row, member: str, lanes: Lanes, say: Say) -> Row:
    """Return a row with runs of the portfolio and one member with fresh seeds.

    The best of many members by a few seeds is partly the luckiest one; that it is better shows on others.

    Raises:
        PlacewrightError: the instance cannot be made.
    """
    cell, fresh = row.cell, list[Run]()
    rng = np.random.default_rng(cell.seed)
    with _Processes(cell, most=1) as processes:
        processes.ready()
        for repeat in range(FRESH, FRESH + max(LEAST_FRESH, lanes.seeds, round(FRESH_S / cell.seconds))):
            order = [(PORTFOLIO, member)[i] for i in rng.permutation(2).tolist()]
            fresh += processes.runs(order, repeat, say).values()
    return replace(row, runs=(*row.runs, *fresh))


def _is_known(name: str, repeat: int, known: Known) -> bool:
    run = known.get((name, repeat))
    return run is not None and run.version == read_declaration("place", name).version


def _close(runs: Sequence[Run], methods: Sequence[str]) -> list[str]:
    """Return the portfolio and the members close to the best one, or none where the portfolio is well ahead of them.

    None as well where it has proven that nothing is better.
    """
    value_s = {name: min(run.counted_s for run in runs if run.method == name) for name in methods}
    best_s = min((value_s[name] for name in methods if name != PORTFOLIO), default=math.inf)
    proven = any(run.proven and not run.failed for run in runs if run.method == PORTFOLIO)
    if proven or math.isinf(best_s) or value_s[PORTFOLIO] < best_s * (1 - CLOSE):
        return []
    return [name for name in methods if name == PORTFOLIO or value_s[name] <= best_s * (1 + CLOSE)]


class _Processes:
    """The processes of a cell, at most `most` at a time. Use it as a context manager; leaving it ends them."""

    def __init__(self, cell: Cell, *, most: int) -> None:
        self._cell, self._most = cell, most
        self._heard: queue.SimpleQueue[tuple[Worker, bytes]] = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._stop_s: dict[Worker, float] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._end(worker)

    def ready(self) -> Instance:
        """Return the instance, as soon as all processes have loaded it and compiled what they will call.

        Raises:
            PlacewrightError: the instance cannot be made.
        """
        while len(self._workers) < self._most:
            self._start()
        answers = [self._next()[1] for _ in range(self._most)]
        for answer in answers:
            if "ready" not in answer:
                error = answer.get("error", {"cause": f"It was not ready after {READY_S:g} s.", "remedy": ""})
                raise PlacewrightError(error["cause"], error["remedy"])
        facts = answers[0]["ready"]
        return Instance(**{**facts, "members": tuple(facts["members"])})

    def runs(self, order: Sequence[str], repeat: int, say: Say) -> dict[str, Run]:
        """Return the runs of methods with one seed.

        Those of several threads run alone, two others at a time if there are two processes. What would have to wait
        lets the next one of a single thread go first.
        """
        waiting, runs = list(order), dict[str, Run]()
        while waiting or self._busy():
            while (name := self._startable(waiting)) is not None:
                waiting.remove(name)
                self._ask(name, repeat)
            name, answer = self._next()
            if name == "":
                continue  # a process that takes the place of another is ready
            runs[name] = Run(**answer["run"]) if "run" in answer else _stopped(name, repeat, self._cell, answer)
            say(f"{self._cell.key} {name}: {runs[name].value_s} s after {runs[name].seconds:.2f} s")
        return runs

    def _startable(self, waiting: Sequence[str]) -> str | None:
        """Return the method that may start now; None if one that runs must end first."""
        busy = [worker.at for worker in self._busy()]
        if not waiting or len(busy) >= len(self._workers) or any(at == _READY or _alone(at) for at in busy):
            return None
        return next((name for name in waiting if not busy or not _alone(name)), None)

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.at]

    def _start(self) -> None:
        worker = Worker(MODULE, self._heard.put)
        self._workers.append(worker)
        worker.ask(_READY, {"cell": self._cell.document, "method": ""})
        self._stop_s[worker] = time.monotonic() + READY_S

    def _ask(self, name: str, repeat: int) -> None:
        worker = next(worker for worker in self._workers if not worker.at)
        worker.ask(name, {"cell": self._cell.document, "method": name, "repeat": repeat})
        self._stop_s[worker] = time.monotonic() + self._cell.seconds + GRACE_S

    def _next(self) -> tuple[str, Mapping[str, Any]]:
        """Return the next method that has ended, "" for a process that is ready, and its answer.

        A process that does not answer is ended, and another one started in its place.
        """
        while True:
            stop_s = min(self._stop_s[worker] for worker in self._busy())
            try:
                worker, line = take_next(self._heard, within_s=max(0.0, stop_s - time.monotonic()))
            except TimeoutError:
                worker = min(self._busy(), key=lambda worker: self._stop_s[worker])
                name = worker.at
                self._end(worker)
                self._start()
                return _method(name), {"stopped": True}
            if worker not in self._workers:
                continue
            name, answer = worker.at, worker.answer(line)
            if answer is None:  # it only tells of a step that is begun
                continue
            if "died" in answer:
                self._end(worker)
                if name != _READY:
                    self._start()
            return _method(name), answer

    def _end(self, worker: Worker) -> None:
        self._workers.remove(worker)
        del self._stop_s[worker]
        worker.close()


_READY = "getting ready"  # what a process does first


def _method(at: str) -> str:
    return "" if at == _READY else at


def _alone(name: str) -> bool:
    """Return whether a method has several threads."""
    return int(getattr(registry.build_implementation("place", name), "workers", 1)) > 1


def _stopped(name: str, repeat: int, cell: Cell, answer: Mapping[str, Any]) -> Run:
    """Return the run of a method that has not answered."""
    seconds = cell.seconds + GRACE_S
    said = answer["error"]["cause"] if "error" in answer else f"It was stopped after {seconds:g} s."
    version = read_declaration("place", name).version
    return Run(name, version, seconds, stopped=True, failed=said, repeat=repeat)


def answer(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process is asked for; see above."""
    cell = Cell(**command["cell"])
    case, members = _prepared(cell)
    if command["method"]:
        return {"run": asdict(run_method(cell, case, command["method"], command["repeat"]))}
    return {"ready": asdict(Instance(case.graph.n, case.graph.m, case.topology.p, members))}


@cache
def _prepared(cell: Cell) -> tuple[LoadedScenario, tuple[str, ...]]:
    """Return the instance of a cell and the placers that the portfolio may call, all of them compiled and loaded."""
    case = loaded(cell)
    members = parts(case.graph.n, case.simulator().execution)
    compile_kernels_of_each((*members, PORTFOLIO), case.scenario.evaluator)
    return case, members


def run_method(cell: Cell, case: LoadedScenario, name: str, repeat: int = 0) -> Run:
    """Return what a placer comes to on a fresh problem; that it refuses is an answer.

    What its answer promises is simulated again, so that a wrong value counts as none.
    """
    placer: Placer = registry.build_implementation("place", name)
    alone = Grouping.identity(case.graph.n)
    fresh = case.problem.on()  # what one method derived from it would be a present to the next
    seed = cell.seed + repeat
    grouping, problem = for_placer(placer, fresh, lambda: (alone, fresh), seed=seed)
    simulator = case.simulator(grouping)
    in_time_s, deadline_s = math.inf, allowed_s(cell.seconds)

    def hook(progress: Progress) -> None:
        nonlocal in_time_s
        if time.monotonic() - begun <= deadline_s:
            in_time_s = min(in_time_s, progress.value_s)

    gc.collect()
    begun, cpu_begun_s = time.monotonic(), processor_seconds()
    try:
        found = placer.place(problem, simulator, Budget(seconds=cell.seconds), seed=seed, progress=hook)
    except PlacewrightError as error:
        return Run(name, placer.version, time.monotonic() - begun, failed=error.cause, repeat=repeat)
    seconds, cpu_s = time.monotonic() - begun, processor_seconds() - cpu_begun_s
    final_s = found.value_s
    return Run(
        name,
        placer.version,
        seconds,
        value_s=_finite(final_s if seconds <= deadline_s else in_time_s),
        final_s=_finite(final_s),
        found_by=found.best.found_by,
        proven=found.proven,
        evaluations=simulator.evaluations if found.evaluations is None else found.evaluations,
        failed=_fault(case, lift_answer(found, grouping)),
        cpu_s=cpu_s,
        repeat=repeat,
    )


def _fault(case: LoadedScenario, found: Answer) -> str:
    """Return what is wrong with the best placement of an answer, "" if it is what it is said to be, or has no value."""
    placement, said_s = found.best.placement, found.value_s
    if math.isinf(said_s):
        return "It found nothing feasible."
    if not case.problem.fits(placement):
        return "Its answer does not fit the devices."
    priority = None if placement.priority is None else placement.priority[None]
    again = case.simulator().simulate(placement.device[None], priority)
    value_s = float(again.value_s[0]) if again.over_bytes[0] == 0 else math.inf
    same = math.isclose(value_s, said_s, rel_tol=SAME)
    return "" if same else f"Its answer takes {value_s:.9g} s, not {said_s:.9g} s."


def _finite(value_s: float) -> float | None:
    return value_s if math.isfinite(value_s) else None


if __name__ == "__main__":
    serve_commands({"cell": lambda command, _: answer(command)})
