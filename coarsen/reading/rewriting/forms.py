"""The forms of a model that are written beside the one that was read: rewritten so that it may run faster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov

from coarsen.reading.model.read import models_within, save_model, to_graph
from coarsen.reading.rewriting.compression import compress_weights
from coarsen.reading.rewriting.integer_products import dequantise_products, integer_products
from coarsen.reading.rewriting.recurrent import SEQUENCES, fill_up_recurrent, quantise_recurrent
from pipeline.shared.model_forms import (
    FILLED,
    FLOAT_WEIGHTS,
    FORMS,
    INT8_LSTM,
    INT8_WEIGHTS,
    ModelForm,
    form_file,
    form_graph,
)
from pipeline.shared.payload import save_graph

UNPACKING = ("Convert", "Subtract", "Multiply", "Reshape", "Transpose")  # what may stand between weights and a product
NARROW_BITS = 8


def write_forms(
    model: ov.Model, out: Path, *, source: str, dynamic_cuts: bool, weights_int8: bool = False
) -> list[ModelForm]:
    """Write the forms of a normalised model, which stays as it is, and forms.json; return them, as read first.

    Each is an IR and a graph in the folder `out`, where the model as it was read lies already; see `model_forms`.
    source, dynamic_cuts: of the graphs, as `to_graph` takes them. weights_int8: round floating weights to 8 bits where
    the model has no dynamically quantised products.
    """
    forms = [ModelForm(compressed=compressed_products(model))]
    lossless = bool(integer_products(model))
    rewrites = _form_makers(lossless=lossless, weights_int8=weights_int8)
    if any(op.get_type_name() in SEQUENCES for op in model.get_ordered_ops()):
        rewrites = {
            INT8_LSTM: _with_int8_lstms,
            FILLED: _in_whole_tiles,
            **rewrites,
        }
    for rewrite, rewritten in rewrites.items():
        changed = model.clone()
        names = rewritten(changed)
        compressed = compressed_products(changed)
        if not names or (rewrite == INT8_WEIGHTS and not compressed):
            continue
        save_model(changed, form_file(out / "model.xml", rewrite))
        save_graph(out / form_graph(rewrite), to_graph(changed, source=source, dynamic_cuts=dynamic_cuts))
        forms.append(ModelForm(rewrite, tuple(names), integer_products(changed), compressed, lossless))
    (out / FORMS).write_text(json.dumps([form.to_json() for form in forms]), encoding="utf-8")
    return forms


def _form_makers(*, lossless: bool, weights_int8: bool) -> dict[str, Callable[[ov.Model], list[str]]]:
    """Return what may be made of a model, by what the form is called: each changes it and returns what it rewrote.

    lossless: whether the model has products of integers.
    """
    if not lossless:
        return {INT8_WEIGHTS: compress_weights} if weights_int8 else {}
    return {
        INT8_WEIGHTS: lambda changed: dequantise_products(changed, packed=True),
        FLOAT_WEIGHTS: lambda changed: dequantise_products(changed, packed=False),
    }


def _with_int8_lstms(changed: ov.Model) -> list[str]:
    """Let LSTMs be computed in int8, and all else as in whole tiles; return the LSTMs."""
    written = quantise_recurrent(changed)
    _in_whole_tiles(changed)
    return written


def _in_whole_tiles(changed: ov.Model) -> list[str]:
    """Fill recurrent layers up, and let products be computed in floating point; return those layers."""
    dequantise_products(changed, packed=False)
    return fill_up_recurrent(changed)


def compressed_products(model: ov.Model) -> int:
    """Return how many matrix products of floating numbers unpack their weights from 8 bits or less.

    None where anything is quantised to fixed scales: there the runtime computes integers as the model says.
    """
    operations = [op for inner in models_within(model) for op in inner.get_ordered_ops()]
    if any(op.get_type_name() == "FakeQuantize" for op in operations):
        return 0
    return sum(op.get_type_name() == "MatMul" and _is_unpacked(op.input_value(1)) for op in operations)


def _is_unpacked(value: Any) -> bool:
    """Return whether a value is a constant of few bits that is widened, shifted and scaled."""
    widened = False
    while value.get_node().get_type_name() in UNPACKING:
        widened = widened or value.get_node().get_type_name() == "Convert"
        value = value.get_node().input_value(0)
    narrow = bool(value.get_element_type().is_integral()) and value.get_element_type().bitwidth <= NARROW_BITS
    return value.get_node().get_type_name() == "Constant" and widened and narrow
