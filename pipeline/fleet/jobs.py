"""The jobs file: groups of models, devices, settings and seeds, and the jobs that their products are."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.settings.config import Settings, flatten, read_toml

TOP_KEYS = ("defaults", "jobs")
JOB_KEYS = ("name", "models", "devices", "machines", "seeds", "settings")
ONE, EVERY = MACHINES = ("one", "every")  # on how many kinds of machines of a fleet a job runs
EXAMPLES = {
    "models": '"a.xml", "zoo:resnet50"',
    "devices": '"CPU", "A=CPU{INFERENCE_NUM_THREADS=1},B=CPU{INFERENCE_NUM_THREADS=1}"',
    "settings": '{"place.evaluations" = 100}, {}',
    "seeds": "0, 1",
}
NAMED_BY = 8  # digits of a fingerprint that name a kind of machine
LONGEST_NAME = 200  # bytes; file systems take 255, and temporary names add to it
NO_NAMES = '/\\:*?"<>|'  # what Windows takes in no name; the folder of a batch may be looked at there


@dataclass(frozen=True, slots=True)
class Job:
    """One model on one set of devices with one set of settings.

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

    def on(self, kind: str) -> Job:
        """Return the job for one kind of machine."""
        return replace(self, name=f"{self.name}-{kind[:NAMED_BY]}", kind=kind, asked=self.name)


def read_jobs(path: Path) -> list[Job]:
    """Return the jobs of a TOML file.

    Raises:
        UsageError: the file cannot be read, or keys are unknown or wrong; the job is named.
    """
    document = read_toml(path)
    _check_keys("jobs file", document, TOP_KEYS)
    if not isinstance(document.get("defaults", {}), dict):
        raise UsageError(f"`defaults` of {path} is not a table.", "Write it as [defaults].")
    base = Settings().updated(flatten(document.get("defaults", {})), f"[defaults] of {path}")
    entries = document.get("jobs", [])
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[jobs]].", "Write one per group of jobs, with at least `models`.")
    jobs = [
        job for i, entry in enumerate(entries) for job in _expand(entry, base, f"job {i + 1} of {path}", path.parent)
    ]
    folded = Counter(j.name.casefold() for j in jobs)  # as one folder, where file systems tell no case
    twice = sorted({j.name for j in jobs if folded[j.name.casefold()] > 1})
    if twice:
        raise UsageError(
            f"Several jobs have the same name: {', '.join(twice)}.", "Give each [[jobs]] a name of its own."
        )
    return jobs


def _check_keys(kind: str, document: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in document:
        if key not in known:
            raise UnknownNameError(f"key of a {kind}", key, known)


def _expand(entry: Mapping[str, Any], base: Settings, where: str, folder: Path) -> list[Job]:
    """Return the product of an entry's models, devices, settings and seeds."""
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is not a table.", "Write it as [[jobs]].")
    _check_keys("job", entry, JOB_KEYS)
    models = _list_of(str, entry, "models", [], where)
    if not models:
        raise UsageError(f"{where} has no models.", 'Write models = ["a.xml", "zoo:resnet50"].')
    devices = _list_of(str, entry, "devices", [""], where)
    variants = _list_of(dict, entry, "settings", [{}], where)
    seeds = _list_of(int, entry, "seeds", [base.seed], where)
    machines = entry.get("machines", ONE)
    if machines not in MACHINES:
        raise UsageError(f"{where}: `machines` is {machines!r}.", f'Write machines = "{EVERY}", or leave it out.')
    seeded = {seed: base.updated({"seed": seed}, where).seed for seed in seeds}  # each checked once
    chosen = cache(lambda device, v: _chosen(base, device, variants[v], folder, where))
    jobs = []
    for (model, stem), (d, device), (v, variant), seed in itertools.product(
        zip(models, file_stems(models), strict=True), enumerate(devices), enumerate(variants), seeds
    ):
        changed = {**flatten(variant), "seed": seed} | ({"devices": [device]} if device else {})
        parts = [str(entry.get("name", "")), stem]
        parts += [f"devices{d + 1}"] * (len(devices) > 1) + [f"settings{v + 1}"] * (len(variants) > 1)
        parts += [f"seed{seed}"] * (len(seeds) > 1)
        path = model if model.startswith("zoo:") or Path(model).is_absolute() else str(folder / model)
        name = "-".join(filter(None, parts))
        _check_name(name, where)
        jobs.append(Job(name, path, replace(chosen(device, v), seed=seeded[seed]), changed, machines))
    return jobs


def _chosen(base: Settings, device: str, variant: Mapping[str, Any], folder: Path, where: str) -> Settings:
    """Return the settings of a set of devices, none for those of the base, and a variant."""
    changed = flatten(variant) | ({"devices": [device]} if device else {})
    return _beside(folder, base.updated(changed, where))


def _beside(folder: Path, settings: Settings) -> Settings:
    """Return settings whose file of inputs, if there is one, is named from the folder of the jobs file."""
    data = settings.coarsen.input
    return settings.updated({"coarsen.input": str(folder.absolute() / data)}, "the jobs file") if data else settings


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


def _list_of(kind: type[Any], entry: Mapping[str, Any], key: str, default: list[Any], where: str) -> list[Any]:
    value = entry.get(key, default)
    if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
        raise UsageError(f"{where}: `{key}` is {value!r}.", f"Write an array: {key} = [{EXAMPLES[key]}].")
    return value


def file_stems(models: Sequence[str]) -> list[str]:
    """Return names of models for files and folders: the files' stems, numbered where two are equal."""
    stems = [re.sub(r"[^A-Za-z0-9_.-]", "_", Path(m.removeprefix("zoo:")).stem) for m in models]
    return [f"{s}{i + 1}" if stems.count(s) > 1 else s for i, s in enumerate(stems)]
