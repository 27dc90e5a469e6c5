"""The pages of docs/ and the README: commands that exist, links that lead somewhere, and a matrix that is true."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from pipeline.cli.main import COMMANDS, LazyGroup
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, LearningPlacer, Placer
from pipeline.settings.registry import build_implementation
from pipeline.system.start import PACKAGES
from pipeline.testing import matrix
from pipeline.testing.problems import SumEvaluator, chain_problem, crown_problem, ignore_progress, small_problem
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place import TABLE
from tests import ROOT
from tests.contract.test_placers import PUBLISHED, QUICK
from tests.slow import slow_where

PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
SIMULATORS = {"sequential": "sequential", "dataflow": "T2", "pipelined": "pipelined"}

SELDOM = {"cpsat", "hsdag_released", "metis"}  # to them a seed seldom matters on a small graph

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
every_placer = pytest.mark.parametrize("name", slow_where(sorted(TABLE), PUBLISHED))


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def commands(page: Path) -> list[list[str]]:
    """Return the placewright commands in the blocks of a page, in words, without comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("    placewright ")]
    lines += [line for block in blocks(page, "sh") for line in block.splitlines()]
    parts = [part for line in lines for part in re.split(r" && ", line.split(" #")[0])]
    return [words[1:] for part in parts if (words := shlex.split(part, comments=True))[:1] == ["placewright"]]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@every_page
def test_blocks_of_python_and_toml_are_such_and_import_what_is_there(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
                module = importlib.import_module(node.module or "")
                assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]


def test_completion_is_installed_by_the_documented_line() -> None:
    (line,) = re.findall(r"^    eval (.*)$", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert shlex.split(line) == ["$(_PLACEWRIGHT_COMPLETE=bash_source placewright)"]
    environment = {
        **os.environ,
        "_PLACEWRIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": "placewright ba",
        "COMP_CWORD": "1",
    }
    code = "from pipeline.cli.main import cli; cli(prog_name='placewright')"
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["plain,batch"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to complete words in")
def test_bash_completes_words_after_the_documented_line(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (eval .*)$", page, re.MULTILINE)
    program = tmp_path / "placewright"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.cli.main import main; main()"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    asked = "COMP_WORDS=(placewright ba); COMP_CWORD=1; _placewright_completion placewright"
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    found = subprocess.run(
        ["bash", "-c", f'{line}; {asked}; echo "${{COMPREPLY[*]}}"'],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "batch\n", found.stderr


PRINTED = {
    "commands.html": "Usage: placewright compare [OPTIONS]",
    "placers.html": "<td><code>critical_path</code></td>",
    "rewrites.html": "<td><code>CPU_DENORMALS_OPTIMIZATION</code></td>",
}
CHANGED = ("mkdocs.yml", "README.md", "docs")  # what the tests of the site change in a copy
on_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make to build the site with")


def make_site(root: Path, changes: Mapping[str, tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Run `make site` on a copy of the documents; changes: file -> a text in it, "" for its end, and what to put."""
    for path in ROOT.iterdir():
        if path.name in CHANGED:
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, root / path.name)
        elif not path.name.startswith(".") and path.name != "site":
            (root / path.name).symlink_to(path)
    (root / ".venv").mkdir()
    (root / ".venv" / "ready").touch()  # so that nothing is installed
    for name, (old, new) in changes.items():
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        assert old in text
        (root / name).write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")
    command = ["make", f"BIN={Path(sys.executable).parent}", "site"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@on_make
def test_the_site_is_built_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    found = make_site(tmp_path, {})
    assert found.returncode == 0, found.stdout + found.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'(?:<script[^>]* src|<img[^>]* src|<link rel="stylesheet"[^>]* href)="([^"]*)"', text)
        assert bool(fetched) == (page.name != "board.html"), page  # that one has all within itself
        assert not [target for target in fetched if "//" in target], page
    for name, told in PRINTED.items():
        assert told in (tmp_path / "site" / name).read_text(encoding="utf-8"), name
    drawn = (tmp_path / "site" / "tutorials" / "stages.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<img[^>]* src="../images/stage-[a-z-]*.svg"', drawn)) == 6


LEADING_NOWHERE = {
    "page": ({"docs/zoo.md": ("", "\nSee [a page](nowhere.md).\n")}, "nowhere.md"),
    "heading": ({"docs/graph.md": ("", "\nSee [a heading](zoo.md#nowhere).\n")}, "zoo.md#nowhere"),
    "own heading": ({"docs/report.md": ("", "\nSee [this page](#nobody).\n")}, "#nobody"),
    "file": ({"docs/faq.md": ("", "\nSee [a file](../pipeline/nowhere.py).\n")}, "pipeline/nowhere.py"),
    "picture": ({"docs/gate.md": ("", "\n![a picture](nowhere.svg)\n")}, "nowhere.svg"),
    "outside docs": ({"README.md": ("", "\nSee [a page](docs/nobody.md).\n")}, "nobody.md"),
    "in no menu": ({"docs/unlisted.md": ("", "# A page in no menu\n")}, "unlisted.md"),
    "menu": ({"mkdocs.yml": ("- zoo.md", "- zoo.md\n      - missing.md")}, "missing.md"),
}


@on_make
def test_the_site_is_refused_for_every_link_that_leads_nowhere(tmp_path: Path) -> None:
    changes = {name: change for each, _ in LEADING_NOWHERE.values() for name, change in each.items()}
    found = make_site(tmp_path, changes)
    assert found.returncode != 0, found.stdout + found.stderr
    told = found.stdout + found.stderr
    assert [name for name, (_, words) in LEADING_NOWHERE.items() if words not in told] == []
    assert len(re.findall("^WARNING", told, re.MULTILINE)) == len(LEADING_NOWHERE), told


@on_make
@pytest.mark.slow
@pytest.mark.parametrize(("changes", "words"), LEADING_NOWHERE.values(), ids=LEADING_NOWHERE)
def test_the_site_is_refused_where_a_link_leads_nowhere(
    changes: dict[str, tuple[str, str]], words: str, tmp_path: Path
) -> None:
    found = make_site(tmp_path, changes)
    assert found.returncode != 0, found.stdout + found.stderr
    assert words in found.stdout + found.stderr


@cache
def command(name: str) -> click.Command:
    found = LazyGroup("placewright").get_command(click.Context(LazyGroup("placewright")), name)
    assert found is not None, f"no command {name}"
    return found


@every_page
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    for name, *words in commands(page):
        assert name in COMMANDS, name
        options = {text for p in command(name).params for text in (*p.opts, *p.secondary_opts)}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= options, f"placewright {name} {words}"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 70
    first = [line.split("#")[0].strip() for line in lines if line.startswith("    ")][:2]
    assert first == ["make demo", "make test"]


def test_the_architecture_page_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150


def placer(name: str) -> Placer:
    return build_implementation("place", name, QUICK.get(name))  # type: ignore[no-any-return]


def place(name: str, problem: Problem, simulator: Any, *, evaluations: int, seed: int = 0) -> Answer:
    return placer(name).place(problem, simulator, Budget(evaluations), seed=seed, progress=ignore_progress)


@every_placer
def test_priorities_are_proposed_by_those_of_whom_the_matrix_says_so(name: str) -> None:
    problem = wide_problem(ordered=True)
    answer = place(name, problem, simulator_of(problem, "T2"), evaluations=100)
    proposed = any(c.placement.priority is not None for c in answer.candidates)
    assert proposed == matrix.facts_of(name).priorities


@every_placer
def test_bounds_for_two_devices_are_proven_where_the_matrix_says_so(name: str) -> None:
    op_s = 1e-3 * (0.5 + np.random.default_rng(1).random((18, 2)))
    problem = small_problem(wide_problem().graph, op_s, group="edge_score")
    proven = [
        model
        for model, rules in SIMULATORS.items()
        if place(name, problem, simulator_of(problem, rules), evaluations=60).lower_bound_s > 0
    ]
    assert tuple(proven) == matrix.facts_of(name).bounds


@pytest.mark.parametrize("name", ["min_cut", "cpsat", "portfolio"])
def test_two_devices_that_take_turns_are_placed_optimally(name: str) -> None:
    problem = crown_problem()
    assert matrix.facts_of(name).optimal
    assert place(name, problem, simulator_of(problem, "sequential"), evaluations=500).proven


@pytest.mark.parametrize("name", [name for name in sorted(TABLE) if not matrix.uses_seed(name)])
def test_a_placer_that_draws_nothing_answers_the_same_for_every_seed(name: str) -> None:
    problem = wide_problem()
    asked = [place(name, problem, simulator_of(problem, "T2"), evaluations=100, seed=seed) for seed in (0, 1)]
    assert [c.placement.key() for c in asked[0].candidates] == [c.placement.key() for c in asked[1].candidates]


@pytest.mark.parametrize("name", slow_where(sorted(filter(matrix.uses_seed, set(TABLE) - SELDOM)), PUBLISHED))
def test_a_placer_that_draws_asks_differently_for_another_seed(name: str) -> None:
    problem = crown_problem()
    evaluators = [SumEvaluator.of(problem) for _ in range(3)]
    for seed, evaluator in enumerate(evaluators):
        place(name, problem, evaluator, evaluations=60, seed=seed)
    assert len({tuple(p.key() for p in evaluator.asked) for evaluator in evaluators}) > 1


@pytest.mark.parametrize("name", [name for name in sorted(TABLE) if matrix.facts_of(name).without_costs == "the same"])
def test_without_costs_some_do_the_same(name: str) -> None:
    evaluators = [SumEvaluator.of(chain_problem()) for _ in range(2)]
    for known, evaluator in zip((True, False), evaluators, strict=True):
        place(name, chain_problem(costs_known=known), evaluator, evaluations=40)
    assert [p.key() for p in evaluators[0].asked] == [p.key() for p in evaluators[1].asked]


@pytest.mark.parametrize(
    "name", [name for name, facts in matrix.FACTS.items() if facts.without_costs == matrix.NOTHING]
)
def test_without_costs_some_do_nothing(name: str) -> None:
    evaluator = SumEvaluator.of(chain_problem())
    place(name, chain_problem(costs_known=False), evaluator, evaluations=40)
    assert evaluator.evaluations == 2  # each device alone


@every_placer
def test_what_learns_runs_on_torch_and_nothing_else_does(name: str) -> None:
    assert ("torch" in matrix.tools_used(name)) == isinstance(placer(name), LearningPlacer)


def test_tools_are_found_through_what_a_placer_calls() -> None:
    assert matrix.tools_used("metis") == {"METIS"}
    assert matrix.tools_used("m_sct") == {"HiGHS"}
    assert matrix.tools_used("min_cut") == {"HiGHS", "OR-Tools"}
    assert matrix.tools_used("heft") == set()
