"""The forms in which a model lies beside one another: as it was read, and rewritten so that it may run faster.

The read stage writes them, one IR each; what is measured may run any of them. Inputs and outputs are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import list_some

FORMS = "forms.json"  # `ModelForm`s as JSON values, the model as it was read first, beside the normalised model
INT8_WEIGHTS, FLOAT_WEIGHTS, INT8_LSTM, FILLED = "int8-weights", "float-weights", "int8-lstm", "whole-tiles"


@dataclass(frozen=True, slots=True)
class ModelForm:
    """A form of a model.

    rewrite: what it is called; "" as it was read. products: names of the operations that were rewritten. left: how many
    operations of the same kind were not recognised. compressed: how many products unpack their weights from 8 bits or
    less, for which a plug-in may quantise the other input. lossless: whether weights have the values that were read.
    """

    rewrite: str = ""
    products: tuple[str, ...] = ()
    left: int = 0
    compressed: int = 0
    lossless: bool = True

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ModelForm:
        """Return the form that a JSON value describes."""
        return cls(**{**row, "products": tuple(row["products"])})

    def to_json(self) -> dict[str, Any]:
        """Return the form as a JSON value."""
        return asdict(self)


def form_file(model: Path, rewrite: str) -> Path:
    """Return the IR of a form of a model, given that of the model as it was read."""
    return model.with_name(f"{rewrite}.xml") if rewrite else model


def form_graph(rewrite: str) -> str:
    """Return the file name of a form's graph."""
    return f"{rewrite}.npz" if rewrite else "graph.npz"


def form_notes(forms: Sequence[ModelForm]) -> list[str]:
    """Return in sentences which forms of a model there are beside the one that was read."""
    what_of = {
        INT8_LSTM: "can be computed in int8, input and state rounded to 1/128",
        FILLED: "can be filled up with zeros to a width that low precisions compute faster",
    }
    recurrent = [
        f"{list_some(form.products)} {what_of[form.rewrite]}: it is tried as {form.rewrite.replace('-', ' ')}."
        for form in forms
        if form.rewrite in what_of
    ]
    others = [form for form in forms if form.rewrite and form.rewrite not in what_of]
    if not others:
        return recurrent
    first, names = others[0], list_some([form.rewrite.replace("-", " ") for form in others])
    what = "dynamically quantised product" if first.lossless else "product of floating weights"
    left = f"; {first.left} more are not, and stay as they are" if first.left else ""
    told = f"{len(first.products)} {what}{'s' * (len(first.products) != 1)} can be rewritten{left}"
    exact = "The weights keep their values" if first.lossless else "The weights are rounded to 8 bits"
    return [f"{told}. Beside the model as it was read, it is tried with {names}. {exact}.", *recurrent]
