"""No dependency with a known fault: neither a pinned nor an installed version, nor the oldest that is allowed."""

from __future__ import annotations

import contextlib
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
BELOW = tomllib.loads(Path(__file__).with_name("known_bad.toml").read_text(encoding="utf-8"))["below"]


def versions(text: str, sign: str) -> dict[str, Version]:
    """Return package -> version of all "name<sign>version" of a text."""
    found = re.findall(rf"([A-Za-z0-9_.-]+){sign}([0-9][0-9.]*)", text)
    return {name.lower().replace("_", "-"): Version(number) for name, number in found}


PINNED = versions((ROOT / "constraints.txt").read_text(encoding="utf-8"), "==")
ALLOWED = versions((ROOT / "pyproject.toml").read_text(encoding="utf-8"), ">=")


@pytest.mark.parametrize("name", BELOW)
def test_no_version_is_known_to_be_bad(name: str) -> None:
    least, advisory = Version(BELOW[name][0]), BELOW[name][1]
    told = {"pinned": PINNED.get(name), "allowed": ALLOWED.get(name)}
    with contextlib.suppress(PackageNotFoundError):  # one of an extra
        told["installed"] = Version(version(name))
    assert {how: v for how, v in told.items() if v is not None and v < least} == {}, advisory


def test_the_list_is_of_dependencies() -> None:
    assert set(BELOW) <= set(PINNED)


def test_a_package_has_one_oldest_version() -> None:
    stated = set(
        re.findall(r"\"([a-z0-9-]+)>=([0-9.]+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8").lower())
    )
    assert len(stated) == len(dict(stated)), "the lowest of all cannot be installed together"
