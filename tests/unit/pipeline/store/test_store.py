"""The store: whole entries or none, damage found by hash, one maker per key, sweeping, places without room."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import DamagedEntryError, ModelError, StoreError
from pipeline.store.checkpoint import replace_file
from pipeline.store.store import ENTRY, Entry, Store, canonical_json, json_digest, leaving_nothing, write_json
from pipeline.system.private_files import open_alike

PARTS = {"stage": "coarsen", "name": "metis", "params": {"parts": 4}}
KEY = json_digest(PARTS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, key: str = KEY, **files: str) -> Entry:
    """Store an entry with the files given, two of them unless told otherwise."""
    with store.scratch() as scratch:
        payload = scratch / "payload"
        payload.mkdir()
        for name, text in (files or {"a": "first", "b": "second"}).items():
            (payload / name).write_text(text, encoding="utf-8")
        return store.add(key, PARTS, {"made_at": 0.0}, payload)


def overwrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a read-only file of the store."""
    path.chmod(0o644)
    path.write_bytes(change(path.read_bytes()))


def flip_byte(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_an_entry_is_found_again_with_its_parts_and_files(store: Store) -> None:
    put(store)
    found = store.find(KEY)
    assert found is not None
    assert (found.parts, found.provenance, sorted(found.files)) == (PARTS, {"made_at": 0.0}, ["a", "b"])
    assert found.path("a").read_text(encoding="utf-8") == "first"
    found.verify()


def test_a_store_given_by_a_relative_path_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = put(Store(Path("store")))
    assert entry.path("a") == tmp_path / "store" / KEY[:2] / KEY / "a"


def test_a_key_that_was_never_stored_is_not_found_and_nothing_is_written(store: Store) -> None:
    assert store.find(KEY) is None
    assert store.list_keys() == []
    assert not store.root.exists()


def test_the_files_of_an_entry_are_read_only(store: Store) -> None:
    entry = put(store)
    assert {f.stat().st_mode & 0o222 for f in entry.folder.iterdir()} == {0}


def readable_by_others(root: Path) -> list[str]:
    """Return what of a folder, itself included, others may look into."""
    return [str(p.relative_to(root)) for p in (root, *root.rglob("*")) if p.lstat().st_mode & 0o077]


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def use(store: Store) -> None:
    """Leave something of every kind in a store."""
    with store.making(KEY):
        put(store)
        write_json(store.partial(KEY) / "a.json", 1)
        replace_file(store.partial(KEY) / "placer" / "state.safetensors", b"")
        with open_alike(store.partial(KEY) / "rounds.jsonl", "a") as out:
            out.write("{}\n")


@pytest.mark.usefixtures("usual_umask")
def test_nobody_else_may_look_into_a_store(store: Store) -> None:
    use(store)
    assert len(list(store.root.rglob("*"))) > 10
    assert readable_by_others(store.root) == []


@pytest.mark.usefixtures("usual_umask")
def test_a_store_that_was_open_to_others_is_closed_when_it_is_used(store: Store) -> None:
    use(store)
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    Store(store.root).prepare()
    assert not {".", "locks", "tmp", "partial", KEY[:2]} & set(readable_by_others(store.root))


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_that_holds_other_things_as_well_stays_open_but_for_the_store(tmp_path: Path) -> None:
    for name in ("tmp", "locks", "mine"):
        (tmp_path / "home" / name).mkdir(parents=True)
    use(Store(tmp_path / "home"))
    open_ = {p for p in readable_by_others(tmp_path / "home") if p.count("/") == 0}
    assert open_ == {".", "tmp", "locks", "mine"}


def test_a_store_that_cannot_even_be_looked_for_is_refused_as_one_that_cannot_be_written(tmp_path: Path) -> None:
    store = Store(tmp_path / ("x" * 300))
    with pytest.raises(StoreError, match="cannot be written"), leaving_nothing(*store.traces(KEY)):
        store.prepare()
    with pytest.raises(ModelError), leaving_nothing(*store.traces(KEY)):
        raise ModelError("It cannot be read.", "")


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_file_in_a_folder_of_the_users_choice_keeps_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    os.umask(umask)
    (tmp_path / "open").mkdir(0o777)
    (tmp_path / "open").chmod(0o775)
    write_json(tmp_path / "open" / "a.json", 1)
    assert (tmp_path / "open" / "a.json").stat().st_mode & 0o777 == mode
    write_json(tmp_path / "open" / "new" / "a.json", 1)
    assert (tmp_path / "open" / "new").stat().st_mode & 0o777 == 0o777 & ~umask


def test_an_entry_whose_maker_dies_does_not_appear(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        put(store)
    monkeypatch.undo()
    assert store.find(KEY) is None
    assert not store.folder(KEY).exists()
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_flipped_byte_in_any_file_is_found(store: Store, name: str) -> None:
    overwrite(put(store).folder / name, flip_byte)
    entry = store.find(KEY)
    assert entry is not None
    with pytest.raises(DamagedEntryError, match=f"{name} of store entry {KEY[:12]} is damaged"):
        entry.verify()


def test_a_missing_file_is_found(store: Store) -> None:
    entry = put(store)
    (entry.folder / "b").unlink()
    with pytest.raises(DamagedEntryError, match="b of store entry"):
        entry.verify()


def test_a_file_that_the_entry_does_not_list_is_not_given_out(store: Store) -> None:
    entry = put(store)
    (entry.folder / "c").write_text("smuggled in", encoding="utf-8")
    with pytest.raises(DamagedEntryError):
        entry.path("c")


def test_a_flipped_byte_anywhere_in_the_description_is_found(store: Store) -> None:
    path = put(store).folder / ENTRY
    content = path.read_bytes()
    path.chmod(0o644)
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        try:
            found = store.find(KEY)
        except DamagedEntryError:
            continue
        # JSON has room for bytes without meaning: those alone may pass.
        assert found is not None
        assert content[i : i + 1].isspace()


def test_a_description_that_stands_under_another_key_is_damaged(store: Store) -> None:
    other = json_digest({"other": 1})
    entry = put(store)
    store.folder(other).parent.mkdir(parents=True, exist_ok=True)
    entry.folder.replace(store.folder(other))
    with pytest.raises(DamagedEntryError):
        store.find(other)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"digest": 1}', "\x00\xff"])
def test_a_description_of_another_form_is_damaged(store: Store, text: str) -> None:
    overwrite(put(store).folder / ENTRY, lambda _: text.encode("latin-1"))
    with pytest.raises(DamagedEntryError):
        store.find(KEY)


def test_adding_replaces_a_damaged_entry(store: Store) -> None:
    overwrite(put(store).folder / "a", flip_byte)
    put(store, a="first")
    entry = store.find(KEY)
    assert entry is not None
    entry.verify()
    assert sorted(entry.files) == ["a"]


def test_adding_over_a_folder_without_description_makes_it_whole(store: Store) -> None:
    entry = put(store)
    (entry.folder / ENTRY).unlink()
    assert store.find(KEY) is None
    put(store)
    assert store.find(KEY) is not None


def test_only_one_at_a_time_holds_the_lock_of_a_key(store: Store) -> None:
    inside, most, start = [0], [0], threading.Barrier(4)

    def make() -> None:
        start.wait()
        for _ in range(20):
            with store.making(KEY):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_the_lock_of_one_key_does_not_hold_up_another(store: Store) -> None:
    with store.making(KEY), store.making(json_digest({"other": 1})):
        pass


def test_the_lock_is_given_back_when_making_fails(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.making(KEY):
        raise ZeroDivisionError
    with store.making(KEY):
        pass


def age(entry: Entry, seconds: float) -> None:
    """Make an entry look older."""
    made = (entry.folder / ENTRY).stat().st_mtime - seconds
    os.utime(entry.folder / ENTRY, (made, made))


def test_sweeping_takes_old_entries_and_leaves_young_ones(store: Store) -> None:
    young = json_digest({"young": 1})
    put(store, young)
    old = put(store)
    size = old.size_bytes()
    age(old, 100.0)
    assert store.sweep(older_than_s=50.0, dry_run=False) == [(KEY, size)]
    assert store.list_keys() == [young]


def test_a_dry_sweep_names_the_same_entries_and_removes_nothing(store: Store) -> None:
    age(put(store), 100.0)
    would = store.sweep(older_than_s=50.0, dry_run=True)
    assert store.find(KEY) is not None
    assert would == store.sweep(older_than_s=50.0, dry_run=False)
    assert store.find(KEY) is None


def test_sweeping_removes_old_leftovers_of_interrupted_stages(store: Store) -> None:
    leftovers = [store.partial(KEY), store.root / "tmp" / "4711-dead"]
    leftovers[1].mkdir(parents=True)
    for folder in leftovers:
        os.utime(folder, (0.0, 0.0))
    fresh = store.partial(json_digest({"young": 1}))
    store.sweep(older_than_s=50.0, dry_run=True)
    assert all(folder.exists() for folder in leftovers)
    store.sweep(older_than_s=50.0, dry_run=False)
    assert [folder.exists() for folder in (*leftovers, fresh)] == [False, False, True]


def test_a_forgotten_entry_leaves_nothing_to_go_on_from(store: Store) -> None:
    put(store)
    for key in (KEY, json_digest({"interrupted": 1})):  # of the second nothing but this was made
        write_json(store.partial(key) / "a.json", 1)
        store.forget(key)
        assert store.find(key) is None
        assert not (store.root / "partial" / key).exists()


def test_sweeping_a_store_that_was_never_made_finds_nothing(store: Store) -> None:
    assert store.sweep(older_than_s=0.0, dry_run=False) == []


def uses(store: Store) -> dict[str, Callable[[], Any]]:
    """Return every way of writing to a store."""

    def lock() -> None:
        with store.making(KEY):
            pass

    return {
        "prepare": store.prepare,
        "making": lock,
        "partial": lambda: store.partial(KEY),
        "add": lambda: put(store),
    }


@pytest.mark.parametrize("use", ["prepare", "making", "partial", "add"])
def test_a_store_that_cannot_be_written_says_so_and_what_to_do(tmp_path: Path, use: str) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError) as raised:
        uses(Store(tmp_path / "file" / "store"))[use]()
    assert raised.value.exit_code == 2
    assert str(tmp_path / "file" / "store") in raised.value.cause
    assert "--store" in raised.value.remedy


@pytest.mark.parametrize(("use", "part"), [("prepare", "tmp"), ("making", "locks"), ("partial", "partial")])
def test_a_store_with_something_in_the_way_says_so(store: Store, use: str, part: str) -> None:
    store.root.mkdir()
    (store.root / part).write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError):
        uses(store)[use]()


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"a": 1, "b": {"c": 2, "d": 3}}) == canonical_json({"b": {"d": 3, "c": 2}, "a": 1})
    assert json_digest({"a": 1}) != json_digest({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_writing_json_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        write_json(path, {"new": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert json.loads(path.read_text(encoding="utf-8")) == {"old": 1}


def test_a_value_that_is_no_json_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert list(tmp_path.iterdir()) == []
