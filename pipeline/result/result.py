"""What a run found: the candidates, which is best, and by how much."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.core.devices import CostTable, DeviceSpec
from pipeline.core.errors import StoreError
from pipeline.core.estimates import LatencyEstimate
from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.placing.records import Compared, ContestRecord, MeasuredRow
from pipeline.placing.shortlist import check_something_ran
from pipeline.progress.watchers import CURVE, write_training
from pipeline.result.accuracy import accuracy_inputs
from pipeline.result.deployment import SPLIT, Deployment, runs_in_segments
from pipeline.result.notes import device_notes, partition_notes, placing_notes, reference_notes, sequence_notes
from pipeline.result.onnx_copy import ONNX, OUT_MODEL, write_onnx
from pipeline.result.records import (
    CandidateRecord,
    DeviceRecord,
    ModelRecord,
    PlacementRecord,
    RegisteredRecord,
    ResultRecord,
    SourceRecord,
    StageRecord,
    to_json,
)
from pipeline.result.result_text import describe_candidate, time_shares
from pipeline.result.second_best import second_best_devices
from pipeline.result.verdict import Limits, decide_contest, decide_predicted
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.shared.checks import CHECKS, FLOAT, NORMALISED, REFERENCE, SHAKEN
from pipeline.shared.measured_sizes import SIZES, load_sizes, measured_at
from pipeline.shared.model_forms import FORMS, ModelForm, form_file, form_graph, form_notes
from pipeline.shared.model_inputs import GIVEN, SEQUENCE
from pipeline.stages.host import HostMachine, ModelFile, installed_version
from pipeline.store.store import Entry, file_digest, write_json
from pipeline.store.task import Outcome
from pipeline.system.private_files import copy_whole

if TYPE_CHECKING:
    import openvino as ov

SCHEMA: Literal["placewright.result/1"] = "placewright.result/1"
KEPT = "checks.zip"  # in a run directory: what emitted files are compared with
KEPT_CHECKS = (CHECKS, REFERENCE, FLOAT, SHAKEN, NORMALISED, GIVEN, SEQUENCE)
PACKAGES = ("placewright", "openvino", "onnxruntime", "torch", "torch-geometric", "pymetis", "scikit-learn", "numpy")


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of `tune`: the run directory and what its result.json holds."""

    path: Path
    record: ResultRecord

    @classmethod
    def load(cls, path: Path) -> Result:
        """Return the result in a run directory.

        Raises:
            StoreError: there is none.
        """
        file = path / "result.json"
        if not file.exists():
            raise StoreError(f"{path} has no result.", "Run `placewright tune` or `placewright measure` first.")
        try:
            document = payload.read_json(file)
            if document["schema"] == SCHEMA:
                return cls(path, payload.from_json(ResultRecord, document))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file} is damaged.", "Write it again with `placewright measure`.") from error
        raise StoreError(
            f"{file} is of schema {document['schema']!r}; this version reads {SCHEMA}.", "Run `placewright tune`."
        )

    @property
    def document(self) -> dict[str, Any]:
        """Return the content of result.json."""
        return to_json(self.record)

    @property
    def best(self) -> CandidateRecord:
        """Return the record of the best candidate."""
        return next(c for c in self.record.candidates if c.name == self.record.best)

    @property
    def verdict(self) -> str:
        """Return the verdict in one sentence."""
        return self.record.verdict

    @property
    def placement(self) -> dict[str, str]:
        """Return {operation name: device name} of the best candidate."""
        return dict(payload.read_json(self.path / "placement.json")["placement"])

    @property
    def priority(self) -> dict[str, float] | None:
        """Return {operation name: number} of the best candidate, the smaller first; None if it states no order."""
        order = payload.read_json(self.path / "placement.json").get("priority")
        return None if order is None else dict(order)

    def compile(self) -> ov.CompiledModel:
        """Return the model compiled by OpenVINO, running the best candidate.

        Raises:
            UsageError: it runs in segments, or by ONNX Runtime; `pipeline.load` runs those.
        """
        from runtime.measuring.process.deploy import compile_placed

        Deployment.load(self.path).check_whole("which one compiled model cannot")
        return compile_placed(self.path / "placed.xml", payload.read_json(self.path / "placement.json"))


def read_versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    return {name: installed_version(name) for name in PACKAGES}


def candidate_records(
    measured: Sequence[MeasuredRow], objective: str, profiled: tuple[Graph, CostTable] | None = None
) -> list[CandidateRecord]:
    """Return the documented record of every candidate, fastest first, failed ones last.

    profiled: the graph and what its operations take; None to leave out which device does how much.
    """
    rows = []
    for row in measured:
        shares = time_shares(row["placement"], *profiled) if profiled and row["placement"] else {}
        derived = {
            "devices_used": row.get("executed_on", []),
            "subgraphs": row.get("subgraphs"),
            "latency_s": _latency_record(row),
            "shares": shares,
            "about": describe_candidate(row, shares) if profiled else "",
            "rate": _inference_rate(row, objective),
            "settings": _device_properties(row),
        }
        rows.append(payload.from_json(CandidateRecord, {**row, **derived}))
    return sorted(rows, key=_slowness_key)


def _device_properties(row: MeasuredRow) -> dict[str, dict[str, str]]:
    """Return the properties of a row's devices, by name, and of its target where that has some of its own."""
    settings = {d["name"]: dict(d["properties"]) for d in row.get("devices", ())}
    own = dict(row.get("properties", {}))
    return settings | ({row["target"]: {**settings.get(row["target"], {}), **own}} if own else {})


def _slowness_key(candidate: CandidateRecord) -> tuple[bool, float]:
    """Return what candidates are sorted by: how they compare with the control, else their latency; failed ones last."""
    if candidate.latency_s is None:
        return True, math.inf
    return False, -candidate.times_as_fast if candidate.times_as_fast is not None else candidate.latency_s.median


def _latency_record(row: MeasuredRow) -> LatencyEstimate | Mapping[str, Any] | None:
    """Return the latency of a row; one that a simulator or a file gave has no interval."""
    if row["failed"] or not row["samples_s"]:
        return None
    return row.get("latency_s") or LatencyEstimate(float(np.median(row["samples_s"])), None, None)


def _inference_rate(row: MeasuredRow, objective: str) -> float | None:
    """Return inferences per second."""
    if row["failed"] or not row.get("samples_s"):
        return None
    if "rate" in row:
        return row["rate"]
    seconds = np.median(row["samples_s"]) if objective == "throughput" else np.mean(row.get("latencies_s") or [0.0])
    return float(1 / seconds) if seconds > 0 else None


def write_result(
    path: Path, model: ModelFile, settings: Settings, machine: HostMachine, outcomes: Mapping[str, Outcome]
) -> Result:
    """Write result.json, placement.json, the placed model and what a report is drawn from; return the result.

    Raises:
        OutputMismatchError: all candidates that ran gave wrong outputs.
        MeasurementError: nothing ran.
    """
    entry = outcomes["measure"].entry
    document: Compared = payload.read_json(entry.path("measurements.json"))
    measured, asked = document["rows"], settings.measure
    graph = payload.load_graph(outcomes["read"].entry.path("graph.npz"))
    costs, topology = payload.load_profile(outcomes["profile"].entry.path("profile.npz"))
    check_something_ran(measured)
    limits = Limits(asked.p99_s, asked.min_rate, asked.max_memory_bytes, asked.max_load_s)
    rows = [
        replace(row, limit=limits.broken_by(row)) if row.latency_s is not None else row
        for row in candidate_records(measured, asked.objective, (graph, costs))
    ]
    contest = payload.from_json(ContestRecord, document["contest"]) if document["contest"] else None
    verdict = decide_predicted(rows) if contest is None else decide_contest(rows, contest, limits)
    winner = next(m for m in measured if m["name"] == verdict.best)
    best = next(row for row in rows if row.name == verdict.best)
    judged = accuracy_inputs(best, given=bool(settings.coarsen.input))
    ran = payload.load_graph(outcomes["read"].entry.path(form_graph(winner.get("rewrite", ""))))
    onnx = model.path if best.runtime == "onnxruntime" else None
    files = write_placed(
        path, outcomes["read"].entry, ran.names, winner, model.sha256, objective=asked.objective, onnx=onnx
    )
    files |= write_segments(path, graph, winner)
    files |= write_checks(path, outcomes["read"].entry)
    files |= write_samples(path, measured)
    files |= write_sources(path, outcomes, winner.get("rewrite", ""))
    files |= write_training(
        path, outcomes["place"].entry, drawn=_recorded_place_key(path) == (outcomes["place"].task.key, read_versions())
    )
    used = [d.to_json() for d in topology.devices]
    notes = _reader_notes(outcomes, used)
    record = ResultRecord(
        schema=SCHEMA,
        model=ModelRecord(str(model.path), model.sha256),
        devices=[DeviceRecord.of(d) for d in topology.devices],
        fingerprint=machine.fingerprint,
        hardware=dict(machine.facts),
        versions=read_versions(),
        seed=settings.seed,
        stages=[StageRecord(s, o.task.name, o.task.key, o.ran, o.why, o.seconds) for s, o in outcomes.items()],
        searches=payload.read_json(outcomes["place"].entry.path("searches.json")),
        candidates=rows,
        best=verdict.best,
        verdict=f"{_assumed_sizes_note(outcomes['read'], graph)}{verdict.text} {judged}".strip(),
        contest=contest,
        notes=[
            *(*verdict.notes, *notes, *device_notes(outcomes), *partition_notes(outcomes)),
            *placing_notes(outcomes["place"], topology.p),
        ],
        speedup_over_best_single=verdict.gain,
        regret=second_best_devices(settings, graph, (costs, topology), winner),
        files=files,
    )
    write_json(path / "result.json", to_json(record))
    return Result(path, record)


def _assumed_sizes_note(read: Outcome, graph: Graph) -> str:
    """Return the sentence on sizes of inputs that nobody gave; "" if there are none."""
    from coarsen.reading.sizes.shapes import assumption_of

    inputs = [i for i, kind in enumerate(graph.op_type) if graph.type_names[kind] == "Parameter"]
    is_open = any(-1 in graph.shape(i)[1:] for i in inputs)  # the first counts inferences
    measured = 0 if GIVEN in read.entry.files else read.task.params.get("dynamic_size", 0)
    return assumption_of(payload.read_json(read.entry.path("shapes.json")), open_size=measured if is_open else 0)


def _reader_notes(outcomes: Mapping[str, Outcome], used: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in sentences what else a reader should know: sizes that were assumed, precisions that were left out."""
    from coarsen.reading.rewriting import rewrites
    from coarsen.reading.sizes import shapes

    read, precisions = outcomes["read"], outcomes.get("precisions")
    assumed = shapes.shape_notes(payload.read_json(read.entry.path("shapes.json"))) + sequence_notes(read.entry)
    assumed += reference_notes(read.entry)
    if SIZES in read.entry.files:
        assumed.append(measured_at(load_sizes(read.entry.path(SIZES).parent)))
    if rewrites.REWRITTEN in read.entry.files:
        assumed += rewrites.rewrite_notes(payload.read_json(read.entry.path(rewrites.REWRITTEN)))
    if FORMS in read.entry.files:
        assumed += form_notes([ModelForm.from_json(row) for row in payload.read_json(read.entry.path(FORMS))])
    if precisions is None:
        return assumed
    from runtime.measuring.profile.precisions import precision_notes

    asked = outcomes["profile"].task.params["devices"]
    return assumed + precision_notes(payload.read_json(precisions.entry.path("precisions.json")), asked, used)


def _recorded_place_key(path: Path) -> tuple[str, dict[str, str]] | None:
    """Return the key of the place artifact that the result in a run directory tells of, and by which versions."""
    try:
        document = payload.read_json(path / "result.json")
        return next(s["key"] for s in document["stages"] if s["stage"] == "place"), document["versions"]
    except (OSError, ValueError, KeyError, TypeError, StopIteration):  # there is none, or nothing that can be read
        return None


def write_samples(path: Path, measured: Sequence[MeasuredRow]) -> dict[str, str]:
    """Write samples.npz, the latencies of every candidate that has any; return its name by role.

    Arrays: names, uint8, their names as a JSON list; then float64 [r] per position in it, `0` those in turns with
    others, `0_alone` those of running on its own.
    """
    there = [row for row in measured if row.get("latencies_s")]
    if not there:
        return {}
    text = json.dumps([row["name"] for row in there]).encode()
    arrays = {"names": np.frombuffer(text, dtype=np.uint8)}
    for i, row in enumerate(there):
        arrays |= {str(i): np.array(row["latencies_s"])}
        arrays |= {f"{i}_alone": np.array(row["alone_s"])} if row.get("alone_s") else {}
    payload.save_arrays(path / "samples.npz", arrays)
    return {"samples": "samples.npz"}


def write_checks(path: Path, read: Entry) -> dict[str, str]:
    """Put what outputs were compared with into one file of the run directory; return its name by role, {} if none is.

    It holds files of the read stage: inputs and outputs by kind, arrays that a user gave, and how long a sequence is.
    """
    kept = [name for name in KEPT_CHECKS if name in read.files] if REFERENCE in read.files else []
    if not kept:
        (path / KEPT).unlink(missing_ok=True)
        return {}
    with zipfile.ZipFile(path / KEPT, "w") as written:
        for name in kept:
            written.write(read.path(name), name)
    return {"checks": KEPT}


def write_sources(path: Path, outcomes: Mapping[str, Outcome], rewrite: str = "") -> dict[str, str]:
    """Copy what the report is drawn from beside the result: the graph, its costs, the curve; return names by role.

    rewrite: the form of the model that the graph is to be of.
    """
    sources = {"graph": ("read", "graph.npz"), "profile": ("profile", "profile.npz"), "curve_rows": ("place", CURVE)}
    written = {}
    for role, (stage, name) in sources.items():
        entry = outcomes[stage].entry
        source = form_graph(rewrite) if role == "graph" else name
        if source in entry.files:
            written[role] = name
            if not (path / name).is_file() or file_digest(path / name) != entry.files[source]:
                _place_file(entry.path(source), path / name)
    return written


def write_placed(
    path: Path,
    read: Entry,
    names: Sequence[str],
    best: MeasuredRow,
    sha256: str,
    *,
    objective: str = "latency",
    onnx: Path | None = None,
) -> dict[str, str]:
    """Write placed.xml, placed.bin and placement.json; return their names by role.

    names: of the operations. sha256: of the model as the user gave it. onnx: that file where ONNX Runtime is to run it;
    a copy of it then takes the place of the first two.
    """
    model = form_file(Path("model.xml"), best.get("rewrite", "")).name
    files = {"model": f"{ONNX}/{OUT_MODEL}"} if onnx else {"model": "placed.xml", "weights": "placed.bin"}
    shutil.rmtree(path / ONNX, ignore_errors=True)  # of an earlier answer, as the next two
    if onnx is not None:
        write_onnx(onnx, path / ONNX)
        for name in ("placed.xml", "placed.bin"):
            (path / name).unlink(missing_ok=True)
    elif best.get("batch", 1) > 1:
        from runtime.measuring.process.batching import save_batched

        names = save_batched(read.path(model), path / "placed.xml", best["batch"])
    else:
        _copy_model(path, read, model)
    placement = best["placement"]
    if placement is None:  # AUTO and HETERO on their own decide at run time where operations go, and ONNX Runtime
        placement = (
            dict.fromkeys(names, best["devices"][0]["name"]) if len(best["devices"]) == 1 and onnx is None else {}
        )
    record = PlacementRecord(
        schema="placewright.placement/1",
        model=SourceRecord(files["model"], sha256),
        candidate=best["name"],
        target=best["target"],
        properties=dict(best["properties"]),
        devices={
            d["name"]: RegisteredRecord(d["openvino_name"], d["plugin"], dict(d["properties"])) for d in best["devices"]
        },
        placement=placement,
        priority=best.get("priority"),
        requests=best.get("requests", 1),
        batch=best.get("batch", 1),
        objective=objective,
        shapes={c["name"]: c["shape"] for c in payload.read_json(read.path("shapes.json"))},
        runner=best.get("runner", ""),
        rewrite=best.get("rewrite", ""),
        runtime=best.get("runtime", "openvino"),
    )
    write_json(path / "placement.json", to_json(record))
    return {**files, "placement": "placement.json", "result": "result.json", "report": "report.html"}


def _copy_model(path: Path, read: Entry, model: str) -> None:
    """Copy an IR of the read stage into the run directory, unless it is there."""
    for source, name in ((model, "placed.xml"), (str(Path(model).with_suffix(".bin")), "placed.bin")):
        if not (path / name).is_file() or file_digest(path / name) != read.files[source]:
            _place_file(read.path(source), path / name)


def write_segments(path: Path, graph: Graph, best: MeasuredRow) -> dict[str, str]:
    """Write the folder of the segments in which the best candidate runs; return its name by role, {} without any."""
    folder = path / SPLIT
    if not runs_in_segments(best["target"]):
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier answer
        return {}
    from runtime.executor.splitting import how_to_run, split_file

    devices = tuple(DeviceSpec(**d) for d in best["devices"])
    placement = Placement.from_document(best, graph.names, tuple(d.name for d in devices))
    how = how_to_run(best["runner"], best["requests"])
    split_file(path / "placed.xml", graph, placement, devices, folder, how)
    return {"segments": SPLIT}


def _place_file(source: Path, target: Path) -> None:
    """Copy a store file into the run directory, whole or not at all."""
    try:
        copy_whole(source, target)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written: {error.strerror}.", "Free disk space, or use another folder."
        ) from error
