"""Floating weights rounded to 8 bits: which are, what it costs in accuracy, and that nobody gets them unasked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.rewriting.compression import compress_weights
from coarsen.reading.rewriting.rewrites import Rewrites
from pipeline.core.errors import UnknownNameError
from pipeline.core.settings import CoarsenSettings
from pipeline.shared.model_forms import FORMS, INT8_WEIGHTS, ModelForm
from pipeline.shared.payload import read_json
from tests.unit.pipeline.stages.test_keys import tasks

RNG = np.random.default_rng(0)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (RNG.standard_normal(shape) / 8).astype(np.float32)


def embedded(*, quantised: bool = False) -> ov.Model:
    """Return an embedding and products: plain, of a transposed constant in f16, reshaped, small, and of two inputs."""
    ids, small = op.parameter([1, 6], np.int64, name="ids"), weights(64, 4)
    x = op.gather(op.constant(weights(100, 64)), ids, op.constant(np.int64(0)), name="embedding")
    x = op.fake_quantize(x, *(op.constant(np.float32(v)) for v in (-1, 1, -1, 1)), 256) if quantised else x
    x = op.matmul(x, op.constant(weights(64, 64)), False, False, name="plain")
    half = op.convert(op.constant(weights(64, 64).astype(np.float16)), "f32")
    turned = op.transpose(half, op.constant(np.array([1, 0])))
    x = op.matmul(x, turned, False, False, name="turned")
    flat = op.reshape(op.constant(weights(64 * 64)), op.constant(np.array([64, 64])), False)
    x = op.matmul(x, flat, False, True, name="reshaped")
    scores = op.matmul(x, x, False, True, name="scores")
    y = op.matmul(op.matmul(scores, x, False, False, name="mixed"), op.constant(small), False, False, name="small")
    return ov.Model([op.result(y, name="out")], [ids], "embedded")


def output(model: ov.Model) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    compiled = ov.Core().compile_model(model, "CPU", EXACT)
    return np.array(compiled([np.arange(6, dtype=np.int64).reshape(1, 6)])[0])


def test_matrices_of_products_and_embeddings_are_rounded_row_by_row() -> None:
    model = embedded()
    before, names = output(model), [port.get_names() for port in model.outputs]
    assert compress_weights(model) == ["embedding", "plain", "turned", "reshaped"]
    after = output(model)
    error = float(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert 1e-4 < error < 0.04  # four roundings to 8 bits, of half a percent each
    assert [port.get_names() for port in model.outputs] == names
    known = [node.get_friendly_name() for node in model.get_ops()]
    assert len(set(known)) == len(known)


def test_what_is_quantised_to_fixed_scales_stays() -> None:
    assert compress_weights(embedded(quantised=True)) == []


def test_weights_that_8_bits_hold_keep_their_values() -> None:
    x = op.parameter([1, 64], np.float32, name="x")
    values = RNG.integers(-127, 128, (64, 64)).astype(np.float32)
    values[:, 0] = 127
    model = ov.Model([op.matmul(x, op.constant(values * 0.5), False, True, name="product")], [x], "exact")
    compiled = [ov.Core().compile_model(model, "CPU", EXACT)]
    assert compress_weights(model) == ["product"]
    compiled.append(ov.Core().compile_model(model, "CPU", EXACT))
    found, expected = (c([np.ones((1, 64), np.float32)])[0] for c in compiled)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("allowed", "forms"), [((), [""]), (("weights-int8",), ["", INT8_WEIGHTS])])
def test_rounded_weights_are_a_form_only_if_allowed(allowed: tuple[str, ...], forms: list[str], tmp_path: Path) -> None:
    ov.save_model(embedded(), tmp_path / "plain.xml", compress_to_fp16=False)
    rewrites = Rewrites.of(CoarsenSettings(allow=allowed))
    sha256 = model_sha256(tmp_path / "plain.xml")
    read_in_process(tmp_path / "plain.xml", tmp_path, source=sha256, limits=ReadLimits(), rewrites=rewrites)
    written = [ModelForm.from_json(row) for row in read_json(tmp_path / FORMS)]
    assert [form.rewrite for form in written] == forms
    assert [form.lossless for form in written[1:]] == [False] * len(allowed)
    assert not (tmp_path / "rewritten.json").exists()


def test_what_is_allowed_is_part_of_the_key_and_must_exist() -> None:
    assert tasks()["read"].key != tasks(coarsen__allow=("weights-int8",))["read"].key
    with pytest.raises(UnknownNameError, match="weights-int4"):
        Rewrites.of(CoarsenSettings(allow=("weights-int4",)))
