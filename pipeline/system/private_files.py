"""Files that are read by whom their folder is read by: what lies in a folder of one's own is one's own as well.

Whether a user's cache or a folder that a user named is written to is known where the folder is made, and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

OWN = 0o700
PROBE_BYTES = 1 << 16


def open_alike(path: Path, mode: str) -> IO[Any]:
    """Open a file to write; a new one may be read and written by those only who may do so in its folder."""
    permissions = 0o600 | 0o666 & path.parent.stat().st_mode
    encoding = None if "b" in mode else "utf-8"
    # Path.open takes no opener, and a mode set later leaves a moment in which others can read.
    return open(path, mode, encoding=encoding, opener=lambda name, flags: os.open(name, flags, permissions))


def disk_fault(folder: Path, error: Exception) -> Exception:
    """Return why nothing can be written into a folder, where a library does not say it of its own error; else that."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
    except OSError as fault:
        return OSError(fault.errno, fault.strerror, str(folder))
    return error


def close_to_changes(file: Path) -> None:
    """Let nobody change a file, and nobody else read it; on Windows, which removes no such file, leave it as it is."""
    if sys.platform != "win32":
        file.chmod(0o400)


def make_alike(folder: Path) -> None:
    """Make a folder, and those it lies in, open to those only to whom the nearest that is there is open."""
    if not folder.is_dir():
        make_alike(folder.parent)
        folder.mkdir(OWN | 0o777 & folder.parent.stat().st_mode, exist_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, see `open_alike`.

    Raises:
        OSError: it cannot be written.
    """
    with _replace_whole(path) as partial:
        partial.write_bytes(content)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file's content, whole or not at all, see `open_alike`.

    Raises:
        OSError: it cannot be read or written.
    """
    with _replace_whole(path) as partial:
        shutil.copyfile(source, partial)


@contextlib.contextmanager
def _replace_whole(path: Path) -> Iterator[Path]:
    """Give the path of an empty file that takes the place of `path` at the end; after an OSError it is gone."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        open_alike(partial, "wb").close()
        yield partial
        partial.replace(path)
    except OSError:
        if partial.is_file():
            partial.unlink()
        raise
