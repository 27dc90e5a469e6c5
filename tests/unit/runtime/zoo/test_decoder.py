"""The decoder that keeps keys and values: tokens one after another are the same as all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from runtime import zoo
from runtime.zoo.models.decoder import HEADS, LAYERS, VOCABULARY, WIDTH

KEPT = [f"{which}_{layer}" for layer in range(LAYERS) for which in ("key", "value")]


@pytest.fixture(scope="module")
def compiled() -> Any:
    return ov.Core().compile_model(zoo.build_model("decoder"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def feed(ids: np.ndarray[Any, Any], past: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {"input_ids": ids, **{f"past_{name}": values for name, values in past.items()}}


def keys(count: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal((1, HEADS, count, WIDTH // HEADS)).astype(np.float32) for name in KEPT}


def test_tokens_one_after_another_are_the_same_as_all_at_once(compiled: Any) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, 5))
    whole = compiled(feed(ids, keys(3)))
    past, logits = keys(3), []
    for i in range(5):
        step = compiled(feed(ids[:, i : i + 1], past))
        past = {name: step[f"present_{name}"] for name in KEPT}
        logits.append(step["logits"])
    assert whole["logits"].shape == (1, 5, VOCABULARY)
    np.testing.assert_allclose(np.concatenate(logits, 1), whole["logits"], atol=1e-3)
    for name in KEPT:
        assert past[name].shape == (1, HEADS, 8, WIDTH // HEADS)
        np.testing.assert_allclose(past[name], whole[f"present_{name}"], atol=1e-3)


def test_a_token_sees_what_was_before_it_and_nothing_after(compiled: Any) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, 5))
    before, others = compiled(feed(ids, keys(3)))["logits"], ids.copy()
    others[0, 3] += 1
    after = compiled(feed(others, keys(3)))["logits"]
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-3)
    assert np.abs(after[:, 4] - before[:, 4]).max() > 0.01
    earlier = compiled(feed(ids, {name: values[..., ::-1] for name, values in keys(3).items()}))["logits"]
    assert np.abs(earlier - before).max() > 0.01
    assert 0.1 < before.std() < 100


def test_no_two_operations_share_a_name() -> None:
    names = [operation.get_friendly_name() for operation in zoo.build_model("decoder").get_ops()]
    assert len(set(names)) == len(names)
    assert not [
        name for name in names if name.rpartition("_")[2].isdecimal() and not name.startswith(("past_", "present_"))
    ]
