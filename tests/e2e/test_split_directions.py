"""--split-directions: a stack of bidirectional layers is placed by its directions, and the result says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.rewriting.rewrites import rewrite_notes
from pipeline.shared.model_inputs import make_inputs
from pipeline.shared.payload import read_json
from runtime import zoo
from tests.e2e.conftest import options

pytestmark = pytest.mark.usefixtures("read_here")

Ran = Callable[..., Any]
PARTS = {f"layer{layer}/{way}" for layer in (0, 1) for way in ("forward", "reverse")}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def sequences(model: ov.Model) -> set[str]:
    return {o.get_friendly_name() for o in model.get_ordered_ops() if o.get_type_name() == "LSTMSequence"}


@pytest.mark.usefixtures("made_up_profile")
def test_directions_are_placed_one_by_one_only_if_asked_for(tmp_path: Path, ran: Ran) -> None:
    zoo.export("bilstm-128", tmp_path / "stack.xml")
    quick = options(tmp_path / "store", coarsen__use="identity", place__reward="simulated")
    whole = ran("tune", str(tmp_path / "stack.xml"), "--out", str(tmp_path / "whole"), *quick)
    split = ran("tune", str(tmp_path / "stack.xml"), "--out", str(tmp_path / "split"), "--split-directions", *quick)
    key = {s["stage"]: s["key"] for s in whole["stages"]}, {s["stage"]: s["key"] for s in split["stages"]}
    assert key[0]["read"] != key[1]["read"]
    (note,) = [n for n in split["notes"] if "Operations split" in n]
    assert "layer0 is now layer0/forward and layer0/reverse" in note
    assert not any("Operations split" in n for n in whole["notes"])
    models = [ov.Core().read_model(tmp_path / run / "placed.xml") for run in ("whole", "split")]
    assert [sequences(model) for model in models] == [{"layer0", "layer1"}, PARTS]
    assert set(read_json(tmp_path / "split" / "placement.json")["placement"]) >= PARTS
    feed = make_inputs(models[0], seed=0, dynamic_size=8)
    outputs = [ov.Core().compile_model(model, "CPU", F32)(feed) for model in models]
    for name in ("states", "last"):
        np.testing.assert_allclose(outputs[1][name], outputs[0][name], rtol=1e-4, atol=1e-5)  # sums in another order


def test_a_model_without_such_operations_says_that_nothing_was_split() -> None:
    assert rewrite_notes([]) == ["The model has no operation to split."]
