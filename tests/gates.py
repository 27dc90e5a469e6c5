"""Environments that stand for ones with other versions, and models that nobody reads."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli.main import run_command_line
from pipeline.gate import gate
from pipeline.gate.starts import MeasuredStarts
from tests import fake_runtime

SHORT = partial(MeasuredStarts, turns_s=0.0)


def make_environment(folder: Path, **told: Any) -> Path:
    """Return a virtual environment whose interpreter is `fake_runtime`."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    words = [sys.executable, fake_runtime.__file__, json.dumps({"version": "2026.1.0", **told})]
    python.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n", encoding="utf-8")
    python.chmod(0o755)
    return folder


def make_model(folder: Path, name: str = "model") -> Path:
    """Return a file that stands for a model, with its arrays as NAME.npz beside it."""
    path = folder / f"{name}.xml"
    path.write_text(f'<net name="{name}"/>', encoding="utf-8")
    path.with_suffix(".bin").write_bytes(b"")
    np.savez(folder / f"{name}.npz", x=np.ones(3, np.float32))
    return path


def gated(tmp_path: Path, *more: str, budget: str = "30s") -> int:
    """Return the exit code of a gate of model.xml from old/ to new/."""
    model = make_model(tmp_path)
    sides = ["--before", str(tmp_path / "old"), "--after", str(tmp_path / "new")]
    arrays = ["--input", str(tmp_path / "model.npz")]
    return run_command_line(["gate", str(model), *sides, *arrays, "--budget", budget, "--quiet", *more])


def found(tmp_path: Path) -> dict[str, Any]:
    """Return what a gate has written."""
    document: dict[str, Any] = json.loads((tmp_path / "gate" / "gate.json").read_text(encoding="utf-8"))
    return document


def short_starts(monkeypatch: pytest.MonkeyPatch, look: int = gate.LOOK) -> None:
    """Let starts be of the least number of turns; look: after how many they may decide."""
    monkeypatch.setattr(gate, "MeasuredStarts", SHORT)
    monkeypatch.setattr(gate, "LOOK", look)
