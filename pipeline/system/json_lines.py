"""Journals: files of JSON Lines that outlive an interruption, one record a line, each with a checksum of itself."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import UNPARSABLE
from pipeline.system.private_files import open_alike

CHECKSUM = "crc32"


def load_lines(path: Path, *, summed: bool = True) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a journal, none without a file; a torn last line, and what is damaged, is left out.

    summed: whether lines without a checksum are left out, too.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    for line in content[: _whole_bytes(content)].split(b"\n"):
        try:
            record = json.loads(line)
        except UNPARSABLE:
            continue
        if isinstance(record, dict):
            told = record.pop(CHECKSUM, None)
            if told == _checksum(record) or (told is None and not summed):
                yield record


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a journal, which is made if there is none, in place of a torn last line."""
    with open_alike(path, "a+b") as out:
        out.seek(max(0, out.seek(0, os.SEEK_END) - 1))
        if out.read() not in (b"", b"\n"):
            out.seek(0)
            out.truncate(_whole_bytes(out.read()))
        out.write(json.dumps({**record, CHECKSUM: _checksum(record)}).encode() + b"\n")


def _checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record).encode())


def _whole_bytes(content: bytes) -> int:
    return content.rfind(b"\n") + 1
