"""A segment as a model server takes it: every input and output has one name, by which others are joined to it."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from runtime.executor.placed.manifest import SegmentEntry


def keeps_state(model: Path) -> bool:
    """Return whether a model remembers something from one inference to the next."""
    return bool(ov.Core().read_model(model).get_variables())


def save_served(segment: SegmentEntry, source: Path, xml: Path) -> None:
    """Write the IR of a segment, `source`, as `xml` and the .bin beside it, its ports called as their tensors are.

    An output of the whole model has other names, too, of which a server that asks for any of them takes what it likes.
    """
    model = ov.Core().read_model(source)
    for name in segment.inputs:
        model.input(name).set_names({name})
    for name in segment.outputs:
        model.output(name).set_names({name})
    ov.save_model(model, xml, compress_to_fp16=False)
