"""Whether there is a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.system.paths import is_file, path_exists


@pytest.mark.parametrize("name", ["x" * 300, "ü" * 200, "x" * 100_000, "a\0b", "missing", "\ud800"])
def test_there_is_nothing_of_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    assert not path_exists(tmp_path / name)
    assert not is_file(tmp_path / name)


def test_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert (is_file(tmp_path / "f"), is_file(tmp_path)) == (True, False)
    assert path_exists(tmp_path)
