"""Journals: files of JSON Lines that outlive an interruption, one record a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.system.private_files import open_alike


def load_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a journal, none without a file; a torn last line, and what is no record, is left out."""
    if not path.exists():
        return
    content = path.read_bytes()
    for line in content[: _whole_bytes(content)].splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, Mapping):
            yield document


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a journal, which is made if there is none, in place of a torn last line."""
    with open_alike(path, "a+b") as out:
        out.seek(max(0, out.seek(0, os.SEEK_END) - 1))
        if out.read() not in (b"", b"\n"):
            out.seek(0)
            out.truncate(_whole_bytes(out.read()))
        out.write(json.dumps(record).encode() + b"\n")


def _whole_bytes(content: bytes) -> int:
    return content.rfind(b"\n") + 1
