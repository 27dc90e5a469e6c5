"""Other versions of Python, and the oldest and the newest of all that is depended on: installed, and tested quickly.

Each interpreter of this machine that is allowed gets an environment beside the journals, with the newest versions; the
oldest one also with the lowest that pyproject.toml allows. A case takes minutes and gigabytes, so that the short form
leaves it out. Where no interpreter of a version is there, its packages are resolved alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.runner import Campaign, Case, Judge, require

ROOT = Path(__file__).parent.parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
CASES = [(PYTHONS[0], "lowest"), *((python, "newest") for python in PYTHONS)]
EXTRAS = ("fleet", "onnxruntime")
TESTED = (
    *("tests/unit/pipeline/store", "tests/unit/pipeline/settings", "tests/unit/coarsen/reading"),
    *("tests/unit/runtime/measuring/process", "tests/e2e/test_search_cli.py"),
)
PATIENCE_S = 3600.0


def requirements(which: str) -> list[str]:
    """Return what is to be installed: the extras with it, and with the lowest versions those that are stated."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    tests = [r for r in optional["dev"] if re.split("[><=]", r)[0] in ("pytest", "hypothesis", "onnx")]
    stated = [*project["dependencies"], *(r for extra in EXTRAS for r in optional[extra]), *tests]
    return [r.replace(">=", "==") for r in stated] if which == "lowest" else stated


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version that runs, None without one."""
    found = sys.executable if sys.version.startswith(f"{version}.") else shutil.which(f"python{version}")
    asked = [found or "false", "-c", "import ensurepip"]
    return found if subprocess.run(asked, capture_output=True, check=False).returncode == 0 else None


def run(*command: str | Path) -> None:
    """Run a command, which must succeed."""
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    require(
        ended.returncode == 0, f"{command[:4]} ends with {ended.returncode}: {(ended.stdout + ended.stderr)[-2500:]}"
    )


def judge_version(case: Case) -> str:
    """Install and test, or resolve."""
    python, which = CASES[case.seed % len(CASES)]
    program = interpreter(python)
    if program is None:
        wheels = ["--only-binary", ":all:", "--python-version", python, "--target", case.folder / "none"]
        run(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", *wheels, *requirements(which))
        return f"{python}, {which}: resolved"
    run(program, "-m", "venv", case.folder / "venv")
    own = case.folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(own, "-m", "pip", "install", "--quiet", *requirements(which))
    run(own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTED)
    return f"{python}, {which}: tested"


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what installs and tests versions."""
    yield judge_version


CAMPAIGN = Campaign("versions", 1.0, begin)
