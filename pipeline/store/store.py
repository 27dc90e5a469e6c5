"""The content-addressed store of stage artifacts.

    <root>/ab/abcdef.../entry.json    what the entry is, the SHA-256 of every file, and its own
    <root>/ab/abcdef.../<payload>     npz without pickle, safetensors, JSON, IR
    <root>/partial/abcdef...          what an interrupted stage has left to go on from
    <root>/series/abcdef...           samples that tasks of different budgets add to
    <root>/sent/abcdef...             files that were sent here, named by what they hold

An entry appears whole or not at all: it is written to a temporary folder beside its place and renamed. A file is
checked against its hash when it is opened; a damaged entry counts as absent. Objects never change, so reading needs
no lock; a lock per key keeps two processes from making the same entry twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pipeline.core.errors import UNPARSABLE, DamagedEntryError, ModelError, PlacewrightError, StoreError, UsageError
from pipeline.system.paths import path_exists
from pipeline.system.private_files import OWN, close_to_changes, write_whole

SCHEMA = 1
ENTRY = "entry.json"
PARTS = re.compile("locks|tmp|partial|series|sent|zoo|[0-9a-f]{2}")  # what lies in the folder of a store
OTHERS = 0o077
STORE = "PLACEWRIGHT_STORE"  # environment variable: the folder of the store, if no other is named


def default_store() -> Path:
    """Return the folder of artifacts that the environment names, or else the one in the user's cache."""
    return Path(os.environ.get(STORE) or Path(platformdirs.user_cache_dir("placewright")) / "store")


def canonical_json(value: Any) -> str:
    """Return JSON text that is equal for equal values, whatever the order of keys.

    >>> canonical_json({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_digest(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    write_content(path, text.encode())


def write_content(path: Path, content: bytes) -> None:
    """Write a file and the folders it lies in, whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}.", "Choose a folder you may write to.") from error


@contextlib.contextmanager
def as_store_errors(root: Path) -> Iterator[None]:
    """Turn what the file system refuses while the store under `root` is written into a StoreError."""
    try:
        yield
    except PlacewrightError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"The store {root} cannot be written: {reason}.", "Free disk space, or use another --store."
        ) from error


@contextlib.contextmanager
def leaving_nothing(*paths: Path) -> Iterator[None]:
    """Where a model, or what is said of its inputs, is refused, remove what was not there before of these paths.

    They are removed in their order, and only if they are empty.
    """
    new = [path for path in paths if not path_exists(path)]
    try:
        yield
    except (ModelError, UsageError):
        for path in new:
            with contextlib.suppress(OSError):  # it holds something by now, or was never made
                path.rmdir() if path.is_dir() else path.unlink()
        raise


@dataclass(frozen=True, slots=True)
class Entry:
    """One artifact in the store.

    parts: what the key was made of. provenance: when, how long, with which versions; not part of the key.
    """

    folder: Path
    key: str
    parts: Mapping[str, Any]
    provenance: Mapping[str, Any]
    files: Mapping[str, str]

    def path(self, name: str) -> Path:
        """Return the path of a payload file, after checking it against its hash.

        Raises:
            DamagedEntryError: the file is missing or was changed.
        """
        path = self.folder / name
        if name not in self.files or not path.is_file() or file_digest(path) != self.files[name]:
            raise DamagedEntryError(f"{name} of store entry {self.key[:12]} is damaged.", "It is made again.")
        return path

    def verify(self) -> None:
        """Check every file against its hash.

        Raises:
            DamagedEntryError: a file is missing or was changed.
        """
        for name in self.files:
            self.path(name)

    def size_bytes(self) -> int:
        """Return the bytes the entry takes on disk."""
        return sum(f.stat().st_size for f in self.folder.iterdir())


class Store:
    """A folder of artifacts, shared by all runs of one user; it is made when something is first put into it.

    What is in it concerns nobody else: models, and what was measured of them. Its folders are 0700, its files 0400 once
    they are stored, and a store from before is closed to others when it is next written to.

    root: absolute whatever it is given as, so that it stays where it is when the working directory changes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._closed = False

    def prepare(self) -> None:
        """Make the folder, to find out early whether it can be written.

        Raises:
            StoreError: it cannot.
        """
        with self.scratch():
            return

    def private(self, *names: str) -> Path:
        """Return a folder of the store, made now if there is none, that nobody else can look into."""
        with as_store_errors(self.root):
            self.root.parent.mkdir(parents=True, exist_ok=True)
            folder = self.root
            folder.mkdir(OWN, exist_ok=True)
            self._close_to_others()
            for name in names:
                folder /= name
                folder.mkdir(OWN, exist_ok=True)
        return folder

    def _close_to_others(self) -> None:
        """Close the folders of a store that was made open, if nothing but a store lies in its folder and it is ours."""
        if self._closed:
            return
        self._closed = True
        below = list(self.root.iterdir())
        if not {"locks", "tmp"} <= {p.name for p in below} or not all(PARTS.fullmatch(p.name) for p in below):
            return  # just made, or somebody's own folder that a store was put into
        for folder in (self.root, *below):
            mode = folder.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & OTHERS:
                with contextlib.suppress(PermissionError):  # another user's store
                    folder.chmod(OWN)

    def traces(self, key: str) -> list[Path]:
        """Return what making the entry of a key leaves if it fails: the innermost first, up to the root."""
        inner = (self.root / "locks" / key, self.root / "partial" / key)
        return [*inner, *(self.root / name for name in ("locks", "partial", "tmp")), self.root, *self.root.parents]

    def folder(self, key: str) -> Path:
        """Return where the entry of a key lies or would lie."""
        return self.root / key[:2] / key

    def find(self, key: str) -> Entry | None:
        """Return the entry of a key, or None if there is none.

        Raises:
            DamagedEntryError: there is one whose description was changed.
        """
        path = self.folder(key) / ENTRY
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            body = {name: document[name] for name in ("schema", "key", "parts", "provenance", "files")}
            intact = document["digest"] == json_digest(body) and body["schema"] == SCHEMA and body["key"] == key
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, *UNPARSABLE) as error:
            raise DamagedEntryError(f"Store entry {key[:12]} is damaged.", "It is made again.") from error
        if not intact:
            raise DamagedEntryError(f"Store entry {key[:12]} is damaged.", "It is made again.")
        return Entry(path.parent, key, body["parts"], body["provenance"], body["files"])

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[None]:
        """Hold the lock on making an entry; another process that wants the same entry waits."""
        lock = filelock.FileLock(self.private("locks") / key, mode=0o600)
        with as_store_errors(self.root):
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a temporary folder on the store's file system; what is left in it is removed."""
        folder = self.private("tmp")
        with as_store_errors(self.root):
            path = Path(tempfile.mkdtemp(dir=folder, prefix=f"{os.getpid()}-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def add(self, key: str, parts: Mapping[str, Any], provenance: Mapping[str, Any], payload: Path) -> Entry:
        """Move a folder of payload files into the store as the entry of `key`, replacing a damaged one."""
        target = self.folder(key)
        with as_store_errors(self.root):
            files = {f.name: file_digest(f) for f in sorted(payload.iterdir())}
            body = {"schema": SCHEMA, "key": key, "parts": parts, "provenance": provenance, "files": files}
            write_json(payload / ENTRY, {**body, "digest": json_digest(body)})
            for file in payload.iterdir():
                close_to_changes(file)
            payload.chmod(OWN)
            self.private(key[:2])
            if target.exists():
                self.remove(key)
            payload.replace(target)
        return Entry(target, key, parts, provenance, files)

    def remove(self, key: str) -> None:
        """Remove the entry of a key."""
        with self.scratch() as aside:
            self.folder(key).replace(aside / key)

    def intact(self, key: str) -> Entry | None:
        """Return the entry of a key, every file of it checked; None if there is none, or it is damaged."""
        try:
            entry = self.find(key)
            if entry is not None:
                entry.verify()
        except DamagedEntryError:
            return None
        return entry

    def forget(self, key: str) -> None:
        """Remove the entry of a key, if there is one, and what an interrupted stage has left for it."""
        if self.folder(key).exists():
            with self.making(key):
                if self.folder(key).exists():
                    self.remove(key)
        self.drop_partial(key)

    def partial(self, key: str) -> Path:
        """Return the folder in which a stage keeps what it can go on from when it is interrupted."""
        return self.private("partial", key)

    def series(self, key: str) -> Path:
        """Return the folder in which tasks that share samples keep them."""
        return self.private("series", key)

    def forget_series(self, key: str) -> None:
        """Remove the samples that tasks share."""
        shutil.rmtree(self.root / "series" / key, ignore_errors=True)

    def drop_partial(self, key: str) -> None:
        """Remove what an interrupted stage had left, once the stage is done."""
        shutil.rmtree(self.root / "partial" / key, ignore_errors=True)

    def list_keys(self) -> list[str]:
        """Return the keys of all entries."""
        return sorted(p.name for p in (e.parent for e in self.root.glob(f"??/*/{ENTRY}")) if self.folder(p.name) == p)

    def sweep(self, *, older_than_s: float, dry_run: bool) -> list[tuple[str, int]]:
        """Remove entries made longer ago than `older_than_s`, and all leftovers; return (key, bytes) of the entries."""
        limit = time.time() - older_than_s
        old = [
            (key, sum(f.lstat().st_size for f in self.folder(key).iterdir()))
            for key in self.list_keys()
            if (self.folder(key) / ENTRY).lstat().st_mtime < limit
        ]
        if not dry_run:
            for key, _ in old:
                self.remove(key)
            for leftover in (self.root / name for name in ("tmp", "partial", "series", "sent")):
                for path in leftover.iterdir() if leftover.exists() else ():
                    if path.lstat().st_mtime < limit:
                        shutil.rmtree(path, ignore_errors=True)
        return old
