"""Runs ended at random moments, by random signals, and started again until they end by themselves.

A command runs in a fork of this process on a terminal of its own. It is killed, terminated, interrupted once or twice,
its terminal is closed, or all that it started is killed with it, up to three times. Then the same command must give
what it gives undisturbed; a stage that had finished is not executed again; no process is left, no lock is held, and
whatever bears a final name is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import sys
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import filelock
import numpy as np
import psutil

from pipeline.cli.main import run_command_line
from pipeline.core.scenario import LoadScenario
from pipeline.fleet import batch
from pipeline.gate import gate
from pipeline.scenario import run as scenario_run
from pipeline.store.store import Store
from runtime.measuring.load.bench import LoadConfiguration, Window
from runtime.measuring.load.drive import LoadTimes
from tests.campaigns.commands import environment
from tests.campaigns.files import GRAPH, TOPOLOGY, toml_text
from tests.campaigns.imports import import_again
from tests.campaigns.runner import Campaign, Case, Judge, require
from tests.fleet_worker import MODULE
from tests.unit.pipeline.scenario.fake_bench import FakeBench, FakeSeats

PATIENCE_S = 300.0
GONE_S = 20.0  # within which what a dead process started must be gone
MARK = "PLACEWRIGHT_CAMPAIGN"  # variable of the environment that tells whose child a process is
ENDINGS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGINT twice", "terminal closed", "all killed", "a child killed")
ORDER = (0, 1, 2, 3, 4, 5, 6, 2, 5)  # of commands: of those with workers, which fewer moments find running, more
MOST_ENDINGS = 5
GATED, STARTS = 6, 3  # models of a gate, and starts of each
WINDOW_S = 0.02  # of a scenario under load
ROOT = Path(__file__).parent.parent.parent
KEPT = ("graph.npz", "placement.json", "result.json", "manifest.json", "state.safetensors", "policy.safetensors")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is ended and started again.

    arguments: of a folder for whatever it writes. answer: what must be equal in the end, of that folder.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    answer: Callable[[Path], Any]


class Running:
    """A command in a fork, with a terminal of its own, in a session of its own."""

    def __init__(self, arguments: Sequence[str], out: Path, *, imported: Path | None = None) -> None:
        self.mark, self._arguments, self._imported = uuid.uuid4().hex, list(arguments), imported
        sys.stdout.flush()
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            self._run(out)
        self._open = True
        self.status: int | None = None

    def _run(self, out: Path) -> None:
        """Run the command in the fork and end it; standard output goes into a file."""
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ[MARK] = self.mark
            to = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(to, 1)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
            status = run_command_line(self._arguments)
            if self._imported is not None:
                self._imported.write_text("\n".join(sys.modules), encoding="utf-8")
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # the terminal is closed
            status = 129
        finally:
            os._exit(status)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, or None if it still runs after so many seconds; what it says is read and dropped."""
        end = time.monotonic() + seconds
        while self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.close()
                self.status = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() >= end:
                break
            self._drop_words()
        return self.status

    def _drop_words(self) -> None:
        import select

        ready = select.select([self.terminal], [], [], 0.01)[0] if self._open else time.sleep(0.01)
        if ready:
            with contextlib.suppress(OSError):
                os.read(self.terminal, 65536)

    def close(self) -> None:
        """Close the terminal."""
        if self._open:
            os.close(self.terminal)
            self._open = False

    def started(self) -> list[psutil.Process]:
        """Return all processes that come from this one, whoever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self, how: str, rng: np.random.Generator) -> None:
        """End it, or something of it."""
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            match how:
                case "SIGINT twice":
                    os.killpg(self.pid, signal.SIGINT)
                    self.wait(float(rng.uniform(0, 0.3)))
                    os.killpg(self.pid, signal.SIGINT)
                case "SIGINT":
                    os.killpg(self.pid, signal.SIGINT)
                case "terminal closed":
                    self.close()
                case "all killed" | "a child killed":
                    children = psutil.Process(self.pid).children(recursive=True)
                    if how == "a child killed":
                        children = [children[rng.integers(len(children))]] if children else []
                    for process in children:
                        process.kill()
                    if how == "all killed":
                        os.kill(self.pid, signal.SIGKILL)
                case _:
                    os.kill(self.pid, signal.Signals[how])


def check_left(running: Running, store: Path) -> None:
    """Require that nothing of a command is left that keeps others from going on."""
    end = time.monotonic() + GONE_S
    while (left := running.started()) and time.monotonic() < end:
        time.sleep(0.05)
    require(not left, f"processes are left: {[' '.join(p.cmdline())[:200] for p in left]}")
    for lock in (store / "locks").glob("*") if store.is_dir() else ():
        with contextlib.suppress(FileNotFoundError), filelock.FileLock(lock, timeout=5):
            pass
    kept = Store(store)
    for key in kept.list_keys():
        require(kept.intact(key) is not None, f"the entry {key[:12]} is not whole")


def finished_work(folder: Path) -> dict[str, object]:
    """Return what is done and must not be done again: stages of manifests, cells, and lines of journals of starts."""
    done: dict[str, object] = {}
    for path in folder.rglob("manifest.json"):
        if path.relative_to(folder).parts[0] == "run":
            stages = json.loads(path.read_text(encoding="utf-8")).get("stages", {})  # a scenario has none of its own
            done |= {f"{path.relative_to(folder)}, {stage}": entry["key"] for stage, entry in stages.items()}
    for path in (folder / "out" / "cells").glob("*.json"):
        done[path.name] = path.stat().st_mtime_ns
    for path in folder.rglob("starts.jsonl"):
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        done |= {f"{path.relative_to(folder)}, {i}": line for i, line in enumerate(lines)}
    return done


def check_made_once(folder: Path, what: str) -> None:
    """Require that workers have made no stage twice."""
    log = folder / "log"
    made = Counter(log.read_text(encoding="utf-8").splitlines()) if log.exists() else Counter[str]()
    again = [line for line, times in made.items() if times > 1]
    require(not again, f"{what}: made more than once: {again}")


def tune_arguments(model: Path, folder: Path) -> list[str]:
    """Return a run of simulated measurements, whose answer depends on its profile alone."""
    from tests.e2e.conftest import options

    found = ["tune", str(model), "--run", str(folder / "run"), *options(folder / "store"), "--json"]
    return [*found, "--set", "place.use=[greedy,hsdag]", "--set", "place.hsdag.patience=1"]


def tune_answer(folder: Path) -> Any:
    """Return what a run found."""
    document = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    placed = json.loads((folder / "run" / "placement.json").read_text(encoding="utf-8"))
    return document["best"], document["verdict"], placed["placement"]


def search_arguments(graph: Path, folder: Path) -> list[str]:
    """Return a search of a placer that learns, by evaluations."""
    where = ["search", str(graph), "--topology", str(graph.with_suffix(".toml")), "--placer", "hsdag"]
    return [*where, "--evaluations", "150", "--checkpoint", str(folder / "learned"), "--json"]


def search_answer(folder: Path) -> Any:
    """Return what a search found."""
    document = json.loads((folder / "out.txt").read_text(encoding="utf-8"))
    return document["value_s"], document["placement"]


def batch_arguments(jobs: Path, folder: Path, *where: str) -> list[str]:
    """Return a batch of two jobs."""
    return ["batch", str(jobs), "--out", str(folder / "run"), "--store", str(folder / "store"), "--json", *where]


def batch_answer(folder: Path) -> Any:
    """Return the rows of a batch."""
    rows = json.loads((folder / "out.txt").read_text(encoding="utf-8"))
    return [(r["job"], r["best"], r["failed"]) for r in rows]


def bench_arguments(model: Path, folder: Path) -> list[str]:
    """Return a comparison of three methods in a simulator."""
    what = ["--quick", "--models", str(model), "--evaluators", "sequential", "--methods", "single,random,min_cut"]
    least = ["--evaluations", "300", "--measurements", "5", "--seeds", "6"]
    return ["bench", "hsdag", *what, *least, "--out", str(folder / "out"), "--store", str(folder / "store"), "--json"]


def bench_answer(folder: Path) -> Any:
    """Return the cells of a comparison."""
    cells = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))["cells"]
    return sorted((c["method"], c["seed"], c["value_s"], c["evaluations"]) for c in cells)


def gate_arguments(sides: Path, folder: Path) -> list[str]:
    """Return a gate of six models on two fake environments."""
    models = [str(sides / f"m{i}.xml") for i in range(GATED)]
    where = ["--before", str(sides / "old"), "--after", str(sides / "new"), "--input", str(sides / "m0.npz")]
    return ["gate", *models, *where, "--budget", "120s", "--quiet", "--out", str(folder / "run")]


def gate_answer(folder: Path) -> Any:
    """Return how many starts each model had: times are random, verdicts follow from them."""
    document = json.loads((folder / "run" / "gate.json").read_text(encoding="utf-8"))
    return [(row["model"], row["starts"]) for row in document["models"]]


class SlowSeats(FakeSeats):
    """Models whose windows take a moment, and whose noise depends on the window alone, whoever measures it."""

    def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
        """Return what became of the requests."""
        time.sleep(WINDOW_S)
        self.bench.rng = np.random.default_rng([seed, zlib.crc32(self.configuration.name.encode())])
        return super().window(scenario, times, seed=seed)


class SlowBench(FakeBench):
    """A bench that stands for that of `tune SCENARIO.toml`: two threads are not worth one each."""

    def __init__(self, *_: object) -> None:
        super().__init__(seconds_of, seats=SlowSeats)

    def close(self) -> None:
        """End nothing."""


def seconds_of(_: str, configuration: LoadConfiguration) -> float:
    """Return the seconds of an inference, half of them where each model has a thread of its own."""
    alone = all(v.devices[0].properties.get("INFERENCE_NUM_THREADS") == "1" for _, v in configuration.models)
    return 0.002 if alone else 0.004


def scenario_arguments(box: Path, folder: Path) -> list[str]:
    """Return a scenario of two models on a bench that is made up."""
    where = ["--run", str(folder / "run"), "--store", str(folder / "store"), "--json"]
    return ["tune", str(box), *where, "--budget", "900s", "--set", "measure.starts=3"]


def scenario_answer(folder: Path) -> Any:
    """Return what a scenario found."""
    document = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return document["best"], document["verdict"], sorted(c["name"] for c in document["configurations"])


def run_whole(command: Command, folder: Path) -> float:
    """Run a command undisturbed, return the seconds that it took; what it imports is imported here before it is run."""
    with environment(FLEET_LOG=str(folder / "log")):
        begun = time.monotonic()
        status = Running(command.arguments(folder), folder / "out.txt", imported=folder / "modules").wait(PATIENCE_S)
    require(status == 0, f"{command.name} ends with {status}")
    import_again((folder / "modules").read_text(encoding="utf-8").split())
    return time.monotonic() - begun


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what ends commands; each has run once, and the profile of that run is what all others take."""
    from coarsen.reading.model.read import save_model
    from tests.e2e.conftest import DEVICES
    from tests.e2e.test_batch import LIGHT
    from tests.gates import SHORT, make_environment, make_model
    from tests.models import chain, two_towers

    model, graph, jobs = folder / "towers.xml", folder / "g.json", folder / "jobs.toml"
    save_model(two_towers(2, width=16), model)
    save_model(chain(3), folder / "chain.xml")
    graph.write_text(json.dumps(GRAPH), encoding="utf-8")
    graph.with_suffix(".toml").write_text(toml_text(TOPOLOGY), encoding="utf-8")
    entry = {"models": ["towers.xml", "chain.xml"], "devices": [DEVICES]}
    jobs.write_text(toml_text({"defaults": LIGHT, "jobs": [entry]}), encoding="utf-8")
    box = folder / "box.toml"
    box.write_text(toml_text({"models": [{"name": n, "model": f"{n}.xml"} for n in ("towers", "chain")]}), "utf-8")
    for side in ("old", "new"):
        make_environment(folder / side)
    for i in range(GATED):
        make_model(folder, f"m{i}")
    commands = [
        Command("tune", lambda at: tune_arguments(model, at), tune_answer),
        Command("search", lambda at: search_arguments(graph, at), search_answer),
        Command("batch", lambda at: batch_arguments(jobs, at), batch_answer),
        Command("bench", lambda at: bench_arguments(model, at), bench_answer),
        Command("gate", lambda at: gate_arguments(folder, at), gate_answer),
        Command("batch on a cluster", lambda at: batch_arguments(jobs, at, "--on", "local:2"), batch_answer),
        Command("scenario", lambda at: scenario_arguments(box, at), scenario_answer),
    ]
    whole: dict[str, tuple[float, Any]] = {}

    def judge(case: Case) -> str:
        command = commands[ORDER[case.seed % len(ORDER)]]
        template = folder / command.name
        if command.name not in whole:
            template.mkdir()
            run_whole(command, template)  # and once more below, which takes as long as those that are ended
            for name in ("run", "learned", "out"):
                shutil.rmtree(template / name, ignore_errors=True)
            (template / "log").unlink(missing_ok=True)
            _keep_profiles(template / "store")
            warm = folder / f"{command.name} again"
            shutil.copytree(template, warm)
            whole[command.name] = run_whole(command, warm), command.answer(warm)
        shutil.copytree(template, case.folder, dirs_exist_ok=True)
        return end_and_go_on(command, case, *whole[command.name])

    lock = {"PLACEWRIGHT_LOCK": str(folder / "lock"), "PLACEWRIGHT_STORE": str(folder / "default")}
    workers = {"FLEET_LOG": str(folder / "log"), "FLEET_WORKER": "w", "PYTHONPATH": str(ROOT)}
    with (
        environment(**lock, **workers, CI="true"),
        patch.object(batch, "WORKER", MODULE),
        patch.multiple(gate, MeasuredStarts=SHORT, LOOK=STARTS),
        patch.object(scenario_run, "LoadBench", SlowBench),
    ):
        yield judge


def _keep_profiles(root: Path) -> None:
    """Leave of a store what was measured, and what that was measured of."""
    store = Store(root)
    for key in store.list_keys():
        entry = store.find(key)
        if entry is not None and entry.parts["stage"] not in ("read", "profile"):
            store.remove(key)


def end_and_go_on(command: Command, case: Case, seconds: float, expected: Any) -> str:
    """End a command some times, let it end by itself then, and judge."""
    with environment(FLEET_LOG=str(case.folder / "log")):
        return _end_and_go_on(command, case, seconds, expected)


def _end_and_go_on(command: Command, case: Case, seconds: float, expected: Any) -> str:
    folder, rng, told = case.folder, case.rng, []
    for _ in range(int(rng.integers(1, MOST_ENDINGS + 1))):
        before = finished_work(folder)
        running = Running(command.arguments(folder), folder / "out.txt")
        how, begun = str(rng.choice(ENDINGS)), time.monotonic()
        status = running.wait(float(rng.uniform(0, 0.9)) * seconds)
        if status is not None:  # before its moment: what is left to do takes no longer
            seconds = time.monotonic() - begun
        else:
            running.end(how, rng)
            status = running.wait(PATIENCE_S)
            told.append(how)
        require(status is not None, f"{command.name} does not end after {how}")
        require(status != 1, f"{command.name} ends with {status} after {how}")
        check_left(running, folder / "store")
        after = finished_work(folder)
        lost = [name for name, value in before.items() if after.get(name) != value]
        require(not lost, f"{command.name}: after {how} this is lost, or done again: {lost[:5]}")
    before = finished_work(folder)
    last = Running(command.arguments(folder), folder / "out.txt")
    status = last.wait(PATIENCE_S)
    require(status == 0, f"{command.name} ends with {status} after {told}: {(folder / 'out.txt').read_text()[-500:]}")
    check_left(last, folder / "store")
    if command.name == "tune":
        done = {s["stage"]: s for s in json.loads((folder / "out.txt").read_text(encoding="utf-8"))["stages"]}
        manifest = {name.partition(", ")[2]: key for name, key in before.items() if "manifest.json" in name}
        again = [s for s, key in manifest.items() if done[s]["ran"] and done[s]["key"] == key]
        require(not again, f"finished stages are executed again after {told}: {again}")
    after = finished_work(folder)
    lost = [name for name, value in before.items() if after.get(name) != value]
    require(not lost, f"{command.name}: at last, after {told}, this is lost, or done again: {lost[:5]}")
    check_made_once(folder, f"{command.name} after {told}")
    got = command.answer(folder)
    require(got == expected, f"{command.name} after {told} gives {str(got)[:600]}, undisturbed {str(expected)[:600]}")
    partial = [p.name for p in folder.rglob(".*") if p.is_file() and p.parent.name not in ("tmp",)]
    require(all(name not in KEPT for name in partial), f"left: {partial}")
    return f"{command.name}, ended {len(told)} times"


CAMPAIGN = Campaign("kills", 2.0, begin)
