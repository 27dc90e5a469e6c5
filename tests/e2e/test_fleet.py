"""Batches on real clusters: whatever dies, the table is that of one machine, and nothing finished runs twice."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.core.errors import DeviceError, UsageError
from pipeline.fleet.batch import run_batch
from pipeline.fleet.dispatch import FleetDispatcher
from pipeline.fleet.engine import Command, Engine
from pipeline.fleet.jobs import Job, read_jobs
from pipeline.fleet.pool import PoolEngine
from pipeline.fleet.target import engine_for, parse_target
from pipeline.store.store import Store
from policy.place.learned.neural_list.list_policy import ListPolicy
from tests.e2e.test_batch import SETS, jobs_file
from tests.e2e.test_resume import is_alive, recorded, stop_when
from tests.fleet_cluster import ROOT, Cluster, await_true, cluster
from tests.fleet_worker import MODULE

Rows = list[dict[str, Any]]
VERSIONS = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: "1.2.3" if name == "openvino" else version(name)
"""
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pipeline":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
"""  # an environment in which placewright is not installed
APART = """
import os, pathlib, sys
forbidden = os.environ["FLEET_FORBIDDEN"].split(":")
is_file = pathlib.Path.is_file
pathlib.Path.is_file = lambda path: path.name != "fleet" and is_file(path)

def hook(event, given):
    if event == "open" and str(given[0]).startswith(tuple(forbidden)):
        raise PermissionError(f"{given[0]} is not on this machine")

sys.addaudithook(hook)
"""  # a machine on which some folders are not


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> list[Job]:
    return read_jobs(jobs_file(folder, "towers.xml", "chain.xml"))


@pytest.fixture(scope="module")
def on_one_machine(folder: Path, jobs: list[Job]) -> Rows:
    """Return the table of the pool of this machine, over a store of its own."""
    environment = {"PYTHONPATH": str(ROOT), "FLEET_LOG": str(folder / "log"), "FLEET_WORKER": "pool"}
    with pytest.MonkeyPatch.context() as patch, PoolEngine(2, MODULE) as engine:
        for name, value in environment.items():
            patch.setenv(name, value)
        return run_batch(jobs, folder / "out", Store(folder / "store"), engine=engine, say=print).rows


def fleet(address: str, store: Path, said: list[str]) -> Engine:
    return engine_for(address, MODULE, Store(store), workers=None, say=said.append)


def table(there: Cluster, folder: Path, jobs: list[Job], said: list[str]) -> Rows:
    """Return the rows of the jobs, executed on a cluster."""
    there.gather()
    with fleet(there.address, folder / "store", said) as engine:
        return run_batch(jobs, folder / "out", Store(folder / "store"), engine=engine, say=said.append).rows


@pytest.mark.parametrize(
    "on", ["local:0", "local:x", "local", "dask://host", "ssh://host:1", "dask:host:1", "tcp://:1", "slurm:"]
)
def test_what_names_no_engine_is_refused_with_what_would(on: str) -> None:
    with pytest.raises(UsageError, match="names no engine") as raised:
        parse_target(on)
    assert "dask://HOST:PORT" in raised.value.remedy


def test_a_scheduler_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.fleet.dask_engine.CONNECT_S", 0.1)
    with (
        pytest.raises(DeviceError, match="No Dask scheduler answers at tcp://"),
        fleet("dask://127.0.0.1:9", tmp_path / "store", []),
    ):
        pass


def test_tls_without_certificates_is_refused_in_words(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="needs certificates") as raised,
        fleet("tls://127.0.0.1:9", tmp_path / "store", []),
    ):
        pass
    assert "CA_FILE" in raised.value.remedy


def test_workers_of_this_machine_execute_commands_and_listen_on_loopback_alone(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path / "store")
    with engine_for("local:2", "pipeline.fleet.member", store, workers=None, say=said.append) as engine:
        assert [w.slots for w in engine.workers()] == [1, 1]
        assert said == []  # nothing differs from this process: Dask sets no variables for what it starts here
        own = psutil.Process()
        listening = [
            connection.laddr.ip
            for process in (own, *own.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}
        (machine,) = engine.machines(())
        assert machine.fingerprint == engine.workers()[0].fingerprint
        with pytest.raises(DeviceError, match="Unknown device TPU"):
            engine.machines(("TPU",))
        dispatcher = FleetDispatcher(engine, said.append)
        for i in range(3):
            dispatcher.add(Command(f"c{i}", f"c{i}", {"devices": ["TPU"] if i == 1 else ["CPU"]}))
        answers = dict(dispatcher.settle())
    assert {name for name, answer in answers.items() if "machine" in answer} == {"c0", "c2"}
    assert "Unknown device TPU" in answers["c1"]["error"]["cause"]
    left = [" ".join(child.cmdline()) for child in own.children()]
    assert not [line for line in left if "resource_tracker" not in line]  # that one is of Python's own


@pytest.mark.slow
def test_a_worker_killed_while_it_measures_and_one_that_fails_change_nothing(
    tmp_path: Path, jobs: list[Job], on_one_machine: Rows
) -> None:
    said: list[str] = []
    with cluster(tmp_path / "cluster") as there:
        there.add("w0", fault="hangs")
        there.add("w1", fault="wrong")
        there.add("w2")
        killer = threading.Thread(target=kill_when, args=(there, "w0", Path(f"{there.log}.hangs").exists))
        killer.start()
        rows = table(there, tmp_path, jobs, said)
        killer.join()
        assert there.workers["w0"].wait() == -9
        assert rows == on_one_machine
        assert set(there.made().values()) == {1}
        assert len(there.made()) == 20
        assert 0 < there.by("w1").count("failed") <= 3
    assert any(re.search(r": w0 died during `\w+`; retrying: The worker w0 is gone\.", line) for line in said), said
    assert any("; retrying elsewhere: This worker fails at everything." in line for line in said)


@pytest.mark.slow
def test_a_full_disk_a_dying_process_other_versions_and_none_change_nothing(
    tmp_path: Path, jobs: list[Job], on_one_machine: Rows
) -> None:
    said: list[str] = []
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(VERSIONS)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(ABSENT)
    with cluster(tmp_path / "cluster") as there:
        there.add("w0", fault="full")
        there.add("w1", fault="dies")
        there.add("w2", PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}")
        there.add("w3")
        there.add("w4", PYTHONPATH=str(tmp_path / "bare"))
        rows = table(there, tmp_path, jobs, said)
        assert rows == on_one_machine
        assert set(there.made().values()) == {1}
        assert there.by("w2") == []
        assert len(there.by("w1")) <= 3
    assert any(line.startswith("w2 is not used: it has openvino 1.2.3, not ") for line in said)
    absent = [line for line in said if line.startswith("w4 is not used: ")]
    assert len(absent) == 1
    assert "No module named 'pipeline" in absent[0]
    assert any(
        "w0 failed" in line and "; retrying elsewhere: " in line and "No space left on device" in line for line in said
    )


@pytest.mark.slow
def test_after_the_death_of_the_scheduler_the_same_command_goes_on(
    tmp_path: Path, jobs: list[Job], on_one_machine: Rows
) -> None:
    said: list[str] = []
    with cluster(tmp_path / "cluster") as there:
        there.add("w0", fault="hangs")
        there.add("w1")
        killer = threading.Thread(target=kill_when, args=(there, "", Path(f"{there.log}.hangs").exists))
        killer.start()
        with pytest.raises(DeviceError, match="The scheduler ") as raised:
            table(there, tmp_path, jobs, said)
        killer.join()
        assert "run the same command" in raised.value.remedy
        before = there.made()
    assert before
    with cluster(tmp_path / "again") as there:
        there.add("w0")
        there.add("w1")
        assert table(there, tmp_path, jobs, said) == on_one_machine
        after = there.made()
    assert not before.keys() & after.keys()
    assert len(before | after) == 20
    assert set((before + after).values()) == {1}


def kill_when(there: Cluster, worker: str, moment: Callable[[], bool]) -> None:
    """Kill a worker, or the scheduler if none is named, when a moment has come."""
    await_true(moment)
    (there.workers[worker] if worker else there.scheduler).kill()


def apart(tmp_path: Path, folder: Path) -> dict[str, str]:
    """Return the environment of workers that see neither a folder nor the store beside it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(APART)
    return {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "FLEET_FORBIDDEN": f"{tmp_path / 'store'}:{folder}"}


@pytest.mark.slow
def test_workers_with_stores_of_their_own_are_sent_what_they_need_and_hand_back_what_they_made(
    tmp_path: Path, folder: Path, jobs: list[Job], on_one_machine: Rows
) -> None:
    said: list[str] = []
    elsewhere = apart(tmp_path, folder)
    with cluster(tmp_path / "cluster") as there:
        for name in ("w0", "w1"):
            there.add(name, **elsewhere, PLACEWRIGHT_STORE=str(tmp_path / name))
        rows = table(there, tmp_path, jobs, said)
        assert rows == on_one_machine
        assert set(there.made().values()) == {1}
        assert len(there.made()) == 20
    for name in ("w0", "w1"):
        assert any(line.startswith(f"{name} on ") and "does not see the store" in line for line in said)
        assert Store(tmp_path / name).list_keys()
    assert len(Store(tmp_path / "store").list_keys()) == 20


@pytest.mark.slow
def test_files_that_settings_name_travel_to_workers_with_stores_of_their_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "quality.py").write_text("def whole(outputs):\n    return 1.0\n")
    ListPolicy.write(mine / "weights.safetensors", [ListPolicy.uniform()])
    path = jobs_file(
        mine, "chain.xml", devices=SETS[1:], defaults=f'"measure.metric" = "{mine / "quality.py"}:whole"\n'
    )
    named = {
        '"place.use" = "single"': '"place.use" = "neural_list"\n"place.neural_list.weights" = '
        + json.dumps(str(mine / "weights.safetensors")),
        '"measure.use" = "sequential"': '"measure.use" = "hetero"\nbudget = "10s"',
    }
    text = path.read_text()
    for old, new in named.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with cluster(tmp_path / "cluster") as there:
        there.add("w0", **apart(tmp_path, mine), PLACEWRIGHT_STORE=str(tmp_path / "w0"))
        (row,) = table(there, tmp_path, read_jobs(path), [])
        made = there.made()
        assert not row["failed"]
        result = json.loads((tmp_path / "out" / row["job"] / "result.json").read_text())
        assert result["contest"]["metric"] == "whole"
        sent = {p.name: p.read_bytes() for p in (tmp_path / "w0" / "sent").rglob("*") if p.is_file()}
        assert {name: sent[name] for name in ("quality.py", "weights.safetensors")} == {
            name: (mine / name).read_bytes() for name in ("quality.py", "weights.safetensors")
        }
        mine.rename(tmp_path / "elsewhere")
        path = tmp_path / "elsewhere" / path.name
        path.write_text(text.replace(str(mine), str(tmp_path / "elsewhere")))
        assert table(there, tmp_path, read_jobs(path), [])[0]["median_s"] == row["median_s"]
        assert there.made() == made


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_of_a_fleet_of_this_machine_behind(tmp_path: Path) -> None:
    path = jobs_file(tmp_path, "towers.xml", "chain.xml")
    out = tmp_path / "out"
    arguments = ["batch", str(path), "--out", str(out), "--store", str(tmp_path / "store"), "--on", "local:2"]
    status, said = stop_when(arguments, lambda: any(recorded(p) for p in out.glob("*")), signal.SIGINT)
    assert status == 130
    assert "Traceback" not in said
    assert not list((tmp_path / "store" / "tmp").iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # submitit waits for no local process
def test_workers_that_a_batch_system_starts_do_the_same_and_end_with_the_batch(
    tmp_path: Path, jobs: list[Job], on_one_machine: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLEET_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FLEET_WORKER", "job")
    said: list[str] = []
    file = tmp_path / "farm.toml"
    file.write_text('host = "127.0.0.1"\nworkers = 2\ncluster = "local"\n[parameters]\ntimeout_min = 5\n')
    before = set(psutil.pids())
    with fleet(f"slurm:{file}", tmp_path / "store", said) as engine:
        assert [w.name for w in engine.workers()]
        rows = run_batch(jobs, tmp_path / "out", Store(tmp_path / "store"), engine=engine, say=said.append).rows
        mine = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
        assert any("dask_worker" in " ".join(p.cmdline()) for p in mine)
    assert rows == on_one_machine
    await_true(lambda: not any(is_alive(p) for p in mine if "resource_tracker" not in words_of(p)))
    assert (tmp_path / "farm-logs").is_dir()


def words_of(process: psutil.Process) -> str:
    """Return the command line of a process, "" once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
