"""Stores that grow, models run by many threads, fleets of many jobs: neither time, memory nor handles may grow.

The first cases are small, and three of 64 are as large as anybody needs: a store of 100,000 artifacts, 1,000,000
inferences under eight threads, and batches of 10,000 jobs.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from coarsen.reading.model.read import save_model
from pipeline.fleet import pool
from pipeline.fleet.dispatch import FleetDispatcher
from pipeline.fleet.engine import Command, FleetWorker, Reply, Say, silent
from pipeline.progress import curve
from pipeline.stages import worker
from pipeline.stages.plan import STEPS
from pipeline.store.store import Store, write_json
from pipeline.store.task import StepContext
from runtime.executor.placed import SegmentCompiler
from runtime.executor.segments import segment_graph
from runtime.executor.splitting import HowToRun, placed_in_memory
from tests import executor_models
from tests.campaigns.commands import environment, run_command
from tests.campaigns.files import toml_text
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.e2e.conftest import DEVICES
from tests.e2e.test_batch import LIGHT, InProcess
from tests.models import chain, through_file
from tests.profiles import make_up_profiles

ENTRIES, MOST_ENTRIES = (300, 3000), (1000, 100_000)  # of a small store and a large one
PER_ENTRY, PER_ENTRY_OF_MOST = 3.0, 2.0  # as many times as long per entry may listing and cleaning the large one take
LOOK_UPS = 200
THREADS, INFERENCES, MOST_INFERENCES = 8, 4000, 1_000_000
COMPARED_EVERY = 100  # inferences of a million
JOBS = 10_000
BATCHES, MOST_BATCHES = (4, 25), (10, 1000)  # how many, and the jobs of each
LARGE = {6: "store", 7: "executor", 8: "batch"}  # cases of 64
GROWTH_BYTES = 64 << 20
FLOOR_S = 2e-5  # below which a look-up counts as no time


def fill(store: Store, count: int) -> list[str]:
    """Put so many entries into a store; return their keys."""
    keys = []
    with store.scratch() as scratch:
        for i in range(count):
            key = f"{i * 7919 % 256:02x}{i:062x}"
            (scratch / "payload").mkdir()
            write_json(scratch / "payload" / "answer.json", i)
            store.add(key, {"stage": "read", "name": "x"}, {"made_at": 1.7e9}, scratch / "payload")
            keys.append(key)
    return keys


def judge_store(case: Case) -> str:
    """Fill a small store and a large one, list, look up and clean both."""
    per_entry, per_look_up = [], []
    large = LARGE.get(case.seed % 64) == "store"
    most = PER_ENTRY_OF_MOST if large else PER_ENTRY
    for count in MOST_ENTRIES if large else ENTRIES:
        store = Store(case.folder / str(count))
        keys = fill(store, count)
        begun = time.process_time()
        ended = run_command("cache", "ls", "--store", store.root, "--json")
        require(ended.code == 0 and len(ended.document) == count, f"{len(ended.document)} of {count} are listed")
        half = time.process_time()
        for i in range(LOOK_UPS):
            require(store.intact(keys[i * 37 % count]) is not None, "an entry is not found")
        looked = time.process_time()
        require(run_command("cache", "gc", "--older-than", "0", "--store", store.root).code == 0, "gc fails")
        per_entry.append((half - begun + time.process_time() - looked) / count)
        per_look_up.append(max((looked - half) / LOOK_UPS, FLOOR_S))
        require(not store.list_keys() and not list((store.root / "tmp").iterdir()), "gc leaves something")
    require(per_entry[1] <= most * per_entry[0], f"ls and gc take {per_entry} s per entry")
    require(per_look_up[1] <= most * per_look_up[0], f"look-ups take {per_look_up} s")
    return f"store of {count:,}"


def judge_executor(case: Case) -> str:
    """Run a model in segments by 8 threads, and require right answers and no growth after the first tenth."""
    large = LARGE.get(case.seed % 64) == "executor"
    inferences, every = (MOST_INFERENCES, COMPARED_EVERY) if large else (INFERENCES, 1)
    runner = str(case.rng.choice(["serial", "level", "threads", "pipeline"]))
    model = through_file(executor_models.random_model(case.seed, 8, dynamic=False, state=False), case.folder)
    graph = executor_models.graph_with_dynamic_cuts(model)
    found = segment_graph(graph, executor_models.random_placement(graph, case.rng))
    given = [executor_models.arrays_for(model, i, 2) for i in range(THREADS)]
    wrong: list[int] = []
    process, sizes = psutil.Process(), []
    how = HowToRun(runner)  # type: ignore[arg-type]
    with placed_in_memory(model, found, executor_models.two_threads(), how, SegmentCompiler()) as placed:
        expected = [[value.copy() for value in placed(arrays).to_tuple()] for arrays in given]

        def infer(i: int, times: int) -> None:
            for number in range(times):
                got = placed(given[i]).to_tuple()
                if number % every == 0 and not all(
                    np.allclose(a, b, atol=1e-4) for a, b in zip(got, expected[i], strict=True)
                ):
                    wrong.append(i)

        for times in (inferences // 10, inferences):
            threads = [threading.Thread(target=infer, args=(i, times // THREADS)) for i in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gc.collect()
            sizes.append((process.memory_info().rss, process.num_fds()))
    require(not wrong, f"{runner}: {len(wrong)} wrong answers")
    require(sizes[1][0] - sizes[0][0] < GROWTH_BYTES, f"{runner}: memory grows: {sizes}")
    require(sizes[1][1] <= sizes[0][1] + 2, f"{runner}: handles grow: {sizes}")
    return f"executor, {runner}, {inferences:,}"


@dataclass
class Flaky:
    """Workers that answer, fail or die at random, all in this process."""

    rng: np.random.Generator
    retries: bool = True
    say: Say = silent
    asked: deque[tuple[str, Command]] = field(default_factory=deque)
    executed: Counter[str] = field(default_factory=Counter)

    def workers(self) -> Sequence[FleetWorker]:
        """Return four workers of two machines."""
        return [FleetWorker(f"w{i}", f"node{i % 2}", "kind", 2) for i in range(4)]

    def ask(self, worker: str, command: Command) -> None:
        """Take a command in."""
        self.asked.append((worker, command))

    def wait(self, patience_s: float) -> Sequence[Reply]:
        """Answer the command that has waited longest."""
        worker, command = self.asked.popleft()
        drawn = self.rng.random()
        if drawn < 0.02:
            return [Reply(command.name, worker, {"error": {"cause": "It died.", "remedy": ""}}, died=True)]
        if drawn < 0.04:
            return [Reply(command.name, worker, {"error": {"cause": "It failed.", "remedy": ""}})]
        self.executed[command.name] += 1
        return [Reply(command.name, worker, {"done": []})]


def judge_jobs(case: Case) -> str:
    """Let a dispatcher settle 10,000 commands, each once, and keep nothing of them."""
    engine, sizes = Flaky(case.rng), []
    dispatcher = FleetDispatcher(engine, silent)  # type: ignore[arg-type]
    settled: Counter[str] = Counter()
    for part in range(2):
        for i in range(part * JOBS, (part + 1) * JOBS):
            alone = bool(i % 3)
            dispatcher.add(Command(f"c{i}", "", {}, fingerprint="kind" if alone else "", alone=alone, rank=i))
        settled.update(done.name for done in dispatcher.settle())
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss)
    require(set(settled.values()) == {1} and len(settled) == 2 * JOBS, f"settled: {Counter(settled.values())}")
    require(set(engine.executed.values()) == {1}, f"executed: {Counter(engine.executed.values())}")
    require(sizes[1] - sizes[0] < GROWTH_BYTES // 4, f"memory grows: {sizes}")
    return f"{2 * JOBS:,} jobs"


@dataclass
class Copied:
    """A stage that is executed once; its artifacts of all other jobs are copies."""

    step: Callable[[StepContext], None]
    made: Path

    def __call__(self, work: StepContext) -> None:
        if not self.made.exists():
            self.step(work)
            shutil.copytree(work.out, self.made)
        shutil.copytree(self.made, work.out, dirs_exist_ok=True)


@contextlib.contextmanager
def fake_jobs(folder: Path) -> Iterator[list[str]]:
    """Let this process stand for workers, with stages per job that copy, and figures of nothing; give what they did."""

    def draw(_: object, path: Path) -> None:
        path.write_text("<svg/>", encoding="utf-8")

    copied = {stage: Copied(STEPS[stage], folder / stage) for stage in ("place", "measure")}
    with (
        pytest.MonkeyPatch.context() as patch,
        environment(PLACEWRIGHT_LOCK=str(folder / "lock")),
    ):
        make_up_profiles(patch)
        patch.setattr(pool, "Workers", InProcess)
        patch.setattr(InProcess, "started_stages", [])
        patch.setattr(worker, "STEPS", {**STEPS, **copied})
        patch.setattr(curve, "plot_curve", draw)
        yield InProcess.started_stages


def judge_batch(case: Case) -> str:
    """Run batches of jobs that are fakes, all over one store, and require that the last are like the second."""
    batches, jobs = MOST_BATCHES if LARGE.get(case.seed % 64) == "batch" else BATCHES
    store, out = case.folder / "store", case.folder / "jobs"
    save_model(chain(3), case.folder / "chain.xml")
    settings = {**LIGHT, "place.use": "random", "place.evaluations": 2}
    sizes, per_job = [], []
    with fake_jobs(case.folder) as did:
        for part in range(batches):
            seeds = list(range(part * jobs, (part + 1) * jobs))
            entry = {"models": ["chain.xml"], "devices": [DEVICES], "seeds": seeds}
            out.with_suffix(".toml").write_text(toml_text({"defaults": settings, "jobs": [entry]}), encoding="utf-8")
            begun = time.process_time()
            ended = run_command("batch", out.with_suffix(".toml"), "--store", store, "--json")
            per_job.append((time.process_time() - begun) / jobs)
            good = [row["seed"] for row in ended.document if row["best"] and not row["failed"]]
            require(ended.code == 0 and good == seeds, f"batch {part}: {ended.code}, {len(good)} of {jobs} are good")
            shutil.rmtree(out)
            gc.collect()
            sizes.append((psutil.Process().memory_info().rss, psutil.Process().num_fds()))
    made, total = Counter(did), batches * jobs
    require(made["read"] == 1 and made["place"] == made["measure"] == total, f"executed: {made}")
    require(per_job[-1] <= PER_ENTRY_OF_MOST * per_job[1], f"a job takes {per_job} s")
    require(sizes[-1][0] - sizes[1][0] < GROWTH_BYTES, f"memory grows: {sizes}")
    require(sizes[-1][1] <= sizes[1][1], f"handles grow: {sizes}")
    return f"batches of {total:,} jobs"


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what repeats."""
    judges = {"store": judge_store, "executor": judge_executor, "jobs": judge_jobs, "batch": judge_batch}
    yield lambda case: judges[LARGE.get(case.seed % 64) or list(judges)[case.seed % len(judges)]](case)


CAMPAIGN = Campaign("endurance", 0.5, begin)
