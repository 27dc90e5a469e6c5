"""`tune --near`: an earlier placement is among the candidates, and what is searched stays near it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command_line
from pipeline.store.store import Store
from tests.e2e.conftest import options

pytestmark = pytest.mark.usefixtures("made_up_profile")  # on B everything takes twice as long as on A
TOWERS = ("left", "right")
OPERATIONS = [f"{tower}{i}{part}" for tower in TOWERS for i in range(2) for part in ("", ".relu")]


def earlier(folder: Path, *, names: tuple[str, str] = ("A", "B"), name: str = "earlier.json") -> Path:
    """Return a file that has the left tower on the first device, and the right one on the second."""
    path = folder / name
    placed = {operation: names[operation.startswith("right")] for operation in OPERATIONS}
    path.write_text(json.dumps({**placed, "sum": names[0], "x": names[0], "gone": names[0]}))
    return path


def tuned(model: Path, folder: Path, near: Path, *words: str) -> dict[str, Any]:
    command = ["tune", str(model), "--run", str(folder / "run"), "--near", str(near), *words]
    assert run_command_line([*command, *options(folder / "store", place__evaluations="200")]) == 0
    document: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return document


def splits(document: Mapping[str, Any], folder: Path) -> dict[str, dict[str, str]]:
    """Return the splits that were compared, by name: {operation: device}."""
    (key,) = (stage["key"] for stage in document["stages"] if stage["stage"] == "measure")
    entry = Store(folder / "store").find(key)
    assert entry is not None
    rows = json.loads(entry.path("measurements.json").read_text())["rows"]
    return {row["name"]: row["placement"] for row in rows if row["kind"] == "split"}


def moved(placement: Mapping[str, str], near: Path) -> list[str]:
    before = json.loads(near.read_text())
    return [operation for operation in (*OPERATIONS, "sum") if placement[operation] != before[operation]]


def test_the_earlier_placement_is_a_candidate_and_others_move_no_more_than_they_may(
    model: Path, tmp_path: Path
) -> None:
    near = earlier(tmp_path)
    document = tuned(model, tmp_path, near, "--moves", "2")
    found = splits(document, tmp_path)
    assert set(found) == {"earlier placement", "greedy 1"}
    assert moved(found["earlier placement"], near) == []
    assert 1 <= len(moved(found["greedy 1"], near)) <= 2
    (search,) = document["searches"]
    assert "2 operations move" in search["notes"][-1]
    assert "1 gone: gone" in search["notes"][-1]
    assert "weight" not in search["notes"][-1]


def test_without_moves_the_earlier_placement_is_all_that_is_compared(model: Path, tmp_path: Path) -> None:
    near = earlier(tmp_path)
    found = splits(tuned(model, tmp_path, near, "--moves", "0"), tmp_path)
    assert set(found) == {"earlier placement"}
    assert moved(found["earlier placement"], near) == []


def test_what_does_not_gain_its_price_stays(model: Path, tmp_path: Path) -> None:
    near = earlier(tmp_path)
    assert set(splits(tuned(model, tmp_path, near, "--move-price", "1ms"), tmp_path)) == {"earlier placement"}


def test_the_file_counts_by_what_it_holds_wherever_it_lies(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(model, tmp_path, earlier(tmp_path), "--moves", "2")
    capsys.readouterr()
    (tmp_path / "elsewhere").mkdir()
    tuned(model, tmp_path, earlier(tmp_path / "elsewhere"), "--moves", "2")
    assert "ran" not in capsys.readouterr().err.split()
    changed = earlier(tmp_path)
    changed.write_text(changed.read_text().replace('"right0": "B"', '"right0": "A"'))
    tuned(model, tmp_path, changed, "--moves", "2")
    assert "place      ran" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (["--near", "absent.json"], "absent.json cannot be read", "a placement as a JSON file"),
        (["--near", "numbers.json"], "numbers.json does not name one device per operation", "{operation: device}"),
        (["--near", "elsewhere.json"], "is on GPU, NPU, and here are A, B", "as they were named then"),
        (["--near", "other.json"], "names no operation of this graph", "an earlier version"),
        (["--moves", "3"], "count operations of an earlier placement", "--near FILE"),
        (["--set", "place.moves=3"], "count operations of an earlier placement", "place.near"),
        (["--near", "earlier.json", "--moves", "-1"], "-1", "--help"),
        (["--near", "earlier.json", "--move-price", "cheap"], "cheap", "0.1ms"),
    ],
)
def test_what_a_user_does_wrong_is_said(
    words: list[str],
    cause: str,
    remedy: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    earlier(tmp_path)
    earlier(tmp_path, names=("GPU", "NPU"), name="elsewhere.json")
    (tmp_path / "numbers.json").write_text('{"sum": 1}')
    (tmp_path / "other.json").write_text('{"nobody": "A"}')
    assert run_command_line(["tune", str(model), "--run", "run", *words, *options(tmp_path / "store")]) == 2
    told = capsys.readouterr().err
    assert cause in told
    assert remedy in told
    assert "Traceback" not in told


def test_a_placer_that_learns_keeps_to_it_as_well(model: Path, tmp_path: Path) -> None:
    near = earlier(tmp_path)
    more = ["--set", "place.use=hsdag", "--moves", "2"]
    command = ["tune", str(model), "--run", str(tmp_path / "run"), "--near", str(near)]
    assert run_command_line([*command, *options(tmp_path / "store"), *more]) == 0
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    found = splits(document, tmp_path)
    assert moved(found["earlier placement"], near) == []
    assert all(len(moved(placement, near)) <= 2 for placement in found.values())
