"""The registry: every registered name can be built, explains itself, and no name takes another's."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from pipeline.core.errors import PlacewrightError, UnknownNameError, UsageError
from pipeline.settings import registry
from pipeline.testing.promises import check_declaration

EVERY = [(stage, name) for stage in registry.STAGES for name in registry.implementation_table(stage)]


@pytest.mark.parametrize(("stage", "name"), EVERY)
def test_every_registered_name_builds_with_its_defaults_and_explains_itself(stage: str, name: str) -> None:
    check_declaration(registry.build_implementation(stage, name))


def test_an_unknown_stage_name_or_parameter_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'coarsen'"):
        registry.implementation_table("coarsn")
    with pytest.raises(UnknownNameError, match="Did you mean 'metis'"):
        registry.load_implementation("coarsen", "mtis")
    with pytest.raises(UnknownNameError, match="Did you mean 'parts'"):
        registry.build_implementation("coarsen", "metis", {"part": 3})


def test_a_value_takes_the_place_of_a_default() -> None:
    assert registry.build_implementation("coarsen", "metis", {"parts": 3}).parts == 3


def plug_in(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Let another distribution register an implementation of `coarsen`."""
    entry = importlib.metadata.EntryPoint(name, value, "placewright.coarsen")
    monkeypatch.setattr(registry, "plugin_entry_points", lambda stage: [entry] if stage == "coarsen" else [])


def test_another_distribution_can_add_an_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "theirs", "coarsen.identity:Identity")
    assert registry.build_implementation("coarsen", "theirs") == registry.build_implementation("coarsen", "identity")
    assert "theirs" not in registry.implementation_table("embed")


def test_another_distribution_cannot_take_a_name_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "metis", "theirs:Metis")
    with pytest.raises(UsageError, match=r"coarsen\.metis"):
        registry.implementation_table("coarsen")


def test_a_package_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "theirs", "not_installed_anywhere:Theirs")
    with pytest.raises(PlacewrightError, match=r"pip install not_installed_anywhere"):
        registry.build_implementation("coarsen", "theirs")


def test_looking_at_the_tables_imports_no_implementation() -> None:
    before = set(sys.modules)
    for stage in registry.STAGES:
        registry.implementation_table(stage)
    assert {m for m in set(sys.modules) - before if m.count(".") > 1} == set()


def test_a_remedy_lists_few_names_whole_and_of_many_the_first_and_where_the_others_are() -> None:
    assert UnknownNameError("fruit", "zzz", ["fig", "apple"]).remedy == "Fruits: apple, fig."
    many = [f"apple{i:03d}" for i in range(200)]
    found = UnknownNameError("fruit", "zzz", many, "`fruit list`").remedy
    assert found == f"Fruits: {', '.join(many[:12])} and 188 more; see `fruit list`."
    assert UnknownNameError("fruit", "apple3", many).remedy.startswith("Did you mean 'apple")
