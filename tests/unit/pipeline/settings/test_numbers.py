"""Numbers that users give, in options and settings: none that cannot be meant is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import pytest

from pipeline.cli.main import COMMANDS, LazyGroup, run_command_line
from pipeline.core.errors import UsageError
from pipeline.core.settings import MOST_SEED
from pipeline.settings import registry
from pipeline.settings.config import SECTIONS, Settings, parse_bytes
from pipeline.store.store import Store

WORDS = ("nan", "inf", "-inf", "1e999", "-1")


def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it, by their names."""
    yield name, command
    for word, sub in getattr(command, "commands", {}).items():
        yield from below(f"{name} {word}", sub)


def options() -> Iterator[tuple[str, click.Parameter]]:
    """Yield every option of every command that takes a number."""
    group = LazyGroup("placewright")
    for top in COMMANDS:
        command = group.get_command(click.Context(group), top)
        assert command is not None
        for name, sub in below(top, command):
            for option in sub.params:
                if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
                    yield f"{name} {option.opts[-1]}", option


OPTIONS = dict(options())


def test_options_that_take_a_number_are_found() -> None:
    assert {"cache gc --older-than", "tune --min-rate", "search --cost-scale", "bench --seconds"} <= set(OPTIONS)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_refuses_a_number_that_cannot_be_meant(name: str, word: str) -> None:
    option = OPTIONS[name]
    with pytest.raises(click.BadParameter):
        option.type.convert(word, option, None)


@pytest.mark.parametrize("name", sorted(name for name in OPTIONS if name.endswith("--seed")))
def test_an_option_refuses_a_seed_that_a_generator_would_not_take(name: str) -> None:
    option = OPTIONS[name]
    assert option.type.convert(str(MOST_SEED), option, None) == MOST_SEED
    with pytest.raises(click.BadParameter):
        option.type.convert(str(MOST_SEED + 1), option, None)


@pytest.mark.parametrize(
    "words",
    [
        *(["search", "zoo:rnnlm2", "--topology", "equal:2", "--budget", w] for w in (*WORDS, "0", "-3s")),
        *(["search", "zoo:rnnlm2", "--topology", "equal:2", "--gap", w] for w in (*WORDS, "-1%", "nan%")),
        *(["compare", "a/", "b/", "--least", w] for w in (*WORDS, "inf%")),
        *(["tune", "zoo:resnet50", "--dry-run", "--p99", w] for w in (*WORDS, "0ms")),
        *(["tune", "zoo:resnet50", "--dry-run", "--max-load-time", w] for w in (*WORDS, "0")),
        *(["tune", "zoo:resnet50", "--dry-run", "--max-memory", w] for w in (*WORDS, "0", "0.1", f"{'9' * 400}GB")),
        *(["tune", "zoo:resnet50", "--dry-run", "--set", f"seed={w}"] for w in ("-1", MOST_SEED + 1)),
        ["batch", "jobs.toml", "--on", "local:0"],
        ["batch", "jobs.toml", "--on", "local:-1"],
    ],
    ids=lambda words: " ".join([words[0], *words[-2:]])[:60],
)
def test_a_time_a_share_or_a_size_that_cannot_be_meant_is_refused_in_words(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.toml").write_text('[[jobs]]\nmodels = ["zoo:resnet50"]\n')
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))
    assert run_command_line(words) == 2
    cause, remedy = capsys.readouterr().err.splitlines()[-2:]
    assert cause.startswith("error: ")
    assert remedy.startswith("  fix: ")


@pytest.mark.parametrize("word", WORDS)
def test_the_store_is_left_alone_by_an_age_that_cannot_be_meant(word: str, tmp_path: Path) -> None:
    store, key = Store(tmp_path), "0" * 64
    with store.scratch() as payload:
        (payload / "a.txt").write_text("a", encoding="utf-8")
        store.add(key, {"stage": "read", "name": "read"}, {"made_at": 0.0}, payload)
    assert run_command_line(["cache", "gc", "--older-than", word, "--store", str(tmp_path)]) == 2
    assert list(store.list_keys()) == [key]


def is_number(wanted: Any) -> bool:
    """Return whether a field's type is a number, or holds some."""
    return wanted in (int, float) or any(map(is_number, get_args(wanted)))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_a_setting_refuses_a_number_that_cannot_be_meant(section: str, value: float) -> None:
    hints = get_type_hints(SECTIONS[section])
    for name in (f.name for f in fields(SECTIONS[section]) if is_number(hints[f.name])):
        with pytest.raises(UsageError, match=rf"{section}\.{name}"):
            Settings().updated({f"{section}.{name}": value}, "--set")


@pytest.mark.parametrize("stage", registry.STAGES)
def test_a_parameter_refuses_a_number_that_cannot_be_meant(stage: str) -> None:
    for name in registry.implementation_table(stage):
        for p in registry.parameters_of(registry.load_implementation(stage, name)):
            wrong = [*([math.nan, math.inf] if p.type is float else []), *([-1] if p.least == 0 else [])]
            for value in wrong if is_number(p.type) and stage in SECTIONS else ():
                with pytest.raises(UsageError, match=rf"{stage}\.{name}\.{p.name}"):
                    Settings().updated({f"{stage}.{name}.{p.name}": value}, "--set")


@pytest.mark.parametrize("stage", registry.STAGES)
def test_the_default_of_every_parameter_is_at_least_its_least_value(stage: str) -> None:
    for name in registry.implementation_table(stage):
        for p in registry.parameters_of(registry.load_implementation(stage, name)):
            if isinstance(p.default, int | float):
                assert p.default >= p.least, f"{stage}.{name}.{p.name}"


def test_a_size_is_a_whole_number_of_bytes() -> None:
    assert parse_bytes("1.5kB", "size") == 1500
