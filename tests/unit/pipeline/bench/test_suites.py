"""The suites of `placewright bench`: found by name, and said to be missing where only the package is installed."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pipeline.bench import suites
from pipeline.bench.suites import SUITES, suite_of
from pipeline.cli import bench
from pipeline.cli.main import run_command_line
from pipeline.core.errors import UsageError

ONLY_IN_A_CLONE = [name for name, module in SUITES.items() if not module.startswith("pipeline.")]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_reads_options_that_the_command_has(name: str) -> None:
    suite = suite_of(name)
    assert set(bench.SPECIAL) >= suite.READS
    options = {str(parameter.opts[-1]).lstrip("-").replace("-", "_") for parameter in bench.bench.params}
    assert {bench.WRITTEN.get(option, option) for option in suite.READS} <= options


@pytest.mark.parametrize("found", [None, "elsewhere"])
def test_a_suite_that_the_package_does_not_bring_is_refused_in_words(
    found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(name: str) -> ModuleSpec | None:
        if found is None or name == "pipeline":
            return None if name != "pipeline" else spec_of(suites.HOME / name)
        return spec_of(tmp_path / found / name)  # another project's package of that name

    monkeypatch.setattr(suites, "find_spec", find)
    assert suite_of("league")
    assert ONLY_IN_A_CLONE
    for name in ONLY_IN_A_CLONE:
        with pytest.raises(UsageError, match="not part of the installed package"):
            suite_of(name)
        assert run_command_line(["bench", name, "--out", str(tmp_path / "out")]) == 2
        error, remedy = capsys.readouterr().err.strip().splitlines()
        assert error == f"error: The benchmark {name} is not part of the installed package."
        assert re.fullmatch(r"  fix: Clone the repository, .*", remedy)
    assert not (tmp_path / "out").exists()


def spec_of(folder: Path) -> ModuleSpec:
    """Return what Python finds where a package lies in a folder."""
    spec = ModuleSpec(folder.name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec
