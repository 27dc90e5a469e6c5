"""Journals: files of JSON Lines that outlive an interruption, one record a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.system.private_files import open_alike


def load_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a journal, none without a file; a torn last line is cut off, what is no record left out."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    os.truncate(path, whole)
    for line in content[:whole].splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, Mapping):
            yield document


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a journal, which is made if there is none."""
    with open_alike(path, "a") as out:
        out.write(json.dumps(record) + "\n")
