"""The tutorials, as a new user goes through them: every command and every block, in order."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from tests.unit.pipeline.report.test_pages import ROOT, blocks

SHORTER = {"5s": "1s", "40s": "15s"}  # budgets; those of tuning are hardly more than it needs
TOLD = (5, 7)  # what compare may say of two runs: too few starts on a busy machine, or slower


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laptop", "researcher", "stages"])
def test_every_command_of_a_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "tutorials" / f"{name}.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store"))
    for block in blocks(page, "toml"):
        Path("jobs.toml").write_text(block, encoding="utf-8")
    for line in "".join(blocks(page, "sh")).splitlines():
        words, _, target = line.partition(" > ")
        program, *arguments = [SHORTER.get(word, word) for word in shlex.split(words)]
        if program == "python":
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = run_command_line(arguments)
        assert code == 0 or (arguments[0] == "compare" and code in TOLD), line
        if target:
            Path(target).write_text(said.getvalue(), encoding="utf-8")
    for block in blocks(page, "python"):
        assert subprocess.run([sys.executable, "-c", block], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("compared", "code"), [(0, 0), (5, 0), (7, 7), (2, 2)])
def test_the_gate_of_the_laptop_ends_as_it_says(compared: int, code: int, tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "docs" / "tutorials" / "laptop.md", "bash")
    program = tmp_path / "placewright"
    program.write_text(f'#!/bin/sh\n[ "$1" = tune ] || exit {compared}\n', encoding="utf-8")
    program.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, env=path, capture_output=True).returncode == code


def test_a_gate_whose_measurement_fails_fails(tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "docs" / "tutorials" / "laptop.md", "bash")
    program = tmp_path / "placewright"
    program.write_text("#!/bin/sh\nexit 4\n", encoding="utf-8")
    program.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, env=path, capture_output=True).returncode == 4
