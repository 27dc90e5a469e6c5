"""Settings: where values come from, what is refused and how, and that settings survive a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.options import Choices, objective_settings, settings_from
from pipeline.core.errors import UsageError
from pipeline.settings import registry
from pipeline.settings.config import (
    LEAST,
    SECTIONS,
    Settings,
    all_section_keys,
    flatten_settings,
    from_environment,
    parse_assignment,
    parse_budget,
    read_toml,
)


def choices(**given: Any) -> Choices:
    """Return the options of a command line on which only `given` were written."""
    nothing: dict[str, Any] = dict.fromkeys(Choices.__slots__)
    return Choices(**{**nothing, "assignments": (), **given})


def test_all_unknown_keys_are_reported_at_once_each_with_the_nearest() -> None:
    wrong = {"coarsn.use": 1, "place.evaluation": 5, "coarsen.metis.part": 4, "sed": 1, "measure.use": "heter"}
    with pytest.raises(UsageError) as raised:
        Settings().updated(wrong, "test.toml")
    assert raised.value.exit_code == 2
    assert "In test.toml:" in raised.value.cause
    for key, nearest in {
        "coarsn.use": "coarsen.use",
        "place.evaluation": "place.evaluations",
        "coarsen.metis.part": "coarsen.metis.parts",
        "sed": "seed",
        "heter": "hetero",
    }.items():
        assert f"'{key}'" in raised.value.cause
        assert f"Did you mean '{nearest}'?" in raised.value.cause


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("place.evaluations", "many"),
        ("place.evaluations", 1.5),
        ("coarsen.metis.parts", "x"),
        ("coarsen.raw", 7),
        ("seed", "x"),
        ("coarsen.use", 3),
        ("coarsen.use", ["nothing"]),
        ("embed.use", ["directed"]),
        ("place.evaluator", "guess"),
        ("profile.nothing.at_all", 1),
        ("coarsen", 1),
        ("", 1),
    ],
)
def test_a_wrong_value_is_refused_and_its_key_is_named(key: str, value: Any) -> None:
    with pytest.raises(UsageError) as raised:
        Settings().updated({key: value}, "--set")
    assert key.partition(".")[0] in raised.value.cause


@pytest.mark.parametrize("key", sorted(LEAST))
def test_a_number_below_its_least_value_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="at least"):
        Settings().updated({key: 0}, "--set")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_number_that_cannot_be_meant_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="at least"):
        Settings().updated({"measure.turn_s": value}, "--set")


def test_the_keys_with_a_least_value_exist() -> None:
    assert set(LEAST) <= set(all_section_keys())


def test_later_sources_win_file_environment_assignment_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seed_and_places(**given: Any) -> tuple[int, int, int, float]:
        s = settings_from(choices(**given), Settings())
        return s.seed, s.place.evaluations, s.profile.inferences, s.budget_s

    defaults = Settings()
    assert seed_and_places() == (0, defaults.place.evaluations, defaults.profile.inferences, defaults.budget_s)
    file = tmp_path / "c.toml"
    file.write_text('seed = 1\nbudget = "1m"\nplace.evaluations = 11\n[profile]\ninferences = 21\n', encoding="utf-8")
    assert seed_and_places(config=file) == (1, 11, 21, 60.0)
    monkeypatch.setenv("PLACEWRIGHT__PLACE__EVALUATIONS", "12")
    monkeypatch.setenv("PLACEWRIGHT__PROFILE__INFERENCES", "22")
    monkeypatch.setenv("PLACEWRIGHT__SEED", "2")
    assert seed_and_places(config=file) == (2, 12, 22, 60.0)
    assignments = ("profile.inferences=23", "seed=3")
    assert seed_and_places(config=file, assignments=assignments) == (3, 12, 23, 60.0)
    assert seed_and_places(config=file, assignments=assignments, seed=4, budget="7s") == (4, 12, 23, 7.0)


def test_options_of_the_objective_are_the_settings_they_are_named_after() -> None:
    names: tuple[str, ...] = (
        "objective",
        "runtime",
        "p99",
        "min_rate",
        "max_memory",
        "max_load_time",
        "rate",
        "samples_per_query",
    )
    names += ("accuracy", "runtimes", "condition")
    options: dict[str, Any] = {**dict.fromkeys((*names, "metric")), "other": 1}
    assert objective_settings(options) == {}
    assert options == {"other": 1}
    given = {"p99": "20ms", "max_load_time": "3s", "max_memory": "2GB", "min_rate": 7.0, "rate": 5.0}
    given |= {"accuracy": "loose", "runtimes": "openvino, onnxruntime"}
    asked = objective_settings({**dict.fromkeys((*names, "metric")), **given, "metric": "a.py:top1"})
    found = Settings().updated(asked, "the options").measure
    assert (found.p99_s, found.max_load_s, found.max_memory_bytes) == (0.02, 3.0, 2 * 10**9)
    assert (found.accuracy, found.runtimes) == ("loose", ("openvino", "onnxruntime"))
    assert (found.min_rate, found.rate, found.metric) == (7.0, 5.0, str(Path("a.py:top1").absolute()))


def test_an_unknown_key_of_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWRIGHT__COARSEN__METIS__PART", "3")
    with pytest.raises(UsageError, match=r"In the environment.*coarsen\.metis\.parts"):
        settings_from(choices(), Settings())


@pytest.mark.parametrize(
    ("given", "cause", "remedy"),
    [
        ("openvino,onxruntime", "unknown runtime 'onxruntime'.", "Did you mean 'onnxruntime'?"),
        (("hetero",), "unknown runtime 'hetero'. What runs splits is --runtime.", "Known: onnxruntime, openvino."),
    ],
)
def test_a_runtime_that_is_none_is_told_with_what_was_meant(given: Any, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as raised:
        Settings().updated({"measure.runtimes": given}, "the options")
    assert raised.value.cause.endswith(cause)
    assert raised.value.remedy == remedy


def test_a_single_fault_keeps_its_own_remedy() -> None:
    with pytest.raises(UsageError) as raised:
        Settings().updated({"budget": "soon"}, "the options")
    assert raised.value.cause == "In the options: The budget 'soon' is not a duration."
    assert raised.value.remedy == "Write for example 120s or 2m."


def test_other_variables_of_the_environment_are_left_alone() -> None:
    assert from_environment({"PLACEWRIGHT_STORE": "/x", "HOME": "/y"}) == {}
    assert from_environment({"PLACEWRIGHT__COARSEN__METIS__PARTS": "4"}) == {"coarsen.metis.parts": 4}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3),
        ("a.b=3.5", 3.5),
        ("a.b=true", True),
        ("a.b=word", "word"),
        ('a.b="3"', "3"),
        ("a.b=[fold,metis]", ["fold", "metis"]),
        ("a.b=[]", []),
        ("a.b=", ""),
        (" a.b = x=y ", "x=y"),
    ],
)
def test_an_assignment_is_read_as_toml_or_as_words(text: str, value: Any) -> None:
    assert parse_assignment(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["a.b", "=3", " =3"])
def test_an_assignment_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="key=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), (90, 90), (1.5, 1.5), ("500ms", 0.5), ("2m", 120), ("1h", 3600)]
)
def test_a_budget_is_a_time(text: Any, seconds: float) -> None:
    assert parse_budget(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["0", "0s", 0, -1, "-1s", "soon", "1 2", "", True, None, float("nan"), float("inf")])
def test_a_budget_that_leaves_no_time_or_is_none_is_refused(text: Any) -> None:
    with pytest.raises(UsageError) as raised:
        parse_budget(text)
    assert raised.value.remedy


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("seed = 1\nseed 2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        read_toml(file)


@pytest.mark.parametrize("name", ["nothing.toml", ""])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_toml(tmp_path / name)


def test_flattening_keeps_lists_and_joins_keys() -> None:
    assert flatten_settings({"a": {"b": {"c": [1]}, "d": 2}, "e": 3}) == {"a.b.c": [1], "a.d": 2, "e": 3}


def test_settings_survive_json() -> None:
    settings = Settings().updated(
        {
            "devices": ["CPU", "A=CPU{INFERENCE_NUM_THREADS=1}"],
            "seed": 5,
            "coarsen.use": ["fold", "metis"],
            "coarsen.metis.parts": 4,
            "coarsen.raw": True,
            "place.use": "single",
            "embed.directed.pretrain_epochs": 0,
            "measure.turn_s": 0.01,
        },
        "test",
    )
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@given(
    st.floats(1e-9, 1e30),
    st.integers(0, 2**31),
    st.sets(st.sampled_from(sorted(registry.implementation_table("coarsen"))), min_size=1),
)
def test_any_budget_seed_and_chain_survive_json(budget_s: float, seed: int, chain: set[str]) -> None:
    settings = Settings().updated({"budget": budget_s, "seed": seed, "coarsen.use": sorted(chain)}, "test")
    assert settings.budget_s == budget_s
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_updating_leaves_the_settings_it_starts_from_as_they_were() -> None:
    first = Settings().updated({"coarsen.metis.parts": 4}, "test")
    second = first.updated({"coarsen.metis.parts": 5, "seed": 1}, "test")
    assert first.params_of("coarsen", "metis")["parts"] == 4
    assert second.params_of("coarsen", "metis")["parts"] == 5
    assert Settings() == Settings().updated({}, "test")


def test_every_key_can_be_set_to_its_default() -> None:
    for section, cls in SECTIONS.items():
        defaults = {f"{section}.{p.name}": p.default for p in registry.parameters_of(cls)}
        assert Settings().updated(defaults, "test") == Settings()


@pytest.mark.parametrize("stage", [s for s in registry.STAGES if s in SECTIONS])
def test_every_parameter_of_every_implementation_can_be_set_to_its_default(stage: str) -> None:
    for name in registry.implementation_table(stage):
        parameters = registry.parameters_of(registry.load_implementation(stage, name))
        settings = Settings().updated({f"{stage}.{name}.{p.name}": p.default for p in parameters}, "test")
        assert registry.build_implementation(
            stage, name, settings.params_of(stage, name)
        ) == registry.build_implementation(stage, name)


def test_a_tolerance_of_low_precisions_may_be_nothing_at_all_or_that_of_the_accuracy() -> None:
    settings = Settings().updated({"measure.low_tolerance": "0"}, "the test")
    assert settings.measure.low_tolerance == 0.0
    for each in (settings, Settings()):
        assert Settings.from_json(each.to_json()) == each
    with pytest.raises(UsageError, match="accuracy = 'lax', but"):
        Settings().updated({"measure.accuracy": "lax"}, "the test")
