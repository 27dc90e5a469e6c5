"""The JSON schemas of files: they name every key that the documents explain."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipeline.core.errors import UnknownNameError
from pipeline.offline.records import SearchDocument
from pipeline.offline.scenario import Scenario
from pipeline.offline.search import Effort, search
from pipeline.result.schemas import TYPES, schema_of


@pytest.mark.parametrize("name", TYPES)
def test_every_schema_is_an_object_of_the_current_draft(name: str) -> None:
    schema = schema_of(name)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["type"] == "object"


def test_every_kind_of_document_has_a_schema_of_its_own_name() -> None:
    names = [schema_of(name)["$id"] for name in TYPES]
    assert len(set(names)) == len(names)
    tags = ["search", "simulate", "bound", "result", "batch"]
    assert [schema_of(name)["$id"] for name in tags] == [f"urn:placewright.{tag}/1" for tag in tags]


def properties(name: str, *path: str) -> set[str]:
    schema = schema_of(name)
    at: Any = schema
    for part in path:
        at = schema["$defs"][part]
    return set(at["properties"])


@pytest.mark.parametrize("path", [(), ("CandidateRecord",), ("Accuracy",), ("SearchRecord",), ("ContestRecord",)])
def test_the_schema_of_results_says_what_its_keys_mean(path: tuple[str, ...]) -> None:
    at = schema_of("result")["$defs"][path[0]] if path else schema_of("result")
    told = set(re.findall(r"\w+", at["description"]))
    assert properties("result", *path) - told <= {"schema", "candidates", "placer", "evaluator"}


def test_the_schema_of_calibrations_says_what_its_keys_mean() -> None:
    told = set(re.findall(r"\w+", schema_of("calibration")["description"]))
    assert properties("calibration") - told == {"schema"}


def test_a_kind_of_file_that_has_no_schema_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'result'"):
        schema_of("results")


def test_the_schemas_of_answers_say_what_their_keys_mean() -> None:
    told = ""
    for name in ("simulate", "search", "bound"):
        told += schema_of(name)["description"] if name != "bound" else ""  # search speaks of what simulate has not
        where = told if name != "bound" else schema_of(name)["description"]
        assert properties(name) - set(re.findall(r"\w+", where)) == {"schema"}


def test_an_answer_and_a_manifest_keep_to_their_schemas() -> None:
    answer = search(Scenario("zoo:chainmm", "equal:2"), Effort("heft", evaluations=20))
    assert TypeAdapter(SearchDocument).validate_python(answer, strict=True) == answer
    assert properties("manifest") == {"schema", "model", "settings", "machine", "stages"}
