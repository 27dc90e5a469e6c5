"""Networks of the literature, and small ones of many branches, built in code: nothing is downloaded.

Their weights are drawn from a seed and mean nothing, their cost is the real one. Each is built the way a converter
leaves it: weights stored as fp16 with the Convert that unpacks them, batch normalisation folded into weight and bias.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    import openvino as ov

# A name is either here or a graph's in runtime/zoo/workloads.
TABLE = {
    "bert-base": "runtime.zoo.models.bert_base:bert_base",
    "bilstm-128": "runtime.zoo.models.recurrent:bilstm_128",
    "bilstm-512": "runtime.zoo.models.recurrent:bilstm_512",
    "decoder": "runtime.zoo.models.decoder:decoder",
    "ensemble": "runtime.zoo.models.ensembles:ensemble",
    "four-towers": "runtime.zoo.models.recommenders:four_towers",
    "gnmt-encoder": "runtime.zoo.models.recurrent:gnmt_encoder",
    "inception-v3": "runtime.zoo.models.cnn:inception_v3",
    "mixture-of-experts": "runtime.zoo.models.ensembles:mixture_of_experts",
    "nasnet-cells": "runtime.zoo.models.searched:nasnet_cells",
    "randwire": "runtime.zoo.models.searched:randwire",
    "resnet50": "runtime.zoo.models.cnn:resnet50",
    "two-towers": "runtime.zoo.models.recommenders:two_towers",
}
# Here and not in the modules of the networks, which load the runtime.
DESCRIPTIONS = {
    "bert-base": "BERT-base, uncased: the inference of one sentence of 32 tokens, as IR.",
    "bilstm-128": "Two bidirectional LSTM layers of 128 over 32 steps, one operation each.",
    "bilstm-512": "Two bidirectional LSTM layers of 512 over 32 steps, one operation each.",
    "decoder": "A decoder of text that keeps keys and values; how many tokens and keys it has is open.",
    "ensemble": "Four convolutional classifiers of one image of 64 x 64, and their mean.",
    "four-towers": "A recommender of four towers and the products of all pairs, for a batch of 32.",
    "gnmt-encoder": "GNMT's encoder of 6 LSTM layers over 32 tokens, in 4 pieces of time.",
    "inception-v3": "Inception-v3: the inference of one image of 299 x 299, as IR.",
    "mixture-of-experts": "Two layers of four experts with a dense gate, for 16 tokens.",
    "nasnet-cells": "Three normal cells of NASNet-A on 28 x 28.",
    "randwire": "Two randomly wired graphs of 16 small convolutions each.",
    "resnet50": "ResNet-50: the inference of one image of 224 x 224, as IR.",
    "two-towers": "A recommender of a user and an item tower, for a batch of 32.",
}
PUBLISHED = ("bert-base", "inception-v3", "resnet50")
"""Networks as they were published; the others have parts that run side by side, and sizes of our own."""

VERSION = 1  # raised when a network comes out differently for an equal seed


def names() -> tuple[str, ...]:
    """Return the names of all networks."""
    return tuple(TABLE)


def descriptions() -> dict[str, str]:
    """Return what each network is, in one line, by name."""
    return dict(DESCRIPTIONS)


def build_model(name: str, *, seed: int = 0) -> ov.Model:
    """Return a network with weights drawn from `seed`; equal seeds give equal weights.

    Raises:
        UnknownNameError: there is no such network.
    """
    if name not in TABLE:
        raise UnknownNameError("model", name, TABLE, "`placewright zoo list`")
    module, _, function = TABLE[name].partition(":")
    return getattr(importlib.import_module(module), function)(seed)


def export(name: str, xml: Path, *, seed: int = 0) -> None:
    """Write a network as IR: `xml` and the .bin beside it, which appear under their names only when they are whole.

    Raises:
        UnknownNameError: there is no such network.
        UsageError: the file is not to be called .xml.
    """
    if xml.suffix != ".xml":
        raise UsageError(f"An IR cannot be written to {xml}.", "Choose a name that ends in .xml.")
    model = build_model(name, seed=seed)
    import openvino as ov  # here, so that names can be listed, and graphs built, without loading the runtime

    from pipeline.shared.payload import whole_ir

    xml.parent.mkdir(parents=True, exist_ok=True)
    with whole_ir(xml) as written:
        ov.save_model(model, written, compress_to_fp16=False)
