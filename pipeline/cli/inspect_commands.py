"""Looking around: devices, the zoo, what is registered, and whether this machine is fit."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import TypedDict

from pipeline.cli import console
from pipeline.cli.options import SEED, debug_option, json_option, open_store, store_option
from pipeline.core.figures import bytes_text

if TYPE_CHECKING:
    from pipeline.system.processors import UsableProcessors


class PluginRecord(TypedDict):
    """A device as OpenVINO discovers it."""

    name: str
    full_name: str
    driver: str
    memory_bytes: int
    precisions: list[str]
    default_precision: str


class DevicesDocument(TypedDict):
    """The answer of devices: what there is, and what `tune` uses where nothing is named."""

    devices: list[PluginRecord]
    processors: dict[str, Any]
    default: list[dict[str, Any]]


class DoctorDocument(TypedDict):
    """The answer of doctor."""

    python: str
    versions: dict[str, str]
    hardware: dict[str, Any]
    fingerprint: str
    processors: str
    store: str
    load: float
    telemetry: str


@click.command()
@json_option
@debug_option
def devices(as_json: bool, debug: bool) -> None:
    """List the devices of this machine and what `tune` would use."""
    from runtime.machines import devices as machine
    from runtime.machines.cpu_topology import cpu_topology

    plugins, cores = machine.discover_plugins(), cpu_topology()
    chosen = machine.default_devices(plugins, cores)
    if as_json:
        listed: list[PluginRecord] = [
            {
                "name": p.name,
                "full_name": p.full_name,
                "driver": p.driver,
                "memory_bytes": p.memory_bytes,
                "precisions": list(p.precisions),
                "default_precision": p.default_precision,
            }
            for p in plugins.values()
        ]
        default = [dict(d.to_json()) for d in chosen]
        console.print_json(DevicesDocument(devices=listed, processors=cores.to_json(), default=default))
        return
    rows = [
        [p.name, p.full_name, p.driver, bytes_text(p.memory_bytes), ", ".join(p.precisions)] for p in plugins.values()
    ]
    console.print_table("Devices", ["name", "full name", "driver", "memory", "precisions"], rows)
    console.print_result(f"Processors: {cores.words()}.")
    properties = [[d.name, d.plugin, ", ".join(f"{k}={v}" for k, v in d.properties.items())] for d in chosen]
    console.print_table("Devices that tune uses by default", ["name", "plug-in", "properties"], properties)


@click.command()
@click.argument("kind", required=False)
@debug_option
def schema(kind: str | None, debug: bool) -> None:
    """Print the JSON schema of a document, or list all kinds."""
    from pipeline.result.schemas import TYPES, schema_of

    if kind is not None:
        console.print_json(schema_of(kind))
        return
    for name in sorted(TYPES):
        console.print_result(name)


@click.group()
def zoo() -> None:
    """List or export built-in models and graphs."""


@zoo.command("list")
@json_option
@debug_option
def zoo_list(as_json: bool, debug: bool) -> None:
    """List the models for tune and search, and the graphs for search."""
    from runtime import zoo as models
    from runtime.zoo import workloads

    known = {"models": models.descriptions(), "graphs": {n: workloads.description(n) for n in workloads.names()}}
    if as_json:
        console.print_json(known)
        return
    titles = {"models": "models, for tune and search", "graphs": "graphs, for search: zoo:NAME?option=value"}
    for kind, title in titles.items():
        console.print_result(f"{title}\n")
        width = max(len(name) for name in known[kind])
        console.print_result("".join(f"  {name:<{width}}  {text}\n" for name, text in known[kind].items()))


@zoo.command("export")
@click.argument("name")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Path of the .xml to write.")
@click.option("--seed", type=SEED, default=0, help="Seed of the weights.")
@debug_option
def zoo_export(name: str, out: Path, seed: int, debug: bool) -> None:
    """Write the model NAME as OpenVINO IR."""
    from runtime import zoo as models

    models.export(name, out, seed=seed)
    console.print_result(f"Written to {out} and {out.with_suffix('.bin')}")


@click.command("list")
@click.argument("stage", required=False)
@json_option
@debug_option
def list_(stage: str | None, as_json: bool, debug: bool) -> None:
    """List the implementations of STAGE, or of every stage."""
    from pipeline.settings import registry

    names = {s: sorted(registry.implementation_table(s)) for s in ([stage] if stage else registry.STAGES)}
    if as_json:
        console.print_json(names)
        return
    for name, implementations in names.items():
        console.print_result(
            textwrap.fill(", ".join(implementations), 100, initial_indent=f"{name:<9}", subsequent_indent=" " * 9)
        )
    console.print_notice("`placewright explain STAGE.NAME` says what one does, and its parameters.")


@click.command()
@click.argument("what")
@json_option
@debug_option
def explain(what: str, as_json: bool, debug: bool) -> None:
    """Describe an implementation or stage and its parameters.

    WHAT is STAGE.NAME, such as coarsen.metis, NAME, or STAGE. A NAME of several stages lists them.
    """
    from dataclasses import fields

    from pipeline.core.errors import UnknownNameError
    from pipeline.settings import registry
    from pipeline.settings.config import SECTIONS

    stage, _, name = what.partition(".")
    if not name and stage not in SECTIONS:
        having = [s for s in registry.STAGES if what in registry.implementation_table(s)]
        if len(having) > 1:
            every = {f"{s}.{what}": registry.load_implementation(s, what).__doc__ or "" for s in having}
            if as_json:
                console.print_json([{"name": n, "text": text} for n, text in every.items()])
                return
            for n, text in every.items():
                console.print_result(f"{n}: {text.strip().partition(chr(10))[0]}")
            return
        if having:
            stage, name, what = having[0], what, f"{having[0]}.{what}"
    if name:
        cls = registry.load_implementation(stage, name)
        parameters = registry.parameters_of(cls)
    elif stage in SECTIONS:
        cls = SECTIONS[stage]
        parameters = registry.parameters_of(cls)
    else:
        tables = {s: registry.implementation_table(s) for s in registry.STAGES}
        names = [*SECTIONS, *(n for table in tables.values() for n in table)]
        names += [f"{s}.{n}" for s, table in tables.items() for n in table]
        raise UnknownNameError("part", what, names, "`placewright list STAGE`")
    rows: list[dict[str, Any]] = [
        # Learners are built by the placer that uses them: their parameters are no keys.
        {
            "key": f"{what}.{p.name}" if stage in SECTIONS else p.name,
            "default": list(p.default) if isinstance(p.default, tuple) else p.default,
            "help": p.help,
        }
        for p in parameters
        if p.name in {f.name for f in fields(cls)}
    ]
    if as_json:
        console.print_json({"name": what, "text": cls.__doc__, "parameters": rows})
        return
    console.print_result(f"{what}: {(cls.__doc__ or '').strip()}\n")
    for row in rows:
        console.print_result(f"  {row['key']} = {json.dumps(row['default'])}\n      {row['help']}")


def _print_nested(document: Mapping[str, Any], indent: str = "") -> None:
    """Write a nested mapping as indented lines."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            console.print_result(f"{indent}{key}:")
            _print_nested(value, indent + "  ")
        else:
            console.print_result(f"{indent}{key}: {_format_value(value)}")


def _format_value(value: Any) -> str:
    """Return a value as people write it."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _processors_text(usable: UsableProcessors) -> str:
    """Return which processors, and how much of their time, this process may use."""
    text = f"{len(usable.ids) or usable.online} of {usable.online} (cpuset {usable.cpuset})"
    if usable.quota is None:
        return f"{text}, no quota"
    text += f", with a quota of {usable.quota:g}"
    if not usable.limited:
        return text
    return (
        f"{text}: OpenVINO ignores quotas and starts one thread per processor; placewright uses {usable.count} threads"
    )


@click.command()
@store_option
@json_option
@debug_option
def doctor(store: Path | None, as_json: bool, debug: bool) -> None:
    """Check this machine and what disturbs measurements on it.

    Checks packages, devices, the store, settings of the machine, and OpenVINO's telemetry.
    """
    from pipeline.result.result import read_versions
    from pipeline.system.process import cpu_count
    from pipeline.system.processors import usable_processors
    from runtime.machines import devices as machine

    opt_out = Path.home() / "intel" / "openvino_telemetry"
    said = opt_out.read_text(encoding="utf-8").strip() if opt_out.is_file() else ""
    facts = machine.hardware_facts()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    report: DoctorDocument = {
        "python": sys.version.split()[0],
        "versions": read_versions(),
        "hardware": facts,
        "fingerprint": machine.hardware_fingerprint(facts),
        "processors": _processors_text(usable_processors()),
        "store": str(open_store(store).root),
        "load": load,
        "telemetry": "OpenVINO's is opted out"
        if said == "0"
        else "OpenVINO reports its use when it is imported; "
        f"write 0 into {opt_out} to opt out. placewright itself sends nothing, nor do its measuring processes",
    }
    if as_json:
        console.print_json(report)
        return
    _print_nested(report)
    if load > 0.5 * cpu_count():
        console.print_notice("warning: other processes use this machine; measurements will be noisy")
