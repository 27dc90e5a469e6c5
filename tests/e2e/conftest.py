"""What the end-to-end tests share: a tiny model, quick settings, and one store in which a whole run lies."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coarsen.reading import read_child
from coarsen.reading import read_in_process as read_apart
from coarsen.reading.model.read import save_model
from pipeline.cli.main import run_command_line
from pipeline.store.store import Store
from tests.models import two_towers
from tests.profiles import make_up_profiles

F32 = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
DEVICES = f"A=CPU{{{F32}}},B=CPU{{{F32}}}"
QUICK = {
    "profile.inferences": 3,
    "profile.link_inferences": 3,
    "place.evaluations": 20,
    "place.finalists": 1,
    "place.use": "greedy",
    "embed.directed.pretrain_epochs": 0,
    "measure.use": "sequential",
}


def options(store: Path, **more: Any) -> list[str]:
    """Return the options of a quick run: its devices, its store and its settings ("__" stands for the dot)."""
    settings = {**QUICK, **{k.replace("__", "."): v for k, v in more.items()}}
    assignments = [text for k, v in settings.items() for text in ("--set", f"{k}={v}")]
    return ["--devices", DEVICES, "--store", str(store), *assignments]


@dataclass(frozen=True)
class Warm:
    """A store in which a run of `model` lies that was made stage by stage, and its run directory."""

    store: Path
    run: Path
    model: Path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "towers.xml"
    save_model(two_towers(2, width=16), path)
    return path


@pytest.fixture(scope="session")
def warm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Warm:
    folder = tmp_path_factory.mktemp("warm")
    found = Warm(folder / "store", folder / "run", model)
    assert run_command_line(["coarsen", str(model), "--run", str(found.run), *options(found.store)]) == 0
    for stage in ("embed", "group", "place", "measure"):
        assert run_command_line([stage, "--run", str(found.run), "--store", str(found.store)]) == 0
    return found


@pytest.fixture
def copy(warm: Warm, tmp_path: Path) -> Warm:
    """Return a copy of the warm store and run directory that may be changed."""
    shutil.copytree(warm.store, tmp_path / "store")
    shutil.copytree(warm.run, tmp_path / "run")
    return Warm(tmp_path / "store", tmp_path / "run", warm.model)


@pytest.fixture
def made_up_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the profile stage make its figures up instead of running the devices."""
    make_up_profiles(monkeypatch)


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be read in this process, which has imported all that takes; test_read_apart.py has the other."""

    def ask(command: dict[str, Any], *_: object) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logging.getLogger(), "handlers", [])  # what is said there is told by who asks
            said, afterwards = read_child.answer_command(json.loads(json.dumps(command)))
            answer: dict[str, Any] = json.loads(json.dumps(said))
            afterwards()
        return answer

    monkeypatch.setattr(read_apart, "_run_command", ask)


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command with --json, which must succeed, and gives the document it prints."""

    def command(*arguments: str) -> Any:
        capsys.readouterr()
        code = run_command_line([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    return command


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file, and None for every folder, below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def damage(store: Path, key: str, name: str) -> None:
    """Flip one bit of a file of a store entry."""
    path = Store(store).folder(key) / name
    path.chmod(0o644)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
