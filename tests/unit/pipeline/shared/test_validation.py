"""What pydantic finds wrong with a file, in our words."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

import pytest
from pydantic import Field
from typing_extensions import TypedDict

from pipeline.core.errors import UsageError
from pipeline.shared.validation import Faults, Finite, Name, repeated_values, strict_table


@strict_table()
class Wheel(TypedDict, total=False):
    """An entry."""

    name: Required[Name]
    grip: dict[str, float | None]
    size: int | str
    kind: Literal["front", "rear"]


@strict_table()
class Car(TypedDict, total=False):
    """A document."""

    wheels: list[Wheel]
    tank: Finite
    flow: Annotated[float, Field(gt=0)]


def check(document: Any) -> None:
    faults = Faults("car.json", UsageError, "Mend it.")
    faults.checked(Car, document)
    faults.end()


def said(document: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(document)
    return caught.value.cause.removeprefix("In car.json: ")


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        ([], "the file is [], but must be a table of keys."),
        ({"wheel": []}, "the file has an unknown key 'wheel' (did you mean 'wheels'?)."),
        ({"oil": 1}, "the file has an unknown key 'oil' (known are wheels, tank, flow)."),
        ({"wheels": [{}]}, "wheel 1 needs name."),
        ({"wheels": [{"name": ""}]}, "name of wheel 1 is '', but must be text that is not empty."),
        ({"wheels": [3]}, "wheel 1 is 3, but must be a table of keys."),
        (
            {"wheels": [{"name": "a", "grip": {"on ice": "?"}}]},
            "'on ice' of grip of wheel a is '?', but must be a number.",
        ),
        ({"wheels": [{"name": "a", "size": []}]}, "size of wheel a is [], but must be a whole number or text."),
        ({"wheels": [{"name": "a", "kind": "x"}]}, "kind of wheel a is 'x', but must be 'front' or 'rear'."),
        ({"tank": -1}, "tank is -1, but must be at least 0."),
        ({"flow": 0}, "flow is 0, but must be above 0."),
        (
            {"tank": True, "oil": 1},
            "tank is True, but must be a number; the file has an unknown key 'oil' (known are wheels, tank, flow).",
        ),
    ],
)
def test_every_fault_names_its_place_and_what_would_be_right(document: Any, cause: str) -> None:
    assert said(document) == cause


def test_what_is_right_is_returned_without_what_is_wrong() -> None:
    faults = Faults("car.json", UsageError, "Mend it.")
    document = {"tank": -1, "flow": 2, "wheels": [{"name": "a", "size": None}], "oil": 1}
    assert faults.checked(Car, document) == {"flow": 2.0, "wheels": [{"name": "a"}]}
    assert len(faults.faults) == 3
    assert document["tank"] == -1


def test_the_first_five_faults_are_named_and_the_others_counted() -> None:
    cause = said({"wheels": [{"name": f"w{i}", "size": None} for i in range(7)]})
    assert "wheel w4" in cause
    assert cause.endswith("; and 2 more.")


def test_values_that_occur_again_are_told_once() -> None:
    assert repeated_values("abacbb") == ["a", "b"]
