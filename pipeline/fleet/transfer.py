"""Transfer of artifacts to and from a worker that has a store of its own.

What a command reads is sent to the worker's store before it, and what it made is fetched after it, each by its key;
what is there already is not sent. Files that are no artifacts, such as models, lie there by their content:

    <root>/sent/<digest>/...

The worker's side is `handle_request`, which answers one request at a time and keeps no state between two.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coarsen.reading.model.files import model_files
from pipeline.core.errors import PlacewrightError, StoreError, error_document, error_from_document
from pipeline.fleet.engine import Command
from pipeline.store.store import Entry, Store, as_store_errors, file_digest, json_digest
from pipeline.system.workers import Answer

SENT = "sent"
PIECE = 1 << 24  # bytes of a message at most

Request = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ArtifactTransfer:
    """Sends artifacts of a store to that of one worker, and fetches what it made.

    root: the folder of the worker's store. call: gives the worker's answer to a request. token: differs between runs.
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
            self._ask(forget=list(command.forgets))
        entries = {key: entry for key in (*command.reads, *command.makes) if (entry := self.store.intact(key))}
        files = {path: _files_with(Path(path)) for path in command.files}
        folders = {p: json_digest({name: file_digest(f) for name, f in each.items()}) for p, each in files.items()}
        seals = {key: _seal(entry) for key, entry in entries.items()}
        missing = self._ask(missing=seals, folders=list(folders.values()))["missing"]
        for key, entry in entries.items():
            if key in missing:
                parcel = self._send({name: entry.folder / name for name in entry.files}, seals[key])
                self._ask(add=key, parcel=parcel, parts=dict(entry.parts), provenance=dict(entry.provenance))
        for path, folder in folders.items():
            if folder in missing:
                self._ask(place=folder, parcel=self._send(files[path], folder))
        there = {path: str(self.root / SENT / folder / Path(path).name) for path, folder in folders.items()}
        document: dict[str, Any] = _with_paths(command.document, {str(self.store.root): str(self.root), **there})
        return document

    def collect(self, command: Command) -> None:
        """Fetch what a command made, as far as there is anything.

        Raises:
            PlacewrightError: it is damaged, or this store cannot be written.
            OSError: the worker is gone.
        """
        for key in command.makes:
            told, own = self._ask(describe=key)["entry"], self.store.intact(key)
            if told is not None and (own is None or _seal(own) != told["seal"]):
                self._fetch(key, told)

    def _ask(self, **request: Any) -> Answer:
        answer = self.call({"root": str(self.root), **request})
        if "error" in answer:
            raise error_from_document(answer["error"])
        return answer

    def _send(self, files: Mapping[str, Path], content: str) -> str:
        """Send files into a folder of their own, and return its name; content: tells them from others."""
        parcel = f"{self.token}-{content}"
        for name, path in files.items():
            with path.open("rb") as stream:
                for at in range(0, max(1, path.stat().st_size), PIECE):
                    self._ask(write=name, parcel=parcel, at=at, piece=stream.read(PIECE))
        return parcel

    def _fetch(self, key: str, told: Mapping[str, Any]) -> None:
        with self.store.scratch() as scratch:
            payload = scratch / "payload"
            with as_store_errors(self.store.root):
                payload.mkdir()
                for name, size in told["sizes"].items():
                    with (payload / Path(name).name).open("wb") as out:
                        for at in range(0, size, PIECE):
                            out.write(self._ask(read=key, name=name, at=at)["piece"])
                files = {file.name: file_digest(file) for file in payload.iterdir()}
            if files != told["files"] or json_digest(told["parts"]) != key:
                raise StoreError(f"The artifact {key[:12]} arrived damaged.", "Run the same command again.")
            with self.store.making(key):
                self.store.add(key, told["parts"], told["provenance"], payload)


def handle_request(request: Request) -> Answer:
    """Return the answer of a worker's store to a request, or {"error": {"cause", "remedy"}}."""
    [what] = HANDLERS.keys() & request.keys()
    store = Store(Path(request["root"]))
    try:
        with as_store_errors(store.root):
            return HANDLERS[what](store, request)
    except PlacewrightError as error:
        return {"error": error_document(error)}


def _forget_entries(store: Store, request: Request) -> Answer:
    for key in request["forget"]:
        store.forget(key)
        store.forget_series(key)
    return {}


def _list_missing(store: Store, request: Request) -> Answer:
    there = {key: store.intact(key) for key in request["missing"]}
    entries = [k for k, seal in request["missing"].items() if (entry := there[k]) is None or _seal(entry) != seal]
    return {"missing": entries + [name for name in request["folders"] if not (store.root / SENT / name).is_dir()]}


def _write_piece(store: Store, request: Request) -> Answer:
    path = store.private(SENT, request["parcel"]) / request["write"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if request["at"] else "wb") as out:
        out.write(request["piece"])
    return {}


def _add_entry(store: Store, request: Request) -> Answer:
    key = request["add"]
    with store.making(key):
        store.add(key, request["parts"], request["provenance"], store.private(SENT, request["parcel"]))
    return {}


def _place_folder(store: Store, request: Request) -> Answer:
    parcel, target = store.private(SENT, request["parcel"]), store.root / SENT / request["place"]
    if target.is_dir():  # another run has sent the same meanwhile
        shutil.rmtree(parcel)
    else:
        parcel.rename(target)
    return {}


def _describe_entry(store: Store, request: Request) -> Answer:
    entry = store.intact(request["describe"])
    if entry is None:
        return {"entry": None}
    sizes = {name: entry.path(name).stat().st_size for name in entry.files}
    told = {"parts": entry.parts, "provenance": entry.provenance, "files": dict(entry.files)}
    return {"entry": {**told, "sizes": sizes, "seal": _seal(entry)}}


def _read_piece(store: Store, request: Request) -> Answer:
    with (store.folder(request["read"]) / Path(request["name"]).name).open("rb") as stream:
        stream.seek(request["at"])
        return {"piece": stream.read(PIECE)}


HANDLERS: Mapping[str, Callable[[Store, Request], Answer]] = MappingProxyType(
    {
        "forget": _forget_entries,
        "missing": _list_missing,
        "write": _write_piece,
        "add": _add_entry,
        "place": _place_folder,
        "describe": _describe_entry,
        "read": _read_piece,
    }
)


def _files_with(path: Path) -> dict[str, Path]:
    """Return the files that belong to a path, by their names beside it: of a folder all, of a model its weights too."""
    every = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else model_files(path)
    return {file.relative_to(path.parent).as_posix(): file for file in every}


def _seal(entry: Entry) -> str:
    """Return what tells an entry from another of the same key: what is measured again has other figures."""
    return json_digest([dict(entry.files), dict(entry.provenance)])


def _with_paths(value: Any, paths: Mapping[str, str]) -> Any:
    """Return a document in which paths, where they are all of a string, are others."""
    if isinstance(value, Mapping):
        return {key: _with_paths(v, paths) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_paths(v, paths) for v in value]
    return paths.get(value, value) if isinstance(value, str) else value
