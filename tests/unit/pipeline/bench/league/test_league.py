"""The league's protocol, entries, cells, policies and statistics."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from xml.dom import minidom

import numpy as np
import pytest

import pipeline.bench.league.run as running
import pipeline.bench.running
from pipeline.bench.cells import run_cell
from pipeline.bench.league import policies as learning
from pipeline.bench.league.arena import load_arena, with_memory_share
from pipeline.bench.league.disturbed import costs_of, rerun, with_noise
from pipeline.bench.league.entries import list_entries
from pipeline.bench.league.pages import (
    BEST,
    BRIEF,
    MAIN_PARTS,
    TITLES,
    brief_page,
    league_page,
    league_sentences,
    part_page,
    write_pages,
)
from pipeline.bench.league.protocol import (
    FULL,
    LARGE,
    PARTS,
    QUICK,
    GraphRef,
    LeagueEffort,
    LeagueInstance,
    families,
    list_instances,
    training_cases,
)
from pipeline.bench.league.ranks import ranked
from pipeline.bench.league.records import read_lines, write_lines
from pipeline.bench.league.rounds import PARTS as MAKERS
from pipeline.bench.league.rounds import LeagueRound, cells_of_round, list_rounds
from pipeline.bench.league.run import LeagueFiles, LeagueQuestion, league
from pipeline.bench.league.standings import (
    Baselines,
    BesideControl,
    beside_controls,
    break_even,
    by_instance,
    is_disturbed,
    least_values,
    rank_placers,
    ratios_after,
    seconds_to,
    value_after,
)
from pipeline.core.errors import PlacewrightError, UnknownNameError, UsageError
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.params import param
from pipeline.core.problem import Budget
from pipeline.core.stages import Recipe
from pipeline.settings import registry
from policy.place import TABLE
from policy.place.base.search import Method, Search, policy_of
from tests import ROOT

SMALL = LeagueInstance("layered", GraphRef("tiny", "layered?n=12"), topology="equal:2")
TINY = replace(
    FULL,
    seeds=2,
    evaluations=20,
    reference=40,
    seconds=0.01,
    parts=("search",),
    machines=("equal:2",),
    lessons=1,
    draws=2,
)


# Protocol


def test_graphs_to_learn_from_choose_by_and_test_on_are_disjoint() -> None:
    for family in families().values():
        drawn = [(ref.text, ref.seed) for ref in (*family.train, *family.choose, *family.test)]
        assert len(set(drawn)) == len(drawn)
        assert family.test
    for effort in (FULL, QUICK):
        learned = {(i.graph.text, i.graph.seed) for i in training_cases(effort)}
        asked = {(i.graph.text, i.graph.seed) for i in list_instances(effort)}
        assert learned
        assert not learned & asked


def test_sixteen_graphs_of_placetos_families_may_be_learned_from_and_twelve_are_asked_about() -> None:
    for name in ("nas-cnn", "nas-rnn", "nas-nmt"):
        family = families()[name]
        assert (len(family.train), len(family.choose), len(family.test)) == (16, 4, 12)


def test_a_family_that_is_left_out_is_not_learned_from_and_far_ones_never_are() -> None:
    taught = {i.family for i in training_cases(FULL)}
    assert "nas-rnn" in taught
    assert {i.family for i in training_cases(FULL, without="nas-rnn")} == taught - {"nas-rnn"}
    assert not taught & {name for name, family in families().items() if family.far}


def test_no_two_instances_share_a_name_and_machines_differ_from_those_of_training_cases() -> None:
    found = {i for each in list_rounds(PARTS, list_instances(FULL), FULL) for i in each.instances}
    assert len({i.name for i in found}) == len(found)
    (unseen,) = [part for part in PARTS if part == "unseen"]
    elsewhere = {
        (i.topology, i.links) for each in list_rounds([unseen], list_instances(FULL), FULL) for i in each.instances
    }
    assert not elsewhere & {(i.topology, i.links) for i in training_cases(FULL)}


def test_every_part_of_the_protocol_has_rounds() -> None:
    assert set(MAKERS) == set(PARTS)
    instances = [*list_instances(QUICK), *list_instances(QUICK, [LARGE])]
    for part in PARTS:
        assert {each.part for each in list_rounds([part], instances, QUICK)} == {part}


def test_instances_of_a_family_are_of_different_graphs_and_machines_take_turns() -> None:
    instances = list_instances(FULL)
    assert len(instances) >= 36
    assert len({i.graph for i in instances}) == len(instances)
    of_family = [i for i in instances if i.family == "layered"]
    assert [i.topology for i in of_family] == [FULL.machines[at % 2] for at in range(FULL.graphs)]
    (named,) = list_instances(FULL, [of_family[1].graph.label])
    assert named == of_family[1]  # a graph keeps its machine, however it is asked for


def test_three_large_graphs_are_searched_in_their_own_part_alone() -> None:
    rounds = list_rounds(PARTS, list_instances(FULL), FULL)
    (large,) = (each for each in rounds if each.part == "large")
    assert [load_arena(i).n > 10_000 for i in large.instances] == [True] * 3
    assert not {i for each in rounds if each is not large for i in each.instances} & set(large.instances)
    assert (large.budget.seconds, large.published) == (FULL.large, ())


def test_published_learners_run_on_the_small_first_graphs_of_families_in_full_and_everywhere_in_brief() -> None:
    equal, timed, *further = list_rounds(FULL.parts, list_instances(FULL), FULL)
    first = {i.family: i for i in reversed(equal.instances)}
    assert set(equal.published) == {i for i in first.values() if load_arena(i).n <= 200}
    assert {"placeto", "anneal"} <= _names(equal, equal.published[0])
    others = next(i for i in equal.instances if i not in equal.published)
    assert "anneal" in _names(equal, others)
    assert "placeto" not in _names(equal, others)
    (noise,) = (each for each in further if each.part == "noise")  # whose cells are those of equal evaluations
    assert noise.published == equal.published
    assert {each.published for each in (timed, *further) if each is not noise} == {()}
    assert all(each.published == each.instances for each in list_rounds(QUICK.parts, list_instances(QUICK), QUICK))


def _names(asked: LeagueRound, instance: LeagueInstance) -> set[str]:
    """Return the entries of a round that are asked about an instance."""
    entries, _ = list_entries(["placeto", "anneal"])
    cells = cells_of_round(replace(asked, instances=(instance,)), entries, FULL, {})
    return {cell.entry.name for cell in cells}


def test_quick_cuts_parts_short_but_not_the_search() -> None:
    full, quick = (list_rounds(["search", "unseen"], list_instances(effort), effort) for effort in (FULL, QUICK))
    assert [(each.part, each.seeds, each.control_seeds, each.slow_seeds) for each in full][:3] == [
        ("search", 5, 2, 1),
        ("search", 2, 1, 1),
        ("unseen", 1, 2, 1),
    ]
    assert [(each.part, each.seeds, each.controls) for each in quick][:3] == [
        ("search", 2, True),
        ("search", 1, False),
        ("unseen", 1, False),
    ]


def test_further_parts_take_the_first_graphs_of_each_family() -> None:
    every, timed = list_rounds(["search"], list_instances(FULL), FULL)
    (one, *_) = list_rounds(["levels"], list_instances(FULL), FULL)
    assert len({i.graph for i in every.instances if i.family == "nas-cnn"}) == 3
    for each in (timed, one):
        assert {i.family for i in each.instances} == {i.family for i in every.instances}
        assert len({i.graph for i in each.instances if i.family == "nas-cnn"}) == 1
    assert (timed.controls, one.controls) == (True, False)


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_the_clock_of_equal_evaluations_ends_solvers_and_in_brief_published_learners(effort: LeagueEffort) -> None:
    entries, _ = list_entries(["anneal", "hdp", "hsdag", "cpsat", "heft"])
    instances = list_instances(effort, ["chainmm"])
    equal, timed = list_rounds(["search"], instances, effort)
    cells = {cell.entry.name: cell.cell for cell in cells_of_round(equal, entries, effort, {})}
    assert {name: cells[name].seconds for name in ("hdp", "hsdag", "cpsat", "heft") if name in cells} == {
        **({"hdp": effort.learning} if effort.quick or equal.published else {}),
        "hsdag": None,
        "cpsat": effort.patience,
        "heft": None,
    }
    assert {c.cell.seconds for c in cells_of_round(timed, entries, effort, {}) if c.budget == timed.budget} == {
        effort.seconds
    }


def test_published_learners_have_all_the_time_that_their_evaluations_take() -> None:
    assert FULL.learning is None
    assert FULL.parts == PARTS[:-1]


def test_an_unknown_family_or_part_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nas-cnn"):
        list_instances(FULL, ["nas-cn"])
    with pytest.raises(UnknownNameError, match="memory"):
        list_rounds(["memry"], list_instances(QUICK), QUICK)


def test_a_graph_may_be_named_and_so_may_a_file(tmp_path: Path) -> None:
    assert [i.graph.label for i in list_instances(QUICK, ["chainmm"])] == ["chainmm"]
    (tmp_path / "mine.json").write_text("{}")
    assert [i.family for i in list_instances(QUICK, [str(tmp_path / "mine.json")])] == ["mine"]


def test_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="the same name"):
        list_instances(QUICK, [str(tmp_path / folder / "x.json") for folder in ("a", "b")])


# Who takes part


@dataclass(frozen=True, slots=True)
class Stubborn(Method):
    """Asks about one placement after the other, as many as it is told."""

    version: ClassVar[int] = 1
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"asks once": {"times": 1}}

    times: int = param(3, "placements")

    def run(self, search: Search, *, seed: int) -> None:
        search.simulate(np.random.default_rng(seed).integers(0, 2, (self.times, search.problem.graph.n), np.int32))


@dataclass(frozen=True, slots=True)
class Pupil(Method):
    """Counts, as its policy, how often it has learned; evaluates as many placements."""

    version: ClassVar[int] = 1
    keeps: ClassVar[bool] = True

    @property
    def recipe(self) -> Recipe | None:
        return None

    def run(self, search: Search, *, seed: int) -> None:
        inputs: PolicyInputs = policy_of(search.problem, "pupil")
        known = 0 if inputs.learned is None else int(inputs.learned.arrays["times"][0])
        search.simulate(np.zeros((known, search.problem.graph.n), np.int32))
        if inputs.checkpointer is not None:
            inputs.checkpointer.publish(Snapshot({"times": np.array([known + 1])}, {}))


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "stubborn", f"{__name__}:Stubborn")


@pytest.fixture
def pupil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "pupil", f"{__name__}:Pupil")


def test_every_registered_placer_takes_part_by_what_it_declares(stubborn: None, pupil: None) -> None:
    found, left_out = list_entries()
    assert left_out == []
    by_name = {entry.name: entry for entry in found}
    assert {e.method.placer for e in found} == set(registry.implementation_table("place"))
    assert [e.name for e in found if not e.control_of] == list(registry.implementation_table("place"))
    heft, anneal, hsdag = (by_name[name] for name in ("heft", "anneal", "hsdag"))
    assert (heft.kind, heft.is_rule, heft.method.seeded, heft.method.learned) == ("lists", True, False, False)
    assert (anneal.kind, anneal.is_rule, anneal.method.seeded) == ("local", False, True)
    assert (hsdag.kind, hsdag.method.learned, hsdag.keeps) == ("learned", True, True)
    control = by_name["stubborn: asks once"]
    assert (control.control_of, control.method.params, control.method.seeded) == ("stubborn", {"times": 1}, True)
    assert by_name["pupil"].keeps


def test_a_placer_whose_package_is_missing_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"random": registry.implementation_table("place")["random"], "odd": "no_such_package.odd:Odd"}
    monkeypatch.setattr(registry, "implementation_table", lambda _: table)
    found, left_out = list_entries()
    assert [e.name for e in found] == ["random"]
    assert len(left_out) == 1
    assert "no_such_package" in left_out[0]
    with pytest.raises(PlacewrightError, match="no_such_package"):
        list_entries(["odd"])


# Statistics, by hand


def record(method: str, model: str, value_s: float | None, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "model": model,
        "family": model[0],
        "value_s": value_s,
        "seed": 0,
        "single_s": 10.0,
        "kind": "local",
        "rule": False,
        "learned": False,
        "control_of": "",
        "infeasible": value_s is None,
        "failed": None if value_s is not None else "it does not fit",
        "seconds": 2.0,
        "cpu_s": 1.0,
        "limit_s": None,
        "evaluations": 100,
        "planned": 0,
        "curve": [[1, 0.1, 10.0], [50, 1.0, value_s or 10.0]],
        **more,
    }


REFERENCE = [record("anneal", "a1", 4.0), record("anneal", "a1", 9.0, seed=1), record("anneal", "b1", 5.0)]
RECORDS = [
    record("quick", "a1", 3.0),
    record("quick", "a1", 3.0, seed=1),
    record("quick", "b1", 10.0),
    record("heft", "a1", 6.0, rule=True, kind="lists"),
    record("heft", "b1", 4.0, rule=True, kind="lists"),
    record("single", "a1", 10.0, rule=True, kind="rules"),
    record("single", "b1", None, rule=True, kind="rules"),
]


def test_seeds_come_before_instances_and_an_instance_that_lacks_one_is_left_out() -> None:
    assert by_instance(REFERENCE) == {"a1": pytest.approx(6.0), "b1": pytest.approx(5.0)}
    assert by_instance([*REFERENCE, record("anneal", "a1", None, seed=2)]) == {"b1": pytest.approx(5.0)}


def test_standings_are_those_computed_by_hand() -> None:
    elsewhere = [record("slow", "a1", 2.5), record("slow", "a1", None, seed=1), record("slow", "b1", 5.0)]
    known = least_values([*RECORDS, *elsewhere])
    assert known == {"a1": 2.5, "b1": 4.0}
    baselines = Baselines.of(RECORDS, REFERENCE, {"a1": 2.0, "b1": 4.0}, known)
    assert baselines.best == {"a1": 3.0, "b1": 4.0}
    assert baselines.rule == {"a1": 6.0, "b1": 4.0}
    heft, quick, single = rank_placers(RECORDS, baselines)
    assert (heft.placer, quick.placer, single.placer) == ("heft", "quick", "single")
    assert quick.ratio is not None
    assert heft.ratio is not None
    assert heft.ratio.median == pytest.approx((6 / 6 * 4 / 5) ** 0.5)
    assert quick.ratio.median == pytest.approx((3 / 6 * 10 / 5) ** 0.5)
    assert (quick.ratio.low, quick.ratio.high) == (pytest.approx(0.5), pytest.approx(2.0))  # either instance twice
    assert quick.families == {"a": pytest.approx(0.5), "b": pytest.approx(2.0)}
    assert quick.rule_ratio == pytest.approx((3 / 6 * 10 / 4) ** 0.5)
    assert quick.rule_families == {"a": pytest.approx(0.5), "b": pytest.approx(2.5)}
    assert quick.bound_ratio == pytest.approx((3 / 2 * 10 / 4) ** 0.5)
    assert quick.known_ratio == pytest.approx((3 / 2.5 * 10 / 4) ** 0.5)
    assert (quick.wins, quick.losses, quick.best) == (0.5, 0.5, 0.5)
    assert (heft.wins, heft.losses, heft.best) == (0.5, 0.0, 0.5)
    assert quick.not_worse_single == 1.0
    assert quick.not_worse_heft == pytest.approx(2 / 3)  # of three cells
    assert (single.instances, single.infeasible, single.failed) == (1, 1, ())
    assert (quick.seconds, quick.cpu_s, quick.evaluations, quick.cells) == (2.0, 1.0, 100.0, 3)


def test_a_claim_is_borne_out_where_the_whole_interval_of_enough_instances_is_below_its_control() -> None:
    models = [f"a{i}" for i in range(8)]
    claim = [record("quick", model, 3.0) for model in models]

    def beside(values_s: list[float]) -> BesideControl:
        controls = [
            record("quick: never learns", model, value_s, control_of="quick")
            for model, value_s in zip(models, values_s, strict=False)
        ]
        (pair,) = beside_controls([*claim, *controls])
        return pair

    pair = beside([6.0, 3.75] * 4)
    assert (pair.placer, pair.control, pair.instances) == ("quick", "quick: never learns", 8)
    assert pair.ratio.median == pytest.approx((0.5 * 0.8) ** 0.5)
    assert pair.verdict == "better"
    assert beside([6.0, 1.5] * 4).verdict == "not told apart"
    assert beside([2.0, 1.5] * 4).verdict == "worse"
    far = beside([5.0, 2.857] * 4)  # by much on one half, by little the other way on the other
    assert far.ratio.high < 1
    assert far.verdict == "not told apart"
    assert beside([6.0] * 7).verdict == "too few instances to tell"
    assert pair.p == pytest.approx(2 / 2**8)  # all eight on one side
    assert beside([3.0] * 8).p == 1.0


def test_a_control_of_fewer_seeds_is_compared_on_those_that_both_have() -> None:
    claim = [record("quick", f"m{i}", value_s, seed=seed) for i in range(8) for seed, value_s in enumerate((3.0, 1.0))]
    controls = [record("quick: never learns", f"m{i}", 6.0, control_of="quick") for i in range(8)]
    (pair,) = beside_controls([*claim, *controls])
    assert pair.ratio.median == pytest.approx(0.5)


TEN = [
    record(method, f"i{i}", value_s * (1 + i))
    for method, values in {
        "quick": [2.0] * 10,
        "level": [2.2, 1.9, 2.2, 1.9, 2.2, 1.9, 2.2, 1.9, 2.2, 2.2],
        "slow": [4.0] * 10,
        "partial": [1.0] * 9,
    }.items()
    for i, value_s in enumerate(values)
]


def test_ranks_and_critical_differences_are_those_computed_by_hand() -> None:
    table = ranked(TEN, ["partial", "level", "quick", "slow"])
    assert table is not None
    # who lacks an instance is not ranked; quick is first on six instances, level on four
    assert table.ranks == {"quick": pytest.approx(1.4), "level": pytest.approx(1.6), "slow": 3.0}
    assert list(table.ranks) == ["quick", "level", "slow"]
    assert table.difference == pytest.approx(2.343 * (3 * 4 / (6 * 10)) ** 0.5, rel=1e-3)  # Demšar's table 5
    level, slow = table.pairs
    assert (level.best, level.other, slow.other) == ("quick", "level", "slow")
    assert slow.ratio.median == pytest.approx(0.5)
    assert slow.p == pytest.approx(2 / 2**10)
    assert slow.holm_p == pytest.approx(2 * slow.p)
    assert level.holm_p == level.p > 0.05
    assert table.friedman_p < 0.001


def test_few_instances_or_placers_are_not_ranked() -> None:
    assert ranked([r for r in TEN if r["model"] < "i7"], ["level", "quick", "slow"]) is None
    assert ranked(TEN, ["quick", "slow"]) is None


def test_placers_that_are_alike_everywhere_share_ranks_and_no_test_tells_them_apart() -> None:
    same = [record(name, f"i{i}", 2.0) for name in ("a", "b", "c") for i in range(8)]
    table = ranked(same, ["a", "b", "c"])
    assert table is not None
    assert set(table.ranks.values()) == {2.0}
    assert (table.friedman_p, {pair.holm_p for pair in table.pairs}) == (1.0, {1.0})


def test_where_nobody_has_a_placement_nobody_is_blamed() -> None:
    records = [record("heft", "a1", None, rule=True), record("single", "a1", None, rule=True)]
    assert [row.infeasible for row in rank_placers(records, Baselines.of(records, REFERENCE, {}, {}))] == [0, 0]


def test_what_failed_for_another_reason_is_told() -> None:
    broken = record("quick", "a1", None, infeasible=False, failed="out of luck")
    (row,) = rank_placers([broken], Baselines.of([broken], REFERENCE, {}, {}))
    assert (row.ratio, row.failed, row.infeasible) == (None, ("out of luck",), 0)


def test_a_curve_is_read_at_a_limit_and_none_before_it_begins() -> None:
    curve = [[2, 0.5, 9.0], [40, 2.0, 6.0]]
    assert value_after(curve, 1, seconds=False) is None
    assert value_after(curve, 39, seconds=False) == 9.0
    assert value_after(curve, 2.0, seconds=True) == 6.0
    assert seconds_to(curve, 6.0) == 2.0
    assert seconds_to(curve, 5.9) is None


def test_ratios_along_the_way_are_those_computed_by_hand() -> None:
    found = ratios_after(RECORDS[:3], {"a1": 6.0, "b1": 5.0}, (0, 1, 50), seconds=False)
    first = ((10 / 6) * (10 / 5)) ** 0.5
    assert found == {"quick": [None, pytest.approx(first), pytest.approx((3 / 6 * 10 / 5) ** 0.5)]}


def test_learning_is_repaid_by_what_graphs_save() -> None:
    assert break_even(100.0, [3.0, 1.0]) == 50.0
    assert break_even(100.0, [-1.0, 0.5]) is None
    assert break_even(100.0, []) is None


# Cells


class Counting:
    """Stands for `run_cell`: counts, and interrupts at one cell."""

    def __init__(self, interrupted: int = -1) -> None:
        self.cells: list[str] = []
        self.interrupted = interrupted

    def __call__(self, cell: Any, *rest: Any) -> dict[str, Any]:
        if len(self.cells) == self.interrupted:
            raise KeyboardInterrupt
        self.cells.append(f"{cell.name} {cell.evaluations} {cell.seed}")
        return run_cell(cell, *rest)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counting]:
    def fresh(interrupted: int = -1) -> Counting:
        made = Counting(interrupted)
        monkeypatch.setattr(pipeline.bench.running, "run_cell", made)
        return made

    return fresh


@pytest.fixture(autouse=True)
def _one_small_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "list_instances", lambda *_: [SMALL])
    monkeypatch.setattr(pipeline.bench.running, "compile_kernels", lambda *_, **__: None)


QUESTION = LeagueQuestion(("random", "heft", "stubborn"))
ALL = [
    *(f"anneal 40 {seed}" for seed in (0, 1)),
    *(f"random 20 {seed}" for seed in (0, 1)),
    "heft 20 0",
    *(f"stubborn 20 {seed}" for seed in (0, 1)),
    *(f"stubborn: asks once 20 {seed}" for seed in (0, 1)),
    *(f"{name} None {seed}" for name in ("random",) for seed in (0, 1)),
    "heft None 0",
    *(f"stubborn None {seed}" for seed in (0, 1)),
    "stubborn: asks once None 0",
]


@pytest.mark.usefixtures("stubborn")
def test_an_interrupted_league_goes_on_and_finished_cells_are_not_run_again(
    tmp_path: Path, counting: Callable[..., Counting]
) -> None:
    first = counting(interrupted=4)
    with pytest.raises(KeyboardInterrupt):
        league(QUESTION, TINY, LeagueFiles(tmp_path))
    shown = [name for name in ALL if not name.startswith("anneal 20") and not name.startswith("anneal None")]
    assert set(first.cells) < set(shown)
    second = counting()
    document = league(QUESTION, TINY, LeagueFiles(tmp_path))
    assert sorted(first.cells + second.cells) == sorted([*shown, *_reference_too(shown, first, second)])
    third = counting()
    again = league(QUESTION, TINY, LeagueFiles(tmp_path))
    assert third.cells == []
    assert again["cells"] == document["cells"]


def _reference_too(shown: list[str], *runs: Counting) -> list[str]:
    """Return the cells of the reference at the budget of others, which it has as well."""
    ran = [name for run in runs for name in run.cells]
    extra = [name for name in ran if name not in shown]
    assert all(name.startswith("anneal") for name in extra)
    return extra


@pytest.mark.usefixtures("stubborn")
def test_a_raised_version_of_a_placer_runs_its_cells_again_and_no_others(
    tmp_path: Path, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    league(QUESTION, TINY, LeagueFiles(tmp_path))
    monkeypatch.setattr(Stubborn, "version", 2)
    again = counting()
    league(QUESTION, TINY, LeagueFiles(tmp_path))
    assert sorted(again.cells) == sorted(name for name in ALL if name.startswith("stubborn"))


@pytest.mark.usefixtures("stubborn")
def test_more_seeds_run_the_new_ones_alone(tmp_path: Path, counting: Callable[..., Counting]) -> None:
    league(QUESTION, TINY, LeagueFiles(tmp_path))
    more = counting()
    league(QUESTION, replace(TINY, seeds=3), LeagueFiles(tmp_path))
    assert {name.rpartition(" ")[2] for name in more.cells} == {"2"}
    assert not any(name.startswith("heft") for name in more.cells)


@pytest.mark.usefixtures("stubborn")
def test_a_league_goes_on_from_a_file_of_records_alone_and_says_the_same(
    tmp_path: Path, counting: Callable[..., Counting]
) -> None:
    kept, effort = tmp_path / "kept.jsonl.gz", replace(TINY, parts=("search", "noise"))
    first = league(QUESTION, effort, LeagueFiles(tmp_path / "first", records=kept))
    lines = read_lines(kept)
    assert len(lines) == len(first["cells"])
    again = counting()
    second = league(QUESTION, effort, LeagueFiles(tmp_path / "second", records=kept))
    assert again.cells == []
    assert [table["standings"] for table in second["tables"]] == [
        [
            {**row, **{name: pytest.approx(row[name], abs=1e-4) for name in ("seconds", "cpu_s")}}
            for row in table["standings"]
        ]
        for table in first["tables"]
    ]
    assert second["tables"][-1]["noise"] == first["tables"][-1]["noise"]  # from placements
    before = kept.read_bytes()
    write_lines(kept, lines[::-1])
    assert kept.read_bytes() == before


@pytest.mark.usefixtures("stubborn")
def test_records_of_others_stay_in_a_file_and_those_of_another_version_are_run_again(
    tmp_path: Path, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.jsonl.gz"
    league(QUESTION, TINY, LeagueFiles(tmp_path / "first", records=kept))
    told = [{**line, "machine": "another one"} for line in read_lines(kept)]
    write_lines(
        kept, [{**r, "failed": "its worker died", "value_s": None} if r["method"] == "random" else r for r in told]
    )
    monkeypatch.setattr(Stubborn, "version", 2)
    again = counting()
    question = LeagueQuestion(("stubborn", "random"))
    document = league(question, TINY, LeagueFiles(tmp_path / "second", records=kept))
    assert sorted(again.cells) == sorted(name for name in ALL if name.startswith(("stubborn", "random")))
    machine = {line["method"]: line["machine"] for line in read_lines(kept)}
    assert len(read_lines(kept)) == len(told)
    assert machine["heft"] == machine["anneal"] == "another one" != machine["stubborn"]
    assert document["machines"] == sorted({"another one", machine["stubborn"]})


def test_a_file_that_holds_no_records_is_refused_before_anything_runs(
    tmp_path: Path, counting: Callable[..., Counting]
) -> None:
    kept, ran = tmp_path / "kept.jsonl.gz", counting()
    for content in (b"", b"no gzip", gzip.compress(b"[1]\n"), gzip.compress(b'{"schema": "placewright.league/1"}\n')):
        kept.write_bytes(content)
        with pytest.raises(UsageError, match="holds no records of a league"):
            league(LeagueQuestion(("heft",)), TINY, LeagueFiles(tmp_path, records=kept))
        assert kept.read_bytes() == content
    assert ran.cells == []


def test_what_does_not_fit_is_an_answer_and_not_tried_again(
    tmp_path: Path, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "list_instances", lambda *_: [replace(SMALL, share=0.01)])
    document = league(LeagueQuestion(("heft",)), TINY, LeagueFiles(tmp_path))
    assert all(cell["infeasible"] for cell in document["cells"])
    again = counting()
    league(LeagueQuestion(("heft",)), TINY, LeagueFiles(tmp_path))
    assert again.cells == []


def test_cells_that_the_clock_ended_on_a_busy_machine_run_again_if_that_is_asked_for(
    tmp_path: Path, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = LeagueQuestion(("random",))
    league(question, TINY, LeagueFiles(tmp_path))
    monkeypatch.setattr(running, "is_disturbed", lambda record, limit_s: limit_s is not None and record["seed"] == 1)
    plain = counting()
    league(question, TINY, LeagueFiles(tmp_path))
    assert plain.cells == []
    retried = counting()
    league(question, TINY, LeagueFiles(tmp_path), retry=True)
    assert sorted(retried.cells) == ["anneal None 1", "random None 1"]


def test_a_search_is_disturbed_where_the_clock_ended_it_and_others_had_the_processor() -> None:
    assert is_disturbed({"seconds": 6.1, "cpu_s": 4.0}, 6.0)
    assert not is_disturbed({"seconds": 6.1, "cpu_s": 5.0}, 6.0)
    assert not is_disturbed({"seconds": 2.0, "cpu_s": 0.5}, 6.0)  # it ended by itself


# What was learned before


@pytest.mark.usefixtures("pupil")
def test_policies_go_from_graph_to_graph_and_are_learned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,), _ = list_entries(["pupil"])
    graphs = [replace(SMALL, graph=GraphRef(f"g{i}", "layered?n=12", seed=i)) for i in range(3)]
    known = learning.learn_policy(entry, graphs, Budget(10), tmp_path, lambda: None)
    assert known is not None
    assert known.policy.arrays["times"].tolist() == [3]
    steps = {path.name for path in tmp_path.iterdir()}
    assert len(steps) == 3
    monkeypatch.setattr(Pupil, "run", lambda *_, **__: pytest.fail("it learns again"))
    assert learning.learn_policy(entry, graphs, Budget(10), tmp_path, lambda: None) is not None
    monkeypatch.setattr(Pupil, "version", 2)
    with pytest.raises(BaseException, match="learns again"):
        learning.learn_policy(entry, graphs, Budget(10), tmp_path, lambda: None)


@pytest.mark.usefixtures("pupil")
def test_taught_placers_stand_beside_those_that_begin_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [replace(SMALL, family=f, graph=GraphRef(f, "layered?n=12", seed=9)) for f in ("layered", "others")]
    monkeypatch.setattr(running, "training_cases", lambda _, without="": [i for i in cases if i.family != without])
    document = league(LeagueQuestion(("pupil",)), replace(TINY, parts=("transfer",)), LeagueFiles(tmp_path))
    whole = next(t for t in document["tables"] if t["title"] == "20 evaluations")
    spent = {row["placer"]: row["evaluations"] for row in whole["standings"]}
    assert spent["pupil: taught"] == spent["pupil"] + 2
    assert spent["pupil: taught elsewhere"] == spent["pupil"] + 1
    (row,) = document["lessons"]
    assert row["placer"] == "pupil"
    assert row["cells"] == 2  # seeds of the reference and of the pupil


@pytest.mark.usefixtures("pupil")
def test_a_placer_that_cannot_learn_is_noted_and_runs_untaught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise UsageError("Too large.", "Take a smaller one.")

    monkeypatch.setattr(running, "training_cases", lambda _, without="": [SMALL])
    monkeypatch.setattr(running, "learn_policy_interruptible", refuse)
    document = league(LeagueQuestion(("pupil",)), replace(TINY, parts=("transfer",)), LeagueFiles(tmp_path))
    assert document["notes"] == ["pupil could not learn: Too large. Take a smaller one."] * 2
    assert [row["placer"] for row in document["tables"][0]["standings"]] == ["pupil"]
    assert document["lessons"] == []


# Instances


def test_caps_divide_what_one_device_alone_would_hold() -> None:
    here = load_arena(replace(SMALL, graph=GraphRef("c", "nas-nmt?index=0")))
    problem = here.case.problem
    assert problem is not None
    whole = float(here.case.bind(here.case.subject.grouping).simulate(np.zeros((1, here.n), np.int32)).peak_bytes.sum())
    tight = with_memory_share(problem, "T2", 1.5)
    assert [d.memory_bytes for d in tight.devices] == [int(0.75 * whole)] * 2
    assert [d.memory_bytes for d in with_memory_share(problem, "T2", np.inf).devices] == [0, 0]


def test_links_are_scaled_and_levels_and_orders_make_cases_of_their_own() -> None:
    base, slow = load_arena(SMALL), load_arena(replace(SMALL, links=0.1))
    ratio = base.case.subject.topology.link_bytes_per_s[0, 1] / slow.case.subject.topology.link_bytes_per_s[0, 1]
    assert ratio == pytest.approx(10.0)
    identities = [
        load_arena(i).case.identity for i in (SMALL, replace(SMALL, level="T0"), replace(SMALL, ordered=True))
    ]
    assert len({str(sorted(i.items())) for i in identities}) == 3


def test_instances_of_giph_bring_their_own_devices() -> None:
    (instance,) = list_instances(QUICK, ["giph-index0"])
    here = load_arena(instance)
    assert len(here.case.devices) == 20
    assert not costs_of(here.case).supported.all()


# Placements where they were not looked for


def test_noise_moves_all_devices_of_a_kind_alike_and_none_moves_nothing(tmp_path: Path) -> None:
    league(LeagueQuestion(("random",)), TINY, LeagueFiles(tmp_path))
    case = load_arena(SMALL).case
    names = case.subject.graph.names
    placement = {n: case.devices[i % 2] for i, n in enumerate(names)}
    swapped = {n: case.devices[1 - i % 2] for i, n in enumerate(names)}
    rows = [record("x", "?", 1.0, placement=p, priority=None) for p in (placement, swapped)]
    quiet = rerun(case, rows)
    assert quiet[0]["value_s"] == pytest.approx(quiet[1]["value_s"])
    assert [r["value_s"] for r in with_noise(case, rows[:1], 0.0, 1)] == [pytest.approx(quiet[0]["value_s"])]
    first, second = with_noise(case, rows, 0.2, 1)
    assert first["value_s"] == pytest.approx(second["value_s"])
    assert first["value_s"] != pytest.approx(quiet[0]["value_s"])
    assert first["found_s"] == 1.0
    assert with_noise(case, rows, 0.2, 1)[0]["value_s"] == first["value_s"]


# What people read


@pytest.mark.usefixtures("stubborn")
def test_the_pages_have_every_table_and_their_pictures_are_whole(tmp_path: Path) -> None:
    parts = ("search", "levels", "order", "noise", "unseen")
    document = league(QUESTION, replace(TINY, parts=parts), LeagueFiles(tmp_path, tmp_path / "docs" / "named.md"))
    first, brief = (tmp_path / "league.md").read_text(), (tmp_path / "docs" / "named.md").read_text()
    assert first == league_page(document)
    assert brief == brief_page(document, "named")
    for table in document["tables"]:
        text = (tmp_path / f"league-{table['part']}.md").read_text()
        assert text == part_page(document, table["part"])
        assert table["title"].removeprefix("On ") in text
        assert (table["title"].removeprefix("On ") in brief) == (table["part"] in MAIN_PARTS)
    linked = set(re.findall(r"\((league[^)]*\.md)\)", first))
    assert linked == {path.name for path in tmp_path.glob("league-*.md")}
    assert SMALL.name in (tmp_path / "league-instances.md").read_text()
    drawn = sorted((tmp_path / "docs").glob("named-*.svg"))
    names = {path.stem for path in drawn}
    assert {f"named-equal-evaluations-20-evaluations-{kind}" for kind in ("curves", "intervals")} < names
    for path in drawn:
        minidom.parse(str(path))
        assert path.name in brief
    assert any("`stubborn` over its control `asks once`" in line for line in league_sentences(document))
    assert "`stubborn` over its control `asks once`" in (tmp_path / "league-search.md").read_text()


@pytest.mark.usefixtures("stubborn")
def test_what_a_placer_plans_by_itself_is_counted_and_told(tmp_path: Path) -> None:
    document = league(LeagueQuestion(("heft", "neural_list")), TINY, LeagueFiles(tmp_path))
    (row,) = (row for row in document["tables"][0]["standings"] if row["placer"] == "neural_list")
    assert row["planned"] > TINY.evaluations  # for its first question alone it plans dozens
    assert f"| {row['planned']:,.0f} |" in (tmp_path / "league-search.md").read_text()
    planned = {cell["method"]: cell["planned"] for cell in document["cells"]}
    assert planned["heft"] == 0


def test_ranks_and_tests_of_pairs_are_in_the_tables_in_words_and_drawn(tmp_path: Path) -> None:
    table = {
        "part": "search",
        "title": "Equal",
        "instances": [f"i{i}" for i in range(10)],
        "standings": [],
        "unseen": [],
        "controls": [],
        "curve": {"by": "evaluations", "limits": [], "ratios": {}},
        "ranks": asdict(ranked(TEN, ["quick", "level", "slow"])),
    }
    document = {
        "reference": "anneal",
        "settings": asdict(FULL),
        "question": asdict(LeagueQuestion()),
        "machines": ["a processor, 2 processors"],
        **{name: [] for name in ("notes", "instances", "cells")},
        "tables": [table],
    }
    said = " ".join(league_sentences(document))
    assert "quick has the least mean rank; its seconds are fewer than those of slow (0.500), by paired tests" in said
    assert "it is not told apart from level (0.9" in said
    (level, slow) = table["ranks"]["pairs"]
    turned = {**table["ranks"], "pairs": [level, {**slow, "ratio": {"median": 1.2, "low": 1.1, "high": 1.3}}]}
    said = " ".join(league_sentences({**document, "tables": [{**table, "ranks": turned}]}))
    assert "its seconds are more than those of slow (1.200 [1.100, 1.300]), by paired tests" in said
    page = part_page(document, "search")
    assert "| slow | 3.00 | 0.500 | 0.004 |" in page
    assert "league-equal-ranks.svg" in page
    write_pages(document, tmp_path / "league.md")
    drawing = minidom.parse(str(tmp_path / "league-equal-ranks.svg"))
    words = [text.firstChild.data for text in drawing.getElementsByTagName("text")]
    assert {"quick", "level", "slow", "1.40", "1.60", "3.00"} <= set(words)
    bars = {
        line.getAttribute("class"): [float(line.getAttribute(end)) for end in ("x1", "x2")]
        for line in drawing.getElementsByTagName("line")
        if "interval" in line.getAttribute("class")
    }
    assert bars["interval best"][1] < bars["interval other"][0]  # quick and slow, drawn last, are told apart


def test_the_page_of_the_documents_has_the_form_that_is_written_and_the_parts_of_its_command() -> None:
    page = (ROOT / "docs" / "league.md").read_text(encoding="utf-8")
    (options,) = re.findall("`placewright bench league(.*) --out DIR --page docs/league.md`", page)
    assert BRIEF.format(options=options, reference="anneal", evaluations=10_000, best=BEST) in page
    named = re.findall("--parts ([a-z,]+)", options)
    parts = named[0].split(",") if named else (QUICK if "--quick" in options else FULL).parts
    assert re.findall("^## (.*)$", page, re.MULTILINE) == [
        "In words",
        *(TITLES[part] for part in MAIN_PARTS if part in parts),
    ]


def test_a_page_names_the_command_that_makes_it(tmp_path: Path) -> None:
    effort = replace(FULL, seeds=2, evaluations=20, seconds=0.01, parts=("noise",))
    question = LeagueQuestion(("heft", "random"), ("layered-3",))
    league(question, effort, LeagueFiles(tmp_path, tmp_path / "brief.md"))
    told = (
        "league --methods heft,random --instances layered-3 --parts noise --seeds 2 --evaluations 20 --seconds 0.01 "
        "--out DIR"
    )
    assert told in (tmp_path / "league.md").read_text()
    assert told in (tmp_path / "brief.md").read_text()


def test_a_reference_that_was_not_asked_for_is_in_no_table(tmp_path: Path) -> None:
    document = league(LeagueQuestion(("heft",)), TINY, LeagueFiles(tmp_path))
    assert [row["placer"] for row in document["tables"][0]["standings"]] == ["heft"]
    write_pages(document, tmp_path / "again" / "league.md")
    assert (tmp_path / "again" / "league.md").read_text() == (tmp_path / "league.md").read_text()
