"""The placer package of docs/plugins.md: found by its entry point, used by its name, true to its promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
PACKAGE = DOCS / "example_placer"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the package lies as pip would have installed it."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    shutil.copy(PACKAGE / "placewright_tabu.py", folder)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def python(site: Path, *arguments: str) -> str:
    """Return what an interpreter with the package prints; placewright is taken from this checkout."""
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(site)}
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=site
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def placewright(site: Path, *arguments: str) -> str:
    code = "import sys; from pipeline.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    return python(site, "-c", code, *arguments)


def test_the_placer_of_another_package_is_listed_and_explained(site: Path) -> None:
    assert "tabu" in json.loads(placewright(site, "list", "place", "--json"))["place"]
    explained = placewright(site, "explain", "place.tabu")
    assert "place.tabu.tenure = 7" in explained
    assert "Glover" in explained


def test_the_placer_of_another_package_searches_with_its_parameters(site: Path) -> None:
    chosen = ("zoo:ffnn", "--topology", "equal:2", "--placer", "tabu", "--set", "place.tabu.tenure=3")
    answer = json.loads(placewright(site, "search", *chosen, "--evaluations", "60", "--json"))
    assert (answer["placer"], answer["found_by"]) == ("tabu", "tabu")
    assert set(answer["placement"].values()) == set(answer["devices"])
    assert answer["evaluations"] <= 60


@pytest.mark.slow
def test_the_packages_own_test_passes(site: Path) -> None:
    test = shutil.copy(PACKAGE / "test_placewright_tabu.py", site)
    python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(site), str(test))


def test_the_page_quotes_the_package() -> None:
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for name, language in (("pyproject.toml", "toml"), ("placewright_tabu.py", "python")):
        assert f"```{language}\n{(PACKAGE / name).read_text(encoding='utf-8')}```" in page, name
    assert (PACKAGE / "test_placewright_tabu.py").read_text(encoding="utf-8") in page
    assert len(page.splitlines()) <= 120
