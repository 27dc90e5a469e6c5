"""JSON schemas of the files that are written and read, from the types they are written and read with."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pipeline.core.errors import UnknownNameError

TYPES: Mapping[str, str] = {
    "result": "pipeline.result.records:ResultRecord",
    "placement": "pipeline.result.records:PlacementRecord",
    "manifest": "pipeline.result.directory:ManifestRecord",
    "split": "runtime.executor.placed.manifest:SplitManifest",
    "where": "pipeline.deploy.where:WhereRecord",
    "where-outputs": "pipeline.deploy.where_outputs:WhereOutputsRecord",
    "compare": "pipeline.deploy.compare:ComparisonRecord",
    "gate": "pipeline.gate.gate:GateRecord",
    "calibration": "pipeline.result.records:CalibrationRecord",
    "predict": "pipeline.deploy.predict:PredictRecord",
    "machine": "runtime.calibration.machine_lines:MachineLine",
    "search": "pipeline.offline.records:SearchDocument",
    "simulate": "pipeline.offline.records:SimulateRecord",
    "bound": "pipeline.offline.records:BoundRecord",
    "scenario": "pipeline.scenario.scenario_file:ScenarioDocument",
    "scenario-result": "pipeline.scenario.records:ScenarioResult",
    "worth": "pipeline.placing.worth:WorthRecord",
    "graph": "coarsen.reading.graph.document:GraphDocument",
    "topology": "runtime.machines.topology_file:TopologyDocument",
    "costs": "runtime.machines.cost_file:Costs",
    "timeline": "pipeline.report.timeline:TimelineRecord",
    "jobs": "pipeline.fleet.jobs:JobsFile",
    "batch": "pipeline.fleet.batch:JobRow",
    "devices": "pipeline.cli.inspect_commands:DevicesDocument",
    "doctor": "pipeline.cli.inspect_commands:DoctorDocument",
}


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a kind of file.

    Raises:
        UnknownNameError: there is no such kind.
    """
    from pydantic import TypeAdapter

    if name not in TYPES:
        raise UnknownNameError("schema", name, TYPES)
    module, _, attribute = TYPES[name].partition(":")
    schema: dict[str, Any] = TypeAdapter(getattr(importlib.import_module(module), attribute)).json_schema()
    tag = schema.get("properties", {}).get("schema", {}).get("const")
    version = tag.rpartition("/")[2] if isinstance(tag, str) else "1"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:placewright.{name}/{version}",
        **schema,
    }
