"""What is seen of two sides before anything is timed: failures, outputs of all kinds, and what cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.gates import found, gated, make_environment, short_starts

IDS = {"ids": ["int64", [1, 2, 3, 4, 5, 6, 7, 8]]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let starts be short and few, and results lie in the test's folder."""
    short_starts(monkeypatch, look=3)
    monkeypatch.chdir(tmp_path)


def row_of(tmp_path: Path) -> dict[str, Any]:
    """Return what was found of the only model."""
    (row,) = found(tmp_path)["models"]
    return dict(row)


def sides(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    make_environment(tmp_path / "old", **before)
    make_environment(tmp_path / "new", **after)


def accepting(tmp_path: Path, what: str, *more: str) -> str:
    lines = ["[[accept]]", 'model = "model.xml"', f'what = "{what}"', "until = 2999-01-01", 'reason = "known"', *more]
    path = tmp_path / "gate.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("side", "load"), [("old", 1), ("new", 1), ("old", 2)])  # the second is the twin's
def test_a_side_that_dies_once_runs(tmp_path: Path, side: str, load: int) -> None:
    once = {"marks": str(tmp_path / "marks"), "fails": [load]}
    sides(tmp_path, once if side == "old" else {}, once if side == "new" else {})
    assert gated(tmp_path) == 0
    assert row_of(tmp_path)["verdict"] == "same"


def test_a_side_that_dies_of_telling_its_kernels_runs(tmp_path: Path) -> None:
    sides(tmp_path, {}, {"dumb": ["kernels"]})
    assert gated(tmp_path) == 0
    row = row_of(tmp_path)
    assert row["verdict"] == "same"
    assert "Kernels of the side after are not known: it was killed by SIGKILL." in row["notes"]


def test_a_side_that_dies_of_telling_its_graph_leaves_the_first_operation_open(tmp_path: Path) -> None:
    sides(tmp_path, {}, {"dumb": ["graph"], "scale": 1.5})
    assert gated(tmp_path) == 6
    assert "first operation" not in row_of(tmp_path)["text"]


def test_as_much_as_is_accepted_is_of_values_and_not_of_indices(tmp_path: Path) -> None:
    sides(tmp_path, {"outputs": IDS}, {"outputs": {"ids": ["int64", [9] * 8]}})
    assert gated(tmp_path, "--config", accepting(tmp_path, "outputs", 'up_to = "99%"')) == 6
    assert "ids" in row_of(tmp_path)["text"]


def test_as_much_as_is_accepted_of_values_passes(tmp_path: Path) -> None:
    sides(tmp_path, {}, {"scale": 1.1})
    assert gated(tmp_path, "--config", accepting(tmp_path, "outputs", 'up_to = "15%"')) == 0
    assert gated(tmp_path, "--config", accepting(tmp_path, "outputs", 'up_to = "5%"')) == 6


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"left_out": ["sparse"]}, "cannot tell: sparse cannot be compared"),
        ({"outputs": {}}, "cannot tell: there are no outputs to compare"),
    ],
)
def test_outputs_that_nobody_compares_do_not_agree(tmp_path: Path, told: dict[str, Any], words: str) -> None:
    sides(tmp_path, told, told)
    assert gated(tmp_path) == 0
    assert row_of(tmp_path)["verdict"] == "undecided"
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()
    assert {case.get("message") for case in suite.iter("skipped")} == {words}


def test_strings_are_compared(tmp_path: Path) -> None:
    words = {"label": ["S5", ["cat", "dog"]]}
    sides(tmp_path, {"outputs": words}, {"outputs": {"label": ["S5", ["cat", "horse"]]}})
    assert gated(tmp_path) == 6
    assert "50 % of the entries differ" in row_of(tmp_path)["text"]


@pytest.mark.parametrize(("kernels", "code"), [("f32", 6), ("u8", 0), ("f16", 0)])
def test_a_model_of_low_precision_is_judged_as_such_whoever_tells(tmp_path: Path, kernels: str, code: int) -> None:
    told = {"runtimes": ["onnxruntime"], "providers": ["CPUExecutionProvider"], "precision": ""}
    told = {**told, "kernel_precision": kernels}
    sides(tmp_path, told, {**told, "scale": 1.005})
    assert gated(tmp_path) == code
    low = "f16" if kernels == "f16" else "f32"
    assert row_of(tmp_path)["look"]["precisions"] == {"before": low, "after": low}
