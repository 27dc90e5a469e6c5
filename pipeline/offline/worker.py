"""A process that searches without hardware.

in   {"scenario": {...}, "effort": {...}}: the fields of Scenario and Effort, paths as text
out  {"found": the answer of search} or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search
from pipeline.settings.registry import file_parameters, load_implementation
from pipeline.system.workers import Begin, ignore_step, serve_commands

PATHS = ("costs", "pins", "near", "checkpoint", "policy")
READ = ("graph", "topology", "costs", "pins", "near", "policy")  # what names files, if it does
INPUT = "coarsen.input"  # the setting that does, beside parameters of placers and simulators


def to_command(scenario: Scenario, effort: Effort) -> dict[str, Any]:
    """Return what a worker is handed; paths are absolute, so that they hold wherever it runs."""
    asked = {"scenario": asdict(scenario), "effort": asdict(effort)}
    for part in asked.values():
        part.update({name: str(Path(part[name]).absolute()) for name in PATHS if part.get(name) is not None})
    for name in ("graph", "topology"):
        path = Path(asked["scenario"][name])
        if asked["scenario"][name] and path.is_file():
            asked["scenario"][name] = str(path.absolute())
    settings = asked["scenario"]["settings"]
    asked["scenario"]["settings"] = settings | {key: str(Path(settings[key]).absolute()) for key in _of_files(settings)}
    return asked


def files_of(command: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of what a search reads."""
    named = [part[name] for part in (command["scenario"], command["effort"]) for name in READ if part.get(name)]
    settings = command["scenario"]["settings"]
    named += [settings[key] for key in _of_files(settings)]
    return tuple(text for text in named if Path(text).is_absolute())


def _of_files(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys of settings that name files, as far as these are there."""
    return [
        key for key, value in settings.items() if _names_file(key) and isinstance(value, str) and Path(value).is_file()
    ]


def _names_file(key: str) -> bool:
    """Return whether a setting names a file: of arrays, or as a parameter of a placer or simulator."""
    stage, _, rest = key.partition(".")
    name, _, parameter = rest.partition(".")
    return key == INPUT or (bool(parameter) and parameter in file_parameters(load_implementation(stage, name)))


def search_scenario(command: Mapping[str, Any], _: Begin = ignore_step) -> dict[str, Any]:
    """Return the answer of a search.

    Raises:
        PlacewrightError: it failed.
    """
    given: dict[str, dict[str, Any]] = {
        part: {name: Path(v) if name in PATHS and v is not None else v for name, v in command[part].items()}
        for part in ("scenario", "effort")
    }
    return {"found": search(Scenario(**given["scenario"]), Effort(**given["effort"]))}


if __name__ == "__main__":
    serve_commands({"scenario": search_scenario})
