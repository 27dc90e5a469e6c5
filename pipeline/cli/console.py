"""Talking to people: results on standard output, progress and warnings on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from pipeline.cli.printable import printable
from pipeline.core.errors import UsageError
from pipeline.progress.compile_notice import Notice
from pipeline.store.task import Outcome, Progress

LINE_EVERY_S = 30.0
UNBROKEN = 1_000_000  # columns of what is no terminal
PROGRESS, AS_LINES = "PLACEWRIGHT_PROGRESS", "lines"  # a variable of the environment, and what it may say


def print_json(document: Any) -> None:
    """Write a document to standard output, and nothing else."""
    click.echo(json.dumps(document, indent=2))


def print_result(text: str) -> None:
    """Write a line of a result to standard output; where --json is given, the document stands there alone."""
    click.echo(printable(text))


def print_notice(text: str) -> None:
    """Write a line about what goes on, or a warning, to standard error."""
    click.echo(printable(text), err=True)


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Progress]:
    """Give a function that shows what is going on: a live line on a terminal, and elsewhere a `Notice` alone.

    Where PLACEWRIGHT_PROGRESS says `lines`, it is a line at once and every 30 s. quiet: nothing in any case.

    Raises:
        UsageError: the variable says something else.
    """
    asked = os.environ.get(PROGRESS, "")
    if asked not in ("", AS_LINES):
        raise UsageError(f"{PROGRESS} is {asked!r}.", f"Set it to {AS_LINES}, or not at all.")
    if quiet:
        yield lambda text: None
        return
    if asked or not sys.stderr.isatty():
        yield _Lines(LINE_EVERY_S if asked else math.inf)
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(Text(printable(text)))  # as it stands: a bracket in a name is no markup


class _Lines:
    """Writes notices, each once, and other lines: the first, then one every so many seconds; none where that is inf."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._last_s = every_s, -math.inf
        self._noticed: set[str] = set()

    def __call__(self, text: str) -> None:
        if isinstance(text, Notice) and text not in self._noticed:
            self._noticed.add(text)
        elif math.isinf(self._every_s) or time.monotonic() - self._last_s < self._every_s:
            return
        self._last_s = time.monotonic()
        print_notice(text)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of a result to standard output; columns are right-aligned if they look like numbers.

    On a terminal cells are broken where it ends; elsewhere every row is one line, so that lines can be searched.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        numeric = all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows) and bool(rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(printable, row))
    width = None if sys.stdout.isatty() else UNBROKEN
    # Names and paths are shown as they stand: a bracket in one is no markup, and a word between colons no emoji.
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    if title:
        print_result(title)
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())  # as it stands: on a terminal it has colours


def outcome_line(outcome: Outcome) -> str:
    """Return one line about a stage: whether it ran, for how long, and why."""
    verb = f"ran {outcome.seconds:6.1f} s" if outcome.ran else "not needed  "
    waited = f"; waited {outcome.waited_s:.0f} s for another run" if outcome.waited_s else ""
    compiled = f"; {outcome.compiled_s:.0f} s to compile kernels (once per version)" if outcome.compiled_s else ""
    return f"{outcome.task.stage:<10} {verb}  {outcome.task.key[:12]}  {outcome.why}{waited}{compiled}"
