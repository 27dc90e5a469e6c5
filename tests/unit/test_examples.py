"""The examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from pipeline.system.start import HOME, PACKAGES

SOURCES = [path.relative_to(HOME) for package in PACKAGES for path in sorted((HOME / package).rglob("*.py"))]
WITH_EXAMPLES = [path for path in SOURCES if ">>> " in (HOME / path).read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_examples_of_a_module_are_true(path: Path) -> None:
    parts = path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
    found = doctest.testmod(importlib.import_module(".".join(parts)))
    assert found.attempted > 0
    assert found.failed == 0
