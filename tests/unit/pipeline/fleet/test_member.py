"""Which workers can be used, and what of one that can is worth a remark."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.fleet.member import CLOCK_S, compare_traits, explain_refusal

OWN: dict[str, Any] = {
    "versions": {"python": "3.11.7", "placewright": "1.0", "openvino": "2026.1", "torch": "2.9"},
    "environment": {"OMP_NUM_THREADS": ""},
    "clock_s": 1000.0,
}


def with_versions(**changed: str) -> dict[str, Any]:
    return {**OWN, "versions": OWN["versions"] | changed}


def test_a_worker_like_ourselves_is_used_without_a_word() -> None:
    assert explain_refusal(OWN, OWN) == ""
    assert compare_traits(OWN, OWN) == []


def test_a_worker_whose_artifacts_would_lie_under_wrong_keys_is_refused() -> None:
    assert explain_refusal(with_versions(openvino="2026.2"), OWN) == "it has openvino 2026.2, not 2026.1"
    assert explain_refusal(with_versions(torch="2.8"), OWN) == ""
    assert compare_traits(with_versions(torch="2.8"), OWN) == ["torch 2.8, not 2.9"]
    assert (
        explain_refusal({"error": {"cause": "It is gone.", "remedy": ""}}, OWN)
        == "it cannot tell what it is: It is gone."
    )


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [(CLOCK_S, []), (-CLOCK_S, []), (60.0, ["a clock 60 s ahead"]), (-60.0, ["a clock 60 s behind"])],
)
def test_a_clock_that_goes_wrong_either_way_is_told(ahead_s: float, said: list[str]) -> None:
    assert compare_traits(OWN | {"clock_s": OWN["clock_s"] + ahead_s}, OWN) == said


def test_variables_that_change_how_long_inferences_take_are_told() -> None:
    assert compare_traits(OWN | {"environment": {"OMP_NUM_THREADS": "1"}}, OWN) == ["OMP_NUM_THREADS=1"]
