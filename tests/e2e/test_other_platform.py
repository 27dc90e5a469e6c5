"""placewright where it sees no more than on Windows: few signals, no /proc, no waiting for pipes, no METIS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coarsen.reading.model.read import save_model
from pipeline.system.start import HOME
from tests.e2e.conftest import DEVICES, QUICK
from tests.models import two_towers

SHIM = HOME / "tests" / "other_platform.py"
COMMAND = "import sys; from pipeline.cli.main import main; sys.argv[0] = 'placewright'; main()"
Ran = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return a function that runs a command on the other platform."""
    code = f"import runpy\nrunpy.run_path({str(SHIM)!r})['install']('win32', metis=False)\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMAND, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    return run


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_platform_is_another_in_processes_of_ours_too(ran: Ran, tmp_path: Path) -> None:
    words = "from pipeline.system import process; print(process.sys.platform, hasattr(process.signal, 'SIGKILL'))"
    told = [sys.executable, "-c", words]
    found = subprocess.run(told, cwd=HOME, capture_output=True, text=True, check=True)
    assert found.stdout == "win32 False\n"
    assert sys.platform != "win32"
    assert hasattr(os, "fork") or sys.platform == "win32"


def test_the_first_looks_of_a_user_work(ran: Ran) -> None:
    assert "tune" in ran("--help").stdout
    assert "CPU" in json.dumps(document(ran("devices", "--json")))
    assert document(ran("doctor", "--json"))["versions"]


def test_a_model_is_coarsened_with_another_in_the_place_of_metis_and_that_is_said(ran: Ran, tmp_path: Path) -> None:
    save_model(two_towers(2, width=16), tmp_path / "m.xml")
    use = ("--set", "coarsen.use=[fold,colocate,metis]", "--set", "coarsen.metis.parts=4")
    done = ran("coarsen", "m.xml", "--run", "run", *use)
    assert done.returncode == 0, done.stderr
    assert "pymetis is not installed: using coarsen.heavy_edge instead of coarsen.metis." in done.stderr


@pytest.mark.slow
def test_a_search_without_hardware_answers(ran: Ran) -> None:
    words = ("--topology", "equal:2", "--placer", "portfolio", "--evaluations", "200", "--json")
    assert document(ran("search", "zoo:two-towers", *words))["gap"] < 1


def test_the_placer_metis_says_what_it_lacks(ran: Ran) -> None:
    done = ran("search", "zoo:two-towers", "--topology", "equal:2", "--placer", "metis", "--evaluations", "10")
    assert done.returncode == 2
    cause, remedy = done.stderr.splitlines()[-2:]
    assert "pymetis, which is not installed" in cause
    assert "pip install pymetis" in remedy


@pytest.mark.slow
def test_a_whole_run_and_a_batch_come_to_their_end(ran: Ran, tmp_path: Path) -> None:
    save_model(two_towers(2, width=16), tmp_path / "m.xml")
    quick = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    assert document(ran("tune", "m.xml", "--devices", DEVICES, *quick, "--out", "run", "--json"))["best"]
    settings = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in QUICK.items())
    jobs = f'[[jobs]]\nmodels = ["m.xml"]\ndevices = ["{DEVICES}"]\nseeds = [0, 1]\n'
    (tmp_path / "jobs.toml").write_text(f"[defaults]\n{settings}{jobs}", encoding="utf-8")
    assert [row["failed"] for row in document(ran("batch", "jobs.toml", "--json"))] == ["", ""]
