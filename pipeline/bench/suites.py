"""The benchmarks of `placewright bench` by name. The league is part of the package; the others are in a clone alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.store.store import Store
from pipeline.store.task import Progress
from pipeline.system.process import cpu_count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pipeline.fleet.engine import Engine

# name -> module, which is a `Suite`
SUITES = {
    "hsdag": "benchmarks.suites.hsdag.run",
    "league": "pipeline.bench.league.suite",
    "exact": "benchmarks.suites.exact",
    "open": "benchmarks.suites.open_benchmark.solve",
    "submit": "benchmarks.suites.open_benchmark.submit",
    "board": "benchmarks.suites.open_benchmark.board",
}
WITHOUT_OUT = ("submit",)  # what writes no files
HOME = Path(__file__).absolute().parent.parent.parent
MOST_WORKERS = 8  # processes unless a number is given; each holds some hundred MB
BUDGETS = ("seeds", "evaluations", "measurements", "seconds")  # options that replace fields of an effort

Effort = TypeVar("Effort", bound="DataclassInstance")


class TextTable(NamedTuple):
    """A table for people."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What a suite is asked to run.

    options: of the command line, None or empty where not given. open_store: returns the store. open_workers: gives
    the engine of `--on`, entered, or None for this machine alone, and what is told of progress.
    """

    out: Path
    options: Mapping[str, Any]
    open_store: Callable[[], Store]
    open_workers: Callable[[], AbstractContextManager[tuple[Engine | None, Progress]]]

    def names(self, option: str) -> tuple[str, ...]:
        """Return the names that an option lists, separated by commas; none if it is not given."""
        return tuple(word.strip() for word in (self.options[option] or "").split(",") if word.strip())

    def effort(self, full: Effort, quick: Effort) -> Effort:
        """Return how much is spent: as usual, with what the options say in its place."""
        usual = quick if self.options["quick"] else full
        known = {field.name for field in fields(usual)}
        given = {key: self.options[key] for key in BUDGETS if key in known and self.options[key] is not None}
        return replace(usual, workers=self.options["workers"] or min(cpu_count(), MOST_WORKERS), **given)


class Suite(Protocol):
    """A benchmark: a module with these names.

    READS: options that it reads and not every suite does.
    """

    READS: frozenset[str]

    def run(self, asked: BenchRequest) -> dict[str, Any]:
        """Return the document of the results, which are written to `asked.out` as well.

        Raises:
            PlacewrightError: with one line of cause and one of remedy.
        """
        ...

    def texts(self, document: Mapping[str, Any], out: Path) -> Iterable[str | TextTable]:
        """Return what is shown to people."""
        ...


class SuiteWithCells(Suite, Protocol):
    """A benchmark whose cells workers can run."""

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one of its cells comes to, as a worker's process is asked for it."""
        ...


def suite_of(name: str) -> Suite:
    """Return the suite of a name.

    Raises:
        UnknownNameError: there is none.
        UsageError: it is not part of this installation.
    """
    if name not in SUITES:
        raise UnknownNameError("benchmark", name, SUITES)
    package = SUITES[name].partition(".")[0]
    found = find_spec(package)
    if found is None or HOME / package not in map(Path, found.submodule_search_locations or ()):
        raise UsageError(
            f"The benchmark {name} is not part of the installed package.",
            "Clone the repository, and install it from there: pip install --editable .",
        )
    return cast(Suite, importlib.import_module(SUITES[name]))


def foreign_options(suite: Suite, options: Mapping[str, Any], special: Sequence[str]) -> list[str]:
    """Return the options that are given and that only other suites read; special: those that not all read."""
    return [name for name in special if options[name] and name not in suite.READS]
