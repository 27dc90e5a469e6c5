"""Results of the tools published with Tarnawski et al.: written from placements, and checked as placements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.placement import Placement
from pipeline.offline.calls import checked_latency, turns_of
from pipeline.offline.records import OfficialRecord
from pipeline.offline.scenario import LoadedScenario
from pipeline.offline.stages import checked_loads
from pipeline.shared.contiguity import backward_operations
from pipeline.shared.json_object import read_object
from pipeline.store.store import write_json

if TYPE_CHECKING:
    from coarsen.reading.graph.msr_files import OfficialLoads

CLOSE = 1e-4  # the share by which a stated load may differ: costs of edges become whole bytes
MS = 1e-3
WORDS = {"maxLoad": "load", "totalLatency": "latency"}


def official_document(graph: str) -> Mapping[str, Any]:
    """Return the document of a graph in the official format.

    Raises:
        UsageError: the graph is something else.
    """
    from coarsen.reading.graph.msr import is_msr

    document = read_object(Path(graph), "a graph") if graph.endswith(".json") else {}
    if not is_msr(document):
        raise UsageError(
            f"{graph} is not in the format of Tarnawski et al., whose results name its nodes by number.",
            "Give such a graph; `placewright bound --write-official` makes one.",
        )
    return document


def write_official(path: Path, case: LoadedScenario, placement: Placement) -> None:
    """Write a placement as the official tools write their results.

    Raises:
        UsageError: the graph is not in the official format.
        StoreError: the file cannot be written.
    """
    from coarsen.reading.graph.msr_files import official_result

    loads, _ = _official_loads(case, placement)
    document = official_document(case.scenario.graph)
    turns = turns_of(placement, _calls_allowed(case))
    write_json(path, official_result(document, case.graph.names, (placement.device, turns), loads, case.topology))


def read_official(path: Path, case: LoadedScenario) -> tuple[Placement, OfficialRecord]:
    """Return (the placement of a result of the official tools, what it states and what is wrong with it).

    Raises:
        UsageError: it is no such result, or of another graph.
    """
    from coarsen.reading.graph.msr_files import placed_by

    document = official_document(case.scenario.graph)
    calls = _calls_allowed(case)
    placed, turns, result = placed_by(read_object(path, "a result"), document, case.topology, calls, where=str(path))
    placement = Placement.from_json(placed, case.graph.names, case.topology.names)
    if calls > 1:
        turn = np.array([turns[name] for name in case.graph.names], np.float64)
        placement = Placement(placement.device, placement.devices, turn)
    loads, faults = _official_loads(case, placement)
    stated_ms = result.get(loads.key, -1.0)
    if stated_ms >= 0 and abs(stated_ms * MS - loads.value_s) > CLOSE * loads.value_s:
        faults.append(f"it states a {WORDS[loads.key]} of {stated_ms:g} ms, and has {loads.value_s / MS:g} ms")
    stated_s = stated_ms * MS if stated_ms >= 0 else None
    return placement, {"stated_s": stated_s, "checked_s": loads.value_s, "faults": faults}


def _calls_allowed(case: LoadedScenario) -> int:
    """Return how often each accelerator may be called; 1 where the evaluator does not count calls."""
    return case.scenario.measurer().execution.call_limit or 1


def _official_loads(case: LoadedScenario, placement: Placement) -> tuple[OfficialLoads, list[str]]:
    """Return (what a placement comes to as the official tools say it, what is wrong with it, in words)."""
    from coarsen.reading.graph.msr_files import OfficialLoads

    device, names = placement.device.tolist(), case.topology.names
    execution = case.scenario.measurer().execution
    if execution.call_limit is None:
        load_s, faults = checked_loads(case.problem, device)
        value_s = max(load_s)
        if execution.stage_rules is not None and execution.stage_rules.passes == "apart":
            backward = backward_operations(case.graph)
            value_s = sum(max(checked_loads(case.problem, device, mine.tolist())[0]) for mine in (~backward, backward))
        return OfficialLoads("maxLoad", value_s, {(d, 0): s for d, s in enumerate(load_s)}), faults
    loads = checked_latency(case.problem, device, turns_of(placement, _calls_allowed(case)))
    lasts = {(names.index(call["device"]), call["number"]): call["end_s"] - call["start_s"] for call in loads.calls}
    on_cpus = {(d, 0): s for d, s in enumerate(loads.cpu_s) if case.topology.devices[d].kind == "cpu"}
    return OfficialLoads("totalLatency", loads.value_s, lasts | on_cpus, _calls_allowed(case)), loads.faults
