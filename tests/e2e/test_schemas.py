"""What a run writes is what its records, and so its schemas, say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli.main import run_command_line
from pipeline.result.records import PlacementRecord, ResultRecord, to_json
from pipeline.result.schemas import TYPES
from pipeline.shared.payload import from_json
from tests.e2e.conftest import Warm


@pytest.mark.parametrize(("name", "kind"), [("result", ResultRecord), ("placement", PlacementRecord)])
def test_what_a_run_wrote_is_read_and_written_again_byte_for_byte(
    name: str, kind: type[ResultRecord] | type[PlacementRecord], warm: Warm
) -> None:
    text = (Path(warm.run) / f"{name}.json").read_text(encoding="utf-8")
    record = from_json(kind, json.loads(text))
    assert json.dumps(to_json(record), indent=2) + "\n" == text


@pytest.mark.parametrize("kind", TYPES)
def test_the_command_prints_a_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["schema", kind]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"
