"""Where compiled code is kept: apart for every state of the files it was made from."""

from __future__ import annotations

from pathlib import Path

from pipeline.compiled import kernels_digest


def tree(root: Path) -> Path:
    (root / "runtime").mkdir(parents=True)
    (root / "runtime" / "a.py").write_text("from pipeline.compiled import compiled\nX = 1\n")
    (root / "runtime" / "plain.py").write_text("X = 1\n")
    return root


def test_the_digest_changes_with_any_file_that_holds_a_kernel(tmp_path: Path):
    before = kernels_digest(tree(tmp_path))
    (tmp_path / "runtime" / "a.py").write_text("from pipeline.compiled import compiled\nX = 2\n")
    assert kernels_digest(tmp_path) != before


def test_the_digest_is_blind_to_files_without_kernels(tmp_path: Path):
    before = kernels_digest(tree(tmp_path))
    (tmp_path / "runtime" / "plain.py").write_text("X = 2\n")
    assert kernels_digest(tmp_path) == before
