"""Results of the tools published with Tarnawski et al.: written from placements, and checked as placements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.store import write_json
from pipeline.core.errors import UsageError
from pipeline.core.placement import Placement
from pipeline.offline.records import OfficialRecord
from pipeline.offline.scenario import LoadedScenario, read_object
from pipeline.offline.stages import checked_loads

CLOSE = 1e-4  # the share by which a stated load may differ: costs of edges become whole bytes
MS = 1e-3


def official_document(graph: str) -> Mapping[str, Any]:
    """Return the document of a graph in the official format.

    Raises:
        UsageError: the graph is something else.
    """
    from coarsen.reading.msr import is_msr

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
    from coarsen.reading.msr_files import official_result

    load_s, _ = checked_loads(case.problem, placement.device.tolist())
    document = official_document(case.scenario.graph)
    write_json(path, official_result(document, case.graph.names, placement.device, load_s, case.topology))


def read_official(path: Path, case: LoadedScenario) -> tuple[Placement, OfficialRecord]:
    """Return (the placement of a result of the official tools, what it states and what is wrong with it).

    Raises:
        UsageError: it is no such result, or of another graph.
    """
    from coarsen.reading.msr_files import placed_by

    document = official_document(case.scenario.graph)
    placed, result = placed_by(read_object(path, "a result"), document, case.topology, where=str(path))
    placement = Placement.from_json(placed, case.graph.names, case.topology.names)
    load_s, faults = checked_loads(case.problem, placement.device.tolist())
    stated_ms = result.get("maxLoad", -1.0)
    if stated_ms >= 0 and abs(stated_ms * MS - max(load_s)) > CLOSE * max(load_s):
        faults.append(f"it states a load of {stated_ms:g} ms, and has {max(load_s) / MS:g} ms")
    stated_s = stated_ms * MS if stated_ms >= 0 else None
    return placement, {"stated_s": stated_s, "checked_s": max(load_s), "faults": faults}
