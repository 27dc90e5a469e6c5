"""The tutorials, as a new user goes through them: every command and every block, in order."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from tests.unit.pipeline.report.test_pages import ROOT, blocks

SHORTER = {"5s": "1s"}  # budgets; those of tuning are hardly more than it needs
TOLD = (5, 7)  # what compare may say of two runs: too few starts on a busy machine, or slower


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laptop", "researcher"])
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
