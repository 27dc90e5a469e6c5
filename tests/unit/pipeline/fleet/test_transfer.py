"""Artifacts and files between a store and that of a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import PlacewrightError, StoreError
from pipeline.fleet import transfer
from pipeline.fleet.engine import Command
from pipeline.fleet.transfer import HANDLERS, ArtifactTransfer, Request, handle_request
from pipeline.store.store import Entry, Store, json_digest

FILES = {"a.json": b"{}", "empty": b"", "b.bin": bytes(range(100))}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE", 7)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    """Return the store of the batch and that of a worker."""
    return Store(tmp_path / "home"), Store(tmp_path / "there")


def add(store: Store, name: str, files: Mapping[str, bytes] = FILES, made_at: float = 1.0) -> Entry:
    parts = {"stage": name}
    with store.scratch() as folder:
        (folder / "payload").mkdir()
        for file, content in files.items():
            (folder / "payload" / file).write_bytes(content)
        return store.add(json_digest(parts), parts, {"made_at": made_at}, folder / "payload")


def between(stores: tuple[Store, Store], asked: list[str] | None = None) -> ArtifactTransfer:
    """Return the transfer between two stores, and note what it asks the worker."""

    def call(request: Request) -> Any:
        if asked is not None:
            asked.extend(HANDLERS.keys() & request.keys())
        return handle_request(request)

    return ArtifactTransfer(stores[0], stores[1].root, call, "token")


def command(document: dict[str, Any] | None = None, **more: Any) -> Command:
    return Command("c", "c", document or {}, **more)


def content(entry: Entry | None) -> dict[str, bytes]:
    assert entry is not None
    return {name: entry.path(name).read_bytes() for name in entry.files}


def test_what_a_command_reads_arrives_whole_and_is_sent_once(stores: tuple[Store, Store]) -> None:
    home, there = stores
    entry, asked = add(home, "read"), list[str]()
    found = between(stores, asked).deliver(command({"store": str(home.root), "n": [1]}, reads=(entry.key, "gone")))
    assert found == {"store": str(there.root), "n": [1]}
    arrived = there.find(entry.key)
    assert content(arrived) == FILES
    assert arrived is not None
    assert (arrived.parts, arrived.provenance) == (entry.parts, entry.provenance)
    assert asked.count("add") == 1
    between(stores, asked).deliver(command(reads=(entry.key,)))
    assert asked.count("add") == 1
    assert list((there.root / "sent").iterdir()) == []


def test_what_was_measured_again_is_sent_again(stores: tuple[Store, Store]) -> None:
    home, there = stores
    add(there, "profile", {"x": b"old"})
    entry = add(home, "profile", {"x": b"new"}, made_at=2.0)
    between(stores).deliver(command(reads=(entry.key,)))
    assert content(there.find(entry.key)) == {"x": b"new"}


def test_a_damaged_artifact_of_the_worker_is_replaced(stores: tuple[Store, Store]) -> None:
    home, there = stores
    entry = add(home, "read")
    file = add(there, "read").folder / "a.json"
    file.chmod(0o600)
    file.write_bytes(b"??")
    between(stores).deliver(command(reads=(entry.key,)))
    assert content(there.find(entry.key)) == FILES


def test_what_a_command_made_comes_back_and_what_is_not_there_does_not(stores: tuple[Store, Store]) -> None:
    home, there = stores
    entry, asked = add(there, "place"), list[str]()
    between(stores, asked).collect(command(makes=("gone", entry.key)))
    assert content(home.find(entry.key)) == FILES
    reads = asked.count("read")
    assert reads == 1 + 15  # pieces of 7 bytes
    between(stores, asked).collect(command(makes=(entry.key,)))
    assert asked.count("read") == reads


def test_what_was_made_at_another_worker_is_not_made_again(stores: tuple[Store, Store]) -> None:
    home, there = stores
    entry = add(home, "coarsen")
    between(stores).deliver(command(makes=(entry.key,)))
    assert content(there.find(entry.key)) == FILES


@pytest.mark.parametrize("what", ["piece", "parts"])
def test_an_artifact_that_arrives_damaged_is_refused(what: str, stores: tuple[Store, Store]) -> None:
    entry = add(stores[1], "place")
    plain = between(stores)

    def call(request: Request) -> Any:
        answer = plain.call(request)
        if what in answer:
            return {what: b"-" * len(answer[what])}
        if what == "parts" and "describe" in request:
            return {"entry": {**answer["entry"], "parts": {"stage": "other"}}}
        return answer

    with pytest.raises(StoreError, match="arrived damaged"):
        ArtifactTransfer(stores[0], stores[1].root, call, "token").collect(command(makes=(entry.key,)))
    assert stores[0].find(entry.key) is None


def test_what_is_to_be_made_anew_is_forgotten_there(stores: tuple[Store, Store]) -> None:
    entry = add(stores[1], "profile")
    series = stores[1].series("abc")
    between(stores).deliver(command(makes=(entry.key,), forgets=(entry.key, "abc")))
    assert stores[1].find(entry.key) is None
    assert not series.exists()


def test_a_model_travels_with_all_its_files_once(stores: tuple[Store, Store], tmp_path: Path) -> None:
    for name, text in (("m.xml", "<net/>"), ("m.bin", "weights"), ("other.bin", "not of it")):
        (tmp_path / name).write_text(text)
    path, asked = str(tmp_path / "m.xml"), list[str]()
    found = between(stores, asked).deliver(command({"tasks": [{"context": {"model": path, "n": 3}}]}, files=(path,)))
    sent = Path(found["tasks"][0]["context"]["model"])
    assert sent.name == "m.xml"
    assert sent.is_relative_to(stores[1].root)
    assert {p.name: p.read_text() for p in sent.parent.iterdir()} == {"m.xml": "<net/>", "m.bin": "weights"}
    between(stores, asked).deliver(command(files=(path,)))
    assert asked.count("place") == 1
    (tmp_path / "m.bin").write_text("others")
    between(stores, asked).deliver(command(files=(path,)))
    assert asked.count("place") == 2


def test_a_folder_travels_as_it_is(stores: tuple[Store, Store], tmp_path: Path) -> None:
    (tmp_path / "policy" / "deep").mkdir(parents=True)
    (tmp_path / "policy" / "deep" / "x").write_text("1")
    (tmp_path / "policy" / "y").write_text("2")
    folder = str(tmp_path / "policy")
    found = Path(between(stores).deliver(command({"at": [folder]}, files=(folder,)))["at"][0])
    assert {p.relative_to(found).as_posix() for p in found.rglob("*") if p.is_file()} == {"deep/x", "y"}


def test_a_store_that_cannot_be_written_is_said_in_words(tmp_path: Path, stores: tuple[Store, Store]) -> None:
    (tmp_path / "there").write_text("in the way")
    entry = add(stores[0], "read")
    with pytest.raises(PlacewrightError, match="cannot be written"):
        between(stores).deliver(command(reads=(entry.key,)))


def test_a_worker_that_is_gone_is_an_error_of_the_connection(stores: tuple[Store, Store]) -> None:
    def gone(_: Request) -> Any:
        raise ConnectionResetError

    entry = add(stores[0], "read")
    with pytest.raises(ConnectionResetError):
        ArtifactTransfer(stores[0], stores[1].root, gone, "token").deliver(command(reads=(entry.key,)))


def test_what_was_sent_in_part_is_sent_again_from_its_beginning(stores: tuple[Store, Store]) -> None:
    entry, plain = add(stores[0], "read"), between(stores)

    def break_off(request: Request) -> Any:
        if request.get("at"):
            raise ConnectionResetError
        return plain.call(request)

    with pytest.raises(ConnectionResetError):
        ArtifactTransfer(stores[0], stores[1].root, break_off, "token").deliver(command(reads=(entry.key,)))
    plain.deliver(command(reads=(entry.key,)))
    assert content(stores[1].find(entry.key)) == FILES


def test_what_travelled_is_swept_like_other_leftovers(stores: tuple[Store, Store], tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps({}))
    between(stores).deliver(command(files=(str(tmp_path / "graph.json"),)))
    stores[1].sweep(older_than_s=-1.0, dry_run=False)
    assert list((stores[1].root / "sent").iterdir()) == []
