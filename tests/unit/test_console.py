"""What is shown of long work: a live line on a terminal, nothing in a pipe unless asked for."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import console
from pipeline.cli.main import run
from pipeline.core.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(*, quiet: bool = False) -> None:
    with console.progress(quiet=quiet) as progress:
        progress("a [bold]first[/] step")
        progress("a second step")


def test_a_pipe_stays_silent(capsys: pytest.CaptureFixture[str]) -> None:
    tell()
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_lines_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACEWRIGHT_PROGRESS", "lines")
    tell()
    assert capsys.readouterr() == ("", "a [bold]first[/] step\n")  # the second within 30 s
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.0)
    tell()
    assert capsys.readouterr() == ("", "a [bold]first[/] step\na second step\n")
    tell(quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_live_line_and_lines_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)  # here, and not in a fixture, after which pytest puts its own there
    tell()
    assert "a second step" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()  # drawn over
    drawn = terminal.getvalue()
    tell(quiet=True)
    assert terminal.getvalue() == drawn
    monkeypatch.setenv("PLACEWRIGHT_PROGRESS", "lines")
    tell()
    assert terminal.getvalue() == f"{drawn}a [bold]first[/] step\n"


@pytest.mark.parametrize("quiet", [True, False])
def test_another_wish_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, *, quiet: bool) -> None:
    monkeypatch.setenv("PLACEWRIGHT_PROGRESS", "live")
    with pytest.raises(UsageError, match="PLACEWRIGHT_PROGRESS is 'live'") as raised:
        tell(quiet=quiet)
    assert "lines" in raised.value.remedy


def test_the_table_of_a_batch_has_an_interval_for_every_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(job: str, *gain: float) -> dict[str, Any]:
        ends = dict(zip(("speedup", "speedup_low", "speedup_high"), gain, strict=True))
        return {"job": job, "best": "CPU", "median_s": 2.5e-5, "failed": "", **ends}

    rows = [row("faster", 1.5, 1.3, 1.7), row("same", 1.0, 1.0, 1.0)]
    monkeypatch.setattr("pipeline.batch.run.run_batch", lambda *_, **__: rows)
    (tmp_path / "jobs.toml").write_text('[[jobs]]\nmodels = ["zoo:resnet50"]\n')
    assert run(["batch", str(tmp_path / "jobs.toml"), "--store", str(tmp_path / "store"), "--quiet"]) == 0
    told = capsys.readouterr().err
    assert "1.500 (1.300 to 1.700)" in told
    assert "1.000\n" in told.replace(" ", "")
    assert "0.025" in told
