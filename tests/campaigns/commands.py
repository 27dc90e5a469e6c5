"""Running the command line as a user does, in this process, and what any end of it must look like."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cli.main import run_command_line
from tests.campaigns.runner import WrongError, require

ERRORS = (2, 3, 4, 5, 6, 7)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but line feed and tab
LONGEST = 100_000  # characters of a message


class Terminal(io.TextIOWrapper):
    """A stream in UTF-8 that takes itself for a terminal, so that nobody removes control sequences on the way."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    @property
    def text(self) -> str:
        """Return what was written."""
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]

    def isatty(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the JSON document that it printed."""
        return json.loads(self.out)


def run_command(*arguments: str | Path) -> Ended:
    """Run a command and require of its end: no bug, an error of one line, no control characters."""
    handlers = logging.getLogger().handlers
    before, handlers[:] = handlers[:], []
    with Terminal() as out, Terminal() as err:
        # A dumb terminal is one that rich sends no control sequences of its own.
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), environment(TERM="dumb"):
            code = run_command_line([str(a) for a in arguments])
        handlers[:] = before  # and not the one that writes to what is closed now
        ended = Ended(code, out.text, err.text)
    words = f"{' '.join(map(str, arguments))[:300]}: {ended.err[-1500:]!r}"
    require(code == 0 or code in ERRORS, f"ends with {code}: {words}")
    require("Traceback" not in ended.err, f"shows a traceback: {words}")
    for text in (ended.out, ended.err):
        if found := CONTROL.search(text):
            raise WrongError(f"writes {found[0]!r}: {text[max(0, found.start() - 80) :][:200]!r}")
    if code and arguments[0] != "batch":  # a batch says in its table what became of each job
        require(ended.err.count("error: ") >= 1, f"fails without a cause: {words}")
        require(len(ended.err) < LONGEST, f"writes {len(ended.err)} characters: {words[:400]}")
    return ended


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
