"""The records of a run directory, read back for a report; what an earlier version did not write is absent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import PlacewrightError, StoreError, UsageError
from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.core.simulation import Timeline
from pipeline.progress.curve import read_rows
from pipeline.report.placed_graph import PlacedGraph
from pipeline.report.timeline import MEASURED, measured_timeline
from pipeline.result.deployment import PLACEMENT, runs_in_segments
from pipeline.result.directory import ManifestRecord, RunDirectory
from pipeline.result.records import CandidateRecord, PlacementRecord, ResultRecord
from pipeline.result.result import Result
from pipeline.result.result_text import model_name
from pipeline.result.second_best import simulator_of_answer
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.store.store import file_digest, json_digest

VERSION = 4  # of the page; one that an earlier version made is made again
SAMPLES, GRAPH, PROFILE, CURVE = "samples.npz", "graph.npz", "profile.npz", "curve.jsonl"
TAKEN = "latency"
UNPLACED = "left to the runtime"


@dataclass(frozen=True, slots=True, eq=False)
class RunRecords:
    """What a finished run left.

    samples: candidate -> float64 [r], seconds of its inferences. graph, profile: None where a version made the run that
    did not keep them. curve: rows of the learning curves. measured: None where no timeline was measured.
    """

    path: Path
    result: ResultRecord
    manifest: ManifestRecord
    placement: PlacementRecord
    samples: Mapping[str, Float64]
    graph: Graph | None
    profile: tuple[CostTable, Topology] | None
    curve: Sequence[Mapping[str, Any]]
    measured: Timeline | None

    @classmethod
    def load(cls, path: Path) -> RunRecords:
        """Return the records of a run directory.

        Raises:
            StoreError: it holds no finished run, or a file is damaged.
        """
        result = Result.load(path).record
        manifest = RunDirectory(path).manifest()
        if manifest is None:
            raise StoreError(f"{path} holds a result and no manifest.", "Run `placewright tune` again.")
        try:
            graph = payload.load_graph(path / GRAPH) if (path / GRAPH).is_file() else None
            profile = payload.load_profile(path / PROFILE) if (path / PROFILE).is_file() else None
            placement = payload.from_json(PlacementRecord, payload.read_json(path / PLACEMENT))
            samples = _read_samples(path / SAMPLES)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"A file of {path} is damaged: {error}.", f"Write it again: placewright measure --run {path}"
            ) from error
        curve = read_rows(path / CURVE) if (path / CURVE).is_file() else []
        return cls(path, result, manifest, placement, samples, graph, profile, curve, measured_timeline(path))

    @property
    def best(self) -> CandidateRecord:
        """Return the best candidate."""
        return next(c for c in self.result.candidates if c.name == self.result.best)

    @property
    def control(self) -> CandidateRecord | None:
        """Return what candidates are compared with: the best baseline of one device, None if there is none."""
        known = {c.name: c for c in self.result.candidates}
        if self.result.contest is not None:
            return known.get(self.result.contest.control)
        return next((c for c in self.result.candidates if c.single and c.latency_s is not None), None)

    @property
    def beside(self) -> CandidateRecord | None:
        """Return what the answer is set beside: the control, or the plug-in's default where that is the answer."""
        default = self.result.contest.default if self.result.contest is not None else ""
        known = (self.control, next((c for c in self.result.candidates if c.name == default), None))
        return next((c for c in known if c is not None and c.name != self.best.name), None)

    @property
    def counts_rate(self) -> bool:
        """Return whether inferences per second were compared, so that the time of one is their inverse."""
        return self.placement.objective == "throughput"

    @property
    def better(self) -> str:
        """Return what ratios count, as in "1.5 times ... as": a candidate is as fast, or gives as many inferences."""
        return "as many inferences per second" if self.counts_rate else "as fast"

    @property
    def taken(self) -> str:
        """Return what the seconds of a candidate are called."""
        return "time per inference" if self.counts_rate else TAKEN

    @property
    def in_segments(self) -> bool:
        """Return whether the answer runs as several models, which devices may run at the same time."""
        return runs_in_segments(self.placement.target)

    def placed_graph(self) -> PlacedGraph | None:
        """Return the graph under the best placement, None where the run did not keep it."""
        if self.graph is None:
            return None
        return PlacedGraph.of(self.graph, self.placement.placement, self.profile, UNPLACED)

    def timeline(self) -> Timeline | str:
        """Return the best placement's timeline in a simulator, or why there is none.

        It is the one that the run searched with, or that of a dataflow where the answer runs in segments.
        """
        if self.graph is None or self.profile is None:
            return "This run was made by a version that did not store its graph and costs."
        if self.placement.rewrite:
            return "The answer runs a rewritten model, whose operations were not profiled one by one."
        try:
            placement = self._on_profiled(self.profile[1])
            simulator = simulator_of_answer(self._settings(), self.graph, self.profile, in_segments=self.in_segments)
            return "The run's evaluator is not a simulator." if simulator is None else simulator.timeline(placement)
        except PlacewrightError as error:
            return error.cause

    def _on_profiled(self, topology: Topology) -> Placement:
        """Return the best placement on the devices that were profiled.

        Raises:
            UsageError: it uses another.
        """
        record = self.placement
        if not record.placement:
            raise UsageError("The runtime chooses the devices, so there is no placement to predict.")
        unprofiled = set(record.placement.values()) - set(topology.names)
        if unprofiled:
            names = ", ".join(sorted(unprofiled))
            raise UsageError(f"{names} was measured as a whole; its operations were not profiled one by one.")
        document = {"placement": record.placement, "priority": record.priority}
        return Placement.from_document(document, self.graph.names if self.graph else (), topology.names)

    def _settings(self) -> Settings:
        return Settings.from_json(self.manifest["settings"])

    def reproduce(self) -> str:
        """Return the command that makes this run again: the model, and every setting that is not the default.

        Raises:
            UsageError: the settings are of a version with other keys.
        """
        settings, default = self._settings(), Settings().to_json()
        told = settings.to_json()
        words = ["placewright", "tune", model_name(self.manifest["model"]["path"]), "--out", str(self.path)]
        words += ["--devices", ",".join(told["devices"])] if told["devices"] else []
        words += ["--budget", f"{settings.budget_s:g}s", "--seed", str(settings.seed)]
        for section, values in told.items():
            if isinstance(values, dict) and section != "params":
                changed = {k: v for k, v in values.items() if v != default[section][k]}
                words += [w for k, v in changed.items() for w in ("--set", f"{section}.{k}={_format_setting(v)}")]
        for stage, implementations in told["params"].items():
            for name, values in implementations.items():
                words += [w for k, v in values.items() for w in ("--set", f"{stage}.{name}.{k}={_format_setting(v)}")]
        return shlex.join(words)


def page_key(path: Path, result: ResultRecord) -> str:
    """Return a digest of all that the page of a run shows, but for when and why its stages ran."""
    stages = {s.stage: s.key for s in result.stages}
    measured = path / MEASURED
    told: list[Any] = [VERSION, stages, result.versions, result.best, result.verdict, str(path)]
    told.append(file_digest(measured) if measured.is_file() else None)
    return json_digest(told)[:16]


def _format_setting(value: Any) -> str:
    """Return a value as --set takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_format_setting, value))}]"
    return str(value)


def _read_samples(path: Path) -> dict[str, Float64]:
    """Return the latencies of every candidate that has some."""
    if not path.is_file():
        return {}
    arrays = payload.load_arrays(path)
    names = json.loads(arrays["names"].tobytes().decode())
    return {name: arrays[str(i)] for i, name in enumerate(names)}
