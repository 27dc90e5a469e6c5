"""Processes that placewright starts import its own files, whatever lies where they are started."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import pipeline
from pipeline.system.process import cpu_count, die_first, python_command
from pipeline.system.start import HOME, PACKAGES

QUESTIONS = {
    "runtime.measuring.process.child_main": ({"do": "realtime"}, "allowed"),
    "pipeline.stages.worker": (
        {
            "tasks": [{"stage": "read", "name": "", "version": {}, "params": {}, "seed": 0, "inputs": {"x": "0"}}],
            "store": "store",
            "previous": {},
            "alone": False,
        },
        "The x artifact 0 is not in the store.",
    ),
}


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """Return a folder of packages that bear names of ours, and of others, and leave a mark when they are imported."""
    for name in (*PACKAGES, "json", "numpy", "openvino"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"open({str(tmp_path / 'MARK')!r}, 'w').close()")
    return tmp_path


def answer(module: str, folder: Path, **environment: str) -> str:
    """Return what a process says that is started in a folder and asked one question."""
    question, _ = QUESTIONS[module]
    done = subprocess.run(
        python_command(module),
        input=json.dumps(question) + "\n",
        capture_output=True,
        text=True,
        cwd=folder,
        env={"CI": "true", "PATH": "", "HOME": str(folder), **environment},
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("module", QUESTIONS)
@pytest.mark.parametrize("safe", ["", "1"])
def test_packages_in_the_working_directory_are_not_imported(module: str, safe: str, traps: Path) -> None:
    assert QUESTIONS[module][1] in answer(module, traps, PYTHONSAFEPATH=safe)
    assert not (traps / "MARK").exists()


@pytest.mark.parametrize("module", QUESTIONS)
def test_packages_earlier_on_the_path_do_not_replace_ours(module: str, traps: Path, tmp_path: Path) -> None:
    for name in ("json", "numpy", "openvino"):  # those are the user's choice
        (traps / name / "__init__.py").unlink()
        (traps / name).rmdir()
    assert QUESTIONS[module][1] in answer(module, tmp_path, PYTHONPATH=str(traps))
    assert not (traps / "MARK").exists()


def test_the_packages_are_those_of_this_process() -> None:
    assert Path(pipeline.__file__).parent.parent == HOME


def test_a_system_that_takes_no_word_on_who_dies_first_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    die_first()


def test_processors_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 6}, raising=False)
    assert cpu_count() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cpu_count() == os.cpu_count()
