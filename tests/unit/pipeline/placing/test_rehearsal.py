"""Rehearsals: what a search needs is compiled and loaded before its clock starts."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.core.errors import UsageError
from pipeline.core.simulation import DataflowModel, SequentialModel
from pipeline.core.stages import Answer
from pipeline.placing.compile_kernels import compile_kernels, compile_kernels_of_each
from pipeline.settings import registry
from pipeline.shared.compiled import announce_compiling, compiled
from pipeline.system.process import python_command
from policy.place.portfolio import RULES, parts
from tests.slow import slow_but

LOADED = """
import sys
from numba.core.dispatcher import Dispatcher

def loaded():
    ours = [m for name, m in sys.modules.items() if name.split(".")[0] in ("policy", "runtime", "pipeline")]
    kernels = {id(k): k for m in ours for k in vars(m).values() if isinstance(k, Dispatcher)}
    return {f"{k.py_func.__module__}.{k.py_func.__name__}": len(k.overloads) for k in kernels.values()}
"""
SEARCHES = """
from pipeline.offline.search import Effort, search
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.offline.scenario import Scenario
from tests.slow import slow_but

def main(evaluator):
    compile_kernels(("portfolio",), evaluator, 1000, say=lambda text: None)
    before = loaded()
    orders = (False, True) if evaluator == "listsched" else (False,)
    for ordered in orders:
        for topology in ("equal:2", "two-level:2x2"):
            scenario = Scenario("zoo:nas-cnn", topology, evaluator=evaluator, ordered=ordered)
            search(scenario, Effort(evaluations=400))
    after = loaded()
    print(sorted(name for name in after if after[name] != before.get(name, 0)), sum(before.values()))

main(sys.argv[1])
"""


@pytest.mark.parametrize("evaluator", slow_but(["sequential", "listsched", "pipelined", "latency"], quick=1))
def test_a_search_loads_no_kernel_that_its_rehearsal_has_not(evaluator: str, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(LOADED + SEARCHES)
    command = [python_command("")[0], str(program), evaluator]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    late, count = found.rsplit(" ", 1)
    assert late == "[]"
    assert int(count) > 10


@pytest.mark.slow
@pytest.mark.parametrize("evaluator", ["listsched", "sequential", "pipelined", "latency", "hetero"])
def test_every_placer_can_be_rehearsed(evaluator: str):
    compile_kernels_of_each(registry.implementation_table("place"), evaluator)


def test_a_rehearsal_tells_nothing_where_nothing_is_compiled():
    compile_kernels(("heft",), "pipelined", 10, say=lambda text: None)
    told: list[str] = []
    compile_kernels(("heft",), "pipelined", 10, say=told.append)
    assert told == []


def test_a_rehearsal_tells_how_long_it_took_only_where_kernels_were_compiled(monkeypatch: pytest.MonkeyPatch):
    assert compile_kernels(("heft",), "pipelined", 10, say=lambda text: None) == 0.0

    @contextmanager
    def compiling_one(tell: Callable[[int], None]) -> Iterator[None]:
        tell(0)
        yield

    monkeypatch.setattr("pipeline.shared.compiled.announce_compiling", compiling_one)
    assert compile_kernels(("heft",), "pipelined", 10, say=lambda text: None) > 0


def test_every_compilation_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("pipeline.shared.compiled.cache_root", lambda: tmp_path)

    def twice(x: int) -> int:
        return 2 * x

    told: list[int] = []
    kernel = compiled(twice)
    with announce_compiling(told.append):
        assert kernel(3) == 6
        assert kernel(4) == 8
        assert kernel(1.5) == 3.0
    assert told == [0, 1]
    kernel(1.5 + 0j)
    assert told == [0, 1]


def test_the_parts_of_a_portfolio_are_those_it_calls():
    assert set(RULES) < set(parts(100, DataflowModel()))
    assert "min_cut" in parts(100, SequentialModel())
    assert "multilevel" in parts(10**6, DataflowModel())
    assert "greedy" in parts(100, None)
    assert set(parts(100, None)) | set(parts(10**6, SequentialModel())) <= set(registry.implementation_table("place"))


@dataclass(frozen=True, slots=True)
class Choosy:
    """A placer of another package that takes no problem as small as those of rehearsals."""

    version: ClassVar[int] = 1

    def place(self, *_: object, **__: object) -> Answer:
        raise UsageError("There are 14 operations.", "Give a larger graph.")


def test_placers_of_other_packages_are_not_rehearsed(monkeypatch: pytest.MonkeyPatch):
    entry = importlib.metadata.EntryPoint("choosy", f"{__name__}:Choosy", "placewright.place")
    monkeypatch.setattr(registry, "plugin_entry_points", lambda stage: [entry] if stage == "place" else [])
    compile_kernels(("choosy",), "sequential", 100, say=lambda text: None)
