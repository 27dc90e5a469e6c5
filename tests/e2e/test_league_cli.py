"""bench league from the command line: its files, going on, other processes, and what it says of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command_line

Ran = Callable[..., Any]


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        *("bench", "league", "--quick", "--methods", "heft,random", "--instances", "chainmm", "--parts", "search"),
        *("--evaluations", "30", "--seconds", "0.05", "--out", str(folder / "out"), *more),
    ]


def test_a_league_leaves_a_page_pictures_and_cells(tmp_path: Path, ran: Ran) -> None:
    document = ran(*arguments(tmp_path, "--workers", "1", "--page", str(tmp_path / "docs" / "league.md")))
    out = tmp_path / "out"
    assert document == json.loads((out / "league.json").read_text())
    assert document["schema"] == "placewright.league/1"
    assert {row["placer"] for row in document["tables"][0]["standings"]} == {"heft", "random"}
    brief = (tmp_path / "docs" / "league.md").read_text()
    assert brief.startswith("# The league of placers")
    assert len(brief) < sum(len(path.read_text()) for path in out.glob("league*.md"))
    assert "| random |" in brief
    assert "| random |" in (out / "league-search.md").read_text()
    cells = {path.parent.name for path in (out / "cells").rglob("*.json")}
    assert cells == {"30-evaluations", "10000-evaluations", "0.05-s"}
    again = ran(*arguments(tmp_path, "--workers", "1"))
    assert again["cells"] == document["cells"]


@pytest.mark.slow
def test_cells_of_other_processes_come_out_as_they_do_one_by_one(tmp_path: Path, ran: Ran) -> None:
    alone, beside = (ran(*arguments(tmp_path / n, "--workers", n)) for n in ("1", "2"))
    for one, other in zip(alone["cells"], beside["cells"], strict=True):
        assert one["key"] == other["key"]
        if one["budget"].endswith("evaluations"):
            assert [one[k] for k in ("value_s", "evaluations")] == [other[k] for k in ("value_s", "evaluations")]


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (["--instances", "zzzzzz"], "Unknown family, test graph or file", "more; see docs/league.md"),
        (["--methods", "heff"], "Unknown placer 'heff'", "heft"),
        (["--instances", "nas-cn"], "Unknown family, test graph or file of a graph 'nas-cn'", "nas-cnn"),
        (["--parts", "serch"], "Unknown part of the league 'serch'", "search"),
        (["--models", "resnet50"], "benchmark league has no --models", "Remove it"),
        (["--tables"], "benchmark league has no --tables", "Remove it"),
        (["--seconds", "0"], "'--seconds'", "--help"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    words: list[str], cause: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run_command_line(["bench", "league", "--quick", *words, "--out", str(out)]) == 2
    error, fix = capsys.readouterr().err.strip().splitlines()[-2:]
    assert error.startswith("error: ")
    assert cause in error
    assert fix.startswith("  fix: ")
    assert remedy in fix
    assert not out.exists()


def test_options_of_the_league_are_none_of_hsdag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["bench", "hsdag", "--parts", "search", "--out", str(tmp_path / "out")]) == 2
    assert "The benchmark hsdag has no --parts." in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--page"])
def test_a_place_that_cannot_be_written_is_said_at_once(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "way").write_text("in the way")
    assert run_command_line([*arguments(tmp_path), option, str(tmp_path / "way" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "out" / "cells").exists()


def test_a_file_that_is_no_graph_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.json").write_text("{}")
    words = ["bench", "league", "--quick", "--methods", "heft", "--instances", str(tmp_path / "odd.json")]
    assert run_command_line([*words, "--parts", "search", "--out", str(tmp_path / "out")]) == 3
    assert "odd.json" in capsys.readouterr().err


def test_the_headline_is_over_instances_that_no_shipped_weights_have_seen(tmp_path: Path, ran: Ran) -> None:
    words = arguments(tmp_path, "--workers", "1")
    words[words.index("chainmm")] = "giph-index2,layered-1"
    document = ran(*words)
    assert {each["name"]: each["seen_by"] for each in document["instances"]} == {
        "giph-index2-own": [],
        "layered-1-equal-4": ["neural_list", "contraction"],
    }
    table = document["tables"][0]
    assert {row["instances"] for row in table["standings"]} == {2}
    assert {row["instances"] for row in table["unseen"]} == {1}
    page = (tmp_path / "out" / "league.md").read_text()
    assert "On the one unseen instance " in page
    assert page.index("On the one unseen instance ") < page.index("On all 2 instances ")


def test_where_every_family_is_seen_the_page_says_so(tmp_path: Path, ran: Ran) -> None:
    words = arguments(tmp_path, "--workers", "1")
    words[words.index("chainmm")] = "layered-1"
    document = ran(*words)
    assert document["tables"][0]["unseen"] == []
    assert "No family is unseen." in (tmp_path / "out" / "league.md").read_text()
