"""Networks as graphs to be placed, made from their published shapes; no model file, no hardware.

>>> build("rnnlm2?steps=3&fidelity=core").graph.n > 100
True
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.workload import Workload

# A name is either here or a model's in runtime/zoo.
# name -> "module:function", with values for some of its options behind a question mark.
TABLE = {
    "amoebanet": "runtime.zoo.workloads.amoebanet:amoebanet",
    "barabasi-albert": "runtime.zoo.workloads.random_graphs:barabasi_albert",
    "bert-base-training": "runtime.zoo.workloads.transformer:bert",
    "chainmm": "runtime.zoo.workloads.tiled:chainmm",
    "erdos-renyi": "runtime.zoo.workloads.random_graphs:erdos_renyi",
    "ffnn": "runtime.zoo.workloads.tiled:ffnn",
    "gnmt2": "runtime.zoo.workloads.gnmt:gnmt?layers=2",
    "gnmt4": "runtime.zoo.workloads.gnmt:gnmt?layers=4",
    "gnmt8": "runtime.zoo.workloads.gnmt:gnmt?layers=8",
    "inception-v3-training": "runtime.zoo.workloads.cnn:inception_v3",
    "layered": "runtime.zoo.workloads.random_graphs:layered",
    "llama-block": "runtime.zoo.workloads.tiled:llama_block",
    "llama-layer": "runtime.zoo.workloads.tiled:llama_layer",
    "moe-block": "runtime.zoo.workloads.transformer:moe_block",
    "nas-cnn": "runtime.zoo.workloads.placeto:nas_cnn",
    "nas-nmt": "runtime.zoo.workloads.placeto:nas_nmt",
    "nas-rnn": "runtime.zoo.workloads.placeto:nas_rnn",
    "nasnet-large": "runtime.zoo.workloads.nasnet:nasnet?cells=6&filters=168&stem=96&image=331",
    "nasnet-mobile": "runtime.zoo.workloads.nasnet:nasnet",
    "nmt": "runtime.zoo.workloads.nmt:nmt",
    "resnet50-training": "runtime.zoo.workloads.cnn:resnet50",
    "rnnlm2": "runtime.zoo.workloads.rnnlm:rnnlm?layers=2",
    "rnnlm4": "runtime.zoo.workloads.rnnlm:rnnlm?layers=4",
    "rnnlm8": "runtime.zoo.workloads.rnnlm:rnnlm?layers=8",
    "series-parallel": "runtime.zoo.workloads.random_graphs:series_parallel",
    "stochastic-block": "runtime.zoo.workloads.random_graphs:stochastic_block",
    "txl2": "runtime.zoo.workloads.txl:txl?layers=2",
    "txl4": "runtime.zoo.workloads.txl:txl?layers=4",
    "txl8": "runtime.zoo.workloads.txl:txl?layers=8",
    "watts-strogatz": "runtime.zoo.workloads.random_graphs:watts_strogatz",
    "wavenet2": "runtime.zoo.workloads.wavenet:wavenet?stacks=2",
    "wavenet4": "runtime.zoo.workloads.wavenet:wavenet?stacks=4",
}
WORDS = {int: "a whole number", float: "a number", str: "a text"}  # how a person calls the types of options


def names() -> list[str]:
    """Return the names of all workloads, sorted."""
    return sorted(TABLE)


def options(name: str) -> dict[str, Any]:
    """Return {option: default} of a workload.

    Raises:
        UnknownNameError: there is no such workload.
    """
    generator, preset = _generator(name)
    return {key: preset.get(key, default) for key, (_, default) in _known_options(generator).items()}


def description(name: str) -> str:
    """Return what a workload is, in one line.

    Raises:
        UnknownNameError: there is no such workload.
    """
    text = inspect.getdoc(_generator(name)[0]) or ""
    return text.partition("\n")[0].removeprefix("Return ")


def build(text: str, *, seed: int = 0) -> Workload:
    """Return the workload "name" or "name?option=value&option=value".

    A generator is a function of keyword arguments with defaults, each an option of its annotated type: int, float,
    bool, str or Literal. An argument whose type is a dataclass brings all fields of it as options. One named `seed`
    gets the seed.

    Raises:
        UnknownNameError: there is no such workload or option.
        UsageError: an option has a value that does not fit.
    """
    name, _, query = text.partition("?")
    generator, preset = _generator(name)
    known = _known_options(generator)
    given: dict[str, Any] = dict(preset)
    for key, value in _option_pairs(query, text):
        if key not in known:
            raise UnknownNameError(f"option of {name}", key, known)
        given[key] = _coerced(value, known[key][0], f"{name}?{key}")
    arguments: dict[str, Any] = {}
    for key, kind in _argument_types(generator).items():
        if dataclasses.is_dataclass(kind):
            fields = {f.name: given[f.name] for f in dataclasses.fields(kind) if f.name in given}
            arguments[key] = kind(**fields)  # type: ignore[operator]
        elif key == "seed":
            arguments[key] = seed
        elif key in given:
            arguments[key] = given[key]
    return generator(**arguments)


def _generator(name: str) -> tuple[Callable[..., Workload], dict[str, Any]]:
    """Return the function behind a name, and the options that the name itself stands for."""
    if name not in TABLE:
        raise UnknownNameError("workload", name, TABLE, "`placewright zoo list`")
    target, _, preset = TABLE[name].partition("?")
    module, _, function = target.partition(":")
    generator: Callable[..., Workload] = getattr(importlib.import_module(module), function)
    known = _known_options(generator)
    return generator, {key: _coerced(value, known[key][0], name) for key, value in _option_pairs(preset, name)}


def _argument_types(generator: Callable[..., Workload]) -> dict[str, Any]:
    """Return {argument: type} of a generator."""
    return {key: kind for key, kind in get_type_hints(generator).items() if key != "return"}


def _known_options(generator: Callable[..., Workload]) -> Mapping[str, tuple[Any, Any]]:
    """Return {option: (type, default)} of a generator."""
    known: dict[str, tuple[Any, Any]] = {}
    parameters = inspect.signature(generator).parameters
    for key, kind in _argument_types(generator).items():
        if dataclasses.is_dataclass(kind):
            hints, default = get_type_hints(kind), parameters[key].default
            known |= {f.name: (hints[f.name], getattr(default, f.name)) for f in dataclasses.fields(kind)}
        elif key != "seed":
            known[key] = (kind, parameters[key].default)
    return known


def _option_pairs(query: str, text: str) -> list[tuple[str, str]]:
    """Return the (option, value) pairs of "option=value&option=value"."""
    pairs = [part.partition("=") for part in query.split("&") if part]
    if any(not key or not sign for key, sign, _ in pairs):
        raise UsageError(f"{text!r} has an option without a value.", "Write name?option=value&option=value.")
    return [(key, value) for key, _, value in pairs]


def _coerced(value: str, kind: Any, where: str) -> Any:
    """Return the value of an option, read as its type."""
    if get_origin(kind) is Literal:
        choices: Mapping[str, Any] = {str(choice): choice for choice in get_args(kind)}
    elif kind is bool:
        choices = {"true": True, "false": False}
    else:
        choices = {}
    if choices:
        if value not in choices:
            raise UsageError(f"{where} is {value!r}.", f"Use one of {', '.join(choices)}.")
        return choices[value]
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(f"{where} is {value!r}.", f"Give {WORDS[kind]}.") from error
