"""The index of a folder: every run in it once, with a link that leads to its page."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError
from pipeline.fleet.batch import COLUMNS
from pipeline.report.batch_page import write_batch_page
from pipeline.report.index import write_index
from pipeline.report.run_page import write_report
from tests.reports import Page, finished


def test_the_index_lists_runs_with_links_to_their_pages(tmp_path: Path) -> None:
    for name in ("plain", "a name #1 ?", "deep/down"):
        write_report(finished(tmp_path / name))
    finished(tmp_path / "pageless")
    told: list[str] = []
    assert write_index(tmp_path, tmp_path / "out" / "index.html", progress=told.append) == 4
    assert [words.partition("(")[2] for words in told] == [f"{i} of 4)" for i in (1, 2, 3, 4)]
    found = Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    written = [a["href"] for tag, a in found.tags if tag == "a"]
    assert not [link for link in written if set(link) & set(" #?")]
    links = [unquote(link) for link in written]
    assert len(links) == 3
    assert all((tmp_path / "out" / link).samefile(tmp_path / link.removeprefix("../")) for link in links)
    assert "pageless" in found.text
    assert {a["data-filter"] for _, a in found.tags if "data-filter" in a} <= {
        a["id"] for _, a in found.tags if "id" in a
    }


def test_rows_are_sorted_by_numbers_not_by_words(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    write_index(tmp_path, tmp_path / "index.html")
    values = [
        a["data-value"]
        for _, a in Page((tmp_path / "index.html").read_text(encoding="utf-8")).tags
        if "data-value" in a
    ]
    assert float(values[1]) == pytest.approx(0.0040992, rel=1e-4)
    assert float(values[2]) == 1.5


def test_runs_that_are_not_finished_are_listed_with_why(tmp_path: Path) -> None:
    finished(tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    assert write_index(tmp_path, tmp_path / "index.html") == 0
    text = Page((tmp_path / "index.html").read_text(encoding="utf-8")).text
    assert "half" in text
    assert "has no result" in text


def test_a_batch_is_a_row_that_leads_to_its_page_which_tells_of_its_jobs(tmp_path: Path) -> None:
    none = dict.fromkeys(COLUMNS, "")
    rows = [{**none, "job": "bad", "model": "x.onnx", "failed": "it cannot be read"}]
    for name in ("a batch", "pageless"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows * 3), encoding="utf-8")
    finished(tmp_path / "a batch" / "run")
    own = write_batch_page(tmp_path / "a batch", rows, {})
    assert "it cannot be read" in own.read_text(encoding="utf-8")
    assert write_index(tmp_path, tmp_path / "out" / "index.html") == 1
    found = Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    (link,) = [unquote(a["href"]) for tag, a in found.tags if tag == "a"]
    assert (tmp_path / "out" / link).samefile(own)
    assert "a batch 3 3" in found.text
    assert "pageless 3 3" in found.text
    assert "it cannot be read" not in found.text


def test_a_damaged_table_of_a_batch_is_said_and_the_rest_is_listed(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    (tmp_path / "table.jsonl").write_text("{", encoding="utf-8")
    assert write_index(tmp_path, tmp_path / "index.html") == 1
    assert "the table of the batch is damaged" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_folder_without_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="There is no run"):
        write_index(tmp_path, tmp_path / "index.html")
    assert run_command_line(["report", str(tmp_path)]) == 2
    assert run_command_line(["report", str(tmp_path / "nothing")]) == 2
    assert run_command_line(["report", "a", "b", "c"]) == 2
    assert capsys.readouterr().err.count("error:") == 3


def test_the_command_writes_the_page_of_one_run_two_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = finished(tmp_path / "a"), finished(tmp_path / "b")
    for words, wanted in ((["a"], a / "report.html"), (["a", "b"], Path("a-and-b.html")), (["."], Path("index.html"))):
        assert run_command_line(["report", *words, "--json"]) == 0
        (path,) = json.loads(capsys.readouterr().out)["files"]
        assert Path(path).samefile(wanted)
    assert b.is_dir()
