"""Shrunk failures of the campaign of mutated models."""

from __future__ import annotations

from pathlib import Path

import pytest

from coarsen.reading.model.read import read_model
from pipeline.core.errors import ModelError
from tests.onnx_models import relu_onnx


@pytest.mark.parametrize("text", [b"Softplus", b"Relu_2"])
def test_names_and_types_that_are_not_utf8_are_refused(text: bytes, tmp_path: Path) -> None:
    path = relu_onnx(tmp_path / "m.onnx", [1, 2, 3])
    path.write_bytes(path.read_bytes().replace(text, b"\xab" * len(text)))
    with pytest.raises(ModelError) as refused:
        read_model(path)
    assert str(path) in refused.value.cause
