"""`tune` on models as exporters make them, with no more than a budget: every one ends well, with a split measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from tests.exported_models import EXPORTED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", EXPORTED)
def test_tune_measures_a_split(name: str, tmp_path: Path) -> None:
    model, out = EXPORTED[name](tmp_path), tmp_path / "run"
    assert (
        run_command_line(["tune", str(model), "--budget", "30s", "--out", str(out), "--store", str(tmp_path / "store")])
        == 0
    )
    result = json.loads((out / "result.json").read_text())
    splits = [c for c in result["candidates"] if not c["baseline"] and (c["subgraphs"] or 0) > 1 and c["latency_s"]]
    assert splits, [c["failed"] for c in result["candidates"] if not c["baseline"]]
