"""Searching, simulating and bounding without hardware: what `placewright search | simulate | bound` answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.core.errors import DeviceError, MeasurementError, UsageError
from pipeline.core.figures import finite_or_none
from pipeline.core.graph import Grouping
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.params import canonical
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress, ProgressHook
from pipeline.core.settings import WORTH_LEAST, WORTH_S
from pipeline.core.simulation import LEVELS
from pipeline.core.stages import Answer, LearningPlacer, Placer, Simulator
from pipeline.offline.calls import call_records
from pipeline.offline.official import official_document, read_official, write_official
from pipeline.offline.records import (
    BoundRecord,
    FiguresRecord,
    ProvenRecord,
    ScenarioRecord,
    SearchDocument,
    SimulateRecord,
)
from pipeline.offline.scenario import LoadedScenario, Scenario, load, near_of, placement_of, read_placement
from pipeline.offline.stages import replicated_records, stage_records
from pipeline.placing.compile_kernels import compile_kernels, telling_of_compiling
from pipeline.placing.near import NearRecord, place_near
from pipeline.placing.recipes import for_placer, lift_answer
from pipeline.placing.robust import RobustRecord, place_robust
from pipeline.placing.single_moves import regrets
from pipeline.placing.worth import WorthFigures, WorthRecord, judge_worth
from pipeline.progress.interruption import run_interruptible
from pipeline.progress.perfetto import check_writable, write_trace
from pipeline.progress.watchers import Watcher, ignore_progress, with_progress_line
from pipeline.settings import registry
from pipeline.settings.declared import placers_called, read_declaration
from pipeline.store.checkpoint import read_policy, with_checkpointer
from pipeline.store.store import write_json

BOUND_S = 2.0  # seconds for the parts of a bound that improve with time
DEFAULT_BUDGET_S = 10.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How a placement is looked for.

    placer: which method. budget_s, evaluations: whichever ends first; with neither, 10 seconds. Only a limit on
    evaluations alone gives the same answer on every machine. Of placers that learn, checkpoint: a folder for the state
    of the search, which the same search goes on from, and for the policy; policy: one that was left in such a folder.
    replicate: also tell the best stages that several accelerators take turns at, for so many microbatches per exchange
    of gradients, 0 for none. gap: see `Budget`.
    """

    placer: str = "portfolio"
    budget_s: float | None = None
    evaluations: int | None = None
    checkpoint: str | Path | None = None
    policy: str | Path | None = None
    replicate: int | None = None
    gap: float = 0.0

    @property
    def budget(self) -> Budget:
        """Return the limits as placers take them."""
        seconds = DEFAULT_BUDGET_S if self.budget_s is None and self.evaluations is None else self.budget_s
        return Budget(self.evaluations, seconds, self.gap)


def search(
    scenario: Scenario,
    effort: Effort | None = None,
    *,
    trace: str | Path | None = None,
    official: str | Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    watch: Watcher = ignore_progress,
) -> SearchDocument:
    """Return the best placement found and what is known of it; docs/search.md lists the keys.

    trace: where to write the placement's timeline; official: where to write it as the tools of Tarnawski et al. do.
    progress: told a line for people, now and then. watch: told the same
    in numbers; see `pipeline.progress.watchers.open_watcher`.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    chosen = effort or Effort()

    def work(check: Callable[[], None]) -> SearchDocument:
        return _run_search(
            scenario, chosen, (trace, official), _progress_hook(with_progress_line(progress, watch), check), progress
        )

    return run_interruptible(work)


def _run_search(
    scenario: Scenario,
    effort: Effort,
    files: tuple[str | Path | None, str | Path | None],
    hook: Callable[[str, Progress], None],
    say: Callable[[str], None],
) -> SearchDocument:
    trace, official = files
    for path in files:
        if path is not None:
            check_writable(Path(path))
    if official is not None:
        official_document(scenario.graph)
    placer = registry.build_implementation("place", effort.placer, scenario.parameters("place", effort.placer))
    learned = None if effort.policy is None else read_policy(Path(effort.policy))
    case = load(scenario)
    if isinstance(placer, LearningPlacer):
        case = case.with_policy(learned=learned)
    case = _with_checkpoints(case, effort, placer)
    simulator = case.simulator()
    compile_kernels((effort.placer,), scenario.evaluator, case.graph.n, say=say)
    begun = time.monotonic()
    try:
        found = _place_scenario(case, simulator, placer, effort, partial(hook, effort.placer))
    except DeviceError as error:
        raise _short_of_memory(case, simulator) or error from error
    seconds = time.monotonic() - begun
    answer, best = found.answer, found.answer.best
    if isinstance(best.result, MeasurementFailed):
        raise _infeasible_error(case, simulator, answer)
    answer = _with_bound(case, simulator, answer)
    document: SearchDocument = {
        "schema": "placewright.search/1",
        **_scenario_record(case, simulator),
        "mode": "order" if scenario.ordered else "placement",
        "placer": effort.placer,
        "seed": scenario.seed,
        "value_s": answer.value_s,
        "lower_bound_s": answer.lower_bound_s,
        "gap": answer.gap,
        "proven": answer.proven,
        "bound_by": answer.bound_by,
        "found_by": best.found_by,
        "evaluations": found.evaluations,
        "seconds": seconds,
        "planned_s": None if math.isnan(best.planned_s) else best.planned_s,
        "own_s": answer.own_s if math.isfinite(answer.own_s) else None,
        "notes": list(answer.notes),
        "stages": stage_records(case, best.placement),
        "calls": call_records(case, best.placement),
        "replicated": None if effort.replicate is None else replicated_records(case, effort.replicate),
        "regret": regrets(case.problem, simulator, best.placement),
        "near": found.near,
        "robust": found.robust,
        **_figures_record(case, simulator, best.placement),
        **case.lifted(best.placement),
    }
    if official is not None:
        write_official(Path(official), case, best.placement)
    _write_trace(simulator, best.placement, trace)
    return document


class _PlacedAnswer(NamedTuple):
    """What a search of a scenario came to."""

    answer: Answer
    evaluations: int
    near: NearRecord | None = None
    robust: RobustRecord | None = None


def _place_scenario(
    case: LoadedScenario, simulator: Simulator, placer: Placer, effort: Effort, progress: ProgressHook
) -> _PlacedAnswer:
    """Return what a placer answers: for the costs as they are, near an earlier placement, or under disturbed costs.

    Raises:
        UsageError: two of these exclude each other.
    """
    scenario = case.scenario
    if scenario.near is None and scenario.robust is None:
        return _PlacedAnswer(*_place_case(case, simulator, placer, effort.budget, progress))
    kept = effort.checkpoint is not None or effort.policy is not None
    if kept or (scenario.near is not None and scenario.robust is not None):
        raise UsageError("--near, --robust, and --checkpoint or --policy exclude each other.", "Give one of them.")

    def under(problem: Problem, seed: int = scenario.seed) -> LoadedScenario:
        costs = case.costs if problem.costs is None else problem.costs
        return replace(case, scenario=replace(scenario, seed=seed), problem=problem, costs=costs)

    def place(problem: Problem, budget: Budget, seed: int) -> tuple[Answer, int]:
        asked = under(problem, seed)
        return _place_case(asked, asked.simulator(), placer, budget, progress)

    if scenario.robust is not None:
        answer, spent, robust = place_robust(
            case.problem,
            scenario.robust,
            lambda problem: under(problem).simulator(),
            place,
            effort.budget,
            seed=scenario.seed,
        )
        return _PlacedAnswer(answer, spent, robust=robust)
    near = near_of(case)
    answer, spent, told = place_near(case.problem, near, case.simulator(), place, effort.budget, seed=scenario.seed)
    return _PlacedAnswer(answer, spent, near=told)


def _place_case(
    case: LoadedScenario, alone_in: Simulator, placer: Placer, budget: Budget, progress: ProgressHook
) -> tuple[Answer, int]:
    """Return what a placer answers, in terms of the case's operations, and after how many evaluations.

    alone_in: the simulator of the operations, its count at 0: where nothing is grouped no second one is made.
    """
    seed, alone = case.scenario.seed, Grouping.identity(case.graph.n)
    grouping, problem = for_placer(placer, case.problem, lambda: (alone, case.problem), seed=seed)
    simulator = alone_in if grouping.is_identity else case.simulator(grouping)
    answer = placer.place(problem, simulator, budget, seed=seed, progress=progress)
    spent = (
        simulator.evaluations if answer.evaluations is None else answer.evaluations
    )  # before an interruption as well
    return lift_answer(answer, grouping), spent


def simulate(
    scenario: Scenario,
    placement: SearchDocument | Mapping[str, str] | str | Path,
    *,
    official: bool = False,
    trace: str | Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SimulateRecord:
    """Return what a placement costs; docs/search.md lists the keys.

    placement: what `search` returned, {operation: device}, or the path of a JSON file with either. official: whether it
    is the path of a result of the tools of Tarnawski et al., which is checked as well. progress: told a line
    for people.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    if trace is not None:
        check_writable(Path(trace))
    case = load(scenario)
    simulator, checked = case.simulator(), None
    if isinstance(placement, Mapping):
        if official:
            raise UsageError("official=True needs the path of a result file.", "Pass a path, or official=False.")
        given = placement_of(placement, case, "The placement")
    elif official:
        given, checked = read_official(Path(placement), case)
    else:
        given = read_placement(Path(placement), case)
    unsupported = np.flatnonzero(~case.costs.supported[np.arange(case.graph.n), given.device])
    if unsupported.size:
        pairs = [f"{case.graph.names[i]} on {given.devices[given.device[i]]}" for i in unsupported[:5].tolist()]
        raise DeviceError(
            f"The devices do not support {unsupported.size} operation(s) of the placement: {', '.join(pairs)}.",
            "Place them on other devices.",
        )
    with telling_of_compiling(progress):
        figures = _figures_record(case, simulator, given)
    ordered_s = figures["priority_s"]
    value_s = figures["fifo_s"] if ordered_s is None else ordered_s
    document: SimulateRecord = {
        "schema": "placewright.simulate/1",
        **_scenario_record(case, simulator),
        "value_s": value_s,
        "stages": stage_records(case, given),
        "calls": call_records(case, given),
        "official": checked,
        **figures,
        **case.lifted(given),
    }
    _write_trace(simulator, given, trace)
    return document


def bound(
    scenario: Scenario,
    *,
    seconds: float = BOUND_S,
    write_costs: str | Path | None = None,
    write_graph: str | Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BoundRecord:
    """Return what no placement can fall below, and what proves it.

    write_costs: where to write the seconds per operation and device, as CSV; write_graph: where to write graph, costs
    and devices in the format of Tarnawski et al. progress: told a line for people.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    from policy.place.exact.shared.proofs import lower_bound
    from runtime.machines.cost_file import write_costs as write

    case = load(scenario)
    if write_costs is not None:
        write(Path(write_costs), case.costs)
    if write_graph is not None:
        from coarsen.reading.graph.msr_files import to_msr

        write_json(Path(write_graph), to_msr(case.graph, case.costs, case.topology))
    simulator = case.simulator()

    def work(_: Callable[[], None]) -> ProvenRecord:
        compile_kernels((), scenario.evaluator, case.graph.n, say=progress)
        begun = time.monotonic()
        value_s, by = lower_bound(case.problem, simulator.execution, seconds=seconds, one_to_one=True)
        return {"lower_bound_s": value_s, "bound_by": by, "seconds": time.monotonic() - begun}

    return {"schema": "placewright.bound/1", **_scenario_record(case, simulator), **run_interruptible(work)}


def worth(
    scenario: Scenario,
    *,
    least: float = WORTH_LEAST,
    seconds: float = WORTH_S,
    progress: Callable[[str], None] = lambda _: None,
) -> WorthRecord:
    """Return by how much a placement can beat the best single device at most; docs/worth.md lists the keys.

    least: the share that counts as worth it. seconds: for proving. progress: told a line for people.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    case = load(scenario)
    simulator = case.simulator()

    def work(_: Callable[[], None]) -> WorthFigures:
        with telling_of_compiling(progress):  # no rehearsal: loading what it calls takes as long as all questions
            return judge_worth(case.problem, simulator, least=least, seconds=seconds)

    asked = _scenario_record(case, simulator)
    return {
        "schema": "placewright.worth/1",
        "graph": asked["graph"],
        "topology": asked["topology"],
        "evaluator": asked["evaluator"],
        "operations": asked["operations"],
        "edges": asked["edges"],
        "devices": asked["devices"],
        "costs": asked["costs"],
        **run_interruptible(work),
    }


def _with_bound(case: LoadedScenario, simulator: Simulator, answer: Answer) -> Answer:
    """Return the answer with a bound: the placer's, or one of our own where it proved nothing."""
    from policy.place.exact.shared.proofs import lower_bound

    if answer.lower_bound_s > 0:
        return answer
    bound_s, by = lower_bound(case.problem, simulator.execution, seconds=BOUND_S, one_to_one=True)
    return replace(answer, lower_bound_s=bound_s, bound_by=by)


def _scenario_record(case: LoadedScenario, simulator: Simulator) -> ScenarioRecord:
    """Return what was asked, and how large it is."""
    scenario, execution = case.scenario, simulator.execution
    queues, stages = execution.queue_rules, execution.stage_rules
    level = scenario.level or ("" if queues is None else LEVELS[queues.contention])
    return {
        "graph": scenario.graph,
        "topology": scenario.topology,
        "evaluator": scenario.evaluator,
        "level": level or None,
        "contiguity": None if stages is None else stages.contiguity,
        "memory": scenario.memory,
        "ties": scenario.ties,
        "operations": case.graph.n,
        "edges": case.graph.m,
        "devices": list(case.topology.names),
        "costs": dict(zip(case.costs.devices, case.costs.origin, strict=True)),
    }


def _figures_record(case: LoadedScenario, simulator: Simulator, placement: Placement) -> FiguresRecord:
    """Return what the placement costs, run first come first served and, if it has an order, by its priorities."""
    device = placement.device[None]
    fifo = simulator.simulate(device, None)
    ordered = fifo if placement.priority is None else simulator.simulate(device, placement.priority[None])
    names = case.topology.names
    alone = simulator.simulate(np.tile(np.arange(len(names), dtype=np.int32)[:, None], case.graph.n))
    able = (alone.over_bytes == 0) & case.problem.allowed.all(axis=0)
    alone_s = np.where(able, alone.value_s, np.inf)
    best = int(alone_s.argmin())
    return {
        "single_device": names[best] if np.isfinite(alone_s[best]) else None,
        "single_s": finite_or_none(float(alone_s[best])),
        "feasible": bool(ordered.over_bytes[0] == 0 and np.isfinite(ordered.value_s[0])),
        "over_bytes": int(ordered.over_bytes[0]),
        "fifo_s": float(fifo.value_s[0]),
        "priority_s": None if placement.priority is None else float(ordered.value_s[0]),
        "busy_s": dict(zip(names, ordered.busy_s[0].tolist(), strict=True)),
        "peak_bytes": dict(zip(names, ordered.peak_bytes[0].tolist(), strict=True)),
        "cut_bytes": int(ordered.cut_bytes[0]),
    }


def _write_trace(simulator: Simulator, placement: Placement, path: str | Path | None) -> None:
    if path is not None:
        write_trace(Path(path), simulator.timeline(placement))


def _short_of_memory(case: LoadedScenario, simulator: Simulator) -> DeviceError | None:
    """Return the error that names a memory that suffices, if the weights alone are too much."""
    from policy.place.exact.shared.bounds import explain_memory

    if not case.scenario.memory:
        return None
    return explain_memory(case.problem, lambda placement: _least_peak_bytes(simulator, [placement]))


def _least_peak_bytes(simulator: Simulator, placements: Sequence[Placement]) -> int:
    """Return the most that a device holds under the placement where that is least."""
    peak = simulator.simulate(np.stack([placement.device for placement in placements])).peak_bytes
    return int(peak.max(axis=1).min())


def _infeasible_error(case: LoadedScenario, simulator: Simulator, answer: Answer) -> DeviceError | MeasurementError:
    """Return the error for a search in which no placement ran."""
    short = _short_of_memory(case, simulator)
    if short is not None:
        return short
    failed = answer.best.result
    message = "" if not isinstance(failed, MeasurementFailed) else f"{failed.kind}: {failed.message}"
    if not isinstance(failed, MeasurementFailed) or failed.kind != "out_of_memory":
        return MeasurementError(f"No placement could be simulated ({message}).", "Raise --budget.")
    needed = _least_peak_bytes(simulator, [candidate.placement for candidate in answer.candidates])
    return DeviceError(
        f"No feasible placement was found within the memory limits ({message}).",
        f"The smallest placement seen needs {needed} bytes per device. Raise --budget, use another --placer, or pass "
        "--no-memory.",
    )


def _progress_hook(tell: Watcher, check: Callable[[], None]) -> Watcher:
    def hook(placer: str, p: Progress) -> None:
        check()
        tell(placer, p)

    return hook


def _with_checkpoints(case: LoadedScenario, effort: Effort, placer: Placer) -> LoadedScenario:
    """Return the case with the state of its search kept where the effort says.

    Raises:
        UsageError: the placer learns nothing.
    """
    if effort.checkpoint is None and effort.policy is None:
        return case
    if not (isinstance(placer, LearningPlacer) and placer.keeps):
        raise UsageError(
            f"The placer {effort.placer} has no policy.",
            "Remove --checkpoint and --policy, or use a placer that learns, such as hsdag.",
        )
    if effort.checkpoint is None:
        return case
    folder = Path(effort.checkpoint)
    check_writable(folder / "state.safetensors")
    scenario, measurer = case.scenario, case.scenario.measurer()
    params = canonical(placer)
    called = [[name, read_declaration("place", name).version] for name in placers_called(effort.placer, params)]
    asked = (effort.placer, placer.version, params, scenario.seed, *called)
    rules = (scenario.evaluator, measurer.version, canonical(measurer))
    return replace(case, problem=with_checkpointer(case.problem, folder, *asked, *rules))
