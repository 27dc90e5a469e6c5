"""What planning knows of implementations, and what it imports to know it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.errors import UnknownNameError
from pipeline.core.params import canonical
from pipeline.settings import declared as module
from pipeline.settings import registry
from pipeline.settings.declared import read_declaration, recall_answer, source_digest

EVERY = [(stage, name) for stage in registry.STAGES for name in registry.implementation_table(stage)]
PLAN = """
import sys
from pathlib import Path
from pipeline.settings.config import Settings
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks
settings = Settings().updated({"place.hsdag.patience": 3, "measure.hetero.seconds": 0.2}, "the test")
print([t.key for t in plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, HostMachine((), {}, "here"))])
heavy = {"torch", "ortools", "sklearn", "numba", "scipy", "openvino", "matplotlib"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep answers in a folder of the test's own."""
    monkeypatch.setattr(module, "own_cache", lambda name: tmp_path / name)
    return tmp_path / "declared"


@pytest.mark.parametrize(("stage", "name"), EVERY)
def test_what_is_declared_is_what_is_built_and_is_known_without_building_it_again(
    stage: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = registry.build_implementation(stage, name)
    first = read_declaration(stage, name)
    assert first.version == built.version
    assert first.params == json.loads(json.dumps(canonical(built)))
    assert first.real is getattr(built, "real", False)
    monkeypatch.setattr(registry, "build_implementation", lambda *_: pytest.fail("built again"))
    assert read_declaration(stage, name) == first


@pytest.mark.slow
def test_planning_a_second_time_imports_no_library_of_a_stage() -> None:
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=True)
        *keys, imported = found.stdout.splitlines()
    assert len(json.loads(keys[0].replace("'", '"'))) == 8
    assert imported == "[]"


def test_other_source_text_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recall_answer(["question"], lambda: 1) == 1
    assert recall_answer(["question"], lambda: 2) == 1
    monkeypatch.setattr(module, "source_digest", lambda: "f" * 64)
    assert recall_answer(["question"], lambda: 2) == 2


def test_the_digest_of_the_source_text_changes_with_every_file(tmp_path: Path) -> None:
    (tmp_path / "embed").mkdir()
    (tmp_path / "embed" / "gcn.py").write_text("version = 1\n")
    before = source_digest(tmp_path)
    source_digest.cache_clear()
    (tmp_path / "embed" / "gcn.py").write_text("version = 2\n")
    assert source_digest(tmp_path) != before
    source_digest.cache_clear()


def test_a_torn_answer_and_a_folder_that_cannot_be_written_only_cost_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recall_answer(["question"], lambda: 1) == 1
    (path,) = folder.rglob("*.json")
    path.write_text("{")
    assert recall_answer(["question"], lambda: 2) == 2
    (tmp_path / "file").touch()
    monkeypatch.setattr(module, "own_cache", lambda name: tmp_path / "file" / name)
    assert [recall_answer(["question"], lambda answer=answer: answer) for answer in (1, 2)] == [1, 2]


def test_wrong_names_and_values_are_refused_every_time(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(UnknownNameError, match="Did you mean 'greedy'"):
            read_declaration("place", "gredy")
        with pytest.raises(UnknownNameError, match="parameter of coarsen"):
            read_declaration("coarsen", "metis", {"part": 3})
    assert not list(folder.rglob("*.json"))


def test_a_placer_declares_what_it_brings_along_and_a_measurer_its_files(folder: Path, tmp_path: Path) -> None:
    assert ["embed", "gcn"] in [list(row) for row in read_declaration("place", "hsdag_paper").recipe]
    assert not read_declaration("place", "greedy").recipe
    assert read_declaration("measure", "replay", {"path": str(tmp_path)}).files == ["path"]
