"""Compiling everything: processes that nobody waits for any more are ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from pipeline.core.errors import PlacewrightError
from pipeline.placing import prepare

WORK = "import sys, time; sys.exit(3) if sys.argv[1] == 'fails' else time.sleep(20)"


@pytest.mark.parametrize("shares", [("fails", "goes on"), ("goes on", "fails")])
def test_a_share_that_fails_ends_the_others_at_once(shares: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[Any]] = []
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[Any]:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(prepare, "python_command", lambda module: [sys.executable, "-c", WORK])
    monkeypatch.setattr(prepare, "SHARES", dict.fromkeys(shares, ()))
    with pytest.raises(PlacewrightError, match="compiles 'fails' ended with status 3"):
        prepare.prepare(say=lambda text: None)
    assert {p.returncode for p in started} == {3, -signal.SIGKILL}
