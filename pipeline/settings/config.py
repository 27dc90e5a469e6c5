"""Configuration: defaults < TOML file < environment < --set and options. Unknown keys are errors.

    devices, seed, budget          top-level keys
    coarsen.use, place.evaluations fields of a section, see pipeline.core.settings
    coarsen.metis.parts            parameters of an implementation: its dataclass fields

The environment spells coarsen.metis.parts as PLACEWRIGHT__COARSEN__METIS__PARTS.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.core.errors import UNPARSABLE, PlacewrightError, UsageError, suggest_name
from pipeline.core.settings import (
    MOST_SEED,
    RUNTIMES,
    CoarsenSettings,
    EmbedSettings,
    GroupSettings,
    MeasureSettings,
    PlaceSettings,
    ProfileSettings,
)
from pipeline.settings import registry
from pipeline.settings.declared import is_ours, recall_answer

PREFIX = "PLACEWRIGHT__"
MOST_WHOLE = 2**63  # a whole number beyond it fits no array, and beyond 1e308 no other type
UNITS_BYTES: Mapping[str, int] = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30},
}
UNITS_S: Mapping[str, float] = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides what a run computes, apart from the model.

    devices: texts as --devices takes them; none for what the machine has. budget_s: seconds for placing and measuring.
    params: stage -> implementation -> parameter -> value, only what was set.
    """

    devices: tuple[str, ...] = ()
    seed: int = 0
    budget_s: float = 120.0
    coarsen: CoarsenSettings = field(default_factory=CoarsenSettings)
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    embed: EmbedSettings = field(default_factory=EmbedSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    place: PlaceSettings = field(default_factory=PlaceSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    params: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def params_of(self, stage: str, name: str) -> Mapping[str, Any]:
        """Return the parameters set for one implementation."""
        return self.params.get(stage, {}).get(name, {})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, from which `from_json` makes them again."""
        document = asdict(self)
        for section in SECTIONS:
            document[section] = {k: list(v) if isinstance(v, tuple) else v for k, v in document[section].items()}
        return document | {"devices": list(self.devices)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Settings:
        """Return the settings `to_json` described.

        Raises:
            UsageError: they are damaged, or of another version.
        """
        try:
            flat = {key: document[key] for key in ("devices", "seed")} | {"budget": document["budget_s"]}
            for section in SECTIONS:
                flat |= {f"{section}.{key}": value for key, value in document[section].items()}
            for stage, implementations in document["params"].items():
                for name, values in implementations.items():
                    flat |= {f"{stage}.{name}.{key}": value for key, value in values.items()}
        except (KeyError, AttributeError, TypeError) as error:
            raise UsageError("The settings in the run directory are damaged.", "Use another run directory.") from error
        return cls().updated(flat, "the run directory")

    def updated(self, values: Mapping[str, Any], source: str) -> Settings:
        """Return these settings with dotted keys set to new values.

        Raises:
            UsageError: unknown keys or values of the wrong type; all faults are named, each with the nearest key.
        """
        faults: list[PlacewrightError] = []
        result = self
        for key, value in values.items():
            try:
                result = result._with(key, value)
            except PlacewrightError as error:
                faults.append(error)
        remedy = "Run `placewright list` and `placewright explain`."
        if len(faults) == 1:
            raise UsageError(f"In {source}: {faults[0].cause}", faults[0].remedy or remedy)
        if faults:
            raise UsageError(f"In {source}: {' '.join(map(str, faults))}", remedy)
        return result

    def _with(self, key: str, value: Any) -> Settings:
        if key == "budget":
            return replace(self, budget_s=parse_budget(value))
        if key in ("seed", "devices"):
            value = (value,) if key == "devices" and isinstance(value, str) else value
            typed = coerce_value(_types_of(Settings)[key], value, key)
            _check_range(key, typed)
            return replace(self, **{key: typed})
        section, _, rest = key.partition(".")
        if section not in SECTIONS or not rest:
            near = difflib.get_close_matches(section, SECTIONS, n=1)
            known = [f"{near[0]}.{rest}"] if near and rest else all_section_keys()
            raise UsageError(f"Unknown key {key!r}.", suggest_name(key, known))
        name, _, parameter = rest.partition(".")
        if not parameter:
            return self._with_field(section, name, value)
        return self._with_parameter(section, name, parameter, value)

    def _with_field(self, section: str, name: str, value: Any) -> Settings:
        current = getattr(self, section)
        if name not in {f.name for f in fields(current)}:
            raise UsageError(f"Unknown key '{section}.{name}'.", suggest_name(f"{section}.{name}", all_section_keys()))
        if name in ("use", "runtimes") and isinstance(value, str) and isinstance(getattr(current, name), tuple):
            value = tuple(word.strip() for word in value.split(","))
        wanted = _types_of(type(current))[name]  # type: ignore[arg-type]  # classes are hashable
        typed = coerce_value(wanted, value, f"{section}.{name}")
        _check_range(f"{section}.{name}", typed)
        for chosen in _chosen_names(section, name, typed):
            stage = "measure" if name == "evaluator" else section
            known = registry.implementation_table(stage)
            if chosen not in known:
                raise UsageError(f"{section}.{name}: unknown implementation {chosen!r}.", suggest_name(chosen, known))
        for chosen in typed if name == "runtimes" else ():
            if chosen not in RUNTIMES:
                what = "What runs splits is --runtime." if chosen in ("hetero", "dataflow", "auto") else ""
                raise UsageError(
                    f"{section}.{name}: unknown runtime {chosen!r}. {what}".strip(), suggest_name(chosen, RUNTIMES)
                )
        return replace(self, **{section: replace(current, **{name: typed})})

    def _with_parameter(self, stage: str, name: str, parameter: str, value: Any) -> Settings:
        ask = partial(_typed_parameter, stage, name, parameter, value)
        kept = is_ours(stage, name)
        typed = _freeze(recall_answer(["parameter", stage, name, parameter, value], ask)) if kept else ask()
        of_stage = dict(self.params.get(stage, {}))
        of_stage[name] = {**of_stage.get(name, {}), parameter: typed}
        return replace(self, params={**self.params, stage: of_stage})


@cache
def _types_of(section: type) -> dict[str, Any]:
    """Return the types of the fields of a section, evaluated once."""
    return get_type_hints(section)


def _typed_parameter(stage: str, name: str, parameter: str, value: Any) -> Any:
    """Return the value of an implementation's parameter as the type its field wants; the implementation is imported."""
    known = {p.name: p for p in registry.parameters_of(registry.load_implementation(stage, name))}
    key = f"{stage}.{name}.{parameter}"
    if parameter not in known:
        raise UsageError(f"Unknown key '{key}'.", suggest_name(key, [f"{stage}.{name}.{p}" for p in known]))
    typed = coerce_value(known[parameter].type, value, key)
    for number in typed if isinstance(typed, tuple) else (typed,):
        _check_range(key, number, known[parameter].least)
    return typed


def _freeze(value: Any) -> Any:
    """Return a JSON value with tuples in place of arrays."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


SECTIONS: Mapping[str, type[Any]] = {
    "coarsen": CoarsenSettings,
    "profile": ProfileSettings,
    "embed": EmbedSettings,
    "group": GroupSettings,
    "place": PlaceSettings,
    "measure": MeasureSettings,
}


# The least value of numbers; 0 where it is not given.
LEAST: Mapping[str, float] = {
    "coarsen.read_timeout_s": 1e-3,
    "profile.inferences": 1,
    "profile.link_inferences": 1,
    "profile.timeout_s": 1e-3,
    "place.evaluations": 1,
    "place.rounds": 1,
    "measure.finalists": 1,
    "measure.starts": 1,
    "measure.least_starts": 2,
    "measure.timeout_s": 1e-3,
    "measure.dynamic_size": 1,
    "measure.decode_steps": 1,
    "measure.samples_per_query": 1,
}


MOST: Mapping[str, float] = {
    "seed": MOST_SEED,
    "measure.percentile": 100,
    "measure.level": 0.9999,
    "measure.least": 1,
}


def _check_range(key: str, value: Any, least: float | None = None) -> None:
    """Check a number; least: what it must be at least, that of its key unless given.

    Raises:
        UsageError: it is below or above what it may be, or not finite.
    """
    if not isinstance(value, int | float):
        return
    least, most = LEAST.get(key, 0) if least is None else least, MOST.get(key, math.inf)
    if not (least <= value <= most and abs(value) < (MOST_WHOLE if isinstance(value, int) else math.inf)):
        above = f" and at most {most:.10g}" if key in MOST else ""
        wanted = f" of at least {least:g}{above}" if math.isfinite(least) else " that is finite"
        raise UsageError(f"{key} = {value!r}: give a number{wanted}.")


def all_section_keys() -> list[str]:
    """Return every key that is not a parameter of an implementation."""
    return ["devices", "seed", "budget", *(f"{s}.{f.name}" for s, cls in SECTIONS.items() for f in fields(cls))]


def _chosen_names(section: str, name: str, value: Any) -> tuple[str, ...]:
    """Return the implementation names that a field selects; () for a field that selects none."""
    if name == "evaluator":
        return (value,)
    if name == "use":
        return value if isinstance(value, tuple) else (value,)
    return ()


def coerce_value(wanted: Any, value: Any, key: str) -> Any:
    """Return a value as the type a field wants; "8" is a fine int.

    Raises:
        UsageError: the value does not fit.
    """
    from pydantic import TypeAdapter, ValidationError

    from pipeline.shared.validation import must_be

    try:
        return TypeAdapter(wanted).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{key} = {value!r}, but {must_be(error.errors())}.") from error


def parse_budget(value: Any) -> float:
    """Return seconds from 90, "90", "90s", "2m" or "1h".

    >>> parse_budget("2m")
    120.0

    Raises:
        UsageError: it is not of this form, or not more than 0.
    """
    return parse_time(value, "budget", "120s or 2m")


def parse_share(value: str, what: str) -> float:
    """Return a share from a percentage, or from a number below 1; what: it is, for the error.

    >>> parse_share("1%", "gap"), parse_share("2.5 %", "gap"), parse_share("0.1", "gap")
    (0.01, 0.025, 0.1)

    Raises:
        UsageError: it is no share of at least 0 and less than 1.
    """
    number, percent = value.strip().removesuffix("%"), value.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise UsageError(
            f"The {what} {value!r} is not a percentage or share.", "Write a percentage below 100, such as 2%, or 0.02."
        )
    return share


def parse_time(value: Any, what: str, example: str) -> float:
    """Return seconds from 90, "90", "90s", "20ms" or "1h"; what: it is, for the error.

    Raises:
        UsageError: it is not of this form, or not more than 0.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) < 1e300 else math.inf  # a whole number may be beyond all floats
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", str(value))
        if match is None or match[2] not in UNITS_S:
            raise UsageError(f"The {what} {value!r} is not a duration.", f"Write for example {example}.")
        seconds = float(match[1]) * UNITS_S[match[2]]
    if not 0 < seconds < math.inf:
        raise UsageError(f"The {what} {value!r} must be above 0 s.", "Write for example 60s.")
    return seconds


def parse_bytes(value: str, what: str) -> int:
    """Return bytes from "500", "500MB" or "2GiB"; what: it is, for the error.

    >>> parse_bytes("2GB", "memory")
    2000000000

    Raises:
        UsageError: it is not of this form, or less than a byte.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", value.lower())
    if match is None or match[2] not in UNITS_BYTES:
        raise UsageError(f"The {what} {value!r} is not a size.", "Write for example 500MB or 2GB.")
    size = float(match[1]) * UNITS_BYTES[match[2]]
    if not 1 <= size < math.inf:
        raise UsageError(
            f"The {what} {value!r} must be finite and at least one byte.", "Write for example 500MB or 2GB."
        )
    return int(size)


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return (key, value) of "key=value"; a value is read as TOML, or as a list of bare words in brackets, or as text.

    >>> parse_assignment("coarsen.use=[fold,metis]")
    ('coarsen.use', ['fold', 'metis'])
    """
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{text!r} is not key=value.", "Write for example --set coarsen.metis.parts=8.")
    return key.strip(), parse_value(raw.strip())


def parse_value(raw: str) -> Any:
    """Return the value a piece of text stands for."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except UNPARSABLE:
        if raw.startswith("[") and raw.endswith("]"):
            return [word.strip() for word in raw[1:-1].split(",") if word.strip()]
        return raw


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        UsageError: it does not exist or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Give the path of a TOML file.") from error
    except UNPARSABLE as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", "Correct the line it names.") from error


def flatten_settings(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping with dotted keys.

    >>> flatten_settings({"coarsen": {"metis": {"parts": 8}}})
    {'coarsen.metis.parts': 8}
    """
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the dotted keys that the environment sets."""
    return {
        name.removeprefix(PREFIX).lower().replace("__", "."): parse_value(value)
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX)
    }
