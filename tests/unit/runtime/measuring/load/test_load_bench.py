"""Several models in real processes: what fails there is named, and leaves the others' samples what they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.scenario import Isolation, LoadScenario, ModelLoad
from pipeline.core.settings import MeasureSettings
from pipeline.system.process import cpu_count
from runtime.measuring.contest.space import auto_batched, settings_variant
from runtime.measuring.contest.variant import outputs_of, start_child
from runtime.measuring.load.bench import LoadBench, LoadConfiguration, LoadError, SharedCopy, closed_loop
from runtime.measuring.load.drive import LoadTimes
from runtime.measuring.outputs.outputs import Outputs
from tests.models import chain, two_towers, with_state
from tests.two_cpus import write

TIMES = LoadTimes(0.05, 0.2, 0.05, 1.0, hang_s=1.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"towers": two_towers(), "chain": chain(3), "state": with_state()}
    return {name: write(model, tmp_path_factory.mktemp(name))[0] for name, model in made.items()}


def bench_of(models: dict[str, Path], *loads: ModelLoad, memory_bytes: int = 0) -> LoadBench:
    settings = MeasureSettings(timeout_s=60.0, memory_bytes=memory_bytes)
    return LoadBench(models, {load.name: load for load in loads}, settings, 0)


def configuration(*names: str, isolation: Isolation = "process", **properties: str) -> LoadConfiguration:
    variant = settings_variant("CPU", {"INFERENCE_NUM_THREADS": "1", **properties}, 1)
    return LoadConfiguration("one thread each", tuple((name, variant) for name in names), isolation)


@pytest.mark.parametrize("isolation", ["process", "processes"])
def test_models_are_served_at_once_and_chains_stay_together(models: dict[str, Path], isolation: Isolation) -> None:
    loads = ModelLoad("towers", rate=50), ModelLoad("chain", after="towers", calls=2), ModelLoad("state", concurrency=1)
    bench = bench_of(models, *loads)
    with bench.seat(configuration("towers", "chain", "state", isolation=isolation)) as seats:
        assert [sorted(group) for group in seats.children] == (
            [["chain", "state", "towers"]] if isolation == "process" else [["chain", "towers"], ["state"]]
        )
        window = seats.window(LoadScenario(loads), TIMES, seed=1)
    assert window.failed == {}
    assert len(window.logs["chain"].due_s) == 2 * len(window.logs["towers"].due_s) > 0
    assert not np.isnan(window.logs["towers"].end_s).any()
    assert window.logs["state"].measured.sum() > 0
    assert window.peak_bytes > 10**7
    assert window.processor_s > 0


def test_requests_that_are_computed_together_are_served_and_give_the_outputs_of_each(models: dict[str, Path]) -> None:
    settings = MeasureSettings(timeout_s=60.0)
    plain = settings_variant("CPU", {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}, 1)
    together, told = auto_batched(plain, 2), list[Outputs]()
    for variant in (plain, together):
        child, loaded = start_child(variant, models["chain"], settings, seed=0)
        with child:
            told.append(outputs_of(child))
        assert loaded["requests"] == variant.requests
    for name, expected in told[0].items():
        np.testing.assert_allclose(told[1][name], expected, rtol=1e-4, atol=1e-5)
    with bench_of(models, ModelLoad("chain")).seat(LoadConfiguration("pairs", (("chain", together),))) as seats:
        window = seats.window(closed_loop(["chain"]), TIMES, seed=0)
    assert window.failed == {}
    assert window.logs["chain"].measured.sum() > 4


def test_what_other_processes_take_is_seen(models: dict[str, Path]) -> None:
    load = ModelLoad("chain", rate=20)
    with bench_of(models, load).seat(configuration("chain")) as seats:
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            window = seats.window(LoadScenario((load,)), replace(TIMES, measured_s=1.0), seed=0)
        finally:
            busy.kill()
            busy.wait()
    assert 0.4 < window.others * cpu_count() <= cpu_count()


def test_a_process_that_is_kept_lets_go_what_was_reserved(models: dict[str, Path]) -> None:
    bench = bench_of(models, ModelLoad("towers"), ModelLoad("chain"))
    pids = set()
    for _ in range(3):
        both = configuration("towers", "chain", ENABLE_CPU_RESERVATION="NO")
        with bench.seat(both, fresh=False) as seats:
            pids |= {child.pid for child in seats.children.values()}
            assert seats.window(closed_loop(["towers", "chain"]), TIMES, seed=0).failed == {}
    bench.close()
    assert len(pids) == 1


class SilentChild:
    """A process that loads whatever it is asked to."""

    def ask(self, do: str, **_: object) -> dict[str, object]:
        return {}

    def close(self) -> None:
        """End it."""


def test_nobody_has_the_same_process_in_all_starts(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadBench, "_new_child", lambda bench: SilentChild())
    bench = bench_of(models, ModelLoad("chain"))
    held: dict[str, list[object]] = {"control": [], "other": [], "twin": []}
    for number in range(12):
        with ExitStack() as stack:
            for name in held if number % 2 else reversed(held):
                seats = stack.enter_context(bench.seat(configuration("chain"), fresh=False))
                held[name] += seats.children.values()
    assert [len(set(map(id, processes))) for processes in held.values()] == [3, 3, 3]


@pytest.mark.parametrize("isolation", ["process", "processes"])
def test_phases_in_one_copy_are_compiled_once_and_have_requests_of_their_own(
    models: dict[str, Path], isolation: Isolation
) -> None:
    bench = bench_of(models, ModelLoad("short"), ModelLoad("long"), ModelLoad("chain"))
    bench.copies = {"towers": SharedCopy(models["towers"], {"short": "", "long": ""})}
    both = replace(configuration("short", "long", "chain", isolation=isolation), shared=("towers",))
    with bench.seat(both) as seats:
        assert ("short", "long") in {group[:2] for group in seats.children}
        assert seats.loaded["short"]["compile_s"] > 0
        assert seats.loaded["long"]["compile_s"] == 0
        window = seats.window(closed_loop(["short", "long", "chain"]), TIMES, seed=0)
    assert window.failed == {}
    assert all(log.measured.sum() > 3 for log in window.logs.values())


def test_a_model_that_cannot_be_loaded_is_named(models: dict[str, Path]) -> None:
    bench = bench_of(models, ModelLoad("towers"), ModelLoad("chain"))
    bad = LoadConfiguration(
        "bad",
        (
            *configuration("towers").models,
            ("chain", settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "no such precision"}, 1)),
        ),
    )
    with pytest.raises(LoadError) as caught, bench.seat(bad):
        pass
    assert caught.value.model == "chain"
    assert caught.value.failed.kind == "refused"


def test_a_process_that_dies_takes_its_own_model_alone(models: dict[str, Path]) -> None:
    bench = bench_of(models, ModelLoad("towers"), ModelLoad("chain"))
    with bench.seat(configuration("towers", "chain", isolation="processes")) as seats:
        victim = seats.children[("chain",)]
        timer = threading.Timer(0.2, os.kill, (victim.pid, signal.SIGKILL))
        timer.start()
        window = seats.window(closed_loop(["towers", "chain"]), LoadTimes(0.0, 1.0, 0.0, 1.0), seed=0)
        timer.join()
    assert list(window.failed) == ["chain"]
    assert window.failed["chain"].kind == "crashed"
    assert window.logs["towers"].measured.sum() > 10


def test_a_common_process_that_dies_names_nobody_where_each_model_runs_alone(models: dict[str, Path]) -> None:
    bench = bench_of(models, ModelLoad("towers"), ModelLoad("chain"))
    with bench.seat(configuration("towers", "chain")) as seats:
        (child,) = seats.children.values()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(LoadError) as caught:
            seats.window(closed_loop(["towers", "chain"]), TIMES, seed=0)
    assert caught.value.model == ""
    assert "The models together failed (crashed)" in caught.value.cause


def test_a_model_that_needs_more_memory_than_there_is_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    large = {**models, "large": write(two_towers(1, width=4096), tmp_path)[0]}  # two weights of 64 MiB
    bench = bench_of(large, ModelLoad("chain"), ModelLoad("large"), memory_bytes=330 << 20)
    with pytest.raises(LoadError) as caught, bench.seat(configuration("chain", "large")):
        pass
    assert caught.value.failed.kind == "out_of_memory"
    assert caught.value.model in ("chain", "large")  # whichever was the first for which there was too little
