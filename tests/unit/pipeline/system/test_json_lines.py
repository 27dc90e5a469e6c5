"""Journals of JSON Lines: what is torn is left out, and reading changes nothing."""

from __future__ import annotations

from pathlib import Path

from pipeline.system.json_lines import append_line, load_lines


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
    assert path.read_bytes() == b'{"n": 1}\n{"n": 3}\n'
    assert list(load_lines(path)) == [{"n": 1}, {"n": 3}]
