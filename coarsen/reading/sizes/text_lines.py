"""Recognisers of lines of text, told by what becomes of an image: its width is a sequence, its height much less."""

from __future__ import annotations

from typing import Any

SIDEWAYS = 2  # times more than the width that the height is reduced


def reads_line(shaped: Any, height: int, width: int) -> bool:
    """Return whether a model, with an image of this size, reads it as a line of text.

    Its height is reduced much more than its width, mostly to 1, and the width that is left is the length of an output.
    """
    lengths = set()
    for out in shaped.outputs:
        shape = out.get_partial_shape()
        if shape.rank.is_dynamic or len(shape) > 3:
            continue
        lengths |= {d.get_length() for d in shape if d.is_static and d.get_length() > 1}
    return any(
        shape[-1] in lengths and shape[-1] * height >= SIDEWAYS * width * shape[-2] for shape in _image_shapes(shaped)
    )


def tiles_exactly(shaped: Any) -> bool:
    """Return whether windows that do not overlap cover all that they are laid over, so that no row is left out."""
    for op in shaped.get_ordered_ops():
        kind = op.get_type_name()
        if kind in ("MaxPool", "AvgPool"):
            window = list(op.get_attributes()["kernel"])
        elif kind == "Convolution" and op.get_input_partial_shape(1).is_static:
            window = list(op.get_input_shape(1))[2:]
        else:
            continue
        told = op.get_attributes()
        padded = any(told["pads_begin"]) or any(told["pads_end"])
        over = op.get_input_partial_shape(0)
        if padded or list(told["strides"]) != window or not over.is_static:
            continue
        if any(n % k for n, k in zip(list(over.to_shape())[2:], window, strict=True)):
            return False
    return True


def _image_shapes(shaped: Any) -> list[list[int]]:
    """Return the static shapes of rank 4 within a model."""
    shapes = [
        op.get_output_partial_shape(port) for op in shaped.get_ordered_ops() for port in range(op.get_output_size())
    ]
    return [list(s.to_shape()) for s in shapes if not s.rank.is_dynamic and len(s) == 4 and s.is_static]
