"""What many jobs cost beyond their work: planning them, and Dask's engine on this machine over the pool."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import ROOT, Figure, figure, layered_model, say, silent, timed
from coarsen.reading.model.read import save_model
from pipeline.fleet.batch import WORKER, plan_jobs, run_batch
from pipeline.fleet.jobs import Job, read_jobs
from pipeline.fleet.pool import PoolEngine
from pipeline.fleet.target import engine_for
from pipeline.store.store import Store

JOBS = 1000
WORKERS = 2
PLANNED = 10_000
OPERATIONS = 200
DEVICES = "A=CPU{INFERENCE_NUM_THREADS=1}"
SETTINGS = {
    "coarsen.use": "fold",
    "place.use": "greedy",
    "place.evaluations": 200,
    "place.finalists": 1,
    "profile.inferences": 3,
    "measure.use": "sequential",
}
GB = 1e9


def figures(jobs: int) -> Iterator[Figure]:
    """Yield the seconds and the memory of planning, and the ratio of the engines on jobs that differ in their seeds."""
    command = [sys.executable, "-m", "benchmarks.fleet", "plan", str(PLANNED)]
    told = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    how = f"read_jobs and plan_jobs of {PLANNED} jobs of one model, 10 variants of settings, {PLANNED // 10} seeds"
    yield figure("fleet.plan", told["seconds"], "s", how, target=10.0)
    yield figure("fleet.plan.memory", told["bytes"] / GB, "GB", f"largest resident size; {how}", target=1.0)
    with tempfile.TemporaryDirectory() as folder:
        seconds = {on or "pool": batch_s(Path(folder) / f"on{on}", jobs, on) for on in (None, f"local:{WORKERS}")}
    how = f"{jobs} simulated jobs, {WORKERS} workers, {OPERATIONS} operations, empty store"
    yield figure("fleet.pool", seconds["pool"], "s", f"the pool of this machine; {how}")
    ratio = seconds[f"local:{WORKERS}"] / seconds["pool"]
    yield figure("fleet.over_pool", ratio, "", f"--on local:{WORKERS} over the pool; {how}", target=1.05)


def listed(folder: Path, jobs: int, variants: int) -> list[Job]:
    """Return jobs of one model that differ in settings and seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(layered_model(OPERATIONS, seed=0), folder / "model.xml")
    defaults = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in SETTINGS.items())
    settings = ", ".join(f'{{ "place.evaluations" = {SETTINGS["place.evaluations"]}{i} }}' for i in range(variants))
    path = folder / "jobs.toml"
    group = f'[[jobs]]\nmodels = ["model.xml"]\ndevices = ["{DEVICES}"]\nsettings = [{settings}]\n'
    path.write_text(f"[defaults]\n{defaults}\n{group}seeds = {list(range(jobs // variants))}\n", encoding="utf-8")
    return read_jobs(path)


def planned(jobs: int) -> dict[str, float]:
    """Return what planning takes in this process: seconds, and the largest resident size."""
    with tempfile.TemporaryDirectory() as folder, PoolEngine(WORKERS, WORKER) as engine:
        engine.machines((DEVICES,))  # loading the runtime counts for every command

        def plan() -> int:
            found = plan_jobs(
                listed(Path(folder), jobs, 10), Path(folder) / "out", Store(Path(folder) / "store"), engine, silent
            )
            return len(found)

        seconds, _ = timed(plan)
    return {"seconds": seconds, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}


def batch_s(folder: Path, jobs: int, on: str | None) -> float:
    """Return the seconds of a batch from an empty store; starting its workers counts."""
    chosen, store = listed(folder, jobs, 1), Store(folder / "store")

    def run() -> None:
        engine = engine_for(on, WORKER, store, workers=None if on else WORKERS, say=silent)
        with engine:
            rows = run_batch(chosen, folder / "out", store, engine=engine, say=silent).rows
        failed = {row["failed"] for row in rows} - {""}
        if failed:
            raise RuntimeError(f"jobs failed: {failed}")

    return timed(run)[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:
        print(json.dumps(planned(int(sys.argv[2]))))
    else:
        say(figures(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS))
