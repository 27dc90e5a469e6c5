"""What the keys of a run's stages are made of beside its settings: packages, and the placers that a placer calls."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import pipeline.settings.declared
import pipeline.stages.choices
import pipeline.stages.stage
from pipeline.bench.methods import BenchMethod, versions_of
from pipeline.core.problem import Budget
from pipeline.core.simulation import DataflowModel, LatencyModel, PipelineModel, SequentialModel
from pipeline.core.stages import CompositePlacer
from pipeline.offline.scenario import Scenario, load
from pipeline.offline.search import Effort, _with_checkpoints
from pipeline.result.notes import placing_notes
from pipeline.result.result import read_versions
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import is_ours, placers_called
from pipeline.stages.execution import forecast_tasks
from pipeline.stages.host import HostMachine, ModelFile, installed_version, look_at_machine
from pipeline.stages.plan import plan_tasks, with_seed
from pipeline.store.store import Entry, Store, file_digest, write_json
from pipeline.store.task import Outcome, Task, why_not
from pipeline.testing.simulated import SIMULATORS, simulator_of, wide_problem
from policy.place import portfolio
from policy.place.base.search import Search
from policy.place.exact.pipelined import dpl
from policy.place.exact.shared import objectives
from policy.place.exact.shared.objectives import OBJECTIVES
from policy.place.learned.hsdag.hsdag import Hsdag
from policy.place.lists.etf import Etf
from policy.place.local.anneal import Anneal
from policy.place.portfolio import LARGE, Portfolio, parts
from policy.place.rules.catalogue import LINEAR_RULES, RULES
from tests.toys import ignore_progress

PLACERS = registry.implementation_table("place")


@pytest.fixture
def unremembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let versions change although the source text does not."""
    monkeypatch.setattr(pipeline.settings.declared, "recall_answer", lambda question, answer: answer())


def tasks(**values: Any) -> dict[str, Task]:
    """Return stage -> task of a run with the placer `portfolio`, unless the settings say otherwise."""
    named = {"place.use": ("portfolio",)} | {key.replace("__", "."): value for key, value in values.items()}
    settings = Settings().updated(named, "the test")
    return {t.stage: t for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, HostMachine((), {}, "here"))}


def why(after: Task, before: Task) -> str:
    return why_not(after.parts, before.parts)


# Packages


def test_another_openvino_reads_the_model_again_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = installed_version("openvino")
    assert old == metadata.version("openvino") == read_versions()["openvino"]
    before = tasks()
    known = {name: metadata.version(name) for name in ("onnxruntime", "onnx")}
    monkeypatch.setattr(metadata, "version", lambda name: "2099.1" if name == "openvino" else known[name])
    after = tasks()
    assert {stage for stage in after if after[stage].key == before[stage].key} == set()
    assert why(after["read"], before["read"]) == f"changed: openvino {old} -> 2099.1"
    assert why(after["kernels"], before["kernels"]) == "changed: new read"


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-distribution") == "not installed"


# Files that parameters name


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("coarsen", "fuse"),
        ("embed", "directed"),
        ("group", "edge_score"),
        ("place", "portfolio"),
        ("measure", "hetero"),
    ],
)
def test_the_content_of_a_file_that_a_parameter_names_is_part_of_the_key(
    stage: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_file(asked: str, called: str, *given: Any) -> pipeline.settings.declared.Declaration:
        found = pipeline.settings.declared.read_declaration(asked, called, *given)
        if (asked, called) != (stage, name):
            return found
        return replace(found, files=["table"], params={**found.params, "table": str(tmp_path / "table")})

    for module in (pipeline.stages.stage, pipeline.stages.choices):
        monkeypatch.setattr(module, "read_declaration", with_file)
    (tmp_path / "table").write_text("1")
    both = {"place__use": ("portfolio", "hsdag")}
    before = tasks(**both)
    assert tasks(**both)[stage].key == before[stage].key
    (tmp_path / "table").write_text("2")
    after = tasks(**both)
    assert after[stage].key != before[stage].key
    assert after["read"].key == before["read"].key


def test_where_a_file_lies_that_a_setting_names_is_no_part_of_the_key_and_steps_get_its_path(tmp_path: Path) -> None:
    def planned(folder: str, text: str) -> dict[str, Task]:
        metric, record = tmp_path / folder / "quality.py", tmp_path / folder / "record.json"
        metric.parent.mkdir()
        metric.write_text(text)
        record.write_text("{}")
        return tasks(
            place__use=("anneal",),
            place__evaluator="replay",
            measure__replay__path=str(record),
            measure__metric=f"{metric}:whole",
        )

    text = "def whole(outputs):\n    return 1.0\n"
    one, moved, changed = planned("one", text), planned("moved", text), planned("changed", text + "\n")
    assert [one[stage].key for stage in one] == [moved[stage].key for stage in one]
    assert {stage for stage in one if one[stage].key != changed[stage].key} >= {"profile", "measure"}
    for task in (one["measure"], one["profile"]):
        settings = task.params_here["settings" if task.stage == "measure" else "measuring"]
        assert settings["metric"] == f"{tmp_path / 'one' / 'quality.py'}:whole"
    assert one["place"].params_here["evaluator"][1]["path"] == str(tmp_path / "one" / "record.json")
    assert str(tmp_path) not in json.dumps([task.parts for task in one.values()])


# Placers that call others


def test_a_raised_version_of_a_placer_changes_the_keys_of_those_that_call_it(
    monkeypatch: pytest.MonkeyPatch, unremembered: None
) -> None:
    cases: Mapping[str, dict[str, Any]] = {
        "anneal": {"place__use": ("anneal",)},
        "portfolio": {},
        "hsdag": {"place__use": ("hsdag",)},
        "cold hsdag": {"place__use": ("hsdag",), "place__hsdag__warm": 0.0},
        "heft": {"place__use": ("heft",)},
    }
    before = {name: tasks(**values)["place"] for name, values in cases.items()}
    monkeypatch.setattr(Anneal, "version", Anneal.version + 1)
    after = {name: tasks(**values)["place"] for name, values in cases.items()}
    assert [name for name in cases if before[name].key != after[name].key] == [
        "anneal",
        "portfolio",
        "hsdag",
        "cold hsdag",
    ]
    words = f"changed: place.anneal version {Anneal.version - 1} -> {Anneal.version}"
    assert {why(after[name], before[name]) for name in cases if name != "heft"} == {words}


@pytest.mark.parametrize(
    ("values", "placers", "learned"),
    [
        ({"budget": 60.0, "place__use": ("portfolio", "hsdag")}, ["portfolio"], False),
        ({"budget": 120.0, "place__use": ("portfolio", "hsdag")}, ["portfolio", "hsdag"], True),
        ({"budget": 10.0, "place__use": ("hsdag", "portfolio")}, ["hsdag", "portfolio"], True),
        ({"budget": 10.0, "place__use": ("greedy",)}, ["greedy"], False),
        ({"budget": 10.0, "place__use": ("greedy",), "group__use": "cluster"}, ["greedy"], True),
    ],
)
def test_learners_and_what_they_learn_from_take_part_where_they_have_time_or_were_chosen(
    values: dict[str, Any], placers: list[str], learned: bool
) -> None:
    found = tasks(**values)
    assert [name for name, _ in found["place"].params["use"]] == placers
    assert ({"embed", "group"} <= set(found)) == learned


def test_the_words_for_a_run_name_the_placer_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unremembered: None
) -> None:
    previous = {stage: task.parts for stage, task in tasks().items()}
    monkeypatch.setattr(Anneal, "version", Anneal.version + 1)
    rows = {row["stage"]: row["why"] for row in forecast_tasks(list(tasks().values()), Store(tmp_path), previous)}
    assert rows["place"] == f"changed: place.anneal version {Anneal.version - 1} -> {Anneal.version}"
    assert rows["measure"] == "changed: new place"
    assert rows["coarsen"] == "not in the store any more"


@pytest.mark.parametrize(
    ("placer", "values", "changes"),
    [("portfolio", {}, True), ("hsdag", {}, True), ("hsdag", {"warm": 0.0}, True), ("heft", {}, False)],
)
def test_so_it_does_with_the_cells_of_a_benchmark(
    placer: str, values: dict[str, float], changes: bool, monkeypatch: pytest.MonkeyPatch, unremembered: None
) -> None:
    method = BenchMethod("row", placer, values)
    before = versions_of(method, method.build())
    monkeypatch.setattr(Anneal, "version", Anneal.version + 1)
    after = versions_of(method, method.build())
    assert (before != after) is changes
    assert (after.get("place.anneal") == Anneal.version) is changes


def test_so_it_does_with_what_a_search_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unremembered: None
) -> None:
    case = load(Scenario("zoo:layered", "equal:2")).with_policy()

    def contexts() -> list[str]:
        effort = Effort("hsdag", checkpoint=tmp_path / "kept")
        problems = [_with_checkpoints(case, effort, Hsdag(warm=warm)).problem for warm in (0.3, 0.0)]
        return [problem.policy.checkpointer.context for problem in problems]

    warm, cold = contexts()
    monkeypatch.setattr(Etf, "version", Etf.version + 1)  # which the portfolio calls
    assert [a == b for a, b in zip(contexts(), (warm, cold), strict=True)] == [False, True]


def test_who_calls_whom_is_followed_to_the_end() -> None:
    assert placers_called("heft") == ()
    assert placers_called("cpsat") == ("heft", "dpl", "latency_dp")
    assert set(placers_called("portfolio")) == set(Portfolio.placers)
    assert set(placers_called("hsdag")) == {"portfolio", *Portfolio.placers}
    assert set(placers_called("hsdag", {"warm": 0.0})) == {"neural_list", "anneal", "multilevel", *LINEAR_RULES}


def test_a_portfolio_declares_exactly_what_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    models = (None, SequentialModel(), DataflowModel(), PipelineModel(), LatencyModel())
    assert set(Portfolio.placers) == {name for n in (1, LARGE + 1) for model in models for name in parts(n, model)}
    assert len(Portfolio.placers) == len(set(Portfolio.placers))
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(portfolio))) if isinstance(node, ast.Call)]
    named = [c.args[1] for c in calls if isinstance(c.func, ast.Name) and c.func.id == "_part"]
    literal = {name.value for name in named if isinstance(name, ast.Constant)}
    for limit in (LARGE, 1):
        monkeypatch.setattr(portfolio, "LARGE", limit)
        for rules in SIMULATORS:
            search = Search(wide_problem(), simulator_of(wide_problem(), rules), Budget(10), ignore_progress)
            literal |= set(Portfolio(solvable=10**6)._members(search)) - set(portfolio.ONCE)
    assert set(Portfolio.placers) == {*RULES, *literal}


CALLING = {
    "policy.place.rules.catalogue.RULES": RULES,
    "policy.place.rules.catalogue.LINEAR_RULES": LINEAR_RULES,
    "policy.place.exact.pipelined.dpl.begin_with_orders": ("dpl",),
}


def starts_of_objectives() -> set[str]:
    """Return the placers by whose names objectives ask about starts for solvers."""
    modules = [target.partition(":")[0] for target in OBJECTIVES.values()]
    texts = [inspect.getsource(importlib.import_module(m)) for m in (*modules, objectives.__name__, dpl.__name__)]
    return {name for text in texts for name in re.findall(r'limited\("(\w+)"', text)}


@pytest.mark.parametrize("name", [name for name in PLACERS if is_ours("place", name)])
def test_a_placer_declares_the_placers_that_its_module_imports(name: str) -> None:
    module, _, own = PLACERS[name].partition(":")
    known = {where.replace(":", "."): other for other, where in PLACERS.items()}
    text = inspect.getsource(importlib.import_module(module))
    tree = ast.parse(text)
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    built = registry.build_implementation("place", name)
    declared = built.placers if isinstance(built, CompositePlacer) else ()
    named = {other for path, others in CALLING.items() if path in imported for other in others}
    if "objective.begin(" in text:
        named |= starts_of_objectives()
    found = {known[path] for path in imported & known.keys()} | named
    # What a portfolio calls besides, the members of objectives, is counted by the test above.
    assert set(declared) == found - {own} if name != "portfolio" else set(declared) >= found


# Words


def test_what_is_used_is_told_only_where_nothing_else_changed() -> None:
    one, two = tasks()["place"], tasks(place__use=("anneal",))["place"]
    assert "place.heft" in one.version
    assert "place.heft" not in why(two, one)
    more = replace(one, version={**one.version, "place.new": 3})
    assert why(more, one) == "changed: new place.new"
    assert why(one, more) == "changed: no place.new"


def test_an_implementation_is_named_with_its_stage() -> None:
    version = tasks(coarsen__use=("metis",))["coarsen"].version
    assert version == {
        "step": 2,
        "coarsen.fold": 1,
        "coarsen.metis": registry.load_implementation("coarsen", "metis").version,
    }


@pytest.mark.parametrize(
    ("halves", "changed", "first"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"measure.runtime": "auto"}, False),
        (True, {"measure.settings": False}, False),
    ],
)
def test_on_halves_of_one_cpu_settings_go_before_placements_unless_a_runtime_is_asked_for(
    halves: bool, changed: dict[str, Any], first: bool
) -> None:
    machine = HostMachine(({"name": "A"}, {"name": "B"}), {}, "here", halves=halves)
    settings = Settings().updated(changed, "the test")
    found = {t.stage: t.params for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, machine)}
    assert [bool(found[stage]["settings_first"]) for stage in ("place", "measure")] == [first] * 2
    assert not first or found["place"]["reward"] == "simulated"
    asked = Settings().updated({**changed, "place.reward": "measured"}, "the test")
    found = {t.stage: t.params for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), asked, machine)}
    assert found["place"]["reward"] == "measured"


def test_it_is_told_what_placing_on_halves_of_one_cpu_is_predicted_to_reach(tmp_path: Path) -> None:
    machine = HostMachine(({"name": "A"}, {"name": "B"}), {}, "here", halves=True)
    (task,) = (t for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), Settings(), machine) if t.stage == "place")
    searches = [{"value_s": 0.002, "lower_bound_s": 0.0015}, {"value_s": None, "lower_bound_s": 0.001}]
    write_json(tmp_path / "searches.json", searches)
    entry = Entry(tmp_path, "", {}, {}, {"searches.json": file_digest(tmp_path / "searches.json")})
    (note,) = placing_notes(Outcome(task, entry, ran=True, why="", seconds=0.0), 2)
    assert "the best placement is predicted to take 2.00 ms (lower bound 1.50 ms). Device properties" in note
    (note,) = placing_notes(Outcome(task, entry, ran=True, why="", seconds=0.0), 1)
    assert "nothing was placed" in note
    plain = replace(task, params={**task.params, "settings_first": ""})
    assert placing_notes(Outcome(plain, entry, ran=True, why="", seconds=0.0), 2) == []


def test_parts_that_nobody_named_have_their_whole_device_behind_them() -> None:
    machine = look_at_machine(())
    parts = [d["name"] for d in machine.devices if d["name"] != d["plugin"]]
    assert [d["name"] for d in machine.whole] == (["CPU"] if len(parts) == len(machine.devices) else [])
    assert look_at_machine(("A=CPU{INFERENCE_NUM_THREADS=1}",)).whole == ()


@pytest.mark.parametrize(
    ("changed", "devices", "behind"),
    [
        ({}, ["CPU"], []),
        ({"place.use": ["anneal"]}, ["A", "B"], ["CPU"]),
        ({"measure.runtime": "auto"}, ["A", "B"], ["CPU"]),
    ],
)
def test_where_nothing_is_placed_on_halves_the_cpu_is_one_device(
    changed: dict[str, Any], devices: list[str], behind: list[str]
) -> None:
    whole = ({"name": "CPU", "properties": {}},)
    halves = HostMachine(({"name": "A"}, {"name": "B"}), {}, "here", halves=True, whole=whole)
    settings = Settings().updated(changed, "the test")
    found = {t.stage: t.params for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, halves)}
    assert [d["name"] for d in found["profile"]["devices"]] == devices
    assert [d["name"] for d in found["measure"]["devices"]] == devices
    assert [d["name"] for d in found["profile"].get("whole", [])] == behind
    assert bool(found["measure"]["settings_first"]) == (not changed or "place.use" in changed)


@pytest.mark.parametrize("changed", [{}, {"place.use": ["hsdag"], "coarsen.use": ["fuse", "metis"], "budget": "600s"}])
def test_a_plan_with_another_seed_is_that_of_the_settings_with_it(changed: dict[str, Any]) -> None:
    machine = HostMachine(({"name": "A", "properties": {}},), {}, "here", (("CPU", "bf16"),))
    zero, five = (
        plan_tasks(
            ModelFile(Path("m.xml"), "0" * 64), Settings().updated({**changed, "seed": seed}, "the test"), machine
        )
        for seed in (0, 5)
    )
    assert with_seed(zero, 5) == five
    assert [t.key for t in with_seed(zero, 5)] == [t.key for t in five]
    assert zero != five


@pytest.mark.parametrize(
    ("changed", "shared"),
    [
        ({}, {"coarsen"}),
        ({"coarsen.use": "metis"}, set()),
        ({"coarsen.use": ["colocate", "identity"], "embed.use": "identity"}, {"coarsen", "embed"}),
        ({"embed.use": "identity", "group.use": "cluster"}, {"coarsen", "embed", "group"}),
    ],
)
def test_runs_of_other_seeds_share_the_stages_in_which_nothing_is_random(
    changed: dict[str, Any], shared: set[str]
) -> None:
    machine = HostMachine(({"name": "A", "properties": {}},), {}, "here", (("CPU", "bf16"),))
    learning = {"place.use": ["hsdag"], **changed}
    runs = [
        {t.stage: t.key for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, machine)}
        for settings in (Settings().updated({**learning, "seed": seed}, "the test") for seed in (0, 5))
    ]
    stages = ("coarsen", "embed", "group", "place")
    assert {stage for stage in stages if runs[0][stage] == runs[1][stage]} == shared
