"""Finds implementations by stage and name.

Each stage folder holds one literal TABLE, name -> "module:Class". Other packages add to it with the entry point group
`placewright.<stage>`. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pipeline.core.errors import MissingPackageError, UnknownNameError, UsageError

STAGES: Mapping[str, str] = {
    "coarsen": "coarsen",
    "embed": "embed",
    "group": "policy.group",
    "place": "policy.place",
    "measure": "runtime",
}


def implementation_table(stage: str) -> dict[str, str]:
    """Return {name: "module:Class"} of every implementation of a stage, plug-ins included.

    Raises:
        UnknownNameError: there is no such stage.
        UsageError: a plug-in takes a name that is in use.
    """
    if stage not in STAGES:
        raise UnknownNameError("stage", stage, STAGES)
    entries: dict[str, str] = dict(importlib.import_module(STAGES[stage]).TABLE)
    for entry in plugin_entry_points(stage):
        if entry.name in entries:
            raise UsageError(
                f"The plug-in {entry.value} takes the name {stage}.{entry.name}, which is {entries[entry.name]}.",
                "Rename the plug-in's entry point.",
            )
        entries[entry.name] = entry.value
    return entries


@cache
def plugin_entry_points(stage: str) -> importlib.metadata.EntryPoints:
    """Return what other packages add to a stage; to know it, a file of every installed package is read."""
    return importlib.metadata.entry_points(group=f"placewright.{stage}")


def load_implementation(stage: str, name: str) -> type[Any]:
    """Return the class registered under `name`; it is imported now.

    Raises:
        UnknownNameError: no such stage or name.
        MissingPackageError: a package that the implementation needs is not installed.
    """
    known = implementation_table(stage)
    if name not in known:
        raise UnknownNameError(f"{stage} implementation", name, known, f"`placewright list {stage}`")
    module, _, attribute = known[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"{stage}.{name} needs", error.name) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an implementation, as help and validation see it.

    least: what a number must be at least; -inf for a field that was not made by `param`.
    """

    name: str
    type: Any
    default: Any
    help: str
    least: float


def parameters_of(cls: type[Any]) -> list[Parameter]:
    """Return the parameters of an implementation: the fields of its dataclass, with the text of their metadata."""
    hints = get_type_hints(cls)
    return [
        Parameter(f.name, hints[f.name], f.default, str(f.metadata.get("help", "")), f.metadata.get("least", -math.inf))
        for f in dataclasses.fields(cls)
        if f.init
    ]


def build_implementation(stage: str, name: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the implementation `name` with `values` in place of its defaults.

    Raises:
        UnknownNameError: no such stage, name or parameter.
    """
    cls = load_implementation(stage, name)
    known = [p.name for p in parameters_of(cls)]
    for key in values or {}:
        if key not in known:
            raise UnknownNameError(f"parameter of {stage}.{name}", key, known)
    return cls(**(values or {}))


def file_parameters(obj: Any) -> list[str]:
    """Return the names of the parameters of an implementation, built or not, whose values are paths of files."""
    return [f.name for f in dataclasses.fields(obj) if f.metadata.get("file")]
