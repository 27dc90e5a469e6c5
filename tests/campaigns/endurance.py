"""A store that grows, and a model run by many threads: neither time per entry, nor memory, nor handles may grow."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from pipeline.store.store import Store, write_json
from runtime.executor.placed import SegmentCompiler
from runtime.executor.segments import segment_graph
from runtime.executor.splitting import HowToRun, placed_in_memory
from tests import executor_models
from tests.campaigns.commands import run_command
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.models import through_file

ENTRIES = (300, 3000)  # of a small store and a large one
PER_ENTRY = 3.0  # as many times as long per entry may listing and cleaning the large store take
LOOK_UPS = 200
THREADS, INFERENCES = 8, 4000
GROWTH_BYTES = 64 << 20
FLOOR_S = 2e-5  # below which a look-up counts as no time


def fill(store: Store, count: int) -> list[str]:
    """Put so many entries into a store; return their keys."""
    keys = []
    for i in range(count):
        key = f"{i * 7919 % 256:02x}{i:062x}"
        with store.scratch() as scratch:
            (scratch / "payload").mkdir()
            write_json(scratch / "payload" / "answer.json", i)
            store.add(key, {"stage": "read", "name": "x"}, {"made_at": 1.7e9}, scratch / "payload")
        keys.append(key)
    return keys


def judge_store(case: Case) -> str:
    """Fill a small store and one of ten times as many entries, list, look up and clean both."""
    per_entry, per_look_up = [], []
    for count in ENTRIES:
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
    require(per_entry[1] <= PER_ENTRY * per_entry[0], f"ls and gc take {per_entry} s per entry")
    require(per_look_up[1] <= PER_ENTRY * per_look_up[0], f"look-ups take {per_look_up} s")
    return "store"


def judge_executor(case: Case) -> str:
    """Run a model in segments by 8 threads, and require right answers and no growth after the first tenth."""
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
            for _ in range(times):
                got = placed(given[i]).to_tuple()
                if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(got, expected[i], strict=True)):
                    wrong.append(i)

        for times in (INFERENCES // 10, INFERENCES):
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
    return f"executor, {runner}"


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what repeats."""
    yield lambda case: (judge_store, judge_executor)[case.seed % 2](case)


CAMPAIGN = Campaign("endurance", 0.5, begin)
