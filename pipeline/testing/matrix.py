"""The matrix of all placers: what each does, needs and promises; `python -m pipeline.testing.matrix` prints it.

Facts come from the code where it tells them: docstrings, Protocols, and the packages that a placer's functions import.
The rest stands in FACTS, which tests compare with what placers do.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.stages import LearningPlacer
from pipeline.settings import registry
from pipeline.settings.declared import uses_seed
from pipeline.system.start import HOME, PACKAGES
from policy.place import TABLE

TOOLS = {"torch": "torch", "ortools": "OR-Tools", "pymetis": "METIS", "scipy.optimize": "HiGHS"}
OURS = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+:\w+")
FAMILIES = {
    "rules": "rule of thumb",
    "lists": "list scheduler",
    "local": "local search",
    "multilevel": "local search",
    "exact": "exact method",
    "learned": "learned",
    "published": "learned",
}
PAGE = """## What they do

| placer | family | what it does | source |
|---|---|---|---|
{methods}

## What they need and promise

| placer | runs on | without costs | lower bound | proven optimal | priorities | draws | learns |
|---|---|---|---|---|---|---|---|
{promises}

- **runs on**: packages that do the work beside NumPy and Numba; they are installed with placewright.
- **without costs**: what it does where no times of operations are known; with FLOPs all devices count as equally fast.
- **lower bound**: the execution models in which it proves one for two devices; for more, `min_cut` does in all of them.
- **proven optimal**: where the bound meets the answer.
- **priorities**: with `--mode order` it also proposes the order of execution.
- **draws**: the answer depends on the seed.
- **learns**: "resumes": takes `--checkpoint` and `--policy`. "own stages": brings its own coarseners, features, encoder
  and grouper.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the code of a placer does not tell.

    without_costs: what it does where no costs are known. bounds: execution models in which it proves a lower bound for
    two devices. optimal: where its answer is proven optimal. priorities: whether it proposes any. source: where its
    docstring has no paragraph for it.
    """

    without_costs: str = "estimates from FLOPs"
    bounds: tuple[str, ...] = ()
    optimal: str = ""
    priorities: bool = True
    source: str = ""


MODELS = ("sequential", "dataflow", "pipelined")
SAME, SEARCHES, NOTHING = "the same", "searches", "nothing"
FACTS: Mapping[str, Facts] = {
    "anneal": Facts(SEARCHES),
    "cpsat": Facts(NOTHING, MODELS, "small graphs"),
    "dp": Facts(NOTHING, MODELS, "`pipelined` with ordered stages, few branches", priorities=False),
    "dpl": Facts(NOTHING, MODELS, "where the work alone bounds the time", priorities=False),
    "milp": Facts(NOTHING, MODELS, "`pipelined`, small graphs", priorities=False),
    "gdp": Facts(SEARCHES, priorities=False),
    "latency_dp": Facts(NOTHING, MODELS, "`latency`, where calls in series meet its bound", priorities=False),
    "greedy": Facts(
        SEARCHES, priorities=False, source="the second start: Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002"
    ),
    "hdp": Facts(SEARCHES, priorities=False),
    "rnn": Facts(SEARCHES, priorities=False),
    "hsdag": Facts(SEARCHES, MODELS, "where the portfolio is, from which it starts"),
    "hsdag_paper": Facts(SEARCHES, priorities=False),
    "hsdag_released": Facts(SEARCHES, priorities=False),
    "min_cut": Facts(
        NOTHING,
        ("sequential",),
        "two devices, `sequential`, no launch times, enough memory",
        priorities=False,
        source="beyond two devices: Boykov, Veksler and Zabih, IEEE TPAMI 23, 2001",
    ),
    "multilevel": Facts(SEARCHES),
    "pipedream": Facts(NOTHING, MODELS, "where the work alone bounds the time", priorities=False),
    "placeto": Facts(SEARCHES, priorities=False),
    "portfolio": Facts(SEARCHES, MODELS, "where `min_cut` or `cpsat` is, or all placements can be tried"),
    "random": Facts(SAME, priorities=False),
    "round_robin": Facts(SAME),
    "sgdp": Facts(SEARCHES, priorities=False),
    "single": Facts(SAME, priorities=False),
}


def placers_page() -> str:
    """Return the tables of docs/placers.md, as the site has them, for the placers of this package."""
    names = sorted(TABLE)
    methods, promises = (
        "\n".join(f"| {' | '.join(row(name))} |" for name in names) for row in (_method_cells, _promise_cells)
    )
    return PAGE.format(methods=methods, promises=promises)


def facts_of(name: str) -> Facts:
    """Return what FACTS says of a placer; most list schedulers and rules of thumb have no entry of their own."""
    return FACTS.get(name, Facts())


def _method_cells(name: str) -> tuple[str, ...]:
    module, _ = _placer_home(name)
    text = inspect.getdoc(registry.load_implementation("place", name)) or ""
    first = text.partition("\n\n")[0].replace("\n", " ").rstrip(".")
    return (
        f"`{name}`",
        FAMILIES.get(module.split(".")[2], "all of these"),
        first,
        _cited_work(text) or facts_of(name).source,
    )


def _cited_work(text: str) -> str:
    """Return the work that a docstring's paragraph "Source:" begins with: up to the year, and the section of it."""
    paragraphs = [p.replace("\n", " ") for p in text.split("\n\n") if p.startswith("Source: ")]
    sentence = re.split(r"[.;] ", "".join(paragraphs).removeprefix("Source: "))[0]
    match = re.match(r".*\b(19|20)\d\d\b(, sections? [\d.]*\d( and [\d.]*\d)?)?", sentence)
    return match.group() if match else sentence.rstrip(".")


def _promise_cells(name: str) -> tuple[str, ...]:
    facts = facts_of(name)
    bounds = "all" if facts.bounds == MODELS else ", ".join(f"`{model}`" for model in facts.bounds)
    return (
        f"`{name}`",
        ", ".join(sorted(tools_used(name))),
        facts.without_costs,
        bounds,
        facts.optimal,
        "yes" if facts.priorities else "",
        "yes" if uses_seed(name) else "",
        ", ".join(_learning_words(name)),
    )


def _learning_words(name: str) -> Iterator[str]:
    placer: Any = registry.build_implementation("place", name)
    if isinstance(placer, LearningPlacer):
        yield "yes"
        if placer.keeps:
            yield "resumes"
        if placer.recipe is not None:
            yield "own stages"


@dataclass(frozen=True, slots=True)
class _Source:
    """The text of a module of ours: what it defines, and what it imports by name, (module, name in it)."""

    tree: ast.Module
    defined: Mapping[str, ast.AST]
    imported: Mapping[str, tuple[str, str]]


def tools_used(name: str) -> set[str]:
    """Return which of TOOLS the functions and classes of a placer, and what they call by name, import."""
    waiting, seen, used = [_placer_home(name)], set[tuple[str, str]](), set[str]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        module, attribute = at
        if module.partition(".")[0] not in PACKAGES:
            used |= {tool for package, tool in TOOLS.items() if f"{module}.".startswith(f"{package}.")}
            continue
        waiting += _reached_names(module, attribute)
    return used


@cache
def _reached_names(module: str, attribute: str) -> frozenset[tuple[str, str]]:
    """Return what a definition of a module of ours mentions; see `_mentioned_names`."""
    return frozenset(_mentioned_names(module, attribute))


def _mentioned_names(module: str, attribute: str) -> Iterator[tuple[str, str]]:
    """Yield what a definition of a module of ours mentions: definitions beside it, and names it imports."""
    if _module_path(f"{module}.{attribute}").is_file():  # a module imported by its name: all that it defines
        yield from ((f"{module}.{attribute}", name) for name in _module_source(f"{module}.{attribute}").defined)
        return
    source = _module_source(module)
    node = source.defined.get(attribute)
    if node is None:
        if attribute in source.imported:
            yield source.imported[attribute]
        return
    yield from _imported_names(node).values()
    for text in (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)):
        if OURS.fullmatch(text):  # what a literal table names, and loads when it is needed
            yield tuple(text.split(":"))  # type: ignore[misc]
    for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
        if name in source.defined:
            yield module, name
        elif name in source.imported:
            yield source.imported[name]


@cache
def _module_source(module: str) -> _Source:
    tree = ast.parse(_module_path(module).read_text(encoding="utf-8"))
    defined: dict[str, ast.AST] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {t.id: node for t in targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):  # those under TYPE_CHECKING lie deeper
            imported |= _imported_names(node)
    return _Source(tree, defined, imported)


def _imported_names(node: ast.AST) -> dict[str, tuple[str, str]]:
    """Return what the import statements in a piece of source bind: {name: (module, name in it, "" for all of it)}."""
    bound: dict[str, tuple[str, str]] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            bound |= {(a.asname or a.name).partition(".")[0]: (a.name, "") for a in part.names}
        elif isinstance(part, ast.ImportFrom) and part.module:
            bound |= {a.asname or a.name: (part.module, a.name) for a in part.names}
    return bound


def _placer_home(name: str) -> tuple[str, str]:
    """Return the module and the class of a placer."""
    module, _, attribute = TABLE[name].partition(":")
    return module, attribute


def _module_path(module: str) -> Path:
    return HOME.joinpath(*module.split(".")).with_suffix(".py")


if __name__ == "__main__":
    sys.stdout.write(placers_page())
