"""The jobs file: groups of models, devices, settings and seeds, and the jobs that their products are."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from pipeline.core.errors import UsageError
from pipeline.settings.config import Settings, flatten_settings, read_toml
from pipeline.shared.validation import Faults, strict_table

ONE, EVERY = "one", "every"  # on how many kinds of machines of a fleet a job runs
NAMED_BY = 8  # digits of a fingerprint that name a kind of machine
LONGEST_NAME = 200  # bytes; file systems take 255, and temporary names add to it
REMEDY = (
    'Write [[jobs]] with models = ["a.xml", "zoo:resnet50"], and maybe name = "x", devices = ["CPU"], seeds = [0, 1], '
    'settings = [{"place.evaluations" = 100}, {}] and machines = "every".'
)
NO_NAMES = '/\\:*?"<>|'  # what Windows takes in no name; the folder of a batch may be looked at there


@strict_table()
class JobsEntry(TypedDict, total=False):
    """A [[jobs]]: the product of its models, devices, settings and seeds; devices are those of the settings if none."""

    name: str
    models: Required[Annotated[list[str], Field(min_length=1)]]
    devices: Annotated[list[str], Field(min_length=1)]
    settings: Annotated[list[dict[str, Any]], Field(min_length=1)]
    seeds: Annotated[list[int], Field(min_length=1)]
    machines: Literal["one", "every"]


@strict_table()
class JobsFile(TypedDict, total=False):
    """The file of a batch. defaults: settings of all jobs."""

    defaults: dict[str, Any]
    jobs: Required[Annotated[list[JobsEntry], Field(min_length=1)]]


@dataclass(frozen=True, slots=True)
class Job:
    """One model, or scenario, on one set of devices with one set of settings.

    machines: EVERY to run it once on each kind of machine that the fleet has, else ONE. kind: the fingerprint of the
    machines that it must run on, "" for any that has its devices. asked: what the job is called apart from its kind.
    """

    name: str
    model: str
    settings: Settings
    changed: Mapping[str, Any]
    machines: str = ONE
    kind: str = ""
    asked: str = ""

    @property
    def scenario(self) -> bool:
        """Return whether it is several models at once, in a file of their own."""
        return self.model.endswith(".toml")

    def on(self, kind: str) -> Job:
        """Return the job for one kind of machine."""
        return replace(self, name=f"{self.name}-{kind[:NAMED_BY]}", kind=kind, asked=self.name)


def read_jobs(path: Path) -> list[Job]:
    """Return the jobs of a TOML file.

    Raises:
        UsageError: the file cannot be read, or keys are unknown or wrong; the job is named.
    """
    faults = Faults(str(path), UsageError, REMEDY)
    document = faults.checked(JobsFile, read_toml(path))
    faults.end()
    base = Settings().updated(flatten_settings(document.get("defaults", {})), f"[defaults] of {path}")
    jobs = [
        job
        for i, entry in enumerate(document["jobs"])
        for job in _expand_entry(entry, base, f"job {i + 1} of {path}", path.parent)
    ]
    folded = Counter(j.name.casefold() for j in jobs)  # as one folder, where file systems tell no case
    twice = sorted({j.name for j in jobs if folded[j.name.casefold()] > 1})
    if twice:
        raise UsageError(
            f"Several jobs have the same name: {', '.join(twice)}.", "Give each [[jobs]] a name of its own."
        )
    return jobs


def _expand_entry(entry: JobsEntry, base: Settings, where: str, folder: Path) -> list[Job]:
    """Return the product of an entry's models, devices, settings and seeds."""
    models, seeds = entry["models"], entry.get("seeds", [base.seed])
    devices = entry.get("devices", [""])
    unchanged: list[dict[str, Any]] = [{}]
    variants = entry.get("settings", unchanged)
    seeded = {seed: base.updated({"seed": seed}, where).seed for seed in seeds}  # each checked once

    @cache
    def with_variant(device: str, v: int) -> Settings:
        changed = flatten_settings(variants[v]) | ({"devices": [device]} if device else {})
        settings = base.updated(changed, where)
        data = settings.coarsen.input  # a file of arrays is named from the folder of the jobs file
        return settings.updated({"coarsen.input": str(folder.absolute() / data)}, where) if data else settings

    jobs = []
    for (model, stem), (d, device), (v, variant), seed in itertools.product(
        zip(models, file_stems(models), strict=True), enumerate(devices), enumerate(variants), seeds
    ):
        changed = {**flatten_settings(variant), "seed": seed} | ({"devices": [device]} if device else {})
        parts = [entry.get("name", ""), stem]
        parts += [f"devices{d + 1}"] * (len(devices) > 1) + [f"settings{v + 1}"] * (len(variants) > 1)
        parts += [f"seed{seed}"] * (len(seeds) > 1)
        path = model if model.startswith("zoo:") or Path(model).is_absolute() else str(folder / model)
        name = "-".join(filter(None, parts))
        _check_name(name, where)
        settings = replace(with_variant(device, v), seed=seeded[seed])
        jobs.append(Job(name, path, settings, changed, entry.get("machines", ONE)))
    return jobs


def _check_name(name: str, where: str) -> None:
    """Check that a job's name can be that of its run directory, a folder right below the batch's.

    Raises:
        UsageError: it would lie elsewhere, be hidden, or be no name of a file.
    """
    fault = ""
    if name[:1] in ("", "."):
        fault = "begins with a dot" if name else "is empty"
    elif not name.isprintable() or set(name) & set(NO_NAMES):
        fault = f"holds one of {' '.join(NO_NAMES)} or a character that cannot be printed"
    elif len(name.encode()) > LONGEST_NAME:
        fault = f"is longer than {LONGEST_NAME} bytes"
    if fault:
        remedy = 'Its run directory is called so: write name = "..." with letters, digits, "_", "-" and "." only.'
        raise UsageError(f"{where}: the job's name {name[:LONGEST_NAME]!r} {fault}.", remedy)


def file_stems(models: Sequence[str]) -> list[str]:
    """Return names of models for files and folders: the files' stems, numbered where two are equal."""
    stems = [re.sub(r"[^A-Za-z0-9_.-]", "_", Path(m.removeprefix("zoo:")).stem) for m in models]
    return [f"{s}{i + 1}" if stems.count(s) > 1 else s for i, s in enumerate(stems)]
