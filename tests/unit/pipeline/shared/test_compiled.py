"""Where compiled code is kept: apart for every state of the files it was made from."""

from __future__ import annotations

import sys
from pathlib import Path

import numba
import pytest

from pipeline.shared import compiled
from pipeline.shared.compiled import cache_root, kernels_digest
from runtime.simulators.sequential import cuts, parts

MARKED = "from pipeline.shared.compiled import compiled\n"


def tree(root: Path, inner: int = 1, plain: int = 1, strange: int = 1) -> Path:
    """Write a kernel file that imports another, a file without kernels, and a kernel file that nobody imports."""
    folder = root / "runtime"
    folder.mkdir(parents=True)
    (folder / "outer.py").write_text(f"{MARKED}from runtime import inner\nfrom runtime.plain import (\n    X,\n)\n")
    (folder / "inner.py").write_text(f"{MARKED}X = {inner}\n")
    (folder / "plain.py").write_text(f"X = {plain}\n")
    (folder / "strange.py").write_text(f"{MARKED}X = {strange}\n")
    return root


def two_more(i: int) -> int:
    return i + 2


def digest(root: Path) -> str:
    return kernels_digest(root / "runtime" / "outer.py", root)


def test_the_digest_changes_with_any_kernel_file_that_is_imported(tmp_path: Path):
    assert digest(tree(tmp_path / "a")) != digest(tree(tmp_path / "b", inner=2))


def test_the_digest_is_blind_to_files_without_kernels_and_to_strange_ones(tmp_path: Path):
    assert digest(tree(tmp_path / "a")) == digest(tree(tmp_path / "b", plain=2, strange=2))


def test_kernels_that_call_others_are_kept_apart_for_each_state_of_both():
    cuts_file, parts_file = Path(cuts.__file__), Path(parts.__file__)
    assert {cuts_file, parts_file, Path(compiled.__file__)} <= set(compiled.kernel_files(cuts_file, compiled.ROOT))
    assert cuts_file not in compiled.kernel_files(parts_file, compiled.ROOT)


def test_an_inner_kernel_is_called_by_kernels_and_refused_to_everyone_else():
    add = compiled.inner(two_more)
    for _ in range(2):  # before a kernel compiled it for these types, and after
        with pytest.raises(TypeError, match="two_more can be called by compiled functions only"):
            add(1)
        assert compiled.kernel(lambda i: add(i))(1) == 3


def test_numbas_own_setting_is_left_as_it_was():
    before = numba.config.CACHE_DIR
    compiled.compiled(tree)
    assert before == numba.config.CACHE_DIR


def test_compiled_code_belongs_to_the_environment_if_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    cache_root.cache_clear()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert tmp_path in cache_root().parents
    cache_root.cache_clear()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "missing"))
    assert tmp_path not in cache_root().parents
    cache_root.cache_clear()
