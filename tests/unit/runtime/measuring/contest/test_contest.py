"""Contests of variants whose true speed is known: who is tried, who leaves, who wins, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from benchmarks.false_claims import KINDS, NAMES, QUIET, Machine, claims_on, contest_on, false_claims
from pipeline.core.deadline import Deadline
from pipeline.core.devices import DeviceSpec
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.placing.comparison import order_variants
from runtime.measuring.contest.contenders import QUIETEST, UNSEEN, Contender, noise_of
from runtime.measuring.contest.contest import Contest, _near_leader, run_contest
from runtime.measuring.contest.pair_bench import Part, Start
from runtime.measuring.contest.statistics import TWIN, Rules
from runtime.measuring.contest.variant import Variant, VariantKind
from runtime.measuring.process.child import ChildError
from tests.slow import slow_but

REFUSED = MeasurementFailed("refused", "not this model")


@dataclass
class Clock:
    """Stands still but for what the bench spends."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Truth:
    """A bench where variants take the seconds given here, times the noise of each start.

    calls: (part, number, name, pairs) of every start. cost_s: what a start spends on the clock.
    """

    seconds: dict[str, float]
    sd: float = 0.005
    clock: Clock = field(default_factory=Clock)
    cost_s: float = 0.0
    calls: list[tuple[str, int, str, int]] = field(default_factory=list)
    fails: dict[str, list[MeasurementFailed]] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def start(
        self, variant: Variant, control: Variant, *, part: Part, number: int, pairs: int, seconds: float = 0.0
    ) -> Start | MeasurementFailed:
        self.calls.append((part, number, variant.name, pairs))
        self.clock.now += self.cost_s
        if self.fails.get(variant.name):
            failed = self.fails[variant.name].pop(0)
            if variant is control:
                raise ChildError(failed)
            return failed
        true = self.seconds[control.name if variant.name == TWIN else variant.name]
        value = true * math.exp(self.rng.normal(0, self.sd))
        return Start((value,) * pairs, (self.seconds[control.name],) * pairs, (value,), {"compile_s": 0.1})

    def count(self, name: str, part: Part) -> int:
        return sum(call[0] == part and call[2] == name for call in self.calls)


@dataclass
class Slow(Truth):
    """The same; starts of a part and of a variant, or of one number alone, take 1.7 times as long."""

    slow: set[tuple[Any, ...]] = field(default_factory=set)

    def start(self, variant: Variant, control: Variant, **how: Any) -> Start | MeasurementFailed:
        begun = super().start(variant, control, **how)
        key = how["part"], variant.name
        if isinstance(begun, Start) and {key, (*key, how["number"])} & self.slow:
            return replace(begun, variant_s=tuple(1.7 * s for s in begun.variant_s))
        return begun


@dataclass
class Held(Truth):
    """The same; shares of the time for which a variant waits for processors."""

    waits: dict[str, float] = field(default_factory=dict)

    def start(self, variant: Variant, control: Variant, **how: Any) -> Start | MeasurementFailed:
        begun = super().start(variant, control, **how)
        share = self.waits.get(variant.name, 0.0)
        told: Any = {"compile_s": 0.1, "requests": 1, "threads": {"CPU": 2}}
        return replace(begun, waited_share=share, loaded=told) if isinstance(begun, Start) else begun


@dataclass
class Computing(Truth):
    """The same; the only plug-in computes in bf16."""

    def start(self, variant: Variant, control: Variant, **how: Any) -> Start | MeasurementFailed:
        begun = super().start(variant, control, **how)
        told: Any = {"compile_s": 0.1, "precisions": {variant.target: "bf16"}}
        return replace(begun, loaded=told) if isinstance(begun, Start) else begun


@dataclass
class Reporting(Truth):
    """The same; what the plug-in reports of a variant is its name unless said."""

    reported: dict[str, str] = field(default_factory=dict)

    def start(self, variant: Variant, control: Variant, **how: Any) -> Start | MeasurementFailed:
        begun = super().start(variant, control, **how)
        told: Any = {"compile_s": 0.1, "requests": 1}
        told |= {"reported": {"NAME": self.reported.get(variant.name, variant.name)}}
        return replace(begun, loaded=told) if isinstance(begun, Start) else begun


@dataclass
class Loading(Truth):
    """The same; a start takes what loading does and its turns, and what was compiled before is loaded in half the time.

    load_s: what compiling takes, of the control as well, which is loaded once for a number.
    """

    load_s: float = 1.0
    compiled: set[str] = field(default_factory=set)
    holds: tuple[str, int] = ("", 0)

    def start(self, variant: Variant, control: Variant, **how: Any) -> Start | MeasurementFailed:
        loaded = [variant.identity]
        if self.holds != (held := (control.identity, how["number"] if how["part"] == "final" else 0)):
            self.holds, loaded = held, [control.identity, variant.identity]
        for identity in loaded:
            self.clock.now += self.load_s / (2 if identity in self.compiled else 1)
            self.compiled.add(identity)
        pair_s = self.seconds[variant.name if variant.name != TWIN else control.name] + self.seconds[control.name]
        pairs = max(how["pairs"], math.ceil(how["seconds"] / max(pair_s, 0.02)))
        self.clock.now += pairs * max(pair_s, 0.02)
        begun = super().start(variant, control, **{**how, "pairs": pairs})
        each_s = pairs * max(pair_s, 0.02) / 2
        return replace(begun, turns_s=(each_s, each_s)) if isinstance(begun, Start) else begun


def variant(name: str, kind: VariantKind = "settings", *, single: bool = True) -> Variant:
    device = DeviceSpec("CPU", "CPU", "CPU", {"NAME": name}, "cpu")
    return Variant(name, "settings", "CPU", (device,), single=single, kind=kind)


def compete(
    truth: Truth,
    *variants: Variant,
    seconds: float | None = None,
    around: dict[str, list[Variant]] | None = None,
    everyone: bool = False,
    settings: MeasureSettings | None = None,
) -> Contest:
    def explore(best: Variant) -> Sequence[Variant]:
        return (around or {}).get(best.name, [])

    deadline = Deadline.after(seconds, truth.clock)
    asked = settings or MeasureSettings()
    return run_contest(variants, explore, truth, asked, deadline, say=lambda text: None, everyone=everyone)


DEFAULT, DEVICE = variant("default", "default"), variant("half", "device")


def test_the_faster_settings_are_claimed_over_the_best_baseline() -> None:
    truth = Truth({"default": 1.0, "half": 2.0, "fast": 0.8, "slow": 1.5})
    found = compete(truth, DEFAULT, DEVICE, variant("fast"), variant("slow"))
    assert (found.control, found.default) == ("default", "default")
    assert found.judgement is not None
    assert found.judgement.claimed == ("fast",)
    assert found.judgement.ratios["fast"].ratio == pytest.approx(1.25, rel=0.02)


def test_the_control_is_the_fastest_baseline_of_one_device_not_what_is_searched_or_chosen_by_the_runtime() -> None:
    auto = variant("auto", "own choice", single=False)
    truth = Truth({"default": 1.0, "half": 0.9, "auto": 0.5, "fast": 0.4})
    found = compete(truth, DEFAULT, DEVICE, auto, variant("fast"))
    assert found.control == "half"
    assert found.default == "default"
    assert truth.count("default", "final")  # the answer's gain over the plug-in's default needs its starts
    assert found.between("fast", "default")[1] == pytest.approx(math.log(1.0 / 0.4), abs=0.05)


def test_where_nothing_is_faster_nothing_is_claimed_and_it_ends_early() -> None:
    truth = Truth({"default": 1.0, "a": 1.0, "b": 1.01}, sd=0.002)
    found = compete(truth, DEFAULT, variant("a"), variant("b"))
    assert found.judgement is not None
    assert found.judgement.claimed == ()
    assert 3 <= truth.count(TWIN, "final") < MeasureSettings().starts


def test_a_hint_that_is_far_behind_has_no_more_starts_than_tell_that_and_the_default_stays_in_any_case() -> None:
    truth = Truth({"half": 1.0, "default": 2.0, "hint": 2.0, "fast": 0.9})
    found = compete(truth, DEFAULT, DEVICE, variant("hint", "hint"), variant("fast"))
    assert (found.entries["hint"].left, found.entries["default"].left) == ("clearly slower", "")
    assert truth.count("hint", "final") == Rules().least_starts < truth.count("fast", "final")
    assert truth.count("default", "final") == truth.count("fast", "final")


def test_a_baseline_takes_the_place_of_the_default_only_after_several_starts() -> None:
    truth = Truth({"default": 1.0, "half": 0.5, "fast": 0.9}, sd=0.0, cost_s=1.0)
    for seconds, control in ((6.0, "default"), (60.0, "half")):  # of the first, two starts are for the screening
        entries = compete(replace(truth, clock=Clock()), DEFAULT, DEVICE, variant("fast"), seconds=seconds)
        assert entries.control == control


def test_every_baseline_has_a_first_start_before_the_time_is_spent_on_settings() -> None:
    many = [variant(f"v{i}") for i in range(9)]
    truth = Truth({"default": 1.0, "half": 0.9, **{v.name: 0.9 for v in many}}, cost_s=1.0)
    found = compete(truth, DEFAULT, *many, DEVICE, seconds=14.0)
    assert truth.count("half", "screening") >= 1
    assert truth.count("v0", "screening") == 1
    assert found.entries["v8"].left == "not tried within the budget"


def test_a_gain_over_the_control_is_none_where_the_default_is_as_fast() -> None:
    slow_once = Slow({"default": 1.0, "half": 1.3, "copy": 1.0}, slow={("screening", "default")})
    found = compete(slow_once, DEFAULT, DEVICE, variant("copy"))
    assert found.beside == "half"  # the default was seen at 1.7 in all its starts of the screening
    assert found.judgement is not None
    assert found.judgement.claimed == ()
    assert found.control == "default"  # ratios are to the better of the two
    assert found.judgement.ratios["half"].ratio == pytest.approx(1 / 1.3, rel=0.02)
    assert found.judgement.ratios["copy"].ratio == pytest.approx(1.0, rel=0.02)
    assert found.standing("copy") == pytest.approx(math.log(found.judgement.ratios["copy"].ratio))
    assert found.standing("default") == 0.0


def test_of_baselines_that_differ_by_less_than_counts_the_default_is_the_control() -> None:
    truth = Truth({"default": 1.0, "half": 0.99, "fast": 0.9}, sd=0.001)
    found = compete(truth, DEFAULT, DEVICE, variant("fast"))
    assert (found.beside, found.control) == ("half", "default")
    assert found.judgement is not None
    assert found.judgement.ratios["fast"].ratio == pytest.approx(1 / 0.9, rel=0.01)


def test_the_best_baseline_is_told_by_the_starts_there_are_and_one_bad_start_does_not_count() -> None:
    few = Truth({"default": 1.0, "half": 0.9, "fast": 0.95}, sd=0.001, cost_s=1.0)
    found = compete(few, DEFAULT, DEVICE, variant("fast"), settings=MeasureSettings(starts=2))
    assert found.control == "half"
    bad = Slow({"default": 1.0, "half": 0.9, "fast": 0.95}, sd=0.001, slow={("final", "half", 2)})
    found = compete(bad, DEFAULT, DEVICE, variant("fast"), settings=MeasureSettings(starts=3))
    assert found.control == "half"


def test_another_baseline_near_the_control_is_compared_and_must_be_beaten_too() -> None:
    truth = Truth({"default": 1.0, "half": 0.985, "fast": 0.972}, sd=0.001)
    found = compete(truth, DEFAULT, DEVICE, variant("fast"))
    assert found.judgement is not None
    assert found.control == "default"  # from which the other differs by less than counts
    assert found.judgement.ratios["fast"].low > 1.02
    assert found.judgement.claimed == ()  # 2.9 % over the default, 1.3 % over the best baseline


def test_variants_that_the_plug_in_runs_alike_are_one_and_the_baseline_stands_for_them() -> None:
    alike = {"default": "2 threads", "2 threads": "2 threads", "half": "1 thread", "1 thread": "1 thread"}
    truth = Reporting({"default": 1.0, "2 threads": 0.8, "1 thread": 0.9, "half": 0.9, "fast": 0.9}, reported=alike)
    found = compete(truth, DEFAULT, variant("2 threads"), variant("1 thread"), DEVICE, variant("fast"))
    assert found.entries["2 threads"].left == "duplicate of default"
    assert found.entries["1 thread"].same_as == "half"  # which was tried after it
    assert not truth.count("2 threads", "final") + truth.count("1 thread", "final")
    assert len(found.entries["default"].screened) >= 2
    everyone = compete(truth, DEFAULT, variant("2 threads"), everyone=True)
    assert everyone.entries["2 threads"].same_as == ""


BAD = 4.1 / 2.4


@pytest.mark.parametrize("bad", [("control", 1), ("default", 1)])
@pytest.mark.parametrize("seconds", [8.0, 10.0, 15.0, 45.0])
def test_one_bad_start_of_the_default_in_the_screening_makes_no_copy_of_it_a_gain(
    bad: tuple[str, int], seconds: float
) -> None:
    # Seen on a real machine: 4.1 ms for 2.4 made a device of one thread the control, and the copy 1.352 times as fast.
    true = {"default": 2.4e-3, "hint": 9e-3, "half": 1.352 * 2.4e-3, **dict.fromkeys(NAMES, 2.4e-3 / 0.995)}
    for seed in range(5):
        machine = Machine(true, {name: name for name in true}, np.random.default_rng(seed), bad={bad: BAD})
        found = contest_on(machine, seconds)
        assert found.judgement is None or found.judgement.claimed == ()
        assert found.control == "default"


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_machines_with_several_baselines_and_bad_starts_make_few_false_claims(kind: str) -> None:
    contests = 40
    wrong = [bool(false_claims(Machine.drawn(kind, seed, gain=0.0), 15.0 + seed)) for seed in range(contests)]
    assert sum(wrong) <= 0.05 * contests


def test_a_true_gain_is_found_beside_several_baselines_and_copies_of_them() -> None:
    contests = 30
    found = [NAMES[0] in claims_on(Machine.drawn(QUIET, seed, gain=0.05), 45.0) for seed in range(contests)]
    assert sum(found) >= 0.9 * contests


def test_where_the_fastest_is_not_known_for_certain_the_contest_goes_on() -> None:
    truth = Truth({"default": 1.0, "fast": 0.5, "close": 0.502}, sd=0.01)
    found = compete(truth, DEFAULT, variant("fast"), variant("close"))
    assert found.judgement is not None
    assert set(found.judgement.claimed) == {"fast", "close"}
    assert truth.count("fast", "final") > Rules().look


@pytest.mark.parametrize(("seconds", "near"), [(0.99, True), (2.0, False)])
def test_the_runtimes_own_choice_is_compared_if_it_is_near_the_fastest(seconds: float, near: bool) -> None:
    auto = variant("auto", "own choice", single=False)
    truth = Truth({"default": 1.0, "auto": seconds, "fast": 0.98}, sd=0.0)
    compete(truth, DEFAULT, auto, variant("fast"))
    assert (truth.count("auto", "final") > 0) == near


def test_who_begins_one_start_ends_the_next() -> None:
    truth = Truth({"default": 1.0, "fast": 0.9, "close": 0.905})
    compete(truth, DEFAULT, variant("fast"), variant("close"))
    first, second = ([call[2] for call in truth.calls if call[:2] == ("final", number)] for number in (1, 2))
    assert len(first) == 3
    assert second == first[::-1]


def test_a_decided_contest_ends_at_the_look() -> None:
    truth = Truth({"default": 1.0, "fast": 0.5})
    compete(truth, DEFAULT, variant("fast"))
    assert truth.count("fast", "final") == Rules().look


def test_who_is_clearly_slower_gets_no_further_start() -> None:
    slow = [variant(f"slow {i}") for i in range(8)]
    truth = Truth({"default": 1.0, "fast": 0.8, **{v.name: 1.6 for v in slow}})
    found = compete(truth, DEFAULT, *slow, variant("fast"))
    assert all(truth.count(v.name, "screening") == 1 for v in slow)
    assert sorted(truth.count(v.name, "final") for v in slow) == [*[0] * 7, 3]  # two settings are compared in any case
    assert {found.entries[v.name].left for v in slow} == {"clearly slower"}


def short(*log_ratios: float) -> Contender:
    """Return who has had a start in the screening for each of these, of one pair of turns."""
    starts = {i: Start((math.exp(-x),), (1.0,), (1.0,), {}) for i, x in enumerate(log_ratios, 1)}
    return Contender(variant("v"), starts)


def test_noise_is_what_the_starts_of_variants_show() -> None:
    assert noise_of([short(0.1), short(0.4)]) == pytest.approx(UNSEEN)  # nobody has had two
    assert noise_of([short(0.1, 0.3), short(0.5, 0.7)]) == pytest.approx(math.sqrt(0.02))
    assert noise_of([short(0.1, 0.1)]) == QUIETEST
    scattered = Contender(variant("v"), {1: Start((1.0, math.exp(0.3)), (1.0, 1.0), (1.0,), {})})
    assert noise_of([scattered]) == pytest.approx(math.hypot(UNSEEN, 1.2533 * 0.15), rel=1e-3)


@pytest.mark.parametrize(("starts", "near"), [(1, 0.0282), (2, 0.0244), (4, 0.0223)])
def test_four_standard_deviations_of_a_difference_from_the_leader_are_near(starts: int, near: float) -> None:
    # Starts that agree have the least noise, 0.5 %; that of a difference is sqrt(1 + 1 / starts) times as much.
    leader, close, far = (short(advance, advance) for advance in (0.1, 0.1 - near, 0.1 - near - 1e-4))
    baseline = Contender(variant("b", "device"), short(-1.0, -1.0).screened)
    assert _near_leader([far, baseline, close, leader], starts) == [leader, close, baseline]
    assert (far.left, close.left, baseline.left) == ("clearly slower", "", "")


def test_of_settings_and_a_split_that_noise_cannot_tell_apart_settings_have_the_time() -> None:
    split = variant("split", "split", single=False)
    truth = Truth({"default": 1.0, "split": 0.495, "fast": 0.5}, sd=0.0, cost_s=1.0)
    found = compete(truth, DEFAULT, split, variant("fast"), seconds=12.0)
    assert truth.count("fast", "final")
    assert found.entries["split"].left == "not compared within the budget"


def test_it_is_told_at_once_how_long_comparing_all_would_take() -> None:
    truth, said = Truth({"default": 1.0, "a": 1.0, "b": 1.0}, cost_s=2.0), list[str]()
    run_contest(
        [DEFAULT, variant("a"), variant("b")],
        lambda best: [],
        truth,
        MeasureSettings(),
        Deadline.after(20.0, truth.clock),
        say=said.append,
    )
    assert said[1].startswith("comparing all would take about")
    assert said[1].endswith("18 s are left for it")


def test_no_more_finalists_than_asked_for_meet_the_control_and_the_fastest_are_among_them() -> None:
    many = [variant(f"v{i}") for i in range(10)]
    truth = Truth({"default": 1.0, **{v.name: 0.95 + 0.004 * i for i, v in enumerate(many)}}, sd=0.0)
    found = compete(truth, DEFAULT, *many, settings=MeasureSettings(finalists=3))
    assert [v.name for v in many if truth.count(v.name, "final")] == ["v0", "v1", "v2"]
    assert found.entries["v9"].left


def test_neighbours_of_the_best_settings_are_tried_and_can_win() -> None:
    near, far = variant("near"), variant("far")
    truth = Truth({"default": 1.0, "coarse": 0.9, "near": 0.8, "far": 0.6})
    found = compete(truth, DEFAULT, variant("coarse"), around={"coarse": [near], "near": [far]})
    assert found.judgement is not None
    assert found.judgement.claimed[0] == "far"


def test_a_variant_that_is_refused_says_why_and_the_others_go_on() -> None:
    truth = Truth({"default": 1.0, "fast": 0.8}, fails={"split": [REFUSED]})
    found = compete(truth, DEFAULT, variant("split", "split", single=False), variant("fast"))
    assert found.entries["split"].failed == REFUSED
    assert truth.count("split", "screening") == 1
    assert found.judgement is not None
    assert found.judgement.claimed == ("fast",)


def test_a_variant_that_was_killed_once_has_a_second_chance() -> None:
    killed = MeasurementFailed("crashed", "killed by SIGKILL")
    truth = Truth({"default": 1.0, "fast": 0.8}, fails={"fast": [killed]})
    assert compete(truth, DEFAULT, variant("fast")).entries["fast"].failed is None
    twice = Truth({"default": 1.0, "fast": 0.8}, fails={"fast": [killed, killed]})
    assert compete(twice, DEFAULT, variant("fast")).entries["fast"].failed == killed


def test_a_baseline_that_does_not_run_is_passed_over() -> None:
    truth = Truth({"half": 1.0, "fast": 0.8}, fails={"default": [REFUSED, REFUSED]})
    found = compete(truth, DEFAULT, DEVICE, variant("fast"))
    assert (found.control, found.default) == ("half", "")
    assert found.entries["default"].failed == REFUSED


def test_where_nothing_runs_there_is_no_control() -> None:
    truth = Truth({}, fails={"default": [REFUSED], "fast": [REFUSED]})
    found = compete(truth, DEFAULT, variant("fast"))
    assert (found.control, found.judgement) == ("", None)
    assert [e.failed for e in found.entries.values()] == [REFUSED, REFUSED]


@pytest.mark.parametrize("seconds", [5.0, 20.0, 60.0, 300.0])
def test_the_deadline_is_kept_but_for_one_round_of_starts(seconds: float) -> None:
    many = [variant(f"v{i}") for i in range(64)]
    truth = Truth({"default": 1.0, **{v.name: 1.0 for v in many}}, sd=0.02, cost_s=1.0)
    compete(truth, DEFAULT, *many, seconds=seconds)
    assert truth.clock.now <= seconds + 4  # a last round, or the least number of starts


def test_where_nothing_that_is_searched_fits_the_control_and_the_default_have_their_starts() -> None:
    truth = Truth({"default": 1.0, "a": 1.0}, sd=0.0, cost_s=1.0)
    found = compete(truth, DEFAULT, variant("a"), seconds=7.0)
    assert truth.count("a", "final") == 0
    assert found.entries["a"].left == "not compared within the budget"
    assert truth.count(TWIN, "final") == Rules().least_starts
    assert found.judgement is not None
    assert (found.judgement.ratios, found.missing_s > 0) == ({}, True)


def test_time_for_a_part_of_a_round_goes_to_the_fastest() -> None:
    class Slowing(Truth):
        def start(self, *variants: Variant, **how: Any) -> Start | MeasurementFailed:
            self.cost_s = 2.2 if how["part"] == "final" and how["number"] > 3 else 1.0
            return super().start(*variants, **how)

    truth = Slowing({"default": 1.0, "a": 0.9, "b": 0.905, "c": 0.91}, sd=0.01)
    found = compete(truth, DEFAULT, *map(variant, "abc"), seconds=31.0)  # five rounds, had they all been that short
    assert truth.count(TWIN, "final") == truth.count("a", "final") > truth.count("b", "final") > 0
    assert [found.entries[name].left for name in "ab"] == ["", "no time for further starts"]
    assert truth.clock.now <= 31.0


def test_variants_without_time_for_them_are_told() -> None:
    many = [variant(f"v{i}") for i in range(20)]
    truth = Truth({"default": 1.0, **{v.name: 1.0 for v in many}}, cost_s=1.0)
    found = compete(truth, DEFAULT, *many, seconds=10.0)
    assert found.entries["v19"].left == "not tried within the budget"
    assert found.entries["v0"].screened


def test_everyone_stays_to_the_end_if_asked() -> None:
    truth = Truth({"half": 1.0, "a": 5.0, "b": 0.2})
    found = compete(truth, DEVICE, variant("a"), variant("b"), everyone=True, settings=MeasureSettings(starts=6))
    assert truth.count("a", "final") == truth.count("b", "final") == 6
    assert found.judgement is not None
    assert set(found.judgement.ratios) == {"a", "b"}


def test_variants_need_different_names_and_none_may_be_called_the_twin() -> None:
    for name in ("default", TWIN):
        with pytest.raises(ValueError, match="different names"):
            compete(Truth({}), DEFAULT, variant(name))


@pytest.mark.parametrize("sd", slow_but([0.01, 0.03], quick=1))
def test_whole_contests_of_identical_variants_claim_no_more_than_the_level(sd: float) -> None:
    claims = 0
    for seed in range(150):
        truth = Truth({"default": 1.0, **dict.fromkeys("abcdef", 1.0)}, sd=sd, rng=np.random.default_rng(seed))
        found = compete(truth, DEFAULT, *map(variant, "abcdef"))
        claims += bool(found.judgement and found.judgement.claimed)
    assert claims <= 0.05 * 150


def test_whole_contests_find_a_true_gain_of_five_percent() -> None:
    hits = 0
    for seed in range(30):
        seconds = {"default": 1.0, "a": 1 / 1.05, **dict.fromkeys("bcd", 1.0)}
        truth = Truth(seconds, sd=0.015, rng=np.random.default_rng(seed))
        found = compete(truth, DEFAULT, *map(variant, "abcd"))
        hits += bool(found.judgement and "a" in found.judgement.claimed)
    assert hits >= 0.9 * 30


@pytest.mark.parametrize(("latency_s", "load_s"), [(0.0002, 0.1), (0.004, 0.8), (0.02, 0.5), (0.05, 1.0), (0.004, 1.5)])
def test_in_18_seconds_the_default_and_the_two_best_settings_have_three_starts(latency_s: float, load_s: float) -> None:
    settings = [variant(f"s{i}") for i in range(12)]
    seconds = {"default": latency_s, "half": 1.8 * latency_s, "other": 1.8 * latency_s, "auto": latency_s}
    seconds |= {v.name: latency_s * (0.8 + 0.05 * i) for i, v in enumerate(settings)}
    own, other = variant("auto", "own choice", single=False), variant("other", "device")
    truth = Loading(seconds, load_s=load_s)
    truth.clock.now = -18.0
    found = compete(truth, DEFAULT, *settings, DEVICE, other, own, seconds=18.0)
    starts = {name: len(entry.final) for name, entry in found.entries.items()}
    assert [starts[name] >= 3 for name in (TWIN, "s0", "s1")] == [True] * 3, starts
    assert truth.clock.now <= 1.0


def test_the_default_settings_their_neighbours_hints_devices_and_then_splits_are_tried() -> None:
    wide, pinned, hint = variant("wide"), variant("pinned"), variant("hint", "hint")
    split, own = variant("split", "split", single=False), variant("own", "own choice", single=False)
    truth = Truth(dict.fromkeys(("default", "wide", "pinned", "hint", "half", "split", "own"), 1.0))
    known = order_variants([hint, DEFAULT, DEVICE, own, wide], [split], settings_first=True)
    compete(truth, *known, around={"wide": [pinned]})
    tried = list(dict.fromkeys(name for part, _, name, _ in truth.calls if part == "screening"))
    assert tried == ["default", "wide", "pinned", "hint", "half", "split", "own"]


def test_two_settings_are_compared_however_slow_they_seem_as_a_first_start_can_be_bad() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    truth = Slow({"default": 1.0, **dict.fromkeys(names, 2.0), "b": 0.9}, slow={("screening", "b", 1)})
    found = compete(truth, DEFAULT, *map(variant, names))
    assert found.judgement is not None
    assert found.judgement.claimed == ("b",)
    assert len(found.entries["b"].final) >= 3
    assert sorted(len(found.entries[name].final) for name in set(names) - {"b"}) == [0, 0, 0, 0, 3]


def test_equal_devices_are_one_and_have_one_start() -> None:
    a, b, other = (variant(name, "device") for name in ("A", "B", "C"))
    a, b = (replace(v, devices=(replace(a.devices[0], fingerprint="same"),)) for v in (a, b))
    truth = Truth({"default": 1.0, "A": 2.0, "B": 2.0, "C": 2.0, "fast": 0.8})
    found = compete(truth, DEFAULT, a, b, other, variant("fast"))
    assert found.entries["B"].left == "the same as A"
    assert [truth.count(name, "screening") > 0 for name in "ABC"] == [True, False, True]


def test_a_device_that_is_the_plug_ins_default_with_its_precision_named_has_no_start() -> None:
    truth = Computing({"default": 1.0, "f32": 2.0, "bf16": 1.0, "fast": 0.8})
    devices = []
    for precision in ("f32", "bf16"):
        device = replace(DEFAULT.devices[0], properties={"INFERENCE_PRECISION_HINT": precision})
        devices.append(replace(variant(precision, "device"), target=DEFAULT.target, devices=(device,)))
    found = compete(truth, DEFAULT, *devices, variant("fast"))
    assert found.entries["bf16"].left == "the same as default"
    assert [truth.count(name, "screening") > 0 for name in ("f32", "bf16")] == [True, False]


@pytest.mark.parametrize(
    ("waits", "condition", "claimed"),
    [
        ({TWIN: 0.25, "fast": 0.01}, "", ()),
        ({TWIN: 0.25, "fast": 0.24}, "", ("fast",)),
        ({TWIN: 0.05, "fast": 0.0}, "", ("fast",)),
        ({TWIN: 0.19, "fast": 0.0}, "", ("fast",)),  # 1 / 0.6 of two threads that lost 0.38 of their time
        ({TWIN: 0.22, "fast": 0.0}, "", ()),
        ({TWIN: 0.25, "fast": 0.01}, "shared", ("fast",)),
    ],
)
def test_no_gain_is_claimed_over_a_control_that_others_held_up(
    waits: dict[str, float], condition: str, claimed: tuple[str, ...]
) -> None:
    truth = Held({"default": 1.0, "fast": 0.6}, waits=waits)
    settings = replace(MeasureSettings(), condition=condition)  # type: ignore[arg-type]
    found = compete(truth, DEFAULT, variant("fast"), settings=settings)
    assert found.judgement is not None
    assert found.judgement.claimed == claimed
