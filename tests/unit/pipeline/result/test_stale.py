"""Which results of a run before are taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import StoreError
from pipeline.result.directory import RunDirectory, take_away_stale
from pipeline.stages.host import ModelFile
from tests.reports import READ_STAGE

KEYS = {"read": "a", "place": "b", "measure": "c"}
MINE = ("notes.txt", "sub/placed.xml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a run directory with a result, files of the user, and a result that names a file outside."""
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    for name in ("placed.xml", "report.html", *MINE, "../outside.xml"):
        (folder / name).write_text(name, encoding="utf-8")
    files = {"model": "placed.xml", "report": "report.html", "x": "../outside.xml", "y": "sub/placed.xml"}
    stages = [{"stage": s, "key": k} for s, k in KEYS.items()]
    write(folder, json.dumps({"stages": stages, "files": {**files, "result": "result.json"}}))
    return folder


def write(folder: Path, text: str) -> None:
    (folder / "result.json").write_text(text, encoding="utf-8")


def left(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("keys", "same_settings", "kept"),
    [
        (KEYS, True, True),
        (KEYS, False, True),
        ({"read": "a"}, True, True),
        ({"read": "a"}, False, False),
        ({"read": "other"}, True, False),
        (KEYS | {"measure": "other"}, True, False),
        (KEYS | {"kernels": "new"}, True, False),
    ],
)
def test_a_result_stays_if_it_is_of_the_run_that_begins(
    keys: dict[str, str], same_settings: bool, kept: bool, folder: Path
) -> None:
    before = left(folder)
    take_away_stale(folder, keys, same_settings=same_settings)
    assert left(folder) == (before if kept else set(MINE))
    assert (folder.parent / "outside.xml").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"stages": [], "files": {"model": 3}}', '{"stages": 1, "files": {}}']
)
def test_a_damaged_result_goes_alone(text: str, folder: Path) -> None:
    before = left(folder)
    write(folder, text)
    take_away_stale(folder, KEYS, same_settings=True)
    assert left(folder) == before - {"result.json"}


def test_a_folder_without_a_result_is_left_alone(folder: Path) -> None:
    (folder / "result.json").unlink()
    before = left(folder)
    take_away_stale(folder, {"read": "other"}, same_settings=False)
    assert left(folder) == before


def test_a_folder_is_of_its_model_once_a_stage_has_finished(tmp_path: Path) -> None:
    mended, directory = ModelFile(tmp_path / "m.xml", "1" * 64), RunDirectory(tmp_path)
    assert directory.check_for(mended) is None
    document = {"schema": 1, "model": {"path": "m.xml", "sha256": "0" * 64}, "settings": {}, "stages": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    assert directory.check_for(mended) == document
    document["stages"] = {"read": READ_STAGE}
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(StoreError, match=r"is a run of another model, m\.xml"):
        directory.check_for(mended)
    assert directory.check_for(ModelFile(tmp_path / "m.xml", "0" * 64)) == document
