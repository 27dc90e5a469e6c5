"""Shrunk failures of the campaigns: files that ended in a traceback, or wrote to the terminal what they liked."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from pipeline.cli.printable import printable
from pipeline.core.errors import DeviceError, StoreError, UsageError
from pipeline.deploy.emit import library_of
from pipeline.fleet.jobs import read_jobs
from pipeline.result.deployment import Deployment
from pipeline.settings.config import Settings, read_toml
from pipeline.store.store import Store
from pipeline.store.task import full_disk
from runtime.machines.devices import discover_plugins, parse_devices
from tests.campaigns.commands import run_command
from tests.campaigns.files import GRAPH, MSR, TOPOLOGY, toml_text
from tests.reports import finished

DEEP = "[" * 5000
ESCAPE = "\x1b]0;title\x07"


@pytest.fixture
def graph(tmp_path: Path) -> list[str]:
    """Return the arguments of a search on a small graph."""
    (tmp_path / "g.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    (tmp_path / "t.toml").write_text(toml_text(TOPOLOGY), encoding="utf-8")
    return ["search", str(tmp_path / "g.json"), "--topology", str(tmp_path / "t.toml"), "--evaluations", "2"]


@pytest.mark.parametrize("option", ["--costs", "--pins"])
def test_json_nested_without_end_is_refused(option: str, graph: list[str], tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP, encoding="utf-8")
    assert run_command(*graph, option, tmp_path / "deep.json").code == 2


def test_toml_nested_without_end_is_refused(graph: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(f"device = {DEEP}", encoding="utf-8")
    assert run_command(*graph).code == 2
    for read in (read_toml, read_jobs, lambda p: parse_devices([str(p)], discover_plugins())):
        with pytest.raises(UsageError, match="is not valid TOML"):
            read(path)


def test_a_store_entry_nested_without_end_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.folder("a" * 64).mkdir(parents=True)
    (store.folder("a" * 64) / "entry.json").write_text(DEEP, encoding="utf-8")
    assert store.intact("a" * 64) is None
    assert run_command("cache", "ls", "--store", tmp_path).code == 0


@pytest.mark.parametrize("key", ["seed", "place.evaluations", "budget", "coarsen.metis.parts"])
def test_a_number_beyond_all_types_is_refused(key: str) -> None:
    with pytest.raises(UsageError):
        Settings().updated({key: 10**400}, "the test")


@pytest.mark.parametrize("value", [ESCAPE, "\u202egpj.exe", "a\x00b", "\ud800"])
def test_names_of_strangers_do_not_control_the_terminal(value: str, graph: list[str], tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_text(json.dumps({value: "D0"}), encoding="utf-8")
    ended = run_command(*graph, "--pins", tmp_path / "pins.json")  # requires that no control character is written
    assert ended.code == 2
    assert value not in ended.err
    assert printable(value) in ended.err


def test_a_name_without_end_is_not_written_whole(graph: list[str], tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_text(json.dumps({"x" * 100_000: "D0"}), encoding="utf-8")
    assert len(run_command(*graph, "--pins", tmp_path / "pins.json").err) < 1000


def test_names_in_tables_and_paths_do_not_control_the_terminal(tmp_path: Path) -> None:
    folder = finished(tmp_path / f"run{ESCAPE}")
    ended = run_command("compare", folder, folder)
    assert ended.code == 0
    assert ESCAPE not in ended.out + ended.err


@pytest.mark.parametrize("name", ["graph.npz", "profile.npz", "samples.npz"])
@pytest.mark.parametrize("damage", [lambda b: b[:40], lambda b: b"PK" + b[3:], lambda b: b[:60] + b"\xff" * 9 + b[69:]])
def test_damaged_arrays_of_a_run_are_named(name: str, damage: object, tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert run_command_line(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 2


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("settings",), {}),
        (("settings", "params"), 1.5),
        (("settings", "coarsen"), "x"),
        (("model", "path"), 7),
        (("stages", "read"), None),
    ],
)
def test_a_damaged_manifest_is_refused(keys: tuple[str, ...], value: object, tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    document = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    at = document
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    (folder / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    run_command("report", folder, "--out", tmp_path / "page.html")  # requires that it ends without a traceback
    assert run_command("cache", "why", "read", "--run", folder, "--store", tmp_path / "s").code == 2


def test_a_placement_of_a_plug_in_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    document = json.loads((folder / "placement.json").read_text(encoding="utf-8"))
    document["devices"]["A"]["plugin"] = "-o"
    (folder / "placement.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DeviceError, match="No library is known"):
        library_of("-o")
    assert run_command("report", folder, "--out", tmp_path / "page.html").code == 4


@pytest.mark.parametrize(("number", "code"), [(errno.EIO, 2), (errno.EMFILE, 2), (errno.EACCES, 2), (errno.ENOENT, 1)])
def test_a_disk_that_fails_is_no_bug_of_ours(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "says the disk", "/some/file")

    monkeypatch.setattr(Store, "list_keys", fail)
    assert run_command_line(["cache", "ls", "--store", str(tmp_path)]) == code
    err = capsys.readouterr().err
    assert ("/some/file cannot be read or written: says the disk." in err) == (code == 2)


def test_a_store_that_is_deleted_under_a_stage_is_said_to_be_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(StoreError, match="has gone"), full_disk(store):
        (store.root / "partial" / "x").read_bytes()
    with pytest.raises(FileNotFoundError), full_disk(store):
        (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b.xml", ""])
def test_a_run_deploys_no_file_that_lies_elsewhere(file: str, tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    document = json.loads((run / "placement.json").read_text(encoding="utf-8"))
    document["model"]["file"] = file
    (run / "placement.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(StoreError, match="damaged"):
        Deployment.load(run)


def test_links_and_strange_folders_in_a_store_do_not_keep_it_from_being_cleaned(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.scratch() as scratch:
        (scratch / "payload").mkdir()
        parts = {"stage": "read", "name": "x", "params": {}}
        store.add("aa" * 32, parts, {"made_at": 1.7e9}, scratch / "payload")
    (store.folder("aa" * 32) / "more").symlink_to(tmp_path / "nowhere")
    (store.root / "tmp" / "x").symlink_to(tmp_path / "nowhere")
    (store.root / "zz" / "x").mkdir(parents=True)
    (store.root / "zz" / "x" / "entry.json").write_text("{}", encoding="utf-8")
    assert run_command("cache", "gc", "--older-than", "0", "--store", store.root).code == 0
    assert store.list_keys() == []


@pytest.mark.parametrize("size", [6e20, 2.0**63, float("inf")])
def test_memory_without_end_is_no_limit(size: float, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps({**MSR, "maxSizePerFPGA": size}), encoding="utf-8")
    ended = run_command("search", tmp_path / "g.json", "--placer", "greedy", "--evaluations", "2", "--json")
    assert ended.code == 0
    assert ended.document["value_s"] is not None
