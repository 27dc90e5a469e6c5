"""The page that a run writes by itself, that `report` makes again, and that a search writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from pipeline.result.result import Result
from tests.e2e.conftest import Warm
from tests.e2e.test_search_cli import GRAPH, written
from tests.reports import Page


def test_a_run_leaves_a_page_with_its_graph_and_timeline(warm: Warm) -> None:
    found = Page((warm.run / "report.html").read_text(encoding="utf-8"))
    assert Result.load(warm.run).verdict in found.text
    graph = found.data["graph-data"]
    placement = json.loads((warm.run / "placement.json").read_text(encoding="utf-8"))["placement"]
    where = {name: graph["devices"][d] for name, d in zip(graph["names"], graph["device"], strict=True)}
    assert where == placement
    assert "Timeline of one inference: predicted" in found.text


def test_report_makes_the_same_page_again_from_the_run_directory_alone(warm: Warm, tmp_path: Path) -> None:
    first = (warm.run / "report.html").read_text(encoding="utf-8")
    copy = tmp_path / warm.run.name
    shutil.copytree(warm.run, copy)
    (copy / "report.html").unlink()
    for name in ("placed.xml", "placed.bin", "curve.svg"):
        (copy / name).unlink()
    assert run_command_line(["report", str(copy)]) == 0
    one, other = Page(first), Page((copy / "report.html").read_text(encoding="utf-8"))
    assert other.data == one.data
    assert Result.load(copy).verdict in other.text
    again = tmp_path / "again.html"
    assert run_command_line(["report", str(copy), "--out", str(again)]) == 0
    assert again.read_bytes() == (copy / "report.html").read_bytes()


def test_a_second_run_leaves_the_page_as_it_is(copy: Warm) -> None:
    path = copy.run / "report.html"
    assert run_command_line(["report", str(copy.run)]) == 0
    path.write_text(path.read_text(encoding="utf-8") + "<!-- mine -->", encoding="utf-8")
    assert run_command_line(["measure", "--run", str(copy.run), "--store", str(copy.store)]) == 0
    assert path.read_text(encoding="utf-8").endswith("<!-- mine -->")


@pytest.mark.parametrize("options", [[], ["--mode", "order"]], ids=["placement", "order"])
def test_a_search_writes_a_page_with_its_graph_its_bound_and_its_timeline(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, page = written(tmp_path / "graph.json", GRAPH), tmp_path / "answer.html"
    words = ["search", str(graph), "--topology", "equal:2", "--placer", "greedy", "--evaluations", "50", *options]
    assert run_command_line([*words, "--report", str(page), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = Page(page.read_text(encoding="utf-8"))
    graph_data = found.data["graph-data"]
    assert (
        dict(zip(graph_data["names"], [graph_data["devices"][d] for d in graph_data["device"]], strict=True))
        == (answer["placement"])
    )
    assert f"Simulated: {answer['value_s'] * 1e3:.4g} ms, " in found.text
    heads = ["The answer", "By how much", "How sure", "Where it runs", "What to do now"]
    places = [found.text.index(head) for head in heads]
    assert places == sorted(places)
    assert f"{answer['single_s'] * 1e3:.4g} ms on the best single device" in found.text
    assert "--out answer.json" in found.text
    assert "predicted" in found.text


def test_a_placement_that_is_simulated_has_a_page_too(tmp_path: Path) -> None:
    graph, page = written(tmp_path / "graph.json", GRAPH), tmp_path / "answer.html"
    placement = written(tmp_path / "p.json", dict.fromkeys("abcdef", "gpu0"))
    words = ["simulate", str(graph), "--topology", "equal:2", "--placement", str(placement), "--report", str(page)]
    assert run_command_line(words) == 0
    assert "All operations run on this device." in Page(page.read_text(encoding="utf-8")).data["graph-data"]["reasons"]


def test_a_page_that_cannot_be_written_is_said_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = written(tmp_path / "graph.json", GRAPH)
    assert run_command_line(["search", str(graph), "--topology", "equal:2", "--report", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
