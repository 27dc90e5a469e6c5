"""Variants measured in turns."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.settings import MeasureSettings
from runtime.measuring import interleave as module
from runtime.measuring.baselines import reference_variant
from runtime.measuring.child import ChildError
from runtime.measuring.interleave import interleave, realtime_helps
from runtime.measuring.outputs import Reference
from runtime.measuring.variant import Variant
from tests.models import two_towers
from tests.two_cpus import two_cpus, write

SETTINGS = MeasureSettings(rounds=4, batch_s=0.0, realtime=False)
EXPECTED = Reference({"output_0": np.ones(2)})


@dataclass
class Bench:
    """Stands for the children: variant v's turn in its i-th run takes v's number + i / 100 seconds.

    turns: variants in the order they ran. opened: how often each was started. dies: variant -> the run that kills it.
    """

    turns: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    dies: dict[str, int] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    runs: dict[str, int] = field(default_factory=dict)

    def start(self, variant: Variant, *_: object, **__: object) -> tuple[FakeChild, dict[str, Any]]:
        if variant.name in self.refuses:
            raise ChildError(MeasurementFailed("refused", "not this model"))
        self.opened.append(variant.name)
        self.alive.add(variant.name)
        loaded = {"compile_s": 0.5, "executed_on": [variant.target], "subgraphs": 1, "precisions": {}, "threads": {}}
        return FakeChild(variant.name, self), loaded

    def check(self, variant: Variant, *_: object) -> MeasurementFailed | None:
        return MeasurementFailed("wrong_output", "0.5") if variant.name in self.wrong else None


@dataclass
class FakeChild:
    name: str
    bench: Bench
    pid: int = field(default_factory=os.getpid)

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        assert do == "run"
        assert self.name in self.bench.alive
        i = self.bench.runs[self.name] = self.bench.runs.get(self.name, -1) + 1
        if self.bench.dies.get(self.name) == i:
            raise ChildError(MeasurementFailed("crashed", "killed by SIGSEGV"))
        self.bench.turns.append(self.name)
        middle = int(self.name[1:]) + i / 100
        return {"samples_s": [9.0, middle, 0.0], "run_delay_s": 0.5, "runnable_s": 2.0}

    def close(self) -> None:
        self.bench.alive.discard(self.name)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench()
    monkeypatch.setattr(module, "start", found.start)
    monkeypatch.setattr(module, "check", found.check)
    monkeypatch.setattr(module, "warm_up", lambda child: 3)
    monkeypatch.setattr(module, "reference_outputs", lambda *_, **__: EXPECTED)
    monkeypatch.setattr(module, "MEMORY_SHARE", 1e6)
    return found


def variants(*names: str) -> list[Variant]:
    return [Variant(name, "test", "CPU", ()) for name in names]


Results = dict[str, Measurement | MeasurementFailed]


def measure(
    journal: Path,
    names: Sequence[str] = ("v1", "v2", "v3"),
    settings: MeasureSettings = SETTINGS,
    progress: Callable[[str], None] = lambda text: None,
) -> Results:
    return interleave(variants(*names), Path("model.xml"), settings, seed=0, journal=journal, progress=progress)


def samples(results: Results) -> dict[str, list[float]]:
    return {name: r.samples_s.tolist() for name, r in results.items() if isinstance(r, Measurement)}


def test_the_order_of_turns_rotates(bench: Bench, tmp_path: Path) -> None:
    measure(tmp_path / "j")
    assert bench.turns == ["v1", "v2", "v3", "v2", "v3", "v1", "v3", "v1", "v2", "v1", "v2", "v3"]
    assert bench.opened == ["v1", "v2", "v3"]
    assert not bench.alive


def test_a_sample_is_the_median_of_a_turn_and_pairs_by_round(bench: Bench, tmp_path: Path) -> None:
    results = measure(tmp_path / "j")
    assert samples(results) == {f"v{i}": [i, i + 0.01, i + 0.02, i + 0.03] for i in (1, 2, 3)}
    first = results["v1"]
    assert isinstance(first, Measurement)
    assert (first.warm_up, first.compile_s, first.executed_on) == (3, 0.5, ("CPU",))


def test_the_share_waited_is_of_the_time_that_all_threads_wanted(bench: Bench, tmp_path: Path) -> None:
    results = measure(tmp_path / "j")
    assert [r.waited_share for r in results.values() if isinstance(r, Measurement)] == [0.25] * 3


def test_progress_tells_loading_and_rounds(bench: Bench, tmp_path: Path) -> None:
    said: list[str] = []
    measure(tmp_path / "j", progress=said.append)
    assert said[:3] == ["loading v1", "loading v2", "loading v3"]
    assert said[3:] == [f"round {r} of 4" for r in (1, 2, 3, 4)]


def test_a_variant_that_dies_fails_and_the_others_go_on(bench: Bench, tmp_path: Path) -> None:
    bench.dies = {"v2": 2}
    results = measure(tmp_path / "j")
    assert results["v2"] == MeasurementFailed("crashed", "killed by SIGSEGV")
    assert {n: len(s) for n, s in samples(results).items()} == {"v1": 4, "v3": 4}
    assert bench.turns.count("v2") == 2


def test_refused_and_wrong_variants_get_no_turn(bench: Bench, tmp_path: Path) -> None:
    bench.refuses, bench.wrong = {"v1"}, {"v3"}
    results = measure(tmp_path / "j")
    assert results["v1"] == MeasurementFailed("refused", "not this model")
    assert results["v3"] == MeasurementFailed("wrong_output", "0.5")
    assert bench.turns == ["v2"] * 4


def test_without_memory_for_all_each_is_loaded_for_its_turn(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMORY_SHARE", 0)
    results = measure(tmp_path / "j", ("v1", "v2"))
    assert {n: len(s) for n, s in samples(results).items()} == {"v1": 4, "v2": 4}
    assert bench.opened.count("v1") == bench.opened.count("v2") == 1 + 4
    assert not bench.alive


def test_a_journal_goes_on_where_it_stopped(bench: Bench, tmp_path: Path) -> None:
    journal = tmp_path / "j"
    measure(journal, settings=replace(SETTINGS, rounds=2))
    with journal.open("a") as out:
        out.write('{"round": 2, "samples_s": {"v1": 1')
    bench.turns.clear()
    results = measure(journal)
    assert len(bench.turns) == 2 * 3
    assert bench.turns[0] == "v3"  # the rotation goes on as well
    assert samples(results)["v1"] == [1.0, 1.01, 1.02, 1.03]
    assert [json.loads(line)["round"] for line in journal.read_text().splitlines()] == [0, 1, 2, 3]


def test_a_finished_journal_needs_no_turn(bench: Bench, tmp_path: Path) -> None:
    first = measure(tmp_path / "j")
    bench.turns.clear()
    assert samples(measure(tmp_path / "j")) == samples(first)
    assert bench.turns == []


def test_a_variant_that_failed_before_stays_failed(bench: Bench, tmp_path: Path) -> None:
    bench.dies = {"v2": 1}
    measure(tmp_path / "j", settings=replace(SETTINGS, rounds=2))
    bench.dies = {}
    bench.opened.clear()
    results = measure(tmp_path / "j")
    assert results["v2"] == MeasurementFailed("crashed", "killed by SIGSEGV")
    assert bench.opened == ["v1", "v3"]


@pytest.mark.parametrize("names", [("v1", "v4"), ("v1",), ("v1", "v2", "v3", "v4")])
def test_a_journal_of_other_variants_does_not_count(names: tuple[str, ...], bench: Bench, tmp_path: Path) -> None:
    measure(tmp_path / "j")
    results = measure(tmp_path / "j", names)
    assert {n: len(s) for n, s in samples(results).items()} == dict.fromkeys(names, 4)
    assert len((tmp_path / "j").read_text().splitlines()) == 4


@pytest.mark.parametrize("line", ["no json", "[]", '{"round": 0}', '{"round": 7, "samples_s": {}, "failed": {}}'])
def test_a_damaged_journal_does_not_count(line: str, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "j").write_text(line + "\n")
    assert {n: len(s) for n, s in samples(measure(tmp_path / "j")).items()} == {"v1": 4, "v2": 4, "v3": 4}


def test_late_rounds_are_left_out_but_the_least(bench: Bench, tmp_path: Path) -> None:
    hurried = replace(SETTINGS, rounds=50, least_rounds=3, seconds=1e-9)
    assert len(samples(measure(tmp_path / "j", settings=hurried))["v1"]) == 3


def test_variants_need_different_names(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="different names"):
        measure(tmp_path / "j", ("v1", "v1"))


def test_real_children_are_measured_and_one_that_is_killed_fails(tmp_path: Path) -> None:
    path, graph = write(two_towers(), tmp_path)
    affinity = {name: "CPU_B" if name.startswith("right") else "CPU_A" for name in graph.names}
    split = Variant("split", "test", "HETERO:CPU_A,CPU_B", two_cpus(), {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}, affinity)
    said: list[str] = []

    def kill_the_split_child_before_round_two(text: str) -> None:
        said.append(text)
        if text.startswith("round 2"):
            os.kill(pids["split"], signal.SIGKILL)

    pids: dict[str, int] = {}
    real_start = module.start

    def noting_start(variant: Variant, *args: Any, **kwargs: Any) -> Any:
        child, loaded = real_start(variant, *args, **kwargs)
        pids[variant.name] = child.pid
        return child, loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "start", noting_start)
        results = interleave(
            [reference_variant(), split],
            path,
            replace(SETTINGS, rounds=3),
            seed=0,
            journal=tmp_path / "j",
            progress=kill_the_split_child_before_round_two,
        )
    reference, killed = results["reference"], results["split"]
    assert isinstance(reference, Measurement)
    assert reference.samples_s.size == 3
    assert reference.executed_on == ("reference",)
    assert killed == MeasurementFailed("crashed", "it was killed by SIGKILL")
    first = json.loads((tmp_path / "j").read_text().splitlines()[0])
    assert set(first["samples_s"]) == {"reference", "split"}


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
        ([Scripted(waited_s=0.0), Scripted(waited_s=0.05)], False),  # a quiet machine needs none
        ([Scripted(waited_s=1.0, allowed=False)], False),
        ([Scripted(waited_s=1.0), Scripted(waited_s=1.0, realtime_s=1.3)], False),  # one suffers: off for all
        ([], False),
    ],
)
def test_real_time_is_taken_where_it_is_allowed_needed_and_harmless(children: list[Any], helps: bool) -> None:
    assert realtime_helps(children, SETTINGS) == helps
