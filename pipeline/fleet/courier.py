"""Artifacts that travel, to and from a worker that has a store of its own.

What a command reads is sent to the worker's store before it, and what it made is fetched after it, each by its key;
what is there already stays where it is. Files that are no artifacts, such as models, lie there by what they hold:

    <root>/sent/<digest>/...

The worker's side is `handle`, which takes one plain request at a time and keeps nothing in mind between two.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coarsen.reading.model.files import model_files
from pipeline.core.errors import StoreError, told_error
from pipeline.fleet.engine import Command
from pipeline.store.store import Entry, Store, digest, file_digest, writing
from pipeline.system.workers import Answer, answered

SENT = "sent"
PIECE = 1 << 24  # bytes of a message at most

Request = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Courier:
    """What brings artifacts from a store to that of one worker, and back.

    root: the folder of the worker's store. call: gives the worker's answer to a request. token: no other has it.
    """

    store: Store
    root: Path
    call: Callable[[Request], Answer]
    token: str

    def deliver(self, command: Command) -> dict[str, Any]:
        """Send what a command needs, and return its document with the paths that hold there.

        Raises:
            PlacewrightError: the worker's store cannot be used, or a file is gone.
            OSError: the worker is gone.
        """
        if command.forgets:
            self._ask("forget", keys=list(command.forgets))
        here = {key: entry for key in (*command.reads, *command.makes) if (entry := self.store.intact(key))}
        for key in self._ask("lacks", seals={key: _seal(entry) for key, entry in here.items()})["lacks"]:
            self._send_entry(here[key])
        moved = {str(self.store.root): str(self.root)}
        moved |= {path: str(self._send_files(Path(path))) for path in command.files}
        document: dict[str, Any] = _moved(command.document, moved)
        return document

    def collect(self, command: Command) -> None:
        """Fetch what a command made, as far as there is anything.

        Raises:
            PlacewrightError: it is damaged, or this store cannot be written.
            OSError: the worker is gone.
        """
        for key in command.makes:
            told = self._ask("tell", key=key)["entry"]
            own = self.store.intact(key)
            if told is not None and (own is None or _seal(own) != told["seal"]):
                self._fetch(key, told)

    def _ask(self, what: str, **more: Any) -> Answer:
        answer = self.call({"root": str(self.root), "what": what, **more})
        if "error" in answer:
            raise told_error(answer["error"])
        return answer

    def _send_entry(self, entry: Entry) -> None:
        parcel = self._send({name: entry.folder / name for name in entry.files}, entry.key)
        self._ask("add", parcel=parcel, key=entry.key, parts=dict(entry.parts), provenance=dict(entry.provenance))

    def _send_files(self, path: Path) -> Path:
        """Return where a file, or folder, and what belongs to it lie at the worker."""
        every = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else model_files(path)
        files = {file.relative_to(path.parent).as_posix(): file for file in every}
        content = digest({name: file_digest(file) for name, file in files.items()})
        if not self._ask("has", digest=content)["has"]:
            self._ask("place", parcel=self._send(files, content), digest=content)
        return self.root / SENT / content / path.name

    def _send(self, files: Mapping[str, Path], name: str) -> str:
        """Send files into a folder of their own, and return its name."""
        parcel = f"{self.token}-{name}"
        self._ask("begin", parcel=parcel)
        for file, path in files.items():
            with path.open("rb") as stream:
                for _ in range(0, max(1, path.stat().st_size), PIECE):
                    self._ask("write", parcel=parcel, name=file, piece=stream.read(PIECE))
        return parcel

    def _fetch(self, key: str, told: Mapping[str, Any]) -> None:
        with self.store.scratch() as scratch:
            payload = scratch / "payload"
            with writing(self.store.root):
                payload.mkdir()
                for name, size in told["sizes"].items():
                    with (payload / Path(name).name).open("wb") as out:
                        for at in range(0, size, PIECE):
                            out.write(self._ask("read", key=key, name=name, at=at)["piece"])
                files = {file.name: file_digest(file) for file in payload.iterdir()}
            if files != told["files"] or digest(told["parts"]) != key:
                raise StoreError(f"The artifact {key[:12]} arrived damaged.", "Run the same command again.")
            with self.store.making(key):
                self.store.add(key, told["parts"], told["provenance"], payload)


def handle(request: dict[str, Any]) -> Answer:
    """Return the answer of a worker's store to a request, or {"error": {"cause", "remedy"}}."""
    return answered(_answer, request)


def _answer(request: dict[str, Any]) -> Answer:
    store = Store(Path(request["root"]))
    with writing(store.root):
        return ANSWERS[request["what"]](store, request)


def _forget(store: Store, request: Request) -> Answer:
    for key in request["keys"]:
        store.forget(key)
        store.forget_series(key)
    return {}


def _lacks(store: Store, request: Request) -> Answer:
    there = {key: store.intact(key) for key in request["seals"]}
    return {"lacks": [k for k, seal in request["seals"].items() if (e := there[k]) is None or _seal(e) != seal]}


def _tell(store: Store, request: Request) -> Answer:
    entry = store.intact(request["key"])
    if entry is None:
        return {"entry": None}
    sizes = {name: (entry.folder / name).stat().st_size for name in entry.files}
    told = {"parts": entry.parts, "provenance": entry.provenance, "files": dict(entry.files)}
    return {"entry": {**told, "sizes": sizes, "seal": _seal(entry)}}


def _read(store: Store, request: Request) -> Answer:
    with (store.folder(request["key"]) / Path(request["name"]).name).open("rb") as stream:
        stream.seek(request["at"])
        return {"piece": stream.read(PIECE)}


def _begin(store: Store, request: Request) -> Answer:
    shutil.rmtree(store.root / SENT / request["parcel"], ignore_errors=True)
    store.private(SENT, request["parcel"])
    return {}


def _write(store: Store, request: Request) -> Answer:
    path = store.root / SENT / request["parcel"] / request["name"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(request["piece"])
    return {}


def _add(store: Store, request: Request) -> Answer:
    key, payload = request["key"], store.root / SENT / request["parcel"]
    with store.making(key):
        store.add(key, request["parts"], request["provenance"], payload)
    return {}


def _has(store: Store, request: Request) -> Answer:
    return {"has": (store.root / SENT / request["digest"]).is_dir()}


def _place(store: Store, request: Request) -> Answer:
    parcel, target = (store.root / SENT / request[name] for name in ("parcel", "digest"))
    if target.is_dir():  # another has sent the same meanwhile
        shutil.rmtree(parcel)
    else:
        parcel.rename(target)
    return {}


ANSWERS: Mapping[str, Callable[[Store, Request], Answer]] = MappingProxyType(
    {
        "forget": _forget,
        "lacks": _lacks,
        "tell": _tell,
        "read": _read,
        "begin": _begin,
        "write": _write,
        "add": _add,
        "has": _has,
        "place": _place,
    }
)


def _seal(entry: Entry) -> str:
    """Return what tells an entry from another of the same key: what is measured again has other figures."""
    return digest([dict(entry.files), dict(entry.provenance)])


def _moved(value: Any, paths: Mapping[str, str]) -> Any:
    """Return a document in which paths, where they are all of a string, are others."""
    if isinstance(value, Mapping):
        return {key: _moved(v, paths) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(v, paths) for v in value]
    return paths.get(value, value) if isinstance(value, str) else value
