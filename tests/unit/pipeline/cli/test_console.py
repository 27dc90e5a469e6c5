"""What is shown of long work: a live line on a terminal, nothing in a pipe unless asked for."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import console
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.fleet.batch import Batch
from pipeline.progress.compile_notice import COMPILING, Notice, tell_of_compiling


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(*, quiet: bool = False) -> None:
    with console.show_progress(quiet=quiet) as progress:
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


def test_a_pipe_gets_a_notice_once_and_nothing_if_it_asked_for_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, said in ((False, "a minute of this\n"), (True, "")):
        with console.show_progress(quiet=quiet) as progress:
            for text in ("a step", Notice("a minute of this"), "another", Notice("a minute of this")):
                progress(text)
        assert capsys.readouterr() == ("", said)


def test_a_notice_is_written_at_once_between_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACEWRIGHT_PROGRESS", "lines")
    with console.show_progress(quiet=False) as progress:
        for text in ("a step", "another", Notice("a minute of this")):
            progress(text)
    assert capsys.readouterr() == ("", "a step\na minute of this\n")


@pytest.mark.parametrize("command", ["search", "simulate", "bound"])
def test_a_command_in_a_pipe_says_in_one_line_that_it_compiles_kernels(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def compiling_two(tell: Callable[[int], None]) -> Iterator[None]:
        tell(0)
        tell(1)
        yield

    graph = tmp_path / "graph.json"
    nodes = [{"name": name, "type": "MatMul", "flops": 1e9, "output_bytes": 8} for name in "ab"]
    graph.write_text(json.dumps({"operations": nodes, "edges": [{"from": "a", "to": "b"}]}))
    (tmp_path / "placement.json").write_text(json.dumps({"a": "gpu0", "b": "gpu0"}))
    more = {"search": ["--evaluations", "4"], "simulate": ["--placement", str(tmp_path / "placement.json")]}
    monkeypatch.setattr("pipeline.shared.compiled.announce_compiling", compiling_two)
    assert run_command_line([command, str(graph), "--topology", "equal:2", *more.get(command, [])]) == 0
    assert capsys.readouterr().err.count(f"{COMPILING}\n") == 1
    assert run_command_line([command, str(graph), "--topology", "equal:2", "--quiet", *more.get(command, [])]) == 0
    assert COMPILING not in capsys.readouterr().err


def test_processes_beside_this_one_are_told_to_compile_only_where_nothing_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.progress.compile_notice.own_cache", lambda name: tmp_path / name)
    told: list[str] = []
    tell_of_compiling(told.append)
    assert told == [COMPILING]
    (tmp_path / "kernels" / "0123").mkdir(parents=True)
    tell_of_compiling(told.append)
    assert told == [COMPILING]


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
    monkeypatch.setattr("pipeline.fleet.batch.run_batch", lambda *_, **__: Batch(rows, 0))
    (tmp_path / "jobs.toml").write_text('[[jobs]]\nmodels = ["zoo:resnet50"]\n')
    assert run_command_line(["batch", str(tmp_path / "jobs.toml"), "--store", str(tmp_path / "store"), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "1.500 (1.300 to 1.700)" in told
    assert "1.000\n" in told.replace(" ", "")
    assert "0.025" in told
