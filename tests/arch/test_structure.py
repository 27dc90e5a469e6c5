"""The rules of the house: who may import whom, whose names are ours, and what may not be imported at all."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("pipeline", "coarsen", "embed", "policy", "runtime")
ENTRY = ROOT / "placewright_entry.py"
SOURCES = [ENTRY, *sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]


def python(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with a folder put before all others on the path."""
    environment = {**os.environ, "CI": "true"} | ({"PYTHONPATH": str(path)} if path is not None else {})
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, env=environment, cwd="/"
    )


def test_the_import_contracts_of_pyproject_hold() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert " 0 broken" in found.stdout


def test_no_other_distribution_carries_one_of_our_names() -> None:
    found = importlib.metadata.packages_distributions()
    assert {package: found[package] for package in PACKAGES if set(found.get(package, [])) - {"placewright"}} == {}


@pytest.mark.parametrize("has_init", [True, False])
def test_a_package_that_shadows_one_of_ours_is_named_with_both_places(tmp_path: Path, has_init: bool) -> None:
    fake = tmp_path / "embed"
    fake.mkdir()
    (fake / ("__init__.py" if has_init else "other.py")).write_text("", encoding="utf-8")
    found = python("import pipeline", path=tmp_path)
    if not has_init:  # a folder without __init__.py gives way to a real package
        assert found.returncode == 0, found.stderr
        return
    assert found.returncode != 0
    last = found.stderr.strip().splitlines()[-1]
    assert "ShadowedPackageError" in last
    assert str(ROOT / "embed") in last
    assert str(fake) in last
    assert "environment of its own" in last


def test_help_imports_no_stage_and_nothing_heavy() -> None:
    code = (
        "import sys; from pipeline.cli.main import run_command_line; code = run_command_line(['--help']);"
        "print(code, sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    found = python(code)
    assert found.stderr.startswith("0 ")
    loaded = set(ast.literal_eval(found.stderr.strip()[2:]))
    assert {"click", "pipeline"} <= loaded
    assert (
        loaded
        & {"torch", "torch_geometric", "openvino", "sklearn", "scipy", "pymetis", "pydantic", "rich", "matplotlib"}
        == set()
    )
    assert loaded & {"coarsen", "embed", "policy", "runtime"} == set()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules ask about a source file; its syntax tree is not kept: it would slow down the whole process.

    imports: the top-level names of all modules that it imports, wherever in the file it does. classes: their names.
    loads: the calls that load with pickle, or load or save with torch.
    """

    imports: frozenset[str]
    classes: tuple[str, ...]
    loads: tuple[str, ...]


def loads_unsafely(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) in ("torch.load", "torch.save"):
        return True
    return any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in call.keywords)


@cache
def facts_of(path: Path) -> Facts:
    imports, classes, loads = set[str](), list[str](), list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imports.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Call) and loads_unsafely(node):
            loads.append(ast.unparse(node))
    return Facts(frozenset(imports), tuple(classes), tuple(loads))


def importers_of(names: set[str]) -> dict[str, frozenset[str]]:
    """Return the source files that import one of some modules, and which."""
    return {str(p): found for p in SOURCES if (found := facts_of(p).imports & names)}


def test_pickle_and_its_kin_are_imported_nowhere() -> None:
    assert SOURCES
    assert importers_of({"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}) == {}


def test_arrays_are_loaded_without_pickle_and_weights_without_torch() -> None:
    assert {str(p): facts_of(p).loads for p in SOURCES if facts_of(p).loads} == {}


@pytest.mark.parametrize(
    ("code", "unsafe"),
    [
        ("np.load(path, allow_pickle=True)", True),
        ("load(path, allow_pickle=some)", True),
        ("torch.load(path)", True),
        ("np.load(path, allow_pickle=False)", False),
        ("np.load(path)", False),
    ],
)
def test_calls_that_load_unsafely_are_told(code: str, unsafe: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert loads_unsafely(call) == unsafe


def test_no_source_file_talks_to_the_network() -> None:
    assert importers_of({"socket", "urllib", "http", "requests", "httpx", "ftplib", "aiohttp"}) == {}


def test_every_package_has_what_shadowing_is_judged_by() -> None:
    assert all((ROOT / package / "__init__.py").is_file() for package in PACKAGES)


def test_no_two_classes_share_a_name_but_one_method_offered_by_several_stages() -> None:
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in facts_of(path).classes:
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    methods = {name for name, paths in shared.items() if {Path(p).stem for p in paths} == {name.lower()}}
    assert {name: paths for name, paths in shared.items() if name not in methods} == {}
    assert methods == {"Contraction", "Identity", "Metis"}


def test_the_map_of_the_architecture_page_names_every_package_and_only_modules_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = text.partition("## Where things are\n")[2].partition("\nWords:")[0]
    packages = {p.parent.relative_to(ROOT) for p in SOURCES if p.name == "__init__.py"}
    assert [str(p) for p in sorted(packages) if f"{p.name}/" not in block] == []
    modules = {p.stem for p in SOURCES} | {p.name for p in packages} | {"assets", "emitted"}
    assert set(re.findall(r"(?:[·,;] | {4})(\w+)/?: ", block)) - modules == set()
    paths = re.findall(r"`((?:pipeline|coarsen|embed|policy|runtime|docs|tests)/[\w./]+)`", text)
    assert [p for p in paths if not (ROOT / p).exists()] == []
