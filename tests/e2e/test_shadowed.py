"""Another distribution, or a file, that bears the name of one of our packages gives one clear error."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import placewright_entry
from pipeline.system import start

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
MODULE, _, FUNCTION = PROJECT["project"]["scripts"]["placewright"].partition(":")


def write_record(folder: Path, distribution: str, paths: Sequence[Path]) -> None:
    """Write the list of the files of a distribution, as installers do."""
    lines = []
    for path in paths:
        content = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path.relative_to(folder).as_posix()},sha256={digest},{len(content)}")
    home = folder / f"{distribution}.dist-info"
    home.mkdir(parents=True)
    lines.append(f"{home.name}/RECORD,,")
    (home / "RECORD").write_text("\n".join(lines) + "\n", encoding="utf-8")


def install(folder: Path, distribution: str, files: dict[str, str]) -> Path:
    """Put files into a folder as the installation of a distribution does, over those that are there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_record(folder, distribution, [folder / name for name in files])
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that holds what our wheel holds, as installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in WHEEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    write_record(folder, "placewright-0.1.0", sorted(p for p in folder.rglob("*") if p.is_file()))
    return folder


def python(code: str, *path: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with folders put before all others on the path."""
    environment = {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-P", "-B", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd or "/")


def script(*arguments: str) -> str:
    """Return what the console script does, as installers write it."""
    return f"import sys; from {MODULE} import {FUNCTION}; sys.argv[1:] = {list(arguments)}; sys.exit({FUNCTION}())"


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the console script says when it ends with one error and its remedy."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    cause, remedy = done.stderr.splitlines()
    assert cause.startswith("error: ")
    assert remedy.startswith("  fix: ")
    assert "environment of its own" in remedy
    return done.stderr


def test_what_was_installed_and_nothing_else_on_the_path_runs(site: Path) -> None:
    done = python(script("--help"), site)
    assert done.returncode == 0, done.stderr
    assert "Usage: placewright" in done.stdout
    assert python("import pipeline; print(pipeline.__file__)", site).stdout.strip() == str(
        site / "pipeline/__init__.py"
    )


@pytest.mark.parametrize("package", placewright_entry.PACKAGES)
def test_a_foreign_distribution_that_is_found_first_is_named_by_the_console_script(
    package: str, site: Path, tmp_path: Path
) -> None:
    text = "raise RuntimeError('foreign code ran')"
    foreign = install(tmp_path / "foreign", "foreign-1.0", {f"{package}/__init__.py": text})
    said = refused(python(script("--help"), foreign, site))
    assert str(site / package) in said
    assert str(foreign / package) in said
    assert "foreign 1.0" in said


@pytest.mark.parametrize("package", placewright_entry.PACKAGES)
def test_a_foreign_distribution_that_was_installed_over_ours_is_named_by_the_console_script(
    package: str, site: Path
) -> None:
    install(site, "foreign-1.0", {f"{package}/__init__.py": "raise RuntimeError('foreign code ran')"})
    said = refused(python(script("--help"), site))
    assert str(site / package / "__init__.py") in said
    assert str(site / "placewright-0.1.0.dist-info" / "RECORD") in said
    assert "the distribution foreign 1.0" in said


@pytest.mark.parametrize(
    "name",
    [
        "runtime/__init__.py",
        "pipeline/core/graph.py",
        "pipeline/core/__init__.py",
        "pipeline/settings/config/__init__.py",
    ],
)
def test_a_file_of_ours_that_a_foreign_one_replaces_is_named_by_the_import(name: str, site: Path) -> None:
    install(site, "foreign-1.0", {name: "# not ours\n"})
    done = python("import pipeline", site)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "ShadowedPackageError" in last
    assert str(site / name) in last
    assert "the distribution foreign 1.0" in last


def test_a_foreign_pipeline_over_ours_is_named_where_a_module_of_ours_is_imported(site: Path) -> None:
    install(site, "foreign-1.0", {"pipeline/__init__.py": "# not ours\n"})
    last = python("import pipeline.api", site).stderr.splitlines()[-1]
    assert "ShadowedPackageError" in last
    assert str(site / "pipeline/__init__.py") in last


def test_what_uninstalling_a_foreign_distribution_took_along_is_said_to_be_missing(site: Path) -> None:
    (site / "pipeline/__init__.py").unlink()
    said = refused(python(script("--help"), site))
    assert f"{site / 'pipeline/__init__.py'} of placewright is missing" in said
    assert "Install placewright again" in said


def test_a_file_in_a_folder_of_pythonpath_is_named_by_the_console_script(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise RuntimeError('foreign code ran')", encoding="utf-8")
    said = refused(python(script("--help"), Path(), site, cwd=tmp_path))
    assert str(site / "pipeline") in said
    assert str(tmp_path / "pipeline.py") in said
    assert "PYTHONPATH" in said


def test_a_foreign_distribution_beneath_ours_does_no_harm(site: Path) -> None:
    install(site, "foreign-1.0", {"pipeline/another.py": "", "another/__init__.py": ""})
    assert python(script("--help"), site).returncode == 0


def test_the_console_script_and_the_wheel_hold_what_the_check_knows() -> None:
    assert placewright_entry.__name__ == MODULE
    assert sorted(WHEEL) == sorted([*placewright_entry.PACKAGES, f"{MODULE}.py"])
    assert start.PACKAGES == placewright_entry.PACKAGES
    assert placewright_entry.__name__ == start.ENTRY
