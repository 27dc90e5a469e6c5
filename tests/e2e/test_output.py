"""Every command: results on standard output, as text or as one JSON document, and all else on standard error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import openvino as ov
import pytest

from pipeline.cli.main import COMMANDS, LazyGroup, run_command_line
from tests.deployments import measured
from tests.e2e.conftest import DEVICES, Warm, options
from tests.gates import make_environment, make_model, short_starts
from tests.models import two_towers
from tests.unit.benchmarks.test_bench_exact import graphs
from tests.unit.pipeline.deploy.test_predict import machines

STEADY = np.linspace(0.99e-3, 1.01e-3, 12).tolist()  # seconds
RULES = ["--topology", "equal:2"]


@dataclass(frozen=True, slots=True)
class Case:
    """What a command is told, and a piece of what it then shows; code: it ends with."""

    words: Callable[[Warm, Path], list[Any]]
    shows: str
    code: int = 0


def planned(folder: Path) -> list[Any]:
    return ["zoo:chainmm", *RULES, "--placement", folder / "plan.json"]


def with_jobs(folder: Path) -> Path:
    path = folder / "jobs.toml"
    path.write_text('[[jobs]]\nmodels = ["none.xml"]\n', encoding="utf-8")
    return path


def tuned(warm: Warm) -> list[Any]:
    return [warm.model, "--run", warm.run, *options(warm.store)]


def at(warm: Warm) -> list[Any]:
    return ["--run", warm.run, "--store", warm.store]


def calibrated(tmp: Path) -> list[Any]:
    ov.save_model(two_towers(), tmp / "model.xml", compress_to_fp16=False)
    return [tmp / "model.xml", "--machines", machines(tmp)]


def two_environments(tmp: Path) -> list[Any]:
    for side in ("old", "new"):
        make_environment(tmp / side)
    arrays = ["--input", tmp / "model.npz", "--out", tmp / "gate", "--budget", "30s"]
    return [make_model(tmp), "--before", tmp / "old", "--after", tmp / "new", *arrays]


CASES = {
    "tune": Case(lambda warm, _: tuned(warm), "Written to"),
    "tune --dry-run": Case(lambda warm, _: [*tuned(warm), "--dry-run"], "not needed"),
    "coarsen": Case(lambda warm, _: tuned(warm), "raw"),
    "embed": Case(lambda warm, _: at(warm), "features and an embedding"),
    "group": Case(lambda warm, _: at(warm), "groups."),
    "place": Case(lambda warm, _: at(warm), "greedy 1"),
    "measure": Case(lambda warm, _: at(warm), "Written to"),
    "batch": Case(lambda _, tmp: [with_jobs(tmp), "--store", tmp / "store"], "none.xml", code=3),
    "bench": Case(
        lambda _, tmp: [
            *("exact", "--inputs", graphs(tmp / "inputs"), "--out", tmp / "out"),
            *("--methods", "expert", "--seconds", "1"),
        ],
        "latency-inputs/chain.json",
    ),
    "calibrate": Case(
        lambda warm, tmp: [warm.model, "--devices", DEVICES, "--out", tmp / "out", "--store", tmp / "store"],
        "3 of 4 measurements used",
    ),
    "search": Case(lambda *_: ["zoo:chainmm", *RULES, "--evaluations", "4", "--placer", "single"], "found by single"),
    "simulate": Case(lambda _, tmp: planned(tmp), "sent between devices"),
    "bound": Case(lambda *_: ["zoo:chainmm", *RULES], "lower bound"),
    "split": Case(
        lambda warm, tmp: [warm.model, "--placement", warm.run / "placement.json", "--out", tmp / "out"], "segment"
    ),
    "emit": Case(lambda warm, tmp: [warm.run, "--to", "python", "--out", tmp / "out"], "run.py"),
    "where": Case(lambda warm, tmp: [warm.model, "--store", tmp / "store"], "per inference"),
    "worth": Case(lambda *_: ["zoo:layered?n=50", "--topology", "equal:4"], "It rests most on"),
    "predict": Case(lambda _, tmp: calibrated(tmp), "machine b"),
    "gate": Case(lambda _, tmp: two_environments(tmp), "no difference beyond 2 %"),
    "compare": Case(lambda _, tmp: [measured(tmp / "a", STEADY), measured(tmp / "b", STEADY)], "starts"),
    "report": Case(lambda warm, tmp: [warm.run, "--out", tmp / "page.html"], "page.html"),
    "train": Case(lambda _, tmp: ["--out", tmp / "out"], "neural_list.safetensors"),
    "devices": Case(lambda *_: [], "Devices that tune uses"),
    "zoo list": Case(lambda *_: [], "resnet50"),
    "zoo export": Case(lambda _, tmp: ["two-towers", "--out", tmp / "towers.xml"], "towers.bin"),
    "list": Case(lambda *_: ["coarsen"], "heavy_edge"),
    "explain": Case(lambda *_: ["coarsen.metis"], "coarsen.metis.parts"),
    "schema": Case(lambda *_: ["result"], "properties"),
    "doctor": Case(lambda *_: [], "fingerprint"),
    "prepare": Case(lambda *_: [], "Compiled in"),
    "cache ls": Case(lambda warm, _: ["--store", warm.store], "coarsen"),
    "cache gc": Case(lambda warm, _: ["--store", warm.store, "--dry-run"], "Would remove 0 artifacts"),
    "cache why": Case(lambda warm, _: ["place", *at(warm)], "would not run"),
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, made_up_profile: None) -> None:
    """Let what takes long answer at once: only what is told of it is looked at here."""
    nothing = {"before": {"fitted": {"sequential": 0.1}}, "after": {"fitted": {"sequential": 0.1}}}
    fitted = {"median_relative_error": nothing, "used": 3, "measurements": 4, "holdout": 1}
    monkeypatch.setattr("pipeline.deploy.calibrate.calibrate", lambda *_, **__: fitted)
    monkeypatch.setattr("pipeline.offline.train.train", lambda *_, **__: None)
    monkeypatch.setattr("pipeline.placing.prepare.prepare", lambda **_: 0.0)
    monkeypatch.setattr("pipeline.deploy.where.SECONDS", 0.05)
    short_starts(monkeypatch)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, by its name."""
    group = LazyGroup("placewright")
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        below = getattr(command, "commands", {})
        yield from ((f"{name} {word}", sub) for word, sub in below.items())
        if not below:
            yield name, command


HAVE_JSON = [name for name, command in commands() if any("--json" in p.opts for p in command.params)]


def test_every_command_is_looked_at() -> None:
    assert {name for name, _ in commands()} == {name.partition(" --")[0] for name in CASES}


@pytest.fixture
def told(copy: Warm, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Return a function that runs a command of CASES, and gives what it writes to standard output and error."""

    def command(name: str, *more: str) -> tuple[str, str]:
        graph = ["search", "zoo:chainmm", *RULES, "--evaluations", "4", "--placer", "single", "--json"]
        if name == "simulate":
            assert run_command_line(graph) == 0
            (tmp_path / "plan.json").write_text(capfd.readouterr().out, encoding="utf-8")
        words = [*name.split(), *map(str, CASES[name].words(copy, tmp_path)), *more]
        capfd.readouterr()
        assert run_command_line(words) == CASES[name].code, capfd.readouterr().err
        out, err = capfd.readouterr()
        return out, err

    return command


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_finds_goes_to_standard_output(name: str, told: Callable[..., tuple[str, str]]) -> None:
    out, err = told(name)
    assert CASES[name].shows in out
    assert CASES[name].shows not in "".join(line for line in err.splitlines() if not line.startswith("none: failed"))


@pytest.mark.parametrize("name", [name for name in CASES if name.partition(" --")[0] in HAVE_JSON])
def test_with_json_standard_output_is_one_document(name: str, told: Callable[..., tuple[str, str]]) -> None:
    out, err = told(name, "--json")
    json.loads(out)
    assert "─" not in err, "a table"


def test_rows_can_be_searched_in_a_pipe_however_long_they_are(
    warm: Warm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "-".join(["long"] * 40)
    shutil.copytree(warm.store, store)
    assert run_command_line(["cache", "ls", "--store", str(store)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert str(store) in lines[0]
    assert [line for line in lines if "coarsen" in line]
    assert all(line == line.rstrip() for line in lines)
