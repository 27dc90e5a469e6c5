"""The folder of one run, which a person looks into: it holds the manifest, and the result of its own run or none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from pipeline.core.errors import StoreError
from pipeline.settings.config import Settings
from pipeline.shared.payload import from_json, read_json
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.store.store import write_json
from pipeline.store.task import Outcome, Task

SCHEMA = 1
MANIFEST = "manifest.json"
RESULT = "result.json"


class ModelEntry(TypedDict):
    """The model of a run."""

    path: str
    sha256: str


class MachineEntry(TypedDict):
    """The machine that a run measured on."""

    fingerprint: str
    devices: list[Mapping[str, Any]]


class StageEntry(TypedDict):
    """A finished stage: the key of its artifact, what that key was made of, and why it ran or did not."""

    name: str
    key: str
    parts: dict[str, Any]
    ran: bool
    why: str
    seconds: float
    at: float


class ManifestRecord(TypedDict):
    """manifest.json: what a folder is the run of, and how far that has come."""

    schema: int
    model: ModelEntry
    settings: dict[str, Any]
    machine: NotRequired[MachineEntry]
    stages: dict[str, StageEntry]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one run: its manifest, and at the end the result."""

    path: Path

    def manifest(self) -> ManifestRecord | None:
        """Return what the folder says about its run, or None if it holds none.

        Raises:
            StoreError: the manifest is damaged or of another schema.
        """
        path = self.path / MANIFEST
        if not path.exists():
            return None
        try:
            document: ManifestRecord = read_json(path)
            schema = document["schema"]
            if schema == SCHEMA:
                from_json(ManifestRecord, document)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged.", "Delete the run directory, or use another.") from error
        if schema != SCHEMA:
            raise StoreError(
                f"{self.path} was written with schema {schema}; this version writes {SCHEMA}.",
                "Use another run directory.",
            )
        return document

    def check_for(self, model: ModelFile) -> ManifestRecord | None:
        """Return the manifest of this model's run in this folder, or None if it holds none; nothing is written.

        Raises:
            StoreError: the folder holds the run of another model, or its manifest cannot be used.
        """
        document = self.manifest()
        # Where no stage has finished, the model may have been at fault and have been mended since.
        if document is not None and document["stages"] and document["model"]["sha256"] != model.sha256:
            raise StoreError(
                f"{self.path} is a run of another model, {document['model']['path']}.",
                "Use another run directory.",
            )
        return document

    def open_for(
        self, model: ModelFile, settings: Settings, machine: HostMachine | None, tasks: Sequence[Task]
    ) -> ManifestRecord:
        """Return the manifest of this model's run in this folder, begun now if there is none.

        A result that is not of these tasks is taken away, so that what lies here belongs together.

        Raises:
            StoreError: the folder holds the run of another model, or cannot be written.
        """
        before = self.check_for(model)
        same_settings = before is not None and before["settings"] == settings.to_json()
        take_away_stale(self.path, {t.stage: t.key for t in tasks}, same_settings=same_settings)
        known: ManifestRecord = {
            "schema": SCHEMA,
            "model": {"path": str(model.path.resolve()), "sha256": model.sha256},
            "settings": settings.to_json(),
            "stages": {} if before is None else before["stages"],
        }
        if machine is not None:
            used = next((t.params["devices"] for t in tasks if t.stage == "profile"), list(machine.devices))
            known["machine"] = {"fingerprint": machine.fingerprint, "devices": used}
        write_json(self.path / MANIFEST, known)
        return known

    def record(self, manifest: ManifestRecord, outcome: Outcome) -> None:
        """Add a finished stage to the manifest."""
        task = outcome.task
        manifest["stages"][task.stage] = {
            "name": task.name,
            "key": task.key,
            "parts": task.parts,
            "ran": outcome.ran,
            "why": outcome.why,
            "seconds": outcome.seconds,
            "at": time.time(),
        }
        write_json(self.path / MANIFEST, manifest)


def previous_parts(manifest: ManifestRecord | None) -> dict[str, Any]:
    """Return stage -> parts of its key, as the manifest recorded them."""
    return {} if manifest is None else {stage: record["parts"] for stage, record in manifest["stages"].items()}


def take_away_stale(folder: Path, keys: Mapping[str, str], *, same_settings: bool) -> None:
    """Remove result.json and the files it lists unless they are of a run with these keys.

    keys: stage -> key of what is to run; it may end before the last stage, and then `same_settings` says whether what
    comes after it is as before. The result goes last, so that an interrupted removal is completed the next time.

    Raises:
        StoreError: a file cannot be removed.
    """
    path = folder / RESULT
    if not path.exists():
        return
    known, names = _recorded_keys(path)
    if (same_settings or keys.keys() == known.keys()) and keys.items() <= known.items():
        return
    try:
        for name in (*names, RESULT):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{error.filename}, of a run before, cannot be removed: {error.strerror}.", "Use another run directory."
        ) from error


def _recorded_keys(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return stage -> key of a result and the files it lists in its own folder; nothing if it is damaged."""
    try:
        document: Mapping[str, Any] = read_json(path)
        keys = {s["stage"]: s["key"] for s in document["stages"]}
        return keys, [n for n in document["files"].values() if Path(n).name == n and n != RESULT]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, []
