"""A variant beside its control, in two resident processes."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from pipeline.core.accuracy import LOW_TOLERANCE
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.shared.checks import CHECKS, load_by_kind, save_by_kind
from pipeline.shared.checks import REFERENCE as REFERENCE_FILE
from pipeline.shared.model_inputs import draw_samples, make_checks
from runtime.measuring.contest import pair_bench as module
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.pair_bench import (
    PairBench,
    Seat,
    Start,
    order_of_turns,
    realtime_helps,
    samples_of_turn,
    value_of,
)
from runtime.measuring.contest.space import settings_variant
from runtime.measuring.contest.start_log import Written
from runtime.measuring.contest.variant import InSegments, Variant, check_outputs, known_reference
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.child import Child
from tests.models import two_towers
from tests.two_cpus import two_cpus, write

SETTINGS = MeasureSettings(turn_s=0.01, realtime=False)
REFERENCE = reference_variant()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(two_towers(), tmp_path_factory.mktemp("model"))[0]


@pytest.fixture
def bench(model: Path) -> Iterator[PairBench]:
    with PairBench(model, SETTINGS, 0) as found:
        yield found


def split(names: Sequence[str]) -> Variant:
    affinity = {name: "CPU_B" if name.startswith("right") else "CPU_A" for name in names}
    return Variant("split", "test", "HETERO:CPU_A,CPU_B", two_cpus(), {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}, affinity)


def started(bench: PairBench, variant: Variant, number: int = 1, pairs: int = 2) -> Start:
    found = bench.start(variant, REFERENCE, part="final", number=number, pairs=pairs)
    assert isinstance(found, Start)
    return found


def test_turns_alternate_in_who_begins_a_pair() -> None:
    assert [own for _, own in order_of_turns(lambda i: i < 3)] == [False, True, True, False, False, True]


def test_the_log_ratio_is_the_median_over_neighbouring_turns() -> None:
    start = Start((1.0, 2.0, 8.0), (2.0, 2.0, 8.0 * math.e), (1.0,), {})
    assert start.log_ratio == pytest.approx(math.log(2))
    assert start.value_s == 2.0


def test_a_start_has_as_many_turns_of_either_and_all_latencies(bench: PairBench) -> None:
    start = started(bench, settings_variant("CPU", {"INFERENCE_NUM_THREADS": "1"}, 1), pairs=3)
    assert len(start.variant_s) == len(start.control_s) == 3
    assert len(start.samples_s) >= 3
    assert min(start.samples_s) > 0
    assert start.loaded["executed_on"] == ["CPU"]
    assert 0 <= start.loaded["accuracy"]["difference"] <= LOW_TOLERANCE["usual"]
    assert start.cpu_s > 0
    assert start.peak_bytes > 1e6


def test_turns_go_on_until_the_seconds_are_over(bench: PairBench) -> None:
    found = bench.start(settings_variant("CPU", {}, 1), REFERENCE, part="final", number=1, pairs=2, seconds=0.2)
    assert isinstance(found, Start)
    assert len(found.variant_s) == len(found.control_s) >= 2
    assert sum(found.turns_s) >= 0.2


@dataclass
class Turning:
    """Answers like a measuring child whose threads waited for 0.1 of 0.4 seconds in every turn."""

    others_s: float

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        if do == "memory":
            return {"peak_bytes": 7}
        return {
            "samples_s": [0.2, 0.4, 0.3],
            "run_delay_s": 0.1,
            "runnable_s": 0.4,
            "cpu_s": 0.5,
            "others_s": self.others_s,
        }


@pytest.mark.parametrize(("others_s", "share"), [(0.3, 0.25), (0.04, 0.1), (-0.01, 0.0)])
def test_a_start_tells_which_share_of_its_turns_was_spent_waiting_for_other_processes(
    bench: PairBench, others_s: float, share: float
) -> None:
    child: Any = Turning(others_s)
    seats = [Seat(SETTINGS, child) for _ in range(2)]
    found = bench._turns(seats[0], seats[1], {}, 3, 0.0)
    assert isinstance(found, Start)
    assert (found.waited_share, found.cpu_s, found.peak_bytes) == (pytest.approx(share), 0.5, 7)
    assert found.variant_s == found.control_s == (0.3,) * 3
    assert len(found.samples_s) == 9


def test_all_that_decides_how_a_variant_runs_tells_it_from_others_and_its_name_does_not() -> None:
    one = split(["left", "right"])
    others = [
        replace(one, target="HETERO:CPU_B,CPU_A"),
        replace(one, devices=one.devices[:1]),
        replace(one, devices=tuple(replace(d, properties={}) for d in one.devices)),
        replace(one, properties={}),
        replace(one, affinity={"left": "CPU_B", "right": "CPU_A"}),
        replace(one, requests=2),
        replace(one, batch=2),
        replace(one, segments=InSegments((), "threads")),
    ]
    assert len({v.identity for v in (one, *others)}) == 1 + len(others)
    assert replace(one, name="other", placer="other").identity == one.identity


def test_processes_stay_and_change_roles_from_start_to_start(bench: PairBench, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = settings_variant("CPU", {}, 1)
    load = Seat.load
    loaded: list[tuple[int, str]] = []

    def noting(self: Seat, found: Variant, *args: Any, **kwargs: Any) -> dict[str, Any]:
        told = load(self, found, *args, **kwargs)
        assert self.child is not None
        loaded.append((self.child.pid, found.name))
        return told

    started(bench, variant)
    monkeypatch.setattr(Seat, "load", noting)
    for number in (3, 4):
        started(bench, variant, number)
    (first, _), (second, _) = loaded[:2]
    assert loaded == [(first, "reference"), (second, "CPU"), (second, "reference"), (first, "CPU")]


def test_a_split_that_runs_elsewhere_or_is_refused_says_so_and_the_bench_goes_on(bench: PairBench, model: Path) -> None:
    broken = replace(split(["left"]), affinity={"nothing": "CPU_A"})
    found = bench.start(broken, REFERENCE, part="final", number=1, pairs=1)
    assert isinstance(found, MeasurementFailed)
    assert found.kind == "refused"
    assert started(bench, settings_variant("CPU", {}, 1), 2).value_s > 0


@pytest.mark.parametrize(
    ("ran_on", "words"),
    [(["CPU_A"], "asked for A, B, ran on A"), (["CPU_A", "CPU_B", "GPU.0"], "asked for A, B, ran on A, B, GPU.0")],
)
def test_a_split_counts_only_if_it_ran_on_the_devices_it_asks_for(ran_on: list[str], words: str) -> None:
    loaded = {"executed_on": ran_on, "int8_kernels": None, "precisions": {"CPU_A": "f32"}}
    nobody: Any = None  # who would be asked for outputs
    found = check_outputs(split(["left", "right"]), loaded, nobody, Reference({}), SETTINGS)
    assert found == MeasurementFailed("refused", words)


def test_what_is_compiled_of_many_weights_is_not_written_to_disk(
    bench: PairBench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = settings_variant("CPU", {}, 1)
    assert [started(bench, variant, number).loaded["cached"] for number in (1, 3)] == [False, True]
    monkeypatch.setattr(module, "MOST_CACHED_BYTES", model.with_suffix(".bin").stat().st_size - 1)
    with PairBench(model, SETTINGS, 0) as other:
        assert [started(other, variant, number).loaded["cached"] for number in (1, 3)] == [False, False]


def test_wrong_outputs_fail_before_any_turn(model: Path) -> None:
    right = reference_outputs(model, SETTINGS, seed=0)
    wrong = replace(right, outputs={k: {n: a + 1 for n, a in each.items()} for k, each in right.outputs.items()})
    with PairBench(model, SETTINGS, 0, wrong) as bench:
        found = bench.start(settings_variant("CPU", {}, 1), REFERENCE, part="final", number=1, pairs=1)
    assert isinstance(found, MeasurementFailed)
    assert found.kind == "wrong_output"


@pytest.fixture(scope="module")
def checked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with inputs of two kinds beside it, of one two samples, and what it gives for them."""
    path = write(two_towers(), tmp_path_factory.mktemp("checked"))[0]
    read = ov.Core().read_model(path)
    checks = dict(list(make_checks(read, seed=0, dynamic_size=8).items())[:2])
    checks |= [next(draw_samples(read, checks, seed=0, dynamic_size=8))]
    compiled = ov.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    outputs = {kind: {"output_0": compiled(inputs)[0]} for kind, inputs in checks.items()}
    save_by_kind(path.with_name(CHECKS), checks)
    save_by_kind(path.with_name(REFERENCE_FILE), outputs)
    return path


def compared_on(bench: PairBench, variant: Variant, part: Any, number: int = 1) -> list[str]:
    """Return the kinds of inputs on which the outputs of a start were compared."""
    found = bench.start(variant, REFERENCE, part=part, number=number, pairs=1)
    assert isinstance(found, Start)
    return list(found.loaded["accuracy"]["kinds"])


def test_a_screening_compares_one_kind_of_inputs_and_the_final_all(checked_model: Path) -> None:
    variant = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1)
    with PairBench(checked_model, SETTINGS, 0) as bench:
        assert compared_on(bench, variant, "screening") == ["noise"]
        assert compared_on(bench, variant, "final") == ["noise", "smooth"]
        before_s = bench.checked_s
        assert compared_on(bench, variant, "final", 3) == ["noise", "smooth"]
        assert bench.checked_s == before_s > 0  # once is enough
        assert compared_on(bench, REFERENCE, "screening") == ["noise", "smooth"]  # a baseline may be the answer
        rounding = settings_variant("CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"}, 1)
        assert compared_on(bench, rounding, "final") == ["noise", "smooth", "noise #2"]
    with PairBench(checked_model, SETTINGS, 0, checks_s=0.0) as bench:
        assert compared_on(bench, variant, "final") == ["noise"]  # there is no time for more


def test_what_another_process_said_of_the_reference_spares_running_it(checked_model: Path) -> None:
    ran = reference_outputs(checked_model, SETTINGS, seed=0)
    known = known_reference(checked_model, json.loads(json.dumps(ran.ran)))
    assert known is not None
    assert (known.ran, known.load_s > 0) == (ran.ran, True)
    assert known.outputs.keys() == ran.outputs.keys()
    variant = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1)
    with PairBench(checked_model, SETTINGS, 0, known) as bench:
        found = bench.start(variant, variant, part="screening", number=1, pairs=1)
        assert isinstance(found, Start)
        assert [seat.holds for seat in bench._seats] == [variant.identity] * 2
        assert REFERENCE.identity not in bench._whole_s


def test_a_reference_that_nobody_has_run_or_that_is_not_written_down_is_run(checked_model: Path, model: Path) -> None:
    ran = Reference({}, ()).ran
    assert known_reference(checked_model, None) is known_reference(model, ran) is None


def test_what_is_wrong_on_another_kind_of_inputs_leaves_in_the_final(checked_model: Path) -> None:
    outputs = load_by_kind(checked_model.with_name(REFERENCE_FILE))
    wrong = Reference({**outputs, "smooth": {"output_0": outputs["smooth"]["output_0"] * 1.2}})
    variant = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1)
    with PairBench(checked_model, SETTINGS, 0, wrong) as bench:
        assert compared_on(bench, variant, "screening") == ["noise"]
        found = bench.start(variant, REFERENCE, part="final", number=1, pairs=1)
    assert isinstance(found, MeasurementFailed)
    assert found.message.endswith("(0.1 % allowed; output_0 on smooth)")


def test_a_killed_process_is_a_failure_of_the_variant_and_a_new_one_takes_its_place(
    bench: PairBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Child.ask
    killed: list[int] = []

    def kill_at_the_memory_question(self: Child, do: str, **command: Any) -> dict[str, Any]:
        if do == "memory" and not killed:
            os.kill(self.pid, signal.SIGKILL)
            killed.append(self.pid)
        return ask(self, do, **command)

    monkeypatch.setattr(Child, "ask", kill_at_the_memory_question)
    variant = settings_variant("CPU", {}, 1)
    found = bench.start(variant, REFERENCE, part="final", number=1, pairs=1)
    assert isinstance(found, MeasurementFailed)
    assert found.kind == "crashed"
    assert started(bench, variant, 1).value_s > 0


def test_several_requests_are_kept_where_throughput_counts(model: Path) -> None:
    settings = replace(SETTINGS, objective="throughput")
    with PairBench(model, settings, 0) as bench:
        variant = settings_variant("CPU", {"NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "2"}, 4)
        start = started(bench, variant)
    assert start.loaded["requests"] == 4
    assert start.value_s > 0


def test_the_objective_says_what_a_turn_is_worth() -> None:
    turn = {"samples_s": [1.0, 2.0, 3.0, 4.0, 10.0], "period_s": 0.5}
    assert value_of(turn, SETTINGS) == 3.0
    assert value_of(turn, replace(SETTINGS, percentile=100.0)) == 10.0
    assert value_of(turn, replace(SETTINGS, objective="throughput")) == 0.5


@pytest.mark.parametrize(("percentile", "count"), [(50.0, 1), (90.0, 10), (99.0, 100), (100.0, 100), (5.0, 20)])
def test_a_turn_has_as_many_latencies_as_its_percentile_takes(percentile: float, count: int) -> None:
    assert samples_of_turn(replace(SETTINGS, percentile=percentile)) == count
    assert samples_of_turn(replace(SETTINGS, percentile=percentile, objective="throughput")) == 1


def test_alone_a_variant_runs_back_to_back_or_at_a_rate(bench: PairBench) -> None:
    variant = settings_variant("CPU", {}, 1)
    assert len(bench.alone(variant, 0.05)) >= 1
    bench.settings = replace(SETTINGS, rate=100.0)
    arrived = bench.alone(variant, 0.5)
    assert 20 <= len(arrived) <= 90  # 50 in the mean
    assert len(bench.alone(variant, 0.5)) == len(arrived)  # arrivals are drawn from the seed


def test_alone_several_inferences_may_be_sent_at_once(bench: PairBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settings = replace(SETTINGS, samples_per_query=3)
    ask = Child.ask
    asked: list[tuple[str, Any]] = []

    def noting(self: Child, do: str, **command: Any) -> dict[str, Any]:
        asked.append((do, command.get("requests")))
        return ask(self, do, **command)

    monkeypatch.setattr(Child, "ask", noting)
    assert len(bench.alone(settings_variant("CPU", {}, 1), 0.01)) >= 1
    assert asked == [("load", 3), ("run", None), ("burst", None)]


class Counting:
    """A bench that counts what it is asked, and answers the number of the question."""

    def __init__(self, failure: MeasurementFailed | None = None) -> None:
        self.asked = 0
        self.failure = failure

    def start(self, *_: Any, **__: Any) -> Start | MeasurementFailed:
        self.asked += 1
        return self.failure or Start((float(self.asked),), (1.0,), (1.0, 2.0), {"compile_s": 0.5})


def ask(bench: Written, name: str = "1", number: int = 1) -> Start | MeasurementFailed:
    variant = settings_variant("CPU", {"INFERENCE_NUM_THREADS": name}, 1)
    return bench.start(variant, REFERENCE, part="final", number=number, pairs=1)


def test_starts_that_are_written_down_are_not_measured_again(tmp_path: Path) -> None:
    first = Written.of(Counting(), tmp_path / "starts", "c")
    said = [ask(first), ask(first, "2"), ask(first, number=2)]
    counting = Counting()
    again = Written.of(counting, tmp_path / "starts", "c")
    assert [ask(again), ask(again, "2"), ask(again, number=2)] == said
    assert counting.asked == 0
    ask(again, number=3)
    assert counting.asked == 1


def test_starts_of_a_later_run_are_told_apart_and_are_the_greater(tmp_path: Path) -> None:
    first = ask(Written.of(Counting(), tmp_path / "starts", "c"))
    again = Written.of(Counting(), tmp_path / "starts", "c")
    known, new = ask(again), ask(again, number=2)
    assert isinstance(first, Start)
    assert isinstance(known, Start)
    assert isinstance(new, Start)
    assert known == first
    assert "" < known.run < new.run


def test_other_conditions_and_torn_lines_do_not_count(tmp_path: Path) -> None:
    ask(Written.of(Counting(), tmp_path / "starts", "c"))
    for context in ("other", "c"):
        counting = Counting()
        if context == "c":
            with (tmp_path / "starts").open("a") as out:
                out.write('{"context": "c", "key": "torn')
        ask(Written.of(counting, tmp_path / "starts", context))
        assert counting.asked == (context == "other")


@pytest.mark.parametrize(
    ("kind", "kept"), [("refused", True), ("wrong_output", True), ("timeout", False), ("crashed", False)]
)
def test_failures_that_may_pass_are_not_written_down(tmp_path: Path, kind: Any, kept: bool) -> None:
    failed = MeasurementFailed(kind, "why")
    assert ask(Written.of(Counting(failed), tmp_path / "starts", "c")) == failed
    counting = Counting()
    ask(Written.of(counting, tmp_path / "starts", "c"))
    assert counting.asked == (not kept)


class Scripted:
    """Answers like a measuring child, from figures."""

    def __init__(self, *, allowed: bool = True, plain_s: float = 1.0, realtime_s: float = 1.0, waited_s: float) -> None:
        self.allowed, self.latency_s, self.waited_s = allowed, {False: plain_s, True: realtime_s}, waited_s

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        if do == "realtime":
            return {"allowed": self.allowed}
        realtime = command["realtime"]
        delay_s = 0.0 if realtime else self.waited_s
        return {"samples_s": [self.latency_s[realtime]] * 3, "run_delay_s": delay_s, "runnable_s": 3.0}


@pytest.mark.parametrize(
    ("children", "helps"),
    [
        ([Scripted(waited_s=0.0), Scripted(waited_s=0.3)], True),
        ([Scripted(waited_s=0.3), Scripted(waited_s=0.0)], True),
        ([Scripted(waited_s=0.0), Scripted(waited_s=0.05)], False),  # a quiet machine needs none
        ([Scripted(waited_s=1.0, allowed=False)], False),
        ([Scripted(waited_s=1.0), Scripted(waited_s=1.0, realtime_s=1.3)], False),  # one suffers: off for all
        ([], False),
    ],
)
def test_real_time_is_taken_where_it_is_allowed_needed_and_harmless(children: list[Any], helps: bool) -> None:
    assert realtime_helps(children, SETTINGS) == helps


def test_a_device_alone_is_compiled_once_and_then_taken_from_the_cache_and_a_split_is_not(
    bench: PairBench, model: Path
) -> None:
    alone = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1)
    names = [op.get_friendly_name() for op in ov.Core().read_model(model).get_ops()]
    assert [started(bench, alone, number).loaded["cached"] for number in (1, 2)] == [False, True]
    assert (
        started(bench, alone, 3).loaded["compile_s"] == started(bench, alone, 4).loaded["compile_s"]
    )  # not the cache's
    other = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}, 1)
    assert started(bench, other, 3).loaded["threads"] == {"CPU": 1}  # whatever the cache holds
    assert [started(bench, split(names), number).loaded["cached"] for number in (1, 2)] == [False, False]
    folder = Path(bench._compiled)
    bench.close()
    assert not folder.exists()
