"""What planning asks of implementations: versions, parameters with defaults filled in, what a placer brings along.

The answers follow from the source text and the question alone. They are kept on disk under the hash of that text, so
that a run that finds everything in the store imports none of the packages that executing it would need.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.core.params import canonical
from pipeline.core.stages import CompositePlacer, LearningPlacer
from pipeline.settings import registry
from pipeline.store.store import json_digest, write_text
from pipeline.system.folders import own_cache
from pipeline.system.start import HOME, PACKAGES


@dataclass(frozen=True, slots=True)
class Declaration:
    """An implementation with its parameters, as JSON values.

    version: of the class. params: all of them, defaults filled in. files: names of those that name a file. real:
    whether it measures on hardware. recipe: [stage, implementation] of all that a placer brings along. placers: names
    of the placers that a placer may call itself. learns: whether it is a placer that learns a policy. seeded: whether
    its answer depends on the seed, which it does unless the implementation says otherwise.
    """

    version: int
    params: Mapping[str, Any]
    files: Sequence[str]
    real: bool
    recipe: Sequence[Sequence[str]]
    placers: Sequence[str]
    learns: bool
    seeded: bool


@cache
def source_digest(root: Path = HOME) -> str:
    """Return a hash of all source text of the packages in a folder."""
    total = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def recall_answer(question: Sequence[Any], answer: Callable[[], Any]) -> Any:
    """Return `answer()` as JSON values, from disk if the same source text has answered the same question before."""
    try:
        name = f"declared/{source_digest()[:16]}/{json_digest(question)[:32]}.json"
    except (TypeError, ValueError):  # it holds what no JSON can, and is asked every time
        return answer()
    with contextlib.suppress(OSError, ValueError):  # not there, or torn: it is asked again
        return json.loads(_read_written(own_cache, name))
    text = json.dumps(answer())
    with contextlib.suppress(StoreError):  # where nothing can be written it is asked every time
        write_text(own_cache(name), text)
    return json.loads(text)


@cache
def _read_written(folder: Callable[[str], Path], name: str) -> str:
    """Return the answer of a name that is on disk; it never changes, and is read once."""
    return folder(name).read_text(encoding="utf-8")


def read_declaration(stage: str, name: str, values: Mapping[str, Any] | None = None) -> Declaration:
    """Return what an implementation says of itself once `values` take the place of its defaults.

    Raises:
        UnknownNameError: no such stage, name or parameter.
        PlacewrightError: whatever the implementation says of wrong values.
    """

    def ask() -> dict[str, Any]:
        return asdict(_make_declaration(stage, registry.build_implementation(stage, name, values)))

    if not is_ours(stage, name):
        return Declaration(**ask())
    return Declaration(**recall_answer([stage, name, dict(values or {})], ask))


def placers_called(name: str, values: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the names of all placers that a placer may call, and those that they may call, each once.

    Raises:
        UnknownNameError: no such placer or parameter.
        PlacewrightError: whatever the placer says of wrong values.
    """
    names: list[str] = []
    waiting = list(read_declaration("place", name, values).placers)
    while waiting:
        called = waiting.pop(0)
        if called not in names:
            names.append(called)
            waiting += read_declaration("place", called).placers
    return tuple(names)


def uses_seed(placer: str) -> bool:
    """Return whether a placer of this name makes use of its seed: whether its module reads a variable of that name.

    Raises:
        UnknownNameError: there is no such placer.
        PlacewrightError: a package that it needs is not installed.
    """
    module = sys.modules[registry.load_implementation("place", placer).__module__]
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return any(isinstance(n, ast.Name) and n.id == "seed" and isinstance(n.ctx, ast.Load) for n in nodes)


def is_ours(stage: str, name: str) -> bool:
    """Return whether an implementation's source text is part of placewright, so that its answers can be kept."""
    return registry.implementation_table(stage).get(name, "").partition(".")[0] in PACKAGES


def _make_declaration(stage: str, built: Any) -> Declaration:
    recipe = built.recipe if isinstance(built, LearningPlacer) else None
    brought: list[tuple[str, str]] = []
    if recipe is not None:
        brought = [*(("coarsen", c) for c, _ in recipe.coarsen), ("embed", recipe.embed[0]), ("group", recipe.group[0])]
    placers = list(built.placers) if isinstance(built, CompositePlacer) else []
    real, learns = stage == "measure" and built.real, isinstance(built, LearningPlacer)
    files = registry.file_parameters(built)
    seeded = bool(getattr(built, "seeded", True))
    return Declaration(built.version, canonical(built), files, real, brought, placers, learns, seeded)
