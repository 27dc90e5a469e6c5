"""Journals: what is damaged is not there, and what is there was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.system.json_lines import append_line, load_lines

RECORDS = [{"key": "a", "value": [1.5, None]}, {"key": "\u00fc", "value": float("inf")}]


def test_damaged_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    for record in RECORDS:
        append_line(path, record)
    assert list(load_lines(path)) == RECORDS
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace("1.5", "2.5") + '{"key": "torn', encoding="utf-8")
    assert list(load_lines(path)) == RECORDS[1:]
    append_line(path, RECORDS[0])
    assert list(load_lines(path)) == [RECORDS[1], RECORDS[0]]


@pytest.mark.parametrize("line", ["[" * 2000, "[]", '{"key": "a"}', '{"crc32": 1}'])
def test_what_was_never_written_is_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    assert list(load_lines(path)) == []


def test_lines_that_travel_may_lack_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(RECORDS[0]) + "\n", encoding="utf-8")
    assert list(load_lines(path, summed=False)) == RECORDS[:1]


def test_a_torn_line_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert list(load_lines(path)) == []
    append_line(path, {"n": 1})
    with path.open("a", encoding="utf-8") as out:
        out.write('{"n": 2')
    content = path.read_bytes()
    assert list(load_lines(path)) == [{"n": 1}]
    assert path.read_bytes() == content
    append_line(path, {"n": 3})
    assert path.read_bytes().count(b"\n") == 2
    assert list(load_lines(path)) == [{"n": 1}, {"n": 3}]
